"""Abandons a file operation that does not return; wraps the files for the writer's thread.

A hung system call cannot be ended. So each operation is counted; when one lasts too long, `leave` makes its caller
raise LeftBehind as soon as it returns, whenever that is, before it does anything else. Since the operation began
nothing has changed except perhaps the file, so another thread can continue with the same Log, in another folder. From
then on every operation on the stalled folder fails at once with ETIMEDOUT, until the folder is found to answer.

`Gate` is the fault that causes a stall: operations on a folder wait until it is opened.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from pairbus.journal.files import Files, Stamp, folder_of

R = TypeVar("R")

PROBE_NAME: Final = "probe"


class LeftBehind(BaseException):
    """The operation took so long that its caller was replaced, and its files now belong to another thread."""


class Gate:
    """Holds back the operations on a folder. Without threads, where waiting would stop everything, the caller is
    abandoned at once."""

    def __init__(self) -> None:
        self.is_threaded = False
        self.folder = ""
        self._opened = threading.Event()

    def shut(self, folder: str) -> None:
        self._opened.clear()
        self.folder = folder

    def open(self) -> None:
        self.folder = ""
        self._opened.set()

    def wait(self, folder: str) -> None:
        """Return when operations on the folder may begin."""
        while self.folder == folder:
            if not self.is_threaded:
                raise LeftBehind
            self._opened.wait()


class WatchedFiles:
    """The files as one thread uses them. `turns` is odd while an operation is under way."""

    def __init__(self, files: Files, gate: Gate, stalled: set[str]) -> None:
        self.turns = 0
        self.is_left = False
        self.stalled = stalled
        self._files = files
        self._gate = gate
        self._target: int | str = ""  # of the operation: a path, a folder or an open file
        self._open: dict[int, str] = {}  # the paths of open files
        # Holds one item during an operation: the thread that removes it, the operation's own or the one that abandons
        # it, may go on. Cheaper than a lock, and each operation pays for it.
        self._right_to_go_on: list[bool] = []

    def leave(self, turn: int) -> bool:
        """Abandon the caller of this operation; return False when the operation has ended meanwhile."""
        if self.turns != turn:
            return False
        try:
            self._right_to_go_on.pop()
        except IndexError:
            return False
        self.is_left = True
        return True

    @property
    def folder(self) -> str:
        """The folder that the present operation is about."""
        target = self._target
        path = target if isinstance(target, str) else self._open.get(target, "")
        return folder_of(path)

    def close_all(self) -> None:
        """Close the files that were open when their user was abandoned."""
        for fd in list(self._open):
            with contextlib.suppress(OSError):
                self._files.close(fd)

    def run(self, target: int | str, call: Callable[..., R], *arguments: Any) -> R:
        """Call a function that may not return. It works on the target, and may change only files."""
        if self.is_left:
            raise LeftBehind
        self._target = target
        self._right_to_go_on.append(True)
        self.turns += 1
        try:
            if self.stalled or self._gate.folder:
                self._wait()
            return call(*arguments)
        except LeftBehind:  # at once, where there are no threads
            self.is_left = True
            raise
        finally:
            self.turns += 1
            try:
                self._right_to_go_on.pop()
            except IndexError:
                raise LeftBehind from None

    def _wait(self) -> None:
        if self.folder in self.stalled:
            raise OSError(errno.ETIMEDOUT, "the folder does not answer")
        self._gate.wait(self.folder)

    # -- the Files interface

    def make_folder(self, folder: str) -> None:
        self.run(f"{folder}/", self._files.make_folder, folder)

    def lock(self, path: str) -> int | None:
        return self.run(path, self._files.lock, path)

    def holder(self, path: str) -> str:
        return self.run(path, self._files.holder, path)

    def listdir(self, folder: str) -> list[str]:
        return self.run(f"{folder}/", self._files.listdir, folder)

    def _opened(self, call: Callable[[str], int], path: str) -> int:
        fd = call(path)
        self._open[fd] = path
        return fd

    def create(self, path: str) -> int:
        return self.run(path, self._opened, self._files.create, path)

    def open(self, path: str) -> int:
        return self.run(path, self._opened, self._files.open, path)

    def _closed(self, fd: int) -> None:
        # Its number is free from here on, even if the call does not return: it may be somebody else's by then.
        self._target = self._open.pop(fd, "")
        self._files.close(fd)

    def close(self, fd: int) -> None:
        self.run(fd, self._closed, fd)

    def size(self, fd: int) -> int:
        return self.run(fd, self._files.size, fd)

    def is_same(self, fd: int, path: str) -> bool:
        return self.run(path, self._files.is_same, fd, path)

    def stamp(self, folder: str, known: Stamp = None) -> Stamp:
        return self.run(f"{folder}/", self._files.stamp, folder, known)

    def is_read_only(self, folder: str) -> bool:
        return self.run(f"{folder}/", self._files.is_read_only, folder)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        return self.run(fd, self._files.pread, fd, length, offset)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        return self.run(fd, self._files.pwrite, fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self.run(fd, self._files.fdatasync, fd)

    def truncate(self, fd: int, length: int) -> None:
        self.run(fd, self._files.truncate, fd, length)

    def fallocate(self, fd: int, offset: int, length: int) -> None:
        self.run(fd, self._files.fallocate, fd, offset, length)

    def rename(self, old: str, new: str) -> None:
        self.run(new, self._files.rename, old, new)

    def unlink(self, path: str) -> None:
        self.run(path, self._files.unlink, path)

    def fsync_dir(self, folder: str) -> None:
        self.run(f"{folder}/", self._files.fsync_dir, folder)

    def salt(self) -> int:
        return self._files.salt()


def see_whether_it_answers(files: Files, gate: Gate, folder: str) -> None:
    """Return when the folder has taken a file, synced it and removed it, or refused to: it answers."""
    gate.wait(folder)
    path = f"{folder}/{PROBE_NAME}"
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            files.unlink(path)  # of a process that was killed
        fd = files.create(path)
        try:
            files.pwrite(fd, b"\0", 0)
            files.fdatasync(fd)
        finally:
            files.close(fd)
            files.unlink(path)
        files.fsync_dir(folder)
