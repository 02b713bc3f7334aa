"""`$management`: what can be asked of an entity besides sending and receiving (dialect 6).

One function per operation; each checks its arguments, asks the namespace and answers with a `Response`. An operation
that is not in the table is answered 501, as the service does.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pairbus.amqp import errors as conditions
from pairbus.amqp.types import Array, Timestamp
from pairbus.journal import JournalError

from .links import failed
from .namespace import refusal_of
from .queue import Abandon, Complete, DeadLetter, MessageQueue, Outcome
from .refusal import Refusal
from .requests import Request, Response, management_response
from .sas import LISTEN

if TYPE_CHECKING:
    from .amqp_connection import AmqpConnection

Answer = Callable[[Response], None]

_PEEK_MESSAGES_MAX = 1000
#: One response holds no more than this; a client that peeks on gets the rest.
_PEEK_BYTES_MAX = 768 * 1024
_TOKENS_MAX = 5000
_PREFIX = "com.microsoft:"
_TIMESTAMP_CODE = 0x83
_GONE = {conditions.MESSAGE_LOCK_LOST: 410, conditions.SESSION_LOCK_LOST: 410, conditions.SERVER_BUSY: 503}


class _BadArgument(Exception):
    pass


def handle(connection: AmqpConnection, path: str, request: Request, respond: Callable[[bytes], None]) -> None:
    host = connection.host

    def answer(response: Response) -> None:
        respond(management_response(request, response))
        connection.flush_soon()

    now = host.clock()
    operation = _OPERATIONS.get(request.operation.removeprefix(_PREFIX))
    if operation is None:
        answer(Response(501, f"operation {request.operation!r} is not supported", conditions.NOT_IMPLEMENTED))
        return
    if not connection.authorization.allows(LISTEN, path, now):
        answer(Response(401, f"'Listen' claim(s) are required on '{path}'", conditions.UNAUTHORIZED_ACCESS))
        return
    queue = host.namespace.resolve(path)
    if queue is None:
        answer(Response(404, f"The messaging entity '{path}' could not be found.", conditions.NOT_FOUND))
        return
    if host.faults:
        refusal = host.faults.refusal("receive", path, now)
        if refusal is not None:
            answer(failed(refusal, 503 if refusal.condition == conditions.SERVER_BUSY else 500))
            return
    body = request.body
    if not isinstance(body, dict):
        answer(Response(400, "the body of a request is a map of its arguments", conditions.ARGUMENT_ERROR))
        return
    host.observation.managed(queue.path, request.operation, now)

    def run() -> None:
        try:
            operation(connection, queue, body, host.clock(), answer)
        except _BadArgument as error:
            answer(Response(400, str(error), conditions.ARGUMENT_ERROR))
        except JournalError as error:
            answer(failed(refusal_of(error), 500))

    delay = host.faults.latency(path, now) if host.faults else 0.0
    if delay:
        connection.loop.call_later(delay, run)
    else:
        run()


def _peek(connection: AmqpConnection, queue: MessageQueue, body: dict[str, Any], now: float, answer: Answer) -> None:
    start = _integer(body, "from-sequence-number")
    count = _integer(body, "message-count")
    if count < 1:
        raise _BadArgument(f"message-count is {count}; at least 1 is needed")
    messages: list[dict[str, Any]] = []
    size = 0
    for payload in connection.host.namespace.peek(queue, start, min(count, _PEEK_MESSAGES_MAX), now):
        size += len(payload)
        if messages and size > _PEEK_BYTES_MAX:
            break
        messages.append({"message": payload})
    connection.host.observation.peeked(queue.path, len(messages))
    if messages:
        answer(Response(200, "OK", body={"messages": messages}))
    else:
        answer(Response(204, "No messages to peek"))


def _renew(connection: AmqpConnection, queue: MessageQueue, body: dict[str, Any], now: float, answer: Answer) -> None:
    renewed = connection.host.namespace.renew(queue, _tokens(body), now)
    if isinstance(renewed, Refusal):
        answer(failed(renewed, _GONE.get(renewed.condition, 500)))
        return
    connection.host.observation.renewed(queue.path, len(renewed))
    expirations = Array.of(_TIMESTAMP_CODE, [Timestamp(int(until * 1000)) for until in renewed])
    answer(Response(200, "OK", body={"expirations": expirations}))


def _settle(connection: AmqpConnection, queue: MessageQueue, body: dict[str, Any], now: float, answer: Answer) -> None:
    tokens = _tokens(body)
    status = body.get("disposition-status")
    properties = {str(key): value for key, value in (body.get("properties-to-modify") or {}).items()}
    outcome: Outcome
    if status == "completed":
        outcome = Complete()
    elif status == "abandoned":
        outcome = Abandon(properties)
    elif status == "suspended":
        outcome = DeadLetter(body.get("deadletter-reason"), body.get("deadletter-description"), properties)
    elif status == "defered":
        answer(Response(501, "messages can't be deferred yet", conditions.NOT_IMPLEMENTED))
        return
    else:
        raise _BadArgument(f"disposition-status {status!r} is not one of completed, abandoned, defered, suspended")

    locked = [queue.locked_by(token) for token in tokens]
    numbers = [message.sequence_number for message in locked if message is not None]

    def done(refusal: Refusal | None) -> None:
        connection.host.observation.settled(queue.path, outcome, numbers, now, connection.host.clock(), refusal)
        if refusal is None:
            answer(Response(200, "OK"))
        else:
            answer(failed(refusal, _GONE.get(refusal.condition, 500)))

    connection.host.namespace.settle(queue, tokens, outcome, now, done)


_OPERATIONS: dict[str, Callable[[AmqpConnection, MessageQueue, dict[str, Any], float, Answer], None]] = {
    "peek-message": _peek,
    "renew-lock": _renew,
    "update-disposition": _settle,
}


def _integer(body: dict[str, Any], name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _BadArgument(f"{name} is {value!r}; an integer is needed")
    return value


def _tokens(body: dict[str, Any]) -> list[bytes]:
    """Lock tokens as the queue knows them: in .NET's byte order, as in the delivery tag (dialect 5)."""
    tokens = body.get("lock-tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, uuid.UUID) for token in tokens):
        raise _BadArgument("lock-tokens must be an array of at least one uuid")
    if len(tokens) > _TOKENS_MAX:
        raise _BadArgument(f"{len(tokens)} lock-tokens; at most {_TOKENS_MAX} go in one request")
    return [token.bytes_le for token in tokens]
