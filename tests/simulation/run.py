"""Runs one world: first the storm, then the calm in which everything has to come to rest."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import random
import uuid
from collections.abc import Iterator
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any
from unittest import mock

from pairbus.broker.access.unauthenticated import CONNECTION_BYTES, EACH_BYTES_MAX, WAIT_S_MAX, too_late
from pairbus.broker.config.plan import EntityPlan, NamespacePlan, SubscriptionPlan, TopicPlan
from pairbus.broker.control.faults import Fault
from pairbus.broker.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.model.entity import TransferQueue
from pairbus.broker.model.rule_description import CorrelationFilter, RuleDescription
from pairbus.broker.model.transaction import OPEN, Send
from pairbus.broker.refusal import Refusal
from pairbus.broker.server import NamespaceServer
from pairbus.errors import BrokerError, InvalidFault
from pairbus.journal import JournalCorrupt, JournalError, Options

from .broker import PORT, SimulatedMachine
from .checker import Checker
from .disk import MachineStopped, SimulatedDisk
from .history import GRACE_S, LAZY_S
from .loop import EPOCH, Livelock, SimulatedLoop
from .network import SimulatedNetwork
from .workload import Drainer, SimulatedClient, Trace
from .world import BRIEF_S, DELIVERIES_MAX, HOMES, LOCK_S, SESSIONS, STORM_S, WINDOW_S, Trouble, World

NAMESPACE = "contoso"
#: What has not come to rest by then never will: locks, schedules, idle times and time-outs are all shorter.
CALM_S = 600.0
_STARTS_MAX = 100
_WATCH_S = 0.25
#: For which a broker was frozen in all, at most.
_FROZEN_S_MAX = 60.0
#: What clients without a token may take together.
STRANGERS_BYTES_MAX = 300_000


class Violation(AssertionError):
    """Something that must hold did not."""


def plan_of(world: World) -> NamespacePlan:
    """Return the entities of a world as a broker's configuration."""
    common: dict[str, Any] = {"lock_duration": LOCK_S, "max_delivery_count": DELIVERIES_MAX}
    special: dict[str, dict[str, Any]] = {
        "orders": {},
        "jobs": {"requires_session": True},
        "once": {"requires_duplicate_detection": True, "duplicate_window": WINDOW_S},
        "brief": {"default_ttl": BRIEF_S, "dead_letter_on_expiration": True},
    }
    queues = [
        EntityPlan(description=QueueDescription(name=name, **common, **special[name]))
        for name in world.entities
        if name in special
    ]
    topics = []
    if "news" in world.entities:
        red = RuleDescription(name="red", filter=CorrelationFilter(properties={"colour": "red"}))
        subscriptions = [
            SubscriptionPlan(
                entity=EntityPlan(description=SubscriptionDescription(topic="news", name=name, **common)), rules=rules
            )
            for name, rules in (("all", ()), ("red", (red,)))
        ]
        topics.append(
            TopicPlan(entity=EntityPlan(description=TopicDescription(name="news")), subscriptions=tuple(subscriptions))
        )
    return NamespacePlan(name=NAMESPACE, ports=(PORT,), queues=tuple(queues), topics=tuple(topics))


def lossy_homes(world: World) -> dict[str, int]:
    """Return how many messages may vanish when a receiver leaves a home in which some receive and delete."""
    found: dict[str, int] = {}
    for client in world.clients:
        for step in client.steps:
            options = dict(step.options)
            if options.get("mode") == "delete":
                found[step.entity] = max(found.get(step.entity, 0), options["count"], options.get("credit", 0))
    return found


@contextlib.contextmanager
def deterministic(seed: int, loop: SimulatedLoop, network: SimulatedNetwork) -> Iterator[None]:
    """Give everything that is random or reads a clock the seed's dice and the loop's time, and keep what is logged as
    an error."""
    dice = random.Random(f"{seed} secrets")
    patches: dict[str, Any] = {
        "os.urandom": dice.randbytes,
        "uuid.uuid4": lambda: uuid.UUID(bytes=dice.randbytes(16), version=4),
        "random.random": dice.random,
        "time.time": lambda: loop.now,
        "time.monotonic": loop.time,
        "pairbus.broker.amqp.connection.monotonic": loop.time,
        "pairbus.broker.telemetry.inventory.monotonic": loop.time,
        # what a world leaves behind is collected when it is over
        "pairbus.broker.server.gc": SimpleNamespace(disable=int, enable=int, freeze=int),
        "pairbus.broker.net.listener._new_socket": network.new_socket,
        # so that a few strangers are enough to use it up
        "pairbus.broker.access.unauthenticated.TOTAL_BYTES_MAX": STRANGERS_BYTES_MAX,
        "pairbus.broker.access.unauthenticated.too_late": partial(_sent_away, loop.problems),
    }
    log = logging.getLogger("pairbus")
    handler = _Errors(loop.problems)
    level, propagates = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    log.propagate = False
    gc.disable()
    try:
        with contextlib.ExitStack() as stack:
            for name, replacement in patches.items():
                stack.enter_context(mock.patch(name, replacement))
            yield
    finally:
        gc.enable()
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


def _sent_away(problems: list[str], seconds: float) -> Refusal:
    """Note where a client without a token is sent away long before its time, since the wall clock was set."""
    if seconds > WAIT_S_MAX + _FROZEN_S_MAX:
        problems.append(f"a client without a token was sent away for {seconds:g} s, by a clock that was set")
    return too_late(seconds)


class _Errors(logging.Handler):
    def __init__(self, problems: list[str]) -> None:
        super().__init__()
        self._problems = problems

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, MachineStopped):
            self._problems.append(f"the broker logged: {record.getMessage()}: {error!r}")


class Run:
    """One world while it runs."""

    _client: type[SimulatedClient] = SimulatedClient
    _drainer: type[Drainer] = Drainer
    #: What happens by itself after the storm has that long until it is looked at.
    _rest_s = 0.0

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = SimulatedLoop()  # type: ignore[abstract]  # only what runs here is there
        dooms = {(name, number): doom for name, number, doom in world.dooms}
        self.network = SimulatedNetwork(self.loop, str(world.seed), dooms)
        options = Options(
            segment_bytes=world.segment_bytes,
            durability=world.durability,  # type: ignore[arg-type]
            reserve_bytes=min(1024, world.segment_bytes),
            allocate_bytes=min(1024, world.segment_bytes),
            stall_s=world.stall_s or Options().stall_s,
        )
        self.machine = SimulatedMachine(
            NAMESPACE, self.loop, self.network, self._plan(), options, str(world.seed), world.standby
        )
        self.machine.disk.faults += world.disk
        self.machine.on_diagnosed = self._diagnosed
        self.crashes = 0
        self.trace = Trace(self.loop)
        self.checker = self._new_checker()
        self._was_stepped = False
        self.clients = [
            self._client(client.name, client.steps, self.loop, self.network, NAMESPACE, self.trace, world.seed)
            for client in world.clients
        ]
        for each in self.clients:
            each.is_world_fine = not (world.troubles or world.dooms or world.disk) and len(world.clients) == len(
                [client for client in world.clients if client.name != "stranger"]
            )
        self._dice = random.Random(f"{world.seed} machine")
        self._is_over = False
        self._tasks_at_rest = 0
        self._behind_since = inf  # since when settlements wait for a disk that fails

    def __repr__(self) -> str:
        return f"<Run of seed {self.world.seed} at {self.loop.now:.3f} s>"

    def _plan(self) -> NamespacePlan:
        return plan_of(self.world)

    def _new_checker(self) -> Checker:
        world = self.world
        homes = [home for entity in world.entities for home in HOMES[entity]]
        return Checker(
            lossy=lossy_homes(world),
            max_delivery_count=dict.fromkeys(homes, DELIVERIES_MAX),
            lock_s={home: LOCK_S for home in homes if home != "jobs"},
            window_s={"once": WINDOW_S},
            dead_on_expiry=("brief",),
            exact=True,
            late_s=world.late_s,
            notice_s=world.notice_s,
            fails=bool(world.disk or world.stall_s),
        )

    def run(self) -> str:
        """Return a digest of all that happened; raise Violation."""
        with deterministic(self.world.seed, self.loop, self.network):
            try:
                self.loop.run(self._storm_and_calm())
            except Livelock as error:
                raise Violation(str(error)) from None
            finally:
                self._judge()
        return self.digest

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.trace.events).encode()).hexdigest()[:16]

    def _judge(self) -> None:
        self.checker.fold(self.trace.facts)
        # Nothing is deleted here, and what has failed is only down for a while.
        missing = [event[2] for event in self.trace.events if event[0] == "note" and "could not be found" in event[2]]
        found = [*self.checker.problems, *self.loop.problems, *missing]
        if found:
            raise Violation("\n".join(found[:20]))

    async def _storm_and_calm(self) -> None:
        await self._start()
        for client in self.clients:
            client.start()
        self.loop.create_task(self._watch())
        for trouble in self.world.troubles:
            await self._await_time_of(trouble)
            await self._meet(trouble)
        while self.loop.now < STORM_S and not all(client.is_done for client in self.clients):
            await asyncio.sleep(0.5)
        await self._calm()

    async def _watch(self) -> None:
        """Look into the broker now and then for what must never be."""
        while not self._is_over:
            await asyncio.sleep(_WATCH_S)
            self._behind_since = self._settlements_at_risk_since()
            if not self.machine.is_serving or self.machine.server is None:
                continue
            server = self.machine.server
            strangers = [each for each in server.connections if each._is_unauthenticated and not each._is_leaving]
            held = sum(CONNECTION_BYTES + each._engine.held_bytes for each in strangers)
            if held > STRANGERS_BYTES_MAX or any(each._engine.held_bytes > EACH_BYTES_MAX for each in strangers):
                self.checker.problems.append(f"{len(strangers)} clients without a token hold {held} bytes")
                return
            for connection in server.connections:
                ended = [link for link in connection._served if link.detached and link.remote_detached]
                if ended and not connection._is_behind and not connection.is_silent:
                    self.checker.problems.append(f"the broker goes on serving {ended[0]}, which has ended")
                    return
            self._check_transactions(server)
            jobs = server.namespace.queues.get("jobs")
            if jobs is not None and not jobs.deleting:  # what is restarted is thrown away, with its locks
                for session in jobs.active.sessions or ():
                    if session.lock is not None and session.lock.on_lost is None:
                        self.checker.problems.append(f"{session} is locked, and its receiver has gone")
                        return

    def _check_transactions(self, server: NamespaceServer) -> None:
        """A transaction with something to do with an entity that fails is rolled back with it."""
        for transaction in server.namespace.store.transactions._started:
            for operation in transaction.operations if transaction.state == OPEN else ():
                is_send = isinstance(operation, Send)
                for queue in (operation.target, operation.via) if is_send else (operation.queue,):
                    if queue is not None and queue.entity.suspended is not None:
                        self.checker.problems.append(f"a transaction goes on although {queue.path} has failed")

    def _settlements_at_risk_since(self) -> float:
        """Return since when settlements were answered that are not on the disk, as it fails; infinity: there are
        none."""
        if self.machine.is_behind:
            return min(self._behind_since, self.machine.hangs_since - LAZY_S, self.loop.now - _WATCH_S - LAZY_S)
        return min(self.machine.hangs_since, self.machine.stopped_at) - LAZY_S

    def _unsynced_since_it_froze(self) -> float:
        """Return since when settlements were answered that a broker which is frozen has not synced; infinity: it is
        not."""
        process = self.machine.process
        if process is None or self.loop.now > process.frozen_until or self.world.durability != "default":
            return inf
        return process.frozen_since - LAZY_S

    # -- the storm

    async def _await_time_of(self, trouble: Trouble) -> None:
        if not trouble.answers:
            await asyncio.sleep(max(0.0, trouble.at - self.loop.now))
            return
        reached = self.trace.when_answered(trouble.answers)
        while not reached.done() and self.loop.now < STORM_S and not all(client.is_done for client in self.clients):
            await asyncio.wait((reached,), timeout=0.5)
        await asyncio.sleep(trouble.at)

    async def _meet(self, trouble: Trouble) -> None:
        machine = self.machine
        self.trace.note(f"broker: {trouble}")
        if trouble.kind == "clock":
            self._step_clock(trouble.seconds)
        elif trouble.kind == "freeze":
            if machine.process is not None:
                machine.process.freeze(self.loop.now, trouble.seconds)
        elif trouble.kind == "cut-off":
            self.network.cut_off(NAMESPACE, trouble.seconds)
        elif trouble.kind in ("crash-entity", "crash-node", "storage-stall"):
            self._set_fault(trouble)
        elif trouble.kind.startswith("stall "):
            machine.stall(*trouble.kind.split()[1:])
            self.loop.call_later(trouble.seconds, self._resume, machine.disk)
        else:
            await self._end(trouble)
            await asyncio.sleep(trouble.seconds)
            await self._start()

    def _resume(self, disk: SimulatedDisk) -> None:
        if disk is self.machine.disk:
            self.trace.note("the folders answer again")
            self.machine.resume()

    def _set_fault(self, trouble: Trouble) -> None:
        server, process = self.machine.server, self.machine.process
        if server is None or process is None or not process.is_alive or process.frozen_until > self.loop.now:
            return
        until, late = self.loop.now + trouble.seconds, trouble.late or None
        fault = Fault(trouble.kind, trouble.entity or None, until=server.clock() + trouble.seconds, late=late)
        try:
            process.run(server.faults.set, fault)
        except InvalidFault as error:  # another crash of it is under way
            self.trace.note(f"broker: {error}")
        else:
            if trouble.late:
                self.trace.stalled(self.loop.now, until, until + trouble.late)

    def _diagnosed(self, said: dict[str, Any]) -> None:
        """Note what the broker says of a crash, at which all locks are free: memory and journal must agree."""
        assert self.machine.server is not None
        self._check_transactions(self.machine.server)
        homes, is_certain = self._homes_of(said["failed"])
        self.trace.crashed(homes, self.loop.now, is_certain)
        self.crashes += 1
        self._let_ids_rest()
        # What was refused has used up sequence numbers, which are not in the journal.
        if not self.world.disk and not self.machine.refused_for_stalls:
            for each in said["entities"]:
                # A broker that was started while the clock was ahead has forgotten ids which the journal still has.
                expected = "the message ids that it remembers: " if self._was_stepped else "-"
                found = [line for line in each["differences"] if not line.startswith(expected)]
                self.checker.problems.extend(f"{each['entity']}: {difference}" for difference in found)

    def _homes_of(self, names: list[str]) -> tuple[list[str], bool]:
        """Return the homes in which entities of these names hold messages, and whether it is they alone."""
        return [home for name in names for home in HOMES[name]], True

    def _step_clock(self, seconds: float) -> None:
        self._was_stepped = True
        self.machine.clock.offset += seconds
        self.trace.stepped(seconds, self.loop.now)

    async def _end(self, trouble: Trouble) -> None:
        if trouble.kind == "stop" and self.machine.is_serving:
            with contextlib.suppress(JournalError, OSError, MachineStopped):
                await self.machine.stop()
            self.machine.kill()
            self.trace.killed(self.loop.now)
        elif trouble.kind == "power":
            since = min(self._settlements_at_risk_since(), self._unsynced_since_it_froze())
            self.machine.cut_power(self._dice if trouble.torn else None)
            self.trace.power_cut(self.loop.now, None if since == inf else since)
            for client in self.clients if self.world.durability == "none" else ():
                # Their numbers may be those of other messages from now on.
                client._scheduled.clear()
                client._deferred.clear()
        else:
            self._kill()

    def _kill(self) -> None:
        """Kill the broker, which may be gone already. What its disk refused to take was in its memory alone."""
        since = self._settlements_at_risk_since() if self.world.durability == "default" else inf
        self.machine.kill()
        self.trace.killed(self.loop.now) if since == inf else self.trace.power_cut(self.loop.now, since)

    async def _start(self) -> None:
        """Start the broker, again and again while its disk is too sick for it."""
        for _ in range(_STARTS_MAX):
            try:
                await self.machine.start()
                self._tasks_at_rest = self.loop.count_tasks(self.machine.process)
                self.trace.started(self.world.durability, self.loop.now)
                self._let_ids_rest()
                return
            except JournalCorrupt as error:
                raise Violation(f"the broker takes its journal for damaged: {error}") from None
            except (BrokerError, JournalError, OSError, MachineStopped) as error:
                self.trace.note(f"broker: can't start: {error}")
                self.machine.kill()
                self.machine.disk.capacity = None  # somebody makes room
                await asyncio.sleep(1.0)
        raise Violation(f"the broker did not start in {_STARTS_MAX} attempts")

    def _let_ids_rest(self) -> None:
        """Where the clock was set, who reads the journal can't know how old the ids are that it finds there."""
        for client in self.clients if self._was_stepped else ():
            client.may_repeat = dict.fromkeys(client.plain, 0.0)

    # -- the calm

    async def _let_all_arrive(self) -> None:
        """Wait for whatever is frozen or on its way: later it would be no calm."""
        frozen = 0.0 if self.machine.process is None else self.machine.process.frozen_until
        last = max((frozen, self.network.all_arrived_at))
        await asyncio.sleep(max(0.0, last - self.loop.now) + 1.0)

    async def _let_journal_go_home(self) -> None:
        """Wait until the journal has noticed that its folders answer, and is written in its own."""
        await asyncio.sleep(self.world.stall_s + 1.0)
        log = self.machine.server.namespace.store.journal._log if self.machine.server is not None else None
        if log is not None and (log.stalled or log.folder != log.home):
            raise Violation(f"the folders answer, but the journal waits for {log.stalled} or stays in {log.folder}")

    async def _calm(self) -> None:
        self.trace.note("calm")
        await self._let_all_arrive()
        self.machine.disk.faults.clear()
        self.machine.disk.capacity = None
        self.machine.resume()
        server = self.machine.server
        if server is not None and self.machine.is_serving:
            while server.faults.late(server.clock())[0]:
                await asyncio.sleep(0.5)
            server.faults.clear("storage-stall")
        if self.machine.clock.offset != EPOCH:
            self._step_clock(EPOCH - self.machine.clock.offset)
            await asyncio.sleep(3.0)  # until the broker has noticed: tokens are judged by its time
        if not self.machine.is_serving:
            self._kill()
            await self._start()
        deadline = self.loop.now + CALM_S
        while self.machine.server is not None and self.machine.server.crashes.under_way:
            if self.loop.now > deadline:
                raise Violation(f"after {CALM_S:g} s of calm {self.machine.server.crashes}")
            await asyncio.sleep(0.5)
        while not all(client.is_done for client in self.clients):
            if self.loop.now > deadline:
                waiting = ", ".join(repr(client) for client in self.clients if not client.is_done)
                raise Violation(f"after {CALM_S:g} s of calm some clients are not done: {waiting}")
            await asyncio.sleep(0.5)
        deadline = self.loop.now + CALM_S
        while self.machine.server is not None and self.machine.server.unauthenticated.held_bytes:
            if self.loop.now > deadline:
                raise Violation(f"after {CALM_S:g} s of calm clients without a token have not been sent away")
            await asyncio.sleep(0.5)
        if self.world.stall_s:
            await self._let_journal_go_home()
        drainer = self._drainer(self.loop, self.network, NAMESPACE, self.trace, self.world, self._registers)
        if (self.world.disk or self.world.stall_s) and "brief" in self.world.entities:
            await asyncio.sleep(3.0)  # what expired while the disk refused shows only when it is dead-lettered
        if self._rest_s:
            await asyncio.sleep(self._rest_s)
        await drainer.audit()
        # What the disk refused to make active is tried again each second, and must then be there.
        dues = [self.loop.now if self.world.disk else 0.0]
        dues += [event[2].due for event in self.trace.events if event[0] == "send" and event[2].due < 1e9]
        quiet_at = max(dues) + GRACE_S + 0.5
        await drainer.drain(self.loop.now + CALM_S, quiet_at)
        if self.machine.server is not None and self.machine.server.namespace.message_count:
            await asyncio.sleep(3.0)  # what has just expired shows only when it is dead-lettered
            await drainer.drain(self.loop.now + CALM_S, quiet_at)
        for client in self.clients:
            client.process.kill()
        for _ in range(20):  # idle time-outs find whoever left without a word
            if self.machine.server is not None and self.machine.server._listener.connections:
                await asyncio.sleep(5.0)
        self._check_rest()
        self._is_over = True
        # what was settled stays settled
        self.machine.kill()
        self.trace.killed(self.loop.now)
        await self._start()
        await drainer.audit()
        await self.machine.stop()

    def _registers(self) -> dict[tuple[str, ...], Any]:
        """Return the states of all sessions, as the broker has them in memory."""
        server = self.machine.server
        assert server is not None
        if "jobs" not in self.world.entities:
            return {}
        namespace = server.namespace
        queue = namespace.queues["jobs"].active
        found = {each: namespace.sessions.get_state(queue, each, server.clock()) for each in SESSIONS}
        return {("jobs", session): state.decode() for session, state in found.items() if state is not None}

    def _check_rest(self) -> None:
        """With everybody gone and everything received, nothing of it may be left."""
        server = self.machine.server
        assert server is not None
        namespace = server.namespace
        left = {
            "connections": len(server.connections),
            "tasks": max(0, self.loop.count_tasks(self.machine.process) - self._tasks_at_rest),
            "sockets": server._listener.connections,
            "receivers": sum(len(dispatcher._sources) for dispatcher in server._dispatchers.values()),
            "receivers that wait for a session": sum(len(each._waiting) for each in server._session_waiters.values()),
            "bytes of clients without a token": server.unauthenticated.held_bytes,
            "open transactions": len(namespace.store.transactions),
            "bytes of open transactions": namespace.store.transactions.size_bytes,
            "messages": namespace.message_count,
            "bytes of messages": namespace.resident_bytes,
            "suspended entities": sum(each.suspended is not None for each in namespace.store.by_id.values()),
            "queues to take apart": len(namespace.maintenance._deleted),
            "links": sum(entity.links for entity in namespace.store.by_id.values()),
            "transfer queues of nobody": sum(
                isinstance(each, TransferQueue) and namespace.store.by_id.get(each.owner_id) is not each.owner
                for each in namespace.store.by_id.values()
            ),
        }
        for what, count in left.items():
            if count:
                self.checker.problems.append(f"at the end there are {what}: {count}")
        if self.machine.disk.missed and not self.world.disk:
            self.checker.problems.append(f"files were to be opened that are gone: {self.machine.disk.missed}")
        has_others = any(each.kind.startswith(("stall standby", "stall all")) for each in self.world.troubles)
        is_always_one_left = self.world.standby and not has_others and not self.world.disk
        if is_always_one_left and self.machine.refused_for_stalls:
            self.checker.problems.append(
                f"{self.machine.refused_for_stalls} records were refused for a stall, although a folder answered"
            )
