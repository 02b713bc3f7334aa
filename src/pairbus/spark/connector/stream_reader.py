"""`spark.readStream.format("servicebus")` by sequence number: modes `peek` and `delete`. Mode `lock` is in lock_reader.

The offset is the next sequence number of each entity and partition (see offsets), so a batch can be read again, by
another worker or after a crash, and is the same but for what was taken away meanwhile. `admit` decides how far a batch
goes.

`delete` removes what Spark has committed: Spark hands `latestOffset` a start that it has written down, and tells
`commit` one batch late. The last batch of an AvailableNow run is removed at the start of the next; before Spark 4.2,
which hands over no start, by the next batch that finds something.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pairbus.spark.runtime import connections
from pairbus.syphon.core.rate_limit import RateLimit
from pairbus.wire.errors import NotFound, Refused, WireError
from pairbus.wire.partitions import Range, end_of, number_of, partition_of, search_heads, search_ranges
from pairbus.wire.sync import Receiver, WireClient

from .batch_reader import NOTHING, Slice, Wanted, active_from, data_loss, first_from, peek_slice, places_at, plan
from .listing import EntityDiscovery
from .lock_reader import SESSIONS_MAX, WAIT_SESSION_S, LockStream, Share, is_about_sessions, take
from .options import SEQUENCE_MAX, Address, ConnectorOptions, InvalidOption, check_stream
from .places.offsets import (
    LAG,
    ORIGIN,
    Lane,
    Offset,
    Places,
    admit,
    lag,
    of_entity,
    read_offset,
    search_all,
    write_offset,
)
from .schema import Rows, columns_of
from .selection import Selection

try:  # Spark 4.2 and later
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # 4.0 and 4.1: no admission control
    ReadLimit = ReadMaxRows = None  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


RECEIVE_COUNT: Final = 500
#: How often a stream looks how far it is behind: some dozens of peeks for each entity or partition.
LAG_EVERY_S: Final = 5.0


def stream_reader(options: ConnectorOptions, entities: Callable[[], list[str]]) -> DataSourceStreamReader:
    check_stream(options)
    if options.starting is not None and ReadLimit is None:
        raise InvalidOption("startingPosition of a stream needs Spark 4.2 or later, which tells the source its offset")
    kind = {"peek": PeekStream, "delete": DeleteStream, "lock": LockStream}[options.mode]
    return kind(options, entities)


class PeekStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ConnectorOptions, entities: Callable[[], list[str]]) -> None:
        self._options = options
        self._address: Address = options.address
        self._discovery = EntityDiscovery(entities)
        self._until: Places | None = None
        self._rate = RateLimit(options.rate_max)
        #: Spark asks for it until the first batch is written down, and must get the same.
        self._initial: Offset | None = None
        #: The last end: where Spark does not say it, and for the lag.
        self._reached: Offset = {}
        #: What was last found to be unread, when, and how old the first message of each lane was.
        self._looked_at: float | None = None
        self._unread: dict[Lane, Range] = {}
        self._ages: dict[Lane, float] = {}

    def initialOffset(self) -> Offset:
        if self._initial is None:
            self._initial = self._begin()
        return self._initial

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self._options.messages_per_trigger_max)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        if start is None:
            # Before Spark 4.2 there is neither start nor limit: all that is there, at any rate. An end that lay before
            # the last one, since messages were removed, would be a batch of nothing.
            self._reached = self._admit(self._reached or self.initialOffset(), None)[0]
            return self._reached
        self._check(start)
        rows_max = getattr(limit, "max_rows", None)
        now = time.monotonic()
        if (wait_s := self._rate.wait_s(now)) > 0:
            if self._until is None:
                return start
            time.sleep(wait_s)  # with availableNow, "nothing new" would end the run before its goal
            now = time.monotonic()
        per_s = self._rate.limit(now)
        if isfinite(per_s):  # one second's worth; what that is too early the next batches wait for
            rows_max = min(rows_max or SEQUENCE_MAX, max(1, int(per_s)))
        self._reached, taken = self._admit(start, rows_max)
        self._rate.received(taken if rows_max is None else min(taken, rows_max), now)
        return self._reached

    def prepareForTriggerAvailableNow(self) -> None:
        """Take what is there now for the goal of the run."""
        found = self._ranges({})
        self._until = {lane: each.last + 1 for lane, each in found.items()}

    def reportLatestOffset(self) -> Offset | None:
        """Return what is there, in the shape of an offset, and under `$lag` how much of it was not read yet."""
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= LAG_EVERY_S:
            try:
                self._look()
            except WireError:
                return None  # a report is no reason for a query to fail
            self._looked_at = now
        read = self._places(self._reached)
        unread = {
            lane: Range(max(each.first, read.get(lane, 0)), each.last)
            for lane, each in self._unread.items()
            if each.last >= read.get(lane, 0)
        }
        latest = write_offset({**read, **{lane: each.last + 1 for lane, each in unread.items()}})
        return {**latest, LAG: lag(unread, self._ages)}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        self._check(end)
        # Another origin: Spark runs its first batch again, and has asked once more where the stream begins.
        begun = self._places(start if start.get(ORIGIN) == end.get(ORIGIN) else end.get(ORIGIN, {}))
        ranges: dict[str, list[Range]] = {}
        for (entity, partition), stop in self._places(end).items():
            earliest = self._first_of(partition)
            first = begun.get((entity, partition), earliest)
            if first >= stop:
                continue
            # A gap before the first message would make slices with nothing in them.
            found = self._first_from(entity, first)
            inside = None if found is None or found >= stop else Range(found, stop - 1)
            if self._options.fails_on_data_loss and first > earliest and (inside is None or inside.first > first):
                raise data_loss(entity, Range(first, (stop if inside is None else inside.first) - 1))
            if inside is not None:
                ranges.setdefault(entity, []).append(inside)
        slices_min = -(-self._options.partitions_min // max(1, len(ranges)))
        slices = [each for entity, found in ranges.items() for each in plan(entity, found, slices_min)]
        return [*slices] or [NOTHING]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        collected, loses_nothing = Rows(columns_of(self._options)), self._options.fails_on_data_loss
        return peek_slice(self._address, partition, Wanted(), collected, active_only=True, without_gaps=loses_nothing)

    def commit(self, end: Offset) -> None:
        """Do nothing: the offsets are Spark's, the messages stay."""

    def stop(self) -> None:
        connections.close_all()

    def _begin(self) -> Offset:
        earliest = {(entity, self._first_lane): self._options.first_sequence for entity in self._names()}
        position = self._options.starting
        if position is None:
            return write_offset(earliest)
        client = connections.client(self._address)
        names = self._names()
        begin = {
            (entity, partition): number
            for entity in names
            for partition, number in places_at(client, entity, position, "startingPosition", names).items()
        }
        offset = write_offset({**earliest, **begin})
        return {**offset, ORIGIN: offset}

    def _admit(self, start: Offset, rows_max: int | None) -> tuple[Offset, int]:
        """Return the end of the batch that starts there, and about how many messages it has."""
        # An entity that was found later begins with its first message, as one that was found by a glob always did.
        later = {(entity, self._first_lane): self._options.first_sequence for entity in self._names()}
        begun = self._places(start)
        known = {entity for entity, _ in begun}
        begun |= {lane: number for lane, number in later.items() if lane[0] not in known}
        asked: dict[tuple[str, int], int | None] = {}

        def first_from(entity: str, number: int) -> int | None:
            if (entity, number) not in asked:
                asked[entity, number] = self._first_from(entity, number)
            return asked[entity, number]

        def in_lane(lane: Lane, number: int) -> int | None:
            found = first_from(lane[0], number)
            return found if found is not None and found <= end_of(lane[1]) else None

        first = self._options.first_sequence
        heads: Places = search_all(
            self._names(), lambda entity: search_heads(of_entity(begun, entity), first), first_from
        )
        end = admit(heads, rows_max, in_lane, self._stop)
        moved = {lane: number for lane, number in end.items() if number > heads[lane]}
        taken = sum(number - heads[lane] for lane, number in moved.items())
        return write_offset({**begun, **moved}, start.get(ORIGIN)), taken

    def _look(self) -> None:
        """Find what was not read yet, and how old it is."""
        self._unread = self._ranges(self._places(self._reached))
        client = connections.client(self._address)
        now = dt.datetime.now(dt.UTC)
        heads = {lane: active_from(client, lane[0], each.first) for lane, each in self._unread.items()}
        self._ages = {lane: (now - head[1]).total_seconds() for lane, head in heads.items() if head is not None}

    def _ranges(self, places: Places) -> dict[Lane, Range]:
        first, last = self._options.first_sequence, self._options.last_sequence
        return search_all(
            self._names(), lambda entity: search_ranges(of_entity(places, entity), first, last), self._first_from
        )

    def _stop(self, lane: Lane) -> int:
        """Where a lane's part of the stream ends: what the run is to reach, and toSequenceNumber."""
        goal = SEQUENCE_MAX if self._until is None else self._until.get(lane, 0)
        return min(goal, self._options.last_sequence + 1)

    @property
    def _first_lane(self) -> int:
        return partition_of(self._options.first_sequence)

    def _first_of(self, partition: int) -> int:
        return max(self._options.first_sequence, number_of(partition, 1))

    def _places(self, offset: Offset) -> Places:
        """Return the places of an offset, with entities spelled as they are now: their names have no letter case."""
        spelled = {name.lower(): name for name in self._known()}
        return {
            (spelled.get(entity.lower(), entity), partition): number
            for (entity, partition), number in read_offset(offset).items()
        }

    def _check(self, offset: Offset) -> None:
        """Raise InvalidOption where the checkpoint is another stream's. What a glob found before may be gone."""
        entities = {entity for entity, _ in self._places(offset)}
        if entities and entities.isdisjoint(self._known()) and not self._discovery.may_change:
            raise InvalidOption(
                f"the checkpoint is that of a stream of {', '.join(sorted(entities))}, and this one reads "
                f"{', '.join(self._known())}; give each stream a checkpointLocation of its own"
            )

    def _known(self) -> list[str]:
        return self._discovery.names(fresh=False)

    def _names(self) -> list[str]:
        # what is made during an AvailableNow run is not its goal
        return self._discovery.names(fresh=self._until is None)

    def _first_from(self, entity: str, number: int) -> int | None:
        try:
            return first_from(connections.client(self._address), entity, number)
        except NotFound:
            if not self._discovery.may_change:
                raise
            return None  # a glob found it, and it is gone: others go on


class DeleteStream(PeekStream):
    """Removes what was committed. Wants to be the only consumer: what others hold locked is left to them."""

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        if start is not None:
            self.commit(start)
        return super().latestOffset(start, limit)

    def commit(self, end: Offset) -> None:
        begun = self._places(end.get(ORIGIN, {}))
        done: dict[str, list[Range]] = {}
        for (entity, partition), stop in self._places(end).items():
            if entity not in self._known():  # a checkpoint may hold more: what this stream is not to touch
                continue
            first = begun.get((entity, partition), self._first_of(partition))
            found = self._first_from(entity, first) if first < stop else None
            if found is not None and found < stop:
                done.setdefault(entity, []).append(Range(first, stop - 1))
        for entity, ranges in done.items():
            remove(self._address, entity, ranges)


def remove(address: Address, entity: str, ranges: list[Range]) -> int:
    """Complete every message within ranges of sequence numbers; return how many were removed."""
    client = connections.client(address)
    try:
        client.receiver(entity).close()
    except Refused as error:
        if not is_about_sessions(error):
            raise
        return _remove_by_session(client, entity, Selection(ranges))
    if [each.first for each in ranges] == [1] and partition_of(ranges[0].last) == 0:
        return _remove_below(client, entity, ranges[0].last + 1)
    removed = 0
    for messages in take(address, Share(entity, sum(each.span for each in ranges), Selection(ranges))):
        tokens = [message.lock_token for message in messages if message.lock_token is not None]
        client.settle_by_token(entity, tokens, "completed")
        removed += len(tokens)
    return removed


def _remove_below(client: WireClient, entity: str, stop: int) -> int:
    """Complete all below `stop`, with nothing to pass over; the first beyond is released."""
    removed = 0
    receiver = client.receiver(entity)
    try:
        while messages := receiver.receive(RECEIVE_COUNT, max_wait=1.0):
            below = [m for m in messages if (m.sequence_number or stop) < stop]
            beyond = [m for m in messages if (m.sequence_number or stop) >= stop]
            if beyond:
                receiver.release(beyond)
            if below:
                receiver.complete(below)
                removed += len(below)
            if beyond:
                break
            first = first_from(client, entity, 1)
            if first is None or first >= stop:
                break
    finally:
        receiver.close()
    return removed


def _remove_by_session(client: WireClient, entity: str, chosen: Selection) -> int:
    """Complete the chosen messages of the sessions that are free. Each is held until the end, since otherwise it would
    be the next one again; what is left over is removed by the next commit."""
    removed = 0
    held: list[Receiver] = []
    try:
        while len(held) < SESSIONS_MAX:
            receiver = client.next_session(entity, WAIT_SESSION_S)
            if receiver is None:
                break
            held.append(receiver)
            completed, is_beyond = _remove_of_session(receiver, chosen)
            removed += completed
            if is_beyond and not completed and len(chosen.partitions) == 1:
                break  # so are the sessions that would follow
    finally:
        for receiver in held:
            receiver.close()
    return removed


def _remove_of_session(receiver: Receiver, chosen: Selection) -> tuple[int, bool]:
    """Return how many messages were completed, and whether one came that is beyond the chosen."""
    completed = 0
    while messages := receiver.receive(RECEIVE_COUNT, max_wait=0.0):
        wanted = [message for message in messages if message.sequence_number in chosen]
        if wanted:
            receiver.complete(wanted)
            completed += len(wanted)
        if any(chosen.is_beyond(message.sequence_number or 0) for message in messages):
            return completed, True
    return completed, False
