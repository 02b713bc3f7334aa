from __future__ import annotations

import gc
import socket
import ssl
import threading
import time
import timeit
import weakref
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import exceptions

from pairbus.pairing.sdk import LinkLost
from pairbus.sync.sdk_sender import WatchedSender, let_go, sockets_of
from pairbus.sync.watchdog import NEVER, WATCHDOG

from .background import wait_until


class Transport:
    KIND = "pyamqp"

    @staticmethod
    def create_servicebus_exception(_logger: Any, error: Exception, **_: Any) -> Exception:
        return error


class StandIn:
    """As much of an SDK sender as a watched touches, with a socket that nobody answers on."""

    def __init__(self, use_tls: bool = False) -> None:
        self.near, self.far = socket.socketpair()
        self._config = SimpleNamespace(
            use_tls=use_tls, ssl_context=None, connection_verify=None, custom_endpoint_address=None
        )
        self._running = True
        self._handler: Any = None
        self._amqp_transport = Transport
        self.opened: list[float | None] = []
        self.closed = False

    def close_sockets(self) -> None:
        self.near.close()
        self.far.close()

    def _create_handler(self, _auth: Any) -> None:
        connection = SimpleNamespace(_transport=SimpleNamespace(sock=self.near))
        self._handler = SimpleNamespace(_connection=connection, _keep_alive_thread="a thread", close=self._close)

    def _open(self, timeout: float | None = None) -> None:
        self.opened.append(timeout)

    def _close(self) -> None:
        self.closed = True
        self._handler._connection = None  # as the SDK does

    def _handle_exception(self, exception: BaseException) -> BaseException:
        return exception

    def _backoff(self, *_: Any, **__: Any) -> None:
        """Don't wait."""


@pytest.fixture
def sender() -> Iterator[StandIn]:
    made = StandIn()
    yield made
    made.close_sockets()


@pytest.fixture
def watched(sender: StandIn) -> WatchedSender:
    watched = WatchedSender(sender)
    sender._create_handler(None)
    return watched


@pytest.mark.parametrize("wait_s", [0.0, 0.05, 0.2])
def test_p19_a_blocked_read_ends_at_its_deadline(watched: WatchedSender, sender: StandIn, wait_s: float) -> None:
    began = time.monotonic()
    watched.arm(began + wait_s)
    assert sender.near.recv(1) == b""
    assert wait_s - 0.001 <= time.monotonic() - began
    assert watched.disarm()


def test_p19_an_earlier_deadline_is_not_overslept(watched: WatchedSender, sender: StandIn) -> None:
    other = StandIn()
    late = WatchedSender(other)
    late.arm(time.monotonic() + 1000)
    assert wait_until(lambda: WATCHDOG.next_look == late.deadline), "the thread sleeps until then"
    watched.arm(time.monotonic() + 0.1)
    assert sender.near.recv(1) == b""
    assert not late.disarm()
    other.close_sockets()


def test_a_call_that_ended_in_time_is_not_shut(watched: WatchedSender, sender: StandIn) -> None:
    watched.arm(deadline := time.monotonic() + 1.0)
    assert wait_until(lambda: WATCHDOG.next_look <= deadline), "it knows of the call"
    assert not watched.disarm()
    assert wait_until(lambda: WATCHDOG.next_look > deadline), "it has looked"
    sender.near.settimeout(0.05)
    with pytest.raises(TimeoutError):
        sender.near.recv(1)


def test_a_late_look_does_not_shut_the_next_call(watched: WatchedSender, sender: StandIn) -> None:
    watched.arm(time.monotonic() + 10)
    watched.fire(time.monotonic())
    assert not watched.fired
    assert not watched.disarm()


def test_it_goes_on_shutting_until_the_call_is_over(watched: WatchedSender, sender: StandIn) -> None:
    watched.abort()
    assert sender.near.recv(1) == b""
    near, far = socket.socketpair()  # a retry opened another connection
    sender._handler._connection._transport.sock = near
    assert near.recv(1) == b""
    assert watched.disarm()
    near.close()
    far.close()


def test_the_thread_is_not_woken_by_every_call(watched: WatchedSender, monkeypatch: pytest.MonkeyPatch) -> None:
    wakes: list[int] = []
    real = WATCHDOG.wake

    def wake() -> None:
        wakes.append(1)
        real()

    monkeypatch.setattr(WATCHDOG, "wake", wake)
    for _ in range(1000):
        watched.arm(time.monotonic() + 30)
        watched.disarm()
    assert len(wakes) < 20
    assert sum(each.name == "pairbus-watchdog" for each in threading.enumerate()) == 1


def test_arming_and_disarming_cost_next_to_nothing(watched: WatchedSender) -> None:
    def both() -> None:
        watched.arm(time.monotonic() + 30)
        watched.disarm()

    cost_us = min(timeit.repeat(both, number=1000, repeat=20)) * 1000
    assert cost_us < 3.0, f"{cost_us:.2f} µs a call"


def test_it_keeps_no_guard_alive() -> None:
    sender = StandIn()
    watched = WatchedSender(sender)
    watched.arm(time.monotonic() + 0.02)
    assert wait_until(partial(getattr, watched, "fired"))
    gone = weakref.ref(watched)
    sender.close_sockets()
    del sender, watched
    gc.collect()
    assert gone() is None


def test_closing_a_handler_always_closes_its_socket_and_waits_for_no_thread(
    watched: WatchedSender, sender: StandIn
) -> None:
    handler = sender._handler
    handler.close()
    assert sender.closed
    assert handler._keep_alive_thread is None
    assert sender.near.fileno() == -1


def test_letting_go_says_nothing_to_the_peer(watched: WatchedSender, sender: StandIn) -> None:
    copy = sender.near.dup()  # the parent's
    watched.forget()
    assert sender.near.fileno() == -1
    sender.far.settimeout(0.05)
    with pytest.raises(TimeoutError):
        sender.far.recv(1)
    watched.forget()
    let_go([sender.near])
    copy.close()


def test_sockets_are_found_where_they_are() -> None:
    near, far = socket.socketpair()

    def handler(sock: Any) -> Any:
        return SimpleNamespace(_connection=SimpleNamespace(_transport=SimpleNamespace(sock=sock)))

    assert sockets_of(None) == []
    assert sockets_of(SimpleNamespace(_connection=None)) == []
    assert sockets_of(handler(None)) == []
    assert sockets_of(handler(near)) == [near]
    assert sockets_of(handler(SimpleNamespace(sock=near))) == [near], "a WebSocket"
    assert sockets_of(handler(SimpleNamespace(sock=None))) == []
    near.close()
    far.close()


LOST = exceptions.ServiceBusConnectionError(message="lost")
BUSY = exceptions.ServiceBusServerBusyError()
LATE = exceptions.OperationTimeoutError()


@pytest.mark.parametrize(
    ("error", "in_place", "off_the_callers_thread"),
    [
        (LOST, LinkLost, None),
        (BUSY, exceptions.ServiceBusServerBusyError, exceptions.ServiceBusServerBusyError),
        (LATE, None, None),
        (exceptions.MessageSizeExceededError(), exceptions.MessageSizeExceededError, None),
    ],
)
def test_p24_how_failed_attempts_are_judged(
    watched: WatchedSender, sender: Any, error: Exception, in_place: Any, off_the_callers_thread: Any
) -> None:
    for watched.is_in_place, expected in ((True, in_place), (False, off_the_callers_thread)):
        if expected is None:
            assert sender._handle_exception(error) is error
        else:
            with pytest.raises(expected):
                sender._handle_exception(error)


def test_after_it_has_fired_every_failure_is_a_time_out(watched: WatchedSender, sender: Any) -> None:
    watched.abort()
    with pytest.raises(exceptions.OperationTimeoutError, match="did not answer in time"):
        sender._handle_exception(OSError("Server unexpectedly closed connection"))
    watched.disarm()


def test_p13_it_knows_whether_a_link_was_open(watched: WatchedSender, sender: StandIn) -> None:
    own = StandIn._open
    assert not watched.was_open
    sender._open(2.0)
    assert watched.was_open
    assert sender._open.__func__ is own, "sends on an open link pass nothing of ours"  # type: ignore[attr-defined]
    assert sender.opened == [2.0]


def test_p13_once_it_has_fired_no_link_is_used_that_opens_after_all(watched: WatchedSender, sender: StandIn) -> None:
    watched.abort()
    with pytest.raises(exceptions.OperationTimeoutError, match="not open in time"):
        sender._open(2.0)
    assert not watched.was_open
    watched.disarm()


def test_a_token_is_wanted_before_it_runs_out(watched: WatchedSender, sender: StandIn) -> None:
    assert watched.wants_token(), "before there was one"
    authenticator = SimpleNamespace(_expires_on=None, _refresh_window=None)
    sender._handler._cbs_authenticator = authenticator
    assert watched.wants_token()
    authenticator._expires_on, authenticator._refresh_window = time.time() + 3600, 360
    assert not watched.wants_token()
    authenticator._expires_on = time.time() + 362
    assert watched.wants_token()


def test_a_handshake_that_hangs_can_be_shut() -> None:
    sender = StandIn(use_tls=True)
    watched = WatchedSender(sender)
    watched.arm(time.monotonic() + 0.1)
    with pytest.raises(OSError):
        sender._config.ssl_context.wrap_socket(sender.near, server_hostname="localhost")
    assert watched.disarm()
    sender.far.close()


def test_a_handshake_after_the_deadline_is_not_begun() -> None:
    sender = StandIn(use_tls=True)
    watched = WatchedSender(sender)
    watched.abort()
    watched.disarm()
    with pytest.raises(TimeoutError):
        sender._config.ssl_context.wrap_socket(sender.near, server_hostname="localhost")
    sender.far.settimeout(1)
    assert sender.far.recv(1) == b""
    sender.far.close()


def test_a_context_of_the_users_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = StandIn(use_tls=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    sender._config.ssl_context = context
    WatchedSender(sender)
    seen: list[Any] = []

    def wrap_socket(_self: Any, sock: Any, **options: Any) -> Any:
        seen.append(options)
        raise ssl.SSLError("not now")

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrap_socket)
    with pytest.raises(ssl.SSLError):
        sender._config.ssl_context.wrap_socket(sender.near, server_hostname="localhost")
    assert seen == [{"server_hostname": "localhost", "do_handshake_on_connect": False}]
    sender.close_sockets()


def test_a_watchdog_with_nothing_to_watch_rests() -> None:
    assert wait_until(lambda: WATCHDOG.next_look == NEVER or WATCHDOG.next_look > time.monotonic())
