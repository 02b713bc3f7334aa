"""Reads segments back: which files form the journal, and where each of them ends.

This module decides whether a bad spot is a torn tail, which is cut, or lost data. A power cut may leave anything in
bytes that were never synced, in any order of blocks, even whole records after a gap. So a bad spot is a torn tail only
if nothing shows that it was synced; evidence is a later record of the segment whose `synced` lies beyond the spot, or a
next segment, whose header was written after all before it was synced. With evidence it is lost data, and start-up
refuses with JournalCorrupt: confirmed records may be in there. Options.salvage passes over it and notes what was lost.
It writes nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from pairbus.journal.errors import JournalCorrupt, JournalFailed
from pairbus.journal.files import Files
from pairbus.journal.record import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Record,
    SegmentHeader,
    decode,
    decode_segment_header,
    find,
)

SUFFIX = ".segment"
_CHUNK_BYTES = 1024 * 1024
_WAY_OUT = "restore {} from a copy, or open the journal with salvage (--salvage) to go on without the damaged records"


def segment_name(number: int) -> str:
    return f"{number:012d}{SUFFIX}"


def segment_number(name: str) -> int | None:
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != 12 or not stem.isascii() or not stem.isdigit():
        return None
    return int(stem)


def number_in(path: str) -> int:
    """Return the number of the segment at a path."""
    return segment_number(path.rpartition("/")[2]) or 0


class Segment:
    """One segment of the chain; `end` is where its valid records end (None: unknown until it is scanned), `is_sure`
    that it was synced up to there, `start` where a scan begins."""

    __slots__ = ("end", "header", "is_sure", "number", "path", "size", "start", "synced")

    def __init__(self, header: SegmentHeader, path: str, size: int, end: int | None, is_sure: bool = True) -> None:
        self.header = header
        self.number = header.number
        self.path = path
        self.size = size
        self.end = end
        self.is_sure = is_sure and end is not None
        self.start = self.synced = SEGMENT_HEADER_BYTES

    def __repr__(self) -> str:
        return f"<Segment {self.number}: {self.end} of {self.size} bytes>"


class Chain(NamedTuple):
    segments: list[Segment]
    debris: list[str]  # files of segments that never counted: unfinished
    abandoned: list[str]  # likewise, but skipped by the next header
    number_max: int
    notes: list[str]


#: What a segment's file holds, its path and its size; by number.
Headers = dict[int, tuple[SegmentHeader | None, str, int]]


def _read_headers(
    files: Files, folder: str, salvage: bool, headers: Headers, debris: list[str], notes: list[str]
) -> None:
    """Add the segments of a folder to `headers`, and to `debris` those that salvage does not read."""
    names = files.listdir(folder)
    for name in names:
        number = segment_number(name)
        if number is None:
            continue
        path = f"{folder}/{name}"
        fd = files.open(path)
        try:
            header = decode_segment_header(files.pread(fd, SEGMENT_HEADER_BYTES, 0), name)
            problem = ""
            if header is not None and header.number != number:
                problem, remedy = _misnamed(name, segment_name(header.number), names)
            elif number in headers:
                problem, remedy = f"{path} is {headers[number][1]} once more", "move one of them out of its folder"
            if problem:
                if not salvage:
                    way_out = f"or open the folder with salvage (--salvage), which keeps it as {name}.damaged, unread"
                    raise JournalCorrupt(f"{problem}: {remedy}, {way_out}", segment=number, offset=0)
                notes.append(f"{problem}: kept as {name}.damaged, and not read")
                debris.append(path)
                continue
            headers[number] = (header, path, files.size(fd))
        finally:
            files.close(fd)


def survey(files: Files, folder: str, salvage: bool, standby: str | None = None) -> Chain:
    """Read all headers, those in the standby folder too, and follow the chain back from the newest."""
    headers: Headers = {}
    notes: list[str] = []
    debris: list[str] = []
    abandoned: list[str] = []
    _read_headers(files, folder, salvage, headers, debris, notes)
    if standby is not None:
        _read_headers(files, standby, salvage, headers, debris, notes)
    segments: list[Segment] = []
    expected: int | None = None
    end: int | None = None
    is_sure = False
    for number in sorted(headers, reverse=True):
        header, path, size = headers[number]
        if expected is not None and number > expected:
            (debris if header is None else abandoned).append(path)
            continue
        if expected is not None and number < expected:
            problem = f"segment {expected} is missing although segment {number} before it is there"
            if not salvage:
                where = folder if standby is None else f"{folder} or {standby}"
                raise JournalCorrupt(f"{problem}; {_WAY_OUT.format(where)}", segment=expected, offset=0)
            notes.append(problem)
            end = None
        if header is None:
            # Records follow only after the header was synced: a bad header before nothing is an unfinished file.
            if expected is None and _blank(files, path, size):
                debris.append(path)
                continue
            problem = f"segment {number} has a damaged header"
            if not salvage:
                way_out = _WAY_OUT.format(path.rpartition("/")[0])
                raise JournalCorrupt(f"{problem} (offset 0); {way_out}", segment=number, offset=0)
            notes.append(f"{problem}: all its records are lost")
            expected, end = None, None
            debris.append(path)
            continue
        segments.append(Segment(header, path, size, end, is_sure))
        expected, end, is_sure = header.previous_number, header.previous_end, header.previous_synced
        if expected == 0:
            expected = -1  # nothing may come before the first
    segments.reverse()
    return Chain(segments, debris, abandoned, max(headers, default=0), notes)


def _misnamed(name: str, own_name: str, names: list[str]) -> tuple[str, str]:
    """Return what is wrong with a file whose header names another, and what to do about it."""
    if own_name in names:
        return f"{name} is a copy of {own_name}", "move it out of the folder"
    return f"{name} is {own_name} under another name", f"rename it to {own_name}"


def _blank(files: Files, path: str, size: int) -> bool:
    fd = files.open(path)
    try:
        for offset in range(SEGMENT_HEADER_BYTES, size, _CHUNK_BYTES):
            if files.pread(fd, _CHUNK_BYTES, offset).strip(b"\0"):
                return False
        return True
    finally:
        files.close(fd)


def scan(
    files: Files, segment: Segment, after_lsn: int, salvage: bool, notes: list[str], chunk_bytes: int = _CHUNK_BYTES
) -> Generator[list[Record], None, None]:
    """Yield the segment's records, a list per chunk read. Set `segment.end` and `segment.synced` at the end."""
    try:
        fd = files.open(segment.path)
        try:
            yield from _scan(files, fd, segment, after_lsn, salvage, notes, chunk_bytes)
        finally:
            files.close(fd)
    except OSError as error:
        raise JournalFailed(f"segment {segment.number} cannot be read: {error}", errno=error.errno) from error


def _scan(
    files: Files, fd: int, segment: Segment, after_lsn: int, salvage: bool, notes: list[str], chunk_bytes: int
) -> Generator[list[Record], None, None]:
    salt, number = segment.header.salt, segment.number
    end = segment.size if segment.end is None else segment.end
    offset, want, synced = segment.start, chunk_bytes, segment.synced
    while offset < end:
        asked = min(want, end - offset)
        buffer = files.pread(fd, asked, offset)
        found = decode(buffer, salt, number, offset, after_lsn, synced)
        synced, after_lsn = found.synced, found.lsn
        if found.records:
            yield found.records
        offset += found.position
        if offset == end:
            break
        if not found.bad and len(buffer) == asked and offset + found.need <= end:
            want = max(chunk_bytes, found.need)
            continue
        # A record that is damaged, or that goes on beyond the end.
        resume = _judge(files, fd, segment, offset, salvage, notes)
        if resume is None:
            end = offset
            break
        offset, want = resume, chunk_bytes
    segment.end, segment.synced = min(offset, end), synced


def _judge(files: Files, fd: int, segment: Segment, spot: int, salvage: bool, notes: list[str]) -> int | None:
    """Return None where the journal ends at the bad spot, or the offset at which salvage goes on; or raise
    JournalCorrupt."""
    number, end = segment.number, segment.size if segment.end is None else segment.end
    rest = files.pread(fd, max(0, min(segment.size, end) - spot), spot)
    if segment.end is None and not rest.strip(b"\0"):
        return None  # allocated ahead, never written
    known, resume, position = end if segment.is_sure else spot, None, 0
    while (place := find(rest, segment.header.salt, position)) is not None:
        if place.whole:
            known = max(known, place.synced)
            if resume is None and place.position:
                resume = spot + place.position
            position = place.end
        else:
            known = max(known, place.synced)
            position = place.position + RECORD_HEADER_BYTES
    if known <= spot:
        notes.append(f"segment {number}: torn tail of {len(rest.rstrip(bytes(1)))} bytes cut at offset {spot}")
        return None
    problem = f"segment {number} is damaged at offset {spot}, and was synced up to offset {known}"
    if not salvage:
        way_out = _WAY_OUT.format(segment.path.rpartition("/")[0])
        raise JournalCorrupt(f"{problem}: confirmed records would be lost; {way_out}", segment=number, offset=spot)
    lost = (resume if resume is not None else spot + len(rest)) - spot
    notes.append(f"{problem}: {lost} bytes of records are lost")
    return resume
