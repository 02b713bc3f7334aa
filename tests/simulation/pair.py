"""A world with two brokers, a paired client and a syphon: what was diverted in an outage has to come home.

Real are both brokers, the decisions of a paired client (Coordinator, Dispatch and what they stand on), the rewriting of
messages for the backlog, and the whole syphon with its connections. The paired client sends with the wire client in
place of the SDK.

Rules
- What the client decides and the syphon carries, step by step, and what arrives in the end: paired.py says it. Where
  duplicates are detected, a message arrives once, and each arrives intact.
- What the primary refuses for good is a dead letter of the backlog in the end, and nothing else is.
- While only one of the two brokers is in trouble, sends fail no longer than the failover interval (P16).
- In the calm the syphon empties the backlog, and every entity returns to its primary (P21).
In some worlds the client belongs to a fleet: it has a ping phase, a share of a return ramp, and a control file that an
operator changes, which pins nothing any more when the calm begins. In some it is in haste: it has a patience with the
primary's silence, a brownout, a link to the backlog that stands ready, and callers who give up. In some the primary is
throttled, and the client's messages wait or go to the backlog meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from pairbus.amqp.message import Header, Properties, encode_message, read_properties
from pairbus.amqp.types import UInt
from pairbus.broker.access.keys import ROOT_RULE
from pairbus.broker.config.plan import EntityPlan, NamespacePlan
from pairbus.broker.control.faults import Fault
from pairbus.broker.model.description import QueueDescription
from pairbus.credentials import SharedKey
from pairbus.journal import JournalError, Options
from pairbus.pairing.backlog.aliases import divert_encoded
from pairbus.pairing.errors import note_nothing_sent
from pairbus.pairing.events import OpenLinks, SendPing
from pairbus.pairing.guarded_sender import last_word
from pairbus.pairing.options import Settings
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Dispatch, Failed, Sent, TryBacklog, TryPrimary, Wait
from pairbus.pairing.routing.patience import PrimaryTerms
from pairbus.pairing.routing.pins import parse
from pairbus.pairing.routing.verdicts import is_answer, is_reach
from pairbus.syphon.core.arrival import message_id_of
from pairbus.syphon.core.transfer import Command, Complete, PendingTransfer, Send
from pairbus.syphon.core.transfer_state import TransferState
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import SyphonEngine
from pairbus.syphon.settings import SyphonSettings
from pairbus.wire import ReceivedMessage, Sender, WireClient, WireError
from pairbus.wire.errors import Busy, NotFound, QuotaExceeded, Refused, TimedOut, TooLarge, Unauthorized

from .broker import KEY, PORT, SimulatedMachine
from .checker import Checker
from .disk import MachineStopped
from .history import History
from .loop import Clock, Livelock, Process, SimulatedLoop
from .network import SimulatedNetwork
from .pair_world import JOBS, PRIMARY, SECONDARY, PairWorld
from .paired import view_of
from .run import Violation, deterministic
from .world import Trouble

BACKLOG = ("backlog/0", "backlog/1")
LOCK_S = 10.0
SEND_S = 8.0
CALM_S = 400.0


def _plan(name: str, queues: tuple[QueueDescription, ...]) -> NamespacePlan:
    return NamespacePlan(name=name, ports=(PORT,), queues=tuple(EntityPlan(description=each) for each in queues))


_PLANS = {
    PRIMARY: _plan(
        PRIMARY,
        (
            QueueDescription(name="orders", lock_duration=LOCK_S),
            QueueDescription(name=JOBS, lock_duration=LOCK_S, requires_session=True),
            QueueDescription(
                name="once", lock_duration=LOCK_S, requires_duplicate_detection=True, duplicate_window=3600.0
            ),
        ),
    ),
    SECONDARY: _plan(
        SECONDARY,
        tuple(QueueDescription(name=name, lock_duration=LOCK_S, max_delivery_count=2147483647) for name in BACKLOG),
    ),
}


def _client(host: str, clock: Clock, **options: Any) -> WireClient:
    credential = SharedKey(ROOT_RULE, KEY)
    return WireClient(host, PORT, tls=False, credential=credential, idle_timeout=5.0, clock=clock, **options)


def as_sdk_error(error: WireError) -> BaseException:
    """Return what the SDK would raise in place of the wire client's error."""
    kinds: dict[type[WireError], Any] = {
        TimedOut: OperationTimeoutError,
        Busy: ServiceBusServerBusyError,
        QuotaExceeded: ServiceBusQuotaExceededError,
        NotFound: MessagingEntityNotFoundError,
        Unauthorized: ServiceBusAuthorizationError,
        TooLarge: MessageSizeExceededError,
    }
    for kind, raised in kinds.items():
        if isinstance(error, kind):
            found: BaseException = raised(message=str(error))
            return found
    if isinstance(error, Refused):
        return ServiceBusError(str(error), condition=error.condition)
    lost = ServiceBusConnectionError(message=str(error))
    if "Connection refused" in str(error):
        lost.__cause__ = ConnectionRefusedError(str(error))
    return lost


def payload_of(id: str) -> bytes:
    return encode_message(properties=Properties(message_id=id), body=f"{id}|".encode() * 5)


_PING = encode_message(
    header=Header(ttl=UInt(1000)),
    properties=Properties(content_type="application/vnd.ms-servicebus-ping", group_id="s", message_id="ping"),
    body=b"",
)


class PairedClient:
    """A paired client without the SDK: it carries out what `Dispatch` says, and sends pings when it is told to."""

    def __init__(self, run: PairRun) -> None:
        world = run.world
        self.process = Process("paired client")
        self._run = run
        self._loop = run.loop
        self._write = run.history.paired
        settings = Settings(
            failover_interval=world.failover_interval,
            ping_primary_interval=world.ping_interval,
            send_timeout=SEND_S,
            backlog_retry_interval=2.0,
            probe=world.probe,
            while_suspect=world.while_suspect,
            return_ramp=world.return_ramp,
            primary_patience=world.patience,
            brownout=world.brownout,
            while_throttled=world.while_throttled,
        )
        self.coordinator = Coordinator(
            settings,
            (0, 1),
            choose=random.Random(f"{world.seed} rotation").choice,
            draw=lambda: world.draw,
            retries=world.retries,
        )
        self._waits = [world.retries.wait_s(done) or 0.0 for done in range(world.retries.total)]
        self._write("began", settings, (0, 1), True, world.draw, self._waits)
        self._senders: dict[tuple[str, str], Sender] = {}
        self._clients: dict[str, WireClient] = {}
        self._tick: asyncio.TimerHandle | None = None
        self._ticked_at, self._ticks = 0.0, 0
        self._numbers = 0
        self._given_up = dict(world.given_up)
        #: What a broker answered to an attempt that is tried again, by message.
        self._answers: dict[str, ServiceBusError] = {}
        self.is_done = False

    async def work(self) -> None:
        if self._run.world.warm is not None:
            self._loop.create_task(self._keep_warm(BACKLOG[self._run.world.warm]))
        for send in self._run.world.sends:
            await asyncio.sleep(send.after_s)
            calls = []
            for _ in range(send.count):
                self._numbers += 1
                call = self._loop.create_task(self._send(send.entity, f"m{self._numbers}"))
                calls.append(call)
                if (after_s := self._given_up.get(f"m{self._numbers}")) is not None:
                    self._loop.call_later(after_s, call.cancel)
                if not send.together:
                    await call
            await asyncio.gather(*calls)
        self.is_done = True

    async def _keep_warm(self, path: str) -> None:
        while not self.is_done:
            await self._open(path)
            await asyncio.sleep(5.0)

    async def _open(self, path: str) -> None:
        try:
            await self._sender(SECONDARY, path, 2.0)
        except WireError as error:
            self._run.note(f"paired client: no link to {path}: {error}")

    async def follow(self) -> None:
        """Read the control file whenever the operator has changed it."""
        for change in self._run.world.controls:
            await asyncio.sleep(change.at - self._loop.now)
            self.control(dict(change.pins))

    def control(self, pins: dict[str, str]) -> None:
        self._write("control_file", {name.lower(): word for name, word in pins.items()}, self._loop.now)
        self.coordinator.set_pins(parse(pins), self._loop.now)
        self._pump()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _send(self, entity: str, id: str) -> None:
        run, loop = self._run, self._loop
        began = loop.now
        dispatch = self.coordinator.begin(entity, "sender", began, None)
        self._write("called", id, entity, "sender", began, None)
        run.entities[id] = entity
        try:
            await self._carry_out(dispatch, entity, id, began)
        except asyncio.CancelledError:  # the caller gave up
            run.note(f"{id}: given up")
            self._write("given_up", id, loop.now)
            dispatch.abandon(loop.now, given_up=True)
            self._pump()

    async def _carry_out(self, dispatch: Dispatch, entity: str, id: str, began: float) -> None:
        run, loop = self._run, self._loop
        is_confirmed = False
        while True:
            step = dispatch.step(loop.now)
            self._write("stepped", id, step, loop.now, (dispatch.route_word, dispatch.queue))
            self._pump()
            if isinstance(step, Sent):
                run.note(f"{id}: sent")
                if dispatch.reason is not None and dispatch.route_word == "backlog":
                    run.diverted(id, dispatch.reason.rule)
                run.succeeded(entity)
            elif isinstance(step, Failed):
                run.note(f"{id}: failed: {step.error!r}")
                if entity != JOBS:
                    run.failed(entity, id, began)
            if isinstance(step, Sent | Failed) or is_confirmed:
                return
            if isinstance(step, Wait):
                await asyncio.sleep(max(0.0, step.until - loop.now))
            else:
                is_confirmed = await self._attempt(dispatch, entity, id, step)

    async def _attempt(self, dispatch: Dispatch, entity: str, id: str, step: TryPrimary | TryBacklog) -> bool:
        is_primary = isinstance(step, TryPrimary)
        if isinstance(step, TryBacklog):
            step = self._over_warm_link(dispatch, id, step)
        host, path = (PRIMARY, entity) if isinstance(step, TryPrimary) else (SECONDARY, BACKLOG[step.queue])
        payload = payload_of(id)
        began = self._loop.now
        terms = step.terms if isinstance(step, TryPrimary) else None
        took_s: float | None = None
        is_open, has_link = self._is_open(host, path), False
        try:
            limit = step.timeout_s if terms is None else min(step.timeout_s, terms.opening_s)
            sender = await self._sender(host, path, limit)
            has_link = True
            if is_primary and not is_open:
                self._learn(self._loop.now - began)
            left = limit - (self._loop.now - began)
            if terms is not None and is_open:
                left = min(step.timeout_s, terms.silence_s)
            payload = payload if is_primary else divert_encoded(payload, entity)
            await self._try(sender, payload, left, id, self._waits if is_primary else (), terms)
        except WireError as error:
            self._run.note(f"{id}: {host}: {error}")
            failure = last_word(as_sdk_error(error), self._answers.pop(id, None))
            if is_primary and not is_open and not has_link:
                note_nothing_sent(failure)
            self._write("answered", id, failure, self._loop.now, error.outcome_unknown)
            (dispatch.primary_failed if is_primary else dispatch.backlog_failed)(self._loop.now, failure)
            is_confirmed = False
        else:
            if terms is not None and is_open:
                took_s = self._loop.now - began
            self._write("answered", id, None, self._loop.now, False, took_s)
            if is_primary:
                dispatch.primary_sent(self._loop.now, took_s)
            else:
                dispatch.backlog_sent(self._loop.now)
            is_confirmed = True
        self._pump()
        return is_confirmed

    async def _try(
        self, sender: Sender, payload: bytes, left_s: float, id: str, waits: Sequence[float], terms: PrimaryTerms | None
    ) -> None:
        """Send as the SDK does: after an answer it waits, and tries again while there is time."""
        deadline = self._loop.now + left_s
        for wait_s in (*waits, math.inf):
            try:
                await sender.send(payload, timeout=max(0.001, deadline - self._loop.now))
                self._answers.pop(id, None)
                return
            except WireError as error:
                failure = as_sdk_error(error)
                is_over = self._loop.now + wait_s >= deadline or isinstance(error, Busy) or not is_answer(failure)
                if is_over or (terms is not None and terms.ends_at is not None and terms.ends_at(failure)):
                    raise
                assert isinstance(failure, ServiceBusError)
                self._run.note(f"{id}: {failure}, and is tried again")
                self._write("heard", id, failure)
                self._answers[id] = failure
            await asyncio.sleep(wait_s)

    def _over_warm_link(self, dispatch: Dispatch, id: str, step: TryBacklog) -> TryBacklog:
        """Aim a message whose own link is not open at the queue whose link is, and open its own for the next one."""
        warm, path = self._run.world.warm, BACKLOG[step.queue]
        if warm is None or self._is_open(SECONDARY, path) or not self._is_open(SECONDARY, BACKLOG[warm]):
            return step
        over = dispatch.over_warm_link(warm)
        if over is None:
            return step
        self._run.note(f"{id}: over the link that stands ready")
        self._write("redirected", id, over.queue)
        self._loop.create_task(self._open(path))
        return over

    async def _open_again(self, entity: str) -> None:
        began = self._loop.now
        try:
            if not self._is_open(PRIMARY, entity):
                await self._sender(PRIMARY, entity, 5.0)
                self._learn(self._loop.now - began)
        except WireError as error:
            self._run.note(f"paired client: no link to {entity}: {error}")

    def _learn(self, took_s: float) -> None:
        """Note how long a link to the primary took to open."""
        self._write("opened", took_s)
        self.coordinator.link_opened(self._loop.now, took_s)

    def _is_open(self, host: str, path: str) -> bool:
        sender = self._senders.get((host, path))
        return sender is not None and sender.is_open

    async def _sender(self, host: str, path: str, timeout_s: float) -> Sender:
        client = self._clients.get(host)
        if client is None:
            client = self._clients[host] = _client(host, self._run.clock, timeout=SEND_S, connect_timeout=2.0)
        sender = self._senders.get((host, path))
        if sender is None:
            sender = self._senders[host, path] = await client.sender(path, open_timeout=timeout_s)
        elif not sender.is_open:
            await sender.open(timeout_s)
        return sender

    def _pump(self) -> None:
        while self.coordinator.commands:
            command = self.coordinator.commands.popleft()
            if isinstance(command, SendPing):
                self._write("pinged", command.entity, self._loop.now)
                self._loop.create_task(self._ping(command.entity))
            elif isinstance(command, OpenLinks):
                self._write("reopens", command.entity)
                self._loop.create_task(self._open_again(command.entity))
            else:
                self._write("told", command.event)
                self._run.note(f"paired client: {command}")
        self._write("looked", self._loop.now, view_of(self.coordinator))
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        if self.coordinator.deadline is not None:
            self._tick = self._loop.call_at(max(self._loop.now, self.coordinator.deadline), self._ticked)

    def _ticked(self) -> None:
        self._tick = None
        self._ticks = self._ticks + 1 if self._ticked_at == self._loop.now else 0
        self._ticked_at = self._loop.now
        if self._ticks > 100:
            raise Livelock("the paired client ticks, and its deadline stays in the past")
        self.coordinator.tick(self._loop.now)
        self._pump()
        self._write("ticked", self._loop.now, view_of(self.coordinator))

    async def _ping(self, entity: str) -> None:
        began = self._loop.now
        try:
            is_open = self._is_open(PRIMARY, entity)
            sender = await self._sender(PRIMARY, entity, 2.0)
            if not is_open:
                self._learn(self._loop.now - began)
            began = self._loop.now
            await sender.send(_PING, timeout=2.0)
        except WireError as error:
            failure = as_sdk_error(error)
            self._write("ping_answered", entity, failure, self._loop.now)
            self.coordinator.ping_failed(entity, self._loop.now, failure, not is_reach(failure))
        else:
            took_s = self._loop.now - began
            self._write("ping_answered", entity, None, self._loop.now, took_s)
            self.coordinator.ping_succeeded(entity, self._loop.now, took_s)
        self._pump()


class WatchedTransfers(TransferState):
    """The syphon's, which writes down what it sends."""

    def __init__(self, name: str, history: History) -> None:
        super().__init__()
        self.name = name
        self.write = history.paired
        self.ids: dict[Any, str] = {}  # payloads are let go when they are not needed any more

    def send(self, path: str, now: float, count_max: int, bytes_max: int) -> tuple[Send | None, list[Command]]:
        send, commands = super().send(path, now, count_max, bytes_max)
        for transfer in () if send is None else send.transfers:
            id = self.ids[transfer.key] = str(message_id_of(transfer.payload))
            self.write("carries", self.name, transfer.key, id)
        return send, commands


class WatchedSyphon(SyphonEngine):
    """A syphon that writes down what became of what it sent, and what it completes."""

    transfer_state: WatchedTransfers

    def _carried(self, transfers: Sequence[PendingTransfer], outcome: str) -> None:
        watched = self.transfer_state
        for each in transfers:
            watched.write("carried", watched.name, each.key, watched.ids[each.key], outcome)

    def confirmed(self, transfers: Sequence[PendingTransfer]) -> None:
        self._carried(transfers, "confirmed")
        super().confirmed(transfers)

    def not_confirmed(self, transfers: Sequence[PendingTransfer], error: WireError) -> None:
        self._carried(transfers, "unknown" if error.outcome_unknown else "refused")
        super().not_confirmed(transfers, error)

    def carry_out(self, commands: Iterable[Command]) -> None:
        commands = list(commands)
        for command in commands:
            for transfer in command.transfers if isinstance(command, Complete) else ():
                self.transfer_state.write("completes", self.transfer_state.name, transfer.key)
        super().carry_out(commands)


class PairRun:
    """A world with a pair while it runs."""

    def __init__(self, world: PairWorld) -> None:
        self.world = world
        self.loop = SimulatedLoop()  # type: ignore[abstract]  # only what runs here is there
        self.network = SimulatedNetwork(
            self.loop, str(world.seed), {(name, number): doom for name, number, doom in world.dooms}
        )
        options = Options(segment_bytes=world.segment_bytes, reserve_bytes=1024, allocate_bytes=1024)
        self.machines = {
            name: SimulatedMachine(name, self.loop, self.network, plan, options, f"{world.seed} {name}")
            for name, plan in _PLANS.items()
        }
        self.clock = Clock(self.loop)
        self.history = History()
        self.entities: dict[str, str] = {}  # of messages, by id
        self.problems: list[str] = []
        self.events: list[str] = []
        self.trace = self  # whose lines a replay prints
        self._client = PairedClient(self)
        self._syphon: Process | None = None
        self._syphon_engine: SyphonEngine | None = None
        self._syphons = 0
        self._failing_since: dict[str, float] = {}
        self._dice = random.Random(f"{world.seed} machines")

    def __repr__(self) -> str:
        return f"<PairRun of seed {self.world.seed} at {self.loop.now:.3f} s>"

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.events).encode()).hexdigest()[:16]

    def note(self, text: str) -> None:
        self.events.append(f"{self.loop.now:.6f} {text}")

    def lines(self) -> list[str]:
        return self.events

    def run(self) -> str:
        """Return a digest of all that happened; raise Violation."""
        with deterministic(self.world.seed, self.loop, self.network):
            try:
                self.loop.run(self._storm_and_calm())
            except Livelock as error:
                self.problems.append(str(error))
        checker = Checker()
        checker.fold(self.history.take())
        found = [*checker.problems, *self.problems, *self.loop.problems]
        if found:
            raise Violation("\n".join(found[:20]))
        return self.digest

    # -- what the paired client reports

    def succeeded(self, entity: str) -> None:
        self._failing_since.pop(entity, None)

    def diverted(self, id: str, rule: str) -> None:
        """A message was diverted, by this rule: the options must know it."""
        self.note(f"{id}: rule {rule!r}")
        world = self.world
        rules = {"failed over", "unreachable", "not tried", "busy for too long"}
        rules |= {"interval zero"} if world.failover_interval == 0 else {"interval over"}
        if world.failover_interval and world.while_suspect == "divert":
            rules.add("while suspect")
        if world.while_throttled == "divert":
            rules.add("throttled")
        if rule not in rules:
            self.problems.append(f"P19: {id} was diverted by the rule {rule!r}, which these options don't have")

    def failed(self, entity: str, id: str, began: float) -> None:
        """A send failed: with one broker well it may, for as long as nobody can tell an outage from an accident."""
        troubled = {which for which, _ in self.world.troubles}
        if self.world.dooms or {PRIMARY, SECONDARY} <= troubled:
            return
        world = self.world
        if world.while_throttled == "wait" and any(trouble.kind == "throttle" for _, trouble in world.troubles):
            return  # the pause does not fit into its time (P24)
        since = self._failing_since.setdefault(entity, began)
        is_pinned = any("healthy" in dict(change.pins).values() for change in world.controls)
        spared = world.while_suspect == "divert" or world.failover_interval == 0
        if spared or (not is_pinned and self.loop.now - since > world.failover_interval + 2 * SEND_S):
            self.problems.append(f"{id} to {entity} failed, although only {troubled or 'nobody'} is in trouble")

    # -- the storm

    async def _storm_and_calm(self) -> None:
        for machine in self.machines.values():
            await self._start(machine)
        self._start_syphon()
        working = self._client.process.run(self.loop.create_task, self._client.work())
        following = self._client.process.run(self.loop.create_task, self._client.follow())
        meeting = [self.loop.create_task(self._meet(which, trouble)) for which, trouble in self.world.troubles]
        await asyncio.gather(working, following, *meeting)
        await self._calm()

    async def _meet(self, which: str, trouble: Trouble) -> None:
        await asyncio.sleep(trouble.at)
        self.note(f"{which}: {trouble}")
        if which == "syphon":
            self._kill_syphon()
            await asyncio.sleep(trouble.seconds)
            self._start_syphon()
        elif trouble.kind == "cut-off":
            self.network.cut_off(which, trouble.seconds)
            await asyncio.sleep(trouble.seconds)
        else:
            machine = self.machines[which]
            if not machine.is_serving:
                return
            if trouble.kind == "throttle":
                assert machine.server is not None
                until = machine.server.clock() + trouble.seconds
                machine.server.faults.set(Fault("throttle", rate=0, until=until))
                await asyncio.sleep(trouble.seconds)
                return
            if trouble.kind == "power":
                machine.cut_power(self._dice if trouble.torn else None)
                if which == SECONDARY:
                    self.history.paired("power_cut")
            else:
                if trouble.kind == "stop":
                    await self._stop(machine)
                machine.kill()
            await asyncio.sleep(trouble.seconds)
            if not machine.is_serving:
                await self._start(machine)

    async def _stop(self, machine: SimulatedMachine) -> None:
        """Stop a broker; other trouble may end it before it has stopped."""
        stopping = self.loop.create_task(machine.stop())
        while machine.is_serving and not stopping.done():
            await asyncio.sleep(0.01)

    async def _start(self, machine: SimulatedMachine) -> None:
        try:
            await machine.start()
        except (JournalError, OSError, MachineStopped) as error:
            self.problems.append(f"{machine.name} does not start: {error}")
            raise Livelock("a broker does not start") from None

    def _start_syphon(self) -> None:
        if self._syphon is not None and self._syphon.is_alive:
            return
        self._syphons += 1
        process = self._syphon = Process(f"syphon {self._syphons}")
        process.on_death.append(lambda: self.network.lose(process, silently=False))
        credential = SharedKey(ROOT_RULE, KEY)
        primary, secondary = (Endpoint(host, PORT, False, credential, name=host) for host in (PRIMARY, SECONDARY))
        queues = [(path, index) for index, path in enumerate(BACKLOG)]
        engine = WatchedSyphon(SyphonSettings(primary, secondary, queues), wall=self.clock)
        engine.transfer_state = WatchedTransfers(process.name, self.history)
        self._syphon_engine = engine
        process.run(engine._begin)  # and not `run`: what is killed must have nothing left to do

    def _kill_syphon(self) -> None:
        if self._syphon is not None:
            self._syphon.kill()

    # -- the calm

    async def _calm(self) -> None:
        self.note("calm")
        if self.world.controls:
            self._client.control({})
        deadline = self.loop.now + CALM_S
        while not self._is_home():
            if self.loop.now > deadline:
                self.problems.append(f"after {CALM_S:g} s of calm: {self._left_over()}")
                break
            await asyncio.sleep(1.0)
        await self._client.process.run(self.loop.create_task, self._client.close())
        if self._syphon is not None and self._syphon_engine is not None:
            await self._syphon.run(self.loop.create_task, self._syphon_engine._shut())
        client = _client(PRIMARY, self.clock)
        copies: Counter[str] = Counter()
        for entity in ("orders", "once"):
            copies.update(self._seen(await self._received(client, entity), entity))
        await client.close()
        client = _client(SECONDARY, self.clock)
        dead: set[str] = set()
        for path in BACKLOG:
            dead.update(self._seen(await self._received(client, f"{path}/$deadletterqueue"), JOBS, True))
        await client.close()
        self.history.paired("found", copies, ("once",), dead)
        for machine in self.machines.values():
            await self._stop(machine)

    def _depths(self) -> dict[str, int]:
        server = self.machines[SECONDARY].server
        assert server is not None
        found: dict[str, int] = {}
        for queue in server.namespace.queues.values():
            found[queue.name] = len(queue.active)
        return found

    def _away(self) -> list[str]:
        states = self._client.coordinator.states()
        is_trial = self.world.probe == "trial"  # which only a send would begin
        return [
            entity for entity, state in states.items() if state.name in ("FAILED_OVER", "UNREACHABLE") and not is_trial
        ]

    def _is_home(self) -> bool:
        return not any(self._depths().values()) and not self._away()

    def _left_over(self) -> str:
        depths = {path: count for path, count in self._depths().items() if count}
        return f"in the backlog: {depths}; not returned to the primary: {self._away()}"

    async def _received(self, client: WireClient, entity: str) -> list[ReceivedMessage]:
        receiver = await client.receiver(entity)
        messages: list[ReceivedMessage] = []
        while some := await receiver.receive(100, 2.0):
            messages += some
            await receiver.complete(some)
        return messages

    def _seen(self, messages: list[ReceivedMessage], entity: str, is_diverted: bool = False) -> list[str]:
        """Return the ids of messages that can only be of this entity."""
        found = []
        for message in messages:
            id = str(read_properties(message.payload, message.sections).message_id)
            found.append(id)
            if self.entities.get(id) != entity:
                self.problems.append(f"{id!r}, which is for {self.entities.get(id)}, came to {entity}")
            elif not message.payload.endswith(payload_of(id)) and not is_diverted:
                self.problems.append(f"{id} came with another body: {message.payload!r}")
        return found
