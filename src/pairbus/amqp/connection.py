"""One AMQP 1.0 connection, client or server, without I/O: frames, handshake, heartbeats, sessions and their links.

Bytes and a time go in, events and bytes come out:

    shell                                engine
    data_received(data)  ──►  receive(data, now) ──► events
    transport.write(…)   ◄──  output()
    call_at(deadline)    ◄──  tick(now)

The life of a connection, a row per stage; both roles go through the same ones:

    stage   | expects              | server answers                   | client answers
    SASL_ID | AMQP 3.1.0.0         | the same, sasl-mechanisms        | (sent at the start)
            | or AMQP 0.1.0.0      | as in AMQP_ID, if it may be so   |
    SASL    | sasl frames          | sasl-outcome                     | sasl-init
    AMQP_ID | AMQP 0.1.0.0         | the same                         | (sent with the outcome), open
    OPENING | open                 | open                             |
    OPEN    | begin … close        |                                  |
    CLOSED  | nothing is read      |                                  |

Malformed or forbidden input never raises: it ends the connection with a close that carries the reason, and `Closed`.
Frames for channels and handles that are gone are ignored, since clients send them
(docs/reference/protocol.md#handshake).
"""

from __future__ import annotations

import enum
import struct
from typing import Any

from .errors import AmqpError, FramingError, ProtocolViolation
from .events import Closed, Event, Opened, SaslDone, SaslInitiated, SessionBegun
from .limits import FRAME_BYTES_MIN, OUTGOING_FRAME_BYTES_MAX, Limits
from .performative_types import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from .performatives import decode_performative
from .sasl import ANONYMOUS, SASL_OK, SaslClient, SaslServer
from .session import Session
from .types import Symbol

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"
_AMQP_FRAME = 0
_SASL_FRAME = 1
#: AMQP 5.3.1: SASL frames stay this small.
_SASL_FRAME_BYTES_MAX = 512
#: Output is cut into pieces of two bytes objects a transfer; they are joined once a loop turn.
_HEADER = struct.Struct(">IBBH")


class Stage(enum.Enum):
    SASL_ID = enum.auto()
    SASL = enum.auto()
    AMQP_ID = enum.auto()
    OPENING = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


class Connection:
    def __init__(
        self,
        *,
        server: bool,
        container_id: str,
        hostname: str | None = None,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        idle_timeout: float | None = 240.0,
        sasl: SaslServer | SaslClient | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> None:
        self.server = server
        self.limits = limits
        self.container_id = container_id
        self.hostname = hostname
        self.stage = Stage.SASL_ID if sasl is not None else Stage.AMQP_ID
        self.remote_open: Open | None = None
        self.link_count = 0
        #: Bytes of messages of which more frames are to come, and how many there may be.
        self.gathered_bytes = 0
        self.gathered_bytes_max = limits.gathered_bytes_max
        #: The largest message that a link was accepted with: one may come in besides.
        self.expected_bytes_max = 0
        #: What a frame has room for besides the 8 bytes of its header.
        self.payload_bytes_max = FRAME_BYTES_MIN - 8
        self._sasl = sasl
        self._idle_timeout = idle_timeout
        self._properties = properties
        self._buffer = b""
        self._out: list[bytes] = []
        self._early: list[bytes] = []  # what a client asks for before it could say open
        self._open_written = False
        self._wrote = False
        self._events: list[Event] = []
        self._sessions: dict[int, Session] = {}  # by our channel
        self._sessions_remote: dict[int, Session] = {}  # by the peer's
        self._close_sent = False
        self._last_received: float | None = None
        self._next_keep_alive: float | None = None
        self._keep_alive_every: float | None = None
        if not server:
            self._out.append(SASL_HEADER if sasl is not None else AMQP_HEADER)
            if sasl is None:
                self._write_open()

    def __repr__(self) -> str:
        role = "server" if self.server else "client"
        return f"<Connection {role} {self.container_id!r}: {self.stage.name.lower()}, {len(self._sessions)} sessions>"

    @property
    def is_closed(self) -> bool:
        return self.stage is Stage.CLOSED

    @property
    def is_open(self) -> bool:
        return self.stage is Stage.OPEN

    @property
    def held_bytes(self) -> int:
        """Bytes that the peer has sent and that can't be used yet."""
        return len(self._buffer) + self.gathered_bytes

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    # -- bytes and time

    def receive(self, data: bytes, now: float) -> list[Event]:
        events = self._events
        self._events = []
        self._last_received = now
        if self.stage is Stage.CLOSED:
            return events
        if self._buffer:
            data = self._buffer + data
        try:
            consumed = self._read(data, events)
        except AmqpError as error:
            self._fail(error, events)
            return events
        self._buffer = data[consumed:] if consumed < len(data) else b""
        return events

    def poll(self) -> list[Event]:
        """Return events that no input caused: a peer that `tick` gave up."""
        events = self._events
        self._events = []
        return events

    def output(self) -> bytes:
        out = self._out
        if not out:
            return b""
        self._wrote = True
        data = b"".join(out)
        out.clear()
        return data

    def tick(self, now: float) -> float | None:
        """Send heartbeats, give up a peer that has been silent too long, and return when to call again."""
        if self.stage is Stage.CLOSED:
            return None
        deadlines: list[float] = []
        if self._keep_alive_every is not None:
            if self._next_keep_alive is None or now >= self._next_keep_alive:
                if not self._wrote and not self._out:
                    self._out.append(EMPTY_FRAME)
                self._wrote = False
                self._next_keep_alive = now + self._keep_alive_every
            deadlines.append(self._next_keep_alive)
        if self._idle_timeout is not None:
            if self._last_received is None:
                self._last_received = now
            # we advertise the time-out and grant as much again before we act on it
            silent_until = self._last_received + 2 * self._idle_timeout
            if now >= silent_until:
                error = ProtocolViolation(
                    f"nothing was received for {now - self._last_received:.0f} s, the idle time-out is "
                    f"{self._idle_timeout:.0f} s",
                    "amqp:resource-limit-exceeded",
                )
                self._fail(error, self._events)
                return now
            deadlines.append(silent_until)
        return min(deadlines, default=None)

    # -- what the shell asks for

    def begin(self) -> Session:
        channel = next(number for number in range(65536) if number not in self._sessions)
        session = Session(self, channel)
        self._sessions[channel] = session
        session.write_begin(None)
        return session

    def close(self, error: Error | None = None) -> None:
        """Send close; from then on nothing is read but the peer's close."""
        if self._close_sent or self.stage is Stage.CLOSED:
            return
        self._close_sent = True
        if self.stage in (Stage.OPEN, Stage.OPENING):
            if self.server and self.stage is Stage.OPENING:
                self._write_open()
            self.write(0, Close(error=error).encode())
        else:
            self.stage = Stage.CLOSED

    def lose(self) -> None:
        """Drop all state: the transport is gone."""
        self.stage = Stage.CLOSED
        self._buffer = b""
        self._out.clear()
        self._sasl = None  # it may lead back to whom we belong to
        for session in self._sessions.values():
            session.lose()
        self._sessions.clear()
        self._sessions_remote.clear()

    def write(self, channel: int, performative: bytes, payload: bytes = b"") -> None:
        out = self._out if self._open_written else self._early
        if payload:
            out.append(_HEADER.pack(8 + len(performative) + len(payload), 2, 0, channel) + performative)
            out.append(payload)
        else:
            out.append(_HEADER.pack(8 + len(performative), 2, 0, channel) + performative)

    # -- reading

    def _read(self, data: bytes, events: list[Event]) -> int:
        position = 0
        size_all = len(data)
        frame_bytes_max = self.limits.frame_bytes_max
        is_open = self.stage is Stage.OPEN
        while size_all - position >= 8 and (is_open or self.stage is not Stage.CLOSED):
            if not is_open and self.stage in (Stage.SASL_ID, Stage.AMQP_ID):
                self._on_header(data[position : position + 8])
                position += 8
                continue
            size, doff, kind, channel = _HEADER.unpack_from(data, position)
            if size > frame_bytes_max:
                raise FramingError(f"a frame of {size} bytes, the limit is {frame_bytes_max}")
            if size < 8 or doff < 2 or doff * 4 > size:
                raise FramingError(f"a frame of {size} bytes with a data offset of {doff} words")
            end = position + size
            if end > size_all:
                break
            body = position + doff * 4
            if body < end:
                performative, body = decode_performative(data, body)
                if body > end:
                    raise FramingError("a performative runs past the end of its frame")
                if not is_open and self.stage is Stage.SASL:
                    self._on_sasl(kind, size, performative, events)
                elif kind != _AMQP_FRAME:
                    raise FramingError(f"a frame of type {kind}, expected 0")
                elif type(performative) is Transfer:
                    session = self._sessions_remote.get(channel)
                    if session is not None and not self._close_sent:
                        session.on_transfer(performative, data[body:end], events)
                else:
                    self._on_frame(channel, performative, events)
                    is_open = self.stage is Stage.OPEN
            elif self.stage is Stage.SASL:
                raise FramingError("an empty SASL frame")
            position = end
        if size_all - position < 8 and position < size_all and self.stage in (Stage.SASL_ID, Stage.AMQP_ID):
            self._check_header_start(data[position:])
        return position

    def _check_header_start(self, start: bytes) -> None:
        """Refuse bytes that can't become a header before all eight of them have arrived."""
        if not (SASL_HEADER.startswith(start) or AMQP_HEADER.startswith(start)):
            self._wrong_header(start)

    def _on_header(self, header: bytes) -> None:
        if self.stage is Stage.SASL_ID and header == SASL_HEADER:
            self.stage = Stage.SASL
            if self.server:
                assert isinstance(self._sasl, SaslServer)
                self._out.append(SASL_HEADER)
                mechanisms = [Symbol(name) for name in self._sasl.mechanisms]
                self._write_sasl(SaslMechanisms(sasl_server_mechanisms=mechanisms).encode())
        elif header == AMQP_HEADER and (self.stage is Stage.AMQP_ID or self._may_skip_sasl()):
            self.stage = Stage.OPENING
            if self.server:
                self._out.append(AMQP_HEADER)
        else:
            self._wrong_header(header)

    def _may_skip_sasl(self) -> bool:
        """Return whether a client may do without SASL: where ANONYMOUS is allowed, as the JS SDK does without a key
        name."""
        return isinstance(self._sasl, SaslServer) and ANONYMOUS in self._sasl.mechanisms and self.stage is Stage.SASL_ID

    def _wrong_header(self, header: bytes) -> None:
        # AMQP 2.2: answer with the header that would be right, then close
        expected = SASL_HEADER if self.stage is Stage.SASL_ID else AMQP_HEADER
        if self.server:
            self._out.append(expected)
        raise FramingError(f"expected the protocol header {expected!r}, got {header!r}")

    def _on_sasl(self, frame_type: int, size: int, performative: Any, events: list[Event]) -> None:
        if frame_type != _SASL_FRAME or size > _SASL_FRAME_BYTES_MAX:
            raise FramingError("expected a SASL frame of at most 512 bytes")
        if self.server and type(performative) is SaslInit:
            assert isinstance(self._sasl, SaslServer)
            mechanism = str(performative.mechanism)
            code, username = self._sasl.judge(mechanism, performative.initial_response)
            self._write_sasl(SaslOutcome(code=code).encode())
            if code != SASL_OK:
                self.stage = Stage.CLOSED
                events.append(Closed(Error("amqp:unauthorized-access", f"SASL {mechanism} was refused", None)))
                return
            self.stage = Stage.AMQP_ID
            events.append(SaslInitiated(mechanism, username))
        elif not self.server and type(performative) is SaslMechanisms:
            assert isinstance(self._sasl, SaslClient)
            offered = performative.sasl_server_mechanisms
            names = [offered] if isinstance(offered, str) else list(offered or ())
            if self._sasl.mechanism not in names:
                raise ProtocolViolation(
                    f"the server offers SASL {', '.join(names)}, not {self._sasl.mechanism}", "amqp:unauthorized-access"
                )
            init = SaslInit(
                mechanism=Symbol(self._sasl.mechanism),
                initial_response=self._sasl.initial_response,
                hostname=self.hostname,
            )
            self._write_sasl(init.encode())
        elif not self.server and type(performative) is SaslOutcome:
            if performative.code != SASL_OK:
                raise ProtocolViolation(f"SASL outcome {performative.code}", "amqp:unauthorized-access")
            self.stage = Stage.AMQP_ID
            self._out.append(AMQP_HEADER)
            self._write_open()
            events.append(SaslDone())
        else:
            raise ProtocolViolation(f"{type(performative).__name__} is not expected here")

    def _on_frame(self, channel: int, performative: Any, events: list[Event]) -> None:
        kind = type(performative)
        if self._close_sent and kind is not Close:
            return
        if self.stage is Stage.OPENING:
            if kind is Open:
                self._on_open(performative, events)
                return
            if kind is not Close:
                raise ProtocolViolation(f"{kind.__name__} before open")
        if kind is Begin:
            self._on_begin(channel, performative, events)
            return
        if kind is Close:
            self._on_close(performative, events)
            return
        session = self._sessions_remote.get(channel)
        if session is None:
            if kind is Open:
                raise ProtocolViolation("a second open")
            return
        if kind is Flow:
            session.on_flow(performative, events)
        elif kind is Disposition:
            session.on_disposition(performative, events)
        elif kind is Attach:
            session.on_attach(performative, events)
        elif kind is Detach:
            session.on_detach(performative, events)
        elif kind is End:
            del self._sessions_remote[channel]
            session.on_end(performative, events)
            self._sessions.pop(session.channel, None)
        else:
            raise ProtocolViolation(f"{kind.__name__} is not expected on an open connection")

    def _on_close(self, close: Close, events: list[Event]) -> None:
        if not self._close_sent:
            self._close_sent = True
            if self.server and self.stage is Stage.OPENING:
                self._write_open()
            self.write(0, Close().encode())
        self.stage = Stage.CLOSED
        events.append(Closed(close.error))

    def _on_open(self, opened: Open, events: list[Event]) -> None:
        size = OUTGOING_FRAME_BYTES_MAX if opened.max_frame_size is None else opened.max_frame_size
        if size < FRAME_BYTES_MIN:
            raise FramingError(f"the peer's max-frame-size is {size}, at least {FRAME_BYTES_MIN} is needed")
        self.payload_bytes_max = min(size, OUTGOING_FRAME_BYTES_MAX) - 8
        if opened.idle_time_out:
            # Who wrote just after a look is silent until the next but one: half of the time-out, as AMQP advises.
            self._keep_alive_every = opened.idle_time_out / 4000
        self.remote_open = opened
        if self.server:
            self._write_open()
        self.stage = Stage.OPEN
        events.append(Opened(opened))

    def _on_begin(self, channel: int, begin: Begin, events: list[Event]) -> None:
        if channel > self.limits.channel_max:
            raise FramingError(f"channel {channel} is beyond the channel-max {self.limits.channel_max}")
        if channel in self._sessions_remote:
            raise ProtocolViolation(f"channel {channel} has a session already")
        if begin.remote_channel is not None:
            session = self._sessions.get(begin.remote_channel)
            if session is None or session.begun:
                raise ProtocolViolation(f"begin answers channel {begin.remote_channel}, which did not ask")
            self._sessions_remote[channel] = session
            session.on_begin(begin)
        else:
            ours = channel if channel not in self._sessions else max(self._sessions) + 1
            session = Session(self, ours)
            self._sessions[ours] = session
            self._sessions_remote[channel] = session
            session.write_begin(channel)
            session.on_begin(begin)
        events.append(SessionBegun(session))

    # -- writing

    def _write_open(self) -> None:
        self._open_written = True
        self.write(
            0,
            Open(
                container_id=self.container_id,
                hostname=self.hostname if not self.server else None,
                max_frame_size=self.limits.frame_bytes_max,
                channel_max=self.limits.channel_max,
                idle_time_out=None if self._idle_timeout is None else int(self._idle_timeout * 1000),
                properties=self._properties,
            ).encode(),
        )
        self._out += self._early
        self._early.clear()

    def _write_sasl(self, performative: bytes) -> None:
        self._out.append(_HEADER.pack(8 + len(performative), 2, _SASL_FRAME, 0) + performative)

    def _fail(self, error: AmqpError, events: list[Event]) -> None:
        reason = Error(error.condition, error.description, None)
        self.close(reason)
        self.stage = Stage.CLOSED
        self._buffer = b""
        events.append(Closed(reason))
