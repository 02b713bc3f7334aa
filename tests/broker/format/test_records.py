from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.format import records
from pairbus.broker.format.records import RecordError

ids = st.integers(0, 2**32 - 1)
sequences = st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**32 - 1)
small = st.binary(max_size=40)
times = st.floats(0, 4e9)
session_ids = st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
keys = st.binary(min_size=records.KEY_BYTES, max_size=records.KEY_BYTES)


@given(ids)
def test_ids(id: int) -> None:
    assert records.read_id(records.pack_id(id)) == id
    assert records.read_id(records.pack_deleted(id)) == id
    assert records.read_id(records.pack_id(id) + b"ping") == id


@given(ids, counts, sequences, st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_queue(id: int, revision: int, last: int, description: dict[str, object]) -> None:
    record = records.pack_queue(id, revision, last, description)
    assert records.read_queue(record) == (id, revision, last, description)
    assert records.read_id(record) == id


entries = st.tuples(
    sequences,
    times,
    times | st.just(inf),
    counts,
    st.sampled_from(sorted(records.PLACES)),
    st.binary(max_size=16),
    session_ids,
    st.integers(0, records.PAIRS_MAX),
    st.integers(0, 2**32 - 1),
    small,
    small,
)


@given(ids, st.lists(entries, max_size=5), st.none() | st.tuples(times, st.lists(keys, min_size=1, max_size=3)))
def test_enqueue(id: int, messages: list[tuple[Any, ...]], seen: tuple[float, list[bytes]] | None) -> None:
    record = records.pack_batch_head(id, len(messages))
    for *fields, content in messages:
        record += records.pack_entry(*fields, len(content)) + content  # type: ignore[call-arg]
    if seen is not None:
        record += records.pack_seen(*seen)
    read_id, read, read_seen = records.read_enqueue(record)
    assert read_id == id
    assert len(read) == len(messages)
    for entry, (*fields, changes, content) in zip(read, messages, strict=True):
        assert (*entry[:5], entry.header, entry.session_id, entry.pairs_count, entry.pairs_bytes) == tuple(fields)
        assert record[entry.changes_offset :][: entry.changes_length] == changes
        assert record[entry.content_offset :][: entry.content_length] == content
    if seen is None:
        assert read_seen is None
    else:
        assert read_seen == (seen[0], tuple(seen[1]), len(records.pack_seen(*seen)))


FIRST = records.pack_first(7, 1, 42, 1.5, 9.5, b"@@A@", 2, 9, 3) + b"abc"


def test_the_first_entry_of_a_send_is_an_entry_like_any_other() -> None:
    entry = records.pack_entry(42, 1.5, 9.5, 0, records.ACTIVE, b"@@A@", None, 2, 9, b"", 3)
    assert records.pack_batch_head(7, 1) + entry + b"abc" == FIRST


def test_a_session_without_a_name_is_not_no_session() -> None:
    for session_id in (None, ""):
        entry = records.pack_entry(42, 1.5, 9.5, 0, records.ACTIVE, b"@@A@", session_id, 2, 9, b"", 0)
        assert records.read_enqueue(records.pack_batch_head(7, 1) + entry)[1][0].session_id == session_id


@given(ids, times, st.lists(keys, min_size=1, max_size=5))
def test_seen(id: int, time: float, seen: list[bytes]) -> None:
    record = records.pack_id(id) + records.pack_seen(time, seen)
    assert records.read_id(record) == id
    assert records.read_seen(record) == (time, tuple(seen), len(record) - records.ID_BYTES)


@given(ids, st.lists(st.tuples(sequences, sequences, times, times | st.just(inf)), min_size=1, max_size=5))
def test_activated(id: int, activations: list[tuple[int, int, float, float]]) -> None:
    assert records.read_activated(records.pack_activated(id, activations)) == (id, activations)


@given(ids, session_ids, times, st.none() | small)
def test_session(id: int, session_id: str | None, updated_at: float, state: bytes | None) -> None:
    record = records.pack_session(id, session_id or "", updated_at, state)
    read = records.read_session(record)
    assert read[:3] == (id, session_id or "", updated_at)
    if state is None:
        assert read.state_length is None
    else:
        assert read.state_length == len(state)
        assert record[read.state_offset :] == state


@given(ids, st.lists(sequences, min_size=1, max_size=20))
def test_remove(id: int, numbers: list[int]) -> None:
    assert records.read_remove(records.pack_remove(id, numbers)) == (id, tuple(numbers))


@given(
    ids,
    st.lists(st.tuples(sequences, counts, st.sampled_from(sorted(records.PLACES)), st.none() | small), max_size=8),
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
    (records.read_enqueue, FIRST),
    (records.read_updates, records.pack_updates(1, [(1, 2, 0, b"abc")])[0]),
    (records.read_session, records.pack_session(1, "a", 1.5, b"abc")),
    (records.read_activated, records.pack_activated(1, [(1, 2, 1.5, 2.5)])),
    (records.read_seen, records.pack_id(1) + records.pack_seen(1.5, [b"k" * 16])),
    (records.read_remove, records.pack_remove(1, [2, 3])),
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


@given(
    st.lists(
        st.tuples(st.integers(0, 255), st.binary(max_size=20) | st.tuples(st.binary(max_size=5), st.binary())),
        max_size=5,
    )
)
def test_the_records_of_a_transaction_come_back(parts: list[tuple[int, bytes | tuple[bytes, ...]]]) -> None:
    packed, places, head_bytes = records.pack_transaction(parts)
    payload = b"".join(packed)
    found, known_bytes = records.read_transaction(payload)
    assert [(kind, payload[at : at + length]) for kind, at, length in found] == [
        (kind, part if isinstance(part, bytes) else b"".join(part)) for kind, part in parts
    ]
    assert [at for _, at, _ in found] == places
    assert head_bytes == known_bytes == len(payload) - sum(length for _, _, length in found)
    for cut in range(2, len(payload)):
        if cut not in (at - 5 for at in places):
            with pytest.raises(RecordError):
                records.read_transaction(payload[:cut])
    with pytest.raises(RecordError, match="version"):
        records.read_transaction(b"\x02" + payload[1:])
