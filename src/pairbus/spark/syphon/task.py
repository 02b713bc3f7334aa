"""Moves messages within one Spark task: restores them, sends them to their destinations, then settles them.

A shell like the in-process engine, on the same core: `TransferState` decides, `DestinationSender` sends. It lives as
long as its Python worker, so that connections, and what is known about destinations, outlast a micro-batch. Locks are
not renewed here; a message whose lock has too little time left is not sent and stays locked until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from pairbus.amqp.errors import NOT_IMPLEMENTED
from pairbus.spark.connector import connections
from pairbus.spark.connector.options import Address
from pairbus.spark.connector.values.transfer_packs import Locked
from pairbus.syphon.core.arrival import arrive, bound_for, message_id_of
from pairbus.syphon.core.destinations import Destinations, RefusalVerdict, verdict_of
from pairbus.syphon.core.pair_lifecycle import Which
from pairbus.syphon.core.transfer import (
    Command,
    Complete,
    DeadLetter,
    Leave,
    PendingTransfer,
    Rejection,
    Release,
    Renew,
)
from pairbus.syphon.core.transfer_state import TransferState
from pairbus.syphon.destination_sender import DestinationSender
from pairbus.wire import WireClient
from pairbus.wire.errors import LockLost, Unauthorized, WireError
from pairbus.wire.sender import Sender
from pairbus.wire.settling import ABANDONED, COMPLETED, DEAD_LETTERED, by_answer
from pairbus.wire.transactions import via_of

#: Sent and settled in one transaction: together no more than the 100 messages that the service allows.
TRANSACTION_MESSAGES: Final = 50
TRANSACTIONS_AT_ONCE: Final = 4
SETTLE_S: Final = 15.0
#: How many messages and bytes are taken before some of them have been answered.
IN_HAND_MAX: Final = 5000
IN_HAND_BYTES_MAX: Final = 16 * 1024 * 1024
#: A batch ends when everything has its answer; the senders' own time-outs come first.
BATCH_S: Final = 55.0


class Event(NamedTuple):
    """A line for the ledger, written by the driver: an executor's disk may be far away."""

    kind: str
    t: float
    entity: str
    message_id: str | None
    size: int
    outcome: str
    queue: str


@dataclass
class TaskCounts:
    """Counts the results of one task's messages."""

    moved: dict[str, int] = field(default_factory=dict)
    moved_bytes: int = 0
    dead_lettered: dict[str, int] = field(default_factory=dict)
    #: (queue, lock token, destination, unix time at which the lock ends, whether it is refused permanently)
    left: list[tuple[str, str, str, float, bool]] = field(default_factory=list)
    #: destination → (verdict, text, condition, strikes)
    troubles: dict[str, tuple[str, str, str, int]] = field(default_factory=dict)
    #: (queue, sequence number, enqueued ms) → why; messages of a replay that can't be dead-lettered again
    refused: list[tuple[str, int | None, int | None, str]] = field(default_factory=list)
    #: "primary" or "secondary" → the words of the refusal
    denied: dict[str, str] = field(default_factory=dict)
    #: Destinations that said so.
    busy: set[str] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True)
class SinkOptions:
    """The settings of the sink's tasks, as text through Spark's options: nothing else reaches the workers."""

    primary: Address
    secondary: Address
    mailbox: str
    count_backlog_time: bool = False
    is_replay: bool = False
    wants_events: bool = False
    #: The destination of all messages, unchanged (`pairbus move`); None: each goes home.
    destination: str | None = None


class TransferTask:
    """Transfers batch after batch on one loop.

    Only what goes home is dead-lettered where it is refused permanently. Where the destination is in the namespace that
    the messages come from, each is completed there and sent here in one transaction; what that refuses goes the other
    way, where each message is refused by itself.
    """

    def __init__(self, options: SinkOptions) -> None:
        self.loop = asyncio.get_running_loop()
        primary, secondary = connections.endpoint(options.primary), connections.endpoint(options.secondary)
        self._destination = options.destination
        self._in_transactions = options.primary == options.secondary and self._destination is not None
        self._via_senders: dict[str, Sender] = {}
        self._can_dead_letter = not options.is_replay and self._destination is None
        self.transfer_state = TransferState(Destinations(), can_dead_letter=self._can_dead_letter)
        self.primary_client = primary.client()
        self._primary = primary
        self._secondary_client = secondary.client()
        self._options = options
        self._senders: dict[str, DestinationSender] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self._broken: BaseException | None = None
        self._counts = TaskCounts()

    def __repr__(self) -> str:
        return f"<TransferTask to {self._primary.label}: {self.transfer_state!r}>"

    async def take(self, rows: Sequence[Locked]) -> None:
        """Begin to transfer messages as soon as there is room for them: others may be read meanwhile."""
        await self._until(self._has_room)
        counts, now, now_unix = self._counts, self.loop.time(), time.time()
        self.transfer_state.tick(now)  # forgets what was left by earlier batches
        ids = [message_id_of(row.payload) if self._options.wants_events else None for row in rows]
        if self._options.wants_events:  # every delivery is billed, whatever becomes of it
            counts.events += [
                Event(
                    "receive", now_unix, row.queue, message_id, len(row.payload), "ok",
                    row.queue.removesuffix("/$DeadLetterQueue"),
                )
                for row, message_id in zip(rows, ids, strict=True)
            ]  # fmt: skip
        arrivals = self._arrivals(rows, ids, now, now_unix)
        if self._in_transactions:
            arrivals = await self._carry_in_transactions(arrivals)
        commands, wanted = self.transfer_state.received(arrivals, now)
        self.carry_out(commands)
        for path in wanted:
            self._sender(path).wake()

    async def finish(self) -> TaskCounts:
        """Return the counts of what was taken when every message of it is settled or left to its lock."""
        await self._until(self._is_idle)
        counts, self._counts = self._counts, TaskCounts()
        for path, trouble in self.transfer_state.destinations.troubled():
            counts.troubles[path] = (trouble.verdict.value, trouble.text, trouble.condition, trouble.strikes)
        return counts

    def _arrivals(
        self, rows: Sequence[Locked], ids: Sequence[str | None], now: float, now_unix: float
    ) -> list[PendingTransfer | Rejection]:
        """Return the transfers of rows. The handle of a transfer is where it was received from and, for the ledger, its
        id."""
        if self._destination is not None:
            bound = partial(
                bound_for, self._destination, now=now, now_unix=now_unix, is_dead_letter=self._options.is_replay
            )
            return [
                bound(queue, payload, token, handle=(queue, message_id))
                for (queue, token, payload), message_id in zip(rows, ids, strict=True)
            ]
        home = partial(
            arrive,
            now=now,
            now_unix=now_unix,
            count_backlog_time=self._options.count_backlog_time,
            is_replay=self._options.is_replay,
        )
        return [
            home(queue.removesuffix("/$DeadLetterQueue"), payload, token, handle=(queue, message_id))
            for (queue, token, payload), message_id in zip(rows, ids, strict=True)
        ]

    # -- both in one

    async def _carry_in_transactions(
        self, arrivals: Sequence[PendingTransfer | Rejection]
    ) -> list[PendingTransfer | Rejection]:
        """Complete messages there and send them here, some at a time; return those with which that did not work."""
        left: list[PendingTransfer | Rejection] = [each for each in arrivals if isinstance(each, Rejection)]
        by_queue: dict[str, list[PendingTransfer]] = {}
        for each in arrivals:
            if isinstance(each, PendingTransfer):
                by_queue.setdefault(each.handle[0], []).append(each)
        batches = [
            transfers[at : at + TRANSACTION_MESSAGES]
            for transfers in by_queue.values()
            for at in range(0, len(transfers), TRANSACTION_MESSAGES)
        ]
        for at in range(0, len(batches), TRANSACTIONS_AT_ONCE):
            some = batches[at : at + TRANSACTIONS_AT_ONCE]
            for transfers, is_done in zip(some, await asyncio.gather(*map(self._carry_together, some)), strict=True):
                if not is_done:
                    left += transfers
        return left

    async def _carry_together(self, transfers: Sequence[PendingTransfer]) -> bool:
        """Carry messages of one queue in one transaction, and return whether nothing is left to do about them."""
        if not self._in_transactions:
            return False
        client, queue = self.primary_client, transfers[0].handle[0]
        is_committing = False
        try:
            sender = await self._via_sender(via_of(queue))
            transaction = await client.transaction(via_of(queue), SETTLE_S)
            async with transaction:
                tokens = [transfer.token for transfer in transfers]
                await client.settle_by_token(queue, tokens, COMPLETED, timeout=SETTLE_S, transaction=transaction)
                payloads = [transfer.payload for transfer in transfers]
                for error in await sender.send_many(payloads, timeout=SETTLE_S, transaction=transaction):
                    if error is not None:
                        raise error
                is_committing = True
                await transaction.commit(SETTLE_S)
        except WireError as error:
            if is_committing and error.outcome_unknown:
                self._note_left(transfers)  # they are there, or here: the end of their locks tells
                return True
            if error.condition == NOT_IMPLEMENTED:
                self._in_transactions = False  # the peer has none
            return False
        self._note_moved(transfers)
        return True

    async def _via_sender(self, via: str) -> Sender:
        destination = self._destination
        assert destination is not None
        if via not in self._via_senders:
            is_other = via.lower() != destination.lower()
            sender = await self.primary_client.sender(destination, via=via if is_other else None, open_timeout=SETTLE_S)
            self._via_senders.setdefault(via, sender)
        return self._via_senders[via]

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until it is so; give up what has no answer by the end of BATCH_S. Raises what broke a task of its."""
        deadline = self.loop.time() + BATCH_S
        while not is_reached() and self._broken is None:
            if self.loop.time() >= deadline:
                self._give_up()
                break
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.05)
        if self._broken is not None:
            raise self._broken

    def _has_room(self) -> bool:
        state = self.transfer_state
        return state.in_hand < IN_HAND_MAX and state.in_hand_bytes < IN_HAND_BYTES_MAX

    def _is_idle(self) -> bool:
        return not (self.transfer_state.in_hand or self._tasks)

    def _give_up(self) -> None:
        """Leave what has no answer by now to its lock: it may have arrived, so it is not given back early."""
        for command in (*self.transfer_state.stop(), *self.transfer_state.give_up()):
            if isinstance(command, Release):
                self._note_left(command.transfers)
        self.transfer_state = TransferState(self.transfer_state.destinations, can_dead_letter=self._can_dead_letter)

    # -- called by the senders

    def carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Complete(_, transfers):
                    self.spawn(self._settle(transfers, COMPLETED))
                case DeadLetter(_, transfers, reason, description):
                    self.spawn(self._settle(transfers, DEAD_LETTERED, reason, description))
                case Leave(_, transfers, trouble):
                    self._changed.set()
                    is_refused = trouble.verdict is RefusalVerdict.REFUSED
                    self._note_left(transfers, is_refused)
                    if is_refused:
                        self._counts.refused += [
                            (*transfer.key, f"{trouble.condition}: {trouble.text}") for transfer in transfers
                        ]
                case Release(_, transfers):
                    self.spawn(self._settle(transfers, ABANDONED))
                case Renew():
                    pass  # no renewal on Spark: batches are small enough

    def confirmed(self, transfers: Sequence[PendingTransfer]) -> None:
        self._note_moved(transfers)
        self.carry_out(self.transfer_state.confirmed(transfers))

    def not_confirmed(self, transfers: Sequence[PendingTransfer], error: WireError) -> None:
        if verdict_of(error) is RefusalVerdict.BUSY:
            self._counts.busy.add(transfers[0].path)
        self._record("move", transfers[0].path, transfers, error.condition)
        self.carry_out(self.transfer_state.failed(transfers, error, self.loop.time()))

    def unsendable(self, path: str, error: WireError) -> None:
        if verdict_of(error) is RefusalVerdict.BUSY:
            self._counts.busy.add(path)
        self.carry_out(self.transfer_state.unsendable(path, error, self.loop.time()))

    def access_granted(self, which: Which) -> None:
        pass

    def access_refused(self, which: Which, error: WireError) -> None:
        self._counts.denied[which] = str(error)

    def isolated_client(self) -> WireClient | None:
        return self._primary.client()

    async def close_isolated(self, client: WireClient) -> None:
        await client.close()

    def later(self, seconds: float, closer: Callable[[], Awaitable[Any]]) -> None:
        async def close() -> None:
            await asyncio.sleep(seconds)
            await closer()

        task = self.loop.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def forget_sender(self, sender: DestinationSender) -> None:
        if self._senders.get(sender.path) is sender:
            del self._senders[sender.path]
            self.spawn(sender.close())

    # -- the backlog

    async def _settle(self, transfers: Sequence[PendingTransfer], disposition: str, *why: str) -> None:
        """Settle the transfers of one queue by their tokens. `why`: reason and description of a dead letter."""
        queue, tokens = transfers[0].handle[0], [transfer.token for transfer in transfers]
        words = dict(zip(("reason", "description"), why, strict=False))
        answers = await self._secondary_client.settle_each(queue, tokens, disposition, timeout=SETTLE_S, **words)
        for error, given in by_answer(transfers, answers):
            if error is not None:
                if isinstance(error, Unauthorized):
                    self.access_refused("secondary", error)
                is_lost = isinstance(error, LockLost)
                self.carry_out(self.transfer_state.unsettled(given, self.loop.time(), lock_lost=is_lost))
                continue
            if disposition == DEAD_LETTERED:
                for transfer in given:
                    name = transfer.path
                    self._counts.dead_lettered[name] = self._counts.dead_lettered.get(name, 0) + 1
                self._record("dead-letter", None, given, "ok")
            self.transfer_state.settled(given)

    def _note_moved(self, transfers: Sequence[PendingTransfer]) -> None:
        path, counts = transfers[0].path, self._counts
        counts.moved[path] = counts.moved.get(path, 0) + len(transfers)
        counts.moved_bytes += sum([transfer.size for transfer in transfers])
        self._record("move", path, transfers, "ok")

    def _note_left(self, transfers: Sequence[PendingTransfer], is_refused: bool = False) -> None:
        ends = time.time() - self.loop.time()
        for transfer in transfers:
            token = str(UUID(bytes_le=transfer.token))
            self._counts.left.append(
                (transfer.handle[0], token, transfer.path, transfer.locked_until + ends, is_refused)
            )

    def _record(self, kind: str, entity: str | None, transfers: Sequence[PendingTransfer], outcome: str) -> None:
        if self._options.wants_events:
            now = time.time()
            self._counts.events += [
                Event(kind, now, entity or p.queue, p.handle[1], p.size, outcome, p.queue) for p in transfers
            ]

    # -- plumbing

    def spawn(self, coroutine: Any) -> None:
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error

    def _sender(self, path: str) -> DestinationSender:
        if path not in self._senders:
            self._senders[path] = DestinationSender(self, path)
        return self._senders[path]

    async def close(self) -> None:
        for sender in list(self._senders.values()):
            await sender.close()
        await self.primary_client.close()
        await self._secondary_client.close()
