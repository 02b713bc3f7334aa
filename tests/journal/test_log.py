"""The rules for a failing and a full disk, one by one."""

from __future__ import annotations

import errno

import pytest

from pairbus.journal import JournalCorrupt, JournalFailed, JournalFull, Options
from pairbus.journal.log import ANSWERED, LAZY, PRIVILEGED
from pairbus.journal.segment import segment_name
from tests.journal.rig import FOLDER, SMALL, STANDBY, Rig, check_crash, reopened
from tests.simulation.disk import DiskFault, MachineStopped, SimulatedDisk

STRICT = Options(segment_bytes=4096, reserve_bytes=2048, allocate_bytes=512, durability="strict")
NONE = Options(segment_bytes=4096, reserve_bytes=2048, allocate_bytes=512, durability="none")
UNALLOCATED = Options(segment_bytes=4096, reserve_bytes=2048, allocate_bytes=0)


# -- group commit


def test_all_that_waits_is_one_write_and_one_sync() -> None:
    rig = Rig().open()
    before = len(rig.files.log)
    for i in range(10):
        rig.append(b"%d" % i, lazy=i % 2 == 1)
    rig.turn()
    assert rig.files.log[before:] == ["pwrite 000000000001.segment", "fdatasync 000000000001.segment"]
    lsns = [lsn for lsn, _, _, _ in rig.answers]
    assert lsns == [2, 4, 6, 8, 10, 1, 3, 5, 7, 9]  # the lazy ones before the sync; each class in lsn order


def test_answers_tell_where_the_payload_is() -> None:
    rig = Rig().open()
    for i in range(40):
        assert rig.send(b"%03d" % i * 50) is None
    assert len({segment for _, _, segment, _ in rig.answers}) > 1
    for lsn, _, segment, offset in rig.answers:
        payload = rig.asked[lsn][1]
        assert rig.journal.read(segment, offset, len(payload)) == payload


def test_lazy_records_are_answered_after_the_write_and_synced_in_time_without_other_traffic() -> None:
    rig = Rig().open()
    rig.append(b"complete", lazy=True)
    rig.turn()
    assert rig.answers[0][1] is None
    assert rig.files.log[-1].startswith("pwrite")
    assert reopened(rig.files.power_cut()).records == []
    assert rig.journal._log is not None
    wait = rig.journal._log.timeout(rig.now)
    assert wait is not None and 0 < wait < 0.1
    rig.turn(after=wait)
    assert rig.files.log[-1].startswith("fdatasync")
    assert reopened(rig.files.power_cut()).replayed() == [b"complete"]


def test_a_stream_of_lazy_records_does_not_put_the_sync_off() -> None:
    rig = Rig().open()
    syncs = 0
    for i in range(30):
        rig.append(b"%d" % i, lazy=True)
        rig.turn(after=0.01)
        syncs = sum(call.startswith("fdatasync") for call in rig.files.log)
    assert syncs >= 3 + 2


def test_no_lazy_record_is_answered_while_the_sync_of_another_is_late() -> None:
    """A power cut would undo both, however long ago the first was answered."""
    rig = Rig(write_here=True).open()
    rig.send(b"the disk answers")
    first = rig.append(b"first", lazy=True)
    assert rig.answer_to(first) is None
    rig.now += 0.11  # and the writer had no turn
    answers = len(rig.answers)
    rig.append(b"second", lazy=True)
    assert len(rig.answers) == answers
    rig.turn().turn()  # it is told of the first, then has the second
    assert len(rig.answers) == answers + 1
    assert reopened(rig.files.power_cut()).replayed()[:2] == [b"the disk answers", b"first"]


def test_what_was_answered_before_a_stall_is_synced_in_the_standby_folder_at_once() -> None:
    rig = Rig(standby=STANDBY).open()
    rig.send(b"settled", lazy=True)
    rig.files.stalled.add(FOLDER)
    rig.turn(after=0.1)  # the sync doesn't return
    assert rig.journal._log is not None and rig.journal._log.folder == STANDBY
    assert Rig(rig.files.power_cut(), standby=STANDBY).open().replayed() == [b"settled"]


def test_strict_syncs_lazy_records_before_the_answer() -> None:
    rig = Rig(options=STRICT).open()
    assert rig.send(b"complete", lazy=True) is None
    assert reopened(rig.files.power_cut(), STRICT).replayed() == [b"complete"]


def test_none_answers_without_a_sync_and_survives_a_kill() -> None:
    rig = Rig(options=NONE).open()
    before = len(rig.files.log)
    assert rig.send(b"one") is None
    assert rig.files.log[before:] == ["pwrite 000000000001.segment"]
    assert reopened(rig.files.kill(), NONE).replayed() == [b"one"]
    assert reopened(rig.files.power_cut(), NONE).replayed() == []


def test_a_clean_stop_syncs_in_every_mode() -> None:
    for options in (SMALL, STRICT, NONE):
        rig = Rig(options=options).open()
        rig.append(b"one", lazy=True)
        rig.journal.close()
        assert rig.answers[0][1] is None
        assert reopened(rig.files.power_cut(), options).replayed() == [b"one"]


def test_a_new_segment_is_durable_before_a_record_in_it_is_confirmed() -> None:
    rig = Rig().open()
    for i in range(60):
        assert rig.send(b"%03d" % i * 60) is None
        check_crash(rig, rig.files.power_cut())


# -- the failing disk


@pytest.mark.parametrize("options", [SMALL, STRICT, UNALLOCATED])
@pytest.mark.parametrize("name", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("truncate_fails", [False, True])
def test_a_failed_write_or_sync(options: Options, name: str, truncate_fails: bool) -> None:
    rig = Rig(options=options).open()
    assert rig.send(b"kept") is None
    assert rig.send(b"settled", lazy=True) is None
    first = rig.journal._log.number  # type: ignore[union-attr]
    rig.files.fail(name)
    if truncate_fails:
        rig.files.fail("truncate", times=9)
    send, lazy = rig.append(b"refused"), rig.append(b"goes on", lazy=True)
    rig.turn()
    error = rig.answer_to(send)
    assert isinstance(error, JournalFailed) and error.errno == errno.EIO and "EIO" in str(error)
    assert not error.unknown
    assert rig.answer_to(lazy) is None
    log = rig.files.log
    failed = max(i for i, call in enumerate(log) if call == f"{name} {first:012d}.segment")
    assert f"fdatasync {first:012d}.segment" not in log[failed + 1 :]
    rig.files.faults.clear()
    assert rig.send(b"next") is None
    for files in (rig.files.kill(), rig.files.power_cut(everything=True), rig.files.power_cut()):
        assert check_crash(rig, files, lazy_survives=True) == [b"kept", b"settled", b"goes on", b"next"]


def test_refusals_go_out_only_when_the_next_header_is_durable() -> None:
    """Otherwise a refused send could come back after a power cut."""
    rig = Rig().open()
    assert rig.send(b"kept") is None
    rig.files.fail("fdatasync")
    rig.append(b"refused")
    calls_at_answer: list[str] = []
    post = rig.journal._writer._post  # type: ignore[union-attr]
    rig.journal._writer._post = lambda callback: (calls_at_answer.append(rig.files.log[-1]), post(callback))  # type: ignore[union-attr]
    rig.turn()
    assert calls_at_answer == [f"fsync_dir {FOLDER}"]


def test_when_no_new_segment_can_be_made_refusals_are_unknown_and_service_resumes_later() -> None:
    rig = Rig().open()
    assert rig.send(b"kept") is None
    assert rig.send(b"settled", lazy=True) is None
    rig.files.fail("fdatasync")
    rig.files.fail("create", times=99)
    send, lazy = rig.append(b"refused"), rig.append(b"second", lazy=True)
    rig.turn()
    error = rig.answer_to(send)
    assert isinstance(error, JournalFailed) and error.unknown
    assert rig.answer_to(lazy) is None  # it had been written and answered before the sync failed
    later = rig.send(b"later")
    assert isinstance(later, JournalFailed) and not later.unknown  # nothing of it was written
    assert not rig.journal.is_full
    trouble = rig.journal.trouble()
    assert isinstance(trouble, JournalFailed) and "EIO" in str(trouble)
    rig.files.faults.clear()
    rig.turn(after=1.0)  # time alone brings the settlements to the disk
    assert rig.journal.trouble() is None
    rig.turn(after=0.2)
    assert rig.send(b"again") is None
    assert check_crash(rig, rig.files.power_cut(), lazy_survives=True) == [b"kept", b"settled", b"second", b"again"]


def test_a_disk_that_fails_for_ever_is_not_tried_for_ever() -> None:
    rig = Rig().open()
    assert rig.send(b"kept") is None
    rig.files.fail("fdatasync", times=99)
    for _ in range(50):
        assert isinstance(rig.send(b"refused"), JournalFailed)
    assert isinstance(rig.send(b"lazy", lazy=True), (JournalFailed, type(None)))
    rig.turn(after=1.0)
    assert len(rig.segment_paths()) <= 3
    rig.files.faults.clear()
    rig.turn(after=1.0)
    assert rig.send(b"again") is None


@pytest.mark.parametrize("step", [1, 7, 30])
def test_short_writes_are_completed(step: int) -> None:
    rig = Rig().open()
    rig.files.faults = [DiskFault("short", count=99, value=step)]
    rig.append(b"a" * 100)
    rig.append(b"b" * 100)
    rig.turn()
    rig.files.faults.clear()
    assert check_crash(rig, rig.files.power_cut()) == [b"a" * 100, b"b" * 100]


@pytest.mark.parametrize("step", [1, 28, 63])
def test_the_header_of_a_segment_that_is_used_again_is_written_whole(step: int) -> None:
    """After a sync that failed it is in the cache alone, and a part of it on the disk would be no header."""
    disk = SimulatedDisk()
    disk.fail("fdatasync", "unlink", path="0001")
    with pytest.raises(JournalFailed):
        Rig(disk).open()
    rig = Rig(disk.kill())
    rig.files.faults = [DiskFault("short", "pwrite", path="0001", value=step)]
    assert rig.open().send(b"a") is None
    assert [path.rpartition("/")[2] for path in rig.segment_paths()] == [segment_name(1)]
    assert check_crash(rig, rig.files.power_cut()) == [b"a"]


def test_a_write_of_no_bytes_is_a_failure_not_a_loop() -> None:
    rig = Rig().open()
    rig.files.faults = [DiskFault("short", count=99)]
    assert isinstance(rig.send(b"x"), (JournalFailed, JournalFull))


@pytest.mark.parametrize("doing", ["create", "fsync_dir", "fdatasync"])
def test_a_segment_change_that_fails_refuses_and_recovers(doing: str) -> None:
    rig = Rig().open()
    sent = []
    rig.files.fail(doing, path="" if doing == "fsync_dir" else "0002")
    while len(rig.journal.segments()) < 3:
        payload = b"%05d" % len(rig.asked) * 30
        if rig.send(payload) is None:
            sent.append(payload)
    assert len(sent) == len(rig.asked) - 1
    assert check_crash(rig, rig.files.power_cut()) == sent
    assert check_crash(rig, rig.files.power_cut(everything=True)) == sent


# -- the full disk


def fill(rig: Rig, size: int = 100) -> int:
    count = 0
    while True:
        error = rig.send(b"s" * size)
        if error is not None:
            assert isinstance(error, JournalFull) and error.errno == errno.ENOSPC
            return count
        count += 1


@pytest.mark.parametrize("options", [SMALL, UNALLOCATED])
def test_a_full_disk_refuses_sends_and_settling_goes_on_until_there_is_room(options: Options) -> None:
    rig = Rig(SimulatedDisk(capacity=12_000), options).open()
    sent = fill(rig)
    assert sent > 50
    assert rig.journal.is_full
    for i in range(15):
        assert rig.send(b"settle %d" % i, lazy=True) is None
        assert isinstance(rig.send(b"no"), JournalFull)
        rig.turn(after=0.3)
    assert rig.journal.is_full
    rig.files.capacity = 30_000
    rig.turn(after=0.6)
    assert not rig.journal.is_full
    assert any("room again" in note for note in rig.journal.notes)
    assert "reserve" in rig.files.listdir(FOLDER)
    assert rig.send(b"room") is None
    rig.turn(after=0.2)
    found = check_crash(rig, rig.files.power_cut(), lazy_survives=True)
    assert found == [b"s" * 100] * sent + [b"settle %d" % i for i in range(15)] + [b"room"]


def test_when_the_reserve_is_used_up_settling_is_refused_too_and_nothing_breaks() -> None:
    rig = Rig(SimulatedDisk(capacity=12_000)).open()
    fill(rig)
    answers = [rig.send(b"settle" * 10, lazy=True) for _ in range(100)]
    refused = [error for error in answers if error is not None]
    assert 15 < len(answers) - len(refused) < 50
    assert all(isinstance(error, JournalFull) and not error.unknown for error in refused)
    rig.files.capacity = 40_000
    assert isinstance(rig.send(b"too early: the look for room has its pace"), JournalFull)
    rig.turn(after=0.6)
    assert rig.send(b"room") is None
    rig.turn(after=0.2)
    check_crash(rig, rig.files.power_cut(), lazy_survives=True)


@pytest.mark.parametrize("options", [SMALL, UNALLOCATED])
def test_a_segment_that_was_the_reserve_gives_back_what_it_does_not_use(options: Options) -> None:
    """On a small disk there is never room for two reserves at once."""
    rig = Rig(SimulatedDisk(capacity=12_000), options).open()
    sent = fill(rig)
    for i in range(15):
        assert rig.send(b"settle %d" % i, lazy=True) is None
    assert "reserve" not in rig.files.listdir(FOLDER)
    rig.files.capacity = rig.files.used() + options.reserve_bytes * 3 // 4  # somebody else's file is gone
    rig.turn(after=0.6)
    assert not rig.journal.is_full and rig.journal.trouble() is None
    assert rig.files.content(f"{FOLDER}/reserve") == bytes(options.reserve_bytes)
    assert rig.send(b"room") is None
    assert rig.files.used() <= rig.files.capacity
    rig.turn(after=0.2)
    found = check_crash(rig, rig.files.power_cut(), lazy_survives=True)
    assert found == [b"s" * 100] * sent + [b"settle %d" % i for i in range(15)] + [b"room"]


def settled_until_refused(rig: Rig) -> int:
    count = 0
    while rig.send(b"settle" * 10, lazy=True) is None:
        count += 1
    return count


def test_a_look_for_room_costs_settlements_none() -> None:
    """Neither where there is too little of it, nor where somebody else takes it at the very moment."""
    counts = []
    for room, is_taken in ((0, False), (300, False), (1_900, True)):
        rig = Rig(SimulatedDisk(capacity=12_000)).open()
        fill(rig)
        assert rig.send(b"settle" * 10, lazy=True) is None
        assert "reserve" not in rig.files.listdir(FOLDER)
        used = rig.files.used()
        rig.files.capacity = used + room
        if is_taken:  # when the reserve was created and allocated in part, and the segment was cut
            at = rig.files.calls + 5
            rig.files.faults = [DiskFault("error", "fallocate", at, path="reserve", value=errno.ENOSPC)]
        rig.turn(after=0.6)
        assert rig.journal.is_full and isinstance(rig.journal.trouble(), JournalFull)
        assert bool(rig.files.struck) == is_taken and not rig.files.faults
        assert rig.files.used() == used
        rig.files.capacity = used
        counts.append(settled_until_refused(rig))
    assert counts == [counts[0]] * 3 and counts[0] > 15


def test_settling_goes_on_without_a_reserve_where_there_is_room() -> None:
    """It may be too little for a reserve, and so for sends."""
    rig = Rig(SimulatedDisk(capacity=12_000)).open()
    fill(rig)
    settled_until_refused(rig)
    assert "reserve" not in rig.files.listdir(FOLDER)
    rig.files.capacity = rig.files.used() + 1_000
    rig.turn(after=0.6)
    assert isinstance(rig.send(b"no"), JournalFull)
    assert settled_until_refused(rig) > 8
    rig.turn(after=0.2)
    rig.files.capacity = None
    check_crash(rig, rig.files.power_cut(), lazy_survives=True)


@pytest.mark.parametrize("options", [SMALL, UNALLOCATED])
def test_no_room_at_any_byte_count(options: Options) -> None:
    for extra in range(0, 400, 3):
        rig = Rig(SimulatedDisk(), options).open()
        assert rig.send(b"kept") is None
        assert rig.send(b"settled", lazy=True) is None
        rig.files.capacity = rig.files.used() + extra
        for i in range(9):
            rig.append(b"%d" % i * 60)
            rig.append(b"lazy %d" % i, lazy=True)
            rig.turn()
        assert len(rig.answers) == 20
        rig.turn(after=0.2)
        lazies = [error for lsn, error, _, _ in rig.answers if rig.asked[lsn][2]]
        assert lazies == [None] * 10  # the reserve holds them all
        rig.files.capacity = None
        found = check_crash(rig, rig.files.power_cut(), lazy_survives=True)
        assert found[:2] == [b"kept", b"settled"]
        check_crash(rig, rig.files.kill(), lazy_survives=True)
        check_crash(rig, rig.files.power_cut(everything=True), lazy_survives=True)


def test_lazy_records_are_synced_although_others_have_no_room_to_be_written_again() -> None:
    rig = Rig().open()
    rig.append(b"complete", lazy=True)
    rig.turn()
    log = rig.journal._log
    assert log is not None
    log._redo = [(1, 1, b"x" * 4000, 4000, None, LAZY | PRIVILEGED | ANSWERED)]
    log.is_full, log._reserve.is_there, log._probed_at = True, False, rig.now
    rig.turn(after=0.09)
    assert reopened(rig.files.power_cut()).replayed() == [b"complete"]
    assert log._redo and log.timeout(rig.now)  # nothing is due at once, over and over


def test_it_starts_on_a_full_disk_and_resumes() -> None:
    rig = Rig(SimulatedDisk(capacity=12_000)).open()
    sent = fill(rig)
    for _ in range(3):  # restarts do not eat up the reserve
        rig = Rig(rig.files.kill()).open()
        assert len(rig.records) >= sent
        assert isinstance(rig.send(b"no"), JournalFull)
        assert rig.send(b"settle", lazy=True) is None
        rig.turn(after=0.2)
    rig.files.capacity = 50_000
    rig.turn(after=1.0)
    assert rig.send(b"yes") is None


def test_without_fallocate_it_works_all_the_same() -> None:
    rig = Rig()
    rig.files.fail("fallocate", times=10**9, number=errno.EOPNOTSUPP)
    rig.open()
    for i in range(60):
        assert rig.send(b"%d" % i * 60) is None
    assert any("no reserve" in note for note in rig.journal.notes)
    files = rig.files.power_cut()
    assert len(reopened(files).records) == 60


def test_a_new_segment_that_failed_half_way_does_not_take_back_what_follows() -> None:
    """Its header may turn up after a power cut and says where the old segment ended: nothing may be added there."""
    rig = Rig().open()
    rig.files.fail("fsync_dir", "unlink")
    while rig.send(b"x" * 150) is None:
        pass
    rig.turn(after=0.3)
    assert rig.send(b"would fit in the old one") is None
    for files in (rig.files.power_cut(everything=True), rig.files.power_cut(), rig.files.kill()):
        check_crash(rig, files)


def test_an_abandoned_segment_without_records_stays_until_the_next_one_is_made() -> None:
    """It alone says that the failed tail before it does not count."""
    for calls in range(1, 12):
        rig = Rig().open()
        assert rig.send(b"kept") is None
        rig.files.faults = [DiskFault("done_error", "fdatasync")]
        rig.files.fail("truncate", times=99)
        assert rig.send(b"refused, and on the disk") is not None
        rig.files.fail("pwrite")
        rig.append(b"refused too")
        rig.files.dies_at = rig.files.calls + calls
        rig.turn()
        for files in (rig.files.power_cut(everything=True), rig.files.power_cut(), rig.files.kill()):
            assert check_crash(rig, files)[0] == b"kept"


def test_a_segment_without_records_is_no_link_when_the_one_after_it_cannot_be_made() -> None:
    """It goes away with the next one that is made, whose header must name the last segment that has records."""
    for fault in (DiskFault("error", "fdatasync", path="0003"), DiskFault("error", "fsync_dir")):
        first = Rig().open()
        assert first.send(b"kept") is None
        rig = Rig(Rig(first.files.kill()).open().files.kill()).open()
        assert rig.segment_paths() == [f"{FOLDER}/{segment_name(number)}" for number in (1, 2)]
        rig.files.capacity = rig.files.used()
        assert isinstance(rig.send(b"no room"), JournalFull)
        rig.files.faults = [fault]
        assert rig.send(b"does not fit in what is allocated", lazy=True) is not None
        rig.turn(after=0.6)
        rig.files.capacity = None
        rig.turn(after=0.6)
        assert rig.send(b"after it") is None
        for files in (rig.files.power_cut(everything=True), rig.files.power_cut(), rig.files.kill()):
            assert check_crash(rig, files) == [b"kept", b"after it"]


def test_a_start_removes_an_abandoned_segment_only_when_another_one_says_where_the_failed_tail_begins() -> None:
    """The header of the last segment may be in the cache alone: its sync failed, and the process was killed."""
    first = Rig().open()
    assert first.send(b"kept") is None
    first.files.faults = [DiskFault("done_error", "fdatasync")]
    first.files.fail("truncate", times=99)
    assert first.send(b"refused, and on the disk") is not None
    first.files.fail("pwrite", path="0002")
    first.files.fail("fdatasync", "unlink", path="0003")
    assert first.send(b"refused, too") is not None
    for calls in range(1, 30):
        files = first.files.kill()
        files.dies_at = files.calls + calls
        try:
            Rig(files).open()
        except MachineStopped:
            pass
        else:
            break
        for after in (files.power_cut(everything=True), files.power_cut()):
            assert check_crash(first, after)[0] == b"kept"
    assert 10 < calls < 29


def test_lazy_records_written_again_are_read_and_compacted_under_the_place_that_was_told() -> None:
    rig = Rig().open()
    assert rig.send(b"settled", lazy=True) is None
    _, _, segment, offset = rig.answers[0]
    for _ in range(2):
        rig.files.fail("fdatasync")
        rig.turn(after=0.1)
        rig.files.faults.clear()
        assert rig.journal.read(segment, offset, 7) == b"settled"
        assert rig.journal.read(segment, offset + 3, 2) == b"tl"
    current = rig.journal.segments()[-1]
    assert current.number != segment
    path = f"{FOLDER}/{current.number:012d}.segment"
    records = [record for chunk in rig.journal._chunks(current.number, path, current.size) for record in chunk]
    assert [(r.segment, r.offset, r.payload) for r in records] == [(segment, offset, b"settled")]
    rig.journal._forget(current.number)
    assert not rig.journal._relocations


def test_settlements_are_kept_while_neither_a_sync_nor_a_new_segment_succeeds() -> None:
    rig = Rig().open()
    assert rig.send(b"settled", lazy=True) is None
    rig.files.fail("fdatasync", "create", times=99)
    rig.turn(after=0.1)  # the sync that is due
    rig.turn(after=0.5)  # and a look whether the disk serves again
    assert rig.journal.pending_bytes
    rig.files.faults.clear()
    rig.turn(after=0.5)
    rig.turn(after=0.1)
    assert not rig.journal.pending_bytes
    assert reopened(rig.files.power_cut()).replayed() == [b"settled"]


def test_a_stop_says_that_settlements_are_lost() -> None:
    rig = Rig().open()
    assert rig.send(b"settled", lazy=True) is None
    rig.files.fail("fdatasync", times=99)
    with pytest.raises(JournalFailed):
        rig.journal.close()


def test_a_clean_stop_without_durability_syncs_what_a_failed_sync_did_not() -> None:
    rig = Rig(options=NONE).open()
    assert rig.send(b"one") is None
    rig.files.fail("fdatasync")
    rig.journal.close()
    assert reopened(rig.files.power_cut(), NONE).replayed() == [b"one"]
    rig = Rig(options=NONE).open()
    assert rig.send(b"one") is None
    rig.files.fail("fdatasync", times=99)
    with pytest.raises(JournalFailed):
        rig.journal.close()


def test_a_reserve_that_was_a_segment_until_the_power_was_cut_is_made_blank_again() -> None:
    """Its header was synced and its new name was not. As a segment once more it would seem to be a copy of another."""
    files = Rig().open().files.power_cut()
    files.content(f"{FOLDER}/reserve")[:64] = files.content(f"{FOLDER}/{segment_name(1)}")[:64]
    assert reopened(files).files.content(f"{FOLDER}/reserve") == bytes(SMALL.reserve_bytes)


def test_damage_to_what_a_start_made_durable_is_found_without_durability_too() -> None:
    rig = Rig(options=NONE).open()
    assert rig.send(b"kept") is None
    rig.files.fail("pwrite")
    assert rig.send(b"refused") is not None
    files = reopened(rig.files.kill(), NONE).files.power_cut()
    assert reopened(files.kill(), NONE).replayed() == [b"kept"]
    files.content(rig.segment_paths()[0])[95] ^= 1
    with pytest.raises(JournalCorrupt):
        Rig(files, NONE).open()


def test_what_was_replayed_from_the_cache_alone_is_made_durable() -> None:
    """Killed right after a failed sync: the cache shows records that no later sync would bring to the disk."""
    rig = Rig().open()
    assert rig.send(b"kept") is None
    rig.files.fail("fdatasync")
    rig.append(b"never answered")
    rig.files.dies_at = rig.files.calls + 3  # write, sync, and no cut
    rig.turn()
    assert rig.files.is_dead and len(rig.answers) == 1
    again = reopened(rig.files.kill())
    assert again.replayed() == [b"kept", b"never answered"]
    assert reopened(again.files.power_cut()).replayed() == [b"kept", b"never answered"]
