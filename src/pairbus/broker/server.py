"""Serves any number of namespaces in one process, each on its own ports, with its gauges at `/metrics`.

    data/                    owner only
      ca.pem, …              the broker's own authority and certificate (net/certificates.py)
      control.sock           faults and status (control/)
      NAME/keys.json         the namespace's keys (access/keys.py)
      NAME/journal/          everything that must survive
      NAME/ledger/           with `ledger=True`
      NAME/diagnostics/      what was inconsistent when a node failed (crashes.py)
    standby/NAME/            what the journal takes while data/ stalls, with `standby=`

Code starts it with `serve()`, or with `serve_sync()`, which runs the broker on its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from pairbus.amqp import errors as conditions
from pairbus.amqp.limits import Limits
from pairbus.broker.access.authorization import claims_of_key, key_name_in, rules_in_force
from pairbus.broker.access.keys import KeyRing, grant_on_entity
from pairbus.broker.access.throttling import FILTERS, Throttling
from pairbus.broker.access.unauthenticated import UnauthenticatedQuota
from pairbus.broker.amqp.connection import AmqpConnection
from pairbus.broker.amqp.dispatcher import Dispatcher, Runs
from pairbus.broker.amqp.session_waiters import SessionWaiters
from pairbus.broker.config.apply_plan import apply_keys, apply_plan, read_config
from pairbus.broker.config.plan import EMULATOR_KEY, NamespacePlan, as_emulator, choose
from pairbus.broker.control.control_commands import Commands, Granted, Listed, RuleWanted
from pairbus.broker.control.control_socket import ControlServer
from pairbus.broker.control.faults import Faults
from pairbus.broker.format.records import RecordError
from pairbus.broker.http.admin import AdminApi
from pairbus.broker.http.server import Cut, HttpProtocol, Request, Response, Switch
from pairbus.broker.model.description import AuthorizationRule, InvalidDescription
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.topic import Topic
from pairbus.broker.net.hosts import check_reach, is_loopback, own_address
from pairbus.broker.net.listener import Listener
from pairbus.broker.operations.lock_tokens import random_tokens
from pairbus.broker.operations.namespace import Namespace
from pairbus.broker.operations.nodes import NODES, NODES_MAX
from pairbus.broker.storage.store import refusal_of
from pairbus.broker.storage.written_by import note_version, who_reads
from pairbus.broker.telemetry.loop_turns import LoopTurns
from pairbus.broker.telemetry.metrics import Metrics
from pairbus.broker.telemetry.node_load import NodeLoad
from pairbus.broker.telemetry.recorder import Recorder
from pairbus.errors import BrokerError, file_problem
from pairbus.journal import FormatError, Journal, JournalError, Options
from pairbus.journal.files import make_folder
from pairbus.journal.options import Durability
from pairbus.ledger import LedgerWriter
from pairbus.sas import HTTP_SKEW_S, Claims, verify

from .background import for_code_without_a_loop
from .clock import BrokerClock
from .crashes import Crashes, write_bounded
from .gauges import show_gauges
from .net import certificates, websocket
from .refusal import Refusal
from .slices import Slices
from .telemetry import inventory

log = logging.getLogger("pairbus.broker.server")

Clock = Callable[[], float]
T = TypeVar("T")

_LEDGER_FLUSH_S = 0.2
#: After which an operation on the data folder that does not return is a stall, where there is a standby folder.
_STALL_WITH_STANDBY_S = 2.0
#: How often a request that a fault leaves unanswered looks whether the fault has ended.
_SILENCE_S = 0.1
# How many links are checked in one step when some are to be detached.
_LINKS = 100
_CLOSED = Refusal(conditions.CONNECTION_FORCED, "the broker is shutting down")


class NamespaceServer:
    """One namespace as its clients see it: ports, connections, faults and counters round the stored entities."""

    def __init__(self, broker: Broker, plan: NamespacePlan) -> None:
        self.name = plan.name
        self.clock = broker.clock
        self.limits = Limits()
        self.idle_timeout_s = 240.0
        #: After which a link that nothing moves on is detached; the service does so after ten minutes.
        self.link_idle_timeout_s = plan.link_idle_timeout
        self.loop = asyncio.get_running_loop()
        self.connections: dict[AmqpConnection, None] = {}  # in the order in which they came
        self.unauthenticated = broker.unauthenticated
        self.faults = Faults(self._faults_changed, Throttling(plan.thresholds, self._read_measure))
        self.crashes = Crashes(self, plan.nodes or broker.nodes)
        self.faults.on_crash = self.crashes.begin
        self.faults.late_count = lambda: self.namespace.registry.late_count
        self.namespace: Namespace
        self.recorder: Recorder
        self.folder = broker.data / plan.name
        self.run_aside = broker.run_aside
        self.runs = broker.runs
        self.write_diagnostics = broker.write_diagnostics
        self._broker = broker
        self._plan = plan
        self._keys: KeyRing
        self._journal: Journal
        self._listener = Listener(
            broker.host,
            plan.ports or (0,),
            lambda: AmqpConnection(self),
            lambda: HttpProtocol(self._answer_http, unauthenticated=self.unauthenticated),
            broker.certificates.server_context(),
            connections_max=plan.quotas.connections,
            unauthenticated=self.unauthenticated,
        )
        self._admin: AdminApi
        self._ends = contextlib.AsyncExitStack()
        self._inventories: set[asyncio.Task[inventory.Inventory]] = set()
        self._dispatchers: dict[MessageQueue, Dispatcher] = {}
        self._session_waiters: dict[MessageQueue, SessionWaiters] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._claims_checked_at = float("-inf")
        self._fault_timer: asyncio.TimerHandle | None = None
        self._forwarding: asyncio.Handle | None = None

    def __repr__(self) -> str:
        return f"<NamespaceServer {self.name} on {self.host}:{self.port}: {len(self.connections)} connections>"

    @property
    def host(self) -> str:
        """The host that clients are told, which is not always the address that it listens on."""
        return self._broker.advertise

    @property
    def port(self) -> int:
        """The first of its ports."""
        return self._listener.port

    @property
    def ports(self) -> tuple[int, ...]:
        return self._listener.ports

    @property
    def entity_names(self) -> list[str]:
        """The names of its queues and topics."""
        return [each.name for each in (*self.namespace.queues.values(), *self.namespace.topics.values())]

    @property
    def journal_syncs(self) -> int:
        return self._journal.syncs

    @property
    def storage_bytes(self) -> int:
        """The size of its journal on disk."""
        return sum(each.size for each in self._journal.segments())

    @property
    def ca_file(self) -> str:
        return str(self._broker.certificates.ca_file)

    @property
    def connection_string(self) -> str:
        """For every SDK as it is: AMQP in plain text on loopback, the admin client over TLS on the same port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            f"Endpoint=sb://{host}:{self.port};SharedAccessKeyName={self._keys.root.key_name};"
            f"SharedAccessKey={self._keys.root.primary_key};UseDevelopmentEmulator=true;"
        )

    # -- start and stop

    async def reserve(self) -> None:
        """Reserve its ports before anything else is done: one that is in use keeps the whole broker from starting."""
        self._ends.push_async_callback(self._listener.close)
        await self._listener.reserve()

    async def start(self) -> None:
        """Replay the journal, apply the plan and accept connections. After a failure, `stop` ends what was begun."""
        self._keys = self._broker.open_keys(self.folder)
        try:
            journal = self._broker.open_journal(self.folder, self._plan)
            self._ends.push_async_callback(asyncio.to_thread, journal.close)
            self.faults.has_standby = journal.standby is not None
            self._open_namespace(journal)
        except (FormatError, RecordError, InvalidDescription) as error:
            said = f"{error}. {who_reads(self.folder)}. Nothing of it was changed."
            raise BrokerError(f"namespace {self.name!r} can't be served: {said}") from error
        self._broker.note_version(self.folder)
        apply_keys(self._keys, self._plan, self.clock())
        if self._broker.emulator:
            self._keys.lend(EMULATOR_KEY)
        await apply_plan(self.namespace, self._plan, self.clock)
        counters = self._broker.metrics.namespace(self.name)
        ledger = None
        if self._broker.keeps_ledger:
            ledger = LedgerWriter(self.folder / "ledger", "broker", clock=self.clock, aside=True, continues=True)
            self._ends.push_async_callback(asyncio.to_thread, ledger.close)
            self._every(_LEDGER_FLUSH_S, ledger.flush_aside)
        self.recorder = Recorder(self.name, counters, ledger, self.clock)
        self.namespace.forwarding.on_forwarded = self.recorder.forwarded
        self.namespace.forwarding.on_forwards_due = self._forward_soon
        self.namespace.forwarding.on_forwarding = self._refuse_receivers
        self.namespace.forwarding.is_busy = self._is_busy
        if ledger is not None:
            self.namespace.store.observer = self.recorder.witnessed
            # after the connections have ended: from then on nothing changes any more
            self._ends.push_async_callback(self._write_last_inventory, ledger)
        self._ends.push_async_callback(self._listener.close)
        self._ends.callback(self._close_connections)
        self._admin = AdminApi(
            self.namespace,
            lambda token, now: verify(token, now, self.authorization_rules, skew=HTTP_SKEW_S),
            self.clock,
            refusal=lambda entity, now: self.faults.refusal("manage", entity or None, now),
            metrics=lambda: self._broker.metrics.exposition(self.name),
            trouble=lambda: _journal_trouble(journal),
            answered=self.recorder.answered,
            ports=lambda: self.ports,
        )
        for follower in (self.namespace.shift, self.faults.shift, self._shift_connections):
            self.clock.followers.append(follower)
            self._ends.callback(self.clock.followers.remove, follower)
        await self._listener.start()
        maintenance = asyncio.create_task(self.namespace.maintenance.run())
        self._ends.push_async_callback(_cancel, maintenance)
        self._ends.push_async_callback(self.crashes.stop)
        self._tick()

    def _open_namespace(self, journal: Journal) -> None:
        # replay makes objects by the million that all live on: looking for cycles among them is time lost
        gc.disable()
        try:
            self.namespace = Namespace.open(
                self.name,
                self.folder,
                journal=journal,
                now=self.clock(),
                new_token=random_tokens(),
                slices=self._broker.slices,
                quotas=self._plan.quotas,
            )
        finally:
            gc.enable()
            gc.freeze()
        self.namespace.registry.detach_deleted = self._detach_deleted
        self._journal = journal
        self._log_notes()
        self._broker.start_journal(journal)

    async def stop(self) -> None:
        """Stop in the reverse order of starting: accept no more connections, close them, sync the journal."""
        for timer in (self._timer, self._fault_timer, self._forwarding):
            if timer is not None:
                timer.cancel()
        self._timer = self._fault_timer = None
        for writing in list(self._inventories):
            await _cancel(writing)
        await self._ends.aclose()

    async def _write_last_inventory(self, ledger: LedgerWriter) -> None:
        await inventory.write_left(self.namespace, ledger, self.clock, self._broker.closing_s)

    def write_inventory(self, done: Listed) -> None:
        """Write the messages of the namespace into the ledger while the broker goes on; `done` gets their number."""
        ledger = self.recorder.ledger
        if ledger is None:
            done(f"namespace {self.name!r} keeps no ledger; start the broker with --ledger")
            return
        writing = asyncio.create_task(inventory.write_left(self.namespace, ledger, self.clock))
        self._inventories.add(writing)
        writing.add_done_callback(self._inventories.discard)
        writing.add_done_callback(partial(_report_inventory, done))

    def _close_connections(self) -> None:
        self._listener.stop_accepting()
        for connection in list(self.connections):
            connection.close(_CLOSED)

    def _every(self, seconds: float, action: Callable[[], object]) -> None:
        async def repeat() -> None:
            while True:
                await asyncio.sleep(seconds)
                action()

        self._ends.push_async_callback(_cancel, asyncio.create_task(repeat()))

    async def _answer_http(self, request: Request) -> Response | Switch | Cut:
        if self.faults.is_on:
            names = (request.peer, key_name_in(request.headers.get("authorization", "")))
            while self.faults.silences(names, self.clock()):
                await asyncio.sleep(_SILENCE_S)
            if self.faults.cuts_off(names, self.clock()):
                return Cut()
            path = unquote(request.target.partition("?")[0]).strip("/")
            delay = self.faults.latency(path or None, self.clock())
            if delay:
                await asyncio.sleep(delay)
        if websocket.is_websocket(request.target):
            return websocket.answer(request, lambda: AmqpConnection(self))
        return await self._admin(request)

    def _log_notes(self) -> None:
        """Log what the journal and its maintenance report: a cut tail, a full disk, a sync that failed."""
        for notes in (self._journal.notes, self.namespace.notes):
            while notes:
                log.warning("%s: %s", self.name, notes.pop(0))

    def _shift_connections(self, seconds: float) -> None:
        for connection in self.connections:
            connection.shift(seconds)

    def _tick(self) -> None:
        """Do what is due. Tokens and schedules go by the wall clock, which may be set: no timer waits over a second."""
        self._log_notes()
        self.clock.follow()
        now = self.clock()
        if abs(now - self._claims_checked_at) >= 1.0:
            self._claims_checked_at = now
            for connection in list(self.connections):
                connection.expire_claims(now)
            self.namespace.slices.run(lambda: self.recorder.merge_deleted(self._exists))
        try:
            deadline = self.namespace.tick(now)
        except Exception as error:  # one entity's failure must not stop the timers of all others
            text = f"{self.name}: what is due could not all be done; it is tried again in a second"
            self.loop.call_exception_handler({"message": text, "exception": error})
            deadline = None
        delay = 1.0 if deadline is None else min(1.0, max(0.0, deadline - self.clock()))
        self._timer = self.loop.call_later(delay + 0.001, self._tick)

    def _forward_soon(self) -> None:
        """Forward what waits for it in the next turn of the loop: all of this one goes together."""
        if self._forwarding is None:
            self._forwarding = self.loop.call_soon(self._forward)

    def _forward(self) -> None:
        self._forwarding = None
        self.namespace.forwarding.forward_due(self.clock())

    def _exists(self, path: str) -> bool:
        """Return whether a path that something was counted for still leads to an entity, or never led to one."""
        entity = path.lower().partition("/rules")[0].removesuffix("/subscriptions")
        return path[:1] in ("", "$") or any(self.namespace.resolve(each) is not None for each in (path, entity))

    # -- who may do what

    def authorization_rules(self, path: str) -> Iterable[AuthorizationRule]:
        """Yield the rules in force at a path."""
        return rules_in_force(self._keys.rules, self.namespace, path)

    def claims_of_key(self, key_name: str, key: str) -> list[Claims]:
        """Return what a client may do that logs in with this key, as SASL PLAIN gives it; nothing if it is wrong."""
        return claims_of_key(self._keys.rules, self.namespace, key_name, key)

    def grant(self, wanted: RuleWanted, now: float, done: Granted) -> None:
        """Add or change an authorization rule; `done` gets it when it is on disk, or the reason why not."""
        if wanted.entity is not None:
            grant_on_entity(self.namespace, wanted.entity, wanted.name, wanted.rights, now, done)
            return
        try:
            rule = self._keys.grant(wanted.name, wanted.rights, now)
        except (InvalidDescription, OSError) as error:
            done(error)
        else:
            done(rule)

    # -- links

    def dispatcher(self, queue: MessageQueue) -> Dispatcher:
        """Return the dispatcher of a queue, made at the first call."""
        dispatcher = self._dispatchers.get(queue)
        if dispatcher is None:
            dispatcher = self._dispatchers[queue] = Dispatcher(lambda: queue.available, self.loop, self.runs)
            queue.on_available = dispatcher.wake
        return dispatcher

    def session_waiters(self, queue: MessageQueue) -> SessionWaiters:
        """Return the receivers that wait for a session of a queue."""
        waiters = self._session_waiters.get(queue)
        if waiters is None:
            waiters = self._session_waiters[queue] = SessionWaiters(self, queue)
        return waiters

    def _refuse_receivers(self, queue: MessageQueue) -> None:
        """Detach the receivers of a queue that begins to forward."""
        if queue.refuses_receives is not None:
            self.detach({queue}, queue.refuses_receives)

    def detach(self, targets: Set[MessageQueue | QueueEntity], refusal: Refusal) -> None:
        """Detach the links to these queues and topics."""
        self.namespace.slices.run(lambda: self._detach(targets, lambda target: refusal))

    def _detach_deleted(self, entities: Sequence[QueueEntity]) -> Generator[None, None, None]:
        targets = {each for entity in entities for each in (entity, entity.active, entity.dead_letter)}
        return self._detach(targets, _was_deleted)

    def _detach(self, targets: Set[object], refusal_for: Callable[[Any], Refusal]) -> Generator[None, None, None]:
        for queue in [each for each in self._dispatchers if each in targets]:
            del self._dispatchers[queue]
        for queue in [each for each in self._session_waiters if each in targets]:
            self._session_waiters.pop(queue).close(refusal_for(queue))
            yield
        for connection in list(self.connections):
            for looked_at, link in enumerate(list(connection.links()), 1):
                found = [getattr(link.context, name, None) for name in ("queue", "target", "via")]
                target = next((each for each in found if each in targets), None)
                if target is not None:
                    connection.cut(link, refusal_for(target))
                if target is not None or looked_at % _LINKS == 0:
                    yield
            yield

    # -- faults

    def _faults_changed(self) -> None:
        if self._fault_timer is not None:
            self._fault_timer.cancel()
            self._fault_timer = None
        self.crashes.follow()
        now = self.clock()
        if self.faults.unreachable(None, now):
            self._listener.stop_accepting()
            self._listener.abort_all()
        else:
            self._listener.resume()
        self._listener.black_hole(self.faults.black_hole(None, now))
        self._journal.stall(self.faults.stalls_storage(now))
        is_late, holds_back = self.faults.late(now)
        self.namespace.registry.set_late(holds_back=holds_back, releases=not is_late)
        self.namespace.registry.set_partitions_down(lambda path: self.faults.partitions_down(path, self.clock()))
        for connection in list(self.connections):
            self._apply_faults(connection, now)
        deadline = self.faults.deadline(now)
        if deadline is not None:
            self._fault_timer = self.loop.call_later(max(0.0, deadline - now) + 0.001, self._faults_expire)

    def _faults_expire(self) -> None:
        self.faults.tick(self.clock())
        if self.faults.deadline(self.clock()) is not None and self._fault_timer is None:
            self._faults_changed()

    def _is_busy(self, path: str, size: int) -> bool:
        """Return whether an entity takes no forwarded message now; one that it takes counts as sent."""
        return self.faults.refusal("send", path, self.clock(), 1, size) is not None

    def cut_off(self, connection: AmqpConnection) -> None:
        """Cut or silence a connection whose client a fault means; called when more is known of the client."""
        if self.faults.is_on:
            now, names = self.clock(), connection.names
            if self.faults.cuts_off(names, now):
                connection.abort()
            elif self.faults.silences(names, now):
                connection.silence(True)

    def _read_measure(self, measure: str, target: str | None) -> float:
        """Return how high a measure of a threshold is: of the node, or of an entity or the whole namespace."""
        if measure in ("cpu", "memory", "storage"):
            return self._broker.node_load.read(measure)
        found = None if target is None else self.namespace.resolve(target)
        if target is not None and found is None:
            return 0.0
        if measure == FILTERS:
            return sum(len(each.rules) for each in found.subscriptions.values()) if isinstance(found, Topic) else 0.0
        every = (*self.namespace.queues.values(), *self.namespace.topics.values())
        owners = every if found is None else (found.entity,)
        if measure == "receives":
            return sum(each.receivers for each in owners)
        return sum(part.links for each in owners for part in each.with_parts())

    def _apply_faults(self, connection: AmqpConnection, now: float) -> None:
        """Do to a connection what the faults on the entities of its links ask for."""
        links = [link for link in connection.links() if hasattr(link.context, "path")]
        paths = {link.context.path for link in links}
        names = connection.names
        is_cut = self.faults.cuts_off(names, now) or any(self.faults.unreachable(path, now) for path in paths)
        if is_cut or any(not self.faults.hangs(path, now) for path in connection.hung):
            connection.abort()
            return
        is_silent = self.faults.silences(names, now) or any(self.faults.black_hole(path, now) for path in paths)
        connection.silence(is_silent)
        for link in links:
            if link.is_sender:
                refusal = self.faults.refusal("receive", link.context.path, now, 0)
                if refusal is not None:
                    connection.cut(link, refusal)


def _was_deleted(target: MessageQueue | Topic) -> Refusal:
    text = f"The messaging entity '{target.path}' could not be found: it was deleted."
    return Refusal(conditions.NOT_FOUND, text)


def _report_inventory(done: Listed, writing: asyncio.Task[inventory.Inventory]) -> None:
    if writing.cancelled():
        done("the broker is shutting down")
    elif (error := writing.exception()) is not None:
        done(f"it could not be written: {error}")
    else:
        done(writing.result().written)


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _journal_trouble(journal: Journal) -> str | None:
    """Return the error that a send would be answered with now, if any."""
    error = await journal.look_for_trouble()
    return None if error is None else refusal_of(error).description


class Broker:
    """A running broker: its namespaces by name, their data folder and the control socket."""

    def __init__(
        self,
        data: Path,
        *,
        host: str,
        advertise: str | None,
        emulator: bool,
        durability: Durability,
        ledger: bool,
        clock: Clock,
        salvage: bool,
        standby: Path | None = None,
        nodes: int = NODES,
    ) -> None:
        self.data = data
        self.standby = standby
        self.host = host
        self.advertise = advertise or own_address(host)
        check_reach(host, advertise, emulator)
        self.emulator = emulator
        self.durability = durability
        self.salvage = salvage
        self.keeps_ledger = ledger
        if not 1 <= nodes <= NODES_MAX:
            raise BrokerError(f"{nodes} nodes are out of bounds: 1 to {NODES_MAX}")
        #: On how many nodes the entities of a namespace are, unless its configuration says so.
        self.nodes = nodes
        monotonic = time.monotonic if clock is time.time else getattr(clock, "monotonic", clock)
        self.clock = BrokerClock(clock, monotonic)
        self.namespaces: dict[str, NamespaceServer] = {}
        self.metrics = Metrics()
        self.node_load = NodeLoad(self._storage_bytes)
        #: For the long work of all namespaces: they share the loop.
        self.slices = self.make_slices()
        self.runs = Runs(asyncio.get_running_loop())
        self.loop_turns = LoopTurns()
        #: The quota of all namespaces' connections without a token.
        self.unauthenticated = UnauthenticatedQuota()
        self.certificates: certificates.Certificates
        self._control: ControlServer | None = None
        self._closing_ends = float("inf")

    def __repr__(self) -> str:
        return f"<Broker {self.data}: {', '.join(self.namespaces) or 'no namespaces'}>"

    # The interface to the machine that it runs on; tests/simulation has a simulated one.

    def make_slices(self) -> Slices:
        """Return what runs long work on this loop."""
        return Slices(time.perf_counter, asyncio.get_running_loop().call_soon)

    def open_keys(self, folder: Path) -> KeyRing:
        """Return the keys of a namespace, made at its first start."""
        make_folder(str(folder))
        return KeyRing.load(folder)

    def open_journal(self, folder: Path, plan: NamespacePlan) -> Journal:
        """Return the journal of a namespace, to be replayed."""
        options = Options(durability=self.durability, salvage=self.salvage)
        standby = self._standby_folder(plan)
        most = options.stall_s if standby is None else _STALL_WITH_STANDBY_S
        stall_s = plan.storage_stall_timeout or min(options.stall_s, most)
        return Journal.open(folder / "journal", replace(options, stall_s=stall_s), standby=standby)

    def _standby_folder(self, plan: NamespacePlan) -> Path | None:
        """Return the standby folder of a namespace, if it has one. Absolute: the journal remembers which it was."""
        given = self.standby or plan.standby
        if given is None:
            return None
        standby, data = (Path(given) / plan.name).resolve(), self.data.resolve()
        if data == standby or data in standby.parents:
            raise BrokerError(
                f"the standby folder {given} is in the data folder {self.data}, and would stall with it; give another "
                "one, best on another disk"
            )
        if standby in data.parents:
            raise BrokerError(
                f"the data folder {self.data} is in {standby}, where the standby folder of {plan.name!r} would be; "
                "give another one, best on another disk"
            )
        return Path(given).absolute() / plan.name

    def note_version(self, folder: Path) -> None:
        """Note that this version writes the data of a namespace from now on."""
        note_version(folder)

    def start_journal(self, journal: Journal) -> None:
        """Open a journal that was replayed for appends; its answers come on this loop."""
        # A write may hang like any other operation, and must not take the loop with it where there is a way to go on.
        is_alone = journal.standby is None
        journal.start(asyncio.get_running_loop().call_soon_threadsafe, write_here=is_alone)

    async def run_aside(self, work: Callable[[], T]) -> T:
        """Do something that takes long, with what nobody else changes meanwhile, while the loop goes on."""
        return await asyncio.to_thread(work)

    async def write_diagnostics(self, path: Path, data: bytes) -> None:
        """Write the inconsistencies that were found when a node failed. Raises OSError."""
        await asyncio.to_thread(write_bounded, path, data)

    def faults(self, name: str) -> Faults:
        """Return the faults of a namespace, to be set and cleared on the broker's own loop."""
        return self.namespaces[name].faults

    async def start(self, namespaces: Iterable[str], plans: Iterable[NamespacePlan] = ()) -> None:
        """Start the namespaces that are named, each with its plan if there is one; or all that have a plan. Raise
        BrokerError when one can't be served; then none is."""
        wanted = as_emulator(choose(namespaces, plans)) if self.emulator else choose(namespaces, plans)
        names = [plan.name for plan in wanted]
        if not wanted:
            raise BrokerError("no namespace was named; give at least one, such as 'contoso'")
        if len(set(names)) != len(names):
            raise BrokerError(f"a namespace was named twice: {', '.join(names)}")
        try:
            make_folder(str(self.data))
        except OSError as error:
            raise BrokerError(f"the data folder can't be made: {file_problem(error)}") from None
        # absolute: a client that is given ca_file may be in another folder
        self.certificates = certificates.ensure(self.data.absolute(), self._host_names(names), self.clock())
        show_gauges(self, self.metrics)
        try:
            self.namespaces = {plan.name: NamespaceServer(self, plan) for plan in wanted}
            for begin in (NamespaceServer.reserve, NamespaceServer.start):
                for server in self.namespaces.values():
                    try:
                        await begin(server)
                    except (JournalError, OSError) as error:
                        said = str(error)
                        if isinstance(error, OSError) and error.strerror:
                            said = error.strerror if error.filename is None else file_problem(error)
                        raise BrokerError(f"namespace {server.name!r} can't be served: {said}") from error
            commands = Commands(
                {name: server.faults for name, server in self.namespaces.items()},
                self._status,
                lambda wanted, now, done: self.namespaces[wanted.namespace].grant(wanted, now, done),
                lambda name, done: self.namespaces[name].write_inventory(done),
                lambda name: self.namespaces[name].entity_names,
            )

            async def answer(message: dict[str, Any]) -> dict[str, Any]:
                answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
                commands.begin(
                    message, self.clock(), lambda told: None if answered.done() else answered.set_result(told)
                )
                return await answered

            self._control = ControlServer(self.data, answer)
            await self._control.start()
            self.loop_turns.start(asyncio.get_running_loop())
        except BaseException:
            await self.stop()
            raise

    @property
    def closing_s(self) -> float:
        """The seconds that its namespaces may still take to write what they hold into their ledgers."""
        return max(0.0, self._closing_ends - time.monotonic())

    async def stop(self) -> None:
        self._closing_ends = time.monotonic() + inventory.CLOSING_S
        self.loop_turns.stop()
        if self._control is not None:
            await self._control.stop()
        self.slices.close()
        for server in self.namespaces.values():
            await server.stop()

    def _host_names(self, namespaces: Iterable[str]) -> list[str]:
        """Return the names for the certificate: whatever a client may call this machine."""
        own = [] if is_loopback(self.host) else [socket.gethostname()]
        return [self.host, self.advertise, *own, "localhost", *namespaces]

    def _status(self) -> dict[str, Any]:
        return {
            "status": {
                name: {
                    "host": server.host,
                    "port": server.port,
                    "ports": list(server.ports),
                    "connections": len(server.connections),
                    "nodes": server.crashes.nodes.spread(server.entity_names),
                }
                for name, server in self.namespaces.items()
            }
        }

    def _storage_bytes(self) -> int:
        return sum(server.storage_bytes for server in self.namespaces.values())


@contextlib.asynccontextmanager
async def serve(
    *namespaces: str,
    data: str | Path,
    host: str = "127.0.0.1",
    advertise: str | None = None,
    emulator: bool = False,
    durability: Durability = "default",
    ledger: bool = False,
    config: str | Path | None = None,
    clock: Clock = time.time,
    salvage: bool = False,
    standby: str | Path | None = None,
    nodes: int = NODES,
) -> AsyncIterator[Broker]:
    """Serve the namespaces (`"contoso"`, `"contoso:5672"` or `"contoso:5672,5300"`) on this loop until the block is
    left. Every port serves all protocols.

    `config` is a file that says what is in them; without names, all namespaces of that file are served. `advertise` is
    the host name or address that clients are told: by default `host`, or where that means all addresses (`0.0.0.0`,
    `::`) one of this machine's. `emulator`: one namespace with the ports and the key of Microsoft's emulator, on
    loopback only, since everybody knows that key. `salvage`: although confirmed records are damaged, which are lost
    then; what they were is logged. `standby`: a folder, best on another disk, that takes what is sent while the data
    folder stalls; without it sends are refused then. `nodes`: over how many the entities of each namespace are spread,
    unless `config` says so; entities of one node fail together. `clock` gives unix seconds; where it has a method
    `monotonic`, durations go by that.
    """
    plans = [] if config is None else read_config(Path(config))
    if standby is not None and not str(standby).strip():
        raise BrokerError("the standby folder has no name; give the path of a folder, or none")
    broker = Broker(
        Path(data),
        host=host,
        advertise=advertise,
        emulator=emulator,
        durability=durability,
        ledger=ledger,
        clock=clock,
        salvage=salvage,
        standby=None if standby is None else Path(standby),
        nodes=nodes,
    )
    await broker.start(namespaces, plans)
    try:
        yield broker
    finally:
        await broker.stop()


serve_sync = for_code_without_a_loop(serve)
