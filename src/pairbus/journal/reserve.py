"""The reserve: a file that keeps space on the disk for records that must be written even when the disk is full.

This module creates and fills it. log.py decides when it is used, by renaming it to a segment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from pairbus.journal.errors import from_os_error, no_room
from pairbus.journal.files import Files, write_all
from pairbus.journal.record import SEGMENT_HEADER_BYTES

RESERVE_NAME: Final = "reserve"


class Reserve:
    """`folder` is the journal's own; with a `size` of 0 there is none."""

    def __init__(self, folder: str, size: int, note: Callable[[str], None]) -> None:
        self.path = f"{folder}/{RESERVE_NAME}"
        self.is_there = False
        self._size = size
        self._is_wanted = size > 0
        self._note = note

    def __repr__(self) -> str:
        return f"<Reserve {self.path}: {self._size if self.is_there else 0} of {self._size} bytes>"

    def fill(self, files: Files, unused: int, resize: Callable[[int], None]) -> bool:
        """Allocate all of it, and return False when there is no room for that: it is removed then.

        `unused` are the bytes that the current segment has and does not use; `resize` changes what it has."""
        if not self._is_wanted:
            return True
        fd, made = -1, False
        try:
            if self.is_there:
                fd = files.open(self.path)
                # A power cut may have taken back that it was renamed, and left the header that was written then.
                if files.pread(fd, SEGMENT_HEADER_BYTES, 0).strip(b"\0"):
                    write_all(files, fd, bytes(SEGMENT_HEADER_BYTES), 0)
            else:
                fd = files.create(self.path)
                made = True
            self._allocate(files, fd, unused, resize)
            files.fdatasync(fd)
            self.is_there = True
            return True
        except OSError as error:
            if made or self.is_there:
                self.is_there = False
                with contextlib.suppress(OSError):
                    files.unlink(self.path)
            if no_room(error):
                return False
            self._is_wanted = False
            self._note(f"no reserve for a full disk: {from_os_error(error, 'fallocate')}")
            return True
        finally:
            # Not through the log's files: who was left behind here has others by now.
            if fd >= 0:
                with contextlib.suppress(OSError):
                    files.close(fd)

    def _allocate(self, files: Files, fd: int, unused: int, resize: Callable[[int], None]) -> None:
        """Allocate all of it or raise OSError: from what the disk has, and where that is too little, from what the
        current segment does not use.

        The segment is cut only when the disk has the rest, so that a look in vain costs no room. Should somebody else
        take the room at that moment, the segment gets it back from what the reserve had.
        """
        try:
            files.fallocate(fd, 0, self._size)
            return
        except OSError as error:
            if not no_room(error) or unused <= 0:
                raise
        if unused < self._size:
            files.fallocate(fd, 0, self._size - unused)
        resize(-unused)
        try:
            files.fallocate(fd, 0, self._size)
        except OSError:
            files.truncate(fd, 0)
            resize(unused)
            raise
