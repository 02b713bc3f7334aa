"""The scheduler of long work: slices of a turn, jobs that take turns, errors, cancellation and the bound."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from pairbus.broker.slices import Job, Line, Slices, SlicesFull


class Loop:
    """A loop whose turns are made by hand; `log` tells which units were done, turn by turn."""

    def __init__(self, jobs_max: int = 100) -> None:
        self.now = 0.0
        self.turns = 0
        self.log: list[str] = []
        self.ended: list[Any] = []
        self._soon: list[Callable[[], None]] = []
        self.slices = Slices(lambda: self.now, self._soon.append, slice_s=0.003, jobs_max=jobs_max)

    def work(self, name: str, units: int, cost: float = 0.001) -> Generator[None, None, str]:
        try:
            for unit in range(units):
                self.log.append(f"{name}{unit}")
                self.now += cost
                yield
            return name
        finally:
            self.log.append(f"{name} ends")

    def start(self, name: str, units: int, cost: float = 0.001, lines: Sequence[Line] = ()) -> Job[str]:
        return self.slices.start(self.work(name, units, cost), self.note, lines)

    def note(self, job: Job[Any]) -> None:
        self.ended.append(job.result())

    def turn(self) -> list[str]:
        """Make a turn and return what was done in it."""
        self.turns += 1
        self.log.clear()
        soon = list(self._soon)
        self._soon.clear()
        for callback in soon:
            callback()
        return list(self.log)

    @property
    def is_idle(self) -> bool:
        return not self._soon


def test_small_work_is_done_at_once() -> None:
    loop = Loop()
    job = loop.start("a", 2)
    assert (loop.ended, job.result(), job.is_done, loop.turns) == (["a"], "a", True, 0)
    loop.turn()
    assert loop.is_idle, "what was spent of the slice is given back, and then there is nothing to do"


def test_where_the_clock_stands_still_everything_is_done_at_once() -> None:
    ended: list[Job[str]] = []
    slices = Slices()
    loop = Loop()
    slices.start(loop.work("a", 10_000, 0.0), ended.append)
    assert ended[0].result() == "a"


def test_one_slice_a_turn_for_all_jobs_together() -> None:
    loop = Loop()
    loop.start("a", 5)
    assert loop.log == ["a0", "a1", "a2"], "this turn's slice"
    loop.start("b", 2)
    loop.start("c", 1)
    assert loop.log == ["a0", "a1", "a2"], "which is spent: nobody else gets one"
    assert loop.turn() == ["a3", "a4", "a ends", "b0"]
    assert loop.ended == ["a"]
    assert loop.turn() == ["c0", "c ends", "b1", "b ends"]
    assert loop.ended == ["a", "c", "b"]


def test_jobs_take_turns() -> None:
    loop = Loop()
    loop.start("a", 100)
    loop.start("b", 100)
    assert [loop.turn()[0][0] for _ in range(6)] == ["a", "b", "a", "b", "a", "b"]


def test_a_unit_that_takes_longer_than_a_slice_costs_no_later_turn_its_slice() -> None:
    loop = Loop()
    loop.start("a", 3, cost=0.1)
    assert [len(loop.turn()) for _ in range(2)] == [1, 1]
    assert loop.turn() == ["a ends"]


def test_what_done_does_is_paid_by_the_slice_too() -> None:
    loop = Loop()

    def done(job: Job[str]) -> None:
        loop.now += 0.01

    loop.slices.start(loop.work("a", 1), done)
    loop.start("b", 1)
    assert loop.log == ["a0", "a ends"]
    assert loop.turn() == ["b0", "b ends"]


def test_done_may_start_the_next_job() -> None:
    loop = Loop()
    started: list[Job[str]] = []
    loop.slices.start(loop.work("a", 1), lambda _: started.append(loop.start("b", 3)))
    assert loop.log == ["a0", "a ends", "b0", "b1"]
    assert loop.turn() == ["b2", "b ends"]
    assert (loop.ended, started[0].is_done) == (["b"], True)


def failing() -> Generator[None, None, None]:
    yield
    raise LookupError("not here")


def test_an_error_is_reported_to_done_and_stops_no_other_job() -> None:
    loop = Loop()
    failed: list[Job[None]] = []
    loop.slices.start(failing(), failed.append)
    loop.start("b", 1)
    with pytest.raises(LookupError, match="not here"):
        failed[0].result()
    assert loop.ended == ["b"]


def test_a_job_that_ended_waits_for_no_cycle_collector() -> None:
    """Neither its error, whose traceback leads to the job, nor what `done` refers to."""
    kept: list[weakref.ref[Any]] = []

    class Failure(Exception):
        def __init__(self) -> None:
            kept.append(weakref.ref(self))

    def work(jobs: list[Job[None]], is_cancelled: bool) -> Generator[None, None, None]:
        yield
        if is_cancelled:
            jobs[0].cancel()
        raise Failure

    def run(is_cancelled: bool) -> None:
        loop = Loop()
        jobs: list[Job[None]] = []

        def done(job: Job[None]) -> None:
            with contextlib.suppress(Failure):
                jobs[0].result()

        kept.append(weakref.ref(done))
        with loop.slices.holding():
            jobs.append(loop.slices.start(work(jobs, is_cancelled), done))
        del done
        loop.turn()
        assert jobs[0].is_done

    gc.disable()
    try:
        for is_cancelled in (False, True):
            run(is_cancelled)
        assert [each() for each in kept] == [None] * 4
    finally:
        gc.enable()


def test_an_error_in_done_is_raised_and_stops_no_other_job() -> None:
    loop = Loop()
    loop.start("a", 3)
    loop.slices.start(failing(), loop.note)
    loop.start("b", 1)
    with pytest.raises(LookupError):
        loop.turn()
    loop.turn()
    assert loop.ended == ["a", "b"]


def test_a_cancelled_job_releases_what_it_holds_and_is_not_answered() -> None:
    loop = Loop()
    job = loop.start("a", 9)
    job.cancel()
    job.cancel()
    assert loop.log[-1] == "a ends"
    assert job.is_done
    assert (loop.turn(), loop.ended) == ([], [])


def test_a_job_may_cancel_itself() -> None:
    loop = Loop()
    jobs: list[Job[None]] = []

    def work() -> Generator[None, None, None]:
        try:
            loop.now += 1.0
            yield
            jobs[0].cancel()
            yield
            loop.log.append("goes on")
        finally:
            loop.log.append("ends")

    jobs.append(loop.slices.start(work(), loop.note))
    assert loop.turn() == ["ends"]
    assert loop.ended == []


def test_close_cancels_all_jobs_and_lets_none_begin() -> None:
    loop = Loop()
    for name in "abc":
        loop.start(name, 9)
    loop.slices.close()
    assert loop.log[-1:] == ["a ends"], "the others had not begun"
    assert (loop.turn(), loop.ended, len(loop.slices)) == ([], [], 0)
    with pytest.raises(SlicesFull):
        loop.start("d", 1)


def test_jobs_are_bounded() -> None:
    loop = Loop(jobs_max=2)
    loop.start("a", 9)
    loop.start("b", 9)
    with pytest.raises(SlicesFull):
        loop.start("c", 9)
    assert len(loop.slices) == 2


def test_a_job_in_a_line_begins_when_the_one_before_it_has_ended() -> None:
    loop, line = Loop(), Line()
    loop.start("a", 5, lines=[line])
    loop.start("b", 1, lines=[line])
    loop.start("c", 9)
    assert loop.turn() == ["a3", "a4", "a ends", "c0"]
    assert [each[0] for each in loop.turn()] == ["b", "b", "c", "c"]
    assert loop.ended == ["a", "b"]
    assert line == []


def test_a_job_in_several_lines_waits_until_it_is_the_first_in_all() -> None:
    loop, one, two = Loop(), Line(), Line()
    loop.start("a", 4, lines=[one])
    loop.start("b", 6, lines=[two])
    loop.start("both", 1, lines=[one, two])
    loop.start("c", 1, lines=[one])
    while len(loop.slices):
        loop.turn()
    assert loop.ended == ["a", "b", "both", "c"]


def test_done_is_part_of_its_job_for_those_that_wait_in_the_line() -> None:
    loop, line = Loop(), Line()
    order: list[str] = []
    loop.slices.start(loop.work("a", 4), lambda _: order.append("a is done"), [line])
    loop.slices.start(loop.work("b", 0), lambda _: order.append("b is done"), [line])
    while len(loop.slices):
        loop.turn()
    assert order == ["a is done", "b is done"]


def test_the_line_goes_on_behind_a_job_that_fails_or_is_cancelled() -> None:
    loop, line = Loop(), Line()
    loop.start("a", 9, lines=[line])
    waiting = loop.start("b", 9, lines=[line])
    loop.slices.start(failing(), lambda job: loop.ended.append(job), [line])
    loop.start("c", 1, lines=[line])
    waiting.cancel()
    line[0].cancel()
    loop.turn()
    assert loop.ended[1:] == ["c"]
    assert (line, len(loop.slices)) == ([], 0)


def test_close_cancels_those_that_wait_in_a_line_too() -> None:
    loop, line = Loop(), Line()
    for name in "abc":
        loop.start(name, 9, lines=[line])
    loop.slices.close()
    assert (loop.turn(), loop.ended, line, len(loop.slices)) == ([], [], [], 0)


def test_nothing_runs_while_jobs_are_held() -> None:
    loop = Loop()
    with loop.slices.holding():
        loop.start("a", 1)
        assert loop.log == []
    assert loop.turn() == ["a0", "a ends"]
