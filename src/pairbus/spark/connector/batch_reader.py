"""Reads for `spark.read.format("servicebus")` what entities hold, in slices that workers peek side by side.

Takes nothing away and locks nothing. The slices are sequence ranges as they stood when the query was planned; what
comes later is not in the result. `plan` decides the slices, `Wanted` which of them a query's filters still need.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pairbus.spark.runtime import connections
from pairbus.wire.sync import WireClient

from .batch_limits import RequestSize
from .options import SEQUENCE_MAX, Address
from .schema import Rows, read

try:  # Spark 4.1 and later
    from pyspark.sql.datasource import (
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )
except ImportError:  # 4.0 pushes no filter down: it filters by itself

    class Filter:  # type: ignore[no-redef]
        pass

    EqualTo = GreaterThan = GreaterThanOrEqual = In = LessThan = LessThanOrEqual = Filter  # type: ignore[misc,assignment]

PEEK_COUNT: Final = 250
SLICE_MESSAGES: Final = 10_000
SLICES_MAX: Final = 64


class Range(NamedTuple):
    """Sequence numbers, both ends included."""

    first: int
    last: int


@dataclass(frozen=True)
class Slice(InputPartition):
    entity: str
    first: int
    last: int


#: Spark wants at least one partition.
NOTHING: Final = Slice("", 1, 0)


@dataclass
class Wanted:
    """The bounds that filters set, both ends included."""

    first: int = 1
    last: int = SEQUENCE_MAX
    sequences: frozenset[int] | None = None
    enqueued_from: dt.datetime | None = None
    enqueued_to: dt.datetime | None = None

    def take(self, condition: Filter) -> bool:
        """Apply a filter; return whether Spark need not check it again."""
        name = getattr(condition, "attribute", ())
        value = getattr(condition, "value", None)
        if name == ("sequence_number",):
            return self._take_sequence(condition, value)
        if name == ("enqueued_time",) and isinstance(value, dt.datetime):
            return self._take_time(condition, value if value.tzinfo else value.replace(tzinfo=dt.UTC))
        return False

    def _take_sequence(self, condition: Filter, value: Any) -> bool:
        if isinstance(condition, In):
            numbers = frozenset(number for number in value if isinstance(number, int))
            self.sequences = numbers if self.sequences is None else self.sequences & numbers
            self.first = max(self.first, min(numbers, default=SEQUENCE_MAX))
            self.last = min(self.last, max(numbers, default=0))
            return True
        if not isinstance(value, int):
            return False
        if isinstance(condition, EqualTo | GreaterThanOrEqual):
            self.first = max(self.first, value)
        if isinstance(condition, EqualTo | LessThanOrEqual):
            self.last = min(self.last, value)
        if isinstance(condition, GreaterThan):
            self.first = max(self.first, value + 1)
        if isinstance(condition, LessThan):
            self.last = min(self.last, value - 1)
        return isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual)

    def _take_time(self, condition: Filter, value: dt.datetime) -> bool:
        # The bounds are kept as if they were included: Spark checks again, so one message too many does no harm.
        if isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual):
            self.enqueued_from = value if self.enqueued_from is None else max(self.enqueued_from, value)
        if isinstance(condition, EqualTo | LessThan | LessThanOrEqual):
            self.enqueued_to = value if self.enqueued_to is None else min(self.enqueued_to, value)
        return False

    def wants(self, row: dict[str, Any]) -> bool:
        if self.sequences is not None and row.get("sequence_number") not in self.sequences:
            return False
        time = row.get("enqueued_time")
        if time is None:
            return True
        return (self.enqueued_from is None or time >= self.enqueued_from) and (
            self.enqueued_to is None or time <= self.enqueued_to
        )


def find_range(is_at_or_after: Callable[[int], int | None], first: int, last: int) -> Range | None:
    """Return where the first and the last message between two sequence numbers are; asks some sixty times at most.

    `is_at_or_after(n)` is the sequence number of the first message from n on, or None.
    """
    lowest = is_at_or_after(first)
    if lowest is None or lowest > last:
        return None
    highest, step = lowest, 1
    while highest < last:
        found = is_at_or_after(highest + step)
        if found is None or found > last:
            if step == 1:
                break
            step = 1 if step < 4 else step // 4
        else:
            highest = found
            step *= 2
    return Range(lowest, highest)


def plan(first: int, last: int) -> list[Range]:
    """Return the slices in which a range is read."""
    span = last - first + 1
    count = max(1, min(SLICES_MAX, -(-span // SLICE_MESSAGES)))
    width = -(-span // count)
    return [Range(start, min(start + width - 1, last)) for start in range(first, last + 1, width)]


class ServiceBusReader(DataSourceReader):
    def __init__(self, address: Address, entities: Callable[[], list[str]], wanted: Wanted) -> None:
        self._address = address
        self._entities = entities
        self._wanted = wanted

    def partitions(self) -> list[InputPartition]:
        client = connections.client(self._address)
        slices: list[InputPartition] = []
        for entity in self._entities():
            found = find_range(partial(first_from, client, entity), self._wanted.first, self._wanted.last)
            if found is not None:
                slices += [Slice(entity, each.first, each.last) for each in plan(*found)]
        return slices or [NOTHING]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        return peek_slice(self._address, partition, self._wanted)


def peek_slice(
    address: Address, wanted_slice: Slice, wanted: Wanted, active_only: bool = False
) -> Iterator[pa.RecordBatch]:
    client = connections.client(address)
    rows = Rows()
    request = RequestSize(PEEK_COUNT)
    at = wanted_slice.first
    while at <= wanted_slice.last:
        messages = client.peek(wanted_slice.entity, at, request.count)
        if not messages:
            break
        request.received(list(map(len, messages)))
        for payload in messages:
            row = read(payload)
            number = row.get("sequence_number")
            if number is None or number > wanted_slice.last:
                at = SEQUENCE_MAX
                break
            at = number + 1
            if wanted.wants(row) and not (active_only and row.get("state") != "active"):
                rows.take(row, wanted_slice.entity, payload)
            if rows.is_full:
                yield rows.batch()
    if len(rows):
        yield rows.batch()


class FilteringReader(ServiceBusReader):
    """Reads with filters pushed down. Not the default: Spark keeps what one query pushed into a DataFrame of a Python
    source for later queries on it that push nothing (4.0 to 4.3), and these would then find too little."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for condition in filters:
            if not self._wanted.take(condition):
                yield condition


def first_from(client: WireClient, entity: str, number: int) -> int | None:
    messages = client.peek(entity, number, 1)
    found = read(messages[0]).get("sequence_number") if messages else None
    return int(found) if found is not None else None
