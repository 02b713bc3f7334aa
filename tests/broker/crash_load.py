"""A load that outlives its broker: its workers, what they say into the history, and an inventory of the broker.

Every worker writes into the `History` what it is about to do and what came of it, notices an outage by its own errors
and goes on by itself when the broker is back. No client retries: one call, one attempt. Only the driver knows when the
broker is killed; it may hold the workers at a gate, to look at the broker while nothing is under way. What the workers
do is in crash_traffic.py and crash_features.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
import traceback
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.management import FalseRuleFilter, ServiceBusAdministrationClient, TrueRuleFilter

from pairbus.amqp.message import (
    Properties,
    encode_message,
    read_application_properties,
    read_body,
    read_properties,
    split,
)
from pairbus.wire import ReceivedMessage, Receiver, WireClient, WireError
from pairbus.wire.sync import WireClient as SyncWireClient
from tests.simulation.checker import Checker
from tests.simulation.history import (
    ABANDON,
    ACTIVE,
    CONFIRMED,
    DEAD,
    DEFERRED,
    GONE,
    REFUSED,
    SCHEDULED,
    UNKNOWN,
    History,
    Inventory,
    Look,
)

DESCRIPTION: Final = "said by the crash load"
PING: Final = "application/vnd.ms-servicebus-ping"
SESSIONS: Final = [f"s{number}" for number in range(5)]
OUTAGE_S: Final = 0.05
#: What forwards, in the order of the way.
FORWARDING: Final = ("entry", "hub/Subscriptions/end", "arrived/$DeadLetterQueue")
_DEPTH_MAX: Final = 400
_BATCH_BYTES_MAX: Final = 200_000
_WIRE_OPTIONS: Final[dict[str, Any]] = {"timeout": 10.0, "backoff": lambda: itertools.repeat(0.03)}
_STATES: Final = {0: ACTIVE, 1: DEFERRED, 2: SCHEDULED}
_SDK_VERBS: Final = {
    GONE: "complete_message", ABANDON: "abandon_message", DEFERRED: "defer_message", DEAD: "dead_letter_message",
}  # fmt: skip
_WIRE_VERBS: Final = {GONE: "complete", ABANDON: "abandon", DEFERRED: "defer", DEAD: "dead_letter"}
Key = tuple[str, ...]
Workers = tuple[dict[str, Callable[["Worker"], None]], dict[str, Callable[["Worker"], Any]]]


def body_of(id: str) -> bytes:
    """Return the one body that goes with an id: mostly small, now and then of several frames."""
    seed = zlib.crc32(id.encode())
    size = seed % 900 if seed % 100 else 40_000 + seed % 120_000
    return f"{id}:{seed:08x}:".encode() + bytes((seed + n) & 0xFF for n in range(min(size, 256))) * (size // 256 + 1)


class Proof(NamedTuple):
    """What is done to the broker, and what is held against it."""

    checker: Callable[[], Checker]
    prepare: Callable[[str, str, History], None]
    workers: Callable[[], Workers]
    lives_s: tuple[float, float]  # of a broker that serves, until it is killed
    journal: dict[str, Any]


class Load:
    def __init__(
        self, connection_string: str, ca_file: str, seed: int, history: History, workers: Workers = ({}, {})
    ) -> None:
        """`workers`: sync ones and async ones."""
        self.connection_string = connection_string
        self.ca_file = ca_file
        self.history = history
        self.errors: Counter[str] = Counter()
        self.surprises: list[str] = []
        self.depth: Counter[str] = Counter()
        self.workers: list[Worker] = []
        self._seed = seed
        self._over = threading.Event()
        self._gate = threading.Event()
        self._gate.set()
        self._threads = [
            threading.Thread(target=self.worker(name, run).run, name=f"load {name}", daemon=True)
            for name, run in workers[0].items()
        ]
        self._tasks = [self.worker(name, run) for name, run in workers[1].items()]
        self._threads.append(threading.Thread(target=self._run_loop, name="load loop", daemon=True))

    def __repr__(self) -> str:
        parked = sum(worker.is_parked for worker in self.workers)
        return f"<Load: {len(self.workers)} workers, {parked} parked, {sum(self.errors.values())} errors noticed>"

    def worker(self, name: str, run: Callable[[Worker], Any]) -> Worker:
        worker = Worker(self, name, run, random.Random(f"{self._seed} {name}"))
        self.workers.append(worker)
        return worker

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _run_loop(self) -> None:
        async def run_all() -> None:
            await asyncio.gather(*(worker.run_async() for worker in self._tasks))

        asyncio.run(run_all())

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    @property
    def is_open(self) -> bool:
        return self._gate.is_set()

    def hold(self) -> None:
        """From here on every worker ends what it has under way and waits."""
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    def wait_parked(self) -> None:
        self._wait("these workers hang in a call", lambda worker: worker.is_parked)

    def wait_resumed(self) -> None:
        """Until every worker has had success from now on."""
        before = {worker: worker.successes for worker in self.workers}
        self._wait("these workers did not find back by themselves", lambda worker: worker.successes > before[worker])

    def _wait(self, otherwise: str, is_done: Callable[[Worker], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while waiting := [worker.name for worker in self.workers if not is_done(worker)]:
            if time.monotonic() > deadline:
                raise AssertionError(f"{otherwise}: {', '.join(waiting)}")
            time.sleep(0.01)

    def stop(self) -> None:
        self._over.set()
        self._gate.set()
        for thread in self._threads:
            thread.join(60)
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        assert not alive, f"these did not end: {alive}"


class Worker:
    """One client and what it does again and again. `proceed` stands between two rounds of work."""

    def __init__(self, load: Load, name: str, run: Callable[[Worker], Any], rng: random.Random) -> None:
        self.load = load
        self.name = name
        self.rng = rng
        self.history = load.history
        self.connection_string = load.connection_string
        self.is_parked = False
        self.rounds = 0
        self.successes = 0
        self._run = run
        self._numbers = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Worker {self.name}: {self.rounds} rounds, {self.successes} of them went well>"

    def run(self) -> None:
        while not self.load.is_over:
            try:
                self._run(self)
            except Exception as error:
                self.note(error)
                time.sleep(OUTAGE_S)
        self.is_parked = True

    async def run_async(self) -> None:
        while not self.load.is_over:
            try:
                await self._run(self)
            except Exception as error:
                self.note(error)
                await asyncio.sleep(OUTAGE_S)
        self.is_parked = True

    def note(self, error: Exception) -> None:
        kind = f"{self.name}: {type(error).__name__}"
        self.load.errors[kind] += 1
        if isinstance(error, (AssertionError, KeyError, NameError, TypeError, UnboundLocalError)):
            self.load.surprises.append(f"{kind}: {traceback.format_exc(limit=-4)}")

    def proceed(self, pause_s: float = 0.0, ahead_of: str = "") -> bool:
        """Wait as `pause_s` says, and while the receivers of `ahead_of` have enough to do, so that what an audit has to
        look at stays small."""
        time.sleep(pause_s)
        while not self._may_proceed(ahead_of):
            time.sleep(0.01)
        return not self.load.is_over

    async def proceed_async(self, pause_s: float = 0.0, ahead_of: str = "") -> bool:
        await asyncio.sleep(pause_s)
        while not self._may_proceed(ahead_of):
            await asyncio.sleep(0.01)
        return not self.load.is_over

    def _may_proceed(self, ahead_of: str) -> bool:
        self.is_parked = not self.load.is_open
        is_next = not self.is_parked and (self.load.depth[ahead_of] <= _DEPTH_MAX or self.load.is_over)
        self.rounds += is_next
        return is_next

    async def repeat(self, step: Callable[[], Any], ahead_of: str = "") -> None:
        """With a client that finds back by itself, whatever it says."""
        while await self.proceed_async(ahead_of=ahead_of):
            try:
                await step()
            except WireError as error:
                self.note(error)
                await asyncio.sleep(OUTAGE_S)

    # what is said before and after each call

    def new_ids(self, count: int, bytes_max: float = _BATCH_BYTES_MAX) -> list[str]:
        """Return ids for messages which, together, make one transfer: a batch that is cut is no longer one thing."""
        ids = [f"{self.name}-{next(self._numbers)}" for _ in range(count)]
        return ids if sum(len(body_of(id)) for id in ids) <= bytes_max else ids[:1]

    @contextlib.contextmanager
    def sending(self, ids: Sequence[str], *homes: str, **of: Any) -> Iterator[None]:
        ticket = self.history.send(ids, homes, **of)
        with outcome_for(lambda outcome: self._sent(ticket, len(ids), homes, outcome)):
            yield

    @contextlib.contextmanager
    def pipelining(self, ids: Sequence[str], home: str) -> Iterator[list[WireError | None]]:
        """Each message is a send of its own. What is yielded is to be filled with their results."""
        tickets = [self.history.send([id], [home]) for id in ids]
        results: list[WireError | None] = []
        otherwise = UNKNOWN
        try:
            yield results
        except WireError as error:
            otherwise = outcome_of(error)
            raise
        finally:
            outcomes = [CONFIRMED if problem is None else outcome_of(problem) for problem in results]
            for ticket, outcome in zip(tickets, outcomes or [otherwise] * len(tickets), strict=True):
                self._sent(ticket, 1, (home,), outcome)

    def _sent(self, ticket: int, count: int, homes: Sequence[str], outcome: str) -> None:
        self.history.sent(ticket, outcome)
        if outcome == CONFIRMED:
            self.successes += 1
            self.load.depth.update(dict.fromkeys(homes, count))

    def saw(self, look: Look, **how: str) -> Look:
        self.history.seen(look, **how)
        return look

    def settle(self, look: Look, to: str, reason: str | None = None) -> int:
        description = None if reason is None else DESCRIPTION
        return self.history.settle(
            look.home, look.id, to, reason=reason, description=description, deliveries=look.deliveries
        )

    @contextlib.contextmanager
    def settling(self, look: Look, to: str) -> Iterator[str | None]:
        """Yield the reason for a dead letter."""
        reason = self.reason_for(to)
        ticket = self.settle(look, to, reason)
        with outcome_for(lambda outcome: self.settled(ticket, look, to, outcome)):
            yield reason

    def settled(self, ticket: int, look: Look, to: str, outcome: str) -> None:
        self.history.settled(ticket, outcome)
        self.successes += outcome == CONFIRMED
        if outcome != REFUSED and to != ABANDON and look.state == ACTIVE:
            self.load.depth[look.home] -= 1

    def reason_for(self, to: str) -> str | None:
        return f"reason {self.rng.randrange(5)}" if to == DEAD else None

    @contextlib.contextmanager
    def writing(self, values: dict[Key, Any]) -> Iterator[None]:
        tickets = [self.history.write(key, value) for key, value in values.items()]

        def done(outcome: str) -> None:
            self.successes += outcome == CONFIRMED
            for ticket in tickets:
                self.history.written(ticket, outcome)

        with outcome_for(done):
            yield


def outcome_of(error: WireError) -> str:
    """Return the wire client's word: not unknown means that it has not happened."""
    return UNKNOWN if error.outcome_unknown else REFUSED


@contextlib.contextmanager
def outcome_for(done: Callable[[str], None]) -> Iterator[None]:
    """Call `done` with the outcome of what is tried inside."""
    outcome = UNKNOWN
    try:
        yield
        outcome = CONFIRMED
    except WireError as error:
        outcome = outcome_of(error)
        raise
    finally:
        done(outcome)


# -- clients


def admin_client(connection_string: str, ca_file: str) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string, transport=RequestsTransport(connection_verify=ca_file), retry_total=0
    )


@contextlib.contextmanager
def sdk_client(worker: Worker) -> Iterator[ServiceBusClient]:
    """When the gate is open: connecting takes the SDK so long that an audit would wait for it."""
    worker.proceed()
    with ServiceBusClient.from_connection_string(worker.connection_string, retry_total=0) as client:
        yield client


@contextlib.asynccontextmanager
async def async_sdk_client(worker: Worker) -> AsyncIterator[AsyncServiceBusClient]:
    await worker.proceed_async()
    async with AsyncServiceBusClient.from_connection_string(worker.connection_string, retry_total=0) as client:
        yield client


def wire_client(worker: Worker) -> WireClient:
    """The client that is back at once when the broker is."""
    return WireClient.from_connection_string(worker.connection_string, **_WIRE_OPTIONS)


def sync_wire_client(worker: Worker) -> contextlib.closing[SyncWireClient]:
    return contextlib.closing(SyncWireClient.from_connection_string(worker.connection_string, **_WIRE_OPTIONS))


def sdk_receiver(client: Any, home: str, **options: Any) -> Any:
    topic, _, subscription = home.partition("/")
    if subscription:
        return client.get_subscription_receiver(topic, subscription, **options)
    return client.get_queue_receiver(home, **options)


def path_of(home: str, is_dead: bool = False) -> str:
    return home.replace("/", "/Subscriptions/") + "/$DeadLetterQueue" * is_dead


def settle_by_sdk(receiver: Any, message: Any, to: str, reason: str | None) -> Any:
    """Return what a sync receiver returns, or what is to be awaited."""
    why = {"reason": reason, "error_description": DESCRIPTION} if to == DEAD else {}
    return getattr(receiver, _SDK_VERBS[to])(message, **why)


async def settle_by_wire(receiver: Receiver, messages: list[ReceivedMessage], to: str, reason: str | None) -> None:
    await getattr(receiver, _WIRE_VERBS[to])(messages, *((reason, DESCRIPTION) if to == DEAD else ()))


# -- what a message looks like from each side


def payload_of(id: str, **properties: Any) -> bytes:
    return encode_message(properties=Properties(message_id=id, **properties), body=body_of(id))


def sdk_message(id: str, **options: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body_of(id), message_id=id, **options)


def split_of(payload: bytes) -> ReceivedMessage:
    split(payload)
    return ReceivedMessage(payload, 0, b"", None, True)


def look_at(home: str, is_dead: bool, payload: bytes) -> Look:
    """Of what the wire client peeked."""
    message = split_of(payload)
    state = _STATES[message.annotations.get("x-opt-message-state", 0)]
    if is_dead:
        state = DEAD if state == ACTIVE else f"{state} among the dead letters"
    return _look_wire(home, message, state)


def look_wire(home: str, message: ReceivedMessage, state: str = ACTIVE) -> Look:
    """Of what a receiver of the wire client got, which is never deferred. Unlike a peek, a delivery says of a message
    that had been scheduled that it is."""
    was_scheduled = message.annotations.get("x-opt-scheduled-enqueue-time") is not None
    assert _STATES[message.annotations.get("x-opt-message-state", 0)] == (SCHEDULED if was_scheduled else ACTIVE)
    return _look_wire(home, message, state)


def _look_wire(home: str, message: ReceivedMessage, state: str) -> Look:
    payload, sections = message.payload, message.sections
    properties = read_properties(payload, sections)
    id = str(properties.message_id)
    body = b"".join(part for _, part in read_body(payload, sections))
    said = read_application_properties(payload, sections)
    return Look(
        home, id, state, message.sequence_number or 0, time.time(), message.delivery_count, body == body_of(id),
        said.get("DeadLetterReason"), said.get("DeadLetterErrorDescription"), properties.group_id,
    )  # fmt: skip


def look_sdk(home: str, message: Any, state: str = ACTIVE) -> Look:
    """Of what the SDK received."""
    was_scheduled = message.scheduled_enqueue_time_utc is not None
    delivered = ServiceBusMessageState.SCHEDULED if was_scheduled else ServiceBusMessageState.ACTIVE
    assert message.state == (ServiceBusMessageState.DEFERRED if state == DEFERRED else delivered)
    id, is_dead = message.message_id, state == DEAD
    return Look(
        home, id, state, message.sequence_number, time.time(), message.delivery_count,
        b"".join(message.body) == body_of(id), message.dead_letter_reason if is_dead else None,
        message.dead_letter_error_description if is_dead else None, message.session_id,
    )  # fmt: skip


# -- all that the broker has


def list_registers(admin: ServiceBusAdministrationClient) -> dict[Key, Any]:
    registers: dict[Key, Any] = {}
    for queue in admin.list_queues():
        registers["queue", queue.name] = queue.user_metadata or ""
    for topic in admin.list_topics():
        registers["topic", topic.name] = topic.user_metadata or ""
        for subscription in admin.list_subscriptions(topic.name):
            home = f"{topic.name}/{subscription.name}"
            registers["subscription", home] = subscription.user_metadata or ""
            for rule in admin.list_rules(topic.name, subscription.name):
                registers["rule", home, rule.name] = _words_of(rule.filter)
    return registers


def _words_of(filter: Any) -> str:
    named = {TrueRuleFilter: "true", FalseRuleFilter: "false"}
    return named.get(type(filter)) or f"colour {filter.properties['colour']}"


async def take_inventory(connection_string: str, ca_file: str) -> Inventory:
    """Only meaningful while nobody else is at the broker."""
    with admin_client(connection_string, ca_file) as admin:
        registers = await asyncio.to_thread(list_registers, admin)
    sessions = SESSIONS if ("queue", "sessions") in registers else []
    async with WireClient.from_connection_string(connection_string, timeout=60.0) as client:
        if ("queue", "due") in registers:
            await _catch_up(client)
            await _end_forwarding(client)
        begun = time.time()
        homes = [key[1] for key in registers if key[0] in ("queue", "subscription")]
        looks, *states = await asyncio.gather(
            _peek_all(client, homes), *(_session_state(connection_string, session) for session in sessions)
        )
        looks = await without_overtaken(client, looks)
    named = {("state", session): state for session, state in zip(sessions, states, strict=True)}
    return Inventory(begun, looks, registers | named)


async def _catch_up(client: WireClient) -> None:
    """Until what fell due while the broker was down is active: that is begun at the start, but on a slow disk it takes
    longer than our first look does. A ping is on the disk after all that was begun before it; the second one is for
    what compaction met on the way, which is written twice."""
    sender = await client.sender("due")
    for _ in range(2):
        await sender.send(payload_of("ping", content_type=PING))


async def _end_forwarding(client: WireClient) -> None:
    """Until everything has gone the whole of its way: what is to be found is at the end of it, once."""
    sender = await client.sender(FORWARDING[0])
    for path in FORWARDING:
        for _ in range(1000):
            if not await client.peek(path, 1, 1):
                break
            await sender.send(payload_of("ping", content_type=PING))
        else:
            raise AssertionError(f"'{path}' forwards no more")


async def _session_state(connection_string: str, session: str) -> str | None:
    """Also proof that nothing holds a session after a restart."""
    async with (
        AsyncServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_receiver("sessions", session_id=session) as receiver,
    ):
        return text_of(await receiver.session.get_state())


def text_of(state: Any) -> str | None:
    return None if state is None else bytes(state).decode()


async def _peek_all(client: WireClient, homes: list[str]) -> list[Look]:
    looks: list[Look] = []
    for home, is_dead in itertools.product(homes, (False, True)):
        start = 1
        while found := await client.peek(path_of(home, is_dead), start, 1000):
            looks += [look_at(home, is_dead, payload) for payload in found]
            start = looks[-1].sequence + 1
    return looks


async def without_overtaken(client: WireClient, looks: list[Look]) -> list[Look]:
    """A message whose time comes between two looks gets a new number, and is seen with both. Where it was seen first it
    is no longer, which is looked up: a second copy would stay."""
    active = {(look.home, look.id): look.sequence for look in looks if look.state == ACTIVE}
    kept = []
    for look in looks:
        if look.state == SCHEDULED and active.get((look.home, look.id), 0) > look.sequence:
            again = await client.peek(path_of(look.home), look.sequence, 1)
            if not any(look_at(look.home, False, payload).sequence == look.sequence for payload in again):
                continue
        kept.append(look)
    return kept
