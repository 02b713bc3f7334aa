"""Killed with -9 while all that queues and topics can do is done to it: sessions and their state, schedules, deferred
messages, dead letters, duplicates, subscriptions, rules. And the proof of the proof, on histories told by hand.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.broker import NamespaceServer
from pairbus.broker.format import records
from pairbus.journal import Record
from pairbus.wire import WireClient

from .broker_process import BrokerProcess
from .crash_check import CONFIRMED, REFUSED, UNKNOWN
from .crash_drive import UNTIDY_SDK, Drive, new_seed, rewrite_journal
from .crash_feature_check import (
    ACTIVE,
    DEAD,
    DEFERRED,
    GONE,
    GRACE_S,
    SCHEDULED,
    FeatureChecker,
    FeatureHistory,
    Inventory,
    Look,
)
from .crash_feature_load import (
    FEATURES,
    cancel,
    client_of,
    colour_rule,
    create_features,
    look,
    look_at,
    look_sdk,
    message_of,
    moment,
    putting,
    settle,
    wire_client_of,
    without_overtaken,
)
from .crash_load import admin_client, payload_of

pytestmark = UNTIDY_SDK


def test_killed_while_everything_is_used(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", new_seed(), FEATURES)
    drive.run(kills=3, confirmed=50)
    assert drive.totals.kills >= 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_thirty_times_while_everything_is_used(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", new_seed(), FEATURES)
    drive.run(kills=30, audits=10, confirmed=1000, retried=100, by_number=10)
    assert drive.totals.kills >= 30


@pytest.mark.parametrize("is_doubled", [False, True])
async def test_a_message_that_falls_due_between_two_looks_is_no_second_copy(
    pairbus_namespace: NamespaceServer, pairbus_queue: Callable[..., str], is_doubled: bool
) -> None:
    queue = pairbus_queue()
    later = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(4_000_000_000_000)} if is_doubled else None
    async with WireClient.from_connection_string(pairbus_namespace.connection_string) as client:
        sender = await client.sender(queue)
        for annotations in (later, None):
            await sender.send(encode_message(None, annotations, Properties(message_id="m"), body=b"x"))
        looks = [look_at(queue, False, payload) for payload in await client.peek(queue, 1, 10)]
        first = looks[0]._replace(state=SCHEDULED, sequence=looks[0].sequence if is_doubled else 0)
        found = await without_overtaken(client, [first, looks[1]])
    assert found == ([first, looks[1]] if is_doubled else [looks[1]])


# -- the checker, on histories told by hand


class Story:
    def __init__(self) -> None:
        self.history = FeatureHistory()
        self.checker = FeatureChecker()
        self.now = 100.0

    def put(self, *ids: str, homes: tuple[str, ...] = ("orders",), outcome: str = CONFIRMED, **options: Any) -> None:
        for id in ids:
            self.history.put(id, homes, **options)
            self.history.put_done(id, outcome)

    def look(self, id: str, sequence: int, state: str = ACTIVE, **fields: Any) -> Look:
        return Look(**{"home": "orders", "id": id, "state": state, "sequence": sequence, "at": self.now, **fields})

    def see(self, id: str, sequence: int, state: str = ACTIVE, **fields: Any) -> None:
        self.history.seen(self.look(id, sequence, state, **fields))

    def change(
        self, id: str, to: str, outcome: str = CONFIRMED, reason: str | None = None, home: str = "orders"
    ) -> None:
        self.history.changed(self.history.change(home, id, to, reason), outcome)

    def write(self, value: Any, outcome: str = CONFIRMED) -> None:
        self.history.written(self.history.write(("state", "s"), value), outcome)

    def audit(self, *looks: Look, **registers: Any) -> None:
        self.history.killed()
        self.history.audited(Inventory(self.now, looks, {("state", key): each for key, each in registers.items()}))

    def problems(self) -> list[str]:
        self.checker.fold(self.history.take())
        return self.checker.problems


def lost(story: Story) -> None:
    story.put("a")
    story.audit()


def lost_in_one_subscription(story: Story) -> None:
    story.put("a", homes=("news/one", "news/two"))
    story.see("a", 1, home="news/one")
    story.change("a", GONE, home="news/one")
    story.audit()


def in_a_subscription_that_did_not_want_it(story: Story) -> None:
    story.put("a", homes=("news/one",))
    story.audit(story.look("a", 1, home="news/one"), story.look("a", 1, home="news/two"))


def two_copies(story: Story) -> None:
    story.put("a", outcome=UNKNOWN)
    story.put("a")
    story.audit(story.look("a", 1), story.look("a", 2))


def second_copy_after_the_first(story: Story) -> None:
    story.put("a", outcome=UNKNOWN)
    story.see("a", 1)
    story.put("a")
    story.see("a", 2)


def second_copy_after_the_first_was_settled(story: Story) -> None:
    story.put("a", outcome=UNKNOWN)
    story.see("a", 1)
    story.change("a", GONE)
    story.put("a")
    story.audit(story.look("a", 2))


def refused_and_there(story: Story) -> None:
    story.put("a", outcome=REFUSED)
    story.audit(story.look("a", 1))


def before_its_time(story: Story) -> None:
    story.put("a", due=story.now + 5)
    story.see("a", 1)


def never_in_time(story: Story) -> None:
    story.put("a", due=story.now)
    story.now += GRACE_S + 1
    story.audit(story.look("a", 1, SCHEDULED))


def schedule_forgotten(story: Story) -> None:
    story.put("a", due=story.now + 5)
    story.audit()


def schedule_of_a_topic_forgotten(story: Story) -> None:
    story.put("a", due=story.now + 5, elsewhere=True)
    story.audit()
    story.now += 5 + GRACE_S + 1
    story.audit()


def appeared_twice(story: Story) -> None:
    story.put("a", due=story.now + 5)
    story.now += 6
    story.see("a", 2)
    story.change("a", GONE)
    story.see("a", 3)


def cancelled_and_there(story: Story) -> None:
    story.put("a", due=story.now + 5)
    story.change("a", GONE)
    story.audit(story.look("a", 1, SCHEDULED))


def cancelled_and_delivered(story: Story) -> None:
    story.put("a", due=story.now + 5)
    story.change("a", GONE)
    story.now += 6
    story.see("a", 2)


def cancelled_on_a_topic_and_delivered(story: Story) -> None:
    story.put("a", due=story.now + 5, elsewhere=True)
    story.change("a", GONE)
    story.audit()
    story.now += 6
    story.see("a", 1)


def cancelled_on_a_topic_after_all_and_delivered(story: Story) -> None:
    story.put("a", due=story.now + 5, elsewhere=True)
    story.change("a", GONE, UNKNOWN)
    story.now += 5 + GRACE_S + 1
    story.audit()
    story.see("a", 1)


def refused_by_a_topic_and_delivered(story: Story) -> None:
    story.put("a", due=story.now + 5, elsewhere=True, outcome=REFUSED)
    story.audit()
    story.now += 6
    story.see("a", 1)


def deferred_and_delivered(story: Story) -> None:
    story.put("a")
    story.see("a", 1)
    story.change("a", DEFERRED)
    story.see("a", 1)


def deferral_undone(story: Story) -> None:
    story.put("a")
    story.see("a", 1)
    story.change("a", DEFERRED)
    story.audit(story.look("a", 1))


def deferred_and_not_to_be_had(story: Story) -> None:
    story.put("a")
    story.see("a", 1)
    story.change("a", DEFERRED)
    story.history.missed("orders", "a", story.now)


def dead_letter_undone(story: Story) -> None:
    story.put("a")
    story.see("a", 1)
    story.change("a", DEAD, reason="r")
    story.audit(story.look("a", 1))


def reason_changed(story: Story) -> None:
    story.put("a")
    story.see("a", 1)
    story.change("a", DEAD, reason="r")
    story.audit(story.look("a", 1, DEAD, reason="q"))


def number_changed(story: Story) -> None:
    story.put("a")
    story.see("a", 1)
    story.audit(story.look("a", 2))


def body_changed(story: Story) -> None:
    story.put("a")
    story.see("a", 1, intact=False)


def in_another_session(story: Story) -> None:
    story.put("a", session="s")
    story.see("a", 1, session="t")


def session_overtaken(story: Story) -> None:
    story.put("a", "b", session="s")
    story.audit(story.look("a", 2, session="s"), story.look("b", 1, session="s"))


def session_out_of_order(story: Story) -> None:
    story.put("a", "b", session="s")
    story.history.delivered("orders", "s", ["b", "a"])


def session_skipped(story: Story) -> None:
    story.put("a", "b", session="s")
    story.history.delivered("orders", "s", ["b"])


def state_lost(story: Story) -> None:
    story.write("one")
    story.audit()


def state_went_back(story: Story) -> None:
    story.write("one")
    story.write("two")
    story.history.read(("state", "s"), "one")


def state_changed_its_mind(story: Story) -> None:
    story.write("one")
    story.write("two", UNKNOWN)
    story.audit(s="one")
    story.audit(s="two")


def state_from_nowhere(story: Story) -> None:
    story.audit(t="what")


def refused_and_written(story: Story) -> None:
    story.write("one")
    story.write("two", REFUSED)
    story.audit(s="two")


def back_with_a_new_subscription(story: Story) -> None:
    story.put("a", homes=("news/guest",))
    story.history.drop("news/guest")
    story.history.dropped("news/guest")
    story.audit(story.look("a", 1, home="news/guest"))


BROKEN: list[tuple[Callable[[Story], None], str]] = [
    (lost, "a in orders: it is lost; it can only be active"),
    (lost_in_one_subscription, "a in news/two: it is lost"),
    (in_a_subscription_that_did_not_want_it, "a in news/two: it was never sent there"),
    (two_copies, "a in orders: 2 copies: active or active"),
    (second_copy_after_the_first, "sequence number 1 became 2"),
    (second_copy_after_the_first_was_settled, "a in orders: it came back as active"),
    (refused_and_there, "it is active; it can only be absent"),
    (before_its_time, "it is active, 5.000 s before its time; it can only be scheduled"),
    (never_in_time, "it is still scheduled 3.0 s after its time"),
    (schedule_forgotten, "it is lost; it can only be scheduled"),
    (schedule_of_a_topic_forgotten, "it is lost; it can only be scheduled"),
    (appeared_twice, "it came back as active"),
    (cancelled_and_there, "it came back as scheduled"),
    (cancelled_and_delivered, "it came back as active"),
    (cancelled_on_a_topic_and_delivered, "it came back as active"),
    (cancelled_on_a_topic_after_all_and_delivered, "it came back as active"),
    (refused_by_a_topic_and_delivered, "it was never sent there"),
    (deferred_and_delivered, "it is active; it can only be deferred"),
    (deferral_undone, "it is active; it can only be deferred"),
    (deferred_and_not_to_be_had, "it is deferred and can't be received by its number"),
    (dead_letter_undone, "it is active; it can only be dead"),
    (reason_changed, "dead for 'q'; the load gave r"),
    (number_changed, "sequence number 1 became 2"),
    (body_changed, "its body is not what was sent"),
    (in_another_session, "it was of the session 's' and is of 't'"),
    (session_overtaken, "session s of orders: b overtook a"),
    (session_out_of_order, "session s of orders: out of order: b, a"),
    (session_skipped, "session s of orders: a was skipped before b"),
    (state_lost, "state s: it is None; it can only be one"),
    (state_went_back, "state s: it is 'one'; it can only be two"),
    (state_changed_its_mind, "state s: it is 'two'; it can only be one"),
    (state_from_nowhere, "state t: it is 'what'; it can only be None"),
    (refused_and_written, "state s: it is 'two'; it can only be one"),
    (back_with_a_new_subscription, "a in news/guest: it came back as active"),
]


@pytest.mark.parametrize(("tell", "problem"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_the_checker_sees_what_is_wrong(tell: Callable[[Story], None], problem: str) -> None:
    story = Story()
    tell(story)
    assert any(problem in found for found in story.problems()), story.problems()


def test_the_checker_is_content_with_what_is_right() -> None:
    story = Story()
    story.put("plain", homes=("news/one", "news/two"))
    story.see("plain", 1, home="news/one")
    story.change("plain", GONE, home="news/one")
    story.put("retried", outcome=UNKNOWN)
    story.see("retried", 2)
    story.change("retried", GONE)
    story.put("retried")
    story.put("not", outcome=UNKNOWN)
    story.put("later", due=story.now + 5)
    story.put("cancelled", due=story.now + 5)
    story.change("cancelled", GONE, UNKNOWN)
    story.put("too late", due=story.now - 1)
    story.change("too late", GONE, REFUSED)
    story.put("set aside")
    story.see("set aside", 3)
    story.change("set aside", DEFERRED, UNKNOWN)
    story.history.missed("orders", "set aside", story.now)
    story.put("bad")
    story.see("bad", 4)
    story.change("bad", DEAD, UNKNOWN, "r")
    story.put("first", "second", session="s")
    story.history.delivered("orders", "s", ["first", "second"])
    story.write("one")
    story.write("two", UNKNOWN)
    story.audit(
        story.look("plain", 1, home="news/two"), story.look("later", 5, SCHEDULED), story.look("too late", 9),
        story.look("set aside", 3, DEFERRED), story.look("bad", 4, DEAD, reason="r"),
        story.look("first", 7, session="s"), story.look("second", 8, session="s"), s="two",
    )  # fmt: skip
    story.put("not")
    story.see("set aside", 3, DEFERRED)
    story.now += 6
    story.see("later", 10)
    story.change("later", GONE)
    story.see("not", 11)
    assert story.problems() == []
    assert story.checker.live == 7
    assert (story.checker.totals.audits, story.checker.totals.retried) == (1, 1)


def test_what_waits_on_a_topic_may_show_although_an_audit_did_not_find_it() -> None:
    story = Story()
    story.put("cancelled", "kept", due=story.now + 5, elsewhere=True)
    story.put("sent", due=story.now + 5, elsewhere=True, outcome=UNKNOWN)
    story.change("cancelled", GONE, UNKNOWN)
    story.audit()
    story.now += 5
    for number, id in enumerate(("cancelled", "kept", "sent"), 1):
        story.see(id, number)
        story.change(id, GONE)
    assert story.problems() == []
    assert story.checker.live == 0


# -- the checker, on a real broker whose journal has been tampered with


class Teller:
    """As much of a worker as the load's parts need."""

    def __init__(self, history: FeatureHistory, connection_string: str) -> None:
        self.history = history
        self.connection_string = connection_string
        self.successes = 0
        self.rng = random.Random(1)

    async def proceed_async(self) -> bool:
        return True


async def send_by_wire(teller: Any, path: str, home: str, *ids: str) -> None:
    async with wire_client_of(teller) as client:
        sender = await client.sender(path)
        for id in ids:
            with putting(teller, id, homes=[home]):
                await sender.send(payload_of(id))


async def do_one_of_each(teller: Any, admin: Any) -> None:
    await send_by_wire(teller, "news", "news/all", "published")
    await send_by_wire(teller, "once", "once", "done once")
    await send_by_wire(teller, "deferred", "deferred", "set aside", "bad")
    async with client_of(teller) as client:
        for home, fates in (("once", [GONE]), ("deferred", [DEFERRED, DEAD])):
            async with client.get_queue_receiver(home) as receiver:
                for fate in fates:
                    (message,) = await receiver.receive_messages(1, max_wait_time=10)
                    teller.history.seen(look_sdk(home, message, ACTIVE))
                    await settle(teller, receiver, home, message, fate)
        async with client.get_queue_sender("due") as sender:
            numbers = {}
            for id in ("cancelled", "waiting"):
                with putting(teller, id, homes=["due"], due=time.time() + 3600):
                    (numbers[id],) = await sender.schedule_messages([message_of(id)], moment(time.time() + 3600))
            await cancel(teller, sender, ["due"], "cancelled", numbers["cancelled"])
        async with client.get_queue_receiver("sessions", session_id="s0") as receiver:
            ticket = teller.history.write(("state", "s0"), "where it was")
            await receiver.session.set_state(b"where it was")
            teller.history.written(ticket, CONFIRMED)
    admin.create_subscription("shift", "guest")
    teller.history.written(teller.history.write(("subscription", "shift/guest"), ""), CONFIRMED)
    admin.delete_subscription("shift", "guest")
    teller.history.written(teller.history.write(("subscription", "shift/guest"), None), CONFIRMED)
    admin.create_rule("shift", "live", "one", filter=colour_rule("red"))
    teller.history.written(teller.history.write(("rule", "shift/live", "one"), "colour red"), CONFIRMED)


class Tampering:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.history = FeatureHistory()
        with BrokerProcess(data) as broker:
            broker.start()
            create_features(broker.connection_string, broker.ca_file, self.history)
            with admin_client(broker.connection_string, broker.ca_file) as admin:
                asyncio.run(do_one_of_each(Teller(self.history, broker.connection_string), admin))
            broker.kill()

    def look_again(self, data: Path, tamper: Callable[[list[Record]], list[tuple[int, bytes]]]) -> list[str]:
        """What the checker says of a broker that starts with another journal, and is sent an old message again."""
        rewrite_journal(self.data, data, tamper)
        history = FeatureHistory()
        history.events = list(self.history.events)

        async def send_and_look(broker: BrokerProcess) -> None:
            teller: Any = Teller(history, broker.connection_string)
            await send_by_wire(teller, "once", "once", "done once")
            history.audited(await look(broker.connection_string, broker.ca_file))

        with BrokerProcess(data) as broker:
            broker.start()
            asyncio.run(send_and_look(broker))
        checker = FeatureChecker()
        checker.fold(history.take())
        return checker.problems


@pytest.fixture(scope="module")
def tampering(tmp_path_factory: pytest.TempPathFactory) -> Tampering:
    return Tampering(tmp_path_factory.mktemp("tampering") / "data")


def test_an_honest_journal_has_no_problems(tampering: Tampering, tmp_path: Path) -> None:
    assert tampering.look_again(tmp_path / "data", lambda all: [(each.kind, each.payload) for each in all]) == []


def updates_to(place: int) -> Callable[[Record, str], bool]:
    return lambda record, name: (
        record.kind == records.UPDATE
        and any(update.place == place for update in records.read_updates(record.payload)[1])
    )


LEFT_OUT: list[tuple[Callable[[Record, str], bool], str]] = [
    (lambda record, name: record.kind == records.PUBLISH, "published in news/all: it is lost"),
    (lambda record, name: record.kind == records.ENQUEUE and name == "once", "done once in once: it came back"),
    (updates_to(records.ACTIVE_DEFERRED), "set aside in deferred: it is active; it can only be deferred"),
    (updates_to(records.DEAD), "bad in deferred: it is active; it can only be dead"),
    (lambda record, name: record.kind == records.REMOVE and name == "due", "cancelled in due: it came back as"),
    (lambda record, name: record.kind == records.ENQUEUE and name == "due", "waiting in due: it is lost"),
    (lambda record, name: record.kind == records.SESSION, "state s0: it is None"),
    (lambda record, name: record.kind == records.DELETED, "subscription shift/guest: it is ''; it can only be None"),
    (lambda record, name: record.kind == records.SUBSCRIPTION, "rule shift/live one: it is None"),
]


def test_each_record_left_out_is_noticed(tampering: Tampering, tmp_path: Path) -> None:
    def leave_out(history: list[Record]) -> list[tuple[int, bytes]]:
        names: dict[int, str] = {}
        last: dict[int, int] = {}  # of LEFT_OUT: where the last record is of which that is true
        for place, record in enumerate(history):
            if record.kind == records.QUEUE:
                id, _, _, description = records.read_queue(record.payload)
                names[id] = description["name"]
            name = "" if record.kind == records.META else names.get(records.read_id(record.payload), "")
            last |= {number: place for number, (says, _) in enumerate(LEFT_OUT) if says(record, name)}
        assert len(set(last.values())) == len(LEFT_OUT)
        return [(record.kind, record.payload) for place, record in enumerate(history) if place not in last.values()]

    found = tampering.look_again(tmp_path / "data", leave_out)
    assert [problem for _, problem in LEFT_OUT if not any(problem in each for each in found)] == [], found
