from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from dataclasses import replace

import pytest

from pairbus.journal import JournalCorrupt, JournalError, JournalFull, Options, Record
from tests.journal.rig import FOLDER, SMALL, Rig, check_crash
from tests.simulation.disk import DiskFault, MachineStopped, SimulatedDisk

PUT, GONE = 1, 2


class Owner:
    """The smallest owner: a put has a name, and a tombstone takes it away."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.places: dict[bytes, tuple[int, int, int]] = {}
        for record in rig.records:
            name = record.payload[:4]
            if record.kind == PUT:
                self.places[name] = (record.segment, record.offset, len(record.payload))
            else:
                self.places.pop(name, None)

    def put(self, name: bytes, size: int) -> None:
        payload = name + b"." * size

        def done(error: JournalError | None, segment: int, offset: int) -> None:
            if error is None:
                self.places[name] = (segment, offset, len(payload))

        self.rig.journal.append(PUT, payload, done)

    def drop(self, name: bytes) -> None:
        segment, _, size = self.places.pop(name)
        self.rig.journal.release(segment, size)
        self.rig.journal.append(GONE, name, lazy=True)

    def live(self, record: Record) -> tuple[int, bytes] | None:
        place = self.places.get(record.payload[:4])
        if record.kind == PUT and place is not None and place[:2] == (record.segment, record.offset):
            return PUT, record.payload
        return None

    def moved(self, record: Record, segment: int, offset: int) -> None:
        if self.live(record) is not None:
            self.places[record.payload[:4]] = (segment, offset, len(record.payload))


def filled(files: SimulatedDisk | None = None, options: Options = SMALL) -> tuple[Rig, Owner]:
    rig = Rig(files, options).open()
    owner = Owner(rig)
    for i in range(60):
        owner.put(b"%04d" % i, 150)
        rig.turn()
    for i in range(60):
        if i % 5:
            owner.drop(b"%04d" % i)
    rig.turn()
    rig.turn(after=1.0)
    return rig, owner


async def compact(rig: Rig, owner: Owner) -> int | None:
    """Runs the compaction with the writer's work done on this thread."""
    task = asyncio.ensure_future(rig.journal.compact(owner))
    while not task.done():
        await asyncio.sleep(0)
        rig.journal.turn()
        if rig.files.is_dead:
            task.cancel()
            raise MachineStopped
    return task.result()


async def test_live_records_move_and_the_segment_goes() -> None:
    rig, owner = filled()
    names = set(owner.places)
    count = len(rig.segment_paths())
    assert rig.journal.compaction_is_due()
    assert await compact(rig, owner) == 1
    assert len(rig.segment_paths()) == count - 1
    assert set(owner.places) == names
    for name, place in owner.places.items():
        assert place[0] != 1
        assert rig.journal.read(*place)[:4] == name
    again = Rig(rig.files.power_cut()).open()
    assert set(Owner(again).places) == names


async def test_until_only_the_current_one_is_left() -> None:
    rig, owner = filled()
    names = set(owner.places)
    while rig.journal.compaction_is_due():
        await compact(rig, owner)
    assert len(rig.journal.segments()) <= 3
    assert set(Owner(Rig(rig.files.power_cut()).open()).places) == names


async def test_nothing_to_compact_in_the_current_segment() -> None:
    rig = Rig().open()
    rig.send(b"x")
    assert not rig.journal.compaction_is_due()
    assert await compact(rig, Owner(rig)) is None


async def test_killed_at_every_file_operation() -> None:
    """With all of what was not synced, with none of it, with any of it; and killed without a power cut."""
    rig, owner = filled()
    start = rig.files.calls
    expected = set(owner.places)
    await compact(rig, owner)
    operations = rig.files.calls - start
    assert operations > 5
    for number in range(1, operations + 1):
        rig, owner = filled()
        rig.files.dies_at = rig.files.calls + number
        with pytest.raises(MachineStopped):
            await compact(rig, owner)
        chance = random.Random(number)
        disks = [rig.files.power_cut(), rig.files.power_cut(everything=True), rig.files.kill()]
        disks += [rig.files.power_cut(chance) for _ in range(20)]
        for disk in disks:
            again = Rig(disk).open()
            after = Owner(again)
            assert set(after.places) == expected
            await compact(again, after)
            assert set(after.places) == expected
            third = Rig(again.files.power_cut()).open()
            assert set(Owner(third).places) == expected
            for name, place in Owner(third).places.items():
                assert third.journal.read(*place)[:4] == name


async def test_a_copy_that_fails_leaves_the_segment() -> None:
    rig, owner = filled()
    expected = set(owner.places)
    rig.files.fail("fdatasync", "create", times=99)
    with pytest.raises(JournalError, match="EIO"):
        await compact(rig, owner)
    rig.files.faults.clear()
    rig.turn(after=1.0)
    assert set(Owner(Rig(rig.files.power_cut()).open()).places) == expected
    assert await compact(rig, owner) == 1
    assert set(Owner(Rig(rig.files.power_cut()).open()).places) == expected


async def test_an_unlink_that_fails_leaves_the_segment_and_is_tried_again() -> None:
    rig, owner = filled()
    rig.files.fail("unlink")
    with pytest.raises(JournalError, match="deleting"):
        await compact(rig, owner)
    rig.files.faults.clear()
    assert await compact(rig, owner) == 1


@pytest.mark.parametrize("fault", [DiskFault("done_error", "unlink"), DiskFault("error", "fsync_dir")])
async def test_a_deletion_that_failed_after_the_file_was_gone_is_finished_later(fault: DiskFault) -> None:
    rig, owner = filled()
    rig.files.faults = [fault]
    with pytest.raises(JournalError, match="deleting"):
        await compact(rig, owner)
    names = rig.files.delete_folder(FOLDER)
    rig.files.make_folder(FOLDER)
    with pytest.raises(JournalError, match="deleting"):  # there is another folder in its place
        await compact(rig, owner)
    rig.files.restore_folder(names)
    assert await compact(rig, owner) == 1
    assert await compact(rig, owner) == 2
    assert set(Owner(Rig(rig.files.power_cut()).open()).places) == set(owner.places)


async def test_without_durability_too_the_originals_stay_until_their_copies_are_on_the_disk() -> None:
    first, _ = filled(options=replace(SMALL, durability="none"))
    first.journal.close()
    rig = Rig(first.files.power_cut(), first.options).open()
    owner = Owner(rig)
    expected = set(owner.places)
    rig.files.fail("fdatasync")
    with pytest.raises(JournalError, match="is kept"):
        await compact(rig, owner)
    assert set(Owner(Rig(rig.files.power_cut(), rig.options).open()).places) == expected
    assert await compact(rig, owner) == 1
    assert set(Owner(Rig(rig.files.power_cut(), rig.options).open()).places) == expected


@pytest.mark.parametrize("how", ["not unlinked", "not reused", "away when the segment goes"])
async def test_a_file_that_is_left_over_does_not_look_like_a_missing_segment_later(how: str) -> None:
    """It is no link of the chain, and the segment after it says so; it must be gone before that one is."""
    rig = Rig().open()
    if how != "not reused":
        rig.files.fail("pwrite", path="0001")
        rig.files.fail("unlink", path="0001", times=99 if how == "away when the segment goes" else 1)
        assert rig.send(b"refused") is not None
    else:
        rig = Rig(rig.files.kill())
        rig.files.fail("fdatasync", number=errno.ENOSPC, path="0001")
        rig.open()
    owner = Owner(rig)
    for i in range(60):
        owner.put(b"%04d" % i, 150)
        rig.turn(after=1.0)
    assert len(owner.places) == 60
    if how == "away when the segment goes":
        with pytest.raises(JournalError, match="deleting"):
            await compact(rig, owner)
        rig.files.faults.clear()
        names = rig.files.delete_folder(FOLDER)
        with pytest.raises(JournalError, match="deleting"):
            await compact(rig, owner)
        rig.files.restore_folder(names)
    await compact(rig, owner)
    for files in (rig.files.power_cut(), *(rig.files.power_cut(random.Random(seed)) for seed in range(20))):
        assert set(Owner(Rig(files).open()).places) == set(owner.places)


async def test_what_the_last_process_removed_is_gone_for_good_before_a_segment_goes() -> None:
    """Also on a disk so full that no new segment can be made, with which the folder would be synced."""
    options = replace(SMALL, reserve_bytes=0)
    first, owner = filled(options=options)
    first.files.fail("fsync_dir")
    with pytest.raises(JournalError, match="deleting"):
        await compact(first, owner)
    for calls in range(1, 10):
        rig = Rig(first.files.kill(), options)
        rig.files.fail("create", times=99, number=errno.ENOSPC)
        rig.open()
        oldest = rig.journal.segments()[0]
        rig.journal.release(oldest.number, oldest.live)
        rig.files.dies_at = rig.files.calls + calls
        with contextlib.suppress(MachineStopped):
            assert await compact(rig, owner) == 2
        for seed in range(20):
            Rig(rig.files.power_cut(random.Random(seed)), options).open()


async def test_a_segment_that_cannot_be_read_is_tried_again() -> None:
    rig, owner = filled()
    for call in ("open", "pread"):
        for number in (1, 2):
            rig.files.faults = [DiskFault("error", call, at=rig.files.calls + number)]
            with pytest.raises(JournalError, match=r"EIO|Input/output"):
                await compact(rig, owner)
    assert await compact(rig, owner) == 1


async def test_compaction_on_a_full_disk_makes_room() -> None:
    rig, owner = filled()
    rig.files.capacity = rig.files.used()
    i = 100
    while not rig.journal.is_full:
        owner.put(b"%04d" % i, 150)
        rig.turn()
        i += 1
    assert isinstance(rig.send(b"no"), JournalFull)
    while rig.journal.is_full:
        assert rig.journal.compaction_is_due()
        await compact(rig, owner)
    assert rig.send(b"yes") is None
    check_crash(rig, rig.files.power_cut())


#: Of records of 500 bytes: the reserve, and a segment with some of its last step left for settlements.
ONE_SEGMENT = 4_700


def filled_up(rig: Rig, owner: Owner, names: range, size: int = 150) -> list[bytes]:
    """Put until the disk is full; return the names that were confirmed."""
    for i in names:
        owner.put(b"%04d" % i, size)
        rig.turn()
        if rig.journal.is_full:
            break
    assert rig.journal.is_full and isinstance(rig.journal.trouble(), JournalFull)
    return [b"%04d" % i for i in names if b"%04d" % i in owner.places]


def settle(rig: Rig, owner: Owner, names: list[bytes]) -> None:
    """Drop these; nothing of the tombstones lives either, as in the broker."""

    def done(error: JournalError | None, segment: int, offset: int) -> None:
        assert error is None
        rig.journal.release(segment, 4)

    for name in names:
        segment, _, size = owner.places.pop(name)
        rig.journal.release(segment, size)
        rig.journal.append(GONE, name, done, lazy=True)
        rig.turn()


@pytest.mark.parametrize(
    ("capacity", "size", "kept"),
    [
        *((capacity, 150, kept) for capacity in (3_500, 3_900, 6_100) for kept in (0, 2)),
        *((ONE_SEGMENT, 500, kept) for kept in (0, 1)),
    ],
)
async def test_a_full_disk_that_holds_one_reserve_has_room_when_its_records_are_dead(
    capacity: int, size: int, kept: int
) -> None:
    """The settlements need the reserve, or still fit in the segment as on the disk for one."""
    rig = Rig(SimulatedDisk(capacity=capacity)).open()
    owner = Owner(rig)
    living: list[bytes] = []
    for turn in range(5):
        names = filled_up(rig, owner, range(1000 * turn, 1000 * turn + 99), size)
        assert len(names) > kept
        settle(rig, owner, living + names[kept:])
        living = names[:kept]
        compactions = 0
        while rig.journal.compaction_is_due():
            await compact(rig, owner)
            compactions += 1
        assert compactions <= 3
        rig.turn(after=0.6)
        assert not rig.journal.is_full and rig.journal.trouble() is None
        assert "reserve" in rig.files.listdir(FOLDER)
        assert rig.files.used() <= capacity
        assert set(owner.places) == set(living)
    assert rig.send(b"yes") is None
    rig.turn(after=1.0)
    again = Rig(rig.files.power_cut()).open()
    assert set(Owner(again).places) == {*living, b"yes"}


async def test_the_current_segment_is_not_left_over_and_over_where_that_makes_too_little_room() -> None:
    """Somebody else's file takes what a reserve needs."""
    rig = Rig(SimulatedDisk(capacity=ONE_SEGMENT)).open()
    owner = Owner(rig)
    settle(rig, owner, filled_up(rig, owner, range(99), 500))
    assert len(rig.segment_paths()) == 1
    rig.files.fail("fallocate", times=10**9, number=errno.ENOSPC, path="reserve")
    compactions = 0
    for _ in range(20):
        while rig.journal.compaction_is_due():
            await compact(rig, owner)
            compactions += 1
        rig.turn(after=0.6)
    assert compactions == 1
    assert isinstance(rig.send(b"no"), JournalFull) and isinstance(rig.journal.trouble(), JournalFull)
    rig.files.faults.clear()
    rig.turn(after=0.6)
    assert rig.send(b"yes") is None


@pytest.mark.parametrize(("capacity", "size"), [(3_500, 150), (ONE_SEGMENT, 500)])
async def test_a_crash_at_any_call_while_a_full_disk_gets_room_loses_nothing(capacity: int, size: int) -> None:
    for calls in range(1, 200):
        rig = Rig(SimulatedDisk(capacity=capacity)).open()
        owner = Owner(rig)
        first, *others = filled_up(rig, owner, range(99), size)
        settle(rig, owner, others)
        rig.turn(after=0.2)
        rig.files.dies_at = rig.files.calls + calls
        with contextlib.suppress(MachineStopped):
            while rig.journal.compaction_is_due():
                await compact(rig, owner)
            rig.turn(after=0.6)
        for files in (rig.files.power_cut(), rig.files.power_cut(everything=True), rig.files.kill()):
            again = Rig(files).open()
            assert set(Owner(again).places) == {first}, calls
        if not rig.files.is_dead:
            assert calls > 10 and not rig.journal.is_full
            return
    raise AssertionError("it does not come to an end")


async def test_damage_found_by_compaction_keeps_the_segment() -> None:
    rig, owner = filled()
    rig.files.content(rig.segment_paths()[0])[200] ^= 1
    with pytest.raises(JournalCorrupt):
        await compact(rig, owner)
    assert rig.segment_paths()[0].endswith("0001.segment")


async def test_it_lets_others_go_on_however_much_is_owed() -> None:
    rig, owner = filled()
    turns: list[int] = []
    read = 0

    def live(record: Record) -> None:
        nonlocal read
        read += 1
        rig.now += 0.001

    owner.live = live  # type: ignore[method-assign]
    rig.journal._compacting = True
    rig.journal.release(1, 1 << 20)  # four times as much is owed
    rig.journal._compacting = False
    compacting = asyncio.create_task(rig.journal.compact(owner))
    while not compacting.done():
        before = read
        await asyncio.sleep(0)
        turns.append(read - before)
        rig.journal.turn()
    assert max(turns) <= 9 < sum(turns)


async def test_one_at_a_time() -> None:
    rig, owner = filled()
    first = asyncio.ensure_future(rig.journal.compact(owner))
    await asyncio.sleep(0)
    with pytest.raises(JournalError, match="already running"):
        await rig.journal.compact(owner)
    while not first.done():
        rig.turn()
        await asyncio.sleep(0)
    assert first.result() == 1


def test_many_small_segments_are_due() -> None:
    files = SimulatedDisk()
    for i in range(20):
        rig = Rig(files).open()
        rig.send(b"%d" % i)
        due = rig.journal.compaction_is_due()
        rig.journal.close()
        files = files.kill()
    assert due
