"""Calls an SDK sender under our deadlines, on threads; `aio/sdk_sender.py` has the same names for an event loop.

On an open link a call runs on the caller's thread with the watchdog beside it. Everything that may block where no
socket can be shut (DNS, a TCP connect, a token's issuer) belongs to opening, which runs on another thread that the
caller abandons at the deadline; that thread ends a little later and cleans up. `guarded_sender.py` decides what follows
from a failure.

Private parts of the SDK that it touches (the rest is in `pairing/sdk.py`):

    sender._create_handler             called for every new link: to learn of the AMQP client
    sender._handler                    that AMQP client
    sender._open                       replaced until the first link is open: was anything sent?
    sender._handle_exception, ._backoff          replaced for the guarded sender: see pairing/sdk.py
    sender._config.ssl_context         replaced by a context that shows its socket before the handshake
    handler.close                      public, but of a private class: replaced, so that it always closes its socket
    handler._keep_alive_thread         forgotten before closing: not waited for
    handler._connection._transport.sock          socket, SSLSocket, or a WebSocket with a `.sock` of its own
    handler._cbs_authenticator._expires_on, ._refresh_window    when the next send will fetch a token
"""

from __future__ import annotations

import contextvars
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from azure.servicebus import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.pairing import fork, sdk
from pairbus.pairing.errors import note_time_over
from pairbus.pairing.guarded_sender import (
    AFTER_STALL_S,
    CLOSE_S,
    GRACE_S,
    STALLED_S,
    SdkSenderBase,
    too_late,
)
from pairbus.pairing.routing.verdicts import said
from pairbus.pairing.sdk import is_interruption, judged, tls_context
from pairbus.sync.interrupts import Latch, start
from pairbus.sync.watchdog import NEVER, WATCHDOG

T = TypeVar("T")

#: Takes the SDK's sender and the seconds that are left.
Operation = Callable[[Any, float], T]
# A sender that has fired fires again until its call is over: a retry may have opened another socket meanwhile.
AGAIN_S = 0.1
# A token is fetched off the caller's thread if the SDK would fetch it within this time.
TOKEN_MARGIN_S = 5.0


def take(held: list[bool], lock: threading.Lock, timeout_s: float) -> None:
    """Append to `held` whether the lock could be taken within the time; see `interrupts.py`."""
    held.extend(map(lock.acquire, (True,), (timeout_s,)))


def take_if_free(held: list[bool], lock: threading.Lock) -> None:
    """Append to `held` whether the lock was free; it is taken then."""
    held.extend(map(lock.acquire, (False,)))


def in_background(work: Callable[[], object]) -> threading.Thread:
    """Run what nobody waits for."""
    thread = threading.Thread(target=work, name="pairbus-close", daemon=True)
    start(thread)
    return thread


class SenderAfterFork:
    """Makes a sender in a forked child neither use nor write to its parent's connections; the next call opens a new
    one."""

    _sdk_sender: SdkSender | None
    _opening: Opening[Any] | None
    _wanted_since: float | None

    def _made_in_this_process(self) -> None:
        self._lock = threading.Lock()
        fork.register(self)

    def _check_process(self) -> None:
        pass

    def forked(self) -> None:
        self._lock = threading.Lock()
        sdk_sender, self._sdk_sender = self._sdk_sender, None
        self._opening = self._wanted_since = None
        if sdk_sender is not None:
            sdk_sender.forget()


class WatchedSender(SdkSenderBase):
    """An SDK sender with its deadline, its sockets, and how its failed attempts are judged."""

    __slots__ = (
        "__weakref__", "_create", "_handler", "_lock", "_put_off", "_sock", "deadline", "fired", "is_in_place",
    )  # fmt: skip

    def __init__(self, sender: Any, native: bool = True) -> None:
        """`native`: the sender uses the SDK's own AMQP library. The sockets of another one can't be reached."""
        super().__init__(sender)
        self.deadline = NEVER
        self.fired = False
        self.is_in_place = False  # the call runs on the caller's thread: nothing may be closed or opened in it
        self._put_off = False
        self._lock = threading.RLock()  # as above
        self._handler: Any = None
        self._sock: socket.socket | None = None
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
        """End the watch, and return whether it had fired. After that it shuts nothing."""
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
        """Return whether the next send would fetch a token, which can take any time."""
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
        return self._failed(error)

    def _back_off(self, **wait: Any) -> None:
        try:
            self._wait(**wait)
        except ServiceBusError as error:
            note_time_over(said(error))
            raise


class SdkSender(WatchedSender):
    """An SDK sender that the watchdog watches. Used by one thread at a time; never used again once it is discarded."""

    __slots__ = ("_native",)

    def __init__(self, sender: ServiceBusSender) -> None:
        self._native = sdk.is_native(sender)
        super().__init__(sender, self._native)

    def is_ready(self) -> bool:
        """Whether a call can be made on the open link."""
        return self._native and self.sender._running and not self.wants_token()

    def wants_fresh_link(self) -> bool:
        """Whether a link that is open can't be used before another token is there."""
        return self._native and sdk.is_open(self.sender) and self.wants_token()

    def in_place(self, operation: Operation[T], now: float, deadline: float) -> T:
        """Make a call on the open link, on the caller's thread."""
        timeout_s = deadline - now
        if timeout_s <= 0:
            raise too_late()
        self.is_in_place = True
        self.answer = None
        self.arm(deadline + GRACE_S)
        try:
            return operation(self.sender, timeout_s)
        except Exception as error:
            if self.disarm() and not isinstance(error, OperationTimeoutError):
                raise OperationTimeoutError(message="The broker did not answer in time.") from error
            raise
        finally:
            self.disarm()
            self.is_in_place = False

    def throw_away(self) -> None:
        in_background(self.close)

    def close_within(self, timeout_s: float) -> None:
        """Close it, and wait this long for that."""
        in_background(self.close).join(timeout_s)

    def close(self) -> None:
        """Close it in the background: the SDK says goodbye to the peer, and waits that long for one that hangs."""
        self.is_in_place = False
        self.arm(time.monotonic() + CLOSE_S)
        try:
            self.sender.close()
        except Exception:  # noqa: S110  # it is being thrown away: there is nobody to tell, and nothing to be done
            pass
        finally:
            self.disarm()
            self.close_sockets()


class Opening(Generic[T]):
    """A call on its own thread, because it may open a link. Abandoned at the deadline, it cleans up itself."""

    def __init__(self, sdk_sender: SdkSender, call: Callable[[], T], ends: float) -> None:
        self.sdk_sender = sdk_sender
        self._call = call
        #: When it is ended, if nobody has done so before.
        self.ends = ends
        self.answer: Any = None
        self.error: BaseException | None = None
        #: Its sender must not be used again, and is closed.
        self.spoilt = False
        #: Nobody waits for its answer any longer.
        self.is_abandoned = False
        self._done = Latch()
        self._lock = threading.RLock()  # a signal handler that closes the sender may interrupt who holds it

    def start(self) -> None:
        # The caller's context, so that traces and log records of the SDK belong to the caller's span.
        run = contextvars.copy_context().run
        start(threading.Thread(target=run, args=(self._run,), name="pairbus-open", daemon=True))

    def _run(self) -> None:
        sdk_sender = self.sdk_sender
        sdk_sender.arm(self.ends)
        try:
            if self.is_abandoned or sdk_sender.fired:  # before it began, so that no socket was there to be shut
                raise too_late()
            self.answer = self._call()
        except BaseException as error:
            self.error = error
            self.spoilt = sdk_sender.fired or sdk.spoils(error)
        sdk_sender.disarm()
        fork.note_ending()
        with self._lock:
            self.spoilt = self.spoilt or self.is_abandoned or sdk_sender.fired
            self._done.set()
        if self.is_abandoned:
            self.error = None
        if self.spoilt:
            sdk_sender.close()

    @property
    def is_over(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the answer, at most this long, and return whether it came."""
        return self._done.wait(timeout_s) and not self.is_abandoned

    def abort(self) -> None:
        """End the call; its waiter learns that it was not answered in time."""
        self.sdk_sender.abort()

    def abandon(self) -> bool:
        """End a call that nobody waits for any more; return True if its answer had come in the same instant."""
        with self._lock:
            if self.is_abandoned or self.is_over:
                return not self.is_abandoned
            self.is_abandoned = True
        self.sdk_sender.abort()
        return False

    def cleared_up(self, timeout_s: float) -> None:
        """Wait until a sender that it has spoilt is being closed, at most so long."""
        self._done.wait(timeout_s)


class _ShowingContext:
    """Stands in for an SSLContext: lets the sender see the socket while the handshake is under way."""

    def __init__(self, sender: WatchedSender, context: ssl.SSLContext | None, ca_file: str | None) -> None:
        self._sender = weakref.ref(sender)
        self._context = context
        self._ca_file = ca_file

    def wrap_socket(self, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        context = self._context or tls_context(self._ca_file)
        options["do_handshake_on_connect"] = False
        wrapped = context.wrap_socket(sock, **options)
        try:
            sender = self._sender()
            if sender is not None:
                sender._sock = wrapped
                if sender.fired:
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
