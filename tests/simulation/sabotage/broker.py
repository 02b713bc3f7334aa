"""Bugs in what the broker decides and does: queues, sessions, settlements, sends, links, clock."""

from __future__ import annotations

import asyncio
from typing import Any

from pairbus.amqp.link import SenderLink
from pairbus.broker.access.unauthenticated import UnauthenticatedQuota
from pairbus.broker.amqp.connection import AmqpConnection
from pairbus.broker.amqp.links import SourceNode
from pairbus.broker.amqp.session_waiters import SessionWaiters
from pairbus.broker.format import content_checks, records
from pairbus.broker.format.forwarded import Travelled
from pairbus.broker.model import queue as queue_module
from pairbus.broker.model import transaction
from pairbus.broker.model.duplicates import DuplicateHistory
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import SCHEDULED
from pairbus.broker.model.outcomes import DeadLetter, Defer
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.sessions import Sessions
from pairbus.broker.operations import enqueue, transfer
from pairbus.broker.operations.enqueue import EnqueueOperations
from pairbus.broker.operations.receive import ReceiveOperations
from pairbus.broker.operations.registry import Registry
from pairbus.broker.operations.settlement import SettlementOperations
from pairbus.broker.operations.transactions import TransactionOperations
from pairbus.broker.slices import Slices
from pairbus.broker.storage.publish_record import PublishRecord
from pairbus.broker.storage.store import busy

from . import sabotage

# -- messages


@sabotage(SourceNode, "disposed", "broker", 2, "it is lost; it can only be")
def neighbour_settled_too(real: Any, node: Any, delivery_ids: list[int], *arguments: Any) -> None:
    """A message that nobody has settled is gone, because the one before it was completed."""
    following = delivery_ids[-1] + 1
    real(node, [*delivery_ids, following] if following in node.unsettled else delivery_ids, *arguments)


@sabotage(PublishRecord, "_targets", "broker", 3, "it was never sent there")
def copy_against_the_rules(real: Any, record: Any, facts: Any) -> list[Any]:
    """A subscription gets messages that its rules keep out."""
    return [each for each in record._topic.subscriptions.values() if not each.deleting]


@sabotage(EnqueueOperations, "send", "broker", 8, "it was refused, and was seen before")
def stored_and_refused(
    real: Any, operations: Any, target: Any, payloads: Any, now: float, done: Any, *more: Any, **options: Any
) -> None:
    """A sender is told that its messages were refused, and they are delivered."""
    real(operations, target, payloads, now, lambda refusal: done(refusal or busy()), *more, **options)


@sabotage(ReceiveOperations, "delivery", "broker", 2, "its body is not what was sent")
def body_of_another(real: Any, *arguments: Any, **options: Any) -> bytes:
    """A receiver gets a message with bytes that nobody sent."""
    return real(*arguments, **options)[:-1] + b"?"


@sabotage(DuplicateHistory, "find", "broker", 4, "in once: (it is active; it can only be absent|. copies)")
def duplicate_stored(real: Any, *arguments: Any) -> None:
    """A message that is sent again with its id is there twice, although the queue detects duplicates."""


@sabotage(SenderLink, "send", "broker", 3, "asked for .* and got more")
def credit_not_used_up(real: Any, link: Any, *arguments: Any, **options: Any) -> int:
    """A receiver is sent more messages than it asked for; they stay locked and nobody works on them."""
    link.credit += 1
    return real(link, *arguments, **options)


# -- time


@sabotage(MessageQueue, "take_due", "broker", 4, "before its time; it can only be scheduled")
def near_schedule_ignored(real: Any, queue: Any, now: float, count: int) -> list[Any]:
    """A message is delivered a minute before the time for which it is scheduled."""
    return real(queue, now + 60.0, count)


@sabotage(queue_module, "_activation", "broker", 7, "it is still scheduled")
def schedules_are_late(real: Any, message: Any) -> float:
    """Messages are delivered half a minute after the time for which they are scheduled."""
    return real(message) + 30.0


@sabotage(queue_module, "_expiry", "broker", 3, "after its time to live")
def messages_do_not_expire(real: Any, message: Any) -> float:
    """Receivers get messages whose time to live is over."""
    return queue_module.inf


@sabotage(MessageQueue, "take_overdue", "broker", 7, "dead-lettered as expired before its time")
def expires_too_early(real: Any, queue: Any, now: float, count: int) -> list[Any]:
    """Messages are dead-lettered while somebody could still work on them."""
    return real(queue, now + 10.0, count)


# -- deferred and dead-lettered messages, delivery counts


@sabotage(SettlementOperations, "_failed", "broker", 16, "it is active; it can only be deferred")
def deferred_message_delivered(real: Any, operations: Any, queue: Any, message: Any, outcome: Any) -> Any:
    """A message that an application has put aside is delivered again at once."""
    same, count, place, change = real(operations, queue, message, outcome)
    return same, count, records.ACTIVE if isinstance(outcome, Defer) else place, change


@sabotage(MessageQueue, "fetch", "broker", 16, "it is deferred and can't be received by its number")
def deferred_message_not_found(real: Any, *arguments: Any) -> None:
    """Nobody gets a message again that an application has put aside."""


@sabotage(DeadLetter, "changes", "broker", 25, "dead for .*; it can only be")
def reason_of_a_dead_letter_lost(real: Any, outcome: Any) -> Any:
    """Nobody can tell why a message was dead-lettered."""
    return outcome.properties


@sabotage(MessageQueue, "exhausts", "broker", 10, "delivered again after . deliveries of")
def one_delivery_too_many(real: Any, queue: Any, count: int) -> bool:
    """A message is delivered once more than its queue allows."""
    return real(queue, count - 1)


@sabotage(MessageQueue, "exhausts", "broker", 10, "exhausted after . deliveries of")
def one_delivery_too_few(real: Any, queue: Any, count: int) -> bool:
    """A message is dead-lettered although it could be delivered once more."""
    return real(queue, count + 1)


@sabotage(ReceiveOperations, "take", "broker", 84, "messages vanished, too many for")
def more_taken_than_asked_for(
    real: Any, operations: Any, queue: Any, count: int, now: float, done: Any, session: Any = None
) -> bool:
    """Messages are deleted that the receiver which deletes them did not ask for, and does not get."""
    return real(operations, queue, 9 * count, now, lambda messages, refusal: done(messages[:count], refusal), session)


@sabotage(MessageQueue, "offer", "broker", 3, "and no receiver got it")
def abandoned_message_is_stranded(real: Any, queue: Any, message: Any) -> None:
    """A message that was abandoned, or whose lock expired, is not delivered again before a restart."""


# -- locks and sessions


@sabotage(MessageQueue, "_fail", "broker", 108, "was confirmed, but the lock of .* was over")
def expired_lock_still_settles(real: Any, queue: Any, message: Any, *arguments: Any) -> None:
    """A receiver whose lock has expired completes the message under the hands of the one that has it now."""
    token = message.lock_token
    real(queue, message, *arguments)
    queue._locks[token] = message


@sabotage(MessageQueue, "claim", "broker", 4, "was refused as lost, but the lock of .* holds")
def lock_ends_early(real: Any, queue: Any, token: bytes, now: float) -> Any:
    """A receiver is told that it has lost a message on which it works in time."""
    return real(queue, token, now + 3.0)


@sabotage(QueueEntity, "shift", "broker", 245, "while .* held its lock")
def locks_follow_the_wall_clock(real: Any, *arguments: Any) -> None:
    """All locks expire at once when the wall clock is set forward, and two receivers work on the same message."""


@sabotage(Sessions, "accept", "broker", 258, "the session . of jobs was given to .* while .* held its lock")
def session_held_twice(real: Any, sessions: Any, id: str | None, until: float) -> Any:
    """Two receivers work on the same session at once."""
    if (session := sessions.get(id or "")) is not None:
        session.lock = None
    return real(sessions, id, until)


@sabotage(MessageQueue, "claim_all", "broker", 26, "under the name of session")
def token_of_another_session_settles(real: Any, queue: Any, tokens: Any, now: float, session: Any = None) -> Any:
    """A receiver completes messages of a session that another receiver holds."""
    return real(queue, tokens, now)


# -- links, connections, clients without a token


@sabotage(AmqpConnection, "_leave_all", "broker", 23, "at the end there are (links|receivers)")
def link_left_behind_a_drop(real: Any, *arguments: Any) -> None:
    """An entity is in use for ever when the connection of its receiver was lost."""


@sabotage(AmqpConnection, "connection_made", "broker", 0, "at the end there are tasks")
def task_left_behind(real: Any, connection: Any, transport: Any) -> None:
    """The broker's memory grows with every connection."""
    real(connection, transport)
    connection.loop.create_task(asyncio.sleep(1e6))


@sabotage(SessionWaiters, "leave", "broker", 22, "at the end there are receivers that wait for a session")
def waiting_receiver_left_behind(real: Any, *arguments: Any) -> None:
    """A session is given to a receiver that has gone, and nobody gets its messages meanwhile."""


@sabotage(MessageQueue, "release_session", "broker", 11, "is locked, and its receiver has gone")
def session_not_freed_with_its_link(real: Any, *arguments: Any) -> bool:
    """Nobody gets a session before its lock expires when its receiver has gone."""
    return False


@sabotage(AmqpConnection, "_leave", "broker", 28, "the broker goes on serving")
def link_left_behind_a_detach(real: Any, *arguments: Any) -> None:
    """A receiver that detached goes on being given messages, which nobody sees."""


@sabotage(SourceNode, "answer_drain", "broker", 5, "although nothing is wrong in this world")
def drain_not_answered(real: Any, *arguments: Any) -> None:
    """A receiver that asks whether there is a message gets no answer when there is none."""


@sabotage(UnauthenticatedQuota, "hold", "broker", 24555, "clients without a token hold .* bytes")
def strangers_memory(real: Any, quota: Any, who: Any, is_secure: bool, size: int, **options: Any) -> Any:
    """Clients that have shown no token fill the memory of the broker until it is killed."""
    return real(quota, who, is_secure, 0, **options)


@sabotage(UnauthenticatedQuota, "release", "broker", 8, "clients without a token have not been sent away")
def strangers_budget_not_released(real: Any, *arguments: Any) -> None:
    """New clients are turned away after enough connections came and went without a token."""


@sabotage(AmqpConnection, "expire_claims", "broker", 8, "a client without a token is connected for more than")
def stranger_stays_for_ever(real: Any, *arguments: Any) -> None:
    """Connections without a token are never closed."""


@sabotage(AmqpConnection, "shift", "broker", 2535, "by a clock that was set")
def strangers_sent_away_when_the_clock_is_set(real: Any, *arguments: Any) -> None:
    """Clients that are about to put their token lose their connection when the clock is set forward."""


@sabotage(content_checks, "TIME_MS_MAX", "broker", 5, "None in orders: it was never sent there")
def poison_schedule(real: int) -> int:
    """One message with an impossible schedule breaks the connection of everyone who peeks into the queue."""
    return 2**63 - 1


# -- long work in slices


@sabotage(Slices, "__init__", "features", 400005, "a turn of the loop did more than")
def slice_without_an_end(real: Any, slices: Any, *arguments: Any, **options: Any) -> None:
    """A batch to a topic with many rules keeps all other clients waiting."""
    real(slices, *arguments, **options)
    slices._slice_s = 1e9


@sabotage(Slices, "start", "features", 402253, "it came back as")
def later_send_overtakes(real: Any, slices: Any, work: Any, done: Any, lines: Any = ()) -> Any:
    """A short send to a topic overtakes a long one that came before it."""
    return real(slices, work, done)


@sabotage(enqueue, "lay_out_entries", "broker", 48, "out of order: (.|\n)* overtook")
def batch_in_another_order(real: Any, entity: Any, contents: Any, *arguments: Any) -> Any:
    """The messages of a batch are delivered in another order than they were sent in."""
    return real(entity, contents[::-1], *arguments)


# -- forwarding and transactions


@sabotage(Travelled, "hops", "features", 400005, "at the end there are messages")
def hops_not_counted(real: Any, way: Any) -> int:
    """Messages in a circle of entities that forward to each other go round for ever."""
    return 0


@sabotage(transaction, "LIFETIME_S", "features", 400093, "was committed .* s after its first operation")
def transactions_have_no_end(real: float) -> float:
    """A transaction that its client has forgotten can be committed after hours."""
    return 100 * real


@sabotage(TransactionOperations, "roll_back", "features", 400029, "at the end there are open transactions")
def transaction_outlives_its_link(real: Any, *arguments: Any) -> None:
    """Transactions of clients that have left fill the broker's memory until their time is over."""


@sabotage(TransactionOperations, "enlist", "features", 400013, "is half done")
def settlement_done_before_the_commit(
    real: Any, operations: Any, held: Any, operation: Any, via: Any, now: float
) -> Any:
    """A message that a transaction would have completed is gone, although that was rolled back."""
    refusal = real(operations, held, operation, via, now)
    if refusal is None and not isinstance(operation, transaction.Send):
        operations._settlement.settle(operation.queue, operation.tokens[:1], operation.outcome, now, lambda _: None)
    return refusal


@sabotage(transfer, "unavailable", "combined", 800924, "could not be found")
def via_that_is_down_not_found(real: Any, entity: Any, path: str) -> Any:
    """What is sent through an entity that is restarted is refused for good."""
    return real(None, path)


# -- partitions


@sabotage(QueueEntity, "turn_to", "partitioned", 600003, "is also that of|was given out before|is lost")
def number_of_a_partition_given_out_twice(real: Any, entity: Any, partition: int) -> None:
    """Two messages of a partitioned queue have one sequence number, and one of them is lost."""
    partitions = entity.partition()
    kept = partitions.last[partitions.current]
    before = partitions.current
    real(entity, partition)
    partitions.last[before] = kept


# -- what comes late after a stall


@sabotage(Registry, "set_late", "stalls", 800224, "before it should be, so late")
def late_message_shown_at_once(real: Any, registry: Any, *, holds_back: bool, releases: bool) -> None:
    """What is sent in a stall that is to make it late is received at once."""
    real(registry, holds_back=False, releases=releases)


@sabotage(Registry, "set_late", "stalls", 800048, "before it should be, so late")
def late_until_the_store_is_back(real: Any, registry: Any, *, holds_back: bool, releases: bool) -> None:
    """What is sent in a stall is received when the storage is back, and not so long after it as was asked for."""
    real(registry, holds_back=holds_back, releases=not holds_back)


@sabotage(MessageQueue, "release_late", "stalls", 800248, "at the end there are messages")
def scheduled_message_that_was_late_is_forgotten(real: Any, queue: Any, count: int) -> None:
    """A scheduled message that was late never becomes due."""
    kept = [message for message in queue.late if message.state != SCHEDULED]
    queue.late.clear()
    queue.late.extend(kept)
    real(queue, count)


@sabotage(Sessions, "is_late", "stalls", 801384, "was skipped before")
def late_message_overtaken_in_its_session(real: Any, *arguments: Any) -> bool:
    """A receiver of a session gets what was sent after a stall before what was sent in it."""
    return False
