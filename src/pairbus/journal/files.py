"""Wraps the dozen file operations that the journal uses.

Paths are strings. Every call raises OSError and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from typing import Final, Protocol

#: Two changes of a folder within this time may bear the same time: kernels before 6.13 count in steps of up to 10 ms.
_TIMES_STEP_NS: Final = 20_000_000
# Some file systems keep whole seconds, or every other one.
_COARSE_TIMES_STEP_NS: Final = 2_100_000_000
_REWRITE_BYTES: Final = 4 * 1024 * 1024

Stamp = tuple[int, ...] | None


class Files(Protocol):
    def make_folder(self, folder: str) -> None: ...
    def lock(self, path: str) -> int | None:
        """Return a handle that holds the lock until closed, or None when another process holds it."""

    def holder(self, path: str) -> str: ...
    def listdir(self, folder: str) -> list[str]: ...
    def create(self, path: str) -> int:
        """Create a file, read and write, mode 0600; raise FileExistsError if there is one."""

    def open(self, path: str) -> int: ...
    def close(self, fd: int) -> None: ...
    def size(self, fd: int) -> int: ...
    def is_same(self, fd: int, path: str) -> bool:
        """Return whether the path still leads to the open file."""

    def stamp(self, folder: str, known: Stamp = None) -> Stamp:
        """Return a value that differs after every change of a name in the folder or of the folder itself; None if that
        is not certain. `known` is the one of before: it is the answer as long as nothing has changed."""

    def is_read_only(self, folder: str) -> bool: ...
    def pread(self, fd: int, length: int, offset: int) -> bytes: ...
    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        """Write, perhaps less than asked for, as the system call may, and return how much."""

    def fdatasync(self, fd: int) -> None: ...
    def truncate(self, fd: int, length: int) -> None: ...
    def fallocate(self, fd: int, offset: int, length: int) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def fsync_dir(self, folder: str) -> None: ...
    def salt(self) -> int:
        """Return 32 random bits."""


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def sync_folder(folder: str) -> None:
    """Make the names in the folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: str, mode: int = 0o700) -> None:
    """Create the folder, and those above it that are missing, each synced into the one above it.

    One that exists is synced too: the process that created it may have been killed before it was.
    """
    folder = os.path.abspath(folder)
    above = os.path.dirname(folder)
    if not os.path.isdir(above):
        make_folder(above, 0o777)
    try:
        os.mkdir(folder, mode)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    with contextlib.suppress(PermissionError):  # a folder above that is not ours to read
        sync_folder(above)


class RealFiles:
    """The operating system's files."""

    __slots__ = ()

    def make_folder(self, folder: str) -> None:
        make_folder(folder)
        os.chmod(folder, 0o700)

    def lock(self, path: str) -> int | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            raise
        with contextlib.suppress(OSError):  # the name of the holder is a courtesy; a full disk must not stop us here
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def holder(self, path: str) -> str:
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                return file.read(32).strip() or "unknown"
        except OSError:
            return "unknown"

    def listdir(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def is_same(self, fd: int, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def stamp(self, folder: str, known: Stamp = None) -> Stamp:
        try:
            found = os.stat(folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        stamp = (found.st_dev, found.st_ino, found.st_mtime_ns)
        if stamp == known:  # it was old enough then
            return known
        step_ns = _TIMES_STEP_NS if found.st_mtime_ns % 1_000_000_000 else _COARSE_TIMES_STEP_NS
        return stamp if time.time_ns() - found.st_mtime_ns > step_ns else None

    def is_read_only(self, folder: str) -> bool:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        data = os.pread(fd, length, offset)
        if len(data) == length or not data:
            return data
        pieces = [data]
        have = len(data)
        while have < length:  # one read gives at most 2 GiB, and less after a signal
            data = os.pread(fd, length - have, offset + have)
            if not data:
                break
            pieces.append(data)
            have += len(data)
        return b"".join(pieces)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def fallocate(self, fd: int, offset: int, length: int) -> None:
        os.posix_fallocate(fd, offset, length)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def fsync_dir(self, folder: str) -> None:
        sync_folder(folder)

    def salt(self) -> int:
        return int.from_bytes(os.urandom(4), "little")


def write_all(files: Files, fd: int, data: bytes, offset: int) -> None:
    done = files.pwrite(fd, data, offset)
    while done < len(data):
        more = files.pwrite(fd, data[done:], offset + done)
        if not more:
            raise OSError(errno.EIO, "a write of no bytes")
        done += more


def stamp_in_place(files: Files, fd: int, folder: str, path: str, known: Stamp) -> Stamp:
    """Return the stamp of the folder in which the open file is. Raise OSError when its path no longer leads to it: it
    could be written and synced without an error, but would be gone afterwards."""
    # The file is looked at only after a change in its folder: a stat of a file that is being written makes Linux renew
    # its times with the next write, which costs as much as a tenth of the sync.
    stamp = files.stamp(folder, known)
    if (stamp is None or stamp != known) and not files.is_same(fd, path):
        raise OSError(errno.ESTALE, "the segment's file is no longer in its folder")
    return stamp


def write_again(files: Files, path: str, start: int, end: int, *, cut: bool = True) -> None:
    """Write a part of a file again unchanged, cut the file there, and sync it.

    After a sync that failed, or in another process, the cache may hold what the disk does not, and a sync alone would
    not bring it there."""
    fd = files.open(path)
    try:
        if cut and files.size(fd) > end:
            files.truncate(fd, end)
        for offset in range(start, end, _REWRITE_BYTES):
            write_all(files, fd, files.pread(fd, min(_REWRITE_BYTES, end - offset), offset), offset)
        files.fdatasync(fd)
    finally:
        files.close(fd)
