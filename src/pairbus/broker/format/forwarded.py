"""A forwarded message as bytes: its content as the next entity stores it, and the record that moves it there. Pure.

    14 FORWARD  source id u32, kind u8, count u32, count × sequence u64, the payload of a record of that kind

It means that those messages are gone from the source and that the other record applies, which is the ENQUEUE or PUBLISH
of the same messages, or a SEEN if no subscription takes any of them. It is one record, so that a crash leaves each
message in one place.

A forwarded message gets annotations: the number that it had where it was sent, how often it was forwarded and, for a
dead letter, the entity in which it was dead-lettered. Changes to its properties, such as the reason of a dead letter,
become part of its content, so that the rules of a topic see them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.message import read_properties, split, with_application_properties
from pairbus.amqp.types import Int, Symbol

from .content import (
    DEAD_LETTER_SOURCE,
    ENQUEUE_SEQUENCE,
    HOP_COUNT,
    PARTITION_KEY,
    SCHEDULED_TIME,
    Content,
    Traits,
    stored_pairs,
    with_ttl,
)
from .records import VERSION, misshapen, read_id

_HEAD = struct.Struct(">BIBI")
_OWN: Final = frozenset((ENQUEUE_SEQUENCE, HOP_COUNT, DEAD_LETTER_SOURCE))


class Travelled(NamedTuple):
    """The annotations of a stored message: raw pairs without the forwarding ones, and the forwarding ones."""

    pairs: list[bytes]
    own: dict[str, Any]
    scheduled_ms: int | None
    partition_key: str | None = None

    @property
    def hops(self) -> int:
        return int(self.own.get(HOP_COUNT, 0))


def travelled(content: bytes, pairs_count: int) -> Travelled:
    """Read the annotations at the start of a stored content."""
    pairs: list[bytes] = []
    own: dict[str, Any] = {}
    scheduled_ms = partition_key = None
    for key, start, value_at, end in stored_pairs(content, pairs_count):
        if key in _OWN:
            own[key] = decode(content, value_at)[0]
        else:
            pairs.append(content[start:end])
            if key == SCHEDULED_TIME:
                scheduled_ms = decode(content, value_at)[0]
            elif key == PARTITION_KEY:
                value = decode(content, value_at)[0]
                partition_key = value.decode() if isinstance(value, bytes) else value
    return Travelled(pairs, own, scheduled_ms, partition_key)


def forwarded(
    header: bytes, way: Travelled, bare: bytes, changes: bytes | None, number: int, dead_in: str | None, lifetime: float
) -> Content:
    """Return the content of a message for the next entity. `bare` is its content behind the annotations, `dead_in` the
    path of the entity whose dead letter it is, and `lifetime` how many seconds it has left."""
    sections = split(bare)
    properties = read_properties(bare, sections)
    if changes is not None:
        bare = with_application_properties(bare, sections, decode(changes)[0], ())
    own = {ENQUEUE_SEQUENCE: number, **way.own, HOP_COUNT: Int(way.hops + 1)}
    if dead_in is not None:
        own[DEAD_LETTER_SOURCE] = dead_in
    raw = b"".join((*way.pairs, *(encode(Symbol(key)) + encode(value) for key, value in own.items())))
    scheduled_at = None if way.scheduled_ms is None else way.scheduled_ms / 1000.0
    ttl = None if lifetime == inf else lifetime
    traits = Traits(properties.message_id, properties.group_id, ttl, scheduled_at, way.partition_key)
    return header if ttl is None else with_ttl(header, ttl), len(way.pairs) + len(own), len(raw), raw + bare, traits


def pack_forward(source_id: int, kind: int, sequence_numbers: Sequence[int]) -> bytes:
    """Return a FORWARD record up to the payload of the record within it, which follows."""
    count = len(sequence_numbers)
    return _HEAD.pack(VERSION, source_id, kind, count) + struct.pack(f">{count}Q", *sequence_numbers)


def read_forward(payload: bytes) -> tuple[int, tuple[int, ...], int, int]:
    """Return the source's id, the numbers that are gone there, and kind and place of the record within. Raises
    RecordError."""
    read_id(payload)
    try:
        _, source_id, kind, count = _HEAD.unpack_from(payload)
        numbers = struct.unpack_from(f">{count}Q", payload, _HEAD.size)
    except struct.error:
        raise misshapen("FORWARD record", payload) from None
    return source_id, numbers, kind, _HEAD.size + 8 * count
