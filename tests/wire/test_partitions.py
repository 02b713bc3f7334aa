from __future__ import annotations

import asyncio
import bisect
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pairbus.wire.partitions import (
    NUMBER_MAX,
    Range,
    ask,
    ask_async,
    count_of,
    end_of,
    number_of,
    partition_of,
    search_heads,
    search_range,
    search_ranges,
)

COUNTS = st.lists(st.integers(1, 10**6) | st.integers(1, 60), max_size=20).map(lambda n: sorted(set(n)))
PARTITIONS = st.integers(0, 15)
ENTITIES = st.dictionaries(PARTITIONS, COUNTS).map(
    lambda lanes: sorted(number_of(p, count) for p, counts in lanes.items() for count in counts)
)


class Asked:
    """An entity with messages of these numbers, which counts how often it was asked."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers
        self.questions = 0

    def __call__(self, number: int) -> int | None:
        self.questions += 1
        at = bisect.bisect_left(self.numbers, number)
        return self.numbers[at] if at < len(self.numbers) else None

    async def later(self, number: int) -> int | None:
        return self(number)


@given(PARTITIONS, st.integers(1, 2**48 - 1))
def test_a_number_is_a_partition_and_a_count(partition: int, count: int) -> None:
    number = number_of(partition, count)
    assert (partition_of(number), count_of(number)) == (partition, count)
    assert number <= end_of(partition) < number_of(partition + 1, 1)


@given(COUNTS, st.integers(1, 70), st.integers(1, 10**6))
def test_the_range_found_is_the_range_there_is(numbers: list[int], first: int, last: int) -> None:
    inside = [number for number in numbers if first <= number <= last]
    found = ask(search_range(first, last), Asked(numbers))
    assert found == (Range(inside[0], inside[-1]) if inside else None)


def test_a_million_messages_cost_some_sixty_questions() -> None:
    class Million(Asked):
        def __call__(self, number: int) -> int | None:
            self.questions += 1
            return max(number, 1) if number <= 1_000_000 else None

    asked = Million([])
    assert ask(search_range(1, NUMBER_MAX), asked) == Range(1, 1_000_000)
    assert asked.questions < 130


@given(ENTITIES, st.dictionaries(PARTITIONS, st.integers(1, 10**6)), st.integers(0, 5), st.integers(0, 16))
def test_of_each_partition_the_first_and_the_last_from_its_place_on(
    numbers: list[int], counts: dict[int, int], lowest: int, highest: int
) -> None:
    places = {p: number_of(p, count) for p, count in counts.items()}
    first, last = number_of(lowest, 1), end_of(highest)
    expected: dict[int, list[int]] = {}
    for number in numbers:
        if first <= number <= last and number >= places.get(partition_of(number), 0):
            expected.setdefault(partition_of(number), []).append(number)
    asked = Asked(numbers)
    heads = ask(search_heads(places, first, last), asked)
    assert heads == {p: each[0] for p, each in expected.items()}
    assert asked.questions <= 2 * len({partition_of(number) for number in numbers}) + 1
    ranges = {p: Range(each[0], each[-1]) for p, each in expected.items()}
    assert ask(search_ranges(places, first, last), asked) == ranges
    assert asyncio.run(ask_async(search_ranges(places, first, last), asked.later)) == ranges


def test_a_plain_entity_costs_two_questions() -> None:
    asked = Asked(list(range(1, 500)))
    assert ask(search_heads({0: 7}), asked) == {0: 7}
    assert asked.questions == 2


def test_a_peer_that_answers_with_less_than_was_asked_for_ends_the_search() -> None:
    assert ask(search_heads({}, number_of(3, 1)), lambda number: 5) == {}
