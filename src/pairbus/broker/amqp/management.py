"""Answers requests to `$management`: peek, renew, schedule, sessions, rules and other operations on an entity.

See docs/reference/protocol.md#requests-over-management.

One function per operation; each checks its arguments, asks the namespace and answers with a `Response`. Operations that
go through a whole queue do so in slices. An operation that is not in the table is answered 501, as the service does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pairbus.amqp import errors as conditions
from pairbus.amqp.message import without_body
from pairbus.amqp.types import Array, Int, Timestamp
from pairbus.broker.access.throttling import MANAGEMENT_CREDITS
from pairbus.broker.model.message import SETTLING, Message
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer, Outcome
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.topic import Subscription, Topic
from pairbus.broker.model.transaction import Settle, Transaction, root_of
from pairbus.broker.operations.namespace import refusal_of_read
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import Job, SlicesFull
from pairbus.journal import JournalError
from pairbus.sas import LISTEN, SEND

from .arguments import Arguments, BadArgument
from .links import failed
from .requests import Request, Response, management_response
from .rule_codec import UnknownRule, read_rule, write_rule

if TYPE_CHECKING:
    from pairbus.broker.model.sessions import SessionLock
    from pairbus.broker.server import NamespaceServer

    from .connection import AmqpConnection

_PEEK_MESSAGES_MAX = 1000
#: The limit of one response; a client that continues its peek gets the rest.
_RESPONSE_BYTES_MAX = 768 * 1024
#: What a request that is carried out in slices counts for against the bytes that its connection may hold: of a client
#: that asks faster than it is answered, or never reads, only a few such requests are under way.
_SLICED_BYTES = 4 * 1024 * 1024
#: How often, and after how long each time, a request looks again for what is being written: a second at most.
_SETTLING_WAITS = 50
_SETTLING_S = 0.02
_PREFIX = "com.microsoft:"
_LONG_CODE = 0x81
_TIMESTAMP_CODE = 0x83
_STRING_CODE = 0xB1
_DATETIME_MAX_MS = 253402300799999
_STATUS = {
    conditions.MESSAGE_LOCK_LOST: 410,
    conditions.SESSION_LOCK_LOST: 410,
    conditions.MESSAGE_NOT_FOUND: 404,
    conditions.NOT_FOUND: 404,
    conditions.ENTITY_NOT_FOUND: 404,
    conditions.ENTITY_ALREADY_EXISTS: 409,
    conditions.SERVER_BUSY: 503,
    conditions.RESOURCE_LIMIT_EXCEEDED: 403,
    conditions.MESSAGE_SIZE_EXCEEDED: 400,
    conditions.NOT_ALLOWED: 400,
    conditions.INVALID_FIELD: 400,
    conditions.DECODE_ERROR: 400,
    conditions.ENTITY_DISABLED: 400,
    conditions.TRANSACTION_TIMEOUT: 400,
    conditions.TRANSACTION_ROLLBACK: 400,
}


class Call(NamedTuple):
    """One request: the connection that asks, the entity, the arguments and where the answer goes."""

    connection: AmqpConnection
    target: MessageQueue | Topic
    arguments: Arguments
    now: float
    answer: Callable[[Response], None]
    may_wait: bool = False
    transaction: Transaction | None = None

    @property
    def host(self) -> NamespaceServer:
        return self.connection.host

    @property
    def queue(self) -> MessageQueue:
        if not isinstance(self.target, MessageQueue):
            raise BadArgument(f"'{self.target.path}' is a topic: ask one of its subscriptions")
        return self.target

    def ok(self, **body: Any) -> None:
        """Answer 200 with these values; `_` in their names stands for `-`."""
        self.answer(Response(200, "OK", body={key.replace("_", "-"): value for key, value in body.items()}))

    def refuse(self, refusal: Refusal) -> None:
        self.answer(failed(refusal, _STATUS.get(refusal.condition, 500)))

    def spend(self, count: int, size: int) -> None:
        """Charge the thresholds for the messages of a request, one of which was charged when it came."""
        if self.host.faults.is_on:
            self.host.faults.spend(self.target.path, self.now, count - 1, size, count - 1)

    def done(self, refusal: Refusal | None) -> None:
        """Answer 200 without values, or with the refusal."""
        if refusal is None:
            self.ok()
        else:
            self.refuse(refusal)

    def session(self) -> SessionLock | None:
        """Return the lock on the session that the request names, if any; its connection must hold it. JavaScript names
        the session id of a message also where the entity has no sessions; there it means nothing."""
        session_id = self.arguments.optional_text("session-id")
        if session_id is None or not self.queue.requires_session:
            return None
        lock = self.connection.own_session(self.queue, session_id, self.now)
        if lock is None:
            raise _SessionLost(session_id)
        return lock


#: Generators are long operations, which are done in slices.
Operation = Callable[[Call], Generator[None, None, None] | None]


class _SessionLost(Exception):
    """The connection does not hold the session that the request names."""


class _BeingSettled(Exception):
    """The requested message is being written to disk: look again in a moment."""


def handle(
    connection: AmqpConnection,
    path: str,
    request: Request,
    respond: Callable[[bytes], None],
    transaction: Transaction | None = None,
) -> None:
    """Check a request to an entity's management node, carry it out and respond with the encoded answer."""
    host = connection.host

    def answer(response: Response) -> None:
        payload = management_response(request, response)
        respond(payload)
        connection.flush_soon()
        if is_managing:
            outcome = "ok" if response.status < 400 else response.condition or str(response.status)
            host.recorder.managed(known, outcome, len(payload), connection.cause, now, host.clock())

    now = host.clock()
    is_managing, known = False, path
    found = _OPERATIONS.get(request.operation.removeprefix(_PREFIX))
    if found is None:
        answer(Response(501, f"operation {request.operation!r} is not supported", conditions.NOT_IMPLEMENTED))
        return
    right, operation = found
    # JS puts a token for the node itself, and maybe no other
    if not connection.authorization.allows(right, f"{path}/$management", now):
        answer(Response(401, f"'{right}' claim(s) are required on '{path}'", conditions.UNAUTHORIZED_ACCESS))
        return
    target = host.namespace.resolve(path)
    if target is None:
        answer(Response(404, f"The messaging entity '{path}' could not be found.", conditions.NOT_FOUND))
        return
    # only entities that exist are recorded: nobody may fill the ledger with names
    is_managing, known = operation not in _RECORDED_BY_MESSAGE, target.path
    refusal = target.entity.suspended
    if refusal is None and host.faults.is_on:
        refusal = host.faults.refusal("send" if right == SEND else "receive", path, now)
    if refusal is not None:
        answer(failed(refusal, _STATUS.get(refusal.condition, 500)))
        return
    if host.faults.is_on and operation in _MANAGES:
        host.faults.spend(path, now, credits=MANAGEMENT_CREDITS - 1)
    if not isinstance(request.body, dict):
        answer(Response(400, "the body of a request is a map of its arguments", conditions.ARGUMENT_ERROR))
        return
    if transaction is not None and operation not in _IN_TRANSACTION:
        text = f"{request.operation} can't be part of a transaction; ask for it outside of one"
        answer(Response(400, text, conditions.NOT_ALLOWED))
        return
    host.recorder.asked(target.path)
    call = Call(connection, target, Arguments(request.body), now, answer, transaction=transaction)
    delay = host.faults.latency(path, now) if host.faults.is_on else 0.0
    if delay:
        connection.loop.call_later(delay, _run, operation, call)
    else:
        _run(operation, call)


def _run(operation: Operation, call: Call, waits: int = _SETTLING_WAITS) -> None:
    """Carry out an operation now, or a little later when what it asks for is being written."""
    try:
        work = operation(call._replace(now=call.host.clock(), may_wait=waits > 0))
        if work is not None:
            call.connection.hold(_SLICED_BYTES)
            call.host.namespace.slices.start(work, partial(_finished, call))
    except _BeingSettled:
        call.connection.loop.call_later(_SETTLING_S, _run, operation, call, waits - 1)
    except SlicesFull:
        call.connection.release(_SLICED_BYTES)
        text = "The broker has too much to do. Please wait 2 seconds and try again."
        call.refuse(Refusal(conditions.SERVER_BUSY, text))
    except (BadArgument, UnknownRule, _SessionLost, JournalError) as error:
        call.answer(_failure(error))


def _finished(call: Call, job: Job[None]) -> None:
    call.connection.release(_SLICED_BYTES)
    try:
        job.result()
    except (BadArgument, JournalError) as error:
        call.answer(_failure(error))


def _failure(error: BadArgument | UnknownRule | _SessionLost | JournalError) -> Response:
    match error:
        case JournalError():
            return failed(refusal_of_read(error), 500)
        case _SessionLost():
            text = f"The session lock of '{error}' has expired, or is not held over this connection."
            return Response(410, text, conditions.SESSION_LOCK_LOST)
    return Response(400, str(error), conditions.ARGUMENT_ERROR)


# -- messages


def _peek(call: Call) -> Generator[None, None, None]:
    start = call.arguments.whole("from-sequence-number")
    count = call.arguments.count("message-count")
    session_id = call.arguments.optional_text("session-id")
    omits_body = call.arguments.flag("omit-message-body")
    messages: list[dict[str, Any]] = []
    size = 0
    most = min(count, _PEEK_MESSAGES_MAX)
    for payload in (
        yield from call.host.namespace.receive.peek(call.queue, start, most, call.now, session_id=session_id)
    ):
        if omits_body:
            payload = without_body(payload)
        size += len(payload)
        if messages and size > _RESPONSE_BYTES_MAX:
            break
        messages.append({"message": payload})
    call.host.recorder.peeked(call.queue.path, len(messages))
    call.spend(len(messages), size)
    if messages:
        call.ok(messages=messages)
    else:
        call.answer(Response(204, "No messages to peek"))


def _renew(call: Call) -> None:
    renewed = call.host.namespace.receive.renew(call.queue, call.arguments.tokens("lock-tokens"), call.now)
    if isinstance(renewed, Refusal):
        call.refuse(renewed)
        return
    call.host.recorder.renewed(call.queue.path, len(renewed))
    call.ok(expirations=Array.of(_TIMESTAMP_CODE, [_timestamp(until) for until in renewed]))


def _settle(call: Call) -> None:
    queue, arguments = call.queue, call.arguments
    tokens = arguments.tokens("lock-tokens")
    status = arguments.optional_text("disposition-status")
    properties = arguments.optional_map("properties-to-modify")
    outcome: Outcome
    if status == "completed":
        outcome = Complete()
    elif status == "abandoned":
        outcome = Abandon(properties)
    elif status == "defered":  # sic
        outcome = Defer(properties)
    elif status == "suspended":
        reason = arguments.optional_text("deadletter-reason")
        outcome = DeadLetter(reason, arguments.optional_text("deadletter-description"), properties)
    else:
        raise BadArgument(f"disposition-status {status!r} is not one of completed, abandoned, defered, suspended")
    session = call.session()
    recorder = call.host.recorder
    entries = [
        (token, message.sequence_number, recorder.id_at_hand(message))
        for token in tokens
        if (message := queue.locked_by(token)) is not None
    ]
    cause = call.connection.cause

    def done(refusal: Refusal | None) -> None:
        recorder.settled(queue.path, outcome, entries, cause, call.now, call.host.clock(), refusal)
        if call.transaction is None:
            call.done(refusal)

    if call.transaction is not None:
        operation = Settle(queue, tokens, outcome, done, session)
        call.done(call.host.namespace.transactions.enlist(call.transaction, operation, root_of(queue.entity), call.now))
        return
    call.host.namespace.settlement.settle(queue, tokens, outcome, call.now, done, session=session)


def _receive_deferred(call: Call) -> None:
    queue = call.queue
    deletes = call.arguments.whole("receiver-settle-mode") == 0

    recorder, cause = call.host.recorder, call.connection.cause

    def done(messages: list[Message], refusal: Refusal | None) -> None:
        if refusal is not None:
            recorder.not_received(queue.path, cause, call.now, refusal)
            call.refuse(refusal)
            return
        try:
            payloads = [
                call.host.namespace.receive.delivery(queue, message, locked=not deletes) for message in messages
            ]
        except JournalError:
            # Nobody received them, so that doesn't count as a delivery.
            call.host.namespace.receive.give_back(queue, messages, call.now, session)
            raise
        found = []
        for message, payload in zip(messages, payloads, strict=True):
            entry: dict[str, Any] = {"message": payload}
            if message.lock_token is not None:
                entry["lock-token"] = UUID(bytes_le=message.lock_token)
            found.append(entry)
            recorder.received(queue.path, message, payload, cause, call.now, removed=deletes)
        call.spend(len(found), sum(len(each["message"]) for each in found))
        call.ok(messages=found)

    session = call.session()
    numbers = call.arguments.numbers("sequence-numbers")
    # The SDKs up to 7.14 defer without waiting for the answer, and ask for the message in the next breath.
    if call.may_wait and any((found := queue.get(n)) is not None and found.state == SETTLING for n in numbers):
        raise _BeingSettled
    call.host.namespace.receive.receive_deferred(queue, numbers, call.now, done, delete=deletes, session=session)


def _delete(call: Call) -> None:
    queue = call.queue
    before_ms = call.arguments.whole("enqueued-time-utc")

    def done(count: int, refusal: Refusal | None) -> None:
        if refusal is not None:
            call.refuse(refusal)
        elif count:
            call.ok(message_count=Int(count))
        else:
            call.answer(Response(204, "There are no such messages", conditions.MESSAGE_NOT_FOUND))

    call.host.namespace.settlement.delete_messages(
        queue,
        call.arguments.count("message-count"),
        before_ms / 1000,
        call.now,
        done,
        session_id=call.arguments.optional_text("session-id"),
    )


def _schedule(call: Call) -> None:
    payloads = call.arguments.payloads("messages")
    path = call.target.path
    if call.host.faults.is_on and call.host.faults.hangs(path, call.now):
        call.connection.hang(path)
        return

    call.spend(len(payloads), sum(map(len, payloads)))
    results: list[int] = []

    def done(numbers: list[int], refusal: Refusal | None) -> None:
        if refusal is not None:
            call.refuse(refusal)
        elif not call.connection.loses_answer(path):
            call.ok(sequence_numbers=Array.of(_LONG_CODE, numbers))
        call.host.recorder.sent(path, payloads, results, call.connection.cause, call.now, refusal)

    call.host.namespace.enqueue.schedule(call.target, payloads, call.now, done, results)


def _cancel(call: Call) -> None:
    numbers = call.arguments.numbers("sequence-numbers")
    call.host.namespace.settlement.cancel_scheduled(call.target, numbers, call.now, call.done)


# -- sessions


def _held(call: Call) -> SessionLock:
    lock = call.session()
    if not call.queue.requires_session:
        raise BadArgument(f"the entity '{call.queue.path}' has no sessions")
    if lock is None:
        raise BadArgument("session-id is missing; a string is needed")
    return lock


def _renew_session(call: Call) -> None:
    until = call.host.namespace.sessions.renew(_held(call), call.now)
    if isinstance(until, Refusal):
        call.refuse(until)
    else:
        call.ok(expiration=_timestamp(until))


def _get_state(call: Call) -> None:
    lock = _held(call)
    call.ok(session_state=call.host.namespace.sessions.get_state(call.queue, lock.session_id, call.now))


def _set_state(call: Call) -> None:
    lock = _held(call)
    state = call.arguments.optional_bytes("session-state")
    call.host.namespace.sessions.set_state(call.queue, lock.session_id, state, call.now, call.done)


def _list_sessions(call: Call) -> Generator[None, None, None]:
    since_ms = call.arguments.whole("last-updated-time")
    skip, top = call.arguments.whole("skip"), call.arguments.count("top")
    # DateTime.MaxValue asks for all sessions; any other time for those whose state changed since
    since = None if since_ms >= _DATETIME_MAX_MS else since_ms / 1000
    most = min(top, _PEEK_MESSAGES_MAX)
    found = yield from call.host.namespace.sessions.list_ids(call.queue, since, max(0, skip), most)
    if found:
        call.ok(skip=Int(skip + len(found)), sessions_ids=Array.of(_STRING_CODE, found))
    else:
        call.answer(Response(204, "There are no such sessions", conditions.SESSION_NOT_FOUND))


# -- rules


def _subscription(call: Call) -> Subscription:
    entity = call.queue.entity
    if not isinstance(entity, Subscription):
        raise BadArgument(f"'{call.queue.path}' is not a subscription: only those have rules")
    return entity


def _add_rule(call: Call) -> None:
    description = _subscription(call).description
    rule = read_rule(call.arguments.text("rule-name"), call.arguments.value("rule-description"), call.now)
    call.host.namespace.subscriptions.create_rule(description.topic, description.name, rule, call.now, call.done)


def _remove_rule(call: Call) -> None:
    description = _subscription(call).description
    name = call.arguments.text("rule-name")
    call.host.namespace.subscriptions.delete_rule(description.topic, description.name, name, call.now, call.done)


def _enumerate_rules(call: Call) -> None:
    skip, top = max(0, call.arguments.whole("skip")), call.arguments.count("top")
    by_name = sorted(_subscription(call).rules.items())  # under their names in lower case
    rules = [rule for _, rule in by_name[skip : skip + top]]
    if rules:
        call.ok(rules=[{"rule-description": write_rule(rule)} for rule in rules])
    else:
        call.answer(Response(204, "There are no more rules"))


# The rule manager needs no more than Listen, as the service documents it.
_OPERATIONS: dict[str, tuple[str, Operation]] = {
    "peek-message": (LISTEN, _peek),
    "renew-lock": (LISTEN, _renew),
    "update-disposition": (LISTEN, _settle),
    "receive-by-sequence-number": (LISTEN, _receive_deferred),
    "batch-delete-messages": (LISTEN, _delete),
    "schedule-message": (SEND, _schedule),
    "cancel-scheduled-message": (SEND, _cancel),
    "renew-session-lock": (LISTEN, _renew_session),
    "get-session-state": (LISTEN, _get_state),
    "set-session-state": (LISTEN, _set_state),
    "get-message-sessions": (LISTEN, _list_sessions),
    "add-rule": (LISTEN, _add_rule),
    "remove-rule": (LISTEN, _remove_rule),
    "enumerate-rules": (LISTEN, _enumerate_rules),
}


#: What may be asked for in a transaction: a settlement becomes part of it; the others change no message and are done at
#: once.
_IN_TRANSACTION = frozenset({_settle, _renew, _renew_session, _peek, _get_state, _list_sessions, _enumerate_rules})

#: Management calls, although they come over AMQP: they cost more.
_MANAGES = frozenset({_add_rule, _remove_rule, _enumerate_rules})
#: Their messages are recorded one by one, as sends, receives and settlements; the request is not one more.
_RECORDED_BY_MESSAGE = frozenset({_settle, _receive_deferred, _schedule})


def _timestamp(seconds: float) -> Timestamp:
    return Timestamp(int(seconds * 1000))
