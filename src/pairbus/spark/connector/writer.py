"""Writes `df.write` and `df.writeStream` to Service Bus; a task succeeds only when every message is confirmed.

At least once: a task that Spark runs again sends again, with the same message ids (`row_ids`), so that duplicate
detection at the destination removes the second copies. Rows that can never be sent are found before any of their chunk
of about 16 MB is sent; a destination that is busy, full or unreachable is waited for in the task. Rows of a `lock`
stream are settled where they came from, after they are confirmed, if the options name that namespace; one whose lock
has expired is not sent, since another receiver may have it by now.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pairbus.errors import PairbusError
from pairbus.spark.connector import connections
from pairbus.spark.connector.process_mailbox import ProcessMailbox
from pairbus.syphon.core.destinations import HALT_S, RefusalVerdict, pause, verdict_of
from pairbus.syphon.core.rate_limit import RateLimit
from pairbus.wire.errors import NotFound, WireError
from pairbus.wire.settling import COMPLETED, DEAD_LETTERED, count_lost

from .arrow_rows import StreamWriter, batches, by_bytes
from .entities import without_dead_letters
from .options import DEAD_LETTER, FAIL, PATIENCE_S, Address, InvalidOption
from .schema import Lock, Outgoing, Unsendable, outgoing
from .values.row_ids import RowIds

SEND_TIMEOUT_S: Final = 60.0
AT_ONCE: Final = 1000
CHUNK_BYTES: Final = 16 * 1024 * 1024
#: The memory of a message besides its payload.
MESSAGE_BYTES: Final = 400
#: A row with less time than this left on its lock is not sent: its confirmation would come too late.
SPARE_S: Final = 1.0
#: Messages that are sent alone to find out whether a destination accepts any without a session.
TRIALS: Final = 3
REASON: Final = "refused by the destination"
#: The file of the mailbox in which a stream reports the results of its rows.
WRITTEN: Final = "written"

T = TypeVar("T")
_log = logging.getLogger("pairbus.spark")


class NotSent(PairbusError):
    pass


@dataclass
class Sent(WriterCommitMessage):
    """The results of rows. `late`: not sent, since their locks had ended; `lost`: sent, but their locks ended before
    they were settled, so that they come again; `refused`: left out, dead-lettered or collected."""

    count: int = 0
    late: int = 0
    lost: int = 0
    refused: int = 0

    def add(self, other: Sent) -> None:
        self.count += other.count
        self.late += other.late
        self.lost += other.lost
        self.refused += other.refused


class Task(NamedTuple):
    """Identifies a task of Spark's, the same in every attempt at it."""

    query: str
    batch: str
    partition: int


def current_task(run: str) -> Task:
    """Return the task that runs here. `run`: the id of the write. Raises InvalidOption under speculation."""
    context = TaskContext.get()
    if context is None:
        return Task(run, "", 0)
    if str(context.getLocalProperty("spark.speculation")).lower() == "true":
        raise InvalidOption(
            "spark.speculation is on: a second copy of a slow task would send all of its messages a second time; "
            "nothing was sent. Start the session with spark.speculation=false"
        )
    return Task(run, "", context.partitionId())


def current_stream_task(run: str) -> Task:
    """Return the task of a stream: a query keeps its id, and numbers its batches, from one start to the next."""
    task, context = current_task(run), TaskContext.get()
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if context is None or query is None:
        return task
    return task._replace(query=query, batch=context.getLocalProperty("streaming.sql.batchId") or "")


# -- settling


def settle(address: Address, locks: Iterable[Lock], disposition: str = COMPLETED, why: str | None = None) -> int:
    """Settle what was received, and return how many locks were lost: that costs a duplicate, never a message."""
    by_entity: dict[str, list[Lock]] = {}
    for lock in locks:
        by_entity.setdefault(lock.entity, []).append(lock)
    words = {} if why is None else {"reason": REASON, "description": why}
    lost = 0
    for entity, found in by_entity.items():
        tokens, numbers = [lock.token for lock in found], [lock.number for lock in found]
        lost += count_lost(
            connections.client(address).settle_each(
                entity, tokens, disposition, numbers=numbers, timeout=SEND_TIMEOUT_S, **words
            )
        )
    return lost


# -- sending


def attempt(address: Address, target: str, messages: Sequence[Outgoing]) -> list[WireError | None]:
    """Return an answer for each, None if it was confirmed. Raises if the link can't be opened: then none was sent."""
    sender = connections.sender(address, target)
    payloads = [message.payload for message in messages]
    answers = sender.send_grouped(payloads, [message.company for message in messages], timeout=SEND_TIMEOUT_S)
    # one that is refused takes its whole batch with it; by themselves the others pass, and the answer is its own
    refused = [
        index
        for index, error in enumerate(answers)
        if error is not None and verdict_of(error) is RefusalVerdict.REFUSED
    ]
    if refused:
        alone: list[WireError | None]
        try:
            alone = sender.send_many([payloads[index] for index in refused], timeout=SEND_TIMEOUT_S)
        except WireError as error:  # the link was lost meanwhile; what was confirmed before stays so
            alone = [error] * len(refused)
        for index, answer in zip(refused, alone, strict=True):
            answers[index] = answer
    return answers


class Patience:
    """Waits while a destination is busy, full or unreachable, until it has taken nothing for `limit_s`."""

    def __init__(
        self,
        target: str,
        rate: RateLimit,
        limit_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._target = target
        self.rate = rate
        self._limit_s = limit_s
        self.clock = clock
        self.sleep = sleep
        self._strikes = 0
        self._progress_at = clock()

    def __repr__(self) -> str:
        return f"<Patience with {self._target}: {self._strikes} failures>"

    def progressed(self) -> None:
        self._strikes = 0
        self._progress_at = self.clock()

    def wait(self, errors: Sequence[WireError]) -> None:
        """Raises NotSent for errors that waiting can't solve, and when the time is over."""
        now = self.clock()
        verdicts = {verdict_of(error): error for error in errors}
        for verdict in (RefusalVerdict.GONE, RefusalVerdict.DENIED):
            if verdict in verdicts:
                raise NotSent(f"{len(errors)} messages to {self._target} were not confirmed: {verdicts[verdict]}")
        left_s = self._progress_at + self._limit_s - now
        if left_s <= 0:
            raise NotSent(f"{self._target} has taken no message for {self._limit_s:.0f} s: {errors[0]}; try later")
        self._strikes += 1
        if RefusalVerdict.BUSY in verdicts:
            self.rate.busy(now)
            pause_s = HALT_S
        else:
            pause_s = max(pause(verdict, self._strikes) for verdict in verdicts)
        if self._strikes == 1:
            _log.warning("%s takes no messages now: %s; waiting", self._target, errors[0])
        self.sleep(min(pause_s, left_s))


def send_patiently(
    send: Callable[[Sequence[T]], Sequence[WireError | None]],
    messages: Sequence[T],
    patience: Patience,
    confirmed: Callable[[Sequence[T]], None],
    before: Callable[[Sequence[T]], Sequence[T]] = lambda waiting: waiting,
) -> list[tuple[T, WireError]]:
    """Send until all is confirmed but what is refused permanently, which is returned. Raises NotSent.

    `before` each try says which of those that wait are still to be sent, and may raise.
    """
    rate, clock = patience.rate, patience.clock
    waiting: Sequence[T] = messages
    refused: list[tuple[T, WireError]] = []
    while waiting:
        if (wait_s := rate.wait_s(clock())) > 0:
            patience.sleep(wait_s)
        waiting = before(waiting)
        some = waiting[: rate.batch(AT_ONCE, 1, clock())]
        if not some:
            break
        try:
            answers = send(some)
        except WireError as error:  # the link was not opened: none of them was sent
            answers = [error] * len(some)
        rate.received(len(some), clock())
        arrived: list[T] = []
        again: list[T] = []
        troubles: list[WireError] = []
        for message, answer in zip(some, answers, strict=True):
            if answer is None:
                arrived.append(message)
            elif verdict_of(answer) is RefusalVerdict.REFUSED:
                refused.append((message, answer))
            else:
                again.append(message)
                troubles.append(answer)
        waiting = [*again, *waiting[len(some) :]]
        if arrived:
            rate.moved(len(arrived), clock())
            confirmed(arrived)
        if len(again) < len(some):
            patience.progressed()
        if troubles:
            patience.wait(troubles)
    return refused


Refusal = tuple[Outgoing | Unsendable, str]


@dataclass(frozen=True)
class WriterConfig:
    """The destination of rows, and the action for refused ones; the names are those of `ConnectorOptions`."""

    address: Address
    entity: str | None
    settle: Address | None = None
    on_refused: str = FAIL
    refused_path: str | None = None
    patience_s: float = PATIENCE_S
    mailbox: str | None = None
    #: Messages a second of one task; None for no limit.
    rate_max: float | None = None


class _Sending:
    """Sends the rows of one task, chunk by chunk."""

    def __init__(self, writer: _Writing, task: Task) -> None:
        self._writer = writer
        self._rate = RateLimit(writer.config.rate_max)
        self._entity = writer.config.entity
        #: Destinations that have taken a message without a session.
        self._without_session: set[str] = set()
        self._collected: list[Lock] = []
        self.sent = Sent()
        self._file = None
        if writer.config.refused_path is not None:
            from .refused_rows import RefusedRows  # which imports much, in every process of Spark's

            name = "-".join(filter(None, ("refused", task.query, task.batch, f"{task.partition:05}")))
            self._file = RefusedRows(writer.config.refused_path, name)

    def chunk(self, rows: Sequence[Outgoing | Unsendable]) -> None:
        refused: list[Refusal] = []
        by_target: dict[str, list[Outgoing]] = {}
        for row in rows:
            target = row.destination or self._entity
            if isinstance(row, Unsendable):
                refused.append((row, row.reason))
            elif target is None:
                refused.append((row, "the row has no destination, and the option entity is not given"))
            else:
                by_target.setdefault(target, []).append(row)
        fitting = {target: self._fitting(target, found, refused) for target, found in by_target.items()}
        self._check(refused, len(rows), "nothing of their part of the batch was sent")
        rest = {target: self._first_without_session(target, found, refused) for target, found in fitting.items()}
        self._check(refused, len(rows), "nothing of their part of the batch was sent there")
        for target, found in rest.items():
            refused += self._deliver(target, found)
        self._check(refused, len(rows), "the others of their part of the batch were sent")
        self._put_aside(refused)

    def finish(self) -> Sent:
        if self._file is not None:
            self._file.finish()
        if self._collected and self._writer.config.settle is not None:
            self.sent.lost += settle(self._writer.config.settle, self._collected)
        return self.sent

    def give_up(self) -> None:
        if self._file is not None:
            self._file.discard()

    def _check(self, refused: list[Refusal], count: int, rest: str) -> None:
        if refused and self._writer.config.on_refused == FAIL:
            row, why = refused[0]
            target = row.destination or self._entity
            raise NotSent(
                f"{len(refused)} of {count} rows can't be sent to {target}: {why}; {rest}. The option onRefused says "
                "what else is done with such rows"
            )

    def _patience(self, target: str) -> Patience:
        return Patience(target, self._rate, self._writer.config.patience_s)

    def _fitting(self, target: str, messages: list[Outgoing], refused: list[Refusal]) -> list[Outgoing]:
        """Without those that are too large for the destination, or for whom there is none."""
        patience = self._patience(target)
        while True:
            self._writer.check_not_over(len(messages), target)
            try:
                limit = connections.sender(self._writer.config.address, target).message_bytes_max
                break
            except NotFound as error:
                if target == self._entity:
                    raise NotSent(f"{len(messages)} messages to {target} were not confirmed: {error}") from None
                refused += [(message, str(error)) for message in messages]
                return []
            except WireError as error:
                patience.wait([error])
        fitting: list[Outgoing] = []
        for message in messages:
            size = len(message.payload)
            if size <= limit:
                fitting.append(message)
            else:
                refused.append((message, f"the message has {size} bytes, and {target} takes {limit:.0f} at most"))
        return fitting

    def _first_without_session(self, target: str, messages: list[Outgoing], refused: list[Refusal]) -> list[Outgoing]:
        """What is left to be sent when it is known whether the destination takes messages without a session. Only a
        send tells, so the first such message goes by itself; the next one, where that is refused for another reason."""
        rest = list(self._in_time(target, messages))
        for _ in range(TRIALS):
            if target in self._without_session:
                break
            plain = [message for message in rest if message.company[0] is None]
            if not plain:
                break
            before = self.sent.count
            found = self._deliver(target, plain[:1])
            rest = [message for message in rest if message is not plain[0]]
            refused += found
            if self.sent.count > before:
                self._without_session.add(target)
            elif found and "session" in found[0][1].lower():
                refused += [(message, found[0][1]) for message in plain[1:]]
                rest = [message for message in rest if message.company[0] is not None]
        return rest

    def _deliver(self, target: str, messages: Sequence[Outgoing]) -> list[Refusal]:
        refused = send_patiently(
            partial(attempt, self._writer.config.address, target),
            messages,
            self._patience(target),
            partial(self._confirmed, target),
            partial(self._in_time, target),
        )
        return [(message, str(error)) for message, error in refused]

    def _in_time(self, target: str, waiting: Sequence[Outgoing]) -> Sequence[Outgoing]:
        self._writer.check_not_over(len(waiting), target)
        if self._writer.config.settle is None:
            return waiting
        end = time.time() + SPARE_S
        kept = [each for each in waiting if each.lock is None or each.lock.until is None or each.lock.until >= end]
        self.sent.late += len(waiting) - len(kept)
        return kept

    def _confirmed(self, target: str, messages: Sequence[Outgoing]) -> None:
        self.sent.count += len(messages)
        self._writer.confirmed(target, messages)
        if self._writer.config.settle is not None:
            locks = [message.lock for message in messages if message.lock is not None]
            self.sent.lost += settle(self._writer.config.settle, locks)

    def _put_aside(self, refused: list[Refusal]) -> None:
        self.sent.refused += len(refused)
        dead: dict[str, list[Lock]] = {}
        rows: list[dict[str, object]] = []
        for row, why in refused:
            # what comes from a dead-letter queue can't be dead-lettered again: its lock ends, and it stays there
            lock = None if row.lock is None or without_dead_letters(row.lock.entity)[1] else row.lock
            if self._writer.config.on_refused == DEAD_LETTER and lock is not None:
                dead.setdefault(why, []).append(lock)
                continue
            rows.append(
                {
                    "destination": row.destination or self._entity,
                    "reason": why,
                    "amqp": row.payload if isinstance(row, Outgoing) else None,
                    "columns": None if isinstance(row, Outgoing) else row.columns,
                }
            )
            if self._file is not None and row.lock is not None:
                self._collected.append(row.lock)
        if self._file is not None:
            self._file.add(rows)
        if self._writer.config.settle is not None:
            for why, locks in dead.items():
                self.sent.lost += settle(self._writer.config.settle, locks, DEAD_LETTERED, why)


class _Writing:
    def __init__(self, config: WriterConfig) -> None:
        self.config = config
        #: The same in all tasks, since Spark copies this object to them.
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows: a chunk is made while the one before it is on its way; never more than one is."""
        task = self._task()
        sending = _Sending(self, task)
        ids = RowIds(*task)
        under_way: Future[None] | None = None
        try:
            with ThreadPoolExecutor(1, "pairbus-writer") as thread:
                for chunk in self._chunks(iterator, ids):
                    if under_way is not None:
                        under_way.result()
                    under_way = thread.submit(sending.chunk, chunk)
                if under_way is not None:
                    under_way.result()
            return sending.finish()
        except BaseException:
            sending.give_up()
            raise

    def check_not_over(self, count: int, target: str) -> None:
        """Raises NotSent if nothing more may be sent."""

    def confirmed(self, target: str, messages: Sequence[Outgoing]) -> None:
        """Called as messages are confirmed."""

    def _task(self) -> Task:
        return current_task(self._run)

    def _chunks(self, iterator: Iterator[pa.RecordBatch], ids: RowIds) -> Iterator[list[Outgoing | Unsendable]]:
        chunk: list[Outgoing | Unsendable] = []
        size = 0
        for batch in batches(iterator):
            for part in by_bytes(batch, CHUNK_BYTES):
                for row in outgoing(part, ids):
                    chunk.append(row)
                    size += MESSAGE_BYTES + len(row.payload if isinstance(row, Outgoing) else row.columns)
                    if size >= CHUNK_BYTES:
                        yield chunk
                        chunk, size = [], 0
            # those whose locks run do not wait for the next, which may be a slow function's
            if chunk and self.config.settle is not None:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _report(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        total = Sent()
        for message in messages:
            if isinstance(message, Sent):
                total.add(message)
        if total.late or total.lost:
            _log.warning(
                "%d rows were not sent, since their locks had ended, and come again; %d were sent, but their locks "
                "ended before they could be settled, and come again too",
                total.late,
                total.lost,
            )
        if total.refused:
            _log.warning("%d rows were refused for good (onRefused=%s)", total.refused, self.config.on_refused)
        if self.config.mailbox is not None:
            with contextlib.suppress(OSError):  # it was removed just now
                ProcessMailbox(self.config.mailbox).append(WRITTEN, asdict(total))


class ServiceBusWriter(_Writing, DataSourceArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Only report: every message was confirmed when it was written."""
        self._report(messages)


class ServiceBusStreamWriter(_Writing, StreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Only report: every message was confirmed when it was written."""
        self._report(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Only report, for the tasks that ended: what was confirmed stays sent, and Spark runs the batch again."""
        self._report(messages)

    def _task(self) -> Task:
        return current_stream_task(self._run)
