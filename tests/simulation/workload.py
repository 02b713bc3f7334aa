"""The clients of a world: they take their steps with the real wire client and write down what came of each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import traceback
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pairbus.amqp.link import Link, SenderLink
from pairbus.amqp.message import (
    Header,
    Properties,
    encode_message,
    read_application_properties,
    read_body,
    read_properties,
)
from pairbus.amqp.performative_types import Source, Target
from pairbus.amqp.performatives import encode_transfer
from pairbus.amqp.session import Session
from pairbus.amqp.types import Array, Symbol, Timestamp, UInt
from pairbus.broker.access.keys import ROOT_RULE
from pairbus.credentials import SharedKey
from pairbus.wire import LockLost, NotFound, ReceivedMessage, Receiver, Sender, WireClient, WireError, requests
from pairbus.wire.errors import TimedOut, Unreachable
from pairbus.wire.transport import Transport

from .broker import KEY, PORT
from .history import (
    ABANDON,
    ACTIVE,
    CONFIRMED,
    DEAD,
    DEFERRED,
    GONE,
    LOST,
    PEEKED,
    REFUSED,
    SCHEDULED,
    TAKEN,
    UNKNOWN,
    History,
    Inventory,
    Look,
)
from .loop import EPOCH, Clock, Process, SimulatedLoop
from .network import SimulatedNetwork
from .world import BRIEF_S, DELIVERIES_MAX, HOMES, LOCK_S, SESSIONS, WINDOW_S, Step, World

PING = "application/vnd.ms-servicebus-ping"
DEAD_LETTERS = "/$deadletterqueue"
_DUE = Symbol("x-opt-scheduled-enqueue-time")
_STATES = {0: ACTIVE, 1: DEFERRED, 2: SCHEDULED}
_SESSION_FILTER = Symbol("com.microsoft:session-filter")
_SETTLED_TO = {"complete": GONE, "token": GONE, "abandon": ABANDON, "defer": DEFERRED, "dead-letter": DEAD}
_TIMEOUT_S = 4.0
_BIG_BYTES = 70_000
_POISON_MS = 2**63 - 1
_INVENTORIES_MAX = 3


class Trace(History):
    """A history that keeps all of its events, and remarks between them for whoever reads it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop
        self._answers = 0
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []

    def when_answered(self, count: int) -> asyncio.Future[None]:
        """Return what is done when clients have got so many confirmations."""
        reached: asyncio.Future[None] = self._loop.create_future()
        self._awaited.append((count, reached))
        self._count(0)
        return reached

    def sent(self, ticket: int, outcome: str, at: float = 0.0) -> None:
        super().sent(ticket, outcome, at)
        self._count(outcome == CONFIRMED)

    def settled(self, ticket: int, outcome: str, at: float = 0.0) -> None:
        super().settled(ticket, outcome, at)
        self._count(outcome == CONFIRMED)

    def _count(self, more: int) -> None:
        self._answers += more
        for count, reached in self._awaited:
            if count <= self._answers and not reached.done():
                reached.set_result(None)

    def note(self, text: str) -> None:
        self.events.append(("note", round(self._loop.now, 6), text))

    @property
    def facts(self) -> list[tuple[Any, ...]]:
        return [event for event in self.events if event[0] != "note"]

    def lines(self) -> list[str]:
        return [" ".join(map(str, event)) for event in self.events]


class NextSession(Receiver):
    """A receiver of whatever session is free."""

    def _attach(self, session: Session, name: str) -> Link:
        source = Source(address=self.entity, filter={_SESSION_FILTER: self.session_id or None})
        return session.attach(
            name, True, source, Target(address=name), snd_settle_mode=0, rcv_settle_mode=1, max_message_size=2**20
        )

    def _opened(self, link: Link) -> None:
        assert link.source is not None
        (self.session_id,) = link.source.filter.values()
        super()._opened(link)


def body_of(id: str) -> bytes:
    """Return the one body that goes with an id: of several frames if that ends with an x."""
    return f"{id}|".encode() * (_BIG_BYTES // (len(id) + 1) if id.endswith("x") else 3)


def path_of(home: str) -> str:
    """Return the address of a home."""
    return home.replace("/", "/Subscriptions/", 1) if home[:5] in ("news/", "feed/") and "$T" not in home else home


def _unlinked(payload: bytes) -> ReceivedMessage:
    return ReceivedMessage(payload, 0, b"", None, True)


def outcome_of(error: WireError) -> str:
    return UNKNOWN if error.outcome_unknown else LOST if isinstance(error, LockLost) else REFUSED


class SimulatedClient:
    """One client process: a wire client, its links, and the steps that it takes one after the other."""

    def __init__(
        self,
        name: str,
        steps: Sequence[Step],
        loop: SimulatedLoop,
        network: SimulatedNetwork,
        host: str,
        trace: Trace,
        seed: int,
    ) -> None:
        self.name = name
        self.process = Process(name)
        self.clock = Clock(loop)
        self.is_done = False
        #: Nothing goes wrong in this world, so that everything has to work.
        self.is_world_fine = False
        self._steps = steps
        self._loop = loop
        self._network = network
        self._host = host
        self._trace = trace
        self._rng = random.Random(f"{seed} {name}")
        self._numbers = itertools.count(1)
        self._wire: WireClient | None = None
        self._left: list[WireClient] = []
        self._senders: dict[str, Sender] = {}
        self._receivers: dict[tuple[Any, ...], Receiver] = {}
        self._opened_at: dict[Receiver, float] = {}
        self._ids: list[str] = []
        self.plain: list[str] = []  # of messages that may be sent again: nothing is special about them,
        self.may_repeat: dict[str, float] = {}  # until then
        self._scheduled: list[tuple[str, int, str]] = []  # entity, sequence number, id
        self._deferred: list[tuple[str, int, str]] = []
        self.process.on_death.append(lambda: network.lose(self.process, silently=False))
        network.watchers[name] = self._all_left

    def __repr__(self) -> str:
        return f"<SimulatedClient {self.name}: {len(self._steps)} steps>"

    @property
    def _now(self) -> float:
        return self._loop.now

    def start(self) -> None:
        self.process.run(self._loop.create_task, self._run())

    async def _run(self) -> None:
        try:
            await self._take_all()
        except Exception as error:
            self._loop.problems.append(
                f"{self.name}: {error!r} at {''.join(traceback.format_tb(error.__traceback__)[-1:])}"
            )
        self.is_done = True

    async def _take_all(self) -> None:
        for step in self._steps:
            await asyncio.sleep(step.after_s)
            self._trace.note(f"{self.name}: {step}")
            act: Callable[..., Coroutine[Any, Any, None]] = getattr(self, "_do_" + step.action)
            try:
                await act(step.entity, **dict(step.options))
            except WireError as error:
                self._trace.note(f"{self.name}: {error}")
                # a session may not be free in time
                if self.is_world_fine and step.entity != "jobs" and isinstance(error, TimedOut | Unreachable):
                    self._loop.problems.append(f"{self.name}: {step}: {error}, although nothing is wrong in this world")
        await self._close()
        for wire in self._left:
            await wire.close()

    # -- the connection

    def _connected(self) -> WireClient:
        if self._wire is None:
            self._wire = WireClient(
                self._host,
                PORT,
                tls=False,
                credential=SharedKey(ROOT_RULE, KEY),
                timeout=_TIMEOUT_S,
                connect_timeout=_TIMEOUT_S,
                idle_timeout=5.0,
                backoff=lambda: itertools.repeat(0.1),
                clock=self.clock,
                container_id=self.name,
            )
        return self._wire

    async def _sender(self, entity: str) -> Sender:
        if entity not in self._senders:
            self._senders[entity] = await self._connected().sender(entity)
        return self._senders[entity]

    async def _receiver(self, home: str, mode: str, credit: int) -> Receiver:
        key = (home, mode, credit)
        if key not in self._receivers:
            since = self._now
            receiver = self._receivers[key] = await self._connected().receiver(path_of(home), mode=mode, credit=credit)
            self._opened_at[receiver] = since
        return self._receivers[key]

    async def _session(self, home: str, session: str | None, credit: int) -> Receiver:
        """Return a receiver of that session, or of any that is free, once it has its lock."""
        wire = self._connected()
        receiver = NextSession(
            wire, home, mode="lock", credit=credit, session_id=session, timeout=_TIMEOUT_S, message_bytes_max=2**20
        )
        link = None
        while link is None:  # one that is lost at once would be opened again by a receive, and its lock not be noted
            since = self._now
            await wire._with_link(receiver, None)
            link = receiver._link
        self._opened_at[receiver] = since
        assert link.properties is not None
        until = link.properties["com.microsoft:locked-until-utc"] / 10_000_000 - 62_135_596_800.0 - EPOCH
        name = self._name(receiver)
        self._trace.accepted(home, str(receiver.session_id), name, until, at=self._now, since=since)
        return receiver

    def _name(self, receiver: Receiver) -> str:
        return f"{self.name}/{list(self._opened_at).index(receiver)}"

    def _all_left(self) -> None:
        """The broker may know that this client's links are gone."""
        for receiver in self._opened_at:
            self._trace.left(self._name(receiver))

    async def _close(self) -> None:
        wire, self._wire = self._wire, None
        self._senders, self._receivers = {}, {}
        self._all_left()
        if wire is not None:
            await wire.close()

    async def _do_leave(self, entity: str, how: str) -> None:
        """Leave in one of the ways in which clients do, and begin anew with the next step."""
        wire = self._wire
        transport = None if wire is None else wire._transport
        if wire is None or transport is None or transport._socket is None or how == "close":
            await self._close()
            return
        self._all_left()
        for frame in how.split("-"):
            for each in list(wire._links):
                link = each._link
                if link is not None and frame == "detach" and link.is_open:
                    link.detach()
                elif link is not None and frame == "end":
                    link.session.end()
        if how == "close-frame":
            transport.connection.close()
        transport.flush()
        if how == "abort":
            transport._socket.abort()
        elif how == "vanish":
            self._network.silence(transport._socket)
        else:  # the connection stays, and with it whatever the broker forgot to end
            self._left.append(wire)
        self._wire, self._senders, self._receivers = None, {}, {}

    # -- sending

    def _new_id(self, big: bool = False) -> str:
        id = f"{self.name[-1]}{next(self._numbers)}{'x' if big else ''}"
        self._ids.append(id)
        return id

    def _begin(
        self,
        entity: str,
        count: int,
        *,
        due_in: float | None = None,
        ttl: float | None = None,
        big: bool = False,
        again: bool = False,
        pipelined: bool = False,
        poison: bool = False,
        ping: bool = False,
    ) -> tuple[int, list[bytes]]:
        """Write down what is about to be sent, and encode it."""
        session = self._rng.choice(SESSIONS) if entity == "jobs" else None
        red = entity == "news" and self._rng.random() < 0.5
        due_ms = _POISON_MS if poison else 0 if due_in is None else int((self.clock() + due_in) * 1000)
        ids = [self._new_id(big) for _ in range(count)]
        if not (due_ms or ttl or ping):
            if again and self.plain and self._now < self.may_repeat[chosen := self._rng.choice(self.plain[-10:])]:
                ids[0] = chosen
            self.plain += ids
            self.may_repeat = dict.fromkeys(ids, self._now + WINDOW_S - 10.0) | self.may_repeat
        payloads = [
            encode_message(
                header=None if ttl is None else Header(ttl=UInt(int(ttl * 1000))),
                message_annotations={_DUE: Timestamp(due_ms)} if due_ms else None,
                properties=Properties(message_id=id, group_id=session, content_type=PING if ping else None),
                application_properties={"colour": "red"} if red else None,
                body=body_of(id),
            )
            for id in ids
        ]
        homes = [home for home in HOMES[entity] if red or home != "news/red"]
        lifetime = min(ttl or BRIEF_S, BRIEF_S) if entity == "brief" else ttl
        ticket = self._trace.send(
            ids,
            homes,
            at=self._now,
            ping=ping,
            due=due_ms / 1000 - EPOCH if due_ms else 0.0,
            elsewhere=entity == "news" and due_ms > 0,
            session=session,
            ttl=lifetime,
        )
        return ticket, payloads

    async def _finish(self, ticket: int, sending: Any) -> None:
        try:
            await sending
        except WireError as error:
            self._trace.sent(ticket, outcome_of(error), at=self._now)
            raise
        self._trace.sent(ticket, CONFIRMED, at=self._now)

    async def _do_send(self, entity: str, count: int, **options: Any) -> None:
        sender = await self._sender(entity)
        under_way = []
        for _ in range(count):
            ticket, (payload,) = self._begin(entity, 1, **options)
            if options.get("pipelined"):
                under_way.append(asyncio.ensure_future(self._finish(ticket, sender.send(payload))))
            else:
                await self._finish(ticket, sender.send(payload))
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _do_batch(self, entity: str, count: int, **options: Any) -> None:
        sender = await self._sender(entity)
        if options.get("big"):
            count = min(count, 3)  # more would not fit into one message, and so be several batches
        ticket, payloads = self._begin(entity, count, **options)
        await self._finish(ticket, sender.send_batch(payloads))

    async def _do_poison(self, entity: str, count: int) -> None:
        """Send what no reader could read: it is refused, or harms nobody."""
        await self._do_send(entity, 1, poison=True)

    async def _do_ping(self, entity: str, count: int) -> None:
        await self._do_send(entity, 1, ping=True)

    async def _do_schedule(self, entity: str, count: int, due_in: float) -> None:
        wire, (ticket, payloads) = self._connected(), self._begin(entity, count, due_in=due_in)
        ids = self._ids[-count:]
        body = {"messages": [{"message-id": id, "message": each} for id, each in zip(ids, payloads, strict=True)]}
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await wire.request(entity, "com.microsoft:schedule-message", body))

        await self._finish(ticket, ask())
        numbers = answers[0][1]["sequence-numbers"]
        self._scheduled += [(entity, number, id) for number, id in zip(numbers, ids, strict=True)]

    async def _do_cancel(self, entity: str, count: int) -> None:
        mine = [each for each in self._scheduled if each[0] == entity]
        if not mine:
            return
        each = self._rng.choice(mine)
        self._scheduled.remove(each)
        body = {"sequence-numbers": Array.of(0x81, [each[1]])}
        tickets = [self._trace.settle(home, each[2], GONE, at=self._now, synced=True) for home in HOMES[entity]]
        try:
            await self._connected().request(entity, "com.microsoft:cancel-scheduled-message", body)
        except WireError as error:
            for ticket in tickets:
                self._trace.settled(ticket, outcome_of(error), at=self._now)
            return
        for ticket in tickets:
            self._trace.settled(ticket, CONFIRMED, at=self._now)

    # -- receiving

    def _look(self, home: str, payload: ReceivedMessage, state: str | None = None, since: float | None = None) -> Look:
        base = home.removesuffix(DEAD_LETTERS)
        raw, sections = payload.payload, payload.sections
        properties = read_properties(raw, sections)
        id = str(properties.message_id)
        said = read_application_properties(raw, sections)
        if base != home:
            state = DEAD
        elif state is None:
            state = _STATES[payload.annotations.get("x-opt-message-state", 0)]
        return Look(
            base,
            id,
            state,
            payload.sequence_number or 0,
            at=self._now,
            deliveries=payload.delivery_count,
            intact=b"".join(part for _, part in read_body(raw, sections)) == body_of(id),
            reason=said.get("DeadLetterReason"),
            description=said.get("DeadLetterErrorDescription"),
            session=properties.group_id,
            since=since,
        )

    async def _do_receive(
        self,
        home: str,
        count: int,
        outcomes: tuple[str, ...],
        wait: float = 1.0,
        hold: float = 0.0,
        mode: str = "lock",
        credit: int = 0,
        session: str | None = None,
        state: bool | None = None,
    ) -> None:
        own = None if state is None else await self._session(home, session, credit)
        receiver = await self._receiver(home, mode, credit) if own is None else own
        try:
            await self._receive_and_settle(home, receiver, count, outcomes, wait, hold)
            if state and own is not None:
                await self._write_state(home, own)
        finally:
            if own is not None:
                self._trace.left(self._name(own))
                await own.close()

    async def _receive_and_settle(
        self, home: str, receiver: Receiver, count: int, outcomes: tuple[str, ...], wait: float, hold: float
    ) -> None:
        since: float | None = self._opened_at[receiver] if receiver.credit else self._now
        left = max(0, len(receiver._buffer) - count)  # of an earlier call, whose messages arrived after its end
        messages = await receiver.receive(count, wait)
        if not receiver.credit and len(receiver._buffer) > left:
            self._loop.problems.append(f"{self.name} asked for {count} messages of {home} and got more")
        if receiver.mode == "lock" and not receiver.session_id:
            since = None  # until when it is locked says when it was sent
        state = None if home.endswith(DEAD_LETTERS) else ACTIVE
        looks = [self._look(home, message, state, since) for message in messages]
        name = self._name(receiver)
        for look, message in zip(looks, messages, strict=True):
            if receiver.mode == "delete":
                self._trace.seen(look, TAKEN)
            else:
                self._trace.locked(look, str(message.lock_token), name, (message.locked_until or 0.0) - EPOCH)
        if not receiver.is_open:
            self._trace.left(name)
        if receiver.mode == "delete" or not messages:
            return
        if receiver.session_id:
            self._trace.delivered(home, receiver.session_id, [look.id for look in looks])
        await asyncio.sleep(hold)
        if outcomes[0] == "together":
            await self._complete_together(receiver, looks, messages)
            return
        for look, message, outcome in zip(looks, messages, itertools.cycle(outcomes)):
            await self._settle(home, receiver, look, message, outcome)

    async def _complete_together(
        self, receiver: Receiver, looks: Sequence[Look], messages: Sequence[ReceivedMessage]
    ) -> None:
        """Complete all messages with one call."""
        tickets = [
            self._trace.settle(
                look.home, look.id, GONE, at=self._now, deliveries=look.deliveries, token=str(message.lock_token)
            )
            for look, message in zip(looks, messages, strict=True)
        ]
        outcome, refused = CONFIRMED, set[int]()
        try:
            await receiver.complete(messages)
        except WireError as error:
            outcome, refused = outcome_of(error), set(error.delivery_ids)
        for ticket, message in zip(tickets, messages, strict=True):
            is_spared = bool(refused) and message.delivery_id not in refused
            self._trace.settled(ticket, CONFIRMED if is_spared else outcome, at=self._now)

    async def _do_fail(self, home: str, how: str) -> None:
        """Receive a message again and again without completing it, until it is dead-lettered."""
        for _ in range(DELIVERIES_MAX + 1):
            await self._do_receive(home, 1, (how,), wait=0.2, credit=0)
            if how == "forget":
                await asyncio.sleep(LOCK_S + 1.0)

    async def _settle(self, home: str, receiver: Receiver, look: Look, message: ReceivedMessage, outcome: str) -> None:
        """Settle one message in one of the ways, on its link or by its token."""
        if outcome == "forget":
            return
        if outcome == "together":
            outcome = "complete"
        if outcome == "foreign":
            with contextlib.suppress(WireError):
                await self._settle_foreign(home, receiver)
            outcome = "complete"
        if outcome == "renew":
            await self._renew(home, receiver, message)
            await asyncio.sleep(3.0)  # and need it
            outcome = "complete"
        if look.state == DEAD:
            outcome = "complete"
        if receiver.session_id and outcome == "token":
            outcome = "complete"  # by token a session's messages are settled on the link's own connection only
        reason = f"reason of {look.id}" if outcome == "dead-letter" else None
        to = _SETTLED_TO[outcome]
        ticket = self._trace.settle(
            look.home,
            look.id,
            to,
            at=self._now,
            reason=reason,
            deliveries=look.deliveries,
            token=str(message.lock_token),
        )
        try:
            if outcome == "token":
                assert message.lock_token is not None
                await self._connected().settle_by_token(path_of(home), [message.lock_token], "completed")
            elif outcome == "dead-letter":
                await receiver.dead_letter(message, reason=reason or "")
            else:
                await getattr(receiver, outcome)(message)
        except WireError as error:
            self._trace.settled(ticket, outcome_of(error), at=self._now)
            return
        self._trace.settled(ticket, CONFIRMED, at=self._now)
        if to == DEFERRED and not receiver.session_id:
            self._deferred.append((home, look.sequence, look.id))

    async def _settle_foreign(self, home: str, receiver: Receiver) -> None:
        """Try to complete a message of one session under the name of another, which this client holds too."""
        mine = receiver.session_id
        if mine is None:
            return
        other = await self._session(home, SESSIONS[SESSIONS.index(mine) - 1], 0)
        try:
            messages = await other.receive(1, 0.2)
            for message in messages:
                until = (message.locked_until or 0.0) - EPOCH
                look = self._look(home, message, ACTIVE, self._now)
                self._trace.locked(look, str(message.lock_token), self._name(other), until)
                body = requests.update_disposition([message.lock_token], "completed")
                body["session-id"] = mine
                with contextlib.suppress(WireError):
                    await self._connected().request(home, requests.UPDATE_DISPOSITION, body)
                    self._loop.problems.append(f"{self.name} completed {look.id} under the name of session {mine}")
        finally:
            self._trace.left(self._name(other))
            await other.close()

    async def _renew(self, home: str, receiver: Receiver, message: ReceivedMessage) -> None:
        """Renew the lock of a message, or that of its session."""
        token = self._name(receiver) if receiver.session_id else str(message.lock_token)
        ticket = self._trace.renew(token, self._now)
        try:
            if receiver.session_id:
                body = {"session-id": receiver.session_id}
                _, answer = await self._connected().request(home, "com.microsoft:renew-session-lock", body)
                until = answer["expiration"] / 1000
            else:
                assert message.lock_token is not None
                (until,) = await self._connected().renew(path_of(home), [message.lock_token])
        except WireError as error:
            if receiver._receiver is None:  # the broker has ended its link: where a clock was set, a token is over
                self._trace.left(self._name(receiver))
            self._trace.renewed(ticket, outcome_of(error), self._now)
            return
        self._trace.renewed(ticket, CONFIRMED, self._now, until - EPOCH)

    async def _write_state(self, home: str, receiver: Receiver) -> None:
        """Read the session's state and write another."""
        key, value = (home, str(receiver.session_id)), f"{self.name} {next(self._numbers)}"
        body: dict[str, Any] = {"session-id": receiver.session_id}
        since = self._now
        _, answer = await self._connected().request(home, "com.microsoft:get-session-state", body)
        state = answer["session-state"]
        self._trace.read(key, None if state is None else state.decode(), since)
        ticket = self._trace.write(key, value, self._now)
        body["session-state"] = value.encode()
        try:
            await self._connected().request(home, "com.microsoft:set-session-state", body)
        except WireError as error:
            self._trace.written(ticket, UNKNOWN if error.outcome_unknown else REFUSED)
            return
        self._trace.written(ticket, CONFIRMED)

    async def _do_deferred(self, home: str) -> None:
        """Receive a deferred message by its number, and complete it."""
        mine = [each for each in self._deferred if each[0] == home]
        if not mine:
            return
        _, number, id = self._rng.choice(mine)
        await self._receive_deferred(home, number, id)

    async def _receive_deferred(self, home: str, number: int, id: str, held: Receiver | None = None) -> None:
        """Receive one by its number and complete it; `held` is the receiver that holds its session."""
        session = None if held is None else held.session_id
        wire, since = self._connected(), self._now
        body: dict[str, Any] = {"sequence-numbers": Array.of(0x81, [number]), "receiver-settle-mode": UInt(1)}
        if session is not None:
            body["session-id"] = session
        try:
            _, answer = await wire.request(path_of(home), "com.microsoft:receive-by-sequence-number", body)
        except NotFound:
            self._trace.missed(home, id, self._now, since)
            return
        (entry,) = answer["messages"]
        message = _unlinked(entry["message"])
        look = self._look(home, message, DEFERRED, since)
        token = entry["lock-token"]
        holder = self.name if held is None else self._name(held)
        self._trace.locked(look, str(token), holder, (message.locked_until or 0.0) - EPOCH)
        ticket = self._trace.settle(home, id, GONE, at=self._now, deliveries=look.deliveries, token=str(token))
        settlement = requests.update_disposition([token], "completed")
        if session is not None:
            settlement["session-id"] = session
        try:
            await wire.request(path_of(home), requests.UPDATE_DISPOSITION, settlement)
        except WireError as error:
            self._trace.settled(ticket, outcome_of(error), at=self._now)
            return
        self._trace.settled(ticket, CONFIRMED, at=self._now)

    async def _do_peek(self, home: str) -> None:
        for look in await self._peek(home):
            self._trace.seen(look, PEEKED)

    async def _peek(self, home: str) -> list[Look]:
        wire, since = self._connected(), self._now
        looks: list[Look] = []
        number = 1
        while found := await wire.peek(path_of(home), number, 100):
            messages = [_unlinked(payload) for payload in found]
            looks += [self._look(home, message, since=since) for message in messages]
            number = (messages[-1].sequence_number or 0) + 1
        return looks

    # -- a stranger, who has no key

    async def _do_stranger(self, entity: str, kind: str, count: int) -> None:
        """Take what can be had without a token: half a handshake, garbage, or links with long names."""
        if kind in ("half", "garbage"):
            said = b"AMQP\x03\x01\x00\x00" if kind == "half" else self._rng.randbytes(200)
            for _ in range(count):
                with contextlib.suppress(OSError):
                    transport, _ = await self._loop.create_connection(asyncio.Protocol, self._host, PORT)
                    transport.write(said)
            return
        wire = WireClient(self._host, PORT, tls=False, timeout=_TIMEOUT_S, connect_timeout=_TIMEOUT_S)
        self._left.append(wire)
        await wire.connect()
        transport = wire._transport
        assert transport is not None
        if kind == "stay":
            transport.connection.begin()
            await asyncio.sleep(130.0)  # a minute, and another one where the clock was set back
            if not transport._socket.peer.is_gone:  # the broker's end of it: a silent network tells the client nothing
                self._loop.problems.append("a client without a token is connected for more than two minutes")
            return
        if kind == "pieces":
            await self._send_pieces(transport)
            return
        size = 60_000 if kind == "names" else 20
        for number in range(count):
            session = transport.connection.begin()
            session.attach(f"{number}" * size, False, Source(address="here"), Target(address="$cbs"))
            transport.flush()
        await asyncio.sleep(1.0)

    async def _send_pieces(self, transport: Transport) -> None:
        """Begin a message that fills what a client without a token may hold, and half a frame on top of it."""
        session = transport.connection.begin()
        link = session.attach("pieces", False, Source(address="here"), Target(address="$cbs"))
        transport.flush()
        await asyncio.sleep(1.0)
        assert isinstance(link, SenderLink)
        for _ in range(2):
            more = encode_transfer(link.handle, 0, b"t", 0, False, True)
            transport.connection.write(session.channel, more, bytes(45_000))
        transport.flush()
        socket = transport._socket
        if socket is not None:
            socket.write(b"\x00\x00\xff\x00\x02\x00\x00\x00" + bytes(60_000))
        await asyncio.sleep(2.0)


class Drainer(SimulatedClient):
    """Looks at everything when the storm is over, and receives everything."""

    def __init__(
        self,
        loop: SimulatedLoop,
        network: SimulatedNetwork,
        host: str,
        trace: Trace,
        world: World,
        registers: Callable[[], dict[tuple[str, ...], Any]],
    ) -> None:
        super().__init__("drainer", (), loop, network, host, trace, world.seed)
        self._registers = registers
        self._entities = world.entities
        self._homes = self._places(world)

    def _places(self, world: World) -> list[str]:
        return [home for entity in world.entities for home in HOMES[entity]]

    async def audit(self) -> None:
        """Write down all that the broker has."""
        self._trace.audited(await self._inventory())
        await self._close()

    async def _inventory(self) -> Inventory:
        for _ in range(_INVENTORIES_MAX):
            at = self._now
            looks = [
                look for home in self._homes for path in (home, home + DEAD_LETTERS) for look in await self._peek(path)
            ]
            # What is dead-lettered between two pages shows on both; what is there twice does so again.
            if len({(look.home, look.sequence) for look in looks}) == len(looks):
                break
        return Inventory(at, looks, self._registers(), self._now)

    async def drain(self, deadline: float, quiet_until: float) -> None:
        """Receive until nothing is left; write down what is still there at the deadline."""
        while True:
            inventory = await self._inventory()
            is_empty = not inventory.looks and self._now >= quiet_until
            if is_empty or self._now >= deadline:
                break
            for look in inventory.looks:
                self._trace.seen(look, PEEKED)
                if look.state == DEFERRED:
                    with contextlib.suppress(WireError):
                        await self._drain_deferred(look)
            for home in sorted({look.home for look in inventory.looks}):
                await self._drain(home)
            await asyncio.sleep(0.5)
        self._trace.drained(inventory, (ACTIVE, SCHEDULED, DEFERRED, DEAD))
        await self._close()

    async def _drain_deferred(self, look: Look) -> None:
        own = None if look.session is None else await self._session(look.home, look.session, 0)
        try:
            await self._receive_deferred(look.home, look.sequence, look.id, own)
        finally:
            if own is not None:
                self._trace.left(self._name(own))
                await own.close()

    async def _drain(self, home: str) -> None:
        for path in (home, home + DEAD_LETTERS):
            options: dict[str, Any] = {"count": 50, "outcomes": ("complete",), "wait": 0.5}
            if path == "jobs":
                for session in SESSIONS:
                    with contextlib.suppress(WireError):
                        await self._do_receive(path, session=session, state=False, **options)
            else:
                with contextlib.suppress(WireError):
                    await self._do_receive(path, **options)
