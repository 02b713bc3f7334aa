"""A simulated disk behind the journal's Files interface: it fails as it is told, and knows what a power cut leaves.

It keeps apart what a running system shows (the cache) and what is on the disk. A write counts as on the disk only after
an fdatasync of its file, a name only after an fsync of the folder. As on Linux, a failed fdatasync forgets what it had
to write: the cache still shows it, a later fdatasync succeeds and brings none of it to the disk. Damage to what is on
the disk (a sector that rots, a write that went elsewhere) shows when the cache is gone: after a power cut.

`faults` are descriptions that strike by themselves, drawn by `draw_faults` or written down; `struck` tells which did,
and in which call. Beside them a test may change `capacity` (bytes), `is_read_only_now`, `latency_s` (seconds per call)
and `dies_at` (the number of the call in which the machine stops) at any time. While a folder is `stalled`, the calls
that change something in it do not return (they raise LeftBehind, as if time had passed), and do their work now, when
the folder is resumed, or never; a write goes to the cache as ever. `stalls_at` says with which call of theirs folders
begin to stall. `elapsed_s` is the simulated time that
all calls have taken. A disk that confirms a sync and has not synced is not simulated: nothing can be promised on it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Concatenate, Final, Literal, NamedTuple, NoReturn, ParamSpec, TypeVar

from pairbus.journal.stall import LeftBehind

P = ParamSpec("P")
R = TypeVar("R")

SECTOR_BYTES: Final = 64  # small, so that short records tear too
CHANGES: Final = ("create", "lock", "pwrite", "fdatasync", "truncate", "fallocate", "rename", "unlink", "fsync_dir")
FAILING_CALLS: Final = (*CHANGES, "open", "pread", "listdir", "make_folder")

FaultKind = Literal[
    "error", "done_error", "torn_sync", "short", "misdirect", "rot", "slow", "room", "read_only", "stop"
]  # fmt: skip


class MachineStopped(BaseException):
    """The machine is off: no call is answered any more."""


@dataclass(frozen=True, slots=True)
class DiskFault:
    """Strikes calls of one name (`call`, "" for any that it fits) on paths that contain `path`, from the disk's call
    number `at` on, with `probability` each, until it has struck `count` times.

    error       the call fails with the errno `value` and has done nothing (EIO where `value` is 0)
    done_error  the call has done its work, and fails all the same
    torn_sync   an fdatasync fails after some of its sectors were written
    short       a write stops after `value` bytes
    misdirect   a write lands elsewhere on the disk: in this file or in another
    rot         one sector of a file on the disk decays
    slow        the call takes `value` more seconds
    room        from now on the disk has room for `value` more bytes; below 0 for any number
    read_only   the call, if it is one that changes anything, fails with EROFS
    stop        the machine stops
    """

    kind: FaultKind
    call: str = ""
    at: int = 0
    count: int = 1
    probability: float = 1.0
    path: str = ""
    value: float = 0


def draw_faults(chance: random.Random, calls: int, *, damage: bool = False) -> list[DiskFault]:
    """Return faults for about so many calls; with `damage` such too that take away what was synced."""
    faults = []
    for _ in range(chance.choice((0, 1, 1, 2, 3, 5))):
        at, count, value, call = chance.randint(1, calls), chance.choice((1, 1, 1, 2, 5, 30)), 0.0, ""
        kind: FaultKind = chance.choice(
            ("error", "error", "error", "done_error", "torn_sync", "short", "slow", "room", "read_only", "stop")
        )
        if damage and chance.random() < 0.5:
            kind = chance.choice(("misdirect", "rot"))
        if kind in ("error", "done_error"):
            call = chance.choice(("pwrite", "fdatasync", "fdatasync", *FAILING_CALLS))
            value = chance.choice((errno.EIO, errno.EIO, errno.ENOSPC, errno.EDQUOT))
        elif kind == "short":
            value = chance.choice((0, 1, 28, 64, 100, 1000))
        elif kind == "slow":
            value = chance.choice((0.01, 0.1, 1.0, 10.0))
        elif kind == "room":
            value = chance.choice((-1, 0, 100, 1000, 5000))
        if kind in ("rot", "stop", "room", "misdirect"):
            count = 1
        faults.append(DiskFault(kind, call, at, count, chance.choice((1.0, 1.0, 0.3)), "", value))
    return faults


class _Node:
    __slots__ = ("allocated", "cache", "disk", "lockers", "unsynced")

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.cache = bytearray(content)
        self.disk = bytearray(content)
        self.unsynced: list[tuple[int, bytes | None]] = []  # writes, and truncations as (length, None)
        self.allocated = len(content)
        self.lockers = 0

    def copy(self) -> _Node:
        """Return a copy without the locks."""
        twin = _Node(self.cache)
        twin.disk, twin.unsynced, twin.allocated = bytearray(self.disk), list(self.unsynced), self.allocated
        return twin

    def land(self) -> None:
        """Bring to the disk what is not yet there."""
        for offset, data in self.unsynced:
            _apply(self.disk, offset, data)
        self.unsynced.clear()


_Change = tuple[str, _Node | None, str]  # a path, what it leads to now, and the path that this had before


class Folder(NamedTuple):
    """A folder that was deleted, with all that was in it."""

    folder: str
    nodes: dict[str, _Node]
    disk_names: dict[str, _Node]
    unsynced_names: list[_Change]


def stalls(call: Callable[Concatenate[SimulatedDisk, P], R]) -> Callable[Concatenate[SimulatedDisk, P], R]:
    """Let a call hang while the folder is stalled that it would change."""

    def hanging(disk: SimulatedDisk, /, *arguments: P.args, **named: P.kwargs) -> R:
        if disk.stalls_at:
            disk.begin_to_stall(arguments[0], call.__name__)
        if disk.stalled and disk.hangs(arguments[0], call.__name__):
            when = disk.chance.choice(("now", "later", "never"))
            if when == "now":
                with contextlib.suppress(OSError):
                    call(disk, *arguments, **named)
            elif when == "later":
                kept = disk.duplicate(arguments[0])
                disk.late.append(lambda: call(disk, kept, *arguments[1:]))  # type: ignore[call-arg, arg-type]
            raise LeftBehind
        return call(disk, *arguments, **named)

    return hanging


class SimulatedDisk:
    def __init__(self, capacity: int | None = None, chance: random.Random | None = None) -> None:
        self.capacity = capacity
        self.chance = chance if chance is not None else random.Random(0)
        self.faults: list[DiskFault] = []
        self.struck: list[tuple[int, str, DiskFault]] = []
        self.is_read_only_now = False
        self.stalled: set[str] = set()  # folders
        self.stalls_at: dict[str, str] = {}  # folders that stall from a call of this name on
        self.late: list[Callable[[], object]] = []  # calls that hang, and do their work in the end
        self.latency_s: dict[str, float] = {}
        self.elapsed_s = 0.0
        self.dies_at: int | None = None
        self.on_stop: Callable[[], None] | None = None  # called when the machine stops
        self.on_read: Callable[[str], None] | None = None  # called with a folder that is stalled, and read all the same
        self.is_dead = False
        self.calls = 0
        self.missed: list[str] = []  # what was to be opened, and is not there
        self._log: deque[tuple[str, str]] = deque(maxlen=1000)
        self._nodes: dict[str, _Node] = {}
        self._disk_names: dict[str, _Node] = {}
        self._unsynced_names: list[_Change] = []
        self._gone: set[str] = set()  # folders that were deleted
        self._changes = 0  # of names
        self._stopped_write: tuple[_Node, int, bytes] | None = None
        self._after: OSError | None = None  # what the present call raises when it has done its work
        self._open: dict[int, tuple[_Node, str]] = {}
        self._fd = 2
        self._locks: set[int] = set()
        self._salt = 0

    # -- what a test asks for

    def power_cut(self, chance: random.Random | None = None, *, everything: bool = False) -> SimulatedDisk:
        """Return what the disk holds after the power is cut now. Of what is not synced: nothing; with `everything` all
        of it; with `chance` any sectors of any writes, and any of the folder's changes."""
        after = self._next()
        changes = self._unsynced_names if everything or chance is not None else []
        if chance is not None:
            if chance.random() < 0.5:  # a file system that keeps their order, or one that does not
                changes = changes[: chance.randint(0, len(changes))]
            else:
                changes = [change for change in changes if chance.random() < 0.5]
        names = dict(self._disk_names)
        for path, node, old in changes:
            _change_names(names, path, node, old)
        for path, node in names.items():
            content, writes = bytearray(node.disk), node.unsynced
            if self._stopped_write is not None and self._stopped_write[0] is node:
                writes = [*writes, self._stopped_write[1:]]  # any part of it may have got through
            if chance is not None:
                _apply_some(content, writes, chance)
            elif everything:
                for offset, data in writes:
                    _apply(content, offset, data)
            after._nodes[path] = after._disk_names[path] = _Node(content)
        return after

    def kill(self) -> SimulatedDisk:
        """Return what a killed process leaves on a machine that goes on: the cache stays, locks and open files go."""
        after = self._next()
        twins: dict[int, _Node] = {}

        def twin(node: _Node) -> _Node:
            found = twins.get(id(node))
            if found is None:
                found = twins[id(node)] = node.copy()
            return found

        after._nodes = {path: twin(node) for path, node in self._nodes.items()}
        after._disk_names = {path: twin(node) for path, node in self._disk_names.items()}
        after._unsynced_names = [(path, node and twin(node), old) for path, node, old in self._unsynced_names]
        return after

    def _next(self) -> SimulatedDisk:
        """Return an empty disk that goes on where this one stops: without faults, which the caller may hand on."""
        after = SimulatedDisk(self.capacity, self.chance)
        after.calls, after.elapsed_s, after.latency_s = self.calls, self.elapsed_s, self.latency_s
        after._salt, after._gone, after._changes = self._salt, set(self._gone), self._changes
        after.struck, after.missed = self.struck, self.missed
        return after

    def fail(self, *calls: str, times: int = 1, number: int = errno.EIO, path: str = "") -> None:
        """Let each of these calls fail, so many times from now on."""
        self.faults += [DiskFault("error", call, 0, times, 1.0, path, number) for call in calls]

    def content(self, path: str) -> bytearray:
        """Return the cache's content, to read or to damage."""
        return self._nodes[path].cache

    def rot(self, path: str, sector: int) -> None:
        """Damage one sector of what is on the disk."""
        node = self._disk_names[path]
        start = sector * SECTOR_BYTES
        piece = node.disk[start : start + SECTOR_BYTES]
        how = self.chance.random()
        if how < 0.4 and piece:
            piece[self.chance.randrange(len(piece))] ^= 1 << self.chance.randrange(8)
        else:
            piece = bytearray(len(piece)) if how < 0.7 else bytearray(self.chance.randbytes(len(piece)))
        node.disk[start : start + SECTOR_BYTES] = piece

    def delete_folder(self, folder: str) -> Folder:
        """Delete the folder and all that is in it, at once and for good, and return it for `restore_folder`."""
        inside = f"{folder}/"
        gone = Folder(
            folder,
            {path: node for path, node in self._nodes.items() if path.startswith(inside)},
            {path: node for path, node in self._disk_names.items() if path.startswith(inside)},
            [change for change in self._unsynced_names if change[0].startswith(inside)],
        )
        self._nodes = {path: node for path, node in self._nodes.items() if path not in gone.nodes}
        self._disk_names = {path: node for path, node in self._disk_names.items() if path not in gone.disk_names}
        self._unsynced_names = [change for change in self._unsynced_names if change not in gone.unsynced_names]
        self._gone.add(folder)
        self._changes += 1
        return gone

    def restore_folder(self, gone: Folder) -> None:
        """Put a deleted folder back as it was, as if it had only been moved."""
        self._nodes.update(gone.nodes)
        self._disk_names.update(gone.disk_names)
        self._unsynced_names += gone.unsynced_names
        self._gone.discard(gone.folder)
        self._changes += 1

    @property
    def log(self) -> list[str]:
        """The last thousand calls."""
        return [f"{name} {path.rpartition('/')[2]}" for name, path in self._log]

    def used(self) -> int:
        nodes = {id(node): node for node in self._nodes.values()}
        nodes.update({id(node): node for node, _ in self._open.values()})
        return sum([node.allocated for node in nodes.values()])

    def resume(self) -> None:
        """Let the folders answer that are stalled, and the calls return that hang."""
        self.stalled.clear()
        self.stalls_at.clear()
        late, self.late = self.late, []
        for call in late:
            with contextlib.suppress(OSError):
                call()

    def begin_to_stall(self, target: object, call: str) -> None:
        folder = self._folder_of(target, call)
        if self.stalls_at.get(folder) == call:
            del self.stalls_at[folder]
            self.stalled.add(folder)

    def hangs(self, target: object, call: str) -> bool:
        return self._folder_of(target, call) in self.stalled

    def _folder_of(self, target: object, call: str) -> str:
        path = target if isinstance(target, str) else self._open[target][1]  # type: ignore[index]
        return path if call == "fsync_dir" else path.rpartition("/")[0]

    def duplicate(self, target: object) -> object:
        """Return another handle of an open file: the call that hangs on it has it until it returns."""
        return self._handle(*self._open[target]) if isinstance(target, int) else target

    # -- the Files interface

    def make_folder(self, folder: str) -> None:
        self._call("make_folder", folder)
        self._gone.discard(folder)
        self._raise_after()

    def lock(self, path: str) -> int | None:
        self._call("lock", path)
        self._check_folder(path)
        node = self._nodes.setdefault(path, _Node())
        if node.lockers:
            return None
        self._raise_after()
        node.lockers += 1
        fd = self._handle(node, path)
        self._locks.add(fd)
        return fd

    def holder(self, path: str) -> str:
        return "in memory"

    def listdir(self, folder: str) -> list[str]:
        self._call("listdir", folder)
        self._check_folder(f"{folder}/")
        self._raise_after()
        return [path.rpartition("/")[2] for path in self._nodes if path.startswith(f"{folder}/")]

    @stalls
    def create(self, path: str) -> int:
        self._call("create", path)
        self._check_folder(path)
        if path in self._nodes:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        node = _Node()
        self._rename_to(path, node)
        self._raise_after()
        return self._handle(node, path)

    def open(self, path: str) -> int:
        self._call("open", path)
        self._note_read(path)
        if path not in self._nodes:
            self.missed.append(path)
        node = self._find(path)
        self._raise_after()
        return self._handle(node, path)

    def close(self, fd: int) -> None:
        node, _ = self._open.pop(fd)
        if fd in self._locks:
            self._locks.discard(fd)
            node.lockers -= 1

    def size(self, fd: int) -> int:
        return len(self._open[fd][0].cache)

    def is_same(self, fd: int, path: str) -> bool:
        return self._nodes.get(path) is self._open[fd][0]

    def stamp(self, folder: str, known: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
        return None if folder in self._gone else (self._changes,)

    def is_read_only(self, folder: str) -> bool:
        return self.is_read_only_now

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        node, path = self._open[fd]
        self._call("pread", path)
        self._note_read(path)
        self._raise_after()
        return bytes(node.cache[offset : offset + length])

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        node, path = self._open[fd]
        data = bytes(data)
        try:
            limit = self._call("pwrite", path)
        except MachineStopped:
            self._stopped_write = (node, offset, data)
            raise
        if limit == _MISDIRECT:
            self._misdirect(node, path, data, offset)
            return len(data)
        count = len(data) if limit is None else min(limit, len(data))
        if self.capacity is not None and offset + count > node.allocated:
            room = self.capacity - self.used() + node.allocated - offset
            if count and room <= 0:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            count = min(count, room)
        if count < len(data):
            data = data[:count]
        _apply(node.cache, offset, data)
        node.unsynced.append((offset, data))
        node.allocated = max(node.allocated, len(node.cache))
        self._raise_after()
        return count

    @stalls
    def fdatasync(self, fd: int) -> None:
        node, path = self._open[fd]
        try:
            if self._call("fdatasync", path) == _TORN:
                _apply_some(node.disk, node.unsynced, self.chance)
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        except OSError:
            node.unsynced.clear()
            raise
        node.land()
        self._raise_after()

    @stalls
    def truncate(self, fd: int, length: int) -> None:
        node, path = self._open[fd]
        self._call("truncate", path)
        _apply(node.cache, length, None)
        node.unsynced.append((length, None))
        node.allocated = length
        self._raise_after()

    @stalls
    def fallocate(self, fd: int, offset: int, length: int) -> None:
        node, path = self._open[fd]
        self._call("fallocate", path)
        end = offset + length
        if self.capacity is not None and self.used() + max(0, end - node.allocated) > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        node.allocated = max(node.allocated, end)
        if end > len(node.cache):
            node.cache.extend(bytes(end - len(node.cache)))
            node.unsynced.append((end, b""))
        self._raise_after()

    @stalls
    def rename(self, old: str, new: str) -> None:
        self._call("rename", old)
        node = self._find(old)
        del self._nodes[old]
        self._rename_to(new, node, old)
        self._raise_after()

    @stalls
    def unlink(self, path: str) -> None:
        self._call("unlink", path)
        self._find(path)
        del self._nodes[path]
        self._unsynced_names.append((path, None, ""))
        self._changes += 1
        self._raise_after()

    @stalls
    def fsync_dir(self, folder: str) -> None:
        self._call("fsync_dir", folder)
        self._check_folder(f"{folder}/")
        others = []
        for change in self._unsynced_names:
            if change[0].rpartition("/")[0] == folder:
                _change_names(self._disk_names, *change)
            else:
                others.append(change)
        self._unsynced_names = others
        self._raise_after()

    def salt(self) -> int:
        self._salt += 0x9E3779B1
        return self._salt & 0xFFFFFFFF

    # --

    def _stop(self) -> NoReturn:
        self.is_dead = True
        if self.on_stop is not None:
            self.on_stop()
        raise MachineStopped

    def _call(self, name: str, path: str) -> int | None:
        """Count the call and let the faults strike. Return the bytes after which a write stops short, if it does."""
        if self.is_dead:
            raise MachineStopped
        self.calls += 1
        self._log.append((name, path))
        if self.latency_s:
            self.elapsed_s += self.latency_s.get(name, 0.0)
        if self.dies_at is not None and self.calls >= self.dies_at:
            self._stop()
        if self.is_read_only_now and name in CHANGES:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        self._after = None
        return self._strike(name, path) if self.faults else None

    def _strike(self, name: str, path: str) -> int | None:
        limit: int | None = None
        for fault in list(self.faults):
            if (
                self.calls < fault.at
                or (fault.call and fault.call != name)
                or fault.path not in path
                or _FITS.get(fault.kind, name) != name
                or (fault.kind == "read_only" and name not in CHANGES)
                or (fault.probability < 1.0 and self.chance.random() >= fault.probability)
            ):
                continue
            self.struck.append((self.calls, f"{name} {path}", fault))
            at = self.faults.index(fault)
            self.faults[at : at + 1] = [replace(fault, count=fault.count - 1)] if fault.count > 1 else []
            limit = self._suffer(fault, path)
        return limit

    def _suffer(self, fault: DiskFault, path: str) -> int | None:
        number = int(fault.value)
        match fault.kind:
            case "error" | "read_only":
                number = errno.EROFS if fault.kind == "read_only" else number or errno.EIO
                raise OSError(number, os.strerror(number), path)
            case "done_error":
                self._after = OSError(number or errno.EIO, os.strerror(number or errno.EIO), path)
            case "stop":
                self._stop()
            case "slow":
                self.elapsed_s += fault.value
            case "room":
                self.capacity = None if number < 0 else self.used() + number
            case "rot":
                paths = sorted(path for path, node in self._disk_names.items() if node.disk)
                if paths:
                    rotten = self.chance.choice(paths)
                    self.rot(rotten, self.chance.randrange(-(-len(self._disk_names[rotten].disk) // SECTOR_BYTES)))
            case "short":
                return number
            case "misdirect":
                return _MISDIRECT
            case "torn_sync":
                return _TORN
        return None

    def _raise_after(self) -> None:
        if self._after is not None:
            error, self._after = self._after, None
            raise error

    def _misdirect(self, node: _Node, path: str, data: bytes, offset: int) -> None:
        """Show the write where it should be, and bring it to another place of the disk."""
        _apply(node.cache, offset, data)
        node.unsynced.append((offset + len(data), b""))  # the file has grown, with a hole
        node.allocated = max(node.allocated, len(node.cache))
        others = [self._disk_names[other] for other in sorted(self._disk_names) if other != path]
        target = self.chance.choice(others) if others and self.chance.random() < 0.5 else node
        spots = (offset - len(data), self.chance.randint(0, len(target.disk)) // SECTOR_BYTES * SECTOR_BYTES, offset)
        spot = max(0, self.chance.choice(spots if target is not node else spots[:2]))
        _apply(target.disk, spot, data[: max(0, len(target.disk) - spot)])

    def _note_read(self, path: str) -> None:
        if self.stalled and self.on_read is not None and (folder := path.rpartition("/")[0]) in self.stalled:
            self.on_read(folder)

    def _check_folder(self, path: str) -> None:
        if self._gone and path.rpartition("/")[0] in self._gone:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _find(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _rename_to(self, path: str, node: _Node, old: str = "") -> None:
        self._nodes[path] = node
        self._unsynced_names.append((path, node, old))
        self._changes += 1

    def _handle(self, node: _Node, path: str) -> int:
        self._fd += 1
        self._open[self._fd] = (node, path)
        return self._fd


_MISDIRECT: Final = -1
_TORN: Final = -2
_FITS: Final = {"torn_sync": "fdatasync", "short": "pwrite", "misdirect": "pwrite"}


def _change_names(names: dict[str, _Node], path: str, node: _Node | None, old: str) -> None:
    if old:
        names.pop(old, None)
    if node is None:
        names.pop(path, None)
    else:
        names[path] = node


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


def _apply_some(content: bytearray, writes: list[tuple[int, bytes | None]], chance: random.Random) -> None:
    """Apply any sectors of the writes."""
    for offset, data in writes:
        likely = chance.random()
        for at, piece in _sectors(offset, data) if data else ((offset, data),):
            if chance.random() < likely:
                _apply(content, at, piece)


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        step = SECTOR_BYTES - (offset + position) % SECTOR_BYTES
        yield offset + position, data[position : position + step]
        position += step
