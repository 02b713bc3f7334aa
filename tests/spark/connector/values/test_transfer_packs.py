from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from pairbus.spark.connector.arrow_rows import batches
from pairbus.spark.connector.values.transfer_packs import PACK_BYTES, SCHEMA, Locked, pack, unpack

TOKEN = bytes(range(16))


def roundtrip(entity: str, messages: list[tuple[bytes, bytes]]) -> list[Locked]:
    return [each for batch in pack(entity, messages) for rows in unpack(batch) for each in rows]


@given(st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.binary(max_size=40))))
def test_what_is_packed_is_unpacked_byte_for_byte_and_in_order(messages: list[tuple[bytes, bytes]]) -> None:
    assert roundtrip("orders", messages) == [Locked("orders", *each) for each in messages]


def test_many_messages_are_one_row() -> None:
    (batch,) = pack("orders", [(TOKEN, b"x" * 1000)] * 500)
    assert batch.num_rows == 1
    assert batch.schema.equals(to_arrow_schema(SCHEMA, timezone="UTC"))  # or Spark refuses it


def test_a_row_has_no_more_bytes_than_fit_unless_one_message_has() -> None:
    sizes = [PACK_BYTES // 2, PACK_BYTES // 2, 1, PACK_BYTES + 1, 0, PACK_BYTES]
    found = list(pack("orders", [(TOKEN, b"x" * size) for size in sizes]))
    assert [[len(each.payload) for rows in unpack(batch) for each in rows] for batch in found] == [
        sizes[:2], sizes[2:3], sizes[3:4], sizes[4:],
    ]  # fmt: skip


def test_nothing_is_no_row() -> None:
    assert list(pack("orders", [])) == []


def test_a_delivery_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="orders delivers messages without lock tokens"):
        list(pack("orders", [(b"1", b"x")]))


def test_rows_of_several_entities_in_one_batch_as_spark_hands_them_over() -> None:
    both = pa.Table.from_batches([*pack("a", [(TOKEN, b"1"), (TOKEN, b"22")]), *pack("b", [(TOKEN, b"")])])
    (batch,) = both.combine_chunks().to_batches()
    assert list(unpack(batch)) == [[Locked("a", TOKEN, b"1"), Locked("a", TOKEN, b"22")], [Locked("b", TOKEN, b"")]]


def test_spark_4_0_hands_over_rows() -> None:
    from pyspark.sql import Row

    (batch,) = pack("a", [(TOKEN, b"1")])
    handed = [
        Row(**{name: bytearray(v) if isinstance(v, bytes) else v for name, v in row.items()})
        for row in batch.to_pylist()
    ]
    assert [rows for made in batches(handed) for rows in unpack(made)] == [[Locked("a", TOKEN, b"1")]]
