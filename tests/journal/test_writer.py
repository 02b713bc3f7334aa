from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pairbus.journal import Journal, JournalFailed, writer
from pairbus.journal.writer import deliver
from tests.journal.rig import Rig, reopened


def test_every_callback_is_called_whatever_another_raises() -> None:
    heard: list[int] = []

    def good(error: object, segment: int, offset: int) -> None:
        heard.append(offset)

    def bad(error: object, segment: int, offset: int) -> None:
        raise KeyError(offset)

    with pytest.raises(KeyError, match="2"):
        deliver([(good, None, 1, 1), (bad, None, 1, 2), (good, None, 1, 3), (bad, None, 1, 4)], lambda: 0.0, 1.0, [])
    assert heard == [1, 3]


def test_many_answers_come_in_order_a_few_milliseconds_a_turn_whatever_one_of_them_raises() -> None:
    rig = Rig().open()
    turns: list[Callable[[], None]] = []
    rig.post = turns.append  # type: ignore[method-assign,assignment]
    rig.journal._post = rig.journal._writer._post = turns.append  # type: ignore[union-attr]
    heard: list[int] = []

    def done(number: int, error: object, segment: int, offset: int) -> None:
        heard.append(number)
        rig.now += 0.001
        if number == 1:
            raise KeyError(number)

    for number in range(20):
        rig.journal.append(1, b"x", partial(done, number))
    rig.journal.turn()
    rig.journal.append(1, b"x", partial(done, 20))
    rig.journal.turn()
    with pytest.raises(KeyError, match="1"):
        turns.pop(0)()
    assert 1 < len(heard) < 10
    while turns:
        before = len(heard)
        turns.pop(0)()
        assert len(heard) - before < 10
    assert heard == list(range(21))


def test_a_crash_answers_all_that_waits_and_all_that_comes_and_is_raised_on_the_loop() -> None:
    rig = Rig().open()
    assert rig.send(b"kept") is None
    assert rig.journal._log is not None

    def bug(batch: object, now: float) -> None:
        raise ZeroDivisionError("a bug")

    rig.journal._log.commit = bug  # type: ignore[method-assign]
    first, second = rig.append(b"one"), rig.append(b"two", lazy=True)
    rig.turn()
    for lsn in (first, second):
        error = rig.answer_to(lsn)
        assert isinstance(error, JournalFailed) and error.unknown and "ZeroDivisionError" in str(error)
    assert [type(error) for error in rig.errors] == [ZeroDivisionError]
    assert isinstance(rig.send(b"later"), JournalFailed)
    assert rig.journal.failure is not None
    assert any("crashed" in note for note in rig.journal.notes)
    with pytest.raises(JournalFailed, match="crashed"):
        rig.journal.close()
    assert reopened(rig.files.kill()).replayed() == [b"kept"]


def test_a_crash_between_answers_answers_nobody_twice() -> None:
    rig = Rig().open()
    assert rig.journal._log is not None
    rig.append(b"lazy", lazy=True)
    rig.append(b"send")

    def bug() -> None:
        raise ZeroDivisionError("a bug")

    rig.journal._log._fdatasync = bug  # type: ignore[method-assign]
    rig.turn()
    assert [(lsn, error is None) for lsn, error, _, _ in rig.answers] == [(1, True), (2, False)]


def test_a_closed_loop_does_not_stop_the_writing() -> None:
    rig = Rig().open()
    assert rig.journal._writer is not None

    def closed(callback: object) -> None:
        raise RuntimeError("Event loop is closed")

    rig.journal._writer._post = closed
    rig.append(b"written all the same")
    rig.turn()
    rig.journal.close()
    assert any("could not be delivered" in note for note in rig.journal.notes)
    assert reopened(rig.files.power_cut()).replayed() == [b"written all the same"]


def test_a_batch_is_bounded() -> None:
    rig = Rig().open()
    for _ in range(5):
        rig.append(b"x" * 100_000)
    assert rig.journal._writer is not None
    command, batch = rig.journal._writer._collect(False)
    assert command is None and len(batch) == 5


class TestWrittenHere:
    """Lazy records that `append` writes by itself, since nothing waits."""

    def rig(self) -> Rig:
        rig = Rig(write_here=True).open()
        assert rig.send(b"first") is None  # makes room in the segment
        return rig

    def test_it_is_answered_at_once_and_there_after_a_kill(self) -> None:
        rig = self.rig()
        told: list[tuple[object, int, int]] = []
        rig.journal.append(1, b"lazy", lambda *answer: told.append(answer), lazy=True)
        ((error, segment, offset),) = told
        assert error is None
        assert rig.journal.read(segment, offset, 4) == b"lazy"
        assert reopened(rig.files.kill()).replayed() == [b"first", b"lazy"]

    def test_it_is_synced_when_its_time_has_come(self) -> None:
        rig = self.rig()
        rig.append(b"lazy", lazy=True)
        assert reopened(rig.files.power_cut()).replayed() == [b"first"]
        rig.turn(0.1)
        rig.turn(0.1)
        assert reopened(rig.files.power_cut()).replayed() == [b"first", b"lazy"]

    def test_after_a_pause_the_thread_is_asked_and_what_follows_is_written_here(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writer, "_ASKED_S", 10.0)
        now = [0.0]
        journal = Journal.open(str(tmp_path), clock=lambda: now[0])
        assert list(journal.replay()) == []
        journal.start(lambda call: call(), write_here=True)
        told: list[str] = []
        stored = threading.Event()
        journal.append(1, b"send", lambda *_: stored.set())
        assert stored.wait(10)
        now[0] = 60.0
        for _ in range(3):
            journal.append(1, b"lazy", lambda *_: told.append(threading.current_thread().name), lazy=True)
        journal.close()
        here = threading.current_thread().name
        assert told == ["pairbus-journal", here, here]

    def test_it_never_overtakes_what_waits(self) -> None:
        rig = self.rig()
        rig.append(b"send")
        rig.append(b"lazy", lazy=True)
        assert [lsn for lsn, *_ in rig.answers] == [1]
        rig.turn()
        assert reopened(rig.files.kill()).replayed() == [b"first", b"send", b"lazy"]

    def test_a_write_that_fails_is_left_to_the_thread_and_its_rules(self) -> None:
        rig = self.rig()
        rig.append(b"kept", lazy=True)
        rig.files.fail("pwrite")
        lsn = rig.append(b"again", lazy=True)
        assert all(answered != lsn for answered, *_ in rig.answers)
        rig.turn()  # hears that a sync will be due
        rig.turn()
        assert rig.answer_to(lsn) is None
        assert reopened(rig.files.kill()).replayed() == [b"first", b"kept", b"again"]

    def test_it_starts_no_new_segment(self) -> None:
        rig = self.rig()
        count = len(rig.journal.segments())
        payloads = [b"%04d" % number + b"." * 300 for number in range(30)]
        for payload in payloads:
            rig.append(payload, lazy=True)
            if rig.journal.pending_bytes:
                assert len(rig.journal.segments()) == count
                rig.turn()
                count = len(rig.journal.segments())
        assert count > 1
        assert reopened(rig.files.kill()).replayed() == [b"first", *payloads]
