"""A load that outlives its broker: its workers, what they say into the history, and an inventory of the broker.

Every worker writes into the `History` what it is about to do and what came of it, notices an outage by its own errors
and goes on by itself when the broker is back. No client retries: one call, one attempt. Only the driver knows when the
broker is killed; it may hold the workers at a gate, to look at the broker while nothing is under way. What the workers
do is in crash_traffic.py.
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
from azure.servicebus.management import ServiceBusAdministrationClient

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
    GONE,
    REFUSED,
    UNKNOWN,
    History,
    Inventory,
    Look,
)

DESCRIPTION: Final = "said by the crash load"
PING: Final = "application/vnd.ms-servicebus-ping"
OUTAGE_S: Final = 0.05
_DEPTH_MAX: Final = 400
_BATCH_BYTES_MAX: Final = 200_000
_WIRE_OPTIONS: Final[dict[str, Any]] = {"timeout": 10.0, "backoff": lambda: itertools.repeat(0.03)}
_SDK_VERBS: Final = {
    GONE: "complete_message", ABANDON: "abandon_message", DEAD: "dead_letter_message",
}  # fmt: skip
_WIRE_VERBS: Final = {GONE: "complete", ABANDON: "abandon", DEAD: "dead_letter"}
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
    return look_wire(home, split_of(payload), DEAD if is_dead else ACTIVE)


def look_wire(home: str, message: ReceivedMessage, state: str = ACTIVE) -> Look:
    """Of what a receiver of the wire client got."""
    assert message.annotations.get("x-opt-message-state", 0) == 0
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
    assert message.state == ServiceBusMessageState.ACTIVE
    id, is_dead = message.message_id, state == DEAD
    return Look(
        home, id, state, message.sequence_number, time.time(), message.delivery_count,
        b"".join(message.body) == body_of(id), message.dead_letter_reason if is_dead else None,
        message.dead_letter_error_description if is_dead else None, message.session_id,
    )  # fmt: skip


# -- all that the broker has


async def take_inventory(connection_string: str, ca_file: str) -> Inventory:
    """Only meaningful while nobody else is at the broker."""
    with admin_client(connection_string, ca_file) as admin:
        homes = await asyncio.to_thread(list_homes, admin)
    async with WireClient.from_connection_string(connection_string, timeout=60.0) as client:
        begun = time.time()
        return Inventory(begun, await _peek_all(client, homes), {("home", home): "" for home in homes})


def list_homes(admin: ServiceBusAdministrationClient) -> list[str]:
    topics = [topic.name for topic in admin.list_topics()]
    return [queue.name for queue in admin.list_queues()] + [
        f"{topic}/{subscription.name}" for topic in topics for subscription in admin.list_subscriptions(topic)
    ]


async def _peek_all(client: WireClient, homes: list[str]) -> list[Look]:
    looks: list[Look] = []
    for home, is_dead in itertools.product(homes, (False, True)):
        start = 1
        while found := await client.peek(path_of(home, is_dead), start, 1000):
            looks += [look_at(home, is_dead, payload) for payload in found]
            start = looks[-1].sequence + 1
    return looks
