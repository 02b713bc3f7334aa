"""Accepts connections on ports that serve AMQP, TLS and HTTP alike, told apart by the first byte.

A shell: it peeks at the first byte (MSG_PEEK) and hands the socket to the protocol that the byte stands for; inside TLS
it looks again. The protocols themselves are elsewhere.

One byte is enough ('A' is no HTTP verb's first letter). TLS is handed on once its ClientHello is whole, in one record
of 16 KiB at most: until then the bytes wait in the system's buffer, since a client that never sends the rest would cost
hundreds of kilobytes in OpenSSL's and the loop's. A socket whose bytes are only peeked at stays readable, so the system
is asked to wake us when enough have arrived (SO_RCVLOWAT).

Every connection counts as one without a token (access/unauthenticated.py) until its protocol counts it.

The fault black-hole simulates a dead route: connections are accepted, but nothing is read, written or closed. Data that
protocols write meanwhile is held, and is sent when the fault ends, as TCP would do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import select
import socket
import ssl
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

from pairbus.broker.access.unauthenticated import UnauthenticatedQuota

log = logging.getLogger("pairbus.broker.listener")

Factory = Callable[[], asyncio.Protocol]

_TLS_HANDSHAKE = 0x16
_CLIENT_HELLO = 1
#: Of a record, and of the message that it begins with.
_TLS_HEAD_BYTES = 5 + 4
_TLS_RECORD_BYTES_MAX = 16 * 1024
_AMQP = ord("A")
_HTTP = frozenset(b"GPDHOCT")
_ACCEPTS_PER_TURN = 64
_HELD_BYTES_MAX = 4 * 1024 * 1024
_BIND_ATTEMPTS = 20


class Listener:
    """The ports of one namespace. It can refuse new connections, cut all, and hold all traffic."""

    def __init__(
        self,
        host: str,
        ports: Sequence[int],
        amqp_factory: Factory,
        http_factory: Factory,
        ssl_context: ssl.SSLContext | None = None,
        *,
        connections_max: int = 5000,
        sniff_s: float = 10.0,
        backlog: int = 1024,
        unauthenticated: UnauthenticatedQuota | None = None,
    ) -> None:
        self.host = host
        self.ports = tuple(ports)
        """0 until `reserve` has found a free one. Each serves every protocol; the limits are for all together."""
        self.refused_over_limit = 0
        self._factories = {"amqp": amqp_factory, "http": http_factory}
        self._ssl_context = ssl_context
        self._connections_max = connections_max
        self._sniff_s = sniff_s
        self._backlog = backlog
        self._unauthenticated = UnauthenticatedQuota() if unauthenticated is None else unauthenticated
        self._addresses: list[tuple[socket.AddressFamily, Any]] = []
        self._reserved: list[socket.socket] = []
        self._listening: list[socket.socket] = []
        self._loop: asyncio.AbstractEventLoop
        self._sniffing: dict[socket.socket, asyncio.TimerHandle] = {}
        self._held_sockets: set[socket.socket] = set()
        self._handed_over: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._served: set[_ServedConnection] = set()
        self._emptied: asyncio.Event
        self._is_black_hole = False
        self._retry: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "silent" if self._is_black_hole else "accepting" if self._listening else "refusing"
        ports = ",".join(str(port) for port in self.ports)
        return f"<Listener {self.host}:{ports}: {state}, {self.connections} of {self._connections_max} connections>"

    @property
    def connections(self) -> int:
        """How many there are: being sniffed, in a handshake, served, held."""
        return len(self._sniffing) + len(self._held_sockets) + len(self._handed_over) + len(self._served)

    @property
    def port(self) -> int:
        """The first of its ports."""
        return self.ports[0]

    async def start(self) -> None:
        """Reserve the ports and accept. Raises OSError, in words for a user, when one can't be had."""
        await self.reserve()
        self.resume()

    async def reserve(self) -> None:
        """Hold the ports with sockets that are bound and never listen: while we refuse, nobody else gets them."""
        if self._reserved:
            return
        self._loop = asyncio.get_running_loop()
        self._emptied = asyncio.Event()
        try:
            found = await self._loop.getaddrinfo(self.host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            said = f"can't listen on {self.host}: {error.strerror}; give an address or a name of this machine"
            raise OSError(error.errno, said) from None
        addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
        ports = [0] * len(self.ports)
        try:
            # those with a number first: a free one that is looked for must not be one of them
            for index, wanted in sorted(enumerate(self.ports), key=lambda item: not item[1]):
                ports[index] = self._reserve(addresses, wanted)
        except BaseException:
            _close_all(self._reserved)
            self._reserved, self._addresses = [], []
            raise
        self.ports = tuple(ports)

    def _reserve(self, addresses: Sequence[tuple[socket.AddressFamily, Any]], wanted: int) -> int:
        for _ in range(_BIND_ATTEMPTS):
            port = wanted
            reserved: list[socket.socket] = []
            bound: list[tuple[socket.AddressFamily, Any]] = []
            try:
                for family, address in addresses:
                    try:
                        sock = _new_socket(family)
                        reserved.append(sock)
                        sock.bind((address[0], port, *address[2:]))
                    except OSError as error:
                        # `localhost` may have an address of a family that this machine does not have.
                        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and len(addresses) > 1:
                            continue
                        raise
                    port = sock.getsockname()[1]
                    bound.append((family, sock.getsockname()))
                if not bound:
                    raise OSError(errno.EADDRNOTAVAIL, "none of its addresses is this machine's")
            except OSError as error:
                _close_all(reserved)
                if error.errno == errno.EADDRINUSE and wanted == 0 and bound:
                    continue
                raise OSError(error.errno, _why_not(self.host, port, error)) from None
            self._addresses += bound
            self._reserved += reserved
            return port
        raise OSError(errno.EADDRINUSE, f"found no port that is free on all addresses of {self.host}")

    def resume(self) -> None:
        """Accept again, on the same ports."""
        if self._listening:
            return
        listening: list[socket.socket] = []
        try:
            for family, address in self._addresses:
                sock = _new_socket(family)
                listening.append(sock)
                sock.bind(address)
                sock.listen(self._backlog)
        except OSError as error:
            _close_all(listening)
            raise OSError(error.errno, _why_not(self.host, address[1], error)) from None
        self._listening = listening
        for sock in listening:
            self._loop.add_reader(sock, self._accept, sock)

    def stop_accepting(self) -> None:
        """Let the system refuse new connections; those that are open go on."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for sock in self._listening:
            self._loop.remove_reader(sock)
        _close_all(self._listening)
        self._listening = []

    def abort_all(self) -> None:
        """Cut every connection."""
        for sock in list(self._sniffing):
            self._drop(sock)
        for sock in self._held_sockets:
            self._close(sock)
        self._held_sockets.clear()
        for sock in self._handed_over:
            # The transport that is being made owns it by now, and will find it ended.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for connection in list(self._served):
            connection.abort()

    async def close(self) -> None:
        """Stop permanently; returns when every protocol has been told that its connection is lost."""
        self.stop_accepting()
        self.abort_all()
        _close_all(self._reserved)
        self._reserved = []
        if self._tasks:
            await asyncio.wait(self._tasks)
            self.abort_all()
        while self._served:
            self._emptied.clear()
            await self._emptied.wait()

    def black_hole(self, on: bool) -> None:
        """Hold all traffic of all connections, new ones too, or let it flow again."""
        if on == self._is_black_hole:
            return
        self._is_black_hole = on
        if on:
            for sock in list(self._sniffing):
                self._sniffing.pop(sock).cancel()
                self._loop.remove_reader(sock)
                self._held_sockets.add(sock)
            for connection in self._served:
                connection.hold()
            return
        for connection in list(self._served):
            connection.release()
        held, self._held_sockets = self._held_sockets, set()
        for sock in held:
            self._sniff(sock)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._is_black_hole and self.connections >= self._connections_max:
                self._drop_gone()
                if self.connections >= self._connections_max:
                    self._pause_accepting(1.0)
                    return
            try:
                sock, _address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # Out of descriptors or memory: the peers wait in the backlog while those that are served go on.
                log.error("can't accept on %s:%s: %s", self.host, listening.getsockname()[1], error)
                self._pause_accepting(0.2)
                return
            sock.setblocking(False)
            if self.connections >= self._connections_max or self._unauthenticated.hold(sock, False, 0) is not None:
                self.refused_over_limit += 1
                sock.close()
            elif self._is_black_hole:
                self._held_sockets.add(sock)
            else:
                self._sniff(sock)

    def _pause_accepting(self, delay: float) -> None:
        for sock in self._listening:
            self._loop.remove_reader(sock)
        if self._retry is None:
            self._retry = self._loop.call_later(delay, self._accept_again)

    def _accept_again(self) -> None:
        self._retry = None
        for sock in self._listening:
            self._loop.add_reader(sock, self._accept, sock)

    def _drop_gone(self) -> None:
        """Close held sockets whose peer gave up: clients that try again and again must not use up the limit."""
        poll = select.poll()
        by_descriptor = {sock.fileno(): sock for sock in self._held_sockets}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLRDHUP)
        for descriptor, _ in poll.poll(0):
            sock = by_descriptor[descriptor]
            self._held_sockets.discard(sock)
            self._close(sock)

    def _sniff(self, sock: socket.socket) -> None:
        self._sniffing[sock] = self._loop.call_later(self._sniff_s, self._drop, sock)
        self._loop.add_reader(sock, self._peek, sock)

    def _drop(self, sock: socket.socket) -> None:
        timer = self._sniffing.pop(sock, None)
        if timer is not None:
            timer.cancel()
            self._loop.remove_reader(sock)
            self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        self._unauthenticated.release(sock)
        sock.close()

    def _peek(self, sock: socket.socket) -> None:
        try:
            head = sock.recv(_TLS_HEAD_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            head = b""
        secure = head[:1] == bytes((_TLS_HANDSHAKE,)) and self._ssl_context is not None
        factory = None if secure else self._factory(head)
        if secure:
            size = _client_hello_size(head)
            # a second look comes when all is there, or when the peer has ended before: then TLS says so
            if size is not None and size > sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
                return
            secure = size is not None and self._unauthenticated.hold(sock, True, 0) is None
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        if factory is None and not secure:
            self._drop(sock)
            return
        self._sniffing.pop(sock).cancel()
        self._loop.remove_reader(sock)
        self._handed_over.add(sock)
        task = self._loop.create_task(self._hand_over(sock, factory))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _factory(self, head: bytes) -> Factory | None:
        first = head[0] if head else -1
        if first == _AMQP:
            return self._factories["amqp"]
        if first in _HTTP:
            return self._factories["http"]
        return None

    async def _hand_over(self, sock: socket.socket, factory: Factory | None) -> None:
        try:
            connection = _ServedConnection(self, sock, None if factory is None else factory())
        except Exception:
            log.exception("a connection could not be set up")
            self._handed_over.discard(sock)
            self._close(sock)
            return
        try:
            if factory is None:
                await self._loop.connect_accepted_socket(
                    lambda: connection, sock, ssl=self._ssl_context, ssl_handshake_timeout=self._sniff_s
                )
            else:
                await self._loop.connect_accepted_socket(lambda: connection, sock)
        except OSError as error:
            # A peer that does not trust the certificate, went away, or was too slow: its own affair.
            log.debug("a connection ended in its handshake: %r", error)
        except Exception:
            log.exception("a connection could not be set up")
        finally:
            self._handed_over.discard(sock)
            if connection not in self._served:
                self._unauthenticated.release(sock)

    def _joined(self, connection: _ServedConnection, sock: socket.socket) -> None:
        self._handed_over.discard(sock)
        self._served.add(connection)

    def _left(self, connection: _ServedConnection) -> None:
        self._served.discard(connection)
        if not self._served:
            self._emptied.set()


class _ServedConnection(asyncio.Protocol):
    """Connects a transport with the protocol that serves it, without costing a call per read or write.

    Bound methods are set on the instances: the transport calls the protocol's own `data_received`, the protocol the
    transport's own `write`. Only `hold` puts other functions there.
    """

    def __init__(self, listener: Listener, sock: socket.socket, protocol: asyncio.Protocol | None) -> None:
        self._listener = listener
        self._sock = sock
        self._protocol = protocol
        self._transport: asyncio.Transport
        self._held_transport: _HeldTransport
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = False
        self._is_lost = False
        """The protocol has been told that the connection is lost, whatever the socket still does."""
        if protocol is not None:
            self._serve_with(protocol)

    def _serve_with(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        for name in _JOINED:
            setattr(self, name, getattr(protocol, name))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._held_transport = _HeldTransport(self._transport, self)
        self._listener._joined(self, self._sock)
        if self._protocol is None:
            self._start_timer()
        if self._listener._is_black_hole:
            self.hold()
        if self._protocol is not None:
            self._connect(self._protocol)

    def _connect(self, protocol: asyncio.Protocol) -> None:
        """Let the protocol serve the connection; from here on it says what is held for a client without a token."""
        self._listener._unauthenticated.release(self._sock)
        protocol.connection_made(self._held_transport)

    def data_received(self, data: bytes) -> None:
        """Choose the protocol by the first bytes behind TLS; from then on its own method is called instead."""
        self._cancel_timer()
        factory = self._listener._factory(data)
        if factory is None:
            self._transport.abort()
            return
        protocol = factory()
        self.hand_to(protocol)
        self._connect(protocol)
        protocol.data_received(data)

    def hand_to(self, protocol: asyncio.Protocol) -> None:
        self._serve_with(protocol)
        # The transport may have bound our methods when it was made: let it look again.
        self._transport.set_protocol(self)

    def eof_received(self) -> bool | None:
        if self._protocol is None or self._is_lost:
            return False
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self._listener._left(self)
        self._listener._unauthenticated.release(self._sock)
        self._report_lost(exc)
        # Undo the circle of bound methods, or every connection would wait for the cycle collector.
        self._protocol = None
        for name in _JOINED:
            self.__dict__.pop(name, None)

    def _report_lost(self, exc: Exception | None) -> None:
        if self._protocol is not None and not self._is_lost:
            self._is_lost = True
            self._protocol.connection_lost(exc)

    def _start_timer(self) -> None:
        self._timer = self._listener._loop.call_later(self._listener._sniff_s, self._transport.abort)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        self._transport.abort()

    def hold(self) -> None:
        if self._is_held or self._transport.is_closing():
            return
        self._is_held = True
        self._cancel_timer()
        self._held_transport.hold()
        self._transport.pause_reading()

    def release(self) -> None:
        if not self._is_held:
            return
        self._is_held = False
        if self._held_transport.ended or self._held_transport.overflowed:
            self._transport.abort()
            return
        self._held_transport.release()
        if self._protocol is None:
            self._start_timer()
        if not self._held_transport.reading_paused:
            with contextlib.suppress(RuntimeError):
                self._transport.resume_reading()

    def end_while_held(self) -> None:
        """Tell the protocol that closed so at once; the peer hears nothing until traffic flows again."""
        self._listener._loop.call_soon(self._report_lost, None)


class _HeldTransport(asyncio.Transport):
    """The transport that the protocol sees: its methods are the real transport's own, except while traffic is held.

    Protocols must call `transport.write(…)` each time; one that kept `transport.write` in a variable would not be held.
    """

    def __init__(self, transport: asyncio.Transport, connection: _ServedConnection) -> None:
        super().__init__()
        self._real = transport
        # A strong reference would be a circle, in which the buffers of TLS wait for the cycle collector.
        self._connection = weakref.ref(connection)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.ended = False
        self.overflowed = False
        self.reading_paused = False
        for name in _PASSED_ON:
            if hasattr(transport, name):
                setattr(self, name, getattr(transport, name))
        self._pass_on()

    def _pass_on(self) -> None:
        for name in _HELD:
            setattr(self, name, getattr(self._real, name))

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        if (connection := self._connection()) is not None:
            connection.hand_to(cast(asyncio.Protocol, protocol))

    def hold(self) -> None:
        self.reading_paused = not self._real.is_reading()
        for name in _HELD:
            setattr(self, name, getattr(self, f"_held_{name}"))

    def release(self) -> None:
        self._pass_on()
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            self._real.write(b"".join(held))

    def _held_write(self, data: bytes | bytearray | memoryview) -> None:
        self._held_bytes += len(data)
        if self._held_bytes > _HELD_BYTES_MAX:
            # More than any socket buffer would have taken: the stream can't go on whole, so it is cut on release.
            self.overflowed = True
            self._held.clear()
        elif not self.overflowed and not self.ended:
            self._held.append(bytes(data))

    def _held_writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self._held_write(data)

    def _held_close(self) -> None:
        if not self.ended:
            self.ended = True
            self._held.clear()
            if (connection := self._connection()) is not None:
                connection.end_while_held()

    def _held_abort(self) -> None:
        self._held_close()

    def _held_write_eof(self) -> None:
        self.ended = True

    def _held_is_closing(self) -> bool:
        return self.ended or self._real.is_closing()

    def _held_pause_reading(self) -> None:
        self.reading_paused = True

    def _held_resume_reading(self) -> None:
        self.reading_paused = False


_JOINED = ("data_received", "pause_writing", "resume_writing")
_PASSED_ON = (
    "get_extra_info",
    "is_reading",
    "get_write_buffer_size",
    "set_write_buffer_limits",
)
_HELD = ("write", "writelines", "write_eof", "close", "abort", "is_closing", "pause_reading", "resume_reading")


def _client_hello_size(head: bytes) -> int | None:
    """Return how many bytes it takes to know, or to have, a whole ClientHello that begins like this; None for what is
    none, or none in one record."""
    if len(head) < _TLS_HEAD_BYTES:
        return _TLS_HEAD_BYTES
    record, message = int.from_bytes(head[3:5], "big"), int.from_bytes(head[6:9], "big")
    if head[1] != 3 or record > _TLS_RECORD_BYTES_MAX or head[5] != _CLIENT_HELLO or message + 4 > record:
        return None
    return 5 + record


def _new_socket(family: socket.AddressFamily) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return sock


def _why_not(host: str, port: int, error: OSError) -> str:
    said = f"can't listen on port {port} of {host}: {error.strerror}; "
    if error.errno == errno.EADDRINUSE:
        return said + "end the program that has it, or choose another port (0 is any free one)"
    if error.errno == errno.EACCES:
        return said + "ports below 1024 need the system's permission; choose a higher one (0 is any free one)"
    return said + "choose another host or port"


def _close_all(sockets: Any) -> None:
    for sock in sockets:
        sock.close()
