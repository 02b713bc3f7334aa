"""Reads a stream in mode `lock`: rows are peek-locked messages with their lock tokens, for a sink that settles them.

The queue is the state; the offset only counts batches, so a lost checkpoint loses nothing. A batch that Spark runs
again finds other messages: those of the first attempt come back when their locks expire. No lock is renewed; a batch is
kept small enough to be settled within a third of the lock. With `sessions` a task accepts one session after the other,
and reads each in order; `held_sessions` keeps them locked.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pairbus.spark.connector import connections
from pairbus.spark.connector.process_mailbox import STOP, ProcessMailbox
from pairbus.syphon.core.arrival import path_of
from pairbus.syphon.core.queue_discovery import GONE
from pairbus.syphon.core.rate_limit import RateLimit
from pairbus.wire.errors import NotFound, Refused, WireError
from pairbus.wire.partitions import partition_of
from pairbus.wire.received import ReceivedMessage
from pairbus.wire.sync import Receiver

from .batch_limits import RequestSize, shares
from .held_sessions import SESSIONS, WORKER_S, HeldSession, check_worker
from .listing import EntityDiscovery
from .lock_batch_size import LockBatchSize
from .long_poll import LongPoll
from .options import Address, ConnectorOptions, InvalidOption
from .schema import Rows, columns_of
from .selection import Selection
from .values.transfer_packs import pack

RECEIVE_COUNT: Final = 500
#: For the first message of a queue that was said to have some, and for each chosen one that may follow.
WAIT_FIRST_S: Final = 2.0
WAIT_NEXT_S: Final = 0.2
#: For another session that is free, after the first.
WAIT_SESSION_S: Final = 0.05

#: Messages that a chosen one may be behind: they are held while the reader passes them, for a third of their lock.
PASSED_MAX: Final = 100_000
STRIDE: Final = 200
HOLD_S: Final = (1.0, 20.0)
#: Sessions of one task: each is a link.
SESSIONS_MAX: Final = 200

#: How long the first batch waits for the first messages to be found: Spark runs it in any case, and an empty one takes
#: about as long as one with messages.
BEGIN_S: Final = 1.0
#: Spark asks again 10 ms after an answer, which is most of the cost of an idle stream. So an answer that there is
#: nothing new takes this many looks, each of which waits for a message; it also limits how long a query may take to
#: stop.
IDLE_LOOKS: Final = 4
IDLE_LOOK_S: Final = 0.25
#: An empty first batch has this many empty tasks: they start Python workers that the next batch finds running.
WARMED: Final = 2

#: Messages from the source to the application, and from the sink to both.
POLLS: Final = "polls"
MOVES: Final = "moves"
#: From the application to the source: queues that were created while it runs.
QUEUES: Final = "queues"
#: From the application to the source: until when, in unix seconds, nothing may be sent to which destinations.
HALTS: Final = "halts"


@dataclass(frozen=True)
class Share(InputPartition):
    """The work of one task: at most this many messages of one entity; with `chosen` only these."""

    entity: str
    count: int
    chosen: Selection | None = None
    #: Destinations in lower case, and unix seconds: messages for these are left to their locks until then.
    halts: tuple[tuple[str, float], ...] = ()
    #: For the first message: a task may find that others, which compete for the same queue, have taken all.
    wait_s: float = WAIT_FIRST_S
    #: Whether the entity has sessions: then the messages of one session all come to one task, in order.
    sessions: bool = False


def shares_of(entity: str, counts: Iterable[int], **more: Any) -> list[InputPartition]:
    """Return the shares of the tasks that compete for an entity; only the first waits long for a message."""
    waits = itertools.chain([WAIT_FIRST_S], itertools.repeat(WAIT_NEXT_S))
    return [Share(entity, count, wait_s=wait_s, **more) for count, wait_s in zip(counts, waits, strict=False)]


class LockStream(DataSourceStreamReader):
    def __init__(self, options: ConnectorOptions, entities: Callable[[], list[str]]) -> None:
        self._options = options
        self._discovery = EntityDiscovery(entities)
        self._watcher: LongPoll | None = None
        self._rate = RateLimit(options.rate_max)
        self._pace = LockBatchSize()
        self._last: dict[str, Any] = {"epoch": 0}
        self._in_batch: list[str] = []
        self._halts: dict[str, float] = {}
        self._is_stopped = False
        self._mailbox = None if options.mailbox is None else ProcessMailbox(options.mailbox)

    def initialOffset(self) -> dict[str, Any]:
        return {"epoch": 0}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        last = start or self._last
        if "epoch" not in last:
            raise InvalidOption(
                "the checkpoint is that of a stream with mode=peek or delete, which keeps sequence numbers, and this "
                "one has mode=lock; give each stream a checkpointLocation of its own"
            )
        looks = 1 if self._watcher is None else IDLE_LOOKS  # the first has waited for the watcher
        for _ in range(looks):
            if self._mailbox is not None and self._mailbox.is_raised(STOP):
                self._let_go()
                return last
            watcher = self._watching()
            watcher.taken(self._in_batch)  # Spark asks only when the batch before is done
            self._in_batch = []
            ready = watcher.ready()
            now = time.monotonic()
            self._pace.ended(now)
            self._hear(now)
            wait_s = self._rate.wait_s(now)
            if ready and wait_s <= 0:
                return self._begin(last, ready, now)
            if looks > 1:
                watcher.wait_for_any(IDLE_LOOK_S) if not ready else time.sleep(min(wait_s, IDLE_LOOK_S))
        return last

    def _begin(self, last: dict[str, Any], ready: list[str], now: float) -> dict[str, Any]:
        """Return the offset of a batch from these queues."""
        at_most = min(self._options.messages_per_trigger_max, self._pace.batch(self._rate.measured(now)))
        allowed = self._rate.batch(at_most, 1, now)
        self._pace.began(allowed, now)
        self._rate.received(allowed, now)
        # The clock, so that it grows from one run to the next where Spark hands over no start (before 4.2).
        epoch = max(last["epoch"] + 1, time.time_ns() // 1_000_000)
        self._in_batch = ready
        self._tell({"epoch": epoch, "entities": ready})
        self._last = {"epoch": epoch, "entities": ready, "count": allowed}
        if halts := {path: until for path, until in self._halts.items() if until > time.time()}:
            self._last["halts"] = halts
        return self._last

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        entities = end.get("entities") or [""] * WARMED
        count = -(-int(end.get("count", 0)) // len(entities))
        halts = tuple((path.lower(), until) for path, until in end.get("halts", {}).items())
        counts = shares(count, -(-self._options.partitions_min // len(entities)))
        more = {"halts": halts, "sessions": self._options.sessions}
        return [share for entity in entities for share in shares_of(entity, counts, **more)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return receive(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the sink has settled the messages, and there is nothing to remember."""

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
        connections.close_all()

    def _let_go(self) -> None:
        """Stop before the application gives back what is locked: a watcher would take some of it, and Spark, which
        kills this process rather than end it, would leave that locked."""
        if not self._is_stopped:
            self._is_stopped = True
            if self._watcher is not None:
                self._watcher.stop()
                self._watcher = None
            self._tell({"stopped": True})

    def _watching(self) -> LongPoll:
        if self._watcher is None:
            if self._mailbox is None:  # the syphon has its own way with queues that are not there
                self._check()
            self._watcher = LongPoll(
                lambda: connections.endpoint(self._options.address).client(),
                self._discovery.names(),
                polled=lambda entity: self._tell({"entity": entity, "t": time.time()}),
                failed=lambda entity, error: self._tell(_trouble(entity, error)),
                found=self._found,
                sessions=self._options.sessions,
            )
            self._watcher.wait(BEGIN_S)
        else:
            self._watcher.watch(self._discovery.names())
        if self._mailbox is not None:
            for notice in self._mailbox.read_new(QUEUES):
                self._watcher.watch(notice["entities"])
        return self._watcher

    def _check(self) -> None:
        """At the start of the query, since the watcher would try again without end: raises what a receiver meets."""
        client = connections.client(self._options.address)
        for entity in self._discovery.names():
            try:
                receiver = client.next_session(entity, 0.0) if self._options.sessions else client.receiver(entity)
                if receiver is not None:
                    receiver.close()
            except Refused as error:
                if isinstance(error, NotFound) and self._discovery.may_change:
                    continue  # a glob found it, and it is gone: others go on
                advice = ""
                if is_about_sessions(error):
                    advice = "; leave out the option sessions" if self._options.sessions else "; set sessions=true"
                raise InvalidOption(f"a stream with mode=lock can't receive from {entity}: {error}{advice}") from None

    def _found(self, message: ReceivedMessage) -> None:
        if message.locked_until is not None:
            lock_s = message.locked_until - time.time()
            self._pace.found(min(lock_s, WORKER_S) if self._options.sessions else lock_s, message.delivery_count)

    def _hear(self, now: float) -> None:
        """Read the sink's reports on destinations: how many messages got through, and that one is busy."""
        if self._mailbox is None:
            return
        for notice in self._mailbox.read_new(HALTS):
            self._halts = notice["halts"]
        for notice in self._mailbox.read_new(MOVES):
            moved = sum(notice["moved"].values())
            if moved:
                self._rate.moved(moved, now)
            if notice["busy"]:
                self._rate.busy(now)

    def _tell(self, notice: dict[str, Any]) -> None:
        if self._mailbox is not None:
            self._mailbox.append(POLLS, notice)


def is_about_sessions(error: WireError) -> bool:
    """Return whether an entity refuses a receiver since it requires sessions, or has none."""
    return "session" in error.description.lower()


def _trouble(entity: str, error: WireError) -> dict[str, Any]:
    return {
        "entity": entity,
        "t": time.time(),
        "condition": error.condition,
        "error": str(error),
        "kind": type(error).__name__,
    }


def receive(options: ConnectorOptions, share: Share) -> Iterator[pa.RecordBatch]:
    try:
        if options.mailbox is None:
            yield from fill(Rows(columns_of(options)), options.address, share)
        else:
            yield from packed(options.address, share)
    except WireError as error:
        # Deleted since the watcher found it: there is nothing to read. As an error it would end the query, and Spark
        # would begin the next with the same batch, again and again.
        if error.condition not in GONE:
            raise


def packed(address: Address, share: Share) -> Iterator[pa.RecordBatch]:
    """Yield the messages in rows for the syphon's sink, as they come."""
    for messages in take(address, share):
        if share.halts:
            now = time.time()
            messages = [each for each in messages if not is_halted(each.payload, share.halts, now)]
        yield from pack(share.entity, [(each.tag, each.payload) for each in messages])


def fill(rows: Rows, address: Address, share: Share) -> Iterator[pa.RecordBatch]:
    for messages in take(address, share):
        while messages:  # those that are handed on need not be kept
            message = messages.pop(0)
            rows.add(share.entity, message.payload, lock_token=message.lock_token)
            if rows.is_full:
                yield rows.batch()
    if len(rows):
        yield rows.batch()


def is_halted(payload: bytes, halts: tuple[tuple[str, float], ...], now: float) -> bool:
    """Return whether the application pauses messages to this destination; the end of the lock is the back-off."""
    path = path_of(payload).lower()
    return any(path == halted and now < until for halted, until in halts)


def take(address: Address, share: Share) -> Iterator[list[ReceivedMessage]]:
    """Yield locked messages, as they come. What is not among the chosen is held until the end, since it would come
    again at once, and then released on its link: that does not count as a delivery (an abandoned or expired lock
    does)."""
    if share.count < 1:
        return
    if share.sessions:
        yield from _by_session(address, share)
        return
    with connections.receiver(address, share.entity) as receiver:
        if share.chosen is None:
            yield from _all(receiver, share.count, share.wait_s)
        else:
            yield from _chosen(receiver, share.count, share.chosen)


def _by_session(address: Address, share: Share) -> Iterator[list[ReceivedMessage]]:
    """Accept one session after the other, as long as one is free, and yield its messages. The sessions stay locked when
    this ends, and are free at once where it is broken off."""
    check_worker()
    client = connections.client(address)
    accepted: list[HeldSession] = []
    got = 0
    try:
        while got < share.count and len(accepted) < SESSIONS_MAX:
            receiver = client.next_session(share.entity, WAIT_SESSION_S if accepted else share.wait_s)
            if receiver is None:
                break
            session = HeldSession(client, receiver)
            accepted.append(session)
            for messages in _all(receiver, share.count - got, WAIT_NEXT_S):
                got += len(messages)
                session.received(messages)
                yield messages
    except BaseException:
        for session in accepted:
            session.give_back()
        raise
    for session in accepted:
        SESSIONS.hold(session)


def _all(receiver: Receiver, count: int, wait_s: float) -> Iterator[list[ReceivedMessage]]:
    got = 0
    request = RequestSize(RECEIVE_COUNT)
    while got < count:
        # After the first there is no need to wait: the peer is asked for what it has now, and says if that is nothing.
        messages = receiver.receive(min(request.count, count - got), max_wait=0.0 if got else wait_s)
        if not messages:
            return
        got += len(messages)
        request.received([len(message.payload) for message in messages])
        yield messages


def _chosen(receiver: Receiver, count: int, chosen: Selection) -> Iterator[list[ReceivedMessage]]:
    passed: list[ReceivedMessage] = []
    waiting = set(chosen.partitions)
    request = RequestSize(RECEIVE_COUNT)
    got = 0
    end: float | None = None
    try:
        while got < count and len(passed) < PASSED_MAX:
            # no more than is wanted, since what is not needed need not be locked; but strides where many are in front
            asked = min(request.count, max(count - got, STRIDE if passed else 1))
            messages = receiver.receive(asked, max_wait=WAIT_FIRST_S if end is None else WAIT_NEXT_S)
            if not messages:
                return
            request.received([len(message.payload) for message in messages])
            if end is None:
                lock_s = (messages[0].locked_until or 0.0) - time.time()
                end = time.monotonic() + min(HOLD_S[1], max(HOLD_S[0], lock_s / 3))
            wanted: list[ReceivedMessage] = []
            beyond = 0
            for message in messages:
                number = message.sequence_number
                if number in chosen and got + len(wanted) < count:
                    wanted.append(message)
                else:
                    if number is not None and chosen.is_beyond(number):
                        beyond += 1
                        waiting.discard(partition_of(number))  # order holds within a partition
                    message.payload = b""
                    passed.append(message)
            got += len(wanted)
            if wanted:
                yield wanted
            if (beyond == len(messages) and not waiting) or time.monotonic() >= end:
                return
    finally:
        if passed:
            with contextlib.suppress(WireError):
                receiver.release(passed)
