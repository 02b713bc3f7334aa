from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.journal import FormatError
from pairbus.journal.record import (
    MARK,
    RECORD_HEADER_BYTES,
    SegmentHeader,
    decode,
    decode_segment_header,
    encode_segment_header,
    find,
    frame,
)

HEADER = SegmentHeader(number=7, salt=0xDEADBEEF, first_lsn=42, previous_number=6, previous_end=4096)


def pack(salt: int, payloads: list[bytes], synced: int = 0) -> bytes:
    return b"".join(frame(salt, synced, lsn, lsn % 256, p) + p for lsn, p in enumerate(payloads, 1))


def test_segment_header_round_trip() -> None:
    data = encode_segment_header(HEADER)
    assert len(data) == 64
    assert decode_segment_header(data, "x") == HEADER


def test_a_segment_header_with_any_bit_flipped_is_not_taken() -> None:
    data = encode_segment_header(HEADER)
    for position in range(64):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            assert decode_segment_header(bytes(damaged), "x") is None


def test_another_format_version_is_named() -> None:
    from zlib import crc32

    data = bytearray(encode_segment_header(HEADER))
    data[8] = 3
    data[60:] = crc32(bytes(data[:60])).to_bytes(4, "little")
    with pytest.raises(
        FormatError, match="seg has journal format 3; this version of pairbus reads the formats 1 and 2"
    ):
        decode_segment_header(bytes(data), "seg")


@given(st.lists(st.binary(max_size=100), max_size=10), st.integers(0, 2**32 - 1))
def test_records_round_trip(payloads: list[bytes], salt: int) -> None:
    data = pack(salt, payloads, synced=5)
    found = decode(data, salt, 3, 1000, 0)
    assert [r.payload for r in found.records] == payloads
    assert [r.lsn for r in found.records] == list(range(1, len(payloads) + 1))
    assert all(data[r.offset - 1000 : r.offset - 1000 + len(r.payload)] == r.payload for r in found.records)
    assert found.position == len(data) and not found.bad and found.need == RECORD_HEADER_BYTES


def test_any_bit_flipped_stops_decoding_at_that_record() -> None:
    data = pack(9, [b"first", b"second"])
    second = RECORD_HEADER_BYTES + 5
    for position in range(second, len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            found = decode(bytes(damaged), 9, 1, 0, 0)
            assert [r.payload for r in found.records] == [b"first"]
            assert found.bad or found.need > len(data) - second
            assert found.position == second


def test_cut_anywhere_it_says_how_much_it_needs() -> None:
    data = pack(9, [b"first", b"second"])
    second = RECORD_HEADER_BYTES + 5
    for end in range(second, len(data)):
        found = decode(data[:end], 9, 1, 0, 0)
        assert len(found.records) == 1 and not found.bad and found.position == second
        assert found.need == (28 if end < second + 28 else 34)


def test_marks_and_repeats_are_passed_over() -> None:
    data = frame(1, 64, 5, 0, b"", MARK) + frame(1, 92, 6, 1, b"x") + b"x" + frame(1, 92, 6, 1, b"y") + b"y"
    found = decode(data, 1, 1, 64, 5)
    assert [r.payload for r in found.records] == [b"x"]
    assert found.synced == 92 and found.lsn == 6


def test_find_skips_what_only_looks_like_a_record() -> None:
    inside = frame(1, 4000, 3, 1, b"z") + b"z"  # a message that carries journal bytes of another segment
    data = b"rubbish" + inside + frame(2, 77, 4, 1, b"q") + b"q"
    place = find(data, 2, 0)
    assert place is not None
    assert place.position == 7 + len(inside) and place.synced == 77 and place.whole
    assert find(data, 3, 0) is None
    assert find(data[:-1], 2, 0) == place._replace(whole=False)


def test_repr() -> None:
    assert repr(decode(pack(1, [b"abc"]), 1, 2, 64, 0).records[0]) == "<Record 1 kind 1, 3 bytes at 2:92>"
