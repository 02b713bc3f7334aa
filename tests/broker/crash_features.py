"""The load on all that queues and topics can do. In each home one worker does all the receiving.

home               put there by                              received by
sessions           SDK async, one at a time                  SDK sync: next session, its state, deferred in it
due                SDK async: scheduled, cancelled           the same worker, by wire
deferred           wire                                      the same worker: SDK async: deferred, by number;
                                                             by wire: its dead letters
once, copies/a b   SDK sync: every id until it is            SDK async; b: wire
                   confirmed, and old ones again
news/all red none  SDK async: at once, scheduled, cancelled  SDK async; red: wire; `none` gets nothing
arrived            SDK async, at `entry`, which forwards to  wire: some are dead-lettered, which forwards them to
                   a topic, whose subscription forwards      `complaints`, where the same worker receives them
shift/live guest   SDK sync, between changes of the rules    wire; `guest` comes and goes
changing, passing  wire sync                                 nobody: they are created, updated and deleted
"""

from __future__ import annotations

import datetime
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiver
from azure.servicebus.exceptions import MessageNotFoundError, OperationTimeoutError
from azure.servicebus.management import CorrelationRuleFilter, FalseRuleFilter, ServiceBusAdministrationClient

from pairbus.wire import Receiver
from tests.simulation.checker import Checker
from tests.simulation.history import ABANDON, ACTIVE, CONFIRMED, DEAD, DEFERRED, GONE, REFUSED, UNKNOWN, History

from .crash_load import (
    OUTAGE_S,
    SESSIONS,
    Key,
    Proof,
    Worker,
    Workers,
    admin_client,
    async_sdk_client,
    list_registers,
    look_sdk,
    look_wire,
    path_of,
    payload_of,
    sdk_client,
    sdk_message,
    sdk_receiver,
    settle_by_sdk,
    settle_by_wire,
    sync_wire_client,
    text_of,
    wire_client,
)

COLOURS: Final = ("red", "green", "blue")
LOCK: Final = datetime.timedelta(seconds=10)
WINDOW: Final = datetime.timedelta(minutes=30)
_PAUSE_S: Final = 0.02


def colour_rule(colour: str) -> CorrelationRuleFilter:
    return CorrelationRuleFilter(properties={"colour": colour})


def create_features(
    connection_string: str, ca_file: str, history: History, *, enable_partitioning: bool = False
) -> None:
    """`enable_partitioning`: of all but the queue and topic that detect duplicates, which would take no batches."""
    parted: dict[str, Any] = {"enable_partitioning": enable_partitioning}
    common: dict[str, Any] = {"lock_duration": LOCK, "max_delivery_count": 2000}
    plain = {**common, **parted}
    twice: dict[str, Any] = {
        "requires_duplicate_detection": True, "duplicate_detection_history_time_window": WINDOW,
    }  # fmt: skip
    with admin_client(connection_string, ca_file) as admin:
        admin.create_queue("sessions", requires_session=True, **plain)
        admin.create_queue("due", **plain)
        admin.create_queue("deferred", **plain)
        admin.create_queue("once", **twice, **common)
        admin.create_queue("complaints", **plain)
        admin.create_queue("arrived", forward_dead_lettered_messages_to="complaints", **plain)
        admin.create_topic("hub", **parted)
        admin.create_subscription("hub", "end", forward_to="arrived", **common)
        admin.create_queue("entry", forward_to="hub", **plain)
        admin.create_topic("copies", **twice)
        admin.create_topic("news", **parted)
        admin.create_topic("shift", **parted)
        for home in ("copies/a", "copies/b", "news/all", "news/red", "news/none", "shift/live"):
            admin.create_subscription(*home.split("/"), **common)
        for topic, subscription in (("news", "red"), ("news", "none"), ("shift", "live")):
            admin.delete_rule(topic, subscription, "$Default")
        admin.create_rule("news", "red", "colour", filter=colour_rule("red"))
        admin.create_rule("news", "none", "never", filter=FalseRuleFilter())
        for key, value in list_registers(admin).items():
            history.written(history.write(key, value), CONFIRMED)


# -- receivers


def receive_at(home: str, *actions: str, **options: Any) -> Callable[[Worker], Awaitable[None]]:
    state = DEAD if "sub_queue" in options else ACTIVE

    async def receive(worker: Worker) -> None:
        async with async_sdk_client(worker) as client, sdk_receiver(client, home, **options) as receiver:
            while await worker.proceed_async():
                for message in await receiver.receive_messages(20, max_wait_time=0.2):
                    await settle_seen(worker, receiver, home, message, state, worker.rng.choice(actions))

    return receive


async def settle_seen(worker: Worker, receiver: Any, home: str, message: Any, state: str, to: str) -> None:
    with worker.settling(worker.saw(look_sdk(home, message, state)), to) as reason:
        await settle_by_sdk(receiver, message, to, reason)


def receive_by_wire(home: str, *actions: str) -> Callable[[Worker], Awaitable[None]]:
    async def receive(worker: Worker) -> None:
        async with wire_client(worker) as client:
            receiver, dead = await client.receiver(path_of(home)), await client.receiver(path_of(home, True))
            while await worker.proceed_async():
                await receive_and_settle(worker, receiver, home, actions)
                if DEAD in actions and worker.rng.random() < 0.1:
                    await receive_and_settle(worker, dead, home, (GONE, GONE, ABANDON), is_dead=True)

    return receive


async def receive_and_settle(
    worker: Worker, receiver: Receiver, home: str, actions: Sequence[str], *, is_dead: bool = False
) -> None:
    messages = await receiver.receive(20, 0.1)
    looks = [worker.saw(look_wire(home, message, DEAD if is_dead else ACTIVE)) for message in messages]
    for message, look in zip(messages, looks, strict=True):
        to = worker.rng.choice(actions)
        with worker.settling(look, to) as reason:
            await settle_by_wire(receiver, [message], to, reason)


# -- sessions


async def send_sessions(worker: Worker) -> None:
    async with async_sdk_client(worker) as client, client.get_queue_sender("sessions") as sender:
        while await worker.proceed_async(_PAUSE_S, ahead_of="sessions"):
            session, ids = worker.rng.choice(SESSIONS), worker.new_ids(worker.rng.choice((1, 1, 3)))
            with worker.sending(ids, "sessions", session=session):
                await sender.send_messages([sdk_message(id, session_id=session) for id in ids])


class ReceiveSessions:
    def __init__(self) -> None:
        self._deferred: dict[str, dict[str, int]] = {session: {} for session in SESSIONS}
        self._versions = itertools.count(1)

    def __call__(self, worker: Worker) -> None:
        with sdk_client(worker) as client:
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
        held = self._deferred[session]
        for is_last in (False, False, False, True):
            worker.history.read(("state", session), text_of(receiver.session.get_state()))
            messages = receiver.receive_messages(worker.rng.randint(1, 8), max_wait_time=0.1)
            looks = [worker.saw(look_sdk("sessions", message)) for message in messages]
            worker.history.delivered("sessions", session, [look.id for look in looks])
            for message, look in list(zip(messages, looks, strict=True))[: worker.rng.randint(0, 8) if is_last else 8]:
                to = worker.rng.choices((GONE, DEFERRED, DEAD), (90, 8, 2))[0]
                if to == DEFERRED:
                    held[look.id] = look.sequence
                with worker.settling(look, to) as reason:
                    settle_by_sdk(receiver, message, to, reason)
            if held and worker.rng.random() < 0.5:
                self._by_number(worker, receiver, worker.rng.choice(sorted(held)), held)
            if worker.rng.random() < 0.6:
                value = None if worker.rng.random() < 0.1 else f"{session} {next(self._versions)}"
                with worker.writing({("state", session): value}):
                    receiver.session.set_state(None if value is None else value.encode())

    def _by_number(self, worker: Worker, receiver: ServiceBusReceiver, id: str, held: dict[str, int]) -> None:
        try:
            (message,) = receiver.receive_deferred_messages(held.pop(id))
        except (MessageNotFoundError, ValueError):
            worker.history.missed("sessions", id)
            return
        with worker.settling(worker.saw(look_sdk("sessions", message, DEFERRED)), GONE):
            receiver.complete_message(message)


# -- schedules


class Schedule:
    """Puts messages into the future, cancels some of them, and receives those whose time has come."""

    def __init__(self) -> None:
        self._far: deque[tuple[str, int]] = deque()

    async def __call__(self, worker: Worker) -> None:
        async with (
            async_sdk_client(worker) as client,
            client.get_queue_sender("due") as sender,
            wire_client(worker) as wire,
        ):
            receiver = await wire.receiver("due")
            while await worker.proceed_async():
                await self._schedule(worker, sender)
                await receive_and_settle(worker, receiver, "due", (GONE, GONE, GONE, ABANDON))

    async def _schedule(self, worker: Worker, sender: Any) -> None:
        ids = worker.new_ids(worker.rng.randint(1, 3))
        due = time.time() + worker.rng.choice((0.05, 0.3, 1.0, 3.0, 3600.0))
        if worker.rng.random() < 0.3:
            with worker.sending(ids, "due", due=due):
                await sender.send_messages([sdk_message(id, scheduled_enqueue_time_utc=moment(due)) for id in ids])
            return
        known = await schedule(worker, sender, ids, "due", due=due)
        if due > time.time() + 100:
            self._far.extend(known)
            known = [self._far.popleft()] if len(self._far) > 20 else []
        for id, number in known:
            if worker.rng.random() < 0.5:
                await cancel(worker, sender, ["due"], id, number)


async def schedule(
    worker: Worker, sender: Any, ids: list[str], *homes: str, due: float, elsewhere: bool = False, **options: Any
) -> list[tuple[str, int]]:
    """Return ids and numbers."""
    messages = [sdk_message(id, **options) for id in ids]
    with worker.sending(ids, *homes, due=due, elsewhere=elsewhere):
        return list(zip(ids, await sender.schedule_messages(messages, moment(due)), strict=True))


async def cancel(worker: Worker, sender: Any, homes: list[str], id: str, number: int) -> None:
    tickets = [worker.history.settle(home, id, GONE, synced=True) for home in homes]
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
            worker.history.settled(ticket, outcome)


def moment(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, datetime.UTC)


# -- deferred and dead letters


class Defer:
    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    async def __call__(self, worker: Worker) -> None:
        async with (
            async_sdk_client(worker) as client,
            client.get_queue_receiver("deferred") as receiver,
            wire_client(worker) as wire,
        ):
            sender, dead = await wire.sender("deferred"), await wire.receiver("deferred/$DeadLetterQueue")
            while await worker.proceed_async():
                ids = worker.new_ids(worker.rng.randint(1, 4))
                with worker.sending(ids, "deferred"):
                    await sender.send_batch([payload_of(id) for id in ids])
                for message in await receiver.receive_messages(10, max_wait_time=0.1):
                    to = worker.rng.choice((DEFERRED, DEFERRED, DEFERRED, GONE, ABANDON, DEAD))
                    await self._settle(worker, receiver, message, ACTIVE, to)
                for id in worker.rng.sample(sorted(self._held), min(len(self._held), len(self._held) // 30 + 2)):
                    await self._by_number(worker, receiver, id)
                if worker.rng.random() < 0.3:
                    await receive_and_settle(worker, dead, "deferred", (GONE, ABANDON), is_dead=True)

    async def _by_number(self, worker: Worker, receiver: Any, id: str) -> None:
        try:
            (message,) = await receiver.receive_deferred_messages(self._held[id])
        except (MessageNotFoundError, ValueError):
            del self._held[id]
            worker.history.missed("deferred", id)
            return
        to = worker.rng.choice((GONE, GONE, GONE, ABANDON, DEFERRED, DEAD))
        await self._settle(worker, receiver, message, DEFERRED, to)

    async def _settle(self, worker: Worker, receiver: Any, message: Any, state: str, to: str) -> None:
        if to == DEFERRED:
            self._held[message.message_id] = message.sequence_number
        await settle_seen(worker, receiver, "deferred", message, state, to)
        if to in (GONE, DEAD):
            self._held.pop(message.message_id, None)


# -- duplicates


class SendOnce:
    """Every id again and again until it is confirmed, whatever happens to the broker; old ones now and then too."""

    def __init__(self, path: str, *homes: str) -> None:
        self._path = path
        self._homes = homes
        self._pending: list[str] = []
        self._old: deque[str] = deque(maxlen=300)

    def __call__(self, worker: Worker) -> None:
        with sdk_client(worker) as client:
            new_sender = client.get_topic_sender if "/" in self._homes[0] else client.get_queue_sender
            with new_sender(self._path) as sender:
                while worker.proceed(_PAUSE_S):
                    self._pending = self._pending or worker.new_ids(worker.rng.choice((1, 1, 3)))
                    again = [worker.rng.choice(self._old)] if self._old and worker.rng.random() < 0.4 else []
                    with worker.sending([*self._pending, *again], *self._homes):
                        sender.send_messages([sdk_message(id) for id in [*self._pending, *again]])
                    self._old.extend(self._pending)
                    self._pending = []


# -- forwarding


async def send_on_the_way(worker: Worker) -> None:
    async with async_sdk_client(worker) as client, client.get_queue_sender("entry") as sender:
        while await worker.proceed_async(_PAUSE_S, ahead_of="arrived"):
            ids = worker.new_ids(worker.rng.choice((1, 1, 5)))
            with worker.sending(ids, "arrived"):
                await sender.send_messages([sdk_message(id) for id in ids])


async def receive_forwarded(worker: Worker) -> None:
    async with wire_client(worker) as client:
        arrived, complaints = await client.receiver("arrived"), await client.receiver("complaints")
        while await worker.proceed_async():
            for message in await arrived.receive(20, 0.1):
                look = worker.saw(look_wire("arrived", message))
                if worker.rng.random() < 0.3:
                    # a dead letter is gone from here and comes there
                    with worker.sending([look.id], "complaints"), worker.settling(look, GONE):
                        await arrived.dead_letter([message], "forwarded")
                else:
                    to = worker.rng.choice((GONE, GONE, ABANDON))
                    with worker.settling(look, to) as reason:
                        await settle_by_wire(arrived, [message], to, reason)
            await receive_and_settle(worker, complaints, "complaints", (GONE, GONE, ABANDON))


# -- topics, subscriptions, rules


async def publish_news(worker: Worker) -> None:
    async with async_sdk_client(worker) as client, client.get_topic_sender("news") as sender:
        while await worker.proceed_async(_PAUSE_S):
            colour = worker.rng.choice(COLOURS)
            homes = ["news/all", "news/red"] if colour == "red" else ["news/all"]
            ids = worker.new_ids(worker.rng.choice((1, 1, 3)))
            options: dict[str, Any] = {"application_properties": {"colour": colour}}
            if worker.rng.random() < 0.8:
                with worker.sending(ids, *homes):
                    await sender.send_messages([sdk_message(id, **options) for id in ids])
                continue
            due = time.time() + worker.rng.choice((0.3, 1.5))
            known = await schedule(worker, sender, ids, *homes, due=due, elsewhere=True, **options)
            if worker.rng.random() < 0.5:
                await cancel(worker, sender, homes, *known[0])


Call = Callable[[ServiceBusAdministrationClient], Any]


def certain(worker: Worker, values: dict[Key, Any], call: Call, *already: type[Exception]) -> bool:
    """Until the outcome is known. `already`: says of a repeated call that an earlier one was carried out."""
    is_first = True
    while worker.proceed():
        try:
            with worker.writing(values), admin_client(worker.connection_string, worker.load.ca_file) as admin:
                try:
                    call(admin)
                except already:
                    assert not is_first, f"{values}: the broker says that this was so before it was asked for"
            return True
        except Exception as error:
            worker.note(error)
            worker.proceed(OUTAGE_S)
        is_first = False
    return False


def describe(kind: str, path: str, words: str) -> Call:
    """Update the description of an entity."""
    *parents, name = path.split("/")

    def update(admin: ServiceBusAdministrationClient) -> None:
        found = getattr(admin, f"get_{kind}")(*parents, name)
        found.user_metadata = words
        getattr(admin, f"update_{kind}")(*parents, found)

    return update


class Shift:
    """Publishes, and between two publications changes the rules of one subscription and the being of another."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._has_guest = False
        self._versions = itertools.count(1)

    def __call__(self, worker: Worker) -> None:
        with sdk_client(worker) as client, client.get_topic_sender("shift") as sender:
            while worker.proceed(_PAUSE_S):
                colour, ids = worker.rng.choice(COLOURS), worker.new_ids(1)
                homes = ["shift/live"] * (colour in self._rules.values()) + ["shift/guest"] * self._has_guest
                with worker.sending(ids, *homes):
                    sender.send_messages(sdk_message(ids[0], application_properties={"colour": colour}))
                chance = worker.rng.random()
                if chance < 0.15:
                    self._change_rule(worker, worker.rng.choice(("one", "two")), worker.rng.choice(COLOURS))
                elif chance < 0.25:
                    self._change_guest(worker, f"v{next(self._versions)}")

    def _change_rule(self, worker: Worker, name: str, colour: str) -> None:
        def create(admin: ServiceBusAdministrationClient) -> None:
            admin.create_rule("shift", "live", name, filter=colour_rule(colour))

        def update(admin: ServiceBusAdministrationClient) -> None:
            rule = admin.get_rule("shift", "live", name)
            rule.filter = colour_rule(colour)
            admin.update_rule("shift", "live", rule)

        key, is_there = ("rule", "shift/live", name), name in self._rules
        if is_there and worker.rng.random() < 0.5:
            if certain(worker, {key: None}, lambda a: a.delete_rule("shift", "live", name), ResourceNotFoundError):
                del self._rules[name]
            return
        call, already = (update, ()) if is_there else (create, (ResourceExistsError,))
        if certain(worker, {key: f"colour {colour}"}, call, *already):
            self._rules[name] = colour

    def _change_guest(self, worker: Worker, words: str) -> None:
        home = "shift/guest"
        key, rule = ("subscription", home), ("rule", home, "$Default")
        if not self._has_guest:
            self._has_guest = certain(
                worker, {key: words, rule: "true"},
                lambda a: a.create_subscription("shift", "guest", user_metadata=words), ResourceExistsError,
            )  # fmt: skip
        elif worker.rng.random() < 0.4:
            certain(worker, {key: words}, describe("subscription", home, words))
        else:
            self._has_guest = not delete(
                worker, {key: None, rule: None}, lambda a: a.delete_subscription("shift", "guest"), home
            )


def delete(worker: Worker, values: dict[Key, Any], call: Call, home: str) -> bool:
    def attempt(admin: ServiceBusAdministrationClient) -> None:
        worker.history.drop(home)  # each time: an audit between two attempts finds the messages, and knows no better
        call(admin)

    is_done = certain(worker, values, attempt, ResourceNotFoundError)
    if is_done:
        worker.history.dropped(home)
    return is_done


def come_and_go(worker: Worker) -> None:
    """A queue and a topic with a subscription: created, filled, updated, deleted, and created again."""
    while worker.proceed():
        _live_once(worker, *worker.new_ids(1))


def _live_once(worker: Worker, life: str) -> bool:
    queue, topic, home = ("queue", "changing"), ("topic", "passing"), ("subscription", "passing/s")
    rule, exists, later = ("rule", "passing/s", "$Default"), ResourceExistsError, f"{life} again"
    return (
        certain(worker, {queue: life}, lambda a: a.create_queue("changing", user_metadata=life), exists)
        and certain(worker, {topic: life}, lambda a: a.create_topic("passing", user_metadata=life), exists)
        and certain(worker, {home: life, rule: "true"},
                    lambda a: a.create_subscription("passing", "s", user_metadata=life), exists)
        and _fill(worker)
        and certain(worker, {queue: later}, describe("queue", "changing", later))
        and certain(worker, {topic: later}, describe("topic", "passing", later))
        and delete(worker, {queue: None}, lambda a: a.delete_queue("changing"), "changing")
        and delete(worker, {topic: None, home: None, rule: None}, lambda a: a.delete_topic("passing"), "passing/s")
    )  # fmt: skip


def _fill(worker: Worker) -> bool:
    try:
        with sync_wire_client(worker) as client:
            for path, home in (("changing", "changing"), ("passing", "passing/s")):
                ids = worker.new_ids(3)
                sender = client.sender(path)
                with worker.sending(ids, home):
                    sender.send_batch([payload_of(id) for id in ids])
    except Exception as error:
        worker.note(error)
    return not worker.load.is_over


def workers() -> Workers:
    """What they remember is theirs."""
    return {
        "session-receive": ReceiveSessions(),
        "once-send": SendOnce("once", "once"),
        "copies-send": SendOnce("copies", "copies/a", "copies/b"),
        "shift": Shift(),
        "lives": come_and_go,
    }, {
        "session-send": send_sessions,
        "schedule": Schedule(),
        "defer": Defer(),
        "once-receive": receive_at("once", GONE, GONE, GONE, ABANDON),
        "copies-a": receive_at("copies/a", GONE),
        "copies-b": receive_by_wire("copies/b", GONE, GONE, DEAD),
        "forward-send": send_on_the_way,
        "forward-receive": receive_forwarded,
        "news-send": publish_news,
        "news-all": receive_at("news/all", GONE, GONE, ABANDON),
        "news-red": receive_by_wire("news/red", GONE, ABANDON, DEAD),
        "shift-live": receive_by_wire("shift/live", *[GONE] * 15, DEFERRED),
    }


#: So small that what lives long (schedules, deferred, duplicates, session state) is moved many times in a run.
TINY_SEGMENTS: Final = {"segment_bytes": 24 << 10, "reserve_bytes": 8 << 10, "allocate_bytes": 8 << 10}
FEATURES: Final = Proof(Checker, create_features, workers, (0.3, 3.0), TINY_SEGMENTS)
PARTITIONED: Final = FEATURES._replace(prepare=partial(create_features, enable_partitioning=True))
