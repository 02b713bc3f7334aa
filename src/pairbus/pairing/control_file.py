"""Reads the control file of a fleet when it has changed, or calls the function that replaces it.

Checking a file that has not changed is one `stat`. What the content means, and whether a change is to be followed yet,
is decided in `routing/pins.py`. A check may hang, on a network drive or in a user's function, so the health monitors
run each on its own thread, and report one that takes too long.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Final

from pairbus.pairing.errors import ControlFileError
from pairbus.pairing.options import ControlFile
from pairbus.pairing.routing.pins import BYTES_MAX, SETTLED_S, ControlFileLog, Pins

#: Seconds between two looks of a client.
INTERVAL_S: Final = 5.0
#: How long pairing waits for the first look.
FIRST_LOOK_S: Final = 2.0
#: A look that takes longer is reported.
LATE_S: Final = 10.0
#: A file that this many looks in a row have found just changed is reported: it is not followed meanwhile.
CHANGING_LOOKS_MAX: Final = 10


class ControlFileReader:
    """One control file, looked at again and again, never twice at once."""

    def __init__(self, source: ControlFile, wall: Callable[[], float] = time.time) -> None:
        self._source = source
        self._wall = wall
        self._log = ControlFileLog()
        #: The last look found it changed just now: the next one should come soon.
        self.is_changing = False
        self._changing_looks = 0
        self._is_late = False

    def __repr__(self) -> str:
        return f"<ControlFileReader {self._source}: {self._log!r}>"

    def look(self) -> Pins | Exception | None:
        """Return the pins to follow from now on, or why there are none; None if there is no news."""
        self._is_late = self.is_changing = False
        try:
            pins = self._look_at_file(self._source) if isinstance(self._source, Path) else self._ask()
            self._changing_looks = self._changing_looks + 1 if self.is_changing else 0
            if self._changing_looks == CHANGING_LOOKS_MAX:
                raise ControlFileError(
                    f"it was changed again before each of the last {CHANGING_LOOKS_MAX} looks; what it says is followed"
                    f" once it has stood still for {SETTLED_S:g} s"
                )
            return pins
        except BaseException as error:  # whatever the user's function raises, SystemExit too: this thread is ours
            if not self._log.is_news(error):
                return None
            if isinstance(error, Exception):
                return error
            raised = ControlFileError(f"the function that stands for the control file raised {error!r}")
            raised.__cause__ = error
            return raised

    def hangs(self) -> Exception | None:
        """Return what to report about a look that has taken `LATE_S`; None if that was reported before. Any thread may
        call it during the look."""
        self._is_late = True
        if not self._log.is_late():
            return None
        what = "reading it" if isinstance(self._source, Path) else "the function that stands for it"
        return ControlFileError(f"{what} has taken longer than {LATE_S:g} s, and goes on")

    def _ask(self) -> Pins | None:
        assert not isinstance(self._source, Path)
        content = self._source()
        self._log.answered(self._is_late)
        mark = content if isinstance(content, str | bytes) else repr(content)
        return self._log.read(mark, content) if self._log.is_new(mark) else None

    def _look_at_file(self, path: Path) -> Pins | None:
        found = os.stat(path)
        mark = _mark(found)
        self._log.answered(self._is_late)
        if not self._log.is_new(mark):
            return None
        if not self._log.is_settled(mark, self._wall() - found.st_mtime):
            self.is_changing = True
            return None
        if not stat.S_ISREG(found.st_mode):
            raise ControlFileError(f"{path} is no file")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        try:
            content = _read(descriptor)
            if _mark(os.fstat(descriptor)) != mark:  # it is being written, or has been replaced
                self.is_changing = True
                return None
        finally:
            os.close(descriptor)
        return self._log.read(mark, content)


def _read(descriptor: int) -> bytes:
    """Return the content, or if it is too large just enough of it to notice that."""
    content = b""
    while len(content) <= BYTES_MAX and (more := os.read(descriptor, BYTES_MAX + 1 - len(content))):
        content += more
    return content


def _mark(found: os.stat_result) -> Hashable:
    # Device and inode show that a link now leads to another file, which is how Kubernetes updates a ConfigMap.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
