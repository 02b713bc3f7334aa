"""Looks at the control file of a fleet, or calls the function that stands for it (P23).

A look at a file that has not changed is one `stat`. What the content means is decided in `routing/pins.py`. A look may
hang, on a network drive or in a user's function, so the health monitors take each on a thread of its own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Final

from pairbus.pairing.errors import ControlFileError
from pairbus.pairing.options import ControlFile
from pairbus.pairing.routing.pins import BYTES_MAX, ControlFileLog, Pins

#: Between two looks of a client.
INTERVAL_S: Final = 5.0
#: So long pairing waits for the first look.
FIRST_LOOK_S: Final = 2.0


class ControlFileReader:
    """One control file, looked at again and again, never twice at once."""

    def __init__(self, source: ControlFile) -> None:
        self._source = source
        self._log = ControlFileLog()

    def __repr__(self) -> str:
        return f"<ControlFileReader {self._source}: {self._log!r}>"

    def look(self) -> Pins | Exception | None:
        """Return the pins to follow from now on, or why there are none; None if there is no news."""
        try:
            return self._look_at_file(self._source) if isinstance(self._source, Path) else self._ask()
        except Exception as error:  # whatever the user's function raises
            return error if self._log.is_news(error) else None

    def _ask(self) -> Pins | None:
        assert not isinstance(self._source, Path)
        content = self._source()
        mark = content if isinstance(content, str | bytes) else repr(content)
        return self._log.read(mark, content) if self._log.is_new(mark) else None

    def _look_at_file(self, path: Path) -> Pins | None:
        found = os.stat(path)
        if not self._log.is_new(_mark(found)):
            return None
        if not stat.S_ISREG(found.st_mode):
            raise ControlFileError(f"{path} is no file")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        try:
            mark = _mark(os.fstat(descriptor))
            content = _read(descriptor)
            if _mark(os.fstat(descriptor)) != mark:
                return None  # it is being written: the next look will find what it has become
        finally:
            os.close(descriptor)
        return self._log.read(mark, content)


def _read(descriptor: int) -> bytes:
    """Return the content, and of one that is too large just enough to tell."""
    content = b""
    while len(content) <= BYTES_MAX and (more := os.read(descriptor, BYTES_MAX + 1 - len(content))):
        content += more
    return content


def _mark(found: os.stat_result) -> Hashable:
    # Device and inode show that a link now leads to another file, which is how Kubernetes updates a ConfigMap.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
