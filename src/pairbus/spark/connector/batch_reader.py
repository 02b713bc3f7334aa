"""Reads the messages of entities for `spark.read.format("servicebus")`, in slices that workers peek in parallel.

It removes and locks nothing. The slices are sequence ranges of each partition at the time when the query was planned;
later messages are not in the result. `plan` decides the slices, `Wanted` which of them a query's filters still need.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pairbus.errors import PairbusError
from pairbus.spark.connector import connections
from pairbus.wire.partitions import Range, ask, count_of, end_of, number_of, partition_of, search_ranges
from pairbus.wire.sync import WireClient

from .batch_limits import RequestSize, shares
from .options import SEQUENCE_MAX, Address, InvalidOption
from .places.positions import LATEST, Position, search_time
from .schema import COLUMNS, Columns, Part, Rows, of_annotations, read

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
#: The parts of a message that tell where it is.
_PLACE: Final = (of_annotations,)
#: How many are peeked to find the first active message: deferred and scheduled ones are few.
STAMP_COUNT: Final = 16


class DataLoss(PairbusError):
    """Messages that a stream had not read yet are gone (`failOnDataLoss`)."""


@dataclass(frozen=True)
class Slice(InputPartition):
    """The work of one task: ranges of one entity's numbers, in order, each within one partition."""

    entity: str
    ranges: tuple[Range, ...]


#: Spark wants at least one partition.
NOTHING: Final = Slice("", ())


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


def plan(entity: str, ranges: Iterable[Range], slices_min: int = 1) -> list[Slice]:
    """Return the slices in which ranges of an entity are read: large ones are cut, and small ones share a slice, unless
    more than one is asked for: then there are at least so many, as far as there are numbers."""
    ranges = list(ranges)
    total = sum(each.span for each in ranges)
    joined_max = SLICE_MESSAGES if slices_min == 1 else 0
    slices: list[Slice] = []
    together: list[Range] = []
    for each in ranges:
        count = max(-(-slices_min * each.span // total), min(SLICES_MAX, -(-each.span // SLICE_MESSAGES)))
        ends = itertools.accumulate(shares(each.span, count), initial=each.first)
        for first, stop in itertools.pairwise(ends):
            if together and sum(other.span for other in together) + stop - first > joined_max:
                slices.append(Slice(entity, tuple(together)))
                together = []
            together.append(Range(first, stop - 1))
    return [*slices, Slice(entity, tuple(together))] if together else slices


class ServiceBusReader(DataSourceReader):
    def __init__(
        self,
        address: Address,
        entities: Callable[[], list[str]],
        wanted: Wanted,
        starting: Position | None = None,
        ending: Position | None = None,
        partitions_min: int = 1,
        columns: Columns = COLUMNS,
    ) -> None:
        self._address = address
        self._entities = entities
        self._wanted = wanted
        self._starting = starting
        self._ending = ending
        self._partitions_min = partitions_min
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        client = connections.client(self._address)
        entities = self._entities()
        slices: list[InputPartition] = []
        slices_min = -(-self._partitions_min // max(1, len(entities)))
        for entity in entities:
            begin = places_at(client, entity, self._starting, "startingPosition", entities)
            stop = places_at(client, entity, self._ending, "endingPosition", entities)
            found = ask(
                search_ranges(begin, self._wanted.first, self._wanted.last), partial(first_from, client, entity)
            )
            cut = (Range(each.first, min(each.last, stop.get(p, SEQUENCE_MAX) - 1)) for p, each in found.items())
            slices += plan(entity, (each for each in cut if each.span > 0), slices_min)
        return slices or [NOTHING]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        return peek_slice(self._address, partition, self._wanted, Rows(self._columns))


def places_at(
    client: WireClient, entity: str, position: Position | None, name: str, entities: Iterable[str]
) -> dict[int, int]:
    """Return the number that a position means in each partition; partitions that it says nothing about are left out."""
    if position is None:
        return {}
    try:
        position.check(name, entities)
    except ValueError as error:
        raise InvalidOption(str(error)) from None
    there = ask(search_ranges({}), partial(first_from, client, entity))
    places: dict[int, int] = {}
    for partition in sorted({*there, *position.partitions(entity)}):
        spot, inside = position.spot(entity, partition), there.get(partition)
        if isinstance(spot, int):
            places[partition] = number_of(partition, spot)
        elif inside is not None and spot == LATEST:
            places[partition] = inside.last + 1
        elif inside is not None and isinstance(spot, dt.datetime):
            places[partition] = _number_at(client, entity, inside, spot)
    return places


def _number_at(client: WireClient, entity: str, inside: Range, time: dt.datetime) -> int:
    search = search_time(inside, time)
    try:
        asked = next(search)
        while True:
            asked = search.send(active_from(client, entity, asked))
    except StopIteration as end:
        return int(end.value)


def time_before(client: WireClient, entity: str, first: int, stop: int) -> dt.datetime | None:
    """Return when the last of the messages between two numbers of a partition was enqueued, or, where the last few are
    scheduled, whose time is yet to come, the first that is active."""
    rows = (read(payload, _PLACE) for payload in client.peek(entity, max(first, stop - STAMP_COUNT), STAMP_COUNT))
    times: list[dt.datetime] = [
        row["enqueued_time"]
        for row in rows
        if (row["sequence_number"] or SEQUENCE_MAX) < stop and row["state"] != "scheduled" and row["enqueued_time"]
    ]
    if times:
        return max(times)
    found = active_from(client, entity, first)
    return found[1] if found is not None and found[0] < stop else None


def active_from(client: WireClient, entity: str, number: int) -> tuple[int, dt.datetime] | None:
    """Return number and enqueued time of the first active message from a number on, within its partition."""
    last = end_of(partition_of(number))
    while messages := client.peek(entity, number, STAMP_COUNT):
        for payload in messages:
            row = read(payload, _PLACE)
            number = row.get("sequence_number") or SEQUENCE_MAX
            if number > last:
                return None
            if row.get("state") == "active" and row.get("enqueued_time") is not None:
                return number, row["enqueued_time"]
        number += 1
    return None


def peek_slice(
    address: Address,
    wanted_slice: Slice,
    wanted: Wanted,
    rows: Rows,
    active_only: bool = False,
    without_gaps: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield what `rows` collects of a slice. Raises DataLoss where there is no message for a number, if asked to be
    `without_gaps`."""
    client = connections.client(address)
    request = RequestSize(PEEK_COUNT)
    parts = tuple({*rows.parts, *_PLACE})
    for inside in wanted_slice.ranges:
        at = inside.first
        for number, row, payload in _peeked(client, wanted_slice.entity, inside, request, parts):
            if without_gaps and number != at:
                raise data_loss(wanted_slice.entity, Range(at, number - 1))
            at = number + 1
            if wanted.wants(row) and not (active_only and row.get("state") != "active"):
                rows.take(row, wanted_slice.entity, payload)
            if rows.is_full:
                yield rows.batch()
        if without_gaps and at <= inside.last:
            raise data_loss(wanted_slice.entity, Range(at, inside.last))
    if len(rows):
        yield rows.batch()


def _peeked(
    client: WireClient, entity: str, inside: Range, request: RequestSize, parts: tuple[Part, ...]
) -> Iterator[tuple[int, dict[str, Any], bytes]]:
    at = inside.first
    while at <= inside.last:
        messages = client.peek(entity, at, request.count)
        if not messages:
            return
        request.received(list(map(len, messages)))
        for payload in messages:
            row = read(payload, parts)
            number = row.get("sequence_number")
            if number is None or number > inside.last:
                return
            at = number + 1
            yield number, row, payload


def data_loss(entity: str, gone: Range) -> DataLoss:
    partition, first, last = partition_of(gone.first), count_of(gone.first), count_of(gone.last)
    where = f"partition {partition} of {entity!r}" if partition else repr(entity)
    numbers = f"message {first}" if first == last else f"messages {first} to {last}"
    return DataLoss(
        f"{numbers} of {where} can't be read: taken away, expired or dead-lettered before this stream came to them, "
        "or numbers of scheduled messages, which get others when they are due; without failOnDataLoss the stream "
        "passes over them"
    )


def made_again(entity: str) -> DataLoss:
    return DataLoss(
        f"{entity!r} was deleted and made again since this stream read it: what it held then and was not read yet is "
        "gone, and its numbers begin anew. Without failOnDataLoss, or with a new checkpointLocation, it is read from "
        "its first message"
    )


class FilteringReader(ServiceBusReader):
    """Reads with filters pushed down. Not the default: Spark keeps what one query pushed into a DataFrame of a Python
    source for later queries on it that push nothing (4.0 to 4.3), and these would then find too little."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for condition in filters:
            if not self._wanted.take(condition):
                yield condition


def first_from(client: WireClient, entity: str, number: int) -> int | None:
    messages = client.peek(entity, number, 1)
    found = read(messages[0], _PLACE).get("sequence_number") if messages else None
    return int(found) if found is not None else None
