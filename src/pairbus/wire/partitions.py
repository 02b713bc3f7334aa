"""Finds messages by sequence number where an entity may be partitioned. Pure.

See docs/reference/protocol.md#partitioned-entities: the top 16 bits of a number are the partition, the others count
within it from 1. An entity without partitions has only partition 0, so callers need not know beforehand which kind it
is.

A search is a generator: it yields a number, is sent the number of the first message from there on, or None, and returns
what it found. `ask` and `ask_async` run one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Final, NamedTuple, TypeVar

PARTITION_SHIFT: Final = 48
NUMBER_MAX: Final = 2**63 - 1
_COUNT_MASK: Final = (1 << PARTITION_SHIFT) - 1
T = TypeVar("T")
Search = Generator[int, int | None, T]


class Range(NamedTuple):
    """Sequence numbers, both ends included."""

    first: int
    last: int

    @property
    def span(self) -> int:
        return self.last - self.first + 1


def partition_of(number: int) -> int:
    return number >> PARTITION_SHIFT


def count_of(number: int) -> int:
    """Return the part of a number that counts within its partition."""
    return number & _COUNT_MASK


def number_of(partition: int, count: int) -> int:
    return (partition << PARTITION_SHIFT) + count


def end_of(partition: int) -> int:
    """Return the last number that a partition could have."""
    return number_of(partition, _COUNT_MASK)


def search_heads(places: Mapping[int, int], first: int = 1, last: int = NUMBER_MAX) -> Search[dict[int, int]]:
    """Find, for each partition, the first message from its place on; one without a place begins with its first number.

    Asks about once for each partition that holds messages. Those below `first` and above `last` are passed over.
    """

    def place(partition: int) -> int:
        return max(first, places.get(partition, number_of(partition, 1)))

    found: dict[int, int] = {}
    partition = partition_of(first)
    while partition <= partition_of(last):
        asked = place(partition)
        number = yield asked
        if number is None or not asked <= number <= last:
            break
        there = partition_of(number)
        if number >= place(there):
            found[there] = number
            partition = there + 1
        else:
            partition = there
    return found


def search_range(first: int, last: int) -> Search[Range | None]:
    """Find the first and the last message between two numbers of one partition; asks some sixty times at most."""
    lowest = yield first
    if lowest is None or lowest > last:
        return None
    highest, step = lowest, 1
    while highest < last:
        found = yield highest + step
        if found is None or found > last:
            if step == 1:
                break
            step = 1 if step < 4 else step // 4
        else:
            highest = found
            step *= 2
    return Range(lowest, highest)


def search_ranges(places: Mapping[int, int], first: int = 1, last: int = NUMBER_MAX) -> Search[dict[int, Range]]:
    """Find the first and the last message of each partition, from its place on."""
    found: dict[int, Range] = {}
    for partition, head in (yield from search_heads(places, first, last)).items():
        inside = yield from search_range(head, min(last, end_of(partition)))
        if inside is not None:  # None where it was taken away meanwhile
            found[partition] = inside
    return found


def ask(search: Search[T], first_from: Callable[[int], int | None]) -> T:
    """Run a search with somebody to ask."""
    try:
        number = next(search)
        while True:
            number = search.send(first_from(number))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def ask_async(search: Search[T], first_from: Callable[[int], Awaitable[int | None]]) -> T:
    try:
        number = next(search)
        while True:
            number = search.send(await first_from(number))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
