from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.connector.places.offsets import (
    Lane,
    admit,
    is_made_again,
    lag,
    of_entity,
    read_offset,
    read_times,
    search_all,
    write_offset,
)
from pairbus.wire.partitions import Range, end_of, number_of, search_heads
from tests.wire.test_partitions import ENTITIES, Asked

PLACES = st.dictionaries(
    st.tuples(st.sampled_from(["orders", "news/Subscriptions/all"]), st.integers(0, 15)), st.integers(1, 2**48 - 1)
).map(lambda counts: {lane: number_of(lane[1], count) for lane, count in counts.items()})


@given(PLACES)
def test_an_offset_is_read_as_it_was_written_and_its_text_is_always_the_same(places: dict[Lane, int]) -> None:
    offset = json.loads(json.dumps(write_offset(places)))
    assert read_offset(offset) == places
    assert json.dumps(write_offset(read_offset(offset))) == json.dumps(offset)


@given(PLACES, PLACES)
def test_times_and_beginnings_are_read_as_they_were_written(places: dict[Lane, int], others: dict[Lane, int]) -> None:
    times = {lane: number % 10**13 for lane, number in others.items()}
    offset = json.loads(json.dumps(write_offset(places, None, times, others)))
    assert (read_offset(offset), read_times(offset)) == (places, times)
    assert read_offset(offset.get("$anew", {})) == others
    assert read_times({"orders": 17}) == {}


@pytest.mark.parametrize(
    ("oldest", "expected"),
    [(None, False), ((16, 1001), True), ((16, 1000), False), ((1, 5), False), ((17, 5000), False)],
)
def test_a_smaller_number_with_a_later_time_tells_that_an_entity_was_made_again(
    oldest: tuple[int, int] | None, expected: bool
) -> None:
    assert is_made_again(17, 1000, oldest) is expected


@pytest.mark.parametrize(
    ("offset", "places"),
    [
        ({"orders": 17}, {("orders", 0): 17}),
        ({"orders": {"0": 17, "3": 5}}, {("orders", 0): 17, ("orders", 3): (3 << 48) + 5}),
        ({"orders": (3 << 48) + 5}, {("orders", 3): (3 << 48) + 5}),
        ({"orders": 17, "$from": {"orders": 12}}, {("orders", 0): 17}),
        ({}, {}),
    ],
)
def test_what_an_offset_stands_for(offset: dict[str, object], places: dict[Lane, int]) -> None:
    assert read_offset(offset) == places


@pytest.mark.parametrize("value", ["17", None, {"3": "5"}, {"three": 5}, [1]])
def test_another_sources_offset_is_refused(value: object) -> None:
    with pytest.raises(InvalidOption, match="the checkpoint holds the offset"):
        read_offset({"orders": value})


@given(
    st.dictionaries(st.sampled_from(["a", "b"]), ENTITIES, min_size=1),
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 15)), max_size=30),
    st.none() | st.integers(1, 50),
)
def test_batch_by_batch_all_of_every_partition_is_read_once_while_more_arrives(
    entities: dict[str, list[int]], arriving: list[tuple[str, int]], rows_max: int | None
) -> None:
    """Nothing is skipped and nothing read twice, whichever partitions the new messages go to."""

    def first_from(entity: str, number: int) -> int | None:
        return Asked(entities[entity])(number)

    def in_lane(lane: Lane, number: int) -> int | None:
        found = first_from(lane[0], number)
        return found if found is not None and found <= end_of(lane[1]) else None

    at = {(entity, 0): 1 for entity in entities}
    seen: list[tuple[str, int]] = []
    for _ in range(500):
        begun = dict(at)
        heads = search_all(entities, lambda entity, begun=begun: search_heads(of_entity(begun, entity)), first_from)
        end = admit(heads, rows_max, in_lane)
        batch = [
            (lane[0], number)
            for lane, stop in end.items()
            for number in entities[lane[0]]
            if at.get(lane, number_of(lane[1], 1)) <= number < stop and number <= end_of(lane[1])
        ]
        assert rows_max is None or len(batch) <= rows_max
        seen += batch
        at = read_offset(json.loads(json.dumps(write_offset(at | end))))
        if arriving:
            entity, partition = arriving.pop()
            if entity in entities:
                own = [n for n in entities[entity] if n <= end_of(partition)]
                highest = max((n for n in own if n >= number_of(partition, 0)), default=number_of(partition, 0))
                entities[entity] = sorted([*entities[entity], highest + 1])
        elif not batch:
            break
    assert sorted(seen) == sorted((entity, n) for entity, numbers in entities.items() for n in numbers)


def test_how_far_a_stream_is_behind() -> None:
    unread = {("a", 0): Range(5, 9), ("a", 3): Range(number_of(3, 1), number_of(3, 2)), ("b", 0): Range(1, 1)}
    assert lag(unread, {("a", 0): 4.0, ("a", 3): 60.0004, ("b", 0): -1.0}) == {
        "messages": 8,
        "oldestAgeSeconds": 60.0,
        "entities": {
            "a": {"messages": 7, "oldestAgeSeconds": 60.0},
            "b": {"messages": 1, "oldestAgeSeconds": 0.0},
        },
    }
    assert lag({}, {}) == {"messages": 0, "oldestAgeSeconds": 0.0, "entities": {}}
