"""Encodes and decodes the journal's bytes: segment headers and records. Pure.

Segment header, 64 bytes, little endian:

    8s magic "PBJOURNL" | H version | H flags | I salt | Q number | Q first lsn | Q previous number | Q previous end |
    Q journal | 4 zero | I crc32 of the 60 bytes before

Version 1 has no `journal` (0). Version 2 is that of a journal with a standby folder (standby.py): `journal` is its
identity, and a version of pairbus that knows nothing of standby folders refuses it instead of reading half of it.

`previous number` and `previous end` chain the segments: the previous one is valid exactly up to that offset, whatever
its file holds beyond (a failed write that could not be cut away, preallocated zeros). 0 means none. Flag 1: it was not
synced up to there (durability none, after a failed write), so that damage in it is no surprise.

Record, 28 bytes and the payload:

    H magic | B kind | B flags | I payload length | I synced | Q lsn | I crc32 of the payload | I crc32 of the 24 bytes
    before, seeded with the segment's salt

`synced` is the offset up to which this segment was known to be on the disk when the record was written. It tells a
torn tail from lost data: a bad spot that a later record calls synced was once confirmed. The salt makes sure that
journal bytes inside a payload (a message may carry anything) are never taken for records of this segment.
A MARK record has no payload and no meaning of its own: it only carries `synced`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from pairbus.journal.errors import FormatError

VERSIONS = (1, 2)
SEGMENT_MAGIC = b"PBJOURNL"
SEGMENT_HEADER_BYTES = 64
RECORD_MAGIC = 0xB5A6
RECORD_HEADER_BYTES = 28
RECORD_BYTES_MAX = 256 * 1024 * 1024
SEGMENT_BYTES_MAX = 2**32 - 1 - RECORD_BYTES_MAX
MARK = 1

_SEGMENT = Struct("<8sHHIQQQQQ4x")
_HEAD = Struct("<HBBIIQI")
_FULL = Struct("<HBBIIQII")
_U32 = Struct("<I")
_MAGIC_BYTES = RECORD_MAGIC.to_bytes(2, "little")
_HEAD_BYTES = _HEAD.size


@dataclass(slots=True, eq=False)
class Record:
    """One replayed record; `offset` is where its payload starts in the segment's file."""

    lsn: int
    kind: int
    payload: bytes
    segment: int
    offset: int

    def __repr__(self) -> str:
        return f"<Record {self.lsn} kind {self.kind}, {len(self.payload)} bytes at {self.segment}:{self.offset}>"


class SegmentHeader(NamedTuple):
    number: int
    salt: int
    first_lsn: int
    previous_number: int
    previous_end: int
    previous_synced: bool = True
    journal: int = 0  # the identity of a journal with a standby folder


def encode_segment_header(header: SegmentHeader) -> bytes:
    head = _SEGMENT.pack(
        SEGMENT_MAGIC,
        VERSIONS[header.journal > 0],
        0 if header.previous_synced else 1,
        header.salt,
        header.number,
        header.first_lsn,
        header.previous_number,
        header.previous_end,
        header.journal,
    )
    return head + _U32.pack(crc32(head))


def decode_segment_header(data: bytes, name: str) -> SegmentHeader | None:
    """Return the header, or None when it is torn or damaged; raise FormatError for that of another format."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, version, flags, salt, number, first_lsn, previous_number, previous_end, journal = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC or _U32.unpack_from(data, SEGMENT_HEADER_BYTES - 4)[0] != crc32(data[:60]):
        return None
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise FormatError(f"{name} has journal format {version}; this version of pairbus reads the formats {known}")
    return SegmentHeader(number, salt, first_lsn, previous_number, previous_end, not flags & 1, journal)


def frame(salt: int, synced: int, lsn: int, kind: int, payload: bytes, flags: int = 0) -> bytes:
    """Return the record's 28-byte header; the payload follows it as it is."""
    head = _HEAD.pack(RECORD_MAGIC, kind, flags, len(payload), synced, lsn, crc32(payload))
    return head + _U32.pack(crc32(head, salt))


class Decoded(NamedTuple):
    """What one buffer held. `position` is where decoding stopped; `need` is the bytes that the next record wants from
    there when the buffer ended first; `bad` says that the bytes there are no valid record; `synced` is the last
    record's."""

    records: list[Record]
    position: int
    need: int
    bad: bool
    synced: int
    lsn: int


def decode(buffer: bytes, salt: int, segment: int, base: int, after_lsn: int, synced: int = 0) -> Decoded:
    """Return all whole records from the buffer's start; `base` is the buffer's offset in the file.

    Marks and repeats (lsn not above `after_lsn`) are passed over.
    """
    records: list[Record] = []
    add, unpack, crc, view = records.append, _FULL.unpack_from, crc32, memoryview(buffer)
    size, position, need, bad = len(buffer), 0, 0, False
    while True:
        start = position + RECORD_HEADER_BYTES
        if start > size:
            need = RECORD_HEADER_BYTES
            break
        magic, kind, flags, length, known, lsn, payload_crc, head_crc = unpack(buffer, position)
        if (
            magic != RECORD_MAGIC
            or length > RECORD_BYTES_MAX
            or known > base + position  # written for a place further on
            or crc(view[position : position + _HEAD_BYTES], salt) != head_crc
        ):
            bad = True
            break
        end = start + length
        if end > size:
            need = RECORD_HEADER_BYTES + length
            break
        payload = buffer[start:end]
        if crc(payload) != payload_crc:
            bad = True
            break
        if lsn > after_lsn and not flags & MARK:
            add(Record(lsn, kind, payload, segment, base + start))
            after_lsn = lsn
        synced = known
        position = end
    return Decoded(records, position, need, bad, synced, after_lsn)


class RecordLocation(NamedTuple):
    """A valid record header found by searching; `end` is where its record ends, `whole` that its payload is valid."""

    position: int
    synced: int
    end: int
    whole: bool


def find(buffer: bytes, salt: int, position: int) -> RecordLocation | None:
    """Return the next valid record header at or after `position`. The header's own checksum is salted, so a payload
    that imitates one costs a comparison and nothing more."""
    size = len(buffer)
    while True:
        place = buffer.find(_MAGIC_BYTES, position)
        if place < 0 or place + RECORD_HEADER_BYTES > size:
            return None
        _, _, _, length, synced, _, payload_crc, head_crc = _FULL.unpack_from(buffer, place)
        if length <= RECORD_BYTES_MAX and crc32(buffer[place : place + _HEAD_BYTES], salt) == head_crc:
            start = place + RECORD_HEADER_BYTES
            payload = memoryview(buffer)[start : start + length]
            return RecordLocation(
                place, synced, start + length, len(payload) == length and crc32(payload) == payload_crc
            )
        position = place + 1
