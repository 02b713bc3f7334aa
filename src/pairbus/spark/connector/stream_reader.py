"""`spark.readStream.format("servicebus")` by sequence number: modes `peek` and `delete`. Mode `lock` is in lock_reader.

The offset is the next sequence number of each entity, so a batch can be read again, by another worker or after a crash,
and is the same but for what was taken away meanwhile. `admit` decides how far a batch goes.

`delete` removes what Spark has committed: Spark hands `latestOffset` a start that it has written down, and tells
`commit` one batch late. The last batch of an AvailableNow run is removed at the start of the next; before Spark 4.2,
which hands over no start, by the next batch that finds something.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import isfinite
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pairbus.spark.runtime import connections
from pairbus.syphon.core.rate_limit import RateLimit
from pairbus.wire.errors import NotFound
from pairbus.wire.sync import WireClient

from .batch_reader import NOTHING, Slice, Wanted, find_range, first_from, peek_slice, plan
from .listing import EntityDiscovery
from .lock_reader import LockStream, Share, take
from .options import SEQUENCE_MAX, Address, ConnectorOptions, InvalidOption
from .selection import Selection

try:  # Spark 4.2 and later
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # 4.0 and 4.1: no admission control
    ReadLimit = ReadMaxRows = None  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


#: entity → the sequence number that the next batch starts with
Offset = dict[str, int]
RECEIVE_COUNT: Final = 500
#: From here on, the top bits of a number are a partition, and one number is no place in all of them.
NUMBERS_END: Final = 1 << 48


def stream_reader(options: ConnectorOptions, entities: Callable[[], list[str]]) -> DataSourceStreamReader:
    if options.mode == "lock" and (options.first_sequence, options.last_sequence) != (1, SEQUENCE_MAX):
        raise InvalidOption(
            "fromSequenceNumber and toSequenceNumber are for the modes peek and delete; a stream with mode=lock gets "
            "what the entity gives it. To pick messages use pairbus.spark.move, or pairbus move --where"
        )
    kind = {"peek": PeekStream, "delete": DeleteStream, "lock": LockStream}[options.mode]
    return kind(options, entities)


def admit(
    start: Mapping[str, int],
    rows_max: int | None,
    first_from: Callable[[str, int], int | None],
    until: Mapping[str, int] | None = None,
) -> Offset:
    """Return the end of the next batch: at most `rows_max` messages in all, shared fairly, none from `until` on.

    Counted in sequence numbers, so gaps make a batch smaller, never larger.
    """
    end = dict(start)
    hungry = list(start)
    left = rows_max
    while hungry and (left is None or left > 0):
        share = SEQUENCE_MAX if left is None else max(1, left // len(hungry))
        still: list[str] = []
        for entity in hungry:
            if left is not None and left <= 0:
                break
            last = (SEQUENCE_MAX if until is None else until.get(entity, SEQUENCE_MAX)) - 1
            first = first_from(entity, end[entity])
            if first is None or first > last:
                continue
            goal = min(last, first + min(share, SEQUENCE_MAX - first) - 1)
            found = find_range(partial(first_from, entity), first, goal)
            assert found is not None
            end[entity] = found.last + 1
            if left is not None:
                left -= found.last - found.first + 1
            if found.last == goal and goal < last:
                still.append(entity)
        hungry = still if left is not None else []
    return end


class PeekStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ConnectorOptions, entities: Callable[[], list[str]]) -> None:
        self._options = options
        self._address: Address = options.address
        self._discovery = EntityDiscovery(entities)
        self._until: Offset | None = None
        self._rate = RateLimit(options.rate_max)
        #: The last end, where Spark does not say it.
        self._reached: Offset = {}

    def initialOffset(self) -> Offset:
        return dict.fromkeys(self._names(), self._options.first_sequence)

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self._options.messages_per_trigger_max)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        if start is None:
            # Before Spark 4.2 there is neither start nor limit: all that is there, at any rate. An end that lay before
            # the last one, since messages were removed, would be a batch of nothing.
            self._reached = admit({**self.initialOffset(), **self._reached}, None, self._first_from, self._bounds())
            return self._reached
        begun = {**self.initialOffset(), **start}
        rows_max = getattr(limit, "max_rows", None)
        now = time.monotonic()
        if (wait_s := self._rate.wait_s(now)) > 0:
            if self._until is None:
                return begun
            time.sleep(wait_s)  # with availableNow, "nothing new" would end the run before its goal
            now = time.monotonic()
        per_s = self._rate.limit(now)
        if isfinite(per_s):  # one second's worth; what that is too early the next batches wait for
            rows_max = min(rows_max or SEQUENCE_MAX, max(1, int(per_s)))
        end = admit(begun, rows_max, self._first_from, self._bounds())
        taken = sum(end.values()) - sum(begun.values())  # numbers: a gap in them is more than there are messages
        self._rate.received(taken if rows_max is None else min(taken, rows_max), now)
        return end

    def prepareForTriggerAvailableNow(self) -> None:
        """Take what is there now for the goal of the run."""
        self._until = admit(self.initialOffset(), None, self._first_from, self._bounds())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        slices: list[InputPartition] = []
        for entity, stop in end.items():
            first = start.get(entity, self._options.first_sequence)
            if first >= stop:
                continue
            # A gap before the first message would make slices with nothing in them.
            found = self._first_from(entity, first)
            if found is not None and found < stop:
                slices += [Slice(entity, each.first, each.last) for each in plan(found, stop - 1)]
        return slices or [NOTHING]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        return peek_slice(self._address, partition, Wanted(), active_only=True)

    def commit(self, end: Offset) -> None:
        """Do nothing: the offsets are Spark's, the messages stay."""

    def stop(self) -> None:
        connections.close_all()

    def _bounds(self) -> Offset | None:
        """Where each entity's part of the stream ends: what the run is to reach, and toSequenceNumber."""
        if self._options.last_sequence == SEQUENCE_MAX:
            return self._until
        until = self._until or {}
        stop = self._options.last_sequence + 1
        return {entity: min(stop, until.get(entity, stop)) for entity in self._names()}

    def _names(self) -> list[str]:
        # what is made during an AvailableNow run is not its goal
        return self._discovery.names(fresh=self._until is None)

    def _first_from(self, entity: str, number: int) -> int | None:
        try:
            found = first_from(connections.client(self._address), entity, number)
        except NotFound:
            if not self._discovery.may_change:
                raise
            return None  # a glob found it, and it is gone: others go on
        if found is not None and found >= NUMBERS_END:
            raise InvalidOption(
                f"{entity!r} is partitioned: a stream by sequence number would pass over messages of its partitions; "
                "read it with mode=lock, or with spark.read"
            )
        return found


class DeleteStream(PeekStream):
    """Removes what was committed. Wants to be the only consumer: what others hold locked is left to them."""

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        if start is not None:
            self.commit(start)
        return super().latestOffset(start, limit)

    def commit(self, end: Offset) -> None:
        for entity, stop in end.items():
            if stop > self._options.first_sequence:
                remove(self._address, entity, self._options.first_sequence, stop)


def remove(address: Address, entity: str, begin: int, stop: int) -> int:
    """Complete every message from one sequence number up to, but without, another; return how many were removed."""
    client = connections.client(address)
    first = first_from(client, entity, begin)
    if first is None or first >= stop:
        return 0
    if begin == 1:
        return _remove_below(client, entity, stop)
    removed = 0
    for messages in take(address, Share(entity, stop - begin, Selection([(begin, stop - 1)]))):
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
