"""Divides long work on the event loop into slices of a few milliseconds, so that it holds nobody else up. Pure.

A job is a generator that yields between two units of its work, each well below a millisecond. Each turn of the loop has
one slice for all jobs of the process together. Jobs take turns: one that has used up a slice goes behind the others. A
job that is done before the turn's slice is used up ends within `start`, like a plain call.

Between two units other things happen: entities are deleted, connections end, the broker stops. A job checks its data
again after each `yield`, and releases its resources in a `finally` block, which also runs when it is cancelled. Every
loop whose length a client controls (expiring messages, a purge, a listing) runs as a job here; `done` gives the answer
to the client. Work that must keep an order is started in a line: it begins when the job before it in that line has
ended, `done` included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

SLICE_S: Final = 0.003
JOBS_MAX: Final = 20_000


class SlicesFull(Exception):
    """Too many jobs are under way; the client is to be told that the server is busy."""


class Line(list["Job[Any]"]):
    """Jobs in the order in which they were started; only the first of them is under way."""

    __slots__ = ()


class Job(Generic[T]):
    """One piece of work, and what came of it."""

    __slots__ = ("_done", "_error", "_is_running", "_result", "_slices", "_work", "is_done", "lines")

    def __init__(
        self,
        slices: Slices,
        work: Generator[None, None, T],
        done: Callable[[Job[T]], None],
        lines: Sequence[Line],
    ) -> None:
        self.lines = lines
        self._slices = slices
        self._work = work
        self._done: Callable[[Job[T]], None] | None = done
        self._result: T
        self._error: Exception | None = None
        self._is_running = False
        #: Whether it has ended, in whatever way.
        self.is_done = False

    def __repr__(self) -> str:
        return f"<Job {self._work}: {'done' if self.is_done else 'under way'}>"

    def result(self) -> T:
        """Return what the work returned, or raise what it raised, once.

        The job doesn't keep an error that was raised: its traceback leads back to the job, and a client's request would
        wait in memory for the cycle collector.
        """
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return self._result

    def cancel(self) -> None:
        """End the work where it is, or at its next `yield` if it cancels itself. `done` isn't called."""
        if not self.is_done:
            self.is_done = True
            self._done = None
            if not self._is_running:
                self._end()

    def step(self) -> None:
        """Do one unit of the work, and call `done` if that was the last."""
        self._is_running = True
        try:
            next(self._work)
        except StopIteration as end:
            self._result = end.value
        except Exception as error:  # it is the caller's, who gets it from `result`
            if not self.is_done:
                self._error = error
        else:
            self._is_running = False
            if self.is_done:
                self._end()
            return
        self.is_done = True
        done, self._done = self._done, None  # which may lead to the job
        try:
            if done is not None:
                done(self)
        finally:
            self._end()

    @property
    def is_first(self) -> bool:
        """Whether it is the first in all its lines."""
        return all(line[0] is self for line in self.lines)

    def _end(self) -> None:
        try:
            self._work.close()
        finally:
            self._slices.ended(self)


def finish(work: Generator[None, None, T]) -> T:
    """Do all that is left of a piece of work at once, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class Slices:
    """Runs jobs, one slice a turn of the loop for all of them.

    `clock` gives seconds; `call_soon` calls something in the next turn. With a clock that stands still, all work ends
    within `start`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = lambda: 0.0,
        call_soon: Callable[[Callable[[], None]], object] = lambda callback: None,
        slice_s: float = SLICE_S,
        jobs_max: int = JOBS_MAX,
    ) -> None:
        self._clock = clock
        self._call_soon = call_soon
        self._slice_s = slice_s
        self._jobs_max = jobs_max
        # Those that are not done; and of these the ones that don't wait for another one in their line.
        self._all: dict[Job[Any], None] = {}
        self._jobs: deque[Job[Any]] = deque()
        self._is_held = False
        #: Seconds that are left of this turn's slice.
        self._left = slice_s
        self._is_scheduled = False
        self._is_running = False

    def __repr__(self) -> str:
        return f"<Slices: {len(self._all)} jobs>"

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_full(self) -> bool:
        """Whether `start` would raise SlicesFull."""
        return len(self._all) >= self._jobs_max

    def start(
        self, work: Generator[None, None, T], done: Callable[[Job[T]], None], lines: Sequence[Line] = ()
    ) -> Job[T]:
        """Begin to do something, and call `done` with the job when it has ended: its `result` returns or raises.

        With `lines` it begins when it is the first in all of them. Raises SlicesFull.
        """
        if self.is_full:
            work.close()
            raise SlicesFull
        job = Job(self, work, done, lines)
        self._all[job] = None
        for line in lines:
            line.append(job)
        if job.is_first:
            self._jobs.append(job)
            if self._left > 0 and not (self._is_running or self._is_held):
                self._run()
            self._schedule()
        return job

    def run(self, work: Callable[[], Generator[None, None, None]], done: Callable[[], None] = lambda: None) -> None:
        """Do what takes long and then call `done`; at once where no more can be done in slices, as at the end."""

        def finished(job: Job[None]) -> None:
            job.result()
            done()

        try:
            self.start(work(), finished)
        except SlicesFull:
            Slices().start(work(), finished)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Let no job run within the block: `start` leaves all of it to the next turn."""
        was_held, self._is_held = self._is_held, True
        try:
            yield
        finally:
            self._is_held = was_held

    def close(self) -> None:
        """Cancel all jobs, and take no more."""
        self._jobs_max = 0
        for job in list(self._all):
            job.cancel()

    def ended(self, job: Job[Any]) -> None:
        """Let those begin that waited for a job to end; called by the job."""
        del self._all[job]
        for line in job.lines:
            was_first = line[0] is job
            line.remove(job)
            if was_first and line and line[0].is_first:
                self._jobs.append(line[0])
                self._schedule()

    def _turn(self) -> None:
        self._is_scheduled = False
        self._left = self._slice_s
        try:
            self._run()
        finally:
            self._schedule()

    def _run(self) -> None:
        """Use what is left of this turn's slice."""
        jobs, clock = self._jobs, self._clock
        self._is_running = True
        began = clock()
        try:
            while jobs and self._left > 0:
                job = jobs[0]
                while not job.is_done and self._left > 0:
                    try:
                        job.step()
                    finally:
                        ended = clock()
                        self._left -= ended - began
                        began = ended
                jobs.popleft()
                if not job.is_done:
                    jobs.append(job)
        finally:
            self._is_running = False

    def _schedule(self) -> None:
        """See to it that the next turn has a slice again, if this one's was begun."""
        if not self._is_scheduled and (self._jobs or self._left < self._slice_s):
            self._is_scheduled = True
            self._call_soon(self._turn)
