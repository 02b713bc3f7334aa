"""A load on all that queues and topics can do, which outlives its broker; see `crash_load` for the plain one.

Every worker writes into the `FeatureHistory` what it is about to do and what came of it. In each home one worker does
all the receiving.

    home               put there by                              received by
    sessions           SDK async, one at a time                  SDK sync: next session, its state, deferred in it
    due                SDK async: scheduled, cancelled           the same worker, by wire
    deferred           wire                                      the same worker: SDK async: deferred, by number;
                                                                 by wire: its dead letters
    once, copies/a b   SDK sync: every id until it is            SDK async; b: wire
                       confirmed, and old ones again
    news/all red none  SDK async: at once, scheduled, cancelled  SDK async; red: wire; `none` gets nothing
    shift/live guest   SDK sync, between changes of the rules    wire; `guest` comes and goes
    changing, passing  SDK sync                                  nobody: they are created, updated and deleted
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiver,
)
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import MessageNotFoundError, OperationTimeoutError
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    TrueRuleFilter,
)

from pairbus.amqp.message import read_application_properties, read_body, read_properties
from pairbus.wire import ReceivedMessage, Receiver, WireClient

from .crash_check import CONFIRMED, REFUSED, UNKNOWN, body_of
from .crash_drive import Proof
from .crash_feature_check import (
    ACTIVE,
    DEAD,
    DEFERRED,
    GONE,
    SCHEDULED,
    FeatureChecker,
    FeatureHistory,
    Inventory,
    Look,
)
from .crash_load import DESCRIPTION, PING, Worker, admin_client, outcome_for, payload_of, split_of

SESSIONS: Final = [f"s{number}" for number in range(5)]
COLOURS: Final = ("red", "green", "blue")
LOCK: Final = datetime.timedelta(seconds=10)
WINDOW: Final = datetime.timedelta(minutes=30)
_OUTAGE_S: Final = 0.1
_PAUSE_S: Final = 0.02
_DEPTH_MAX: Final = 150
_WIRE_OPTIONS: Final[dict[str, Any]] = {"timeout": 10.0, "backoff": lambda: itertools.repeat(0.05)}
_STATES: Final = {0: ACTIVE, 1: DEFERRED, 2: SCHEDULED}
Key = tuple[str, ...]


def colour_rule(colour: str) -> CorrelationRuleFilter:
    return CorrelationRuleFilter(properties={"colour": colour})


def create_features(connection_string: str, ca_file: str, history: FeatureHistory) -> None:
    plain: dict[str, Any] = {"lock_duration": LOCK, "max_delivery_count": 2000}
    twice: dict[str, Any] = {
        "requires_duplicate_detection": True, "duplicate_detection_history_time_window": WINDOW,
    }  # fmt: skip
    with admin_client(connection_string, ca_file) as admin:
        admin.create_queue("sessions", requires_session=True, **plain)
        admin.create_queue("due", **plain)
        admin.create_queue("deferred", **plain)
        admin.create_queue("once", **twice, **plain)
        admin.create_topic("copies", **twice)
        admin.create_topic("news")
        admin.create_topic("shift")
        for topic, subscription in (("copies", "a"), ("copies", "b"), ("news", "all"), ("news", "red"),
                                    ("news", "none"), ("shift", "live")):  # fmt: skip
            admin.create_subscription(topic, subscription, **plain)
        for topic, subscription in (("news", "red"), ("news", "none"), ("shift", "live")):
            admin.delete_rule(topic, subscription, "$Default")
        admin.create_rule("news", "red", "colour", filter=colour_rule("red"))
        admin.create_rule("news", "none", "never", filter=FalseRuleFilter())
        for key, value in list_registers(admin).items():
            history.written(history.write(key, value), CONFIRMED)


# -- what the broker has


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
                registers["rule", home, rule.name] = words_of(rule.filter)
    return registers


def words_of(filter: Any) -> str:
    if isinstance(filter, TrueRuleFilter):
        return "true"
    if isinstance(filter, FalseRuleFilter):
        return "false"
    return f"colour {filter.properties['colour']}"


async def session_state(connection_string: str, session: str) -> str | None:
    """Also proof that nothing holds a session after a restart."""
    async with (
        AsyncServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_receiver("sessions", session_id=session) as receiver,
    ):
        return text_of(await receiver.session.get_state())


def text_of(state: Any) -> str | None:
    return None if state is None else bytes(state).decode()


async def look(connection_string: str, ca_file: str) -> Inventory:
    """All that the broker has. Only meaningful while nobody else is at it."""
    await catch_up(connection_string)
    with admin_client(connection_string, ca_file) as admin:
        registers = await asyncio.to_thread(list_registers, admin)
    begun = time.time()
    homes = [key[1] for key in registers if key[0] in ("queue", "subscription")]
    looks, *states = await asyncio.gather(
        peek_all(connection_string, homes), *(session_state(connection_string, session) for session in SESSIONS)
    )
    return Inventory(begun, looks, registers | {("state", session): states[n] for n, session in enumerate(SESSIONS)})


async def catch_up(connection_string: str) -> None:
    """Until what fell due while the broker was down is active: that is begun at the start, but on a slow disk it takes
    longer than our first look does. A ping is on the disk after all that was begun before it; the second one is for
    what compaction met on the way, which is written twice."""
    async with WireClient.from_connection_string(connection_string, timeout=60.0) as client:
        sender = await client.sender("due")
        for _ in range(2):
            await sender.send(payload_of("ping", content_type=PING))


async def peek_all(connection_string: str, homes: list[str]) -> list[Look]:
    looks: list[Look] = []
    async with WireClient.from_connection_string(connection_string, timeout=10.0) as client:
        for home in homes:
            path = home.replace("/", "/Subscriptions/")
            for is_dead in (False, True):
                start = 1
                while found := await client.peek(path + "/$DeadLetterQueue" * is_dead, start, 1000):
                    looks += [look_at(home, is_dead, payload) for payload in found]
                    start = looks[-1].sequence + 1
        return await without_overtaken(client, looks)


async def without_overtaken(client: WireClient, looks: list[Look]) -> list[Look]:
    """A message whose time comes between two looks gets a new number, and is seen with both. Where it was seen first it
    is no longer, which is looked up: a second copy would stay."""
    active = {(look.home, look.id): look.sequence for look in looks if look.state == ACTIVE}
    kept = []
    for look in looks:
        if look.state == SCHEDULED and active.get((look.home, look.id), 0) > look.sequence:
            path = look.home.replace("/", "/Subscriptions/")
            again = [look_at(look.home, False, payload) for payload in await client.peek(path, look.sequence, 1)]
            if not any(each.sequence == look.sequence for each in again):
                continue
        kept.append(look)
    return kept


def look_at(home: str, is_dead: bool, payload: bytes) -> Look:
    message = split_of(payload)
    properties = read_properties(payload, message.sections)
    id = str(properties.message_id)
    body = b"".join(part for _, part in read_body(payload, message.sections))
    state, reason = _STATES[message.annotations.get("x-opt-message-state", 0)], None
    if is_dead:
        said = read_application_properties(payload, message.sections)
        state = DEAD if state == ACTIVE else f"{state} among the dead letters"
        reason = reason_of(said.get("DeadLetterReason"), said.get("DeadLetterErrorDescription"))
    return Look(
        home, id, state, message.sequence_number or 0, time.time(), body == body_of(id), reason, properties.group_id
    )


def reason_of(reason: str | None, description: str | None) -> str | None:
    return reason if description == DESCRIPTION else f"{reason}: {description}"


def look_sdk(home: str, message: Any, state: str) -> Look:
    assert message.state == (ServiceBusMessageState.DEFERRED if state == DEFERRED else ServiceBusMessageState.ACTIVE)
    reason = reason_of(message.dead_letter_reason, message.dead_letter_error_description) if state == DEAD else None
    body = b"".join(message.body)
    return Look(
        home, message.message_id, state, message.sequence_number, time.time(), body == body_of(message.message_id),
        reason, message.session_id,
    )  # fmt: skip


# -- what is said before and after each call


@contextlib.contextmanager
def putting(worker: Worker, *ids: str, homes: Iterable[str], **options: Any) -> Iterator[None]:
    homes = tuple(homes)
    for id in ids:
        worker.history.put(id, homes, **options)

    def done(outcome: str) -> None:
        worker.successes += outcome == CONFIRMED
        for id in ids:
            # of a batch that was sent in parts some may be stored
            worker.history.put_done(id, UNKNOWN if outcome == REFUSED else outcome)

    with outcome_for(done):
        yield


@contextlib.contextmanager
def changing(worker: Worker, home: str, id: str, to: str, reason: str | None = None) -> Iterator[None]:
    ticket = worker.history.change(home, id, to, reason)

    def done(outcome: str) -> None:
        worker.successes += outcome == CONFIRMED
        worker.history.changed(ticket, UNKNOWN if outcome == REFUSED else outcome)

    with outcome_for(done):
        yield


def message_of(id: str, **options: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body_of(id), message_id=id, **options)


def moment(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, datetime.UTC)


async def settle(worker: Worker, receiver: Any, home: str, message: Any, to: str) -> None:
    """`to`: what becomes of it; ACTIVE is an abandon, which leaves it in the state that it was in."""
    id = message.message_id
    if to == ACTIVE:
        await receiver.abandon_message(message)
        return
    reason = f"reason {worker.rng.randrange(5)}" if to == DEAD else None
    with changing(worker, home, id, to, reason):
        if to == GONE:
            await receiver.complete_message(message)
        elif to == DEFERRED:
            await receiver.defer_message(message)
        else:
            await receiver.dead_letter_message(message, reason=reason, error_description=DESCRIPTION)


@contextlib.asynccontextmanager
async def client_of(worker: Worker) -> AsyncIterator[AsyncServiceBusClient]:
    """When the gate is open: connecting takes the SDK so long that an audit would wait for it."""
    await worker.proceed_async()
    async with AsyncServiceBusClient.from_connection_string(worker.connection_string, retry_total=0) as client:
        yield client


@contextlib.contextmanager
def sync_client_of(worker: Worker) -> Iterator[ServiceBusClient]:
    worker.proceed()
    time.sleep(_OUTAGE_S)
    with ServiceBusClient.from_connection_string(worker.connection_string, retry_total=0) as client:
        yield client


def wire_client_of(worker: Worker) -> WireClient:
    """The client that is back at once when the broker is."""
    return WireClient.from_connection_string(worker.connection_string, **_WIRE_OPTIONS)


async def receive_and_settle(
    worker: Worker, receiver: Receiver, home: str, actions: Sequence[str], *, is_dead: bool = False
) -> None:
    messages = await receiver.receive(20, 0.1)
    looks = [look_at(home, is_dead, message.payload) for message in messages]
    for each in looks:
        worker.history.seen(each)
    for message, each in zip(messages, looks, strict=True):
        await _settle_by_wire(worker, receiver, message, each, worker.rng.choice(actions))


async def _settle_by_wire(worker: Worker, receiver: Receiver, message: ReceivedMessage, seen: Look, to: str) -> None:
    if to == ACTIVE:
        await receiver.abandon([message])
        return
    reason = "by wire" if to == DEAD else None
    with changing(worker, seen.home, seen.id, to, reason):
        if to == GONE:
            await receiver.complete([message])
        elif to == DEFERRED:
            await receiver.defer([message])
        else:
            await receiver.dead_letter([message], reason, DESCRIPTION)


# -- sessions


async def send_sessions(worker: Worker) -> None:
    async with client_of(worker) as client, client.get_queue_sender("sessions") as sender:
        while await worker.proceed_async():
            await asyncio.sleep(_PAUSE_S)
            if worker.load.depth["sessions"] > _DEPTH_MAX:
                continue
            session = worker.rng.choice(SESSIONS)
            ids = [worker.new_id() for _ in range(worker.rng.choice((1, 1, 3)))]
            with putting(worker, *ids, homes=["sessions"], session=session):
                await sender.send_messages([message_of(id, session_id=session) for id in ids])
            worker.load.depth["sessions"] += len(ids)


class ReceiveSessions:
    def __init__(self) -> None:
        self._deferred: dict[str, dict[str, int]] = {session: {} for session in SESSIONS}
        self._versions = itertools.count(1)

    def __call__(self, worker: Worker) -> None:
        with sync_client_of(worker) as client:
            while worker.proceed():
                try:
                    with client.get_queue_receiver(
                        "sessions", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.3
                    ) as receiver:
                        self._hold(worker, receiver)
                except OperationTimeoutError:
                    continue  # no session has a message

    def _hold(self, worker: Worker, receiver: ServiceBusReceiver) -> None:
        session = receiver.session.session_id
        for is_last in (False, False, False, True):
            worker.history.read(("state", session), text_of(receiver.session.get_state()))
            messages = receiver.receive_messages(worker.rng.randint(1, 8), max_wait_time=0.1)
            for message in messages:
                worker.history.seen(look_sdk("sessions", message, ACTIVE))
            worker.history.delivered("sessions", session, [message.message_id for message in messages])
            for message in messages[: worker.rng.randint(0, 8)] if is_last else messages:
                self._settle(worker, receiver, session, message)
            held = self._deferred[session]
            if held and worker.rng.random() < 0.5:
                by_number(worker, receiver, "sessions", worker.rng.choice(sorted(held)), held)
            if worker.rng.random() < 0.6:
                self._set_state(worker, receiver, session)

    def _set_state(self, worker: Worker, receiver: ServiceBusReceiver, session: str) -> None:
        value = None if worker.rng.random() < 0.1 else f"{session} {next(self._versions)}"
        ticket = worker.history.write(("state", session), value)
        outcome = UNKNOWN
        try:
            receiver.session.set_state(None if value is None else value.encode())
            outcome = CONFIRMED
            worker.successes += 1
        finally:
            worker.history.written(ticket, outcome)

    def _settle(self, worker: Worker, receiver: ServiceBusReceiver, session: str, message: Any) -> None:
        id, chance = message.message_id, worker.rng.random()
        worker.load.depth["sessions"] -= 1
        if chance < 0.9:
            with changing(worker, "sessions", id, GONE):
                receiver.complete_message(message)
        elif chance < 0.98:
            self._deferred[session][id] = message.sequence_number
            with changing(worker, "sessions", id, DEFERRED):
                receiver.defer_message(message)
        else:
            with changing(worker, "sessions", id, DEAD, "of a session"):
                receiver.dead_letter_message(message, reason="of a session", error_description=DESCRIPTION)


def by_number(worker: Worker, receiver: ServiceBusReceiver, home: str, id: str, held: dict[str, int]) -> None:
    try:
        (message,) = receiver.receive_deferred_messages(held[id])
    except (MessageNotFoundError, ValueError):
        del held[id]
        worker.history.missed(home, id, time.time())
        return
    worker.history.seen(look_sdk(home, message, DEFERRED))
    with changing(worker, home, id, GONE):
        receiver.complete_message(message)
    del held[id]


# -- schedules


class Schedule:
    """Puts messages into the future, cancels some of them, and receives those whose time has come."""

    def __init__(self) -> None:
        self._far: deque[tuple[str, int]] = deque()

    async def __call__(self, worker: Worker) -> None:
        async with (
            client_of(worker) as client,
            client.get_queue_sender("due") as sender,
            wire_client_of(worker) as wire,
        ):
            receiver = await wire.receiver("due")
            while await worker.proceed_async():
                await self._schedule(worker, sender)
                await receive_and_settle(worker, receiver, "due", (GONE, GONE, GONE, ACTIVE))

    async def _schedule(self, worker: Worker, sender: Any) -> None:
        ids = [worker.new_id() for _ in range(worker.rng.randint(1, 3))]
        due = time.time() + worker.rng.choice((0.05, 0.3, 1.0, 3.0, 3600.0))
        if worker.rng.random() < 0.3:
            with putting(worker, *ids, homes=["due"], due=due):
                await sender.send_messages([message_of(id, scheduled_enqueue_time_utc=moment(due)) for id in ids])
            return
        with putting(worker, *ids, homes=["due"], due=due):
            numbers = await sender.schedule_messages([message_of(id) for id in ids], moment(due))
        known = list(zip(ids, numbers, strict=True))
        if due > time.time() + 100:
            self._far.extend(known)
            known = [self._far.popleft()] if len(self._far) > 20 else []
        for id, number in known:
            if worker.rng.random() < 0.5:
                await cancel(worker, sender, ["due"], id, number)


async def cancel(worker: Worker, sender: Any, homes: list[str], id: str, number: int) -> None:
    tickets = [worker.history.change(home, id, GONE) for home in homes]
    outcome = UNKNOWN
    try:
        await sender.cancel_scheduled_messages(number)
        outcome = CONFIRMED
        worker.successes += 1
    except MessageNotFoundError:
        # its time had come; in a subscription its receiver may have seen it by now
        outcome = REFUSED if homes == ["due"] else UNKNOWN
    finally:
        for ticket in tickets:
            worker.history.changed(ticket, outcome)


# -- deferred and dead letters


class Defer:
    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    async def __call__(self, worker: Worker) -> None:
        async with (
            client_of(worker) as client,
            client.get_queue_receiver("deferred") as receiver,
            wire_client_of(worker) as wire,
        ):
            sender, dead = await wire.sender("deferred"), await wire.receiver("deferred/$DeadLetterQueue")
            while await worker.proceed_async():
                ids = [worker.new_id() for _ in range(worker.rng.randint(1, 4))]
                with putting(worker, *ids, homes=["deferred"]):
                    await sender.send_batch([payload_of(id) for id in ids])
                await self._receive(worker, receiver)
                for id in worker.rng.sample(sorted(self._held), min(len(self._held), len(self._held) // 30 + 2)):
                    await self._by_number(worker, receiver, id)
                if worker.rng.random() < 0.3:
                    await receive_and_settle(worker, dead, "deferred", (GONE, ACTIVE), is_dead=True)

    async def _receive(self, worker: Worker, receiver: Any) -> None:
        for message in await receiver.receive_messages(10, max_wait_time=0.1):
            worker.history.seen(look_sdk("deferred", message, ACTIVE))
            to = worker.rng.choice((DEFERRED, DEFERRED, DEFERRED, GONE, ACTIVE, DEAD))
            if to == DEFERRED:
                self._held[message.message_id] = message.sequence_number
            await settle(worker, receiver, "deferred", message, to)

    async def _by_number(self, worker: Worker, receiver: Any, id: str) -> None:
        try:
            (message,) = await receiver.receive_deferred_messages(self._held[id])
        except (MessageNotFoundError, ValueError):
            del self._held[id]
            worker.history.missed("deferred", id, time.time())
            return
        worker.history.seen(look_sdk("deferred", message, DEFERRED))
        to = worker.rng.choice((GONE, GONE, GONE, ACTIVE, DEFERRED, DEAD))
        await settle(worker, receiver, "deferred", message, to)
        if to in (GONE, DEAD):
            del self._held[id]


# -- duplicates


class SendOnce:
    """Every id again and again until it is confirmed, whatever happens to the broker; old ones now and then too."""

    def __init__(self, path: str, homes: list[str]) -> None:
        self._path = path
        self._homes = homes
        self._pending: list[str] = []
        self._old: deque[str] = deque(maxlen=300)

    def __call__(self, worker: Worker) -> None:
        with sync_client_of(worker) as client:
            is_topic = "/" in self._homes[0]
            with client.get_topic_sender(self._path) if is_topic else client.get_queue_sender(self._path) as sender:
                while worker.proceed():
                    time.sleep(_PAUSE_S)
                    if not self._pending:
                        self._pending = [worker.new_id() for _ in range(worker.rng.choice((1, 1, 3)))]
                    again = [worker.rng.choice(self._old)] if self._old and worker.rng.random() < 0.4 else []
                    ids = [*self._pending, *again]
                    with putting(worker, *ids, homes=self._homes):
                        sender.send_messages([message_of(id) for id in ids])
                    self._old.extend(self._pending)
                    self._pending = []


def receive_at(home: str, *actions: str) -> Callable[[Worker], Awaitable[None]]:
    async def receive(worker: Worker) -> None:
        topic, _, subscription = home.partition("/")
        async with client_of(worker) as client:
            made = (
                client.get_subscription_receiver(topic, subscription)
                if subscription
                else client.get_queue_receiver(topic)
            )
            async with made as receiver:
                while await worker.proceed_async():
                    for message in await receiver.receive_messages(20, max_wait_time=0.2):
                        worker.history.seen(look_sdk(home, message, ACTIVE))
                        await settle(worker, receiver, home, message, worker.rng.choice(actions))

    return receive


def receive_by_wire(home: str, *actions: str) -> Callable[[Worker], Awaitable[None]]:
    async def receive(worker: Worker) -> None:
        async with wire_client_of(worker) as client:
            path = home.replace("/", "/Subscriptions/")
            receiver, dead = await client.receiver(path), await client.receiver(f"{path}/$DeadLetterQueue")
            while await worker.proceed_async():
                await receive_and_settle(worker, receiver, home, actions)
                if DEAD in actions and worker.rng.random() < 0.1:
                    await receive_and_settle(worker, dead, home, (GONE, GONE, ACTIVE), is_dead=True)

    return receive


# -- topics, subscriptions, rules


async def publish_news(worker: Worker) -> None:
    async with client_of(worker) as client, client.get_topic_sender("news") as sender:
        while await worker.proceed_async():
            await asyncio.sleep(_PAUSE_S)
            colour = worker.rng.choice(COLOURS)
            homes = ["news/all", "news/red"] if colour == "red" else ["news/all"]
            ids = [worker.new_id() for _ in range(worker.rng.choice((1, 1, 3)))]
            messages = [message_of(id, application_properties={"colour": colour}) for id in ids]
            if worker.rng.random() < 0.8:
                with putting(worker, *ids, homes=homes):
                    await sender.send_messages(messages)
                continue
            due = time.time() + worker.rng.choice((0.3, 1.5))
            with putting(worker, *ids, homes=homes, due=due, elsewhere=True):
                numbers = await sender.schedule_messages(messages, moment(due))
            if worker.rng.random() < 0.5:
                await cancel(worker, sender, homes, ids[0], numbers[0])


Step = tuple[Key, Any]


def certain(worker: Worker, steps: list[Step], call: Callable[[], Any], *already: type[Exception]) -> bool:
    """Until the outcome is known. `already`: says of a repeated call that an earlier one was carried out."""
    is_first = True
    while worker.proceed():
        tickets = [worker.history.write(key, value) for key, value in steps]
        outcome = UNKNOWN
        try:
            call()
            outcome = CONFIRMED
        except already:
            assert not is_first, f"{steps}: the broker says that this was so before it was asked for"
            outcome = CONFIRMED
        except Exception as error:
            worker.note(error)
            time.sleep(_OUTAGE_S)
        finally:
            for ticket in tickets:
                worker.history.written(ticket, outcome)
        is_first = False
        if outcome == CONFIRMED:
            worker.successes += 1
            return True
    return False


def administer(worker: Worker, call: Callable[[ServiceBusAdministrationClient], Any]) -> Callable[[], Any]:
    def run() -> None:
        with admin_client(worker.connection_string, worker.load.ca_file) as admin:
            call(admin)

    return run


class Shift:
    """Publishes, and between two publications changes the rules of one subscription and the being of another."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._has_guest = False
        self._versions = itertools.count(1)

    def __call__(self, worker: Worker) -> None:
        with (
            sync_client_of(worker) as client,
            client.get_topic_sender("shift") as sender,
        ):
            while worker.proceed():
                self._publish(worker, sender)
                chance = worker.rng.random()
                if chance < 0.15:
                    self._change_rule(worker)
                elif chance < 0.25:
                    self._change_guest(worker)

    def _publish(self, worker: Worker, sender: Any) -> None:
        time.sleep(_PAUSE_S)
        colour, id = worker.rng.choice(COLOURS), worker.new_id()
        homes = ["shift/live"] if colour in self._rules.values() else []
        with putting(worker, id, homes=[*homes, *["shift/guest"] * self._has_guest]):
            sender.send_messages(message_of(id, application_properties={"colour": colour}))

    def _change_rule(self, worker: Worker) -> None:
        name, colour = worker.rng.choice(("one", "two")), worker.rng.choice(COLOURS)
        key = ("rule", "shift/live", name)
        if name not in self._rules:
            create = administer(
                worker, lambda admin: admin.create_rule("shift", "live", name, filter=colour_rule(colour))
            )
            if certain(worker, [(key, f"colour {colour}")], create, ResourceExistsError):
                self._rules[name] = colour
        elif worker.rng.random() < 0.5:
            delete = administer(worker, lambda admin: admin.delete_rule("shift", "live", name))
            if certain(worker, [(key, None)], delete, ResourceNotFoundError):
                del self._rules[name]
        else:

            def update(admin: ServiceBusAdministrationClient) -> None:
                rule = admin.get_rule("shift", "live", name)
                rule.filter = colour_rule(colour)
                admin.update_rule("shift", "live", rule)

            if certain(worker, [(key, f"colour {colour}")], administer(worker, update)):
                self._rules[name] = colour

    def _change_guest(self, worker: Worker) -> None:
        key, rule = ("subscription", "shift/guest"), ("rule", "shift/guest", "$Default")
        version = f"v{next(self._versions)}"
        if not self._has_guest:
            create = administer(
                worker, lambda admin: admin.create_subscription("shift", "guest", user_metadata=version)
            )
            self._has_guest = certain(worker, [(key, version), (rule, "true")], create, ResourceExistsError)
        elif worker.rng.random() < 0.6:
            worker.history.drop("shift/guest")
            delete = administer(worker, lambda admin: admin.delete_subscription("shift", "guest"))
            if certain(worker, [(key, None), (rule, None)], delete, ResourceNotFoundError):
                worker.history.dropped("shift/guest")
                self._has_guest = False
        else:

            def update(admin: ServiceBusAdministrationClient) -> None:
                found = admin.get_subscription("shift", "guest")
                found.user_metadata = version
                admin.update_subscription("shift", found)

            certain(worker, [(key, version)], administer(worker, update))


def come_and_go(worker: Worker) -> None:
    """A queue and a topic with a subscription: created, filled, updated, deleted, and created again."""
    for number in itertools.count(1):
        for step in _life_of(worker, f"life {number}"):
            if not step():
                return


def _life_of(worker: Worker, version: str) -> Iterator[Callable[[], bool]]:
    queue, topic, home = ("queue", "changing"), ("topic", "passing"), ("subscription", "passing/s")
    rule = ("rule", "passing/s", "$Default")

    def step(
        steps: list[Step], call: Callable[[ServiceBusAdministrationClient], Any], *already: type[Exception]
    ) -> Any:
        return lambda: certain(worker, steps, administer(worker, call), *already)

    def update_queue(admin: ServiceBusAdministrationClient) -> None:
        found = admin.get_queue("changing")
        found.user_metadata = f"{version} again"
        admin.update_queue(found)

    def update_topic(admin: ServiceBusAdministrationClient) -> None:
        found = admin.get_topic("passing")
        found.user_metadata = f"{version} again"
        admin.update_topic(found)

    yield step([(queue, version)], lambda a: a.create_queue("changing", user_metadata=version), ResourceExistsError)
    yield step([(topic, version)], lambda a: a.create_topic("passing", user_metadata=version), ResourceExistsError)
    yield step(
        [(home, version), (rule, "true")],
        lambda a: a.create_subscription("passing", "s", user_metadata=version), ResourceExistsError,
    )  # fmt: skip
    yield lambda: _fill(worker)
    yield step([(queue, f"{version} again")], update_queue)
    yield step([(topic, f"{version} again")], update_topic)
    for name in ("changing", "passing/s"):
        worker.history.drop(name)
    yield step([(queue, None)], lambda a: a.delete_queue("changing"), ResourceNotFoundError)
    worker.history.dropped("changing")
    yield step(
        [(topic, None), (home, None), (rule, None)], lambda a: a.delete_topic("passing"), ResourceNotFoundError
    )  # fmt: skip
    worker.history.dropped("passing/s")


def _fill(worker: Worker) -> bool:
    try:
        with sync_client_of(worker) as client:
            for path, home, get in (
                ("changing", "changing", client.get_queue_sender), ("passing", "passing/s", client.get_topic_sender),
            ):  # fmt: skip
                ids = [worker.new_id() for _ in range(3)]
                with get(path) as sender, putting(worker, *ids, homes=[home]):
                    sender.send_messages([message_of(id) for id in ids])
    except Exception as error:
        worker.note(error)
    return not worker.load.is_over


def feature_workers() -> tuple[dict[str, Callable[[Worker], None]], dict[str, Callable[[Worker], Any]]]:
    """Sync ones and async ones; what they remember is theirs."""
    return {
        "session-receive": ReceiveSessions(),
        "once-send": SendOnce("once", ["once"]),
        "copies-send": SendOnce("copies", ["copies/a", "copies/b"]),
        "shift": Shift(),
        "lives": come_and_go,
    }, {
        "session-send": send_sessions,
        "schedule": Schedule(),
        "defer": Defer(),
        "once-receive": receive_at("once", GONE, GONE, GONE, ACTIVE),
        "copies-a": receive_at("copies/a", GONE),
        "copies-b": receive_by_wire("copies/b", GONE, GONE, DEAD),
        "news-send": publish_news,
        "news-all": receive_at("news/all", GONE, GONE, ACTIVE),
        "news-red": receive_by_wire("news/red", GONE, ACTIVE, DEAD),
        "shift-live": receive_by_wire("shift/live", *[GONE] * 15, DEFERRED),
    }


#: So small that what lives long (schedules, deferred, duplicates, session state) is moved many times in a run.
TINY_SEGMENTS: Final = {"segment_bytes": 24 << 10, "reserve_bytes": 8 << 10, "allocate_bytes": 8 << 10}
FEATURES: Final = Proof(
    FeatureHistory, FeatureChecker, create_features, feature_workers, look, (0.3, 3.0), TINY_SEGMENTS
)
