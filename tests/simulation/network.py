"""A simulated network: bytes that take their time, streams that break at any byte, peers that vanish without a word.

What TCP promises holds: bytes arrive in order and once, or not at all. Beyond that anything may happen that a *doom*
says, which the seed draws for each connection: after so many bytes in one direction it is reset, goes silent for ever
(half-open), or stalls. A machine without power swallows what is sent to it until it is back, and resets then.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .loop import Process, SimulatedLoop, current_process

Address = tuple[str, int]
#: What a system takes from a program that closes a stream before its peer has read all of it.
_SYSTEM_BUFFER_BYTES = 256 * 1024
_DELAYS_S = (0.0, 0.0002, 0.0002, 0.0005, 0.001, 0.005)
_WORLDS_OWN = contextvars.Context()


@dataclass(frozen=True, slots=True)
class Doom:
    """What becomes of a connection when it has carried so many bytes."""

    kind: str  # reset, silence, stall
    outgoing: bool  # of the bytes that its client sends; otherwise of those that it gets
    after_bytes: int
    seconds: float = 0.0  # of a stall


class SimulatedNetwork:
    """Where sockets listen, and how long bytes are on their way."""

    def __init__(self, loop: SimulatedLoop, seed: str, dooms: dict[tuple[str, int], Doom] | None = None) -> None:
        """`dooms`: (name of the client's process, which of its connections) → what becomes of it."""
        self.loop = loop
        self._seed = seed
        self._dooms = dooms or {}
        self._listening: dict[Address, SimulatedSocket] = {}
        self._made: dict[str, int] = {}
        self._port = 50_000
        #: Hosts that can't be reached: what is sent to and from them is held.
        self._cut_off: dict[str, float] = {}
        self.transports: list[SimulatedTransport] = []
        #: Name of a client's process → called when one of its connections may have ended.
        self.watchers: dict[str, Callable[[], None]] = {}
        loop.join(self._connect, self._adopt)

    def __repr__(self) -> str:
        return f"<SimulatedNetwork: {len(self._listening)} listen, {len(self.transports)} transports>"

    def new_socket(self, family: Any = None) -> SimulatedSocket:
        return SimulatedSocket(self, current_process())

    def free_port(self) -> int:
        self._port += 1
        return self._port

    def listen(self, sock: SimulatedSocket) -> None:
        self._listening[sock.address] = sock

    def forget(self, sock: SimulatedSocket) -> None:
        if self._listening.get(sock.address) is sock:
            del self._listening[sock.address]

    def cut_off(self, host: str, seconds: float) -> None:
        """Hold what is sent to the host and from it for so long, as TCP does while packets are lost."""
        self._cut_off[host] = max(self._cut_off.get(host, 0.0), self.loop.now + seconds)

    @property
    def all_arrived_at(self) -> float:
        """When everything that is on its way will have arrived, and all hosts can be reached."""
        return max((*self._cut_off.values(), *(each.arrives_at for each in self.transports)), default=0.0)

    def held_until(self, host: str) -> float:
        return self._cut_off.get(host, 0.0)

    def silence(self, transport: SimulatedTransport) -> None:
        """Let a stream end without a word to either side."""
        transport._is_swallowed = transport.peer._is_swallowed = True

    def ended(self, transport: SimulatedTransport) -> None:
        for each in (transport, transport.peer):
            watcher = self.watchers.get(each.process.name)
            if watcher is not None:
                watcher()

    def power_back(self, process: Process) -> None:
        """The machine of a process that lost its power runs again: it knows nothing of the old streams, and says so."""
        for transport in self.transports:
            if transport.process is process:
                transport.is_unknown = True

    def lose(self, process: Process, *, silently: bool) -> None:
        """End a process's sockets: its peers hear a reset, or, when the power went, nothing."""
        for address in [each for each, sock in self._listening.items() if sock.process is process]:
            del self._listening[address]
        for transport in self.transports:
            if transport.process is process and not transport.is_gone:
                transport.vanish(silently)

    async def _connect(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Any:
        process = current_process()
        number = self._made[process.name] = self._made.get(process.name, 0) + 1
        rng = random.Random(f"{self._seed} {process.name} {number}")
        loop = self.loop
        delay = rng.choice(_DELAYS_S)
        held = self.held_until(host) - loop.now
        await asyncio.sleep(max(delay, held + delay))
        listening = self._listening.get((host, port))
        if listening is None or not listening.process.is_alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed ('{host}', {port})")
        near = SimulatedTransport(self, process, host, rng, contextvars.copy_context())
        far = SimulatedTransport(self, listening.process, host, rng, listening.context)
        near.peer, far.peer = far, near
        doom = self._dooms.get((process.name, number))
        if doom is not None:
            (near if doom.outgoing else far).doom = doom
        self.transports += (near, far)
        protocol = factory()
        near.serve(protocol)
        listening.offer(SimulatedSocket(self, listening.process, far))
        return near, protocol

    async def _adopt(self, factory: Callable[[], asyncio.Protocol], sock: SimulatedSocket) -> Any:
        transport = sock.transport
        assert transport is not None
        protocol = factory()
        transport.serve(protocol)
        return transport, protocol


def _reset() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


class SimulatedSocket:
    """As much of a socket as the broker's listener uses: one that listens, or one that was accepted."""

    def __init__(
        self, network: SimulatedNetwork, process: Process, transport: SimulatedTransport | None = None
    ) -> None:
        self.network = network
        self.process = process
        self.transport = transport
        self.address: Address = ("", 0)
        self.context = contextvars.copy_context()
        self._waiting: deque[SimulatedSocket] = deque()
        self._watcher: tuple[Callable[..., None], tuple[Any, ...]] | None = None
        self._is_due = False
        if transport is not None:
            transport.sock = self

    def setblocking(self, flag: bool) -> None: ...

    def setsockopt(self, *arguments: Any) -> None: ...

    def bind(self, address: Any) -> None:
        self.address = (address[0], address[1] or self.network.free_port())

    def listen(self, backlog: int) -> None:
        self.network.listen(self)

    def getsockname(self) -> Address:
        return self.address

    def close(self) -> None:
        self.unwatch()
        if self.transport is not None:
            self.transport.abort()
            return
        self.network.forget(self)
        for each in self._waiting:
            each.close()

    def shutdown(self, how: int) -> None:
        self.close()

    def accept(self) -> tuple[SimulatedSocket, Address]:
        if not self._waiting:
            raise BlockingIOError
        return self._waiting.popleft(), ("client", 0)

    def offer(self, accepted: SimulatedSocket) -> None:
        self._waiting.append(accepted)
        self.stir()

    def recv(self, count: int, flags: int) -> bytes:
        assert self.transport is not None and flags == socket.MSG_PEEK
        return self.transport.peek(count)

    def watch(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._watcher = (callback, arguments)
        self.stir()

    def unwatch(self) -> None:
        self._watcher = None

    def stir(self) -> None:
        """Call the watcher soon, if there is something to see."""
        has_news = self._waiting if self.transport is None else self.transport.has_news
        if self._watcher is not None and not self._is_due and has_news:
            self._is_due = True
            self.network.loop.call_soon(self._call, context=self.context)

    def _call(self) -> None:
        self._is_due = False
        if self._watcher is not None:
            self._watcher[0](*self._watcher[1])


class SimulatedTransport(asyncio.Transport):
    """One end of a stream. What it writes comes to its peer in pieces, later, in order, or never."""

    peer: SimulatedTransport

    def __init__(
        self, network: SimulatedNetwork, process: Process, host: str, rng: random.Random, context: contextvars.Context
    ) -> None:
        super().__init__()
        self.process = process
        self.doom: Doom | None = None
        self.sock: SimulatedSocket | None = None
        self.is_gone = False  # nothing comes to it any more
        self.is_unknown = False  # whoever sends to it is answered with a reset
        self._is_flushing = False
        self._network = network
        self._loop = network.loop
        self._host = host
        self._rng = rng
        self._context = context
        self._protocol: asyncio.Protocol | None = None
        self._inbox = bytearray()
        self._ending: list[BaseException | None] = []  # what comes after the bytes: an end of file, or a reset
        self._is_closing = False
        self._is_reading = True
        self._is_swallowed = False  # what it writes goes nowhere
        self.arrives_at = 0.0
        self._carried = 0
        self._in_flight = 0
        self._high = 64 * 1024
        self._low = 16 * 1024
        self._is_paused = False
        self._was_told = False

    def __repr__(self) -> str:
        return f"<SimulatedTransport of {self.process.name}: {self._carried} bytes out>"

    # -- for its owner

    def serve(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._context.run(protocol.connection_made, self)
        if self._inbox or self._ending:
            self._loop.call_soon(self._hand_over, context=self._context)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            if self._inbox or self._ending:
                self._loop.call_soon(self._hand_over, context=self._context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._in_flight

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        if self._is_closing or self.is_gone or not self.process.is_alive or not data:
            return
        data = bytes(data)
        doom = self.doom
        if doom is not None and self._carried + len(data) >= doom.after_bytes:
            self.doom = None
            whole = doom.after_bytes - self._carried
            self._send(data[:whole])
            self._meet(doom)
            data = data[whole:]
        self._send(data)
        if self._in_flight > self._high and not self._is_paused and self._protocol is not None:
            self._is_paused = True
            self._protocol.pause_writing()

    def _send(self, data: bytes) -> None:
        self._carried += len(data)
        if self._is_swallowed or not data:
            return
        rng = self._rng
        pieces = [data]
        if len(data) > 1 and rng.random() < 0.2:
            cut = rng.randrange(1, len(data))
            pieces = [data[:cut], data[cut:]]
        for piece in pieces:
            self._in_flight += len(piece)
            self._later(self.peer._arrive, piece)

    def _later(self, arrive: Callable[..., None], *arguments: Any) -> None:
        at = max(self.arrives_at, self._loop.now + self._rng.choice(_DELAYS_S), self._network.held_until(self._host))
        self.arrives_at = at
        self._loop.call_at(at, arrive, *arguments, context=_WORLDS_OWN)

    def _meet(self, doom: Doom) -> None:
        self._network.ended(self)
        if doom.kind == "stall":
            self.arrives_at = max(self.arrives_at, self._loop.now) + doom.seconds
        elif doom.kind == "silence":
            self._is_swallowed = self.peer._is_swallowed = True
        else:
            self._is_swallowed = True
            self._later(self.peer._end, _reset())
            self._later(self._end, _reset())

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if not self._is_swallowed:
            self._later(self.peer._end, None)
        self._is_flushing = self._in_flight > _SYSTEM_BUFFER_BYTES
        if not self._is_flushing:
            self._tell_lost(None)

    def abort(self) -> None:
        if self.is_gone:
            return
        if not self._is_closing and not self._is_swallowed and self.process.is_alive:
            self._later(self.peer._end, _reset())
        self._is_closing = True
        self._tell_lost(None)

    def _tell_lost(self, error: BaseException | None) -> None:
        self.is_gone = True
        self._inbox.clear()
        self._network.ended(self)
        if self._was_told:
            return
        self._was_told = True
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error, context=self._context)

    def vanish(self, silently: bool) -> None:
        """Its process died: the system ends the stream with a reset, or the machine is without power."""
        self.is_gone = self._is_closing = self._was_told = True
        if silently:
            self._is_swallowed = True
        elif not self._is_swallowed:
            self._is_swallowed = True
            self._later(self.peer._end, _reset())

    # -- from its peer

    @property
    def has_news(self) -> bool:
        return bool(self._inbox or self._ending)

    def peek(self, count: int) -> bytes:
        if self._inbox:
            return bytes(self._inbox[:count])
        if self._ending:
            return b""
        raise BlockingIOError

    def _arrive(self, data: bytes) -> None:
        if self.is_gone:
            self._landed(len(data))
            if self.is_unknown:
                self.peer._end(_reset())
            return
        self._inbox += data
        if self._protocol is None:
            if self.sock is not None:
                self.sock.stir()
        else:
            self._context.run(self._hand_over)

    def _end(self, error: BaseException | None) -> None:
        if self.is_gone:
            return
        self._ending.append(error)
        if self._protocol is None:
            if self.sock is not None:
                self.sock.stir()
        else:
            self._context.run(self._hand_over)

    def _landed(self, count: int) -> None:
        """The peer's bytes are no longer on their way."""
        peer = self.peer
        peer._in_flight -= count
        if peer._is_flushing and peer._in_flight <= _SYSTEM_BUFFER_BYTES:
            peer._is_flushing = False
            peer._tell_lost(None)
        if peer._is_paused and peer._in_flight <= peer._low:
            peer._is_paused = False
            if peer._protocol is not None and not peer.is_gone:
                self._loop.call_soon(peer._protocol.resume_writing, context=peer._context)

    def _hand_over(self) -> None:
        process, protocol = self.process, self._protocol
        if not process.is_alive or protocol is None or self.is_gone:
            return
        if process.frozen_until > self._loop.now:
            self._loop.call_at(process.frozen_until, self._hand_over, context=self._context)
            return
        if self._ending and self._ending[0] is not None:
            self._is_closing = True
            self._tell_lost(self._ending[0])
            return
        if not self._is_reading:
            return
        if self._inbox:
            data = bytes(self._inbox)
            self._inbox.clear()
            self._landed(len(data))
            protocol.data_received(data)
        is_at_end = self._ending and not self._inbox and not self.is_gone and self._is_reading
        if is_at_end and not protocol.eof_received():
            self.close()
