from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pairbus.journal import (
    Journal,
    JournalBusy,
    JournalClosed,
    JournalError,
    JournalFailed,
    JournalLocked,
    Options,
    RealFiles,
    Record,
    RecordTooLarge,
)
from pairbus.journal import record as record_module
from pairbus.journal.journal import START
from pairbus.journal.options import Durability
from tests.journal.rig import FOLDER, SMALL, Rig, reopened
from tests.simulation.disk import SimulatedDisk


async def append(journal: Journal, payload: bytes, *, lazy: bool = False) -> tuple[int, int]:
    answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    def done(error: JournalError | None, segment: int, offset: int) -> None:
        if error is None:
            answer.set_result((segment, offset))
        else:
            answer.set_exception(error)

    journal.append(1, payload, done, lazy=lazy)
    return await answer


def opened(folder: Path, options: Options | None = None) -> tuple[Journal, list[bytes]]:
    journal = Journal.open(folder, options)
    found = [record.payload for record in journal.replay()]
    journal.start(asyncio.get_running_loop().call_soon_threadsafe)
    return journal, found


async def test_the_round_trip_on_real_files_with_the_thread(tmp_path: Path) -> None:
    options = Options(segment_bytes=64 * 1024, reserve_bytes=4096, allocate_bytes=8192)
    journal, found = opened(tmp_path / "j", options)
    assert found == []
    payloads = [b"%05d" % i * 100 for i in range(300)]
    places = await asyncio.gather(*(append(journal, p, lazy=i % 3 == 0) for i, p in enumerate(payloads)))
    assert len({segment for segment, _ in places}) > 1
    for payload, (segment, offset) in zip(payloads, places, strict=True):
        assert journal.read(segment, offset, len(payload)) == payload
    assert 0 < journal.syncs < 100
    journal.close()
    again, found = opened(tmp_path / "j", options)
    assert found == payloads
    assert again.notes == []
    again.close()


async def test_lazy_records_are_synced_by_the_thread_alone(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path / "j", Options(lazy_sync_s=0.01, reserve_bytes=0))
    log = journal._log
    assert log is not None
    synced = asyncio.Event()
    loop, fdatasync = asyncio.get_running_loop(), log._fdatasync

    def told() -> None:
        fdatasync()
        loop.call_soon_threadsafe(synced.set)

    log._fdatasync = told  # type: ignore[method-assign]
    await append(journal, b"complete", lazy=True)
    await asyncio.wait_for(synced.wait(), 30)
    assert journal.pending_bytes == 0
    journal.close()


async def test_closing_answers_all_that_waits(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path / "j")
    answers: list[int] = []
    for i in range(100):
        journal.append(1, b"x" * 100, lambda error, segment, offset, i=i: answers.append(i))  # type: ignore[misc]
    journal.close()
    await asyncio.sleep(0)
    assert answers == list(range(100))
    with pytest.raises(JournalClosed):
        journal.append(1, b"late")
    journal.close()


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    with pytest.raises(JournalLocked, match=r"is in use by process \d+"):
        Journal.open(tmp_path / "j")
    journal.close()
    Journal.open(tmp_path / "j").close()


def test_the_order_of_calls_is_checked() -> None:
    journal = Journal.open(FOLDER, SMALL, SimulatedDisk())
    with pytest.raises(JournalClosed, match="after a complete replay"):
        journal.start(lambda callback: None)
    with pytest.raises(JournalClosed, match="append"):
        journal.append(1, b"")
    records = journal.replay()
    with pytest.raises(JournalClosed, match="once"):
        journal.replay()
    assert list(records) == []
    journal.close()


def test_too_much_pending_is_refused_at_once_and_through_the_callback() -> None:
    rig = Rig(options=Options(segment_bytes=4096, reserve_bytes=0, pending_bytes_max=250)).open()
    lsns = [rig.append(b"x" * 100) for _ in range(4)]
    refused = [lsn for lsn, error, _, _ in rig.answers if isinstance(error, JournalBusy)]
    assert len(refused) == 2
    rig.turn()
    assert rig.answer_to(lsns[0]) is None and rig.answer_to(lsns[1]) is None
    assert rig.journal.pending_bytes == 0
    assert rig.send(b"y" * 1000) is None  # alone, even a larger one goes through


def test_a_record_beyond_the_format_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.journal.journal.RECORD_BYTES_MAX", 1000)
    assert record_module.RECORD_BYTES_MAX > 1000
    rig = Rig().open()
    with pytest.raises(RecordTooLarge, match="a record of 1001 bytes: at most 1000"):
        rig.append(b"x" * 1001)


def test_parts_are_one_payload() -> None:
    rig = Rig().open()
    rig.journal.append(9, (b"ab", b"", b"cd"))
    rig.turn()
    again = reopened(rig.files.power_cut())
    assert [(r.lsn, r.kind, r.payload) for r in again.records] == [(1, 9, b"abcd")]


def test_live_bytes_per_segment() -> None:
    rig = Rig().open()
    for i in range(20):
        assert rig.send(bytes([i]) * 300) is None
    for lsn, _, segment, _ in rig.answers:
        if lsn % 2:
            rig.journal.release(segment, 300)
    assert sum(info.live for info in rig.journal.segments()) == 3000
    again = reopened(rig.files.power_cut())
    assert sum(info.live for info in again.journal.segments()) == 6000
    assert [info.is_current for info in again.journal.segments()][-1]


def test_reading_what_is_not_there_is_a_journal_error() -> None:
    rig = Rig().open()
    assert rig.send(b"abc") is None
    with pytest.raises(JournalError, match="reading 3 bytes at 9:64: ENOENT"):
        rig.journal.read(9, 64, 3)
    with pytest.raises(JournalError, match="the segment ends"):
        rig.journal.read(1, 10**6, 3)


def test_repr() -> None:
    assert repr(Rig().open().journal) == "<Journal j: started, lsn 0, 0 bytes pending>"


class RealRig(Rig):
    def __init__(self, folder: Path, durability: Durability = "default") -> None:
        super().__init__(options=replace(SMALL, durability=durability))
        self.folder = folder

    def open(self) -> RealRig:
        self.journal = Journal.open(self.folder, self.options, RealFiles(), clock=lambda: self.now)
        self.records = list(self.journal.replay())
        self.journal.start(self.post, thread=False)
        return self

    def told(self) -> str:
        return str(self.journal.trouble() or "well")


@pytest.mark.parametrize("durability", ["strict", "default", "none"])
def test_a_folder_that_is_deleted_is_noticed_before_the_next_confirm(tmp_path: Path, durability: Durability) -> None:
    folder = tmp_path / "journal"
    rig = RealRig(folder, durability).open()
    assert (rig.send(b"kept"), rig.told()) == (None, "well")
    shutil.rmtree(folder)
    assert "deleted, moved or replaced" in rig.told()  # before any send
    for _ in range(2):
        error = rig.send(b"refused")
        assert isinstance(error, JournalFailed) and "ESTALE" in str(error) and "restore the folder" in str(error)
    folder.mkdir()  # an empty one is not it: what was confirmed is not in there
    rig.turn(after=1.0)
    assert isinstance(rig.send(b"refused"), JournalFailed)
    assert list(folder.iterdir()) == []
    with pytest.raises(JournalFailed) if durability == "none" else contextlib.nullcontext():  # `kept` was never synced
        rig.journal.close()


def test_a_folder_that_is_moved_away_and_back_is_used_again(tmp_path: Path) -> None:
    folder, aside = tmp_path / "journal", tmp_path / "aside"
    rig = RealRig(folder).open()
    assert rig.send(b"kept") is None
    folder.rename(aside)
    assert isinstance(rig.send(b"refused"), JournalFailed)
    aside.rename(folder)
    rig.turn(after=1.0)
    assert (rig.told(), rig.send(b"again")) == ("well", None)
    rig.journal.close()
    assert RealRig(folder).open().replayed() == [b"kept", b"again"]


def test_a_segment_that_is_deleted_is_noticed_before_the_next_confirm(tmp_path: Path) -> None:
    rig = RealRig(tmp_path / "journal").open()
    assert rig.send(b"lost by others") is None
    for path in rig.folder.glob("*.segment"):
        path.unlink()
    assert isinstance(rig.send(b"refused"), JournalFailed)
    assert rig.send(b"goes on in a new one") is None


def test_the_segment_itself_is_looked_at_only_after_a_change_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = RealRig(tmp_path / "journal").open()
    os.utime(rig.folder, ns=(0, 0))  # its last change was long ago
    assert rig.send(b"looks") is None
    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "is_same", lambda *_: pytest.fail("looked again"))
        assert rig.send(b"does not look") is None
    for path in rig.folder.glob("*.segment"):
        path.unlink()
    assert isinstance(rig.send(b"refused"), JournalFailed)


def test_a_folder_that_has_just_changed_has_no_stamp(tmp_path: Path) -> None:
    soon = time.time() + 60.0  # however slow this machine is
    os.utime(tmp_path, (soon, soon))
    assert RealFiles().stamp(str(tmp_path)) is None
    os.utime(tmp_path, ns=(0, 0))
    assert RealFiles().stamp(str(tmp_path)) == RealFiles().stamp(str(tmp_path)) is not None
    known = RealFiles().stamp(str(tmp_path))
    assert RealFiles().stamp(str(tmp_path), known) == known
    os.utime(tmp_path, ns=(1, 1))
    assert RealFiles().stamp(str(tmp_path), known) not in (None, known)
    os.utime(tmp_path, (soon, soon))
    assert RealFiles().stamp(str(tmp_path), known) is None


def test_a_whole_second_may_be_a_coarse_time_and_is_trusted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mtime_ns, age_ns, is_trusted in (
        (10_000_000_000, 1_000_000_000, False),
        (10_000_000_000, 2_200_000_000, True),
        (10_000_000_001, 1_000_000_000, True),
    ):
        os.utime(tmp_path, ns=(mtime_ns, mtime_ns))
        monkeypatch.setattr(time, "time_ns", lambda at=mtime_ns + age_ns: at)
        assert (RealFiles().stamp(str(tmp_path)) is not None) == is_trusted


def test_a_disk_that_turned_read_only_is_not_called_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = RealRig(tmp_path / "journal").open()

    def refuses(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "pwrite", refuses)
    monkeypatch.setattr(RealFiles, "create", refuses)
    error = rig.send(b"refused")
    assert isinstance(error, JournalFailed) and "the disk is read-only" in str(error)
    assert not rig.journal.is_full
    assert "the disk is read-only" in rig.told() and "full" not in rig.told()


def test_a_read_only_disk_is_told_before_a_send_meets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = RealRig(tmp_path / "journal").open()
    monkeypatch.setattr(RealFiles, "is_read_only", lambda files, folder: True)
    assert "the disk is read-only" in rig.told()


async def test_it_is_read_again_while_it_is_written_and_not_compacted_meanwhile(tmp_path: Path) -> None:
    options = Options(segment_bytes=4096, reserve_bytes=1024, allocate_bytes=1024)
    journal, _ = opened(tmp_path / "j", options)
    payloads = [b"%04d" % i * 50 for i in range(60)]
    for number, payload in enumerate(payloads[:40]):
        await append(journal, payload, lazy=number % 3 == 0)
    found: list[Record] = []
    async with journal.without_compaction():
        position = await journal.read_again(START, found.append)
        assert [record.payload for record in found] == payloads[:40]
        assert [journal.read(each.segment, each.offset, 200) for each in found] == payloads[:40]
        assert await journal.read_again(position, found.append) == position, "nothing came since"
        for payload in payloads[40:]:
            await append(journal, payload, lazy=True)
        position = await journal.read_again(position, found.append)
        assert [record.payload for record in found] == payloads
        for segment in journal.segments()[:-1]:
            journal.release(segment.number, segment.live)
        assert not journal.compaction_is_due()
        assert await journal.compact(Nobody()) is None
    assert journal.compaction_is_due()
    assert await journal.compact(Nobody()) == 1
    journal.close()
    with pytest.raises(JournalClosed):
        await journal.read_again(START, found.append)


async def test_what_is_reclaimed_is_alive_again(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path / "j", Options(segment_bytes=4096, reserve_bytes=0))
    (segment, _) = await append(journal, b"x" * 100)
    journal.release(segment, 100)
    journal.reclaim(segment, 100)
    assert [each.live for each in journal.segments()] == [100]
    journal.release(segment, 100)
    assert [each.live for each in journal.segments()] == [0]
    journal.close()


class Nobody:
    """Owns nothing."""

    def live(self, record: Record) -> None:
        return None

    def moved(self, record: Record, segment: int, offset: int) -> None:
        raise AssertionError
