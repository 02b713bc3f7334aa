"""Files in memory that fail on purpose and know what a power cut would leave.

It keeps apart what a running system shows (the cache) and what is on the disk. A write counts as on the disk only after
an fdatasync of its file, a name only after an fsync of the folder. As on Linux, a failed fdatasync forgets what it had
to write: the cache still shows it, a later fdatasync succeeds and brings none of it to the disk.

`fault` is asked before every call: it may raise an OSError, or return a number of bytes after which a write stops
short. `capacity` is the disk's size in bytes. `dies_at` is the number of the call in which the machine stops. With
`failed_sync_lands` an fdatasync that fails has brought everything to the disk all the same.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Protocol

Fault = Callable[[str, str], "int | None"]
SECTOR_BYTES = 64  # small, so that short records tear too


class MachineStopped(BaseException):
    """The machine is off: no call is answered any more."""


class Chance(Protocol):
    """As random.Random."""

    def random(self) -> float: ...
    def randint(self, a: int, b: int, /) -> int: ...


class _Node:
    __slots__ = ("allocated", "cache", "disk", "lockers", "unsynced")

    def __init__(self, content: bytes = b"") -> None:
        self.cache = bytearray(content)
        self.disk = content
        self.unsynced: list[tuple[int, bytes | None]] = []  # writes, and truncations as (length, None)
        self.allocated = len(content)
        self.lockers = 0

    def copy(self) -> _Node:
        """Return a copy without the locks."""
        twin = _Node(self.disk)
        twin.cache, twin.unsynced, twin.allocated = bytearray(self.cache), list(self.unsynced), self.allocated
        return twin


class SimulatedDisk:
    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.fault: Fault | None = None
        self.failed_sync_lands = False
        self.dies_at: int | None = None
        self.is_dead = False
        self.calls = 0
        self.log: list[str] = []
        self._nodes: dict[str, _Node] = {}
        self._disk_names: dict[str, _Node] = {}
        self._unsynced_names: list[tuple[str, _Node | None, str]] = []
        self._open: dict[int, tuple[_Node, str]] = {}
        self._fd = 2
        self._locks: set[int] = set()
        self._salt = 0

    # -- what a test asks for

    def power_cut(self, chance: Chance | None = None, *, everything: bool = False) -> SimulatedDisk:
        """Return what the disk holds after the power is cut now. Of what is not synced: nothing; with `everything` all
        of it; with `chance` any sectors of any writes, and the folder's changes up to any point."""
        after = SimulatedDisk(self.capacity)
        after._salt = self._salt
        names = dict(self._disk_names)
        changes = self._unsynced_names
        if chance is not None:
            changes = changes[: chance.randint(0, len(changes))]
        elif not everything:
            changes = []
        for path, node, old in changes:
            _change_names(names, path, node, old)
        for path, node in names.items():
            fresh = _Node(bytes(_landed(node, chance, everything)))
            after._nodes[path] = after._disk_names[path] = fresh
        return after

    def kill(self) -> SimulatedDisk:
        """Return what a killed process leaves on a machine that goes on: the cache stays, locks and open files go."""
        after = SimulatedDisk(self.capacity)
        after._salt = self._salt
        twins: dict[int, _Node] = {}

        def twin(node: _Node) -> _Node:
            return twins.setdefault(id(node), node.copy())

        after._nodes = {path: twin(node) for path, node in self._nodes.items()}
        after._disk_names = {path: twin(node) for path, node in self._disk_names.items()}
        after._unsynced_names = [(path, node and twin(node), old) for path, node, old in self._unsynced_names]
        return after

    def content(self, path: str) -> bytearray:
        """Return the cache's content, to read or to damage."""
        return self._nodes[path].cache

    def used(self) -> int:
        return sum(node.allocated for node in self._all_nodes())

    def _all_nodes(self) -> list[_Node]:
        nodes = {id(node): node for node in self._nodes.values()}
        nodes.update({id(node): node for node, _ in self._open.values()})
        return list(nodes.values())

    # -- the Files interface

    def make_folder(self, folder: str) -> None:
        self._call("make_folder", folder)

    def lock(self, path: str) -> int | None:
        self._call("lock", path)
        node = self._nodes.setdefault(path, _Node())
        if node.lockers:
            return None
        node.lockers += 1
        fd = self._handle(node, path)
        self._locks.add(fd)
        return fd

    def holder(self, path: str) -> str:
        return "in memory"

    def listdir(self, folder: str) -> list[str]:
        self._call("listdir", folder)
        return [path.rpartition("/")[2] for path in self._nodes if path.startswith(f"{folder}/")]

    def create(self, path: str) -> int:
        self._call("create", path)
        if path in self._nodes:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        node = _Node()
        self._nodes[path] = node
        self._unsynced_names.append((path, node, ""))
        return self._handle(node, path)

    def open(self, path: str) -> int:
        self._call("open", path)
        return self._handle(self._find(path), path)

    def close(self, fd: int) -> None:
        node, _ = self._open.pop(fd)
        if fd in self._locks:
            self._locks.discard(fd)
            node.lockers -= 1

    def size(self, fd: int) -> int:
        return len(self._open[fd][0].cache)

    def is_same(self, fd: int, path: str) -> bool:
        return self._nodes.get(path) is self._open[fd][0]

    def stamp(self, folder: str) -> tuple[int, ...] | None:
        return None

    def is_read_only(self, folder: str) -> bool:
        return False

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        node, path = self._open[fd]
        self._call("pread", path)
        return bytes(node.cache[offset : offset + length])

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        node, path = self._open[fd]
        try:
            limit = self._call("pwrite", path)
        except MachineStopped:
            node.unsynced.append((offset, bytes(data)))  # any part of it may have got through
            raise
        count = len(data) if limit is None else min(limit, len(data))
        if self.capacity is not None:
            room = self.capacity - self.used() + node.allocated - offset
            if count and room <= 0:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            count = min(count, room)
        _apply(node.cache, offset, data[:count])
        node.unsynced.append((offset, bytes(data[:count])))
        node.allocated = max(node.allocated, len(node.cache))
        return count

    def fdatasync(self, fd: int) -> None:
        node, path = self._open[fd]
        try:
            self._call("fdatasync", path)
        except OSError:
            if self.failed_sync_lands:
                node.disk = bytes(_landed(node, None, True))
            node.unsynced.clear()
            raise
        node.disk = bytes(_landed(node, None, True))
        node.unsynced.clear()

    def truncate(self, fd: int, length: int) -> None:
        node, path = self._open[fd]
        self._call("truncate", path)
        _apply(node.cache, length, None)
        node.unsynced.append((length, None))
        node.allocated = length

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

    def rename(self, old: str, new: str) -> None:
        self._call("rename", old)
        node = self._find(old)
        del self._nodes[old]
        self._nodes[new] = node
        self._unsynced_names.append((new, node, old))

    def unlink(self, path: str) -> None:
        self._call("unlink", path)
        self._find(path)
        del self._nodes[path]
        self._unsynced_names.append((path, None, ""))

    def fsync_dir(self, folder: str) -> None:
        self._call("fsync_dir", folder)
        for path, node, old in self._unsynced_names:
            _change_names(self._disk_names, path, node, old)
        self._unsynced_names.clear()

    def salt(self) -> int:
        self._salt += 0x9E3779B1
        return self._salt & 0xFFFFFFFF

    # --

    def _call(self, name: str, path: str) -> int | None:
        if self.is_dead:
            raise MachineStopped
        self.calls += 1
        self.log.append(f"{name} {path.rpartition('/')[2]}")
        if self.dies_at is not None and self.calls >= self.dies_at:
            self.is_dead = True
            raise MachineStopped
        return self.fault(name, path) if self.fault is not None else None

    def _find(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return node

    def _handle(self, node: _Node, path: str) -> int:
        self._fd += 1
        self._open[self._fd] = (node, path)
        return self._fd


def _change_names(names: dict[str, _Node], path: str, node: _Node | None, old: str) -> None:
    if old:
        names.pop(old, None)
    if node is None:
        names.pop(path, None)
    else:
        names[path] = node


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _landed(node: _Node, chance: Chance | None, everything: bool) -> bytearray:
    content = bytearray(node.disk)
    for offset, data in node.unsynced:
        if chance is None:
            if everything:
                _apply(content, offset, data)
            continue
        likely = chance.random()
        if not data:
            if chance.random() < likely:
                _apply(content, offset, data)
            continue
        for at, piece in _sectors(offset, data):
            if chance.random() < likely:
                _apply(content, at, piece)
    return content


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        step = SECTOR_BYTES - (offset + position) % SECTOR_BYTES
        yield offset + position, data[position : position + step]
        position += step
