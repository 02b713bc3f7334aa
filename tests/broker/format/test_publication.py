from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.format import records
from pairbus.broker.format.publication import (
    CopyEntry,
    pack_copy,
    pack_new_copy,
    pack_publication,
    read_publish,
    repack_publication,
)
from pairbus.broker.format.records import RecordError

HEADER = b"\x41\x40\x40\x40"
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
times = st.floats(0, 1e12) | st.just(math.inf)
copies = st.tuples(u32, u64, times, u32, st.sampled_from(sorted(records.PLACES)), st.binary(max_size=20))
publications = st.tuples(
    u64,
    times,
    st.binary(max_size=20),
    st.none() | st.text(max_size=20),
    st.integers(0, 2**16 - 1),
    u32,
    st.binary(max_size=40),
    st.lists(copies, max_size=4),
)


@given(u32, st.lists(publications, max_size=3), st.booleans())
def test_what_is_packed_is_read_back(id: int, told: list[tuple[object, ...]], with_seen: bool) -> None:
    payload = records.pack_batch_head(id, len(told))
    for *head, content, own in told:
        payload += pack_publication(*head, len(content), [pack_copy(*each) for each in own]) + content  # type: ignore
    if with_seen:
        payload += records.pack_seen(7.0, [b"k" * records.KEY_BYTES])
    topic_id, read, seen = read_publish(payload)
    assert (topic_id, len(read)) == (id, len(told))
    assert (seen is not None) == with_seen
    for publication, (*head, content, own) in zip(read, told, strict=True):
        assert list(publication[:6]) == head
        at = publication.content_offset
        assert payload[at : at + publication.content_length] == content
        for entry, (*fields, changes) in zip(publication.copies, own, strict=True):  # type: ignore[call-overload]
            assert list(entry[:5]) == fields
            assert payload[entry.changes_offset : entry.changes_offset + entry.changes_length] == changes
        kept = own[:2]
        repacked = repack_publication(publication, [pack_copy(*each) for each in kept])
        assert repacked == pack_publication(*head, len(content), [pack_copy(*each) for each in kept])  # type: ignore[call-arg]


def test_a_new_copy_is_active_and_has_failed_no_delivery() -> None:
    head = pack_publication(0, 5.0, HEADER, None, 0, 0, 1, [pack_new_copy(3, 4, math.inf)])
    _, (publication,), _ = read_publish(records.pack_batch_head(2, 1) + head + b"x")
    assert publication.copies == [CopyEntry(3, 4, math.inf, 0, records.ACTIVE, publication.content_offset, 0)]


@given(st.data())
def test_a_record_that_is_cut_or_longer_is_refused(data: st.DataObject) -> None:
    head = pack_publication(0, 5.0, HEADER, "s", 0, 0, 9, [pack_new_copy(3, 4, 9.0), pack_copy(5, 6, 9.0, 1, 1, b"c")])
    whole = records.pack_batch_head(2, 1) + head + b"x" * 9
    assert len(read_publish(whole)[1]) == 1
    with pytest.raises(RecordError):
        read_publish(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(RecordError):
        read_publish(whole + b"more")


def test_text_that_is_none_is_refused() -> None:
    head = pack_publication(0, 5.0, HEADER, "ss", 0, 0, 0, []).replace(b"ss", b"\xff\xff")
    with pytest.raises(RecordError, match="PUBLISH record"):
        read_publish(records.pack_batch_head(2, 1) + head)
