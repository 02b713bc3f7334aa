"""`spark.readStream.format("servicebus")` by sequence number: modes `peek` and `delete`. Mode `lock` is in lock_reader.

The offset is the next sequence number of each entity and partition (see offsets), so a batch can be read again, by
another worker or after a crash, and is the same except for messages that were removed meanwhile. `admit` decides how
far a batch goes.

The offset also has the time at which the message before each number was enqueued, which shows that an entity was
deleted and recreated (see offsets): it is then read from its first message, or the query fails with failOnDataLoss.

`delete` removes what Spark has committed: Spark passes `latestOffset` a start that it has recorded, and calls `commit`
one batch late. The last batch of an AvailableNow run is removed at the start of the next; before Spark 4.2, which
passes no start, by the next batch that finds messages.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import isfinite
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pairbus.spark.connector import connections
from pairbus.syphon.core.rate_limit import RateLimit
from pairbus.wire.errors import NotFound, Refused, WireError
from pairbus.wire.partitions import (
    Range,
    ask,
    end_of,
    number_of,
    partition_of,
    search_heads,
    search_range,
    search_ranges,
)
from pairbus.wire.received import ReceivedMessage
from pairbus.wire.settling import COMPLETED
from pairbus.wire.sync import Receiver, WireClient

from .batch_reader import (
    NOTHING,
    Slice,
    Wanted,
    active_from,
    data_loss,
    first_from,
    made_again,
    peek_slice,
    places_at,
    plan,
    time_before,
)
from .listing import EntityDiscovery, created_at
from .lock_reader import SESSIONS_MAX, WAIT_SESSION_S, LockStream, Share, is_about_sessions, take
from .options import SEQUENCE_MAX, Address, ConnectorOptions, InvalidOption, check_stream
from .places.offsets import (
    ANEW,
    ENQUEUED,
    LAG,
    ORIGIN,
    Lane,
    Offset,
    Places,
    admit,
    is_made_again,
    lag,
    of_entity,
    read_offset,
    read_times,
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
#: How often a stream measures how far it is behind: some dozens of peeks for each entity or partition.
LAG_EVERY_S: Final = 5.0
#: How often a stream that has caught up checks whether an entity was recreated.
AGAIN_EVERY_S: Final = 1.0
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
T = TypeVar("T")
_log = logging.getLogger("pairbus.connector")


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
        #: The unread messages found last, when, and how old the first message of each lane was.
        self._looked_at: float | None = None
        self._unread: dict[Lane, Range] = {}
        #: When it was last checked whether an entity was recreated.
        self._compared_at: float | None = None
        #: Times that an offset of an earlier version does not say, as they were at the first look.
        self._found_times: dict[Lane, int] = {}
        #: Entities whose creation times were looked up.
        self._asked: set[str] = set()
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
        """Make the present messages the goal of the run."""
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
        is_first_again = start.get(ORIGIN) != end.get(ORIGIN) and ANEW not in end
        begun = self._places(end.get(ORIGIN, {}) if is_first_again else start)
        # before Spark 4.2 it is only here that the start is known
        begun |= self._places(end[ANEW]) if ANEW in end else self._anew(start)
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
        found = {lane: self._time_before(lane, number_of(lane[1], 1), stop) for lane, stop in begin.items()}
        times = {lane: each for lane, each in found.items() if each is not None}
        return write_offset({**earliest, **begin}, offset, times)

    def _admit(self, start: Offset, rows_max: int | None) -> tuple[Offset, int]:
        """Return the end of the batch that starts there, and about how many messages it has."""
        # An entity that was found later begins with its first message, as one that was found by a glob always did.
        later = {(entity, self._first_lane): self._options.first_sequence for entity in self._names()}
        begun = self._places(start)
        known = {entity for entity, _ in begun}
        begun |= {lane: number for lane, number in later.items() if lane[0] not in known}
        heads, end = self._find(begun, rows_max)
        anew: Places = {}
        now = time.monotonic()
        if end != heads or self._compared_at is None or now - self._compared_at >= AGAIN_EVERY_S:
            self._compared_at = now
            if anew := self._anew(start):
                heads, end = self._find({**begun, **anew}, rows_max)
        moved = {lane: number for lane, number in end.items() if number > heads[lane]}
        if not moved:  # the same text again: there is no batch
            times = self._lanes(read_times(start)) if ENQUEUED in start else None
            return write_offset(begun, start.get(ORIGIN), times, self._places(start.get(ANEW, {}))), 0
        origin, times = start.get(ORIGIN), self._times(start)
        if anew and origin is not None:
            origin = write_offset({**self._places(origin), **anew})
        for lane in anew:
            del begun[lane]
            times.pop(lane, None)
        for lane, stop in moved.items():
            found = (self._time_before(lane, heads[lane], stop), times.get(lane))
            if seen := [each for each in found if each is not None]:
                times[lane] = max(seen)  # a clock may be set back
        begins = {lane: number for lane, number in anew.items() if lane in moved}
        taken = sum(number - heads[lane] for lane, number in moved.items())
        return write_offset({**begun, **moved}, origin, times, begins), taken

    def _find(self, begun: Places, rows_max: int | None) -> tuple[Places, Places]:
        """Return the first message from each place on, and the end of the batch that begins there."""
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
        return heads, admit(heads, rows_max, in_lane, self._stop)

    # -- entities that were deleted and made again

    def _anew(self, offset: Offset) -> Places:
        """Return where those lanes begin anew whose entity was made again since it was read as far as this. Raises
        DataLoss where the query is to fail then."""
        again = self._made_again(offset)
        if again and self._options.fails_on_data_loss:
            raise made_again(min(again)[0])
        for entity in sorted({entity for entity, _ in again}):
            _log.warning("%s was deleted and made again; it is read from its first message", entity)
        return {lane: self._first_of(lane[1]) for lane in again}

    def _made_again(self, offset: Offset) -> set[Lane]:
        """Return the lanes whose entity was deleted and made again since it was read as far as this."""
        times = self._times(offset)
        again: set[Lane] = set()
        for lane, stop in self._places(offset).items():
            if lane[0] not in self._known() or stop <= self._first_of(lane[1]):
                continue  # nothing of it was read
            oldest = self._oldest(lane, number_of(lane[1], 1))
            read_until = times.get(lane)
            if read_until is None:
                is_again = ENQUEUED not in offset and self._ends_below(lane, stop, oldest)
            else:
                is_again = is_made_again(stop, read_until, oldest)
                if oldest is None or oldest[0] >= stop:
                    is_again = self._is_younger(lane[0], read_until)
            if is_again:
                again.add(lane)
        entities = {entity for entity, _ in again}
        return {lane for lane in self._places(offset) if lane[0] in entities}

    def _ends_below(self, lane: Lane, stop: int, oldest: tuple[int, int] | None) -> bool:
        """Return whether an entity ends below the offset, as one of an earlier version tells that it was made again.
        Where it does not, its times are taken as they are now."""
        if oldest is None or oldest[0] >= stop:
            return False
        found = ask(search_range(oldest[0], end_of(lane[1])), partial(self._first_from, lane[0]))
        if found is not None and found.last < stop - 1:
            return True
        read_until = self._time_before(lane, oldest[0], stop)
        if read_until is not None:
            self._found_times[lane] = read_until
        return False

    def _is_younger(self, entity: str, read_until: int) -> bool:
        """Return whether an entity was made after that, as far as we may ask: messages that show it may all be gone.
        Only a query that is to fail wants to know, once."""
        if not self._options.fails_on_data_loss or entity in self._asked:
            return False
        self._asked.add(entity)
        made = created_at(self._address, entity)
        return made is not None and _milliseconds(made) > read_until

    def _times(self, offset: Offset) -> dict[Lane, int]:
        """Return when the last message before each place of an offset was enqueued, as far as it is known."""
        return {**self._found_times, **self._lanes(read_times(offset))}

    def _oldest(self, lane: Lane, number: int) -> tuple[int, int] | None:
        """Return number and time of the first active message of a lane from a number on."""
        try:
            found = active_from(connections.client(self._address), lane[0], number)
        except NotFound:
            if not self._discovery.may_change:
                raise
            return None
        return None if found is None else (found[0], _milliseconds(found[1]))

    def _time_before(self, lane: Lane, first: int, stop: int) -> int | None:
        """Return when the last message of a lane between two numbers was enqueued."""
        found = time_before(connections.client(self._address), lane[0], first, stop)
        return None if found is None else _milliseconds(found)

    def _look(self) -> None:
        """Find the unread messages and their age."""
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
        return self._lanes(read_offset(offset))

    def _lanes(self, found: Mapping[Lane, T]) -> dict[Lane, T]:
        """Return what is known by lane, with entities spelled as they are now: their names have no letter case."""
        spelled = {name.lower(): name for name in self._known()}
        return {(spelled.get(entity.lower(), entity), partition): each for (entity, partition), each in found.items()}

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
    """Removes committed messages. It should be the only consumer: messages that others hold locked are left to them."""

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        if start is not None:
            self.commit(start)
        return super().latestOffset(start, limit)

    def _ends_below(self, lane: Lane, stop: int, oldest: tuple[int, int] | None) -> bool:
        return False

    def _anew(self, offset: Offset) -> Places:
        """Of an offset of an earlier version it is not known whether what is left below it was read: it is read again
        rather than removed."""
        again = super()._anew(offset)
        begun, times = self._places(offset.get(ORIGIN, {})), self._times(offset)
        for lane, stop in self._places(offset).items():
            first = begun.get(lane, self._first_of(lane[1]))
            if lane[0] in self._known() and lane not in times and first < stop:
                oldest = self._oldest(lane, first)
                if oldest is not None and oldest[0] < stop:
                    again[lane] = first
        return again

    def commit(self, end: Offset) -> None:
        begun, times = self._places(end.get(ORIGIN, {})), self._times(end)
        done: dict[str, dict[Range, int]] = {}
        again: set[Lane] | None = None
        for lane, stop in self._places(end).items():
            entity, partition = lane
            # a checkpoint may hold more: what this stream is not to touch
            if entity not in self._known() or lane not in times:
                continue
            first = begun.get(lane, self._first_of(partition))
            found = self._first_from(entity, first) if first < stop else None
            if found is not None and found < stop:
                again = self._made_again(end) if again is None else again
                if lane not in again:
                    done.setdefault(entity, {})[Range(first, stop - 1)] = times[lane]
        for entity, ranges in done.items():
            remove(self._address, entity, WhatWasRead(ranges))


class WhatWasRead:
    """Says which messages were read: by their number, and not enqueued after the last that was. `ranges`: with that
    time in milliseconds, at most one of each partition."""

    def __init__(self, ranges: Mapping[Range, int]) -> None:
        self.selection = Selection(ranges)
        self._times = {partition_of(each.first): time for each, time in ranges.items()}

    def __contains__(self, message: ReceivedMessage) -> bool:
        number, enqueued_at = message.sequence_number, message.enqueued_at
        return (
            number in self.selection
            and enqueued_at is not None
            and round(enqueued_at * 1000) <= self._times[partition_of(number or 0)]
        )


def _milliseconds(time: dt.datetime) -> int:
    return (time - _EPOCH) // dt.timedelta(milliseconds=1)


def remove(address: Address, entity: str, was_read: WhatWasRead) -> int:
    """Complete every message that was read; return how many were removed."""
    client = connections.client(address)
    selection = was_read.selection
    try:
        client.receiver(entity).close()
    except Refused as error:
        if not is_about_sessions(error):
            raise
        return _remove_by_session(client, entity, was_read)
    if selection.first == 1 and selection.partitions == {0}:
        return _remove_below(client, entity, selection.last + 1, was_read)
    removed = 0
    for messages in take(address, Share(entity, len(selection), selection)):
        locked = {each.lock_token: each.sequence_number for each in messages if each in was_read and each.lock_token}
        for answer in client.settle_each(entity, list(locked), COMPLETED, numbers=list(locked.values())):
            if answer is not None:
                raise answer
        removed += len(locked)
        if any(each not in was_read for each in messages):
            break  # it was made again just now; these come again when their locks end
    return removed


def _remove_below(client: WireClient, entity: str, stop: int, was_read: WhatWasRead) -> int:
    """Complete all below `stop`, with nothing to pass over; the first beyond is released."""
    removed = 0
    receiver = client.receiver(entity)
    try:
        while messages := receiver.receive(RECEIVE_COUNT, max_wait=1.0):
            below = [message for message in messages if message in was_read]
            beyond = [message for message in messages if message not in was_read]
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


def _remove_by_session(client: WireClient, entity: str, was_read: WhatWasRead) -> int:
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
            completed, is_beyond = _remove_of_session(receiver, was_read)
            removed += completed
            if is_beyond and not completed and len(was_read.selection.partitions) == 1:
                break  # so are the sessions that would follow
    finally:
        for receiver in held:
            receiver.close()
    return removed


def _remove_of_session(receiver: Receiver, was_read: WhatWasRead) -> tuple[int, bool]:
    """Return how many messages were completed, and whether one came that is beyond the chosen."""
    completed = 0
    while messages := receiver.receive(RECEIVE_COUNT, max_wait=0.0):
        wanted = [message for message in messages if message in was_read]
        if wanted:
            receiver.complete(wanted)
            completed += len(wanted)
        if len(wanted) < len(messages) and any(
            was_read.selection.is_beyond(message.sequence_number or 0) for message in messages
        ):
            return completed, True
    return completed, False
