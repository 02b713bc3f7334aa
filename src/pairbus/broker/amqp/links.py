"""Serves the nodes behind a client's links: an entity that it sends to or receives from, or a request node.

Nodes pass messages between the AMQP engine and the namespace, remember which lock belongs to which delivery, and turn
refusals into errors that clients understand. docs/reference/protocol.md explains the rules that clients depend on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pairbus.amqp import errors as conditions
from pairbus.amqp.errors import AmqpError
from pairbus.amqp.events import Delivered, DeliveryTooLarge
from pairbus.amqp.link import Link, ReceiverLink, SenderLink
from pairbus.amqp.message import BATCH_FORMAT, split_batch
from pairbus.amqp.performative_types import Accepted, Error, Modified, Rejected, Released, TransactionalState
from pairbus.amqp.performatives import ACCEPTED_BYTES, REJECTED_EMPTY_BYTES, RELEASED_BYTES
from pairbus.amqp.transactions import in_transaction
from pairbus.amqp.types import Symbol
from pairbus.broker.format.content_checks import Checked, checking, checking_request, is_plain
from pairbus.broker.model.message import Message
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer, LocksLost, Outcome, Release
from pairbus.broker.model.partitions import NONE_DOWN, PARTITION_SHIFT, PARTITIONS, partition_for
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.operations.enqueue import partition_for_send
from pairbus.broker.operations.namespace import UNREAD_S, refusal_of_read
from pairbus.broker.refusal import Refusal
from pairbus.broker.telemetry.recorder import UnsettledDelivery
from pairbus.journal import JournalError, JournalStalled

from .requests import Request, Response, read_request

if TYPE_CHECKING:
    from pairbus.broker.model.sessions import SessionLock
    from pairbus.broker.model.topic import Topic
    from pairbus.broker.model.transaction import Transaction

    from .connection import AmqpConnection
    from .dispatcher import Dispatcher

#: The SDKs fill a batch up to the limit without counting the properties of its envelope.
_ENVELOPE_BYTES = 1024
#: The service's limit for one batch, whatever the size of a message may be.
_BATCH_BYTES_MAX = 1024 * 1024
_BATCH_MESSAGES_MAX = 4500
_CREDIT = 1000
#: How many messages one receiving link may hold locked on its credit alone.
_UNSETTLED_MAX = 5000
#: How often a full link looks for locks that are gone.
_SWEEP_S = 0.1
#: Locked at a time: between two a connection that has enough for now can be left alone.
_ACQUIRED_MAX = 64
_LOST_GRACE_S = 1.0
_TAKEN_BYTES_MAX = 4 * 1024 * 1024
_RESPONSE_BYTES_MAX = 4 * 1024 * 1024
_MODIFIED_BYTES = Modified().encode()
_COMPLETE = Complete()
_RELEASE = Release()


class Node(Protocol):
    """Base of the nodes behind links."""

    def closed(self) -> None:
        """Called once, when the link has ended in whatever way."""


def rejected(refusal: Refusal) -> bytes:
    """Return the encoded outcome. It has all three fields of the error, or Python's `send_messages` hangs
    (docs/reference/protocol.md#an-error-has-all-three-fields)."""
    info = {Symbol(conditions.OUTCOME_UNKNOWN): True} if refusal.is_unknown else None
    return Rejected(error=Error(refusal.condition, refusal.description, info)).encode()


class TargetNode:
    """The target of a link on which a client sends: a queue or topic."""

    __slots__ = ("connection", "link", "path", "target", "via")

    def __init__(
        self,
        connection: AmqpConnection,
        link: ReceiverLink,
        target: MessageQueue | Topic,
        via: MessageQueue | Topic | None = None,
    ) -> None:
        self.connection = connection
        self.link = link
        self.path = target.path
        self.target = target
        #: The entity to which the link is attached, where it names another one as the destination.
        self.via = via
        target.entity.links += 1  # an entity that somebody is attached to is not idle
        link.flow(_CREDIT)

    def delivered(self, event: Delivered) -> None:
        connection = self.connection
        connection.hold(len(event.payload))
        faults = connection.host.faults
        delay = faults.latency(self.path, connection.host.clock()) if faults.is_on else 0.0
        if delay:
            connection.loop.call_later(delay, self._store, event)
        else:
            self._store(event)
        if self.link.credit <= _CREDIT // 2:
            self.link.flow(_CREDIT)

    def top_up(self) -> None:
        """Give the client credit again when half of it has been used."""
        if self.link.credit <= _CREDIT // 2:
            self.link.flow(_CREDIT)

    def check(self, event: Delivered) -> Generator[None, None, Checked] | None:
        """Return how a large delivery is checked in slices before it is taken (content_checks.py), if it has to be."""
        payload, is_batch = event.payload, event.message_format == BATCH_FORMAT
        if event.message_format == 0:
            return None if is_plain(payload) else checking(payload, False)
        return checking(payload, True) if is_batch and len(payload) <= self._batch_bytes_max else None

    @property
    def _batch_bytes_max(self) -> int:
        return min(self.target.message_bytes_max, _BATCH_BYTES_MAX) + _ENVELOPE_BYTES

    def split(self, event: Delivered) -> list[bytes] | Refusal:
        """Return the messages of a delivery, or why it can't be taken."""
        checked = event.payload if isinstance(event.payload, Checked) else None
        if checked is not None and checked.error is not None:
            return Refusal(checked.error.condition, checked.error.description)
        if event.message_format == 0:
            return [event.payload]
        if event.message_format != BATCH_FORMAT:
            return Refusal(conditions.NOT_IMPLEMENTED, f"message format {event.message_format:#x} is not known")
        limit = self._batch_bytes_max
        if len(event.payload) > limit:
            text = f"The batch has {len(event.payload)} bytes; '{self.path}' takes up to {limit} bytes at once."
            return Refusal(conditions.MESSAGE_SIZE_EXCEEDED, text)
        try:
            payloads: list[bytes] = split_batch(event.payload) if checked is None else [*checked.messages]
        except AmqpError as error:
            return Refusal(error.condition, error.description)
        if len(payloads) > _BATCH_MESSAGES_MAX:
            text = f"The batch has {len(payloads)} messages; {_BATCH_MESSAGES_MAX} are allowed."
            return Refusal(conditions.MESSAGE_SIZE_EXCEEDED, text)
        return payloads

    def _store(self, event: Delivered) -> None:
        host = self.connection.host
        now = host.clock()
        payloads: list[bytes] | Refusal
        if event.message_format == 0 and not isinstance(event.payload, Checked):
            payloads = [event.payload]
        else:
            payloads = self.split(event)
            if isinstance(payloads, Refusal):
                self._stored(event, None, [], now, payloads)
                return
        results: list[int] = []
        done = partial(self._stored, event, payloads, results, now)
        if host.faults.is_on:
            partition = partition_for_send(self.target.entity, payloads)
            refusal = host.faults.refusal("send", self.path, now, len(payloads), len(event.payload), partition)
            if refusal is not None:
                done(refusal)
                return
            if host.faults.hangs(self.path, now):
                self.connection.release(len(event.payload))
                self.connection.hang(self.path)
                return
        if self.via is None:
            host.namespace.enqueue.send(self.target, payloads, now, done, results)
        else:
            host.namespace.transfer.send(self.via, self.target, payloads, now, done, results)

    def _stored(
        self,
        event: Delivered,
        payloads: list[bytes] | None,
        results: list[int],
        since: float,
        refusal: Refusal | None,
    ) -> None:
        """Answer a delivery. `payloads` is None where it could not be split into messages."""
        connection = self.connection
        host = connection.host
        connection.release(len(event.payload))
        if not event.settled and not self.link.detached:
            if refusal is not None:
                connection.reject(self.link, event.delivery_id, rejected(refusal))
            elif not host.faults.is_on or not connection.loses_answer(self.path):
                connection.confirm(self.link, event.delivery_id)
        if payloads is None:
            assert refusal is not None
            size, now = len(event.payload), host.clock()
            host.recorder.not_sent(self.path, size, connection.cause, since, now, refusal)
        else:
            host.recorder.sent(self.path, payloads, results, connection.cause, since, refusal)

    def too_large(self, event: DeliveryTooLarge) -> None:
        limit = self.target.message_bytes_max
        refusal = Refusal(
            conditions.MESSAGE_SIZE_EXCEEDED, f"the message has {event.size} bytes; the limit of the entity is {limit}"
        )
        if not event.settled:
            self.connection.reject(self.link, event.delivery_id, rejected(refusal))
        host = self.connection.host
        now = host.clock()
        host.recorder.not_sent(self.path, event.size, self.connection.cause, now, now, refusal)

    def closed(self) -> None:
        self.target.entity.links -= 1


class SourceNode:
    """The source of a link on which a client receives: a queue, subscription or session."""

    __slots__ = (
        "_grants",
        "_is_closed",
        "_is_waiting",
        "_lost_timer",
        "_reserved",
        "_sweep_at",
        "connection",
        "dispatcher",
        "link",
        "path",
        "queue",
        "removes",
        "session",
        "unsettled",
    )

    def __init__(
        self,
        connection: AmqpConnection,
        link: SenderLink,
        queue: MessageQueue,
        dispatcher: Dispatcher,
        session: SessionLock | None = None,
    ) -> None:
        self.connection = connection
        self.link = link
        self.path = queue.path
        self.queue = queue
        self.dispatcher = dispatcher
        self.session = session
        #: RECEIVE_AND_DELETE: the client asked for settled transfers.
        self.removes = link.snd_settle_mode == 1
        #: Delivery id → lock token, sequence number, message id where a ledger is kept
        self.unsettled: dict[int, UnsettledDelivery] = {}
        self._reserved = 0
        self._sweep_at = float("-inf")
        self._lost_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        #: The client has asked for messages and got none since.
        self._is_waiting = link.credit > 0
        self._grants = link.grants
        queue.entity.links += 1
        queue.entity.count_receiver(1)
        dispatcher.add(self)

    def __repr__(self) -> str:
        return f"<SourceNode {self.path}: credit {self.link.credit}, {len(self.unsettled)} unsettled>"

    @property
    def capacity(self) -> int:
        """How many messages could be delivered now."""
        link = self.link
        if self._is_closed or not link.is_open or not self.connection.takes_more:
            return 0
        # What doesn't fit in the client's window would be locked, or even removed, without being sent.
        granted = min(link.credit, link.session.room)
        if self.removes:
            return min(granted, self._usual_count()) - self._reserved
        return min(granted - self._reserved, _UNSETTLED_MAX - len(self.unsettled))

    def note_grant(self) -> None:
        """Record an empty receive where the client asks for messages again and got none since it did before."""
        if self._grants != self.link.grants:
            self._grants = self.link.grants
            self._end_wait()
            self._is_waiting = not self.link.unseen

    def _end_wait(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            host = self.connection.host
            host.recorder.polled(self.path, self.connection.cause, host.clock())

    def _usual_count(self) -> int:
        """Return how many messages of the queue's average size are removed at once: they are all in memory then."""
        return max(1, _TAKEN_BYTES_MAX * len(self.queue) // max(1, self.queue.size_bytes))

    @property
    def is_full(self) -> bool:
        return len(self.unsettled) >= _UNSETTLED_MAX

    @property
    def is_shut(self) -> bool:
        """Whether the client itself keeps messages from being sent, so that a drain has nothing to wait for."""
        return self.is_full or self.link.session.is_blocked

    def sweep(self) -> None:
        """Forget deliveries whose locks are gone: expired, or settled by token over another link. When few are found it
        is tried again later, since nothing reports when they go."""
        loop = self.connection.loop
        if loop.time() >= self._sweep_at:
            gone = [i for i, (token, _, _) in self.unsettled.items() if self.queue.locked_by(token) is None]
            for delivery_id in gone:
                del self.unsettled[delivery_id]
                self.connection.forget(self.link, delivery_id)
            if len(gone) >= _UNSETTLED_MAX // 10:
                return
            self._sweep_at = loop.time() + _SWEEP_S
        if self.is_full:
            loop.call_later(_SWEEP_S, self.dispatcher.wake)

    def deliver(self, count: int) -> int:
        """Send up to `count` messages and return how many were taken from the queue."""
        host = self.connection.host
        now = host.clock()
        held_back = NONE_DOWN
        if host.faults.is_on:
            count = min(count, self.dispatcher.available())
            if self.queue.partition_sizes is not None:
                count, held_back = self._of_partitions(count, now)
            allowed = host.faults.receive(self.path, now, count, is_partitioned=self.queue.partition_sizes is not None)
            if isinstance(allowed, Refusal):
                self.cut(allowed)
                return 0
            if not allowed:
                self.dispatcher.wake_later()
                if self.link.drain:
                    self.answer_drain()
                return 0
            count = allowed
            delay = host.faults.latency(self.path, now)
            if delay:
                self._reserved += count
                self.connection.loop.call_later(delay, self._deliver_late, count)
                return count
        return self._deliver(count, now, held_back)

    def _of_partitions(self, count: int, now: float) -> tuple[int, frozenset[int]]:
        """Return how many messages the rates of the queue's partitions allow, and which partitions have to wait."""
        faults = self.connection.host.faults
        if self.removes and self._reserved:  # what is being removed is charged when it is known
            return 0, NONE_DOWN
        if self.session is not None:
            count, spent = faults.receive_from(self.path, now, count, (partition_for(self.session.session_id),))
            return (0 if spent else count), NONE_DOWN
        count, spent = faults.receive_from(self.path, now, count, range(PARTITIONS))
        return min(count, self.queue.available_without(spent)) if spent else count, spent

    def _deliver_late(self, count: int) -> None:
        self._reserved -= count
        if self.capacity > 0:
            self._deliver(min(count, self.capacity), self.connection.host.clock())
            self.connection.flush_soon()
        self.dispatcher.wake()  # what a competing receiver got in the meantime, and a drain that waited for this

    def _deliver(self, count: int, now: float, held_back: frozenset[int] = NONE_DOWN) -> int:
        if not held_back:
            return self._hand_over(count, now)
        with self.queue.holding_back(held_back):
            return self._hand_over(count, now)

    def _hand_over(self, count: int, now: float) -> int:
        namespace = self.connection.host.namespace
        if self.removes:
            self._reserved += count
            if not namespace.receive.take(self.queue, count, now, partial(self._taken, count), session=self.session):
                self.dispatcher.pause(UNREAD_S)
            return count
        connection = self.connection
        received, cause = connection.host.recorder.received, connection.cause
        link = self.link
        before = connection.unflushed_bytes
        spends_by_partition = connection.host.faults.is_on and self.queue.partition_sizes is not None
        taken = 0
        goes_on = True
        while taken < count and connection.takes_more and goes_on:
            messages = namespace.receive.acquire(self.queue, min(count - taken, _ACQUIRED_MAX), now, self.session)
            if not messages:
                break
            taken += len(messages)
            for message in messages:
                token = message.lock_token
                assert token is not None
                try:
                    payload = namespace.receive.delivery(self.queue, message, locked=True)
                except JournalError as error:
                    goes_on = self._not_read(messages, message, error, now)
                    if goes_on:
                        continue
                    break
                connection.unflushed_bytes += len(payload)
                delivery_id = link.send(payload, token)
                mid = received(self.path, message, payload, cause, now)
                self.unsettled[delivery_id] = (token, message.sequence_number, mid)
                connection.unsettled(link, delivery_id, self)
                if spends_by_partition:
                    self._spend(message, payload, now)
        if connection.unflushed_bytes > before:
            self._is_waiting = False
        if connection.host.faults.is_on and not spends_by_partition:
            connection.host.faults.spend(self.path, now, size=connection.unflushed_bytes - before)
        return taken

    def _not_read(self, messages: list[Message], message: Message, error: JournalError, now: float) -> bool:
        """Skip a message that was acquired with others and can't be read; return whether to deliver the others.

        In a stall it is passed over, or within a session waited for. Else the lock runs out by itself, which counts:
        one that can never be read is dead-lettered in the end.
        """
        namespace = self.connection.host.namespace
        is_stalled = isinstance(error, JournalStalled)
        if is_stalled and self.session is None:
            if not namespace.receive.pass_over(self.queue, message, now):
                self.dispatcher.pause(UNREAD_S)
            return True
        behind = messages[messages.index(message) + 1 :]
        namespace.receive.give_back(self.queue, [message, *behind] if is_stalled else behind, now, self.session)
        if is_stalled:
            self.dispatcher.pause(UNREAD_S)
        else:
            self.cut(refusal_of_read(error))
        return False

    def _spend(self, message: Message, payload: bytes, now: float) -> None:
        is_partitioned = self.queue.partition_sizes is not None
        partition = message.sequence_number >> PARTITION_SHIFT if is_partitioned else None
        self.connection.host.faults.spend(self.path, now, size=len(payload), partition=partition)

    def _taken(self, count: int, messages: list[Message], refusal: Refusal | None) -> None:
        self._reserved -= count
        if refusal is not None:
            self.cut(refusal)
            return
        namespace, recorder = self.connection.host.namespace, self.connection.host.recorder
        now = self.connection.host.clock()
        if messages:
            self._is_waiting = False
        for message in messages:
            payload = namespace.receive.delivery(self.queue, message, locked=False)
            # one that left while the removal was synced has lost it, as with every receive-and-delete
            if not self._is_closed:
                self.link.send(payload, b"", settled=True)  # it can't be settled any more: the tag is empty
            recorder.received(self.path, message, payload, self.connection.cause, now, removed=True)
            if self.connection.host.faults.is_on:
                self._spend(message, payload, now)
        self.connection.flush_soon()
        self.dispatcher.wake()

    def cut(self, refusal: Refusal) -> None:
        self.connection.cut(self.link, refusal)

    def session_lost(self) -> None:
        """Detach the link soon: its session's lock has expired."""
        assert self.session is not None
        text = f"The session lock of '{self.session.session_id}' has expired. Accept the session again."
        refusal = Refusal(conditions.SESSION_LOCK_LOST, text)
        # a client that waits for just the lock's time for another message shall see the end of its wait first
        self._lost_timer = self.connection.loop.call_later(_LOST_GRACE_S, self.cut, refusal)

    def answer_drain(self) -> None:
        """Use up the credit that the client wants drained, unless messages for it are still on their way."""
        if self._reserved == 0:
            self.link.drained()

    def disposed(self, delivery_ids: list[int], settled: bool, state: Any) -> None:
        """Settle deliveries of this link as one disposition of the client says."""
        connection = self.connection
        outcome = outcome_of(state)
        if outcome is None and type(state) is TransactionalState:
            connection.settle_in_transaction(self, delivery_ids, settled, state)
            return
        if outcome is None:
            # settled without an outcome: the client has forgotten them, the locks run out by themselves
            if settled:
                for delivery_id in delivery_ids:
                    self.unsettled.pop(delivery_id, None)
                    connection.forget(self.link, delivery_id)
            return
        answer = _ANSWERS[type(outcome)]
        host = connection.host
        now = host.clock()
        entries = []
        for delivery_id in delivery_ids:
            entries.append(self.unsettled.pop(delivery_id))
            connection.forget(self.link, delivery_id)
        tokens = [token for token, _, _ in entries]
        done = partial(self._settled, delivery_ids, entries, settled, answer, outcome, now)
        delay = host.faults.latency(self.path, now) if host.faults.is_on else 0.0
        if delay:
            connection.loop.call_later(delay, self._settle_late, tokens, outcome, done)
        else:
            host.namespace.settlement.settle(self.queue, tokens, outcome, now, done, session=self.session)

    def _settle_late(self, tokens: Sequence[bytes], outcome: Outcome, done: Callable[[Refusal | None], None]) -> None:
        # By the time of now: the clock may have been set since the disposition came.
        host = self.connection.host
        host.namespace.settlement.settle(self.queue, tokens, outcome, host.clock(), done, session=self.session)

    def _settled(
        self,
        delivery_ids: list[int],
        entries: list[UnsettledDelivery],
        settled: bool,
        answer: bytes,
        outcome: Outcome,
        since: float,
        refusal: Refusal | None,
    ) -> None:
        host, cause = self.connection.host, self.connection.cause
        host.recorder.settled(self.path, outcome, entries, cause, since, host.clock(), refusal)
        if isinstance(refusal, LocksLost):
            lost = set(refusal.tokens)
            for delivery_id, (token, _, _) in zip(delivery_ids, entries, strict=True):
                self._answer(delivery_id, delivery_id, settled, answer, refusal if token in lost else None)
            return
        first = previous = delivery_ids[0]
        for delivery_id in delivery_ids[1:]:
            if delivery_id != (previous + 1) & 0xFFFFFFFF:
                self._answer(first, previous, settled, answer, refusal)
                first = delivery_id
            previous = delivery_id
        self._answer(first, previous, settled, answer, refusal)

    def _answer(self, first: int, last: int, settled: bool, answer: bytes, refusal: Refusal | None) -> None:
        """Answer one disposition of the client's with one frame: coalescing answers makes the SDK slower."""
        if settled or self.link.detached:
            return
        self.link.session.dispose(False, first, last, True, answer if refusal is None else rejected(refusal))
        self.connection.flush_soon()

    def closed(self) -> None:
        """Release the session. Messages stay locked until their locks expire, as on the service
        (docs/reference/protocol.md#outcomes)."""
        self._is_closed = True
        self._end_wait()
        self.queue.entity.links -= 1
        self.queue.entity.count_receiver(-1)
        self.dispatcher.remove(self)
        if self._lost_timer is not None:
            self._lost_timer.cancel()
        if self.session is not None:
            self.session.on_available = self.session.on_lost = None
            host = self.connection.host
            host.namespace.sessions.release(self.session, host.clock())
        for delivery_id in self.unsettled:
            self.connection.forget(self.link, delivery_id)
        self.unsettled.clear()


# A dead-letter is answered with an empty `rejected`: one with an error means that settling failed
# (docs/reference/protocol.md#a-dead-letter-is-answered-without-an-error).
_ANSWERS: dict[type, bytes] = {
    Complete: ACCEPTED_BYTES,
    Abandon: _MODIFIED_BYTES,
    Defer: _MODIFIED_BYTES,
    DeadLetter: REJECTED_EMPTY_BYTES,
    Release: RELEASED_BYTES,
}


def outcome_of(state: Any) -> Outcome | None:
    """Return the outcome that a delivery state stands for, if any (docs/reference/protocol.md#outcomes)."""
    kind = type(state)
    if kind is Accepted:
        return _COMPLETE
    if kind is Released:
        return _RELEASE
    if kind is Modified:
        properties = {str(key): value for key, value in (state.message_annotations or {}).items()}
        if state.undeliverable_here:
            return Defer(properties)
        # JS and .NET abandon without delivery-failed; the delivery counts nevertheless
        return Abandon(properties)
    if kind is Rejected:
        error = state.error
        info = {str(key): value for key, value in ((error and error.info) or {}).items()}
        reason = info.pop("DeadLetterReason", None)
        description = info.pop("DeadLetterErrorDescription", None)
        if error is not None and error.condition != conditions.DEAD_LETTER:
            # a receiver that is not an SDK of the service: its own condition is the reason
            reason = reason or str(error.condition)
            description = description or error.description
        return DeadLetter(reason, description, info)
    return None


class RequestNode:
    """The target of a link with requests to `$cbs` or `$management`."""

    __slots__ = ("address", "connection", "handle", "link")

    def __init__(
        self,
        connection: AmqpConnection,
        link: ReceiverLink,
        address: str,
        handle: Callable[[Request, Callable[[bytes], None], Transaction | None], None],
    ) -> None:
        self.connection = connection
        self.link = link
        self.address = address
        self.handle = handle
        link.flow(_CREDIT)

    def check(self, event: Delivered) -> Generator[None, None, Checked] | None:
        """Return how a large request is checked in slices before it is decoded at once."""
        return checking_request(event.payload)

    def delivered(self, event: Delivered, transaction: Transaction | None = None) -> None:
        self.connection.requested()
        if self.link.credit <= _CREDIT // 2:
            self.link.flow(_CREDIT)
        try:
            if isinstance(event.payload, Checked) and event.payload.error is not None:
                raise event.payload.error
            request = read_request(event.payload)
        except AmqpError as error:
            if not event.settled:
                refusal = Refusal(error.condition, error.description)
                self.connection.reject(self.link, event.delivery_id, rejected(refusal))
            return
        if transaction is not None and not event.settled:
            self.connection.reject(self.link, event.delivery_id, in_transaction(transaction.id, ACCEPTED_BYTES))
        elif not event.settled:
            self.connection.confirm(self.link, event.delivery_id)
        self.handle(request, partial(self._respond, request), transaction)

    def _respond(self, request: Request, payload: bytes) -> None:
        node = self.connection.response_node(self.link, self.address, request.reply_to)
        if node is not None:
            node.send(payload)
            self.connection.flush_soon()

    def too_large(self, event: DeliveryTooLarge) -> None:
        refusal = Refusal(conditions.MESSAGE_SIZE_EXCEEDED, f"a request of {event.size} bytes is too large")
        self.connection.reject(self.link, event.delivery_id, rejected(refusal))

    def closed(self) -> None:
        pass


class ResponseNode:
    """The source of a link with responses of `$cbs` or `$management`."""

    __slots__ = ("_tag", "_waiting", "address", "connection", "link", "reply_to")

    def __init__(self, connection: AmqpConnection, link: SenderLink, address: str) -> None:
        self.connection = connection
        self.link = link
        self.address = address
        #: The names by which requests may refer to this link.
        self.reply_to: str | None = getattr(link.target, "address", None)
        self._tag = 0
        self._waiting: deque[bytes] = deque()

    def send(self, payload: bytes) -> None:
        connection = self.connection
        self._waiting.append(payload)
        connection.response_bytes += len(payload)
        self.flow()
        if connection.response_bytes > _RESPONSE_BYTES_MAX and self._waiting:
            text = (
                f"responses of {connection.response_bytes} bytes wait for credit on their links; "
                f"{_RESPONSE_BYTES_MAX} may"
            )
            connection.close(Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text))

    def flow(self) -> None:
        link, waiting = self.link, self._waiting
        while waiting and link.credit > 0 and link.is_open and not link.session.is_blocked:
            payload = waiting.popleft()
            self.connection.response_bytes -= len(payload)
            self._tag = (self._tag + 1) & 0xFFFFFFFF
            link.send(payload, self._tag.to_bytes(4, "big"), settled=True)
        if link.drain:
            link.drained()

    def closed(self) -> None:
        self.connection.response_bytes -= sum(map(len, self._waiting))
        self._waiting.clear()


def address_of(link: Link) -> str | None:
    """Return the address of our node on the link: its target where the client sends, its source where it receives."""
    terminus = link.source if link.is_sender else link.target
    address = getattr(terminus, "address", None)
    return address if isinstance(address, str) else None


def not_found(named: str) -> str:
    """Return the service's words for an entity that does not exist: clients look for them."""
    return (
        f"The messaging entity '{named}' could not be found. To know more visit https://aka.ms/sbResourceMgrExceptions."
    )


def failed(refusal: Refusal, status: int) -> Response:
    """Return the response to a request that was refused."""
    return Response(status, refusal.description, refusal.condition, is_unknown=refusal.is_unknown)
