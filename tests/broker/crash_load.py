"""A mixed load that outlives its broker: the official SDK, sync and async, and the wire client, asyncio and sync.

Every worker writes into the `History` what it is about to do and what came of it, notices an outage by its own errors
and goes on by itself when the broker is back. No client retries: one attempt, one id. Only the driver knows when the
broker is killed; it may hold the workers at a gate, to look at the broker while nothing is under way.

    queue     senders                               receivers
    orders    SDK sync: singles and lists           SDK sync: complete, abandon, dead-letter, forget
              SDK async: batches; wire: refused     SDK async: its dead letters
    events    SDK async: singles; wire: pings       SDK async and wire: receive-and-delete
    bulk      wire: pipelined singles, batches      wire: settled in ranges on the link and by token over $management
    archive   wire sync: single, pipelined          nobody
    temp-*    wire sync                             nobody: it is created, filled and deleted
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
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

from .crash_check import (
    ABANDON,
    COMPLETE,
    CONFIRMED,
    DEAD_LETTER,
    LOCKED,
    REFUSED,
    TAKEN,
    UNKNOWN,
    Audit,
    Checker,
    History,
    Sighting,
    body_of,
)

MAX_DELIVERY_COUNT: Final = 4
LOCK_S: Final = 5
DESCRIPTION: Final = "said by the crash load"
PING: Final = "application/vnd.ms-servicebus-ping"
#: The most that receivers of `events` may have on its way to them: each receiver's credit.
TAKE_COUNT: Final = 20
ARCHIVE_MAX: Final = 20_000
_DEPTH_MAX: Final = 400
_OUTAGE_S: Final = 0.03
_WIRE_OPTIONS: Final[dict[str, Any]] = {"timeout": 10.0, "backoff": lambda: itertools.repeat(0.03)}


def new_checker() -> Checker:
    return Checker(
        lossy={"events": 2 * TAKE_COUNT},
        max_delivery_count={"orders": MAX_DELIVERY_COUNT, "bulk": MAX_DELIVERY_COUNT},
        description=DESCRIPTION,
    )


def admin_client(connection_string: str, ca_file: str) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string, transport=RequestsTransport(connection_verify=ca_file), retry_total=0
    )


def create_queues(connection_string: str, ca_file: str, history: History) -> None:
    options = {"max_delivery_count": MAX_DELIVERY_COUNT, "lock_duration": datetime.timedelta(seconds=LOCK_S)}
    with admin_client(connection_string, ca_file) as admin:
        for name in ("orders", "events", "bulk", "archive"):
            admin.create_queue(name, **options)
            history.queue(name, "create", CONFIRMED)


# -- what a message looks like from each side


def payload_of(id: str, **properties: Any) -> bytes:
    return encode_message(properties=Properties(message_id=id, **properties), body=body_of(id))


def sdk_message(id: str) -> ServiceBusMessage:
    return ServiceBusMessage(body_of(id), message_id=id)


def sight(queue: str, dead: bool, message: ReceivedMessage) -> Sighting:
    """From what the wire client received or peeked."""
    payload, sections = message.payload, message.sections
    id = read_properties(payload, sections).message_id
    body = b"".join(part for _, part in read_body(payload, sections))
    properties = read_application_properties(payload, sections) if dead else {}
    return Sighting(
        queue, dead, str(id), message.sequence_number or 0, message.delivery_count, body == body_of(str(id)),
        properties.get("DeadLetterReason"), properties.get("DeadLetterErrorDescription"),
    )  # fmt: skip


def sight_sdk(queue: str, dead: bool, message: Any) -> Sighting:
    return Sighting(
        queue, dead, message.message_id, message.sequence_number, message.delivery_count,
        b"".join(message.body) == body_of(message.message_id),
        message.dead_letter_reason, message.dead_letter_error_description,
    )  # fmt: skip


def split_of(payload: bytes) -> ReceivedMessage:
    split(payload)
    return ReceivedMessage(payload, 0, b"", None, True)


async def look(connection_string: str, ca_file: str) -> Audit:
    """All that the broker has. Only meaningful while nobody else is at it."""
    with admin_client(connection_string, ca_file) as admin:
        names = [queue.name for queue in await asyncio.to_thread(lambda: list(admin.list_queues()))]
    sightings: list[Sighting] = []
    async with WireClient.from_connection_string(connection_string, **_WIRE_OPTIONS) as client:
        for name in names:
            for path, dead in ((name, False), (f"{name}/$deadletterqueue", True)):
                start = 1
                while found := await client.peek(path, start, 1000):
                    sightings += [sight(name, dead, split_of(payload)) for payload in found]
                    start = sightings[-1].sequence + 1
    return Audit(frozenset(names), sightings)


# -- the load


Workers = tuple[dict[str, Callable[["Worker"], None]], dict[str, Callable[["Worker"], Any]]]


class Load:
    def __init__(
        self, connection_string: str, ca_file: str, seed: int, history: Any, workers: Workers | None = None
    ) -> None:
        """`workers`: sync ones and async ones, if not those of this file."""
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
        self._threads: list[threading.Thread] = []
        sync_workers, async_workers = workers or (_SYNC_WORKERS, _ASYNC_WORKERS)
        for name, run in sync_workers.items():
            self._add(name, run)
        self._tasks = [self._worker(name, run) for name, run in async_workers.items()]

    def __repr__(self) -> str:
        parked = sum(worker.is_parked for worker in self.workers)
        return f"<Load: {len(self.workers)} workers, {parked} parked, {sum(self.errors.values())} errors noticed>"

    def _worker(self, name: str, run: Callable[[Worker], Any]) -> Worker:
        worker = Worker(self, name, run, random.Random(f"{self._seed} {name}"))
        self.workers.append(worker)
        return worker

    def _add(self, name: str, run: Callable[[Worker], None]) -> None:
        worker = self._worker(name, run)
        self._threads.append(threading.Thread(target=worker.run, name=f"load {name}", daemon=True))

    def start(self) -> None:
        self._threads.append(threading.Thread(target=self._run_loop, name="load loop", daemon=True))
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

    def wait_at_gate(self) -> None:
        self._gate.wait()

    def hold(self) -> None:
        """From here on every worker ends what it has under way and waits."""
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    def wait_parked(self, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while moving := [worker.name for worker in self.workers if not worker.is_parked]:
            if time.monotonic() > deadline:
                raise AssertionError(f"these workers hang in a call: {', '.join(moving)}")
            time.sleep(0.01)

    def wait_resumed(self, timeout_s: float = 60.0) -> None:
        """Until every worker has had success from now on."""
        before = {worker: worker.successes for worker in self.workers}
        deadline = time.monotonic() + timeout_s
        while idle := [worker.name for worker in self.workers if worker.successes == before[worker]]:
            if time.monotonic() > deadline:
                raise AssertionError(f"these workers did not find back by themselves: {', '.join(idle)}")
            time.sleep(0.02)

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
                time.sleep(_OUTAGE_S)
        self.is_parked = True

    async def run_async(self) -> None:
        while not self.load.is_over:
            try:
                await self._run(self)
            except Exception as error:
                self.note(error)
                await asyncio.sleep(_OUTAGE_S)
        self.is_parked = True

    def note(self, error: Exception) -> None:
        kind = f"{self.name}: {type(error).__name__}"
        self.load.errors[kind] += 1
        if isinstance(error, (AssertionError, KeyError, NameError, TypeError, UnboundLocalError)):
            self.load.surprises.append(f"{kind}: {traceback.format_exc(limit=-4)}")

    def proceed(self) -> bool:
        if not self.load.is_open:
            self.is_parked = True
            self.load.wait_at_gate()
            self.is_parked = False
        self.rounds += 1
        return not self.load.is_over

    async def proceed_async(self) -> bool:
        while not self.load.is_open:
            self.is_parked = True
            await asyncio.sleep(0.01)
        self.is_parked = False
        self.rounds += 1
        return not self.load.is_over

    # sending

    def new_id(self) -> str:
        return f"{self.name}-{next(self._numbers)}"

    def begin(self, home: str, count: int, *, ping: bool = False) -> list[str]:
        ids = [self.new_id() for _ in range(count)]
        self.history.attempt(home, ids, ping=ping)
        return ids

    def begin_singles(self, home: str, count: int) -> list[str]:
        return [id for _ in range(count) for id in self.begin(home, 1)]

    def end(self, home: str, ids: Sequence[str], outcome: str) -> None:
        for id in ids:
            self.history.sent(id, outcome)
        if outcome == CONFIRMED:
            self.successes += 1
            self.load.depth[home] += len(ids)

    def sending(self, home: str, ids: Sequence[str]) -> contextlib.AbstractContextManager[None]:
        return outcome_for(lambda outcome: self.end(home, ids, outcome))

    def is_ahead(self, home: str) -> bool:
        """Of the receivers, so that what an audit has to look at stays small."""
        return self.load.depth[home] > _DEPTH_MAX

    # receiving

    def seen(self, sighting: Sighting, how: str) -> None:
        self.history.seen(sighting, how)

    def choose(self) -> tuple[str, str | None]:
        chance = self.rng.random()
        if chance < 0.75:
            return COMPLETE, None
        if chance < 0.87:
            return ABANDON, None
        return DEAD_LETTER, f"reason {self.rng.randrange(5)}"

    def settling(
        self, home: str, sighting: Sighting, action: str, reason: str | None = None
    ) -> contextlib.AbstractContextManager[None]:
        settlement = self.history.settle(sighting, action, reason)
        return outcome_for(lambda outcome: self.settled(home, settlement, action, outcome))

    def settled(self, home: str, settlement: tuple[str, int], action: str, outcome: str) -> None:
        self.history.settled(settlement, outcome)
        if outcome == CONFIRMED:
            self.successes += 1
        if outcome != REFUSED and action != ABANDON:
            self.load.depth[home] -= 1


def outcome_of(error: WireError) -> str:
    """The wire client's word: not unknown means that it has not happened."""
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


# -- the official SDK, sync


def send_orders(worker: Worker) -> None:
    with (
        ServiceBusClient.from_connection_string(worker.connection_string, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        while worker.proceed():
            if worker.is_ahead("orders"):
                time.sleep(0.01)
                continue
            ids = worker.begin("orders", worker.rng.choice((1, 1, 1, 3, 20)))
            messages = [sdk_message(id) for id in ids]
            with worker.sending("orders", ids):
                sender.send_messages(messages if len(messages) > 1 else messages[0])


def receive_orders(worker: Worker) -> None:
    with (
        ServiceBusClient.from_connection_string(worker.connection_string, retry_total=0) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        while worker.proceed():
            messages = receiver.receive_messages(worker.rng.randint(1, 20), max_wait_time=0.3)
            sightings = [sight_sdk("orders", False, message) for message in messages]
            for sighting in sightings:
                worker.seen(sighting, LOCKED)
            for message, sighting in zip(messages, sightings, strict=True):
                if worker.rng.random() < 0.03:
                    continue  # its lock runs out
                action, reason = worker.choose()
                with worker.settling("orders", sighting, action, reason):
                    if action == COMPLETE:
                        receiver.complete_message(message)
                    elif action == ABANDON:
                        receiver.abandon_message(message)
                    else:
                        receiver.dead_letter_message(message, reason=reason, error_description=DESCRIPTION)


# -- the official SDK, async


async def send_batches(worker: Worker) -> None:
    async with (
        AsyncServiceBusClient.from_connection_string(worker.connection_string, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        while await worker.proceed_async():
            if worker.is_ahead("orders"):
                await asyncio.sleep(0.01)
                continue
            batch = await sender.create_message_batch()
            ids = worker.begin("orders", worker.rng.randint(1, 4))
            with worker.sending("orders", ids):
                for id in ids:
                    batch.add_message(sdk_message(id))
                await sender.send_messages(batch)


async def send_events(worker: Worker) -> None:
    async with (
        AsyncServiceBusClient.from_connection_string(worker.connection_string, retry_total=0) as client,
        client.get_queue_sender("events") as sender,
    ):
        while await worker.proceed_async():
            if worker.is_ahead("events"):
                await asyncio.sleep(0.01)
                continue
            ids = worker.begin("events", 1)
            with worker.sending("events", ids):
                await sender.send_messages(sdk_message(ids[0]))


async def take_events(worker: Worker) -> None:
    async with (
        AsyncServiceBusClient.from_connection_string(worker.connection_string, retry_total=0) as client,
        client.get_queue_receiver("events", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        while await worker.proceed_async():
            for message in await receiver.receive_messages(TAKE_COUNT, max_wait_time=0.3):
                worker.seen(sight_sdk("events", False, message), TAKEN)
                worker.load.depth["events"] -= 1
                worker.successes += 1


async def receive_dead_orders(worker: Worker) -> None:
    async with (
        AsyncServiceBusClient.from_connection_string(worker.connection_string, retry_total=0) as client,
        client.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver,
    ):
        while await worker.proceed_async():
            for message in await receiver.receive_messages(5, max_wait_time=0.3):
                sighting = sight_sdk("orders", True, message)
                worker.seen(sighting, LOCKED)
                action = worker.rng.choice((COMPLETE, COMPLETE, ABANDON))
                with worker.settling("dead orders", sighting, action):
                    if action == COMPLETE:
                        await receiver.complete_message(message)
                    else:
                        await receiver.abandon_message(message)


# -- the wire client


async def send_bulk(worker: Worker) -> None:
    async with WireClient.from_connection_string(worker.connection_string, **_WIRE_OPTIONS) as client:
        sender = await client.sender("bulk")
        while await worker.proceed_async():
            if worker.is_ahead("bulk"):
                await asyncio.sleep(0.01)
                continue
            try:
                if worker.rng.random() < 0.5:
                    await _pipeline(worker, sender)
                else:
                    await _batch(worker, sender)
            except WireError as error:
                worker.note(error)
                await asyncio.sleep(_OUTAGE_S)


async def _pipeline(worker: Worker, sender: Any) -> None:
    ids = worker.begin_singles("bulk", worker.rng.randint(1, 100))
    try:
        results = await sender.send_many([payload_of(id) for id in ids])
    except WireError as error:
        worker.end("bulk", ids, outcome_of(error))
        raise
    for id, problem in zip(ids, results, strict=True):
        worker.end("bulk", [id], CONFIRMED if problem is None else outcome_of(problem))


async def _batch(worker: Worker, sender: Any) -> None:
    ids = worker.begin("bulk", worker.rng.randint(2, 5))
    payloads = [payload_of(id) for id in ids]
    if sum(map(len, payloads)) > 200_000:  # it would be cut, and then is no longer one thing
        worker.end("bulk", ids, REFUSED)
        return
    with worker.sending("bulk", ids):
        await sender.send_batch(payloads)


async def receive_bulk(worker: Worker) -> None:
    async with WireClient.from_connection_string(worker.connection_string, **_WIRE_OPTIONS) as client:
        receiver = await client.receiver("bulk", credit=worker.rng.choice((0, 50)))
        while await worker.proceed_async():
            try:
                messages = await receiver.receive(50, 0.3)
                by_action: dict[tuple[str, str | None], list[tuple[ReceivedMessage, Sighting]]] = {}
                for message in messages:
                    sighting = sight("bulk", False, message)
                    worker.seen(sighting, LOCKED)
                    by_action.setdefault(worker.choose(), []).append((message, sighting))
                for (action, reason), group in by_action.items():
                    if worker.rng.random() < 0.3:
                        await _settle_by_token(worker, client, group, action, reason)
                    else:
                        await _settle_on_link(worker, receiver, group, action, reason)
            except WireError as error:
                worker.note(error)
                await asyncio.sleep(_OUTAGE_S)


async def _settle_on_link(
    worker: Worker,
    receiver: Receiver,
    group: list[tuple[ReceivedMessage, Sighting]],
    action: str,
    reason: str | None,
) -> None:
    messages = [message for message, _ in group]
    settlements = [worker.history.settle(sighting, action, reason) for _, sighting in group]
    refused: Sequence[int] = ()
    outcome = CONFIRMED
    try:
        if action == COMPLETE:
            await receiver.complete(messages)
        elif action == ABANDON:
            await receiver.abandon(messages)
        else:
            await receiver.dead_letter(messages, reason, DESCRIPTION)
    except WireError as error:
        refused = error.delivery_ids
        outcome = CONFIRMED if refused else outcome_of(error)
        worker.note(error)
    for message, settlement in zip(messages, settlements, strict=True):
        worker.settled("bulk", settlement, action, REFUSED if message.delivery_id in refused else outcome)


async def _settle_by_token(
    worker: Worker,
    client: WireClient,
    group: list[tuple[ReceivedMessage, Sighting]],
    action: str,
    reason: str | None,
) -> None:
    tokens = [message.lock_token for message, _ in group if message.lock_token is not None]
    assert len(tokens) == len(group)
    status = {COMPLETE: "completed", ABANDON: "abandoned", DEAD_LETTER: "suspended"}[action]
    settlements = [worker.history.settle(sighting, action, reason) for _, sighting in group]
    outcome = CONFIRMED
    described = DESCRIPTION if action == DEAD_LETTER else None
    try:
        await client.settle_by_token("bulk", tokens, status, reason=reason, description=described)
    except WireError as error:
        # of several tokens some may hold: the answer does not say which
        outcome = UNKNOWN if len(tokens) > 1 else outcome_of(error)
        worker.note(error)
    for settlement in settlements:
        worker.settled("bulk", settlement, action, outcome)


async def take_events_by_wire(worker: Worker) -> None:
    async with WireClient.from_connection_string(worker.connection_string, **_WIRE_OPTIONS) as client:
        receiver = await client.receiver("events", mode="delete")
        while await worker.proceed_async():
            try:
                for message in await receiver.receive(worker.rng.randint(1, TAKE_COUNT), 0.3):
                    worker.seen(sight("events", False, message), TAKEN)
                    worker.load.depth["events"] -= 1
                    worker.successes += 1
            except WireError as error:
                worker.note(error)
                await asyncio.sleep(_OUTAGE_S)


async def send_what_is_refused(worker: Worker) -> None:
    """A batch with something in it that is no message; and pings, which are confirmed and stored nowhere."""
    async with WireClient.from_connection_string(worker.connection_string, **_WIRE_OPTIONS) as client:
        orders, events = await client.sender("orders"), await client.sender("events")
        while await worker.proceed_async():
            await asyncio.sleep(0.02)
            try:
                if worker.rng.random() < 0.5:
                    ids = worker.begin("events", 1, ping=True)
                    await events.send(payload_of(ids[0], content_type=PING))
                    worker.end("pings", ids, CONFIRMED)
                else:
                    ids = worker.begin("orders", 3)
                    payloads = [payload_of(id) for id in ids]
                    await orders.send_batch([*payloads, b"\x00\x53\x75no message"])
                    raise AssertionError("a batch with garbage in it was accepted")
            except WireError as error:
                worker.end("orders", ids, outcome_of(error))
                worker.successes += not error.outcome_unknown
                worker.note(error)


# -- the wire client, sync


def send_archive(worker: Worker) -> None:
    client = SyncWireClient.from_connection_string(worker.connection_string, **_WIRE_OPTIONS)
    try:
        sender = client.sender("archive")
        while worker.proceed():
            time.sleep(0.005 if worker.load.depth["archive"] < ARCHIVE_MAX else 0.5)
            ids = worker.begin_singles("archive", worker.rng.choice((1, 1, 8)))
            payloads = [payload_of(id) for id in ids]
            try:
                results: list[WireError | None] = [None]
                if len(ids) > 1:
                    results = sender.send_many(payloads)
                else:
                    sender.send(payloads[0])
            except WireError as error:
                worker.end("archive", ids, outcome_of(error))
                worker.note(error)
                time.sleep(_OUTAGE_S)
                continue
            for id, problem in zip(ids, results, strict=True):
                worker.end("archive", [id], CONFIRMED if problem is None else outcome_of(problem))
    finally:
        client.close()


def come_and_go(worker: Worker) -> None:
    """Queues: created, filled, deleted, and created again under the same name."""
    for number in itertools.count(1):
        name = f"temp-{worker.rng.randrange(4)}"
        home = f"{name}#{number}"
        for step in _life_of(worker, name, home):
            while worker.proceed():
                try:
                    step()
                    worker.successes += 1
                    break
                except Exception as error:
                    worker.note(error)
                    time.sleep(_OUTAGE_S)
            if worker.load.is_over:
                return


def _life_of(worker: Worker, name: str, home: str) -> Iterator[Callable[[], None]]:
    def create() -> None:
        worker.history.queue(home, "create", UNKNOWN)
        with admin_client(worker.connection_string, worker.load.ca_file) as admin:
            try:
                admin.create_queue(name)
            except ResourceExistsError:
                pass  # an attempt without an answer was carried out
        worker.history.queue(home, "create", CONFIRMED)

    def fill() -> None:
        client = SyncWireClient.from_connection_string(worker.connection_string, **_WIRE_OPTIONS)
        try:
            sender = client.sender(name)
            ids = worker.begin(home, 3)
            with worker.sending(home, ids):
                sender.send_batch([payload_of(id) for id in ids])
        finally:
            client.close()

    def delete() -> None:
        worker.history.queue(home, "delete", UNKNOWN)
        with admin_client(worker.connection_string, worker.load.ca_file) as admin:
            try:
                admin.delete_queue(name)
            except ResourceNotFoundError:
                pass
        worker.history.queue(home, "delete", CONFIRMED)

    yield create
    yield fill
    yield delete


_SYNC_WORKERS: Final[dict[str, Callable[[Worker], None]]] = {
    "sdk-sync-send": send_orders,
    "sdk-sync-receive": receive_orders,
    "wire-sync-send": send_archive,
    "queues": come_and_go,
}
_ASYNC_WORKERS: Final[dict[str, Callable[[Worker], Coroutine[Any, Any, None]]]] = {
    "sdk-async-batches": send_batches,
    "sdk-async-send": send_events,
    "sdk-async-take": take_events,
    "sdk-async-dead": receive_dead_orders,
    "wire-send": send_bulk,
    "wire-receive": receive_bulk,
    "wire-take": take_events_by_wire,
    "wire-refused": send_what_is_refused,
}
