"""The real journal alone on the simulated disk: any traffic, any faults, any number of crashes, drawn from a seed.

Checked at every restart: what was confirmed is there (after a kill; after a power cut as its durability promises), what
was refused or removed is not, records come in order of their lsn and as they were written, and damage is reported. At
rest the journal accepts again and takes no more room than it may.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from pairbus.journal import Journal, JournalCorrupt, JournalError, JournalStalled, Options, Record
from pairbus.journal.log import Done
from pairbus.journal.record import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES
from pairbus.journal.segment import Segment, scan, segment_name, survey

from .disk import SECTOR_BYTES, DiskFault, FaultKind, Folder, MachineStopped, SimulatedDisk, draw_faults
from .shrink import shrink

FOLDER, STANDBY = "j", "s"
LATE_S = 0.02  # that looks at the clock take
PUT, GONE = 1, 2
NAME_BYTES = 6


class Violation(AssertionError):
    """The journal broke a promise."""


class State(IntEnum):
    """How far a record has come."""

    NEVER = 0  # refused, lost, or not asked for
    MAYBE = 1
    ANSWERED = 2  # a killed process leaves it
    SURE = 3  # a power cut leaves it


class Step(NamedTuple):
    name: str
    value: Any = 0

    def __str__(self) -> str:
        return f"{self.name} {self.value}"


class Item:
    """What is known of one name: a record puts it there, another removes it."""

    __slots__ = ("drop", "payload", "put")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.put = State.MAYBE
        self.drop = State.NEVER


@dataclass(frozen=True, slots=True)
class Story:
    """All that a seed stands for. With `write_here` lazy records are written by the caller."""

    seed: int
    options: Options
    write_here: bool
    steps: tuple[Step, ...]
    standby: str | None = None

    def __str__(self) -> str:
        head = f"seed {self.seed}, {self.options}, write_here={self.write_here}, standby={self.standby}"
        return "\n  ".join((head, *map(str, self.steps)))

    @property
    def size(self) -> int:
        return len(self.steps)

    def parts(self) -> range:
        return range(self.size)

    def without(self, left_out: set[int]) -> Story:
        return replace(self, steps=tuple(step for at, step in enumerate(self.steps) if at not in left_out))

    def fails(self) -> bool:
        try:
            self.run()
        except Exception:
            return True
        return False

    def run(self) -> World:
        world = World(self.options, self.write_here, self.seed, self.standby)
        world.run(self.steps)
        return world


def draw(seed: int) -> Story:
    """Return the seed's story. From 10,000 on many faults strike just where a segment is made or removed; from 100,000
    on folders stall, and most journals have a standby folder."""
    chance, is_narrow, has_stalls = random.Random(seed), seed >= 10_000, seed >= STALLS_FROM
    options = Options(
        segment_bytes=chance.choice((1024, 2048, 4096)),
        reserve_bytes=chance.choice((0, 1024, 1024)),
        allocate_bytes=chance.choice((0, 256, 256)),
        pending_bytes_max=chance.choice((600, 1 << 20, 1 << 20)),
        durability=chance.choice(("default", "default", "default", "strict", "none")),
    )
    sizes = chance.choice(((40,), (0, 1, 40, 300), (0, 1, 40, 300, 1500)))
    kinds = _STEPS | _STALL_STEPS if has_stalls else _STEPS
    weights = [weight * chance.choice((0, 1, 1, 3)) for weight in kinds.values()]
    steps = []
    for kind in ["put", *chance.choices(list(kinds), weights, k=chance.choice((15, 60, 60, 150))), "crash"]:
        value: Any = chance.randrange(1 << 30)
        if kind in ("put", "lazy"):
            value = chance.choice(sizes)
        elif kind == "turn":
            value = chance.choice((0.0, 0.0, 0.05, 0.1, 0.5))
        elif kind == "faults":
            value = draw_name_faults(chance) if is_narrow and value % 3 == 0 else draw_faults(chance, 20)
        elif kind == "crash":
            how = chance.choice(("kill", "nothing", "everything", "some", "some"))
            faults = draw_faults(chance, 20) if chance.random() < 0.2 else []
            value = (how, value, draw_name_faults(chance) if is_narrow and value % 4 == 0 else faults)
        steps.append(Step(kind, value))
    write_here = chance.random() < 0.5
    return Story(seed, options, write_here, tuple(steps), STANDBY if has_stalls and chance.random() < 0.8 else None)


def draw_name_faults(chance: random.Random) -> list[DiskFault]:
    """Return faults that strike where a segment is made or removed; often the disk is full as well."""
    faults = [DiskFault("room", value=chance.choice((0, 100)))] * chance.randint(0, 1)
    for _ in range(chance.randint(1, 3)):
        kind: FaultKind = chance.choice(("error", "done_error"))
        call = chance.choice(("create", "rename", "fdatasync", "fsync_dir", "fsync_dir", "unlink"))
        faults.append(DiskFault(kind, call, chance.choice((0, 10, 20)), chance.choice((1, 1, 2))))
    return faults


_STEPS = {
    "put": 20, "lazy": 6, "drop": 12, "lazy_drop": 20, "turn": 30, "faults": 4, "heal": 2, "away": 1, "read_only": 1,
    "compact": 10, "read": 5, "crash": 4, "close": 1, "damage": 1, "calm": 1,
}  # fmt: skip
# Without "away": what is confirmed goes to the standby folder then.
_STALL_STEPS = {"stall": 8, "resume": 5, "away": 0}
STALLS_FROM = 100_000


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


class World:
    def __init__(self, options: Options, write_here: bool = False, seed: int = 0, standby: str | None = None) -> None:
        self.options = options
        self.write_here = write_here
        self.standby = standby
        self.was_standby_stalled = False
        self.disk = SimulatedDisk(chance=random.Random(seed))
        self.now = 1000.0
        self.tick_s = self.disk.chance.choice((0.0, 0.0003))  # that each look at the clock takes
        self.journal: Journal
        self.items: dict[bytes, Item] = {}
        self.payloads: dict[bytes, bytes] = {}  # of all that there ever was
        self.places: dict[bytes, tuple[int, int]] = {}
        self.count = 0
        self.asked: dict[int, tuple[int, bytes]] = {}
        # Those that a power cut may take: lsn, item, put or drop, and when they were answered.
        self.answered: list[tuple[int, Item, str, float]] = []
        self.folder: Folder | None = None  # the journal's files while they are away
        self.compaction: asyncio.Task[int | None] | None = None
        self.is_troubled = False  # in the last step
        self.is_final = True  # what the last start did not find is gone for good
        self.struck, self.was_behind = 0, False
        self.violations: list[Violation] = []
        self.start([])

    def run(self, steps: Sequence[Step]) -> None:
        for name, value in steps:
            if not self.disk.is_dead or name in ("crash", "damage"):
                self.struck, self.was_behind = len(self.disk.struck), self.must_write_again()
                with contextlib.suppress(MachineStopped):
                    getattr(self, name)(value)
                self.after_step()
        self.crash(("nothing", 0, []))
        self.crash(("kill", 0, []))
        self.calm(0)
        self.stop_compaction()

    def clock(self) -> float:
        self.now += self.tick_s
        return self.now

    def after_step(self) -> None:
        if self.violations:
            raise self.violations[0]
        self.is_troubled = self.was_behind or self.is_in_trouble() or (self.disk.is_dead and self.is_troubled)
        if self.disk.is_dead:
            return
        self.now += self.disk.elapsed_s
        self.disk.elapsed_s = 0.0
        if self.journal.failure is not None:
            raise Violation(f"the writer failed: {self.journal.failure}")
        if self.options.durability != "none" and not self.journal.pending_bytes:
            self.sync(None)

    def is_in_trouble(self) -> bool:
        return (
            any(not is_harmless(fault) for _, _, fault in self.disk.struck[self.struck :])
            or self.disk.capacity is not None
            or self.disk.is_read_only_now
            or self.folder is not None
            or self.is_stalled()
        )

    def is_stalled(self) -> bool:
        """Return whether a folder does not answer, or the journal has not yet found that it does."""
        log = self.journal._log
        return bool(self.disk.stalled) or (log is not None and bool(log.stalled or log.gate.folder))

    def must_write_again(self) -> bool:
        """Return whether there are lazy records that are in memory alone, since the disk failed."""
        return self.journal._log is not None and self.journal._log._redo != []

    # -- traffic

    def put(self, size: int, lazy: bool = False) -> None:
        name = b"%06d" % self.count
        self.count += 1
        item = self.items[name] = Item(name + b"." * size)
        self.payloads[name], lsn = item.payload, self.journal.last_lsn + 1

        def done(error: JournalError | None, segment: int, offset: int) -> None:
            item.put = self.outcome(error, lazy, lsn, item, "put")
            if error is None:
                self.places[name] = (segment, offset)

        self.append(PUT, item.payload, done, lazy)

    def lazy(self, size: int) -> None:
        self.put(size, lazy=True)

    def drop(self, which: int, lazy: bool = False) -> None:
        if not self.places:
            return
        name = list(self.places)[which % len(self.places)]
        item, lsn = self.items[name], self.journal.last_lsn + 1
        item.drop = State.MAYBE
        self.journal.release(self.places.pop(name)[0], len(item.payload))

        def done(error: JournalError | None, segment: int, offset: int) -> None:
            item.drop = max(State.MAYBE, self.outcome(error, lazy, lsn, item, "drop"))
            if error is None:
                self.journal.release(segment, NAME_BYTES)

        self.append(GONE, name, done, lazy)

    def lazy_drop(self, which: int) -> None:
        self.drop(which, lazy=True)

    def append(self, kind: int, payload: bytes, done: Done, lazy: bool) -> None:
        self.asked[self.journal.last_lsn + 1] = (kind, payload)
        self.journal.append(kind, payload, done, lazy=lazy)

    def outcome(self, error: JournalError | None, lazy: bool, lsn: int, item: Item, what: str) -> State:
        if error is not None:
            if isinstance(error, JournalStalled) and self.standby is not None and not self.was_standby_stalled:
                self.violations.append(Violation(f"record {lsn} was refused although the standby folder answers"))
            return State.MAYBE if error.unknown else State.NEVER
        if self.options.durability == "none" or (self.options.durability == "default" and lazy):
            if self.options.durability == "default":
                self.check_lateness(lsn)
            self.answered.append((lsn, item, what, self.now))
            return State.ANSWERED
        if self.folder is not None:
            self.violations.append(Violation(f"record {lsn} was confirmed while the folder was away"))
        self.sync(lsn)
        return State.SURE

    def sync(self, before: int | None) -> None:
        """What was answered, before this record, is on the disk."""
        for lsn, item, what, _ in self.answered:
            if before is None or lsn < before:
                setattr(item, what, State.SURE)
        self.answered = [each for each in self.answered if before is not None and each[0] >= before]

    def check_lateness(self, lsn: int) -> None:
        """What a power cut would undo now was answered within `lazy_sync_s`: nothing more is answered once a sync is
        late."""
        late = {each for each, _, _, at in self.answered if self.now - at > self.options.lazy_sync_s + LATE_S}
        if late and self.folder is None:
            there = {record.lsn for record in inspect(self.cut("nothing", 0))[0]}
            if late - there:
                text = f"record {lsn} was answered, and {sorted(late - there)}, answered long before, are not synced"
                self.violations.append(Violation(text))

    def forget_answers(self) -> None:
        """What was answered and not synced may be lost."""
        for _, item, what, _ in self.answered:
            setattr(item, what, State.MAYBE)
        self.answered = []

    def turn(self, after: float) -> None:
        self.now += after
        self.journal.turn()
        if self.compaction is not None:
            _loop().run_until_complete(asyncio.sleep(0))
            self.reap_compaction()

    def read(self, which: int) -> None:
        trouble = self.journal.trouble()
        if trouble is None and (self.folder is not None or self.disk.is_read_only_now):
            raise Violation("the folder is away or read-only, and the journal says that it is well")
        if not self.places:
            return
        name = list(self.places)[which % len(self.places)]
        payload = self.items[name].payload
        try:
            found = self.journal.read(*self.places[name], len(payload))
        except JournalError:
            if not self.is_in_trouble() and not self.must_write_again():
                raise
            return
        if found != payload:
            raise Violation(f"{name!r} reads as {found!r}")

    # -- compaction

    def compact(self, _: int) -> None:
        if self.compaction is None:
            self.compaction = _loop().create_task(self.journal.compact(self))
            self.turn(0.0)

    def reap_compaction(self) -> None:
        task = self.compaction
        if task is None or not task.done():
            return
        self.compaction = None
        error = task.exception()
        if error is not None and (isinstance(error, JournalCorrupt) or not isinstance(error, JournalError)):
            raise error
        if error is None and task.result() is not None and not self.must_write_again():
            self.sync(None)

    def stop_compaction(self) -> None:
        if self.compaction is not None:
            self.compaction.cancel()
            with contextlib.suppress(asyncio.CancelledError, JournalError, MachineStopped):
                _loop().run_until_complete(self.compaction)
            self.compaction = None

    def live(self, record: Record) -> tuple[int, bytes] | None:
        if record.kind == PUT and self.places.get(record.payload[:NAME_BYTES]) == (record.segment, record.offset):
            return PUT, record.payload
        return None

    def moved(self, record: Record, segment: int, offset: int) -> None:
        if self.live(record) is None:
            self.journal.release(segment, len(record.payload))
        else:
            self.places[record.payload[:NAME_BYTES]] = (segment, offset)
            self.journal.release(record.segment, len(record.payload))

    # -- the disk

    def faults(self, faults: list[DiskFault]) -> None:
        self.disk.faults += [replace(fault, at=fault.at + self.disk.calls) for fault in faults]

    def stall(self, which: int) -> None:
        """Let the journal's folder hang, now and then the standby folder; or hold back what the writer does."""
        if which % 4 == 0:
            self.journal.stall(True)
        elif which % 4 == 1 and self.standby is not None and which % 3 == 0:
            self.disk.stalled.add(self.standby)
            self.was_standby_stalled = True
        else:
            self.disk.stalled.add(FOLDER)

    def resume(self, _: int) -> None:
        self.disk.resume()
        self.journal.stall(False)

    def heal(self, _: int) -> None:
        self.resume(0)
        self.disk.faults.clear()
        self.disk.capacity = None
        self.disk.is_read_only_now = False
        self.back()

    def away(self, _: int) -> None:
        if self.folder is None:
            self.folder = self.disk.delete_folder(FOLDER)

    def back(self) -> None:
        if self.folder is not None:
            self.disk.restore_folder(self.folder)
            self.folder = None

    def read_only(self, _: int) -> None:
        self.disk.is_read_only_now = not self.disk.is_read_only_now

    def calm(self, _: int) -> None:
        """Without faults the journal accepts again soon, and takes no more room than it may."""
        self.heal(0)
        for _ in range(5):
            self.turn(0.5)
        if (trouble := self.journal.trouble()) is not None:
            raise Violation(f"no fault is left, and yet: {trouble}")
        if self.journal._log is not None and self.journal._log.folder != FOLDER:
            raise Violation("the journal stays in its standby folder")
        self.put(40)
        item = next(reversed(self.items.values()))
        self.turn(0.0)
        self.turn(0.1)
        if item.put is State.NEVER or item.put is State.MAYBE:
            raise Violation("no fault is left, and a record is refused")
        if self.journal.pending_bytes and self.options.durability != "none":
            raise Violation(f"{self.journal.pending_bytes} bytes are never synced")
        for _ in range(1000):
            if self.compaction is None:
                if not self.journal.compaction_is_due():
                    break
                self.compact(0)
            self.turn(0.1)
        else:
            raise Violation("compaction is due for ever")
        live = sum(RECORD_HEADER_BYTES + len(self.items[name].payload) for name in self.places)
        limit = 2 * live + 4 * max(self.options.segment_bytes, 1600)
        if self.disk.used() > limit:
            raise Violation(f"{self.disk.used()} bytes are used, {limit} are allowed")

    # -- crashes

    def close(self, _: int) -> None:
        self.stop_compaction()
        try:
            self.journal.close()
        except JournalError:
            self.forget_answers()
        else:
            self.sync(None)
        self.after_step()
        if not self.disk.is_dead:
            self.crash(("kill", 0, []))

    def cut(self, how: str, seed: int) -> SimulatedDisk:
        if how == "kill":
            return self.disk.kill()
        return self.disk.power_cut(random.Random(seed) if how == "some" else None, everything=how == "everything")

    def crash(self, what: tuple[str, int, list[DiskFault]]) -> None:
        how, seed, faults = what
        if how != "kill" or self.must_write_again() or (self.disk.is_dead and self.is_troubled):
            self.forget_answers()
        self.stop_compaction()
        self.back()
        self.disk = self.cut(how, seed)
        self.disk.capacity = None
        self.start(faults)

    def start(self, faults: list[DiskFault]) -> None:
        """Open the journal, over and again until the faults let it, and compare what it holds with what it must."""
        self.faults(faults)
        while True:
            before = len(self.disk.struck)
            try:
                records = self.open(self.disk, self.options, self.asked if self.is_final else {})
                break
            except MachineStopped:
                self.forget_answers()
                self.disk = self.disk.power_cut(self.disk.chance)
            except JournalError as error:
                if isinstance(error, JournalCorrupt) or len(self.disk.struck) == before:
                    raise
                left, self.disk = self.disk.faults, self.disk.kill()
                self.disk.faults = left[1:]
            self.disk.capacity = None
        self.places = {}
        for record in records:
            name = record.payload[:NAME_BYTES]
            if name in self.places:
                self.journal.release(self.places.pop(name)[0], len(self.payloads[name]))
            if record.kind == PUT:
                self.places[name] = (record.segment, record.offset)
            else:
                self.journal.release(record.segment, NAME_BYTES)
        for name in self.places.keys() - self.items.keys():
            raise Violation(f"{name!r} came back, and was gone before")
        for name, item in self.items.items():
            if name in self.places and (item.put is State.NEVER or item.drop >= State.ANSWERED):
                raise Violation(f"{name!r} came back: {item.put.name}, its removal {item.drop.name}")
            if name not in self.places and item.put >= State.ANSWERED and item.drop is State.NEVER:
                raise Violation(f"{name!r} is lost: {item.put.name}")
        # The start has made durable all that it found; the rest is gone for good, once there is a new segment.
        is_final = self.journal._log is not None and self.journal._log.number > 0
        for name, item in self.items.items():
            item.put = State.SURE if name in self.places else State.MAYBE
            item.drop = State.NEVER if is_final else min(item.drop, State.MAYBE)
        if is_final:
            self.items = {name: self.items[name] for name in self.places}
        self.asked = {record.lsn: (record.kind, record.payload) for record in records}
        self.is_final = is_final
        self.answered = []

    def open(self, disk: SimulatedDisk, options: Options, asked: dict[int, tuple[int, bytes]]) -> list[Record]:
        self.journal = Journal.open(FOLDER, options, disk, self.clock, self.standby)
        try:
            records = list(self.journal.replay())
            self.journal.start(self.post, thread=False, write_here=self.write_here)
        except BaseException:
            self.journal.close()
            raise
        self.check(records, asked)
        return records

    def post(self, callback: Callable[[], None]) -> None:
        if not self.disk.is_dead:  # nobody hears what a stopped machine says
            callback()

    def check(self, records: list[Record], asked: dict[int, tuple[int, bytes]]) -> None:
        """Every record is one that was asked for, or a copy of one that ever was, and they come in order."""
        last = 0
        for record in records:
            if record.lsn <= last:
                raise Violation(f"{record} after lsn {last}")
            last = record.lsn
            name = record.payload[:NAME_BYTES]
            copied = (PUT, self.payloads.get(name)) if record.kind == PUT or asked else (GONE, name)
            if asked.get(last, copied) != (record.kind, record.payload):
                raise Violation(f"{record} holds {record.payload!r}, which was never written")

    # -- damage

    def damage(self, seed: int) -> None:
        """Damage a copy of the disk: replay refuses it, or nothing is gone that it can know of."""
        if self.folder is not None:
            return
        chance = random.Random(seed)
        how = chance.choice(("nothing", "everything", "some"))
        clean, damaged = self.cut(how, seed), self.cut(how, seed)
        records, segments = inspect(clean)
        if not segments:
            return
        what = hurt(damaged, chance, [segment.path for segment in segments], records)
        known = evidence(clean, damaged, segments)
        changed = {path: _first_change(clean.content(path), damaged.content(path)) for path in known}
        must_refuse = [path for path, end in known.items() if changed[path] < end]
        journal = self.journal
        try:
            found = self.open(damaged, self.options, {})
        except JournalCorrupt:
            if not any(start < len(clean.content(path)) for path, start in changed.items()):
                raise
            self.salvage(damaged.kill())
        else:
            if must_refuse:
                raise Violation(f"{what} was accepted, known are {known}, changed {changed}")
            now = {(record.lsn, record.payload) for record in found}
            missing = {r.lsn for r in records if r.offset + len(r.payload) <= known[_path(clean, r)]} - {
                lsn for lsn, _ in now
            }
            if missing:
                raise Violation(f"{what}: {sorted(missing)} are gone without a word")
            # The header of a last segment without records is alone in saying where the one before it ends.
            is_headless = changed[segments[-1].path] < SEGMENT_HEADER_BYTES
            if now - {(record.lsn, record.payload) for record in records} and not is_headless:
                raise Violation(f"{what}: records came back")
        self.journal = journal

    def salvage(self, damaged: SimulatedDisk) -> None:
        """It opens with salvage, again and again with the same records."""
        found = self.open(damaged, replace(self.options, salvage=True), {})
        self.journal.close()
        again = self.open(damaged.kill(), self.journal.options, {})
        if [record.lsn for record in again] != [record.lsn for record in found]:
            raise Violation("what was salvaged does not last")


def is_harmless(fault: DiskFault) -> bool:
    """Return whether the journal goes on as if nothing had happened: not after a write of no bytes."""
    return fault.kind in ("slow", "stop") or (fault.kind == "short" and fault.value > 0)


def inspect(disk: SimulatedDisk) -> tuple[list[Record], list[Segment]]:
    """Return what is on a sound disk."""
    segments = survey(disk, FOLDER, False, STANDBY).segments
    return [each for segment in segments for chunk in scan(disk, segment, 0, False, []) for each in chunk], segments


def evidence(clean: SimulatedDisk, damaged: SimulatedDisk, segments: list[Segment]) -> dict[str, int]:
    """Return up to where each segment is known to have been synced: by what is left of its records' headers, and of the
    next segment's header."""
    known: dict[str, int] = {}
    is_stated = False
    for segment in reversed(segments):
        content, now = clean.content(segment.path), damaged.content(segment.path)
        synced, offset, end = 0, SEGMENT_HEADER_BYTES, segment.end or 0
        while offset < end:
            if content[offset : offset + RECORD_HEADER_BYTES] == now[offset : offset + RECORD_HEADER_BYTES]:
                synced = max(synced, int.from_bytes(content[offset + 8 : offset + 12], "little"))
            offset += RECORD_HEADER_BYTES + int.from_bytes(content[offset + 4 : offset + 8], "little")
        known[segment.path] = end if segment.is_sure and is_stated else synced
        is_stated = content[:SEGMENT_HEADER_BYTES] == now[:SEGMENT_HEADER_BYTES]
    return known


def hurt(disk: SimulatedDisk, chance: random.Random, paths: list[str], records: list[Record]) -> str:
    """Let a sector rot, or a write have gone elsewhere, and say what was done."""
    path = chance.choice(paths)
    content = disk.content(path)
    if not records or chance.random() < 0.5:
        sector = chance.randrange(-(-len(content) // SECTOR_BYTES))
        disk.rot(path, sector)
        content[:] = disk._disk_names[path].disk
        return f"sector {sector} of {path} rotten"
    record, other = chance.choice(records), chance.choice(records)
    content = disk.content(_path(disk, record))
    target = disk.content(_path(disk, other) if chance.random() < 0.7 else path)
    start, end = record.offset - RECORD_HEADER_BYTES, record.offset + len(record.payload)
    data = bytes(content[start:end])
    content[start:end] = bytes(len(data))
    spot = other.offset - RECORD_HEADER_BYTES if chance.random() < 0.5 else chance.randrange(len(target))
    del target[spot : spot + len(data)]
    target[spot:spot] = data
    return f"{record} written over {other}, at {spot}"


def _path(disk: SimulatedDisk, record: Record) -> str:
    name = segment_name(record.segment)
    return f"{FOLDER}/{name}" if name in disk.listdir(FOLDER) else f"{STANDBY}/{name}"


def _first_change(one: bytearray, other: bytearray) -> int:
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), max(len(one), len(other)))


def run_seed(seed: int) -> None:
    """Run the seed's story; raise a Violation that tells it, as short as it can be made."""
    story = draw(seed)
    try:
        story.run()
    except Exception as error:
        raise Violation(f"{error!r}\n{shrink(story, Story.fails)}") from error


if __name__ == "__main__":
    first, count = (int(each) for each in sys.argv[1:])
    for number in range(first, first + count):
        run_seed(number)
