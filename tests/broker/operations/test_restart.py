from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from pairbus.amqp import errors as conditions
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer
from pairbus.broker.model.transaction import Send, Transaction
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import finish
from pairbus.broker.storage.diagnostics import report
from pairbus.journal import JournalError

from ..namespace_rig import Rig, body_of, make, make_special, refused
from .test_transfer import TRANSFER, disable, through

DOWN = Refusal(conditions.INTERNAL_ERROR, "it is being restarted")


async def at_once(work: Callable[[], None]) -> None:
    work()


def restart(rig: Rig, *names: str, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
    """Restart queues and topics as the broker does, and return what differed."""
    namespace = rig.namespace
    found: list[str] = []

    async def run() -> None:
        owners = [owner for name in names if (owner := namespace.registry.find(name)) is not None]
        old = [part for owner in owners for part in owner.with_parts()]
        namespace.restart.suspend(old, DOWN)
        served: list[QueueEntity] = old
        try:
            async with namespace.restart.rebuilding(old, at_once) as rebuilt:
                document = json.loads(report({}, rebuilt.old, rebuilt.by_id))
                found.extend(each for entity in document["entities"] for each in entity["differences"])
                assert ("agree" in document["summary"]) is not bool(found)
                served = namespace.restart.replace(rebuilt, DOWN, rig.now)
        finally:
            namespace.restart.resume(served)

    task = rig.loop.create_task(run())
    meanwhile()
    while not task.done():
        rig.loop.run_until_complete(asyncio.sleep(0))
        rig.run()
    task.result()
    return found


def fill(rig: Rig) -> None:
    """All kinds of messages and entities, in several segments."""
    rig.create("orders", max_delivery_count=5, requires_duplicate_detection=True)
    rig.create("jobs", requires_session=True)
    rig.create("parts", enable_partitioning=True)
    rig.create("target")
    rig.create("source", forward_to="target")
    rig.create_topic("news")
    rig.subscribe("all")
    rig.subscribe("some")
    for number in range(12):
        assert rig.send_payloads(make(b"%d" % number * 40, message_id=f"m{number}")) is None
        assert rig.send_payloads(make(b"%d" % number, message_id=f"p{number}"), path="parts") is None
        assert rig.send_payloads(make(b"%d" % number * 30, message_id=f"n{number}"), path="news") is None
    assert rig.send_payloads(make(b"forwarded"), path="source") is None
    for outcome in (Complete(), Abandon({}), Defer({}), DeadLetter("because", "x" * 900, {})):
        assert rig.settle(rig.tokens(1), outcome) is None
    assert rig.settle(rig.tokens(3, "news/subscriptions/all"), Complete(), "news/subscriptions/all") is None
    rig.schedule(make_special(b"later", id="later", at=rig.now + 500))
    rig.schedule(make_special(b"soon", id="soon", at=rig.now + 1))
    rig.schedule(make_special(b"news later", at=rig.now + 500), path="news")
    rig.pass_time(2.0)
    for number in range(3):
        assert rig.send_payloads(make_special(b"%d" % number, session_id="s"), path="jobs") is None
    assert rig.set_state("s", b"state", "jobs") is None
    rig.tokens(2)  # locked


def seen(rig: Rig) -> dict[str, list[Any]]:
    """What can be peeked everywhere."""
    found: dict[str, list[Any]] = {}
    for entity in rig.namespace.store.by_id.values():
        for queue in (entity.active, entity.dead_letter):
            found[queue.path] = [
                (message.sequence_number, message.home, message.delivery_count, message.session_id, message.enqueued_at)
                for message in queue.scan(0)
            ] + finish(rig.namespace.receive.peek(queue, 0, 100, rig.now))
    return found


ALL = ("orders", "jobs", "parts", "target", "source", "news")


@pytest.mark.parametrize("names", [ALL, ("orders",), ("news",), ("source", "jobs"), ("target",), ("parts",)])
def test_p49_everything_is_as_it_was_on_disk_and_in_memory(bare: Rig, names: tuple[str, ...]) -> None:
    rig = bare
    fill(rig)
    before, bytes_before = seen(rig), rig.live_bytes()
    for _ in range(3):
        assert restart(rig, *names) == []
        assert seen(rig) == before
        assert rig.live_bytes() == bytes_before, "the journal knows what is of use"
    rig.compact_all()
    assert seen(rig) == before
    assert restart(rig, *names) == []
    assert seen(rig) == before
    with rig.reopened() as again:
        assert seen(again) == before
        assert again.namespace.sessions.get_state(again.queue("jobs"), "s", again.now) == b"state"


def test_p49_locks_are_free_and_what_was_seen_is_remembered(bare: Rig) -> None:
    rig = bare
    fill(rig)
    (token,) = rig.tokens(1)
    assert rig.queue("orders").locked == 3
    restart(rig, *ALL)
    assert rig.queue("orders").locked == 0
    refused(rig.settle([token], Complete()), conditions.MESSAGE_LOCK_LOST)
    count = len(rig.queue("orders"))
    assert rig.send_payloads(make(b"again", message_id="m5")) is None
    assert len(rig.queue("orders")) == count, "it is a duplicate"
    assert rig.send_payloads(make(b"new", message_id="new")) is None
    assert max(m.sequence_number for m in rig.queue("orders").scan(0)) > count


def test_p49_what_is_on_its_way_to_the_disk_is_not_lost(rig: Rig) -> None:
    rig.send(b"first", b"second", b"third")
    (token,) = rig.tokens(1)
    answers: list[Refusal | None] = []
    rig.namespace.enqueue.send(rig.queue(), [make(b"fourth")], rig.now, answers.append)
    rig.namespace.settlement.settle(rig.queue(), [token], Complete(), rig.now, answers.append)
    assert restart(rig, "orders") == []
    assert answers == [None, None]
    assert rig.received() == [b"second", b"third", b"fourth"]


def test_p49_a_removal_that_compaction_has_overtaken_is_repeated_before_the_restart(rig: Rig) -> None:
    while len(rig.journal.segments()) < 3:
        rig.send(b"x" * 100)
    count = len(rig.queue())
    taken: list[int] = []

    def meanwhile() -> None:
        rig.loop.run_until_complete(asyncio.sleep(0))  # compaction has made copies, and nothing is written yet
        rig.namespace.receive.take(rig.queue(), 3, rig.now, lambda messages, refusal: taken.append(len(messages)))

    rig.compact(meanwhile)
    assert restart(rig, "orders") == []
    assert (taken, len(rig.queue())) == ([3], count - 3)
    with rig.reopened() as again:
        assert len(again.queue()) == count - 3


def test_p49_a_compaction_that_runs_comes_to_its_end_first(rig: Rig) -> None:
    while len(rig.journal.segments()) < 3:
        rig.send(b"x" * 100)
    count = len(rig.queue())
    compaction = rig.loop.create_task(rig.journal.compact(rig.namespace.store.live_records))
    rig.loop.run_until_complete(asyncio.sleep(0))
    assert restart(rig, "orders") == []
    assert compaction.done() and compaction.result() == 1
    assert len(rig.received(count)) == count


def test_p49_everything_is_refused_meanwhile(bare: Rig) -> None:
    rig = bare
    fill(rig)
    topic = rig.namespace.topics["news"]
    old = [part for name in ("orders", "jobs", "news") for part in _parts(rig, name)]
    (token,) = rig.tokens(1)
    transaction = Transaction(b"t")
    ended: list[Refusal | None] = []
    operation = Send(rig.queue("orders"), [make(b"x")], ended.append)
    assert rig.namespace.transactions.enlist(transaction, operation, "orders", rig.now) is None
    rig.namespace.restart.suspend(old, DOWN)
    assert ended[0] is not None and DOWN.description in ended[0].description
    assert rig.send(b"x") == DOWN
    assert rig.send(b"x", path="news") == DOWN
    assert rig.settle([token], Complete()) == DOWN
    assert rig.acquire() == []
    assert rig.namespace.sessions.accept(rig.queue("jobs"), "s", rig.now) == DOWN
    assert rig.set_state("s", b"y", "jobs") == DOWN
    assert rig.cancel(1) == DOWN
    assert rig.do(rig.namespace.registry.delete_queue, "orders") == DOWN
    assert rig.do(rig.namespace.registry.update, rig.queue("orders").entity.description) == DOWN
    assert rig.do(rig.namespace.subscriptions.delete, "news", "all") == DOWN
    assert rig.queue("orders").entity.deleting
    rig.pass_time(1000.0)
    assert topic.scheduled_count == 1, "nothing becomes due"
    rig.namespace.restart.resume(old)
    rig.pass_time(0.0)
    assert topic.scheduled_count == 0
    assert rig.send(b"x") is None


def _parts(rig: Rig, name: str) -> list[QueueEntity]:
    owner = rig.namespace.registry.find(name)
    assert owner is not None
    return owner.with_parts()


def test_p49_what_is_forwarded_there_waits(bare: Rig) -> None:
    rig = bare
    rig.create("target")
    rig.create("source", forward_to="target")
    rig.namespace.restart.suspend(_parts(rig, "target"), DOWN)
    rig.send(b"x", path="source")
    rig.pass_time(0.0)
    assert (len(rig.queue("source")), len(rig.queue("target"))) == (1, 0)
    rig.namespace.restart.resume([rig.queue("target").entity])
    rig.pass_time(5.0)
    rig.pass_time(5.0)
    assert rig.received(path="target") == [b"x"]


def test_p49_a_subscription_that_is_being_created_or_deleted(bare: Rig) -> None:
    rig = bare
    fill(rig)
    answers: list[Refusal | None] = []
    rig.namespace.subscriptions.delete("news", "some", rig.now, answers.append)
    assert restart(rig, "news") == []
    assert answers == [None]
    assert set(rig.namespace.topics["news"].subscriptions) == {"all"}
    assert rig.send(b"later", path="news") is None
    with rig.reopened() as again:
        assert set(again.namespace.topics["news"].subscriptions) == {"all"}


def test_p49_a_journal_that_can_t_be_read_leaves_all_as_it_was(rig: Rig) -> None:
    rig.send(b"kept")
    rig.fail_calls("open", "pread")
    with pytest.raises(JournalError):
        restart(rig, "orders")
    rig.files.faults.clear()
    assert rig.received() == [b"kept"]
    assert restart(rig, "orders") == []
    assert rig.received() == [b"kept"]


def test_p49_bodies_are_read_from_the_disk_afterwards(rig: Rig) -> None:
    rig.send(b"a" * 500)
    assert rig.namespace.resident_bytes > 500
    restart(rig, "orders")
    while rig.namespace.maintenance.take_some_apart():
        pass
    assert rig.namespace.resident_bytes == 0
    (message,) = rig.acquire()
    assert body_of(rig.namespace.receive.delivery(rig.queue(), message, locked=True)) == b"a" * 500


@pytest.fixture
def transfers(bare: Rig) -> Rig:
    """A namespace with transfer dead letters of several kinds of entities; `unasked` has none yet."""
    rig = bare
    fill(rig)
    rig.create("others")
    disable(rig)
    rig.create("unasked")
    for via in ("orders", "parts", "jobs", "news", "orders"):
        assert through(rig, make(via.encode()), make(b"x"), via=via)[0] is None
    return rig


def transfer_counts(rig: Rig) -> list[int]:
    owners = {**rig.namespace.queues, **rig.namespace.topics}
    return [owners[via].transfer_dead_letter_count for via in ("orders", "parts", "jobs", "news", "unasked")]


@pytest.mark.parametrize("names", [(*ALL, "others", "unasked"), ("orders",), ("parts",), ("news",), ("others",)])
def test_p49_transfer_dead_letters_are_as_they_were(transfers: Rig, names: tuple[str, ...]) -> None:
    rig = transfers
    before = seen(rig)
    counts = [4, 2, 2, 2, 0]
    assert transfer_counts(rig) == counts
    for _ in range(2):
        bytes_before = rig.live_bytes()
        assert restart(rig, *names) == []
        assert (seen(rig), rig.live_bytes()) == (before, bytes_before)
        assert transfer_counts(rig) == counts
        rig.compact_all()
    (token, *_) = rig.tokens(4, TRANSFER)
    assert rig.settle([token], Complete(), TRANSFER) is None
    assert through(rig, make(b"later"))[0] is None
    for life in rig.lives():
        assert life.bodies(TRANSFER) == [b"x", b"orders", b"x", b"later"]


def test_p49_a_transfer_dead_letter_queue_that_was_only_looked_at_is_not_missing_in_the_journal(transfers: Rig) -> None:
    rig = transfers
    assert rig.bodies("unasked/$Transfer/$DeadLetterQueue") == []
    assert restart(rig, "unasked") == []
    assert through(rig, make(b"first"), via="unasked")[0] is None
    assert restart(rig, "unasked") == []
    assert rig.bodies("unasked/$Transfer/$DeadLetterQueue") == [b"first"]


def test_p49_a_transfer_dead_letter_queue_is_not_made_while_its_owner_is_down(transfers: Rig) -> None:
    rig = transfers
    known = set(rig.namespace.store.by_id)

    def meanwhile() -> None:
        rig.loop.run_until_complete(asyncio.sleep(0))
        found = rig.namespace.resolve("unasked/$Transfer/$DeadLetterQueue")
        assert found is not None and found.entity.suspended == DOWN

    assert restart(rig, "unasked", meanwhile=meanwhile) == []
    assert set(rig.namespace.store.by_id) == known
    assert through(rig, make(b"first"), via="unasked")[0] is None
    assert rig.bodies("unasked/$Transfer/$DeadLetterQueue") == [b"first"]


def test_p49_what_is_sent_through_an_entity_that_is_down_is_refused_as_what_is_sent_to_it(transfers: Rig) -> None:
    rig = transfers
    rig.create("open")
    parts = _parts(rig, "orders")
    rig.namespace.restart.suspend(parts, DOWN)
    for path in ("open", "others"):
        assert through(rig, make(b"x"), path=path)[0] == DOWN
    rig.namespace.restart.resume(parts)
    rig.namespace.restart.suspend(_parts(rig, "open"), DOWN)
    assert through(rig, make(b"x"), path="open")[0] == DOWN


def test_p49_a_transaction_through_an_entity_that_crashes_is_rolled_back(transfers: Rig) -> None:
    rig = transfers
    rig.create("open")
    transaction, ended = Transaction(b"t"), list[Refusal | None]()
    operation = Send(rig.queue("open"), [make(b"x")], ended.append, via=rig.queue("orders"))
    assert rig.namespace.transactions.enlist(transaction, operation, "orders", rig.now) is None
    assert restart(rig, "orders") == []
    assert ended[0] is not None and DOWN.description in ended[0].description
    refused(rig.do(rig.namespace.transactions.commit, transaction), conditions.TRANSACTION_ROLLBACK, DOWN.description)
    assert rig.bodies("open") == []


def test_p49_a_subscription_of_a_partitioned_topic_serves_what_is_in_its_first_partition(bare: Rig) -> None:
    rig = bare
    rig.create_topic("news", enable_partitioning=True)
    rig.subscribe("all")
    assert rig.send(b"first", path="news") is None
    path = "news/subscriptions/all"
    assert [message.sequence_number for message in rig.queue(path).scan(0)] == [1], "in the partition 0"
    assert restart(rig, "news") == []
    for life in rig.lives():
        assert life.received(path=path) == [b"first"]
