"""Decides which standby folder belongs to a journal, and whether the journal may start without it.

The standby folder takes the journal's new segments while its own folder stalls; they stay there until compaction has
emptied them. So a start without them would lose records. A file in the journal's own folder, the pledge, names the
standby folder and has the identity that the headers of all segments carry from then on; a copy of it in the standby
folder distinguishes that folder from an empty one in its place, for instance when its disk is not mounted. The journal
is refused

* without the pledged folder, while that holds segments of the journal, cannot be read, or is not the same;
* with a standby folder that holds segments of another journal;
* with a copy of the pledged folder that lacks what came later. Each start gives both folders a new number, the turn, by
  which a copy from before that start is known. A later one is compared with the folder, where that is still there.

When an empty folder replaces another one, the journal gets a new identity: the former folder keeps its mark, and must
not be mistaken for the present one later.

Salvage skips what is missing, and notes it: the journal then gets a new identity, so that the folder that was left out
is not accepted later. If only the pledge or its copy is damaged, the segments show that they belong to the journal, and
it keeps its identity.
"""

from __future__ import annotations

import contextlib
import errno
from typing import Final, NamedTuple

from pairbus.journal.errors import FormatError, JournalCorrupt
from pairbus.journal.files import Files
from pairbus.journal.record import SEGMENT_HEADER_BYTES, SegmentHeader, decode_segment_header
from pairbus.journal.segment import segment_number

PLEDGE_NAME: Final = "standby"
_PLEDGE_BYTES_MAX: Final = 8192
_COMPARED_BYTES: Final = 1024 * 1024


class Pledge(NamedTuple):
    """What a journal has promised: the identity in its headers, and the standby folder; the number of the last start.
    While a start is under way, the mark has that of the one before, too: the journal's own folder may still have it."""

    identity: int
    folder: str
    turn: int = 0
    turn_before: int | None = None

    def has_mark(self, mark: Pledge | None) -> bool:
        """Return whether this is the mark of the pledged folder."""
        if mark is None or not self.identity or mark.identity != self.identity:
            return False
        return self.turn in (mark.turn, mark.turn_before)


def read_pledge(files: Files, folder: str) -> Pledge | None:
    """Return the pledge in the journal's folder, or its copy in the standby folder; None: there is none."""
    if PLEDGE_NAME not in files.listdir(folder):
        return None
    fd = files.open(f"{folder}/{PLEDGE_NAME}")
    try:
        numbers, _, path = files.pread(fd, _PLEDGE_BYTES_MAX, 0).partition(b"\n")
    finally:
        files.close(fd)
    try:
        identity, *turns = (int(number, 16) for number in numbers.split(b" "))  # no turns: of an earlier version
        return Pledge(identity, path.decode().rstrip("\n"), *turns[:2])
    except ValueError:
        return Pledge(0, "")  # damaged: nobody can say which folder it was


def write_pledge(files: Files, folder: str, pledge: Pledge | None) -> None:
    """Write the pledge whole or not at all, or take it back (None)."""
    path = f"{folder}/{PLEDGE_NAME}"
    new = f"{path}.new"
    for each in (new,) if pledge is not None else (new, path):
        with contextlib.suppress(FileNotFoundError):
            files.unlink(each)
    if pledge is not None:
        fd = files.create(new)
        try:
            turns = [f" {turn:08x}" for turn in (pledge.turn, pledge.turn_before) if turn is not None]
            data = f"{pledge.identity:016x}{''.join(turns)}\n{pledge.folder}\n".encode()
            if files.pwrite(fd, data, 0) != len(data):
                raise OSError(errno.ENOSPC, "a short write of the pledge")
            files.fdatasync(fd)
        finally:
            files.close(fd)
        files.rename(new, path)
    files.fsync_dir(folder)


def check(files: Files, folder: str, standby: str | None, pledge: Pledge | None, *, salvage: bool) -> tuple[int, str]:
    """Raise where records would be lost or those of others be read. Return the identity that the journal keeps, or 0,
    and what salvage passes over, or ""."""
    identity = 0 if pledge is None else pledge.identity
    mark = None if standby is None else read_pledge(files, standby)
    # The folder with the journal's mark is the right one, whatever its name.
    is_marked = pledge is not None and pledge.has_mark(mark)
    problem = ""
    if pledge is not None and is_marked and standby is not None:
        problem = _what_a_copy_lacks(files, pledge, standby)
    elif pledge is not None:
        problem = _what_would_be_lost(files, pledge)
    if problem and not salvage:
        way_out = "put it back and start with it (--standby), or go on without its records with salvage (--salvage)"
        raise JournalCorrupt(f"{problem}; {way_out}", segment=0, offset=0)
    if pledge is not None and not identity:
        newest = max(_headers(files, folder).items(), default=("", None))[1]
        identity = 0 if newest is None else newest.journal
    given = [] if standby is None else [each for each in _headers(files, standby).items() if each[1] is not None]
    for name, header in given:
        if header is not None and header.journal != identity:
            raise FormatError(
                f"the standby folder {standby} holds {name} of another journal than {folder}; "
                "give the standby folder of this data folder, or an empty one"
            )
    if given and not is_marked and not problem:
        raise FormatError(
            f"{standby} is an old copy of a standby folder of {folder}, and out of date; give an empty one"
        )
    if problem and given:
        return identity, f"{problem}; what {standby} holds are segments of this journal, which are read"
    return 0 if problem else identity, problem


def _what_would_be_lost(files: Files, pledge: Pledge) -> str:
    """Return why it is not known that the pledged folder holds none of the journal's segments; "" when it is."""
    if not pledge.folder:
        return "the journal has a standby folder, and the file that says which is damaged"
    try:
        mark = read_pledge(files, pledge.folder)
        inside = _headers(files, pledge.folder)
    except OSError as error:
        return f"the journal's standby folder {pledge.folder} can't be read ({error.strerror}), and may hold records"
    if not pledge.has_mark(mark):
        what = f"{pledge.folder} is not the standby folder that the journal had there last"
        if mark is not None and mark.identity == pledge.identity:
            what += ": it is an old copy, or a copy of the journal used it since"
        return f"{what}. The right one may hold records"
    count = sum(header is None or header.journal == pledge.identity for header in inside.values())
    return f"the standby folder {pledge.folder} holds records of this journal ({count} segments)" if count else ""


def _what_a_copy_lacks(files: Files, pledge: Pledge, standby: str) -> str:
    """Return how a folder with the mark differs from another one with it, the pledged one; "" where it doesn't, or is
    that, or where there is no such folder any more."""
    if standby == pledge.folder:
        return ""
    try:
        if not pledge.has_mark(read_pledge(files, pledge.folder)):
            return ""
        names = {name for each in (standby, pledge.folder) for name in files.listdir(each)}
    except OSError:
        return ""
    segments = [name for name in sorted(names) if segment_number(name) is not None]
    changed = [name for name in segments if not _is_same(files, f"{standby}/{name}", f"{pledge.folder}/{name}")]
    what = f"{standby} is a copy of the standby folder {pledge.folder}, which is there, too, with other records"
    return f"{what} ({changed[0]})" if changed else ""


def _is_same(files: Files, path: str, other: str) -> bool:
    """Return whether both files can be read, and have the same content."""
    fds: list[int] = []
    try:
        for each in (path, other):
            fds.append(files.open(each))
        size = files.size(fds[0])
        if files.size(fds[1]) != size:
            return False
        offsets = range(0, size, _COMPARED_BYTES)
        return all(len({files.pread(fd, _COMPARED_BYTES, offset) for fd in fds}) == 1 for offset in offsets)
    except OSError:
        return False
    finally:
        for fd in fds:
            files.close(fd)


def has_segments(files: Files, folder: str) -> bool:
    """Return whether a folder holds segments, of whichever journal."""
    return any(segment_number(name) is not None for name in files.listdir(folder))


def _headers(files: Files, folder: str) -> dict[str, SegmentHeader | None]:
    """Return the headers of the segments in a folder, by name."""
    headers: dict[str, SegmentHeader | None] = {}
    for name in files.listdir(folder):
        if segment_number(name) is not None:
            fd = files.open(f"{folder}/{name}")
            try:
                headers[name] = decode_segment_header(files.pread(fd, SEGMENT_HEADER_BYTES, 0), name)
            finally:
                files.close(fd)
    return headers
