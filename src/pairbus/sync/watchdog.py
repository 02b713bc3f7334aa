"""Ends calls of the sync SDK that would hang: shuts the socket under them at their deadline.

The SDK's sync client waits for ever for a peer that accepts TCP and then says nothing: its TLS handshake and its SASL
exchange have no time-out, whatever `timeout=`, `try_timeout=` or `socket_timeout=` say. A blocked read or write on a
socket that another thread shuts down returns at once, so one daemon thread per process does that for every sender.

While calls are answered in time it costs next to nothing: arming writes a float and compares it with the time at which
the thread will look anyway; disarming takes a free lock. The thread sleeps until the earliest deadline that it knew; by
then that call is usually long over, and it looks for the next one. It is woken only for a deadline earlier than that.

What it decides: nothing but which deadlines have passed. What a shut sender means is the business of
`guarded_sender.py`, by way of `sdk_sender.py`.

Private parts of the SDK that it touches (the rest is in `pairing/sdk.py`):

    sender._create_handler             called for every new link: the guard learns of the AMQP client
    sender._handler                    that AMQP client
    sender._open                       replaced until the first link is open: was anything sent?
    sender._handle_exception           replaced for the guarded sender: see pairing/sdk.py
    sender._config.ssl_context         replaced by a context that shows its socket before the handshake
    handler.close                      public, but of a private class: replaced, so that it always closes its socket
    handler._keep_alive_thread         forgotten before closing: not waited for
    handler._connection._transport.sock          socket, SSLSocket, or a WebSocket with a `.sock` of its own
    handler._cbs_authenticator._expires_on, ._refresh_window    when the next send will fetch a token
"""

from __future__ import annotations

import math
import os
import socket
import ssl
import threading
import time
import weakref
from typing import Any

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, ServiceBusServerBusyError

from pairbus.pairing.guarded_sender import AFTER_STALL_S, STALLED_S, EndsAt, answered_with, ends_call
from pairbus.pairing.sdk import is_interruption, judged, tls_context
from pairbus.sync.interrupts import start

NEVER = math.inf
# A guard that has fired fires again until its call is over: a retry may have opened another socket meanwhile.
AGAIN_S = 0.1
# A token is fetched off the caller's thread if the SDK would fetch it within this time.
TOKEN_MARGIN_S = 5.0


class Watchdog:
    """The guards of one process, and the thread that looks after them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin as in a new process; a forked child calls it, since the parent's thread and locks are not its own."""
        self._lock = threading.RLock()  # a signal handler that closes the client may interrupt who holds it
        self._guards: weakref.WeakSet[Guard] = weakref.WeakSet()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self.next_look = NEVER

    def watch(self, guard: Guard) -> None:
        with self._lock:
            self._guards.add(guard)

    def wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # a signal handler may have kept it from starting
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._run, name="pairbus-watchdog", daemon=True)
                    start(self._thread)
        self._woken.set()

    def _run(self) -> None:
        woken = self._woken
        while True:
            # Order matters: whoever arms after this line sees NEVER and wakes us; whoever armed before is found below.
            self.next_look = NEVER
            woken.clear()
            now = time.monotonic()
            with self._lock:
                guards = list(self._guards)
            earliest = NEVER
            for guard in guards:
                if guard.deadline <= now:
                    guard.fire(now)
                earliest = min(earliest, guard.deadline)
            del guards
            guard = None  # type: ignore[assignment]  # a sleeping thread keeps no sender alive
            self.next_look = earliest
            woken.wait(None if earliest is NEVER else max(0.0, earliest - time.monotonic()))


WATCHDOG = Watchdog()


class Guard:
    """Stands beside one SDK sender: its deadline, its sockets, and how its failed attempts are judged."""

    __slots__ = (
        "__weakref__", "_create", "_handle", "_handler", "_lock", "_open", "_put_off", "_sock", "answer", "deadline",
        "ends_at", "fired", "is_in_place", "sender", "was_open",
    )  # fmt: skip

    def __init__(self, sender: Any, native: bool = True) -> None:
        """`native`: the sender speaks through the SDK's own AMQP library. Another's sockets are out of reach."""
        self.deadline = NEVER
        self.fired = False
        self.is_in_place = False  # the call runs on the caller's thread: nothing may be closed or opened in it
        #: What a broker answered to an earlier attempt of the call under way, if it did.
        self.answer: ServiceBusError | None = None
        #: What ends the call under way before its time, if anything: see `PrimaryTerms`.
        self.ends_at: EndsAt | None = None
        self._put_off = False
        self._lock = threading.RLock()  # as above
        self.sender = sender
        self._handler: Any = None
        self._sock: socket.socket | None = None
        self._handle = sender._handle_exception
        sender._handle_exception = self._judge
        #: A link was open, so that something may have been sent. While it is False, a guard that has fired is the end:
        #: nothing will be sent any more.
        self.was_open = False
        self._open = sender._open
        sender._open = self._open_first
        if not native:
            return
        config = sender._config
        if config.use_tls:
            config.ssl_context = _ShowingContext(self, config.ssl_context, config.connection_verify)
        self._create = sender._create_handler
        sender._create_handler = self._create_handler
        WATCHDOG.watch(self)

    def arm(self, deadline: float) -> None:
        self._put_off = False
        self.deadline = deadline
        if deadline < WATCHDOG.next_look:
            WATCHDOG.wake()

    def disarm(self) -> bool:
        """End the watch, and return whether the guard had fired. After that the guard shuts nothing."""
        with self._lock:
            self.deadline = NEVER
        return self.fired

    def fire(self, now: float) -> None:
        with self._lock:
            if self.deadline > now:
                return  # over in time after all
            if now - self.deadline > STALLED_S and not (self._put_off or self.fired or self.deadline == 0.0):
                # This process stood still: the answer may be there already, and the call is yet to see it.
                self._put_off = True
                self.deadline = now + AFTER_STALL_S
                return
            self.fired = True
            self.deadline = now + AGAIN_S
            for sock in self._sockets():
                _shut(sock)

    def abort(self) -> None:
        """Fires now, and goes on until the call is over. A call that has not begun yet sees that it has fired."""
        with self._lock:
            self.deadline = 0.0
            self.fired = True
        self.fire(time.monotonic())
        if self.deadline < WATCHDOG.next_look:
            WATCHDOG.wake()

    def wants_token(self) -> bool:
        """Return whether the next send would fetch a token, which can take as long as its issuer likes."""
        authenticator = getattr(self._handler, "_cbs_authenticator", None)
        if authenticator is None or authenticator._expires_on is None:
            return True
        left: float = authenticator._expires_on - time.time()
        return left - (authenticator._refresh_window or 0) <= TOKEN_MARGIN_S

    def close_sockets(self) -> None:
        """Closes what the SDK leaves to the garbage collector when it fails half-way through opening."""
        for sock in self._sockets():
            sock.close()
        self._sock = None

    def forget(self) -> None:
        """In a forked child: closes the child's copies of the sockets. Nothing is written to the parent's peer."""
        self._lock = threading.RLock()
        self.deadline = NEVER
        let_go(self._sockets())

    def _sockets(self) -> list[socket.socket]:
        found = sockets_of(self._handler)
        if self._sock is not None and self._sock not in found:
            found.append(self._sock)
        return found

    def _open_first(self, *arguments: Any, **options: Any) -> None:
        """Open the first link; those after it, and sends on an open one, call the SDK's own method."""
        self._open(*arguments, **options)
        with self._lock:
            if self.fired:
                raise OperationTimeoutError(message="The link was not open in time.")
            self.was_open = True
        del self.sender._open

    def _create_handler(self, auth: Any) -> None:
        self._create(auth)
        handler = self._handler = self.sender._handler
        close = handler.close

        def close_all() -> None:
            # The SDK forgets to close the socket when saying goodbye fails, and leaves it to the garbage collector. And
            # it waits up to a second for its keep-alive thread, which ends by itself.
            sockets = self._sockets()
            handler._keep_alive_thread = None
            try:
                close()
            finally:
                for sock in sockets:
                    sock.close()

        handler.close = close_all

    def _judge(self, exception: BaseException) -> Any:
        if self.fired:
            raise OperationTimeoutError(message="The broker did not answer in time.") from exception
        if self.is_in_place:
            if is_interruption(exception):
                raise exception
            error = judged(self.sender, exception)
        else:
            error = self._handle(exception)
        if isinstance(error, ServiceBusServerBusyError) or ends_call(self.sender, self.ends_at, error):
            raise error
        self.answer = answered_with(error, self.answer)
        return error


class _ShowingContext:
    """Stands in for an SSLContext: lets the guard see the socket while the handshake is under way."""

    def __init__(self, guard: Guard, context: ssl.SSLContext | None, ca_file: str | None) -> None:
        self._guard = weakref.ref(guard)
        self._context = context
        self._ca_file = ca_file

    def wrap_socket(self, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        context = self._context or tls_context(self._ca_file)
        options["do_handshake_on_connect"] = False
        wrapped = context.wrap_socket(sock, **options)
        try:
            guard = self._guard()
            if guard is not None:
                guard._sock = wrapped
                if guard.fired:
                    raise TimeoutError("the time for opening the connection is over")
            wrapped.do_handshake()
        except BaseException:
            wrapped.close()
            raise
        return wrapped


def sockets_of(handler: Any) -> list[socket.socket]:
    """Return the socket of an AMQP client of the SDK, in a list that is empty while it has none."""
    connection = getattr(handler, "_connection", None)
    sock = getattr(getattr(connection, "_transport", None), "sock", None)
    if sock is not None and not isinstance(sock, socket.socket):
        sock = getattr(sock, "sock", None)  # a WebSocket's own
    return [sock] if isinstance(sock, socket.socket) else []


def let_go(sockets: list[socket.socket]) -> None:
    """Closes file descriptors that belong to another process too: no shutdown, no TLS or AMQP goodbye."""
    for sock in sockets:
        try:
            os.close(sock.detach())
        except OSError:
            pass


def _shut(sock: socket.socket) -> None:
    try:
        # Not SSLSocket.shutdown: that drops the TLS state under the thread that is reading.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass
