"""Killed with -9 under load, again and again: nothing that was confirmed is lost, doubled, changed or raised again.

And the proof of the proof: a checker that is shown a broken broker says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from pairbus.broker.format import records
from pairbus.journal import Record

from .broker_process import BrokerProcess, wait_until
from .crash_check import (
    ABANDON,
    COMPLETE,
    CONFIRMED,
    DEAD_LETTER,
    EXHAUSTED,
    LOCKED,
    REFUSED,
    TAKEN,
    UNKNOWN,
    Audit,
    Checker,
    History,
    Sighting,
)
from .crash_drive import UNTIDY_SDK, Drive, new_seed, rewrite_journal
from .crash_load import Load, admin_client, create_queues, look, new_checker

pytestmark = UNTIDY_SDK


def test_killed_under_load(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", new_seed())
    drive.run(kills=8, confirmed=200, settled=100)
    assert drive.totals.kills >= 8


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_thirty_times_under_load(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", new_seed())
    drive.run(kills=40, audits=15, confirmed=2000)
    assert drive.totals.kills >= 40


# -- the checker, on histories told by hand


class Story:
    """A history and what is in the broker at its end."""

    def __init__(self) -> None:
        self.history = History()
        self.there: list[Sighting] = []
        self.queues = {"orders"}
        self.checker = Checker(lossy={"events": 1}, max_delivery_count={"orders": 3}, description="why")
        self.history.queue("orders", "create", CONFIRMED)

    def send(self, *ids: str, outcome: str = CONFIRMED, home: str = "orders", ping: bool = False) -> None:
        self.history.attempt(home, ids, ping=ping)
        for id in ids:
            self.history.sent(id, outcome)

    def see(self, id: str, sequence: int, count: int = 0, how: str = LOCKED, **fields: object) -> Sighting:
        sighting = sighted(id, sequence, count, **fields)
        self.history.seen(sighting, how)
        return sighting

    def settle(self, sighting: Sighting, action: str, outcome: str = CONFIRMED, reason: str | None = None) -> None:
        self.history.settled(self.history.settle(sighting, action, reason), outcome)

    def audit(self, *there: Sighting) -> None:
        self.history.killed()
        self.history.audited(Audit(frozenset(self.queues), there))

    def problems(self) -> list[str]:
        self.checker.fold(self.history.take())
        return self.checker.problems


def sighted(id: str, sequence: int, count: int = 0, **fields: object) -> Sighting:
    return Sighting(**{  # type: ignore[arg-type]
        "queue": "orders", "dead": False, "id": id, "sequence": sequence, "count": count, "intact": True, **fields,
    })  # fmt: skip


def dead(id: str, sequence: int, reason: str, count: int = 0, description: str = "why") -> Sighting:
    return sighted(id, sequence, count, dead=True, reason=reason, description=description)


def lost(story: Story) -> None:
    story.send("a")
    story.audit()


def lost_later(story: Story) -> None:
    story.send("a")
    story.audit(sighted("a", 1))
    story.audit()


def lost_though_completion_was_refused(story: Story) -> None:
    story.send("a")
    story.settle(story.see("a", 1), COMPLETE, REFUSED)
    story.audit()


def lost_though_only_abandoned(story: Story) -> None:
    story.send("a")
    story.settle(story.see("a", 1), ABANDON, UNKNOWN)
    story.audit()


def seen_and_then_lost(story: Story) -> None:
    story.send("a", outcome=UNKNOWN)
    story.see("a", 1)
    story.audit()


def doubled(story: Story) -> None:
    story.send("a")
    story.audit(sighted("a", 1), sighted("a", 2))


def doubled_in_both_places(story: Story) -> None:
    story.send("a")
    story.settle(story.see("a", 1), DEAD_LETTER, UNKNOWN, "r")
    story.audit(sighted("a", 1), dead("a", 1, "r"))


def refused_and_there(story: Story) -> None:
    story.send("a", outcome=REFUSED)
    story.audit(sighted("a", 1))


def refused_and_delivered(story: Story) -> None:
    story.send("a", outcome=REFUSED)
    story.see("a", 1)


def a_ping_stored(story: Story) -> None:
    story.send("a", ping=True)
    story.audit(sighted("a", 1))


def came_back(story: Story) -> None:
    story.send("a")
    story.settle(story.see("a", 1), COMPLETE)
    story.audit(sighted("a", 1))


def came_back_late(story: Story) -> None:
    story.send("a")
    story.settle(story.see("a", 1), COMPLETE)
    story.audit()
    story.audit(sighted("a", 1))


def taken_twice(story: Story) -> None:
    story.send("a")
    story.see("a", 1, how=TAKEN)
    story.see("a", 1, how=TAKEN)


def half_a_batch(story: Story) -> None:
    story.send("a", "b", "c", outcome=UNKNOWN)
    story.audit(sighted("a", 1), sighted("c", 3))


def number_changed(story: Story) -> None:
    story.send("a")
    story.see("a", 1)
    story.audit(sighted("a", 2))


def number_reused(story: Story) -> None:
    story.send("a")
    story.settle(story.see("a", 1), COMPLETE)
    story.audit()
    story.send("b")
    story.audit(sighted("b", 1))


def number_shared(story: Story) -> None:
    story.send("a", "b")
    story.audit(sighted("a", 1), sighted("b", 1))


def numbers_went_back(story: Story) -> None:
    story.send("a")
    story.send("b")
    story.audit(sighted("a", 7), sighted("b", 6))


def count_fell(story: Story) -> None:
    story.send("a")
    story.see("a", 1, 1)
    story.audit(sighted("a", 1, 0))


def abandon_forgotten(story: Story) -> None:
    story.send("a")
    story.settle(story.see("a", 1, 0), ABANDON)
    story.audit(sighted("a", 1, 0))


def dead_letter_undone(story: Story) -> None:
    story.send("a")
    story.settle(story.see("a", 1), DEAD_LETTER, reason="r")
    story.audit(sighted("a", 1))


def reason_lost(story: Story) -> None:
    story.send("a")
    story.settle(story.see("a", 1), DEAD_LETTER, reason="r")
    story.audit(dead("a", 1, "q"))


def description_lost(story: Story) -> None:
    story.send("a")
    story.settle(story.see("a", 1), DEAD_LETTER, reason="r")
    story.audit(dead("a", 1, "r", description=""))


def dead_for_no_reason(story: Story) -> None:
    story.send("a")
    story.audit(dead("a", 1, "r"))


def exhausted_too_early(story: Story) -> None:
    story.send("a")
    story.audit(dead("a", 1, EXHAUSTED, count=2))


def body_changed(story: Story) -> None:
    story.send("a")
    story.audit(sighted("a", 1, intact=False))


def from_nowhere(story: Story) -> None:
    story.audit(sighted("a", 1))


def in_the_wrong_queue(story: Story) -> None:
    story.queues.add("other")
    story.send("a")
    story.audit(sighted("a", 1, queue="other"))


def queue_lost(story: Story) -> None:
    story.queues.clear()
    story.audit()


def queue_came_back(story: Story) -> None:
    story.history.queue("temp#1", "create", CONFIRMED)
    story.history.queue("temp#1", "delete", CONFIRMED)
    story.queues.add("temp")
    story.audit()


def message_of_a_deleted_queue(story: Story) -> None:
    story.queues.add("temp")
    story.history.queue("temp#1", "create", CONFIRMED)
    story.send("a", home="temp#1")
    story.history.queue("temp#1", "delete", CONFIRMED)
    story.history.queue("temp#2", "create", CONFIRMED)
    story.audit(sighted("a", 1, queue="temp"))


def too_many_vanished(story: Story) -> None:
    story.send("a", "b", home="events")
    story.audit()


BROKEN: list[tuple[Callable[[Story], None], str]] = [
    (lost, "a: it was confirmed, not yet seen in orders, sequence number unknown, and is lost"),
    (lost_later, "a: it was confirmed, seen in orders, sequence number 1, and is lost"),
    (lost_though_completion_was_refused, "is lost"),
    (lost_though_only_abandoned, "is lost"),
    (seen_and_then_lost, "it was unknown, seen in orders, sequence number 1, and is lost"),
    (doubled, "a: 2 copies"),
    (doubled_in_both_places, "a: 2 copies"),
    (refused_and_there, "it was refused"),
    (refused_and_delivered, "it was refused"),
    (a_ping_stored, "a ping was stored"),
    (came_back, "it came back after it was settled"),
    (came_back_late, "it was never sent, or was gone for good"),
    (taken_twice, "it came back after it was settled"),
    (half_a_batch, "only 2 of 3 are stored"),
    (number_changed, "sequence number 1 became 2"),
    (number_reused, "b: sequence number 1, but 1 was given out in orders before it was sent"),
    (number_shared, "sequence number 1 is of a and of b"),
    (numbers_went_back, "b: sequence number 6, but 7 was given out in orders before it was sent"),
    (count_fell, "delivery count 1 fell to 0"),
    (abandon_forgotten, "delivery count 1 fell to 0"),
    (dead_letter_undone, "it had been dead-lettered"),
    (reason_lost, "reason 'r' became 'q'"),
    (description_lost, "description ''"),
    (dead_for_no_reason, "reason 'r'; the load gave []"),
    (exhausted_too_early, "exhausted after 2 deliveries of 3"),
    (body_changed, "its body is not what was sent"),
    (from_nowhere, "it was never sent"),
    (in_the_wrong_queue, "it was sent to orders"),
    (queue_lost, "the queue orders: after a confirmed create it is not there"),
    (queue_came_back, "the queue temp: after a confirmed delete it is there"),
    (message_of_a_deleted_queue, "temp#1 was deleted with it"),
    (too_many_vanished, "2 messages of events vanished"),
]


@pytest.mark.parametrize(("tell", "problem"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_the_checker_sees_what_is_wrong(tell: Callable[[Story], None], problem: str) -> None:
    story = Story()
    tell(story)
    assert any(problem in found for found in story.problems()), story.problems()


def test_the_checker_is_content_with_what_is_right() -> None:
    story = Story()
    story.send("a", "b")
    story.settle(story.see("a", 1), COMPLETE)
    b = story.see("b", 2)
    story.settle(b, ABANDON)
    story.send("maybe", outcome=UNKNOWN)
    story.send("not", outcome=UNKNOWN)
    story.send("no", outcome=REFUSED)
    story.send("ping", ping=True)
    story.send("vanished", home="events")
    story.audit(sighted("b", 2, 1), sighted("maybe", 5))
    story.settle(story.see("b", 2, 1), DEAD_LETTER, UNKNOWN, "r")
    story.settle(story.see("maybe", 5), COMPLETE, UNKNOWN)
    story.send("exhausted")
    for count in range(3):
        story.settle(story.see("exhausted", 6, count), ABANDON)
    story.audit(dead("b", 2, "r", 1), dead("exhausted", 6, EXHAUSTED, 3))
    story.settle(story.see("b", 2, 1, dead=True, reason="r", description="why"), COMPLETE)
    story.audit(dead("exhausted", 6, EXHAUSTED, 3))
    assert story.problems() == []
    assert story.checker.live == 1
    assert (story.checker.totals.vanished, story.checker.totals.unknown_stored) == (1, 1)


# -- the checker, on a real broker whose journal has been tampered with


class Tampering:
    """A load's history, the audit after it, and the journal it left."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.history = History()
        with BrokerProcess(data) as broker:
            broker.start()
            create_queues(broker.connection_string, broker.ca_file, self.history)
            load = Load(broker.connection_string, broker.ca_file, 1, self.history)
            load.start()
            try:
                load.wait_resumed()
                assert wait_until(self._has_buried)
            finally:
                load.stop()
            with admin_client(broker.connection_string, broker.ca_file) as admin:
                admin.create_queue("gone")
                admin.delete_queue("gone")
            self.history.queue("gone", "delete", CONFIRMED)
            broker.kill()
        self.events = self.history.take()

    def _has_buried(self) -> bool:
        settled = (event for event in list(self.history.events) if event[0] == "settle")
        return any(event[2].queue == "bulk" and event[3] == DEAD_LETTER for event in settled)

    def look_again(self, data: Path, tamper: Callable[[list[Record]], list[tuple[int, bytes]]]) -> list[str]:
        """What the checker says of a broker that starts with another journal."""
        rewrite_journal(self.data, data, tamper)
        with BrokerProcess(data) as broker:
            broker.start()
            audit = asyncio.run(look(broker.connection_string, broker.ca_file))
        checker = new_checker()
        checker.fold([*self.events, ("audited", audit)])
        return checker.problems


@pytest.fixture(scope="module")
def tampering(tmp_path_factory: pytest.TempPathFactory) -> Tampering:
    return Tampering(tmp_path_factory.mktemp("tampering") / "data")


def test_an_honest_journal_has_no_problems(tampering: Tampering, tmp_path: Path) -> None:
    assert tampering.look_again(tmp_path / "data", lambda all: [(r.kind, r.payload) for r in all]) == []


def without(says: Callable[[Record, str], bool]) -> Callable[[list[Record]], list[tuple[int, bytes]]]:
    """Leaves out the last record of which that is true; it is told the record and the name of its queue."""

    def tamper(history: list[Record]) -> list[tuple[int, bytes]]:
        names: dict[int, str] = {}
        last = -1
        for place, record in enumerate(history):
            if record.kind == records.QUEUE:
                id, _, _, description = records.read_queue(record.payload)
                names[id] = description["name"]
            elif record.kind != records.META and says(record, names[records.read_id(record.payload)]):
                last = place
        assert last >= 0
        return [(record.kind, record.payload) for place, record in enumerate(history) if place != last]

    return tamper


def buries(record: Record, name: str) -> bool:
    """Nobody receives the dead letters of `bulk`."""
    if record.kind != records.UPDATE or name != "bulk":
        return False
    return any(update.place == records.DEAD for update in records.read_updates(record.payload)[1])


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        (lambda record, name: record.kind == records.ENQUEUE and name == "archive", "is lost"),
        (lambda record, name: record.kind == records.REMOVE and name == "bulk", "it came back after it was settled"),
        (lambda record, name: record.kind == records.DELETED and name == "gone", "after a confirmed delete"),
        (buries, "it had been dead-lettered"),
    ],
    ids=["enqueue", "remove", "deleted", "dead-letter"],
)
def test_one_record_left_out_is_noticed(
    tampering: Tampering, tmp_path: Path, says: Callable[[Record, str], bool], problem: str
) -> None:
    found = tampering.look_again(tmp_path / "data", without(says))
    assert any(problem in each for each in found), found
