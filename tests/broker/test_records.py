from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker import records
from pairbus.broker.records import RecordError

ids = st.integers(0, 2**32 - 1)
sequences = st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**32 - 1)
small = st.binary(max_size=40)


@given(ids)
def test_ids(id: int) -> None:
    assert records.read_id(records.pack_meta(id)) == id
    assert records.read_id(records.pack_deleted(id)) == id
    assert records.read_id(records.pack_ping(id) + b"ping") == id


@given(ids, counts, sequences, st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_queue(id: int, revision: int, last: int, description: dict[str, object]) -> None:
    record = records.pack_queue(id, revision, last, description)
    assert records.read_queue(record) == (id, revision, last, description)
    assert records.read_id(record) == id


entries = st.tuples(
    sequences,
    st.floats(0, 4e9),
    counts,
    st.sampled_from([records.ACTIVE, records.DEAD]),
    st.binary(max_size=16),
    st.integers(0, records.PAIRS_MAX),
    st.integers(0, 2**32 - 1),
    small,
    small,
)


@given(ids, st.lists(entries, max_size=5))
def test_enqueue(id: int, messages: list[tuple[int, float, int, int, bytes, int, int, bytes, bytes]]) -> None:
    record = records.pack_batch_head(id, len(messages))
    for *fields, content in messages:
        record += records.pack_entry(*fields, len(content)) + content  # type: ignore[arg-type]
    read_id, read = records.read_enqueue(record)
    assert read_id == id
    assert len(read) == len(messages)
    for entry, (number, at, count, place, header, pairs, pairs_bytes, changes, content) in zip(
        read, messages, strict=True
    ):
        assert entry[:7] == (number, at, count, place, header, pairs, pairs_bytes)
        assert record[entry.changes_offset :][: entry.changes_length] == changes
        assert record[entry.content_offset :][: entry.content_length] == content


def test_the_first_entry_of_a_send_is_an_entry_like_any_other() -> None:
    first = records.pack_first(7, 1, 42, 1.5, b"@@A@", 2, 9, 3) + b"abc"
    other = (
        records.pack_batch_head(7, 1) + records.pack_entry(42, 1.5, 0, records.ACTIVE, b"@@A@", 2, 9, b"", 3) + b"abc"
    )
    assert first == other


@given(ids, st.lists(sequences, min_size=1, max_size=20))
def test_remove(id: int, numbers: list[int]) -> None:
    assert records.read_remove(records.pack_remove(id, numbers)) == (id, tuple(numbers))


@given(
    ids,
    st.lists(
        st.tuples(sequences, counts, st.sampled_from([records.ACTIVE, records.DEAD]), st.none() | small), max_size=8
    ),
)
def test_updates(id: int, updates: list[tuple[int, int, int, bytes | None]]) -> None:
    record, places = records.pack_updates(id, updates)
    read_id, read = records.read_updates(record)
    assert read_id == id
    assert [update[:3] for update in read] == [update[:3] for update in updates]
    assert [update.changes_offset for update in read] == places
    for update, (_, _, _, changes) in zip(read, updates, strict=True):
        if changes is None:
            assert update.changes_length is None
        else:
            assert update.changes_length is not None
            assert record[update.changes_offset :][: update.changes_length] == changes


READERS = [
    (records.read_id, records.pack_deleted(1)),
    (records.read_queue, records.pack_queue(1, 2, 3, {"name": "a"})),
    (records.read_enqueue, records.pack_first(7, 1, 42, 1.5, b"@@A@", 2, 9, 3) + b"abc"),
    (records.read_remove, records.pack_remove(1, [2, 3])),
    (records.read_updates, records.pack_updates(1, [(1, 2, 0, b"abc")])[0]),
]


@pytest.mark.parametrize(("read", "record"), READERS)
def test_another_version_is_refused(read: object, record: bytes) -> None:
    with pytest.raises(RecordError, match="version 2"):
        read(b"\x02" + record[1:])  # type: ignore[operator]


@pytest.mark.parametrize(("read", "record"), READERS)
def test_a_record_that_was_cut_is_refused_at_every_byte(read: object, record: bytes) -> None:
    for end in range(len(record)):
        if read is records.read_remove and end == len(record) - 8:
            continue  # one number less is a record too
        with pytest.raises(RecordError):
            read(record[:end])  # type: ignore[operator]


@pytest.mark.parametrize(("read", "record"), READERS[2:])
def test_a_record_with_something_behind_it_is_refused(read: object, record: bytes) -> None:
    with pytest.raises(RecordError):
        read(record + b"\x00")  # type: ignore[operator]
