"""Compaction, and all that may happen to a message while it is copied."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pairbus.broker.model.description import QueueDescription
from pairbus.broker.model.message import RECOPIED, SETTLING, Message
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter
from pairbus.broker.refusal import Refusal
from pairbus.journal import Options
from tests.broker.namespace_rig import DEAD, Rig, make


@pytest.mark.parametrize("outcome", [Complete(), Abandon({"a": 1}), DeadLetter("why"), DeadLetter("why", "x" * 600)])
def test_a_settlement_that_a_copy_overtakes_is_written_again(
    rig: Rig, outcome: Complete | Abandon | DeadLetter
) -> None:
    bodies = rig.grow()
    tokens = rig.tokens(2)
    answers: list[Refusal | None] = []
    rig.namespace.settlement.settle(rig.queue(), tokens, outcome, rig.now, answers.append)
    rig.compact()  # copies both, behind the record of the settlement
    rig.run()
    assert answers == [None]
    with rig.reopened() as again:
        for each in (rig, again):
            if isinstance(outcome, Abandon):
                assert each.bodies() == bodies
                assert [m.delivery_count for m in each.acquire(3)] == [1, 1, 0]
            else:
                assert each.bodies() == bodies[2:]
                assert each.bodies(DEAD) == (bodies[:2] if isinstance(outcome, DeadLetter) else [])


def test_receive_and_delete_that_a_copy_overtakes(rig: Rig) -> None:
    bodies = rig.grow()
    answers: list[list[Message]] = []
    rig.namespace.receive.take(rig.queue(), 2, rig.now, lambda messages, refusal: answers.append(messages))
    rig.compact()
    rig.run()
    assert len(answers[0]) == 2
    with rig.reopened() as again:
        assert again.bodies() == bodies[2:]


@pytest.mark.parametrize("outcome", [Complete(), Abandon({"a": 1}), DeadLetter("why"), None])
def test_a_second_record_that_is_refused_is_tried_until_it_is_written(
    rig: Rig, outcome: Complete | Abandon | DeadLetter | None
) -> None:
    bodies = rig.grow()
    answers: list[object] = []
    if outcome is None:
        rig.namespace.receive.take(rig.queue(), 1, rig.now, lambda messages, refusal: answers.append(refusal))
    else:
        rig.namespace.settlement.settle(rig.queue(), rig.tokens(), outcome, rig.now, answers.append)
    rig.turn()  # the first one is written
    (first,) = [message for message in rig.queue().scan(0) if message.state == SETTLING]
    first.state = RECOPIED  # and compaction has made a copy
    rig.journal._state = "closed"
    rig.answer()
    assert answers == [None]
    assert rig.queue().available + rig.queue().locked == len(bodies) - 1
    rig.namespace.maintenance.write_again()
    rig.run()
    rig.journal._state = "started"
    assert rig.queue().available + rig.queue().locked == len(bodies) - 1
    rig.namespace.maintenance.write_again()
    rig.run()
    assert answers == [None]
    assert rig.bodies() == (bodies if isinstance(outcome, Abandon) else bodies[1:])
    assert rig.bodies(DEAD) == (bodies[:1] if isinstance(outcome, DeadLetter) else [])
    assert repr(rig.namespace.maintenance) == "<Maintenance: 0 entities to take apart, 0 records to write again>"


def test_a_second_deletion_that_is_refused_is_tried_until_it_is_written(rig: Rig) -> None:
    answers: list[Refusal | None] = []
    rig.namespace.registry.delete_queue("orders", rig.now, answers.append)
    rig.turn()
    rig.namespace.queues["orders"].recopied = True
    rig.journal._state = "closed"
    rig.answer()
    assert answers == [None]
    assert rig.namespace.resolve("orders") is None
    lsn = rig.journal.last_lsn
    rig.journal._state = "started"
    rig.namespace.maintenance.write_again()
    rig.run()
    assert answers == [None]
    assert rig.journal.last_lsn == lsn + 1


def test_a_deletion_that_a_copy_overtakes_is_written_again(rig: Rig) -> None:
    rig.grow()
    answers: list[Refusal | None] = []
    rig.namespace.registry.delete_queue("orders", rig.now, answers.append)
    rig.compact()
    rig.run()
    assert answers == [None]
    with rig.reopened() as again:
        assert dict(again.namespace.queues) == {}
        assert again.namespace.notes == []


def test_an_update_that_a_copy_overtakes_stands(rig: Rig) -> None:
    rig.grow()
    stands = rig.namespace.queues["orders"].description
    rig.namespace.registry.update(replace(stands, user_metadata="new"), rig.now, lambda refusal: None)
    rig.compact()
    rig.run()
    with rig.reopened() as again:
        for each in (rig, again):
            assert each.namespace.queues["orders"].description.user_metadata == "new"
    rig.compact_all()
    with rig.reopened() as again:
        assert again.namespace.queues["orders"].description.user_metadata == "new"


def test_what_is_written_and_not_yet_answered_survives_compaction(rig: Rig) -> None:
    answers: list[Refusal | None] = []
    rig.namespace.registry.create(QueueDescription(name="new"), rig.now, answers.append)
    bodies = [b"body %04d" % n * 10 for n in range(40)]
    for body in bodies:
        rig.namespace.enqueue.send(rig.queue(), [make(body)], rig.now, answers.append)
    rig.turn()  # all written, in several segments, and nobody told
    assert len(rig.journal.segments()) > 2
    live_records = rig.namespace.store.live_records
    task = rig.loop.create_task(rig.journal.compact(live_records))
    for _ in range(20):
        rig.loop.run_until_complete(asyncio.sleep(0))
        rig.turn()
    while not task.done():
        rig.answer()
        rig.loop.run_until_complete(asyncio.sleep(0))
        rig.turn()
    assert task.result() is not None
    assert answers == [None] * 41
    with rig.reopened() as again:
        for each in (rig, again):
            assert each.bodies() == bodies
            assert "new" in each.namespace.queues


def test_compaction_gives_the_room_back(rig: Rig) -> None:
    rig.grow(6)
    rig.settle(rig.tokens(1000), Complete())
    rig.send(b"stays")
    rig.compact_all()
    assert [segment.is_current for segment in rig.journal.segments()] == [True]
    live = rig.journal.segments()[0].live
    assert live < 1024
    rig.compact_all()
    with rig.reopened() as again:
        assert again.bodies() == [b"stays"]
        assert again.journal.segments()[0].live <= live + 64


def test_accounts_after_replay_are_those_from_before(rig: Rig) -> None:
    rig.grow(4)
    rig.settle(rig.tokens(5), Complete())
    rig.settle(rig.tokens(3), DeadLetter("x"))
    rig.settle(rig.tokens(2), Abandon())
    before = {segment.number: segment.live for segment in rig.journal.segments()}
    with rig.reopened() as again:
        after = {segment.number: segment.live for segment in again.journal.segments() if not segment.is_current}
        assert after == before
        entity, twin = rig.namespace.queues["orders"], again.namespace.queues["orders"]
        assert (twin.size_bytes, twin.active_count, twin.dead_letter_count) == (
            entity.size_bytes,
            entity.active_count,
            entity.dead_letter_count,
        )


BUSY = Options(segment_bytes=1 << 20, reserve_bytes=1 << 16, allocate_bytes=1 << 16)
PER_TURN = 150


class BusyLoop:
    """Each step is one turn of a loop under load: messages come and go, and upkeep has the one turn that it gets."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.chance = random.Random(7)
        self.held: list[bytes] = []

    async def step(self, sends: int, settle: Callable[[list[bytes]], list[bytes]] | None) -> None:
        rig = self.rig
        queue = rig.queue()
        for _ in range(sends):
            rig.namespace.enqueue.send(queue, [make(b"x" * 1000)], rig.now, lambda refusal: None)
        self.held += [message.lock_token or b"" for message in rig.acquire(1_000_000)]
        chosen = [] if settle is None else settle(self.held)
        if chosen:
            gone = set(chosen)
            self.held = [token for token in self.held if token not in gone]
            rig.namespace.settlement.settle(queue, chosen, Complete(), rig.now, lambda refusal: None)
        rig.turn()
        rig.answer()
        await asyncio.sleep(0)
        live = rig.namespace.queues["orders"].size_bytes
        assert rig.files.used() <= 2 * live + 4 * BUSY.segment_bytes, (rig.files.used(), live)


@pytest.mark.parametrize("pattern", ["in order", "some stay", "at random", "the newest first", "then deleted"])
async def test_the_disk_holds_at_most_twice_what_lives_and_four_segments(pattern: str) -> None:
    with Rig(options=BUSY, memory_budget=0) as rig:
        rig.create(lock_duration=300.0)
        busy = BusyLoop(rig)
        task = asyncio.ensure_future(rig.namespace.maintenance.run(0.5))
        settled = {
            "in order": lambda held: held[:PER_TURN],
            "some stay": lambda held: held[:PER_TURN][: -PER_TURN // 50],
            "at random": lambda held: busy.chance.sample(held, min(len(held), PER_TURN)),
            "the newest first": lambda held: held[-PER_TURN:],
            "then deleted": lambda held: held[: PER_TURN // 2],
        }[pattern]
        for _ in range(4 if pattern == "some stay" else 20):
            await busy.step(PER_TURN, None)  # a backlog
        for _ in range(120):
            await busy.step(PER_TURN, settled)
        if pattern == "then deleted":
            rig.namespace.registry.delete_queue("orders", rig.now, lambda refusal: None)
            rig.run()
            rig.create()
            for _ in range(200):
                await asyncio.sleep(0)
                rig.run()
            assert rig.files.used() <= 4 * BUSY.segment_bytes
        else:
            for _ in range(40):
                await busy.step(0, settled)  # and it ebbs away
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert pattern != "in order" or len(rig.dead_segments) > 10
        with rig.reopened() as again:
            assert len(again.queue()) == len(rig.queue())
            assert again.queue().size_bytes == rig.queue().size_bytes


async def test_maintain_compacts_and_takes_apart_by_itself(bare: Rig) -> None:
    bare.create()
    bare.create("doomed")
    bodies = bare.grow(8)
    bare.send(b"gone", path="doomed")
    bare.namespace.registry.delete_queue("doomed", bare.now, lambda refusal: None)
    bare.settle(bare.tokens(len(bodies) - 1), Complete())
    task = asyncio.ensure_future(bare.namespace.maintenance.run(0.001))
    async with asyncio.timeout(20):
        while bare.journal.compaction_is_due() or bare.namespace.maintenance._deleted:
            await asyncio.sleep(0)
            bare.run()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert bare.bodies() == bodies[-1:]
