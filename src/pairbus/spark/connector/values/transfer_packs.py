"""Packs locked messages into rows for the syphon's sink, many in one row, without decoding them. Pure.

A row holds messages of one entity: their lock tokens one after the other, where each message ends, and the messages one
after the other, byte for byte. Spark handles one row at a time everywhere; with one row per message that would cost
more than moving the message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

TOKEN_BYTES: Final = 16
#: The largest row in bytes, roughly, unless one message has more.
PACK_BYTES: Final = 1024 * 1024
SCHEMA: Final = StructType(
    [StructField("entity", StringType())]
    + [StructField(name, BinaryType()) for name in ("lock_tokens", "ends", "messages")]
)
_ARROW_SCHEMA: Final = pa.schema(
    [pa.field("entity", pa.string())] + [pa.field(name, pa.binary()) for name in SCHEMA.names[1:]]
)


class Locked(NamedTuple):
    """A locked message: its queue, its lock token as the delivery's tag has it, and its bytes."""

    queue: str
    token: bytes
    payload: bytes


def pack(entity: str, messages: Sequence[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    """Yield rows, each as a separate batch, with these messages: (token, payload). Raises ValueError for an invalid
    token, with which nothing could be settled."""
    for some in _by_size(messages):
        tokens, payloads = zip(*some, strict=True)
        if {*map(len, tokens)} != {TOKEN_BYTES}:
            raise ValueError(f"{entity} delivers messages without lock tokens of {TOKEN_BYTES} bytes")
        ends = struct.pack(f"<{len(payloads)}I", *accumulate(map(len, payloads)))
        columns: list[list[str] | list[bytes]] = [[entity], [b"".join(tokens)], [ends], [b"".join(payloads)]]
        yield pa.RecordBatch.from_pydict(dict(zip(SCHEMA.names, columns, strict=True)), schema=_ARROW_SCHEMA)


def _by_size(messages: Sequence[tuple[bytes, bytes]]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    begin = size = 0
    for number, (_, payload) in enumerate(messages):
        if size and size + len(payload) > PACK_BYTES:
            yield messages[begin:number]
            begin, size = number, 0
        size += len(payload)
    if begin < len(messages):
        yield messages[begin:]


def unpack(batch: pa.RecordBatch) -> Iterator[list[Locked]]:
    """Yield the messages of each row of a batch."""
    columns = [batch.column(name).to_pylist() for name in SCHEMA.names]
    for entity, tokens, ends, messages in zip(*columns, strict=True):
        found, begin = [], 0
        for number, (end,) in enumerate(struct.iter_unpack("<I", ends)):
            at = number * TOKEN_BYTES
            found.append(Locked(entity, tokens[at : at + TOKEN_BYTES], messages[begin:end]))
            begin = end
        yield found
