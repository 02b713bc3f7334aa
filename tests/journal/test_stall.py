from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.journal import Journal, JournalError, JournalStalled, Options, RealFiles, Record
from pairbus.journal.journal import START
from pairbus.journal.stall import Gate, LeftBehind, WatchedFiles
from tests.simulation.disk import SimulatedDisk

from .rig import FOLDER, STANDBY, Rig, check_crash, reopened

WAIT_S = 30.0
R = TypeVar("R")


def stalled(standby: str | None = STANDBY, write_here: bool = False) -> Rig:
    rig = Rig(standby=standby, write_here=write_here).open()
    assert rig.send(b"before") is None
    rig.files.stalled.add(FOLDER)
    return rig


# -- what the writer sees of the files


def test_an_operation_that_is_left_behind_raises_when_it_returns_and_nothing_is_done_after_it(tmp_path: Path) -> None:
    gate = Gate()
    gate.is_threaded = True
    files = WatchedFiles(RealFiles(), gate, set())
    fd = files.create(f"{tmp_path}/file")
    outcome: list[BaseException] = []

    def write() -> None:
        try:
            files.pwrite(fd, b"late", 0)
        except BaseException as error:
            outcome.append(error)

    gate.shut(str(tmp_path))
    thread = threading.Thread(target=write)
    thread.start()
    while not files.turns % 2:
        pass
    assert files.folder == str(tmp_path)
    assert not files.leave(files.turns - 2), "another operation"
    assert files.leave(files.turns)
    gate.open()
    thread.join(WAIT_S)
    assert [type(each) for each in outcome] == [LeftBehind]
    assert (tmp_path / "file").read_bytes() == b"late", "it has been done all the same"
    with pytest.raises(LeftBehind):
        files.fdatasync(fd)
    files.close_all()


def test_an_operation_that_has_returned_cannot_be_left_behind(tmp_path: Path) -> None:
    files = WatchedFiles(RealFiles(), Gate(), set())
    turn = files.turns + 1
    assert files.listdir(str(tmp_path)) == []
    assert not files.leave(turn) and not files.leave(files.turns) and not files.is_left
    files.stalled.add(str(tmp_path))
    with pytest.raises(OSError, match="does not answer"):
        files.listdir(str(tmp_path))


class HangingClose(RealFiles):
    """Closes a file at once, as Linux does, but does not return."""

    def __init__(self) -> None:
        self.has_closed, self.may_return = threading.Event(), threading.Event()

    def close(self, fd: int) -> None:
        super().close(fd)
        self.has_closed.set()
        assert self.may_return.wait(WAIT_S)


def test_what_hangs_in_close_does_not_close_the_file_of_another_later(tmp_path: Path) -> None:
    real = HangingClose()
    files = WatchedFiles(real, Gate(), set())
    fd = files.create(f"{tmp_path}/file")

    def close() -> None:
        with contextlib.suppress(LeftBehind):
            files.close(fd)

    thread = threading.Thread(target=close)
    thread.start()
    assert real.has_closed.wait(WAIT_S)
    assert files.folder == str(tmp_path), "it is known which folder stalls"
    assert files.leave(files.turns)
    other = RealFiles().create(f"{tmp_path}/other")
    os.dup2(other, fd)  # whose number is free by then
    real.may_return.set()
    thread.join(WAIT_S)
    files.close_all()
    assert RealFiles().size(fd) == 0, "still open"
    for each in {other, fd}:
        os.close(each)


# -- the journal


@pytest.mark.parametrize("write_here", [False, True])
def test_sends_go_on_in_the_standby_folder_and_return(write_here: bool) -> None:
    rig = stalled(write_here=write_here)
    assert rig.send(b"settled", lazy=True) is None
    assert rig.send(b"in the stall") is None
    assert [name for name in rig.files.listdir(STANDBY) if name.endswith(".segment")]
    assert rig.journal.trouble() is None
    assert rig.send(b"once more") is None
    rig.files.resume()
    rig.turn(1.0).turn()
    current = rig.journal.segments()[-1].number
    assert rig.send(b"after") is None and rig.answers[-1][2] == current
    assert any(f"{FOLDER} answers again" in note for note in rig.journal.notes)
    for files in (rig.files.kill(), rig.files.power_cut(), rig.files.power_cut(random.Random(1))):
        found = check_crash(rig, files)
        assert found[:1] == [b"before"] and found[-3:] == [b"in the stall", b"once more", b"after"]


def test_without_a_standby_folder_sends_are_refused_and_never_come_back_once_it_is_over() -> None:
    rig = stalled(None)
    first, second = rig.send(b"first"), rig.send(b"second")
    assert isinstance(first, JournalStalled) and first.unknown
    assert isinstance(second, JournalStalled) and not second.unknown
    assert isinstance(rig.journal.trouble(), JournalStalled)
    rig.files.resume()
    rig.turn(1.0).turn(1.0)
    assert rig.journal.trouble() is None and rig.send(b"after") is None
    assert reopened(rig.files.power_cut()).replayed() == [b"before", b"after"]


def test_answered_settlements_outlive_a_stall_without_a_standby_folder() -> None:
    rig = Rig(write_here=True).open()
    assert rig.send(b"settled", lazy=True) is None
    rig.files.stalled.add(FOLDER)
    rig.turn(0.2)
    assert isinstance(rig.send(b"refused"), JournalStalled)
    rig.files.resume()
    rig.turn(1.0).turn(1.0).turn(1.0)
    assert reopened(rig.files.power_cut()).replayed() == [b"settled"]


def test_both_folders_stall() -> None:
    rig = stalled()
    assert rig.send(b"in the standby folder") is None
    rig.files.stalled.add(STANDBY)
    assert isinstance(rig.send(b"refused"), JournalStalled)
    rig.files.resume()
    rig.turn(1.0).turn(1.0)
    assert rig.send(b"after") is None
    assert reopened(rig.files.power_cut(), standby=STANDBY).replayed() == [
        b"before",
        b"in the standby folder",
        b"after",
    ]


def test_what_is_in_a_stalled_folder_is_neither_read_nor_compacted() -> None:
    rig = stalled()
    _, _, segment, offset = rig.answers[0]
    rig.send(b"in the stall")
    with pytest.raises(JournalStalled):
        rig.journal.read(segment, offset, 6)
    rig.journal.release(segment, 6)
    assert not rig.journal.compaction_is_due()
    assert asyncio.run(rig.journal.compact(Nobody())) is None
    rig.files.resume()
    rig.turn(1.0).turn()
    assert rig.journal.read(segment, offset, 6) == b"before"
    assert rig.journal.compaction_is_due()


class Nobody:
    def live(self, record: Record) -> None:
        return None

    def moved(self, record: Record, segment: int, offset: int) -> None:
        raise AssertionError


def turning(rig: Rig, work: Coroutine[Any, Any, R]) -> R:
    """Do what needs the writer, in the meantime."""

    async def run() -> R:
        task = asyncio.create_task(work)
        while not task.done():
            await asyncio.sleep(0)
            rig.turn()
        return await task

    return asyncio.run(run())


def read_again(rig: Rig) -> list[bytes]:
    found: list[Record] = []
    turning(rig, rig.journal.read_again(START, found.append))
    return [record.payload for record in found]


def test_both_folders_are_read_again_once_they_answer() -> None:
    rig = stalled()
    assert rig.send(b"settled", lazy=True) is None
    assert rig.send(b"in the stall") is None
    calls = rig.files.calls
    with pytest.raises(JournalStalled):
        read_again(rig)
    touched = rig.files.log[calls - rig.files.calls :]
    assert not [call for call in touched if call.startswith(("open", "pread"))], "the loop's thread would hang there"
    rig.files.resume()
    rig.turn(1.0).turn()
    assert rig.send(b"after") is None
    assert read_again(rig) == [b"before", b"settled", b"in the stall", b"after"]


@pytest.mark.parametrize("seed", range(6))
def test_a_segment_whose_removal_hangs_is_not_read_again(seed: int) -> None:
    rig = Rig(standby=STANDBY).open()
    rig.files.chance = random.Random(seed)  # whether the call that hangs does its work
    for number in range(30):
        assert rig.send(b"%d" % number * 200) is None
    rig.journal.release(1, sum(len(payload) for _, payload, _ in rig.asked.values()))
    rig.files.stalled.add(FOLDER)
    with pytest.raises(JournalStalled):
        turning(rig, rig.journal.compact(Nobody()))
    rig.files.resume()
    rig.turn(1.0).turn()
    later = [rig.asked[lsn][1] for lsn, _, segment, _ in rig.answers if segment > 1]
    assert read_again(rig) == later


def test_compaction_empties_the_standby_folder() -> None:
    rig = stalled()
    assert rig.send(b"in the stall") is None
    rig.files.resume()
    rig.turn(1.0).turn()
    assert rig.send(b"after") is None

    for _ in range(2):
        turning(rig, rig.journal.compact(Nobody()))
    assert not [name for name in rig.files.listdir(STANDBY) if name.endswith(".segment")]
    assert reopened(rig.files.power_cut(), standby=None).replayed() == [b"after"], "it can be left out from now on"


def test_the_journal_can_be_closed_while_its_folder_stalls() -> None:
    rig = stalled()
    lsn = rig.append(b"waits")
    rig.journal.close()
    assert rig.answer_to(lsn) is None
    assert reopened(rig.files.power_cut(), standby=STANDBY).replayed() == [b"before", b"waits"]
    without = stalled(None)
    lsn = without.append(b"waits")
    without.journal.close()
    assert isinstance(without.answer_to(lsn), JournalStalled)


@given(call=st.integers(1, 40), seed=st.integers(0, 3), write_here=st.booleans())
def test_a_stall_at_any_call_loses_nothing_and_brings_nothing_back(call: int, seed: int, write_here: bool) -> None:
    """The folder stalls at this call of one story, and the power is cut at its end or the process killed."""
    rig = Rig(SimulatedDisk(chance=random.Random(seed)), standby=STANDBY, write_here=write_here).open()
    last = rig.files.calls + call
    for number in range(24):
        if rig.files.calls >= last:
            rig.files.stalled.add(FOLDER)
        rig.append(b"%d" % number * 150, lazy=number % 3 == 0)
        if number % 2:
            rig.turn(0.05)
        if number == 20:
            rig.files.resume()
    rig.turn(1.0).turn(1.0)
    assert all(error is None for _, error, _, _ in rig.answers)
    check_crash(rig, rig.files.kill(), lazy_survives=True)
    check_crash(rig, rig.files.power_cut(random.Random(seed)), lazy_survives=True)


@pytest.mark.parametrize("standby", [STANDBY, None])
def test_the_writer_looks_for_trouble(standby: str | None) -> None:
    rig = Rig(standby=standby).open()
    assert turning(rig, rig.journal.look_for_trouble()) is None
    rig.files.is_read_only_now = True
    assert "read-only" in str(turning(rig, rig.journal.look_for_trouble()))
    rig.files.is_read_only_now = False
    rig.files.stalled.add(FOLDER)
    rig.send(b"in the stall")
    trouble = turning(rig, rig.journal.look_for_trouble())
    assert trouble is None if standby else isinstance(trouble, JournalStalled)
    rig.journal.close()
    assert "closed" in str(asyncio.run(rig.journal.look_for_trouble()))


# -- with threads, on real files


class Heard:
    """Answers of a journal with threads."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def send(self, payload: bytes) -> JournalError | None:
        done = threading.Event()
        outcome: list[JournalError | None] = []

        def answered(error: JournalError | None, segment: int, offset: int) -> None:
            outcome.append(error)
            done.set()

        self.journal.append(1, payload, answered)
        assert done.wait(WAIT_S), "no answer"
        return outcome[0]


def started(folder: Path, standby: Path | None, **options: float) -> tuple[Heard, list[bytes]]:
    journal = Journal.open(folder, Options(stall_s=0.1, **options), standby=standby)  # type: ignore[arg-type]
    found = [record.payload for record in journal.replay()]
    journal.start(lambda callback: callback(), write_here=True)
    return Heard(journal), found


def test_a_thread_that_hangs_is_replaced_and_comes_back(tmp_path: Path) -> None:
    main, standby = tmp_path / "main", tmp_path / "standby"
    others = set(threading.enumerate())
    heard, _ = started(main, standby)
    assert heard.send(b"before") is None
    heard.journal.stall(True)
    assert heard.send(b"first") is None and heard.send(b"second") is None
    heard.journal.stall(False)
    back = threading.Event()
    while heard.journal._log is not None and heard.journal._log.folder != str(main):
        back.wait(0.01)
    assert heard.send(b"after") is None
    heard.journal.stall(True)
    assert heard.send(b"again") is None
    heard.journal.close()
    assert set(threading.enumerate()) <= others
    heard, found = started(main, standby)
    heard.journal.close()
    assert found == [b"before", b"first", b"second", b"after", b"again"]


def test_close_ends_a_stall_that_nobody_has_noticed_yet(tmp_path: Path) -> None:
    heard, _ = started(tmp_path / "main", None)
    heard.journal.stall(True)
    answers: list[JournalError | None] = []
    heard.journal.append(1, b"waits", lambda error, segment, offset: answers.append(error))
    heard.journal.close()
    assert len(answers) == 1
    _, found = started(tmp_path / "main", None)
    assert found == ([b"waits"] if answers == [None] else [])
