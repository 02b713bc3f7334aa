"""The table of answers: what a broker says, then silence × link × time × retries × interval × classifier (P18).

What the SDK was told in one of its attempts keeps its verdict, although the next attempt meets silence until the time
is over. A connection or link that was refused or closed is no answer: there the time-out that follows decides.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from azure.servicebus import ServiceBusMessage, exceptions
from azure.servicebus._pyamqp.error import (
    AMQPConnectionError,
    AMQPException,
    AMQPLinkError,
    ErrorCondition,
    TokenAuthFailure,
)

from pairbus.aio.guarded_sender import GuardedSender
from pairbus.aio.sdk_sender import SdkSender
from pairbus.pairing.routing.states import EntityState
from pairbus.pairing.routing.verdicts import AS_DESCRIBED, DEFAULT, Table, Verdict

from .background import Background, Event, wait_until
from .stage import Stage

Q, B, R = Verdict.QUALIFIES, Verdict.BUSY, Verdict.REFUSED


class Kind(NamedTuple):
    """What the peer does first; `default` and `described` are the verdicts on that."""

    make: Callable[[], AMQPException] | None
    raised: type[Exception]
    default: Verdict
    described: Verdict
    is_answer: bool = True
    #: The SDK tries again.
    is_retried: bool = True

    def verdict(self, case: Case) -> Verdict:
        tries_again = case.retry_total > 0 or (case.is_open and not self.is_answer)
        if not self.is_answer and self.is_retried and tries_again:
            return Q  # the time-out that replaces it
        return self.default if case.classifier is DEFAULT else self.described


def link(condition: Any) -> Callable[[], AMQPException]:
    return lambda: AMQPLinkError(condition, description="by the broker")


def connection(condition: Any) -> Callable[[], AMQPException]:
    return lambda: AMQPConnectionError(condition, description="by nobody")


KINDS = {
    "disabled": Kind(link(b"com.microsoft:entity-disabled"), exceptions.MessagingEntityDisabledError, R, Q),
    "not found": Kind(link(ErrorCondition.NotFound), exceptions.MessagingEntityNotFoundError, R, Q, is_retried=False),
    "no right": Kind(link(ErrorCondition.UnauthorizedAccess), exceptions.ServiceBusAuthorizationError, R, R),
    "wrong key": Kind(lambda: TokenAuthFailure(401, b"no"), exceptions.ServiceBusAuthenticationError, R, R),
    "tokens not checked": Kind(lambda: TokenAuthFailure(500, b"?"), exceptions.ServiceBusAuthenticationError, Q, R),
    "internal error": Kind(link(ErrorCondition.InternalError), exceptions.ServiceBusError, Q, R),
    "cancelled": Kind(link(b"com.microsoft:operation-cancelled"), exceptions.ServiceBusError, Q, R),
    "a condition of tomorrow": Kind(link(b"com.microsoft:tomorrow"), exceptions.ServiceBusError, R, R),
    "full": Kind(link(ErrorCondition.ResourceLimitExceeded), exceptions.ServiceBusQuotaExceededError, Q, Q,
                 is_retried=False),
    "busy": Kind(link(b"com.microsoft:server-busy"), exceptions.ServiceBusServerBusyError, B, B, is_retried=False),
    "refused connection": Kind(connection(ErrorCondition.SocketError), exceptions.ServiceBusError, Q, R, False),
    "lost connection": Kind(connection(ErrorCondition.ConnectionCloseForced), exceptions.ServiceBusError, Q, R, False),
    "closed link": Kind(link(ErrorCondition.LinkDetachForced), exceptions.ServiceBusError, Q, R, False),
    "silence": Kind(None, exceptions.OperationTimeoutError, Q, Q, False),
}  # fmt: skip


class Case(NamedTuple):
    is_open: bool
    send_timeout: float
    retry_total: int
    interval: float
    classifier: Table


CASES = [
    Case(*each) for each in itertools.product((False, True), (2.0, 4.0), (0, 3), (0.0, 60.0), (DEFAULT, AS_DESCRIBED))
]


class Peer:
    """Behind an SDK sender: raises the error first, and says nothing from then on."""

    def __init__(self, kind: Kind, stage: Stage, case: Case) -> None:
        self._words = [] if kind.make is None else [kind.make()]
        self._stage = stage
        self._case = case
        self._sender = GuardedSender(self.make, "orders")
        self.over = Event()

    async def speak(self, *_arguments: Any, **_options: Any) -> None:
        if self._words:
            raise self._words.pop()
        await wait_until(self._is_shut, within=10.0)
        raise AMQPConnectionError(ErrorCondition.SocketError, description="shut")

    def _is_shut(self) -> bool:
        """Whether nobody waits any more: the test is over, or the guard of a thread has shut its socket."""
        guarded: Any = self._sender._sdk_sender
        return self.over.is_set() or getattr(guarded, "fired", False)

    async def _at_once(self, **_options: Any) -> None:
        """In place of the SDK's wait before a retry."""

    def make(self) -> Any:
        sender: Any = self._stage.client.get_queue_sender("orders")
        sender._open = self.speak
        sender._backoff = self._at_once
        sender._config.retry_total = self._case.retry_total
        return sender

    def guarded(self) -> GuardedSender:
        """A guarded sender to this peer; its link may be open."""
        guarded = self._sender
        if self._case.is_open:
            inner: Any = self.make()
            guarded._sdk_sender = SdkSender(inner)
            guarded._answered_at = time.monotonic()
            inner._create_handler(None)
            inner._handler._cbs_authenticator = SimpleNamespace(_expires_on=time.time() + 3600, _refresh_window=0)
            inner._handler.send_message = inner._handler.send_message_async = self.speak
            inner._running = True

            async def reopen(*_arguments: Any, **_options: Any) -> None:
                if not inner._running:
                    await self.speak()

            inner._open = reopen
        return guarded


@pytest.mark.parametrize("name", KINDS)
async def test_p18_what_a_broker_has_said_wins_over_the_silence_after_it(
    stage: Callable[..., Stage], name: str
) -> None:
    kind = KINDS[name]

    async def run(case: Case) -> str:
        given = stage(failover_interval=case.interval, send_timeout=case.send_timeout, classifier=case.classifier)
        sender = given.sender()
        peer = Peer(kind, given, case)
        sender._primary = peer.guarded()  # type: ignore[assignment]
        error: Exception | None = None
        try:
            await sender.send_messages(ServiceBusMessage("x"))
        except Exception as raised:
            error = raised
        finally:
            peer.over.set()
            await sender._primary.close()
        state = given.monitor.coordinator.state("orders")
        verdict = kind.verdict(case)
        if verdict is Q and case.interval == 0:
            is_right = error is None and state is EntityState.FAILED_OVER
        elif verdict is Q:
            is_timed_out = not kind.is_answer and isinstance(error, exceptions.OperationTimeoutError)
            is_right = (isinstance(error, kind.raised) or is_timed_out) and state is EntityState.SUSPECT
        else:
            is_right = isinstance(error, kind.raised) and state is EntityState.HEALTHY
        return "" if is_right else f"{case}: {verdict}, but {state} and {error!r}"

    calls = [Background(run, case) for case in CASES]
    assert [found for call in calls if (found := await call.result())] == []


@pytest.mark.parametrize(
    ("classifier", "retry_total", "interval", "state"),
    [
        (AS_DESCRIBED, 0, 0.0, EntityState.HEALTHY),
        (AS_DESCRIBED, 30, 60.0, EntityState.SUSPECT),
        (AS_DESCRIBED, 30, 0.0, EntityState.FAILED_OVER),
        (DEFAULT.with_rows((exceptions.ServiceBusError, R)), 30, 0.0, EntityState.HEALTHY),
    ],
)
async def test_p18_a_connection_that_is_refused_until_the_time_is_over_has_timed_out(
    stage: Callable[..., Stage], classifier: Table, retry_total: int, interval: float, state: EntityState
) -> None:
    given = stage(failover_interval=interval, send_timeout=60.0, classifier=classifier)
    sender = given.sender()

    async def refuse(*_arguments: Any, **_options: Any) -> None:
        raise AMQPConnectionError(ErrorCondition.SocketError, description="refused")

    def make() -> Any:
        inner: Any = given.client.get_queue_sender("orders")
        inner._open = refuse
        # The first wait already is longer than the primary's share of the time.
        inner._config.retry_total, inner._config.retry_backoff_factor = retry_total, 20.0
        return inner

    sender._primary = GuardedSender(make, "orders")  # type: ignore[assignment]
    try:
        if state is EntityState.FAILED_OVER:
            await sender.send_messages(ServiceBusMessage("x"))
        else:
            with pytest.raises(exceptions.ServiceBusError, match="refused"):
                await sender.send_messages(ServiceBusMessage("x"))
    finally:
        await sender._primary.close()
    assert given.monitor.coordinator.state("orders") is state
