"""Judges a failed send: it counts towards a failover, the entity is busy, or it is the caller's mistake.

Two tables, row by row, first match wins. `DEFAULT` asks: does this failure say that the entity can't take messages now?
`AS_DESCRIBED` follows the public description's letter: a time-out, or a messaging error that is not transient, except
authentication, authorization and busy. docs/reference/verdicts.md is printed from `CASES`.

The SDK's own `_retryable` doesn't help (it is true for a wrong key), nor do its classes alone: a wrong key behind a
custom endpoint is a connection error, and a garbled answer is a bare ServiceBusError around a ValueError. So the rows
look at the class, at the AMQP condition, and at the wrapped error. `dispatch.py` and `failover.py` decide what follows
from a verdict.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from pairbus.pairing.errors import NotTriedError, PairingError, is_time_over


class Verdict(enum.Enum):
    """What a failed send says about its entity."""

    QUALIFIES = "qualifies"  # counts towards a failover
    BUSY = "busy"  # the entity pauses, no failover
    REFUSED = "refused"  # the caller's own: raised, and nothing else happens

    def __repr__(self) -> str:
        return f"Verdict.{self.name}"


Classifier = Callable[[BaseException], Verdict]
Match = Callable[[BaseException], bool]

# Conditions with which the entity, its node or the connection says that it can't take messages now.
_FAILING: Final = frozenset({
    "amqp:internal-error", "amqp:illegal-state", "amqp:resource-locked",
    "amqp:connection:forced", "amqp:connection:framing-error", "amqp:connection:redirect",
    "amqp:session:window-violation", "amqp:session:errant-link", "amqp:session:handle-in-use",
    "amqp:session:unattached-handle",
    "amqp:link:detach-forced", "amqp:link:stolen", "amqp:link:redirect", "amqp:link:transfer-limit-exceeded",
    "amqp:client-error", "amqp:unknown-error", "amqp:vendor-error", "amqp:socket-error",
    "com.microsoft:container-close", "com.microsoft:operation-cancelled", "com.microsoft:entity-updated",
    "com.microsoft:partition-not-owned", "com.microsoft:store-lock-lost",
})  # fmt: skip
_ACCESS: Final = frozenset({
    "amqp:unauthorized-access", "com.microsoft:auth-failed", "com.microsoft:publisher-revoked",
})  # fmt: skip
_GONE: Final = frozenset({"amqp:not-found", "amqp:resource-deleted"})
_TOO_LARGE: Final = frozenset({"amqp:link:message-size-exceeded", "amqp:frame-size-too-small"})
_BUSY: Final = "com.microsoft:server-busy"
_TIMEOUT: Final = frozenset({"com.microsoft:timeout", "com.microsoft:message-wait-timeout"})


def _condition(error: BaseException) -> str | None:
    """Return the AMQP condition of an SDK error or of what pyamqp raised, or None."""
    condition = getattr(error, "_condition", None) or getattr(error, "condition", None)
    if isinstance(condition, bytes):  # pyamqp's ErrorCondition is bytes as well as an enum
        return condition.decode("ascii", "replace")
    return condition if isinstance(condition, str) else None


def said(error: BaseException) -> BaseException:
    """Return the error to judge: the SDK wraps what it didn't expect into a bare ServiceBusError."""
    for _ in range(8):
        inner = getattr(error, "inner_exception", None)
        if type(error) is not ServiceBusError or _condition(error) is not None or not isinstance(inner, BaseException):
            return error
        error = inner
    return error


def _causes(error: BaseException, but: tuple[type[BaseException], ...] = ()) -> Iterator[BaseException]:
    """Yield the error and its causes, as far as they were kept, `but` for errors of these classes and theirs."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseException) and id(each) not in seen and not isinstance(each, but):
            seen.add(id(each))
            yield each
            waiting += [getattr(each, "inner_exception", None), each.__cause__, each.__context__]


def _is(*classes: type[BaseException]) -> Match:
    return lambda error: isinstance(error, classes)


def is_not_allowed(error: BaseException) -> bool:
    """Return whether a broker refused what was sent as not allowed (`amqp:not-allowed`)."""
    return _condition(said(error)) == "amqp:not-allowed"


def _has(*conditions: str) -> Match:
    return lambda error: _condition(error) in conditions


def _inner(error: BaseException) -> Any:
    return getattr(error, "inner_exception", None)


def _named(error: object, name: str) -> bool:
    """Of a class of pyamqp, by name: its modules are the SDK's own business."""
    return any(cls.__name__ == name and cls.__module__.startswith("azure.") for cls in type(error).__mro__)


def is_authentication(error: BaseException) -> bool:
    """Behind a custom endpoint the SDK calls a refused token a connection error; what is inside tells. And over a
    WebSocket it calls a connection that was refused a failed authentication."""
    if not isinstance(error, ServiceBusAuthenticationError) and not _named(_inner(error), "AuthenticationException"):
        return False
    # What a broker has answered may have the silence after it as its cause.
    return not any(isinstance(each, OSError) for each in _causes(error, (OperationTimeoutError,)))


def _no_word_on_the_token(error: BaseException) -> bool:
    """Return whether the node that checks tokens failed: it neither accepted nor refused (4xx; 408 and 429 don't
    count)."""
    inner = _inner(error)
    if not is_authentication(error) or not _named(inner, "TokenAuthFailure"):
        return False
    status = getattr(inner, "status_code", None)
    return not isinstance(status, int) or not 400 <= status < 500 or status in (408, 429)


def _access(error: BaseException) -> bool:
    return isinstance(error, ServiceBusAuthorizationError) or _condition(error) in _ACCESS


def _timed_out_trying(error: BaseException) -> bool:
    """The connection was refused or lost, and another attempt would have come too late."""
    return is_time_over(error) and isinstance(error, ServiceBusConnectionError | ServiceBusCommunicationError)


_UNANSWERED: Final = (
    PairingError, OperationTimeoutError, ServiceBusConnectionError, ServiceBusCommunicationError,
    ServiceBusAuthenticationError,  # that of a connection; a refused token is known before
)  # fmt: skip
_NETWORK: Final = (ServiceRequestError, ServiceResponseError, OSError)
_NO_FILE: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


def _credential_out_of_reach(error: BaseException) -> bool:
    """Return whether the issuer of tokens can't be reached, or fails itself, which says nothing about the
    credential."""
    if not isinstance(error, ClientAuthenticationError):
        return False
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status >= 500 or status in (408, 429)
    return any(isinstance(each, _NETWORK) for each in _causes(error))


def _http_failing(error: BaseException) -> bool:
    status = getattr(error, "status_code", None)
    return isinstance(error, HttpResponseError) and isinstance(status, int) and (status >= 500 or status in (408, 429))


def _sdk_module(error: BaseException) -> str:
    """The innermost module of the SDK that the error came through; "" if none."""
    found = ""
    traceback = error.__traceback__
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if name.startswith("azure.servicebus."):
            found = name
        traceback = traceback.tb_next
    return found


# Here the SDK works on what the caller gave: messages to encode, a credential to ask.
_ON_OUR_SIDE: Final = ("_encode", "_cbs_async", "cbs", "authentication", "_authentication_async", "message")


def _garbled(error: BaseException) -> bool:
    """Return whether the SDK failed on the peer's data, or its end: a proxy's page, a truncated frame."""
    if not isinstance(error, Exception) or isinstance(error, ImportError | ServiceBusError | PairingError):
        return False
    module = _sdk_module(error)
    return "._pyamqp." in module and module.rsplit(".", 1)[-1] not in _ON_OUR_SIDE


@dataclass(frozen=True, slots=True)
class Row:
    errors: str
    when: str
    matches: Match
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Case:
    """A row of both tables."""

    errors: str
    when: str
    matches: Match
    default: Verdict
    described: Verdict


_Q, _B, _R = Verdict.QUALIFIES, Verdict.BUSY, Verdict.REFUSED

CASES: Final[tuple[Case, ...]] = (
    Case("`NotTriedError`", "the time ran out before the message could be tried: it says nothing about the entity",
         _is(NotTriedError), _R, _R),
    Case("`ServiceBusServerBusyError`; condition `com.microsoft:server-busy`", "the service throttles",
         lambda error: isinstance(error, ServiceBusServerBusyError) or _condition(error) == _BUSY, _B, _B),
    Case("`ServiceBusAuthenticationError` round a token answer that is no 4xx, or 408, 429",
         "the node that checks tokens failed; it neither accepted nor refused", _no_word_on_the_token, _Q, _R),
    Case("`ServiceBusAuthenticationError`; `ServiceBusConnectionError` round an `AuthenticationException`",
         "wrong key, wrong or expired token, token for another entity; behind a custom endpoint the SDK calls it a"
         " connection error", is_authentication, _R, _R),
    Case("`ServiceBusAuthorizationError`; conditions `amqp:unauthorized-access`, `com.microsoft:auth-failed`,"
         " `com.microsoft:publisher-revoked`", "the Send right is missing", _access, _R, _R),
    Case("`MessageSizeExceededError`; conditions `amqp:link:message-size-exceeded`, `amqp:frame-size-too-small`",
         "message or batch too large",
         lambda error: isinstance(error, MessageSizeExceededError) or _condition(error) in _TOO_LARGE, _R, _Q),
    Case("`MessagingEntityNotFoundError`; condition `amqp:resource-deleted`", "no such entity, or deleted",
         lambda error: isinstance(error, MessagingEntityNotFoundError)
         or (_condition(error) in _GONE and not isinstance(error, ServiceBusCommunicationError)), _R, _Q),
    Case("`MessagingEntityDisabledError`", "the entity, or sending to it, is switched off",
         _is(MessagingEntityDisabledError), _R, _Q),
    Case("`ServiceBusQuotaExceededError`", "the entity is full, or the namespace has too many connections",
         lambda error: isinstance(error, ServiceBusQuotaExceededError)
         or _condition(error) == "amqp:resource-limit-exceeded", _Q, _Q),
    Case("`OperationTimeoutError`, `TimeoutError`; conditions `com.microsoft:timeout`,"
         " `com.microsoft:message-wait-timeout`", "no answer in time, on opening or on sending",
         lambda error: isinstance(error, OperationTimeoutError | TimeoutError) or _condition(error) in _TIMEOUT,
         _Q, _Q),
    Case("`ServiceBusConnectionError`, `ServiceBusCommunicationError`, where the send's time ended before the SDK's"
         " retries did", "the send has timed out; this is the failure of its last attempt", _timed_out_trying, _Q, _Q),
    Case("`ServiceBusConnectionError`, `ServiceBusCommunicationError`",
         "refused, reset, no route, unknown host name, TLS failure, connection or link closed by the service",
         _is(ServiceBusConnectionError, ServiceBusCommunicationError), _Q, _R),
    Case("`ServiceBusError` with condition " + ", ".join(f"`{each}`" for each in sorted(_FAILING)),
         "the service, a node of it, the connection or the link broke down",
         lambda error: isinstance(error, ServiceBusError) and _condition(error) in _FAILING, _Q, _R),
    Case("`SessionCannotBeLockedError`", "an error of receivers", _is(SessionCannotBeLockedError), _R, _R),
    Case("`MessageLockLostError`, `SessionLockLostError`, `MessageNotFoundError`, `MessagingEntityAlreadyExistsError`",
         "an error of receivers or of management; not transient, so it counts by the letter",
         _is(MessageLockLostError, SessionLockLostError, MessageNotFoundError, MessagingEntityAlreadyExistsError),
         _R, _Q),
    Case("`ServiceBusError` with any other condition (`amqp:not-allowed`, `amqp:not-implemented`,"
         " `amqp:invalid-field`, `amqp:decode-error`, `amqp:precondition-failed`, `com.microsoft:argument-error`,"
         " `com.microsoft:argument-out-of-range` …)",
         "the service refuses this message: no session id for an entity that needs one, a bad argument",
         lambda error: isinstance(error, ServiceBusError) and _condition(error) is not None, _R, _R),
    Case("`ClientAuthenticationError` round a network error, or with status 5xx, 408, 429",
         "the credential can't reach the issuer of its tokens", _credential_out_of_reach, _Q, _R),
    Case("`ClientAuthenticationError`", "the credential is wrong, or there is none",
         _is(ClientAuthenticationError), _R, _R),
    Case("`ServiceRequestError`, `ServiceResponseError`; `HttpResponseError` with status 5xx, 408, 429",
         "a network or server failure of a credential or of the management API",
         lambda error: isinstance(error, ServiceRequestError | ServiceResponseError) or _http_failing(error), _Q, _R),
    Case("`FileNotFoundError`, `IsADirectoryError`, `NotADirectoryError`", "the file of CA certificates is not there",
         _is(*_NO_FILE), _R, _R),
    Case("`OSError` (`ConnectionError`, `socket.gaierror`, `ssl.SSLError` …)", "connection, DNS and TLS errors",
         _is(OSError), _Q, _R),
    Case("`ServiceBusError` round any error from the SDK's AMQP engine, except its encoder",
         "the peer's data can't be understood: not AMQP, or truncated", _garbled, _Q, _R),
    Case("`ValueError` (`MessageAlreadySettled` too), `TypeError`; `ServiceBusError` round one of the SDK's encoder",
         "bad arguments: a message that can't be encoded, a sender that is closed",
         _is(ValueError, TypeError, MessageAlreadySettled), _R, _R),
    Case("anything else", "it says nothing about the entity", lambda error: True, _R, _R),
)  # fmt: skip


class Table:
    """A classifier made of rows; `rows` can be read, and `with_rows` puts rows in front of them."""

    __slots__ = ("name", "rows")

    def __init__(self, name: str, rows: tuple[Row, ...]) -> None:
        self.name = name
        self.rows = rows

    def row(self, error: BaseException) -> Row | None:
        error = said(error)
        return next((row for row in self.rows if row.matches(error)), None)

    def __call__(self, error: BaseException) -> Verdict:
        row = self.row(error)
        return Verdict.REFUSED if row is None else row.verdict

    def with_rows(self, *changes: tuple[type[BaseException] | str, Verdict], name: str = "custom") -> Table:
        """This table, with another verdict on some classes of errors or AMQP conditions."""
        rows = []
        for what, verdict in changes:
            if isinstance(what, str):
                rows.append(Row(f"condition `{what}`", "", _has(what), verdict))
            else:
                rows.append(Row(f"`{what.__name__}`", "", _is(what), verdict))
        return Table(name, (*rows, *self.rows))

    def __repr__(self) -> str:
        return f"<Table {self.name}: {len(self.rows)} rows>"


DEFAULT: Final = Table("DEFAULT", tuple(Row(c.errors, c.when, c.matches, c.default) for c in CASES))
AS_DESCRIBED: Final = Table("AS_DESCRIBED", tuple(Row(c.errors, c.when, c.matches, c.described) for c in CASES))


def is_reach(error: BaseException) -> bool:
    """Return whether a ping failed because the entity can't be reached (down, silent, busy, full), which may pass.

    False: the entity is there and refuses (deleted, disabled, access lost), so it is `UNREACHABLE`. The application's
    classifier plays no part: it is about the application's messages.
    """
    return isinstance(error, NotTriedError) or DEFAULT(error) is not Verdict.REFUSED


# Conditions that the SDK itself gives a connection or a link, without an answer from the broker.
_NOT_SAID: Final = frozenset({"amqp:client-error", "amqp:socket-error", "amqp:unknown-error", "amqp:vendor-error"})


def is_answer(error: BaseException) -> bool:
    """Return whether a broker said this of the entity, the message or the token.

    The SDK tries again after most answers. The broker's answer wins over the silence that such a retry may meet. A
    connection or link that was refused or closed is no answer, and neither is a time-out.
    """
    if is_authentication(error):
        return True
    error = said(error)
    if not isinstance(error, ServiceBusError) or isinstance(error, _UNANSWERED):
        return False
    return type(error) is not ServiceBusError or _condition(error) not in (None, *_NOT_SAID)


def is_silence(error: BaseException) -> bool:
    """Return whether nobody answered, so that an answer may still come; a refused or broken connection is an answer."""
    return not is_answer(error) and any(
        isinstance(each, OperationTimeoutError | TimeoutError) for each in _causes(error)
    )


def is_definite(error: BaseException) -> bool:
    """Return whether the attempt was definitely refused, so that waiting for an answer is useless."""
    return not isinstance(error, NotTriedError) and not is_silence(error)


# By name, since a decision imports neither socket nor ssl.
_HOST_REFUSES: Final = frozenset({"ConnectionRefusedError", "gaierror", "SSLError"})
_CUT_OFF: Final = frozenset({"SSLEOFError", "SSLZeroReturnError"})


def is_of_host(error: BaseException) -> bool:
    """Return whether this failure holds for every entity of the host: a refused connection, an unknown host name or a
    failed TLS handshake. A connection that was reset and a refused link say nothing about the others."""
    for each in _causes(error):
        names = {cls.__name__ for cls in type(each).__mro__}
        if names & _HOST_REFUSES and not names & _CUT_OFF:
            return True
    return False


# With these a broker refuses the message, not the sender; another queue would do the same. (amqp:not-allowed is
# different: a queue that requires sessions gives it for every diverted message.)
_OF_MESSAGE: Final = _TOO_LARGE | {
    "amqp:decode-error", "amqp:invalid-field", "com.microsoft:argument-error", "com.microsoft:argument-out-of-range",
}  # fmt: skip


def is_of_message(error: BaseException) -> bool:
    """Return whether the message itself can't be sent, to any queue, so that no backlog queue is to blame.

    One message that can't be encoded must not take queue after queue out of the rotation.
    """
    inner = said(error)
    if isinstance(inner, MessageSizeExceededError) or _condition(inner) in _OF_MESSAGE:
        return True
    if _sdk_module(inner).endswith("._encode"):
        return True
    # Errors that the SDK wraps come from sending: from the peer or the credential. The others come from preparing to
    # send.
    local = TypeError | ValueError | AttributeError | ArithmeticError
    return isinstance(error, local) and not isinstance(error, OSError)
