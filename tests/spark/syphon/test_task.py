"""The task on real brokers, without Spark: what a task of the syphon does with the rows of a batch."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any
from unittest.mock import AsyncMock

import pytest

from pairbus.amqp.message import Header, Properties, encode_message
from pairbus.pairing.backlog.aliases import divert_encoded
from pairbus.spark.connector.values.transfer_packs import Locked
from pairbus.spark.syphon.task import SinkOptions, TaskCounts, TransferTask
from pairbus.testing import fault
from pairbus.wire import Refused, WireClient
from tests.message_view import View
from tests.spark.conftest import MakeQueue, Pair, peeked, wire

BACKLOG = "contoso/x-servicebus-transfer/0"


def message(number: int, **more: Any) -> bytes:
    return encode_message(
        Header(ttl=60_000), None, Properties(message_id=f"m{number}", **more), {"n": number}, body=b"x" * 100
    )


def stock(pair: Pair, *payloads: bytes) -> list[Locked]:
    """Puts messages into the backlog and takes them out again, locked."""
    with wire(pair.secondary) as client:
        sender = client.sender(BACKLOG)
        assert sender.send_many(payloads) == [None] * len(payloads)
        receiver = client.receiver(BACKLOG)
        found = receiver.receive(len(payloads), max_wait=5)
        while len(found) < len(payloads):
            found += receiver.receive(len(payloads) - len(found), max_wait=5)
        return [Locked(BACKLOG, each.tag, each.payload) for each in found]


async def carry(pair: Pair, rows: list[Locked], **options: Any) -> TaskCounts:
    task = TransferTask(SinkOptions(pair.primary_address, pair.secondary_address, "", **options))
    try:
        await task.take(rows)
        return await task.finish()
    finally:
        await task.close()


@pytest.fixture(autouse=True)
def queues(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.secondary, BACKLOG, lock_duration=dt.timedelta(seconds=30))
    make_queue(pair.primary, "orders", "bills")


async def test_p39_home_first_then_settled(pair: Pair) -> None:
    rows = stock(pair, *(divert_encoded(message(n), "orders" if n % 2 else "bills") for n in range(40)))
    tally = await carry(pair, rows, wants_events=True)
    assert tally.moved == {"orders": 20, "bills": 20}
    assert (tally.left, tally.dead_lettered, tally.busy) == ([], {}, set())
    assert peeked(pair.secondary, BACKLOG) == []
    home = peeked(pair.primary, "orders")
    assert sorted(View(each).properties.message_id for each in home) == sorted(f"m{n}" for n in range(40) if n % 2)
    assert {View(each).header.ttl for each in home} == {60_000}
    assert Counter(event.kind for event in tally.events) == {"receive": 40, "move": 40}
    assert {event.message_id for event in tally.events} == {f"m{n}" for n in range(40)}


async def test_p40_poison_and_lost_destinations_are_dead_lettered_and_the_rest_flows(pair: Pair) -> None:
    rows = stock(pair, message(1), divert_encoded(message(2), "nowhere"), divert_encoded(message(3), "orders"))
    tally = await carry(pair, rows)
    assert tally.moved == {"orders": 1}
    assert sum(tally.dead_lettered.values()) == 2
    assert peeked(pair.secondary, BACKLOG) == []
    assert len(peeked(pair.secondary, f"{BACKLOG}/$DeadLetterQueue")) == 2


async def test_p40_an_unavailable_destination_is_left_to_the_lock_and_blocks_nobody(pair: Pair) -> None:
    rows = stock(pair, *(divert_encoded(message(n), "orders" if n % 2 else "bills") for n in range(10)))
    with fault(pair.data, "no-send", namespace="contoso", entity="bills"):
        tally = await carry(pair, rows)
    assert tally.moved == {"orders": 5}
    assert {(queue, path, refused) for queue, _, path, _, refused in tally.left} == {(BACKLOG, "bills", False)} and len(
        tally.left
    ) == 5
    assert "bills" in tally.troubles
    assert len(peeked(pair.secondary, BACKLOG)) == 5


async def test_p24_busy_is_told(pair: Pair) -> None:
    rows = stock(pair, divert_encoded(message(1), "orders"))
    with fault(pair.data, "throttle", namespace="contoso", rate=0):
        tally = await carry(pair, rows)
    assert tally.busy == {"orders"} and tally.moved == {} and len(tally.left) == 1


async def test_a_lock_that_ran_out_costs_a_duplicate_at_most_and_never_a_loss(pair: Pair) -> None:
    rows = stock(pair, divert_encoded(message(1), "orders"), divert_encoded(message(2), "orders"))
    with wire(pair.secondary) as client:
        client.settle_by_token(BACKLOG, [rows[0].token], "abandoned")
    tally = await carry(pair, rows)
    assert tally.moved == {"orders": 2}
    assert len(peeked(pair.primary, "orders")) == 2
    assert len(peeked(pair.secondary, BACKLOG)) == 1  # comes again: the destination's duplicate detection knows it


async def test_p41_a_replay_of_dead_letters_buries_nothing_again(pair: Pair) -> None:
    rows = stock(pair, divert_encoded(message(1), "nowhere"), divert_encoded(message(2), "orders"))
    await carry(pair, rows)
    with wire(pair.secondary) as client:
        (dead,) = client.receiver(f"{BACKLOG}/$DeadLetterQueue").receive(1, max_wait=5)
        row = Locked(f"{BACKLOG}/$DeadLetterQueue", dead.tag, dead.payload)
    tally = await carry(pair, [row], is_replay=True)
    assert tally.dead_lettered == {} and len(tally.left) == 1 and len(tally.refused) == 1


async def test_p42_a_session_only_groups_what_was_left_comes_after_what_followed_it(pair: Pair) -> None:
    first, second = stock(pair, *(divert_encoded(message(n, group_id="s"), "orders") for n in (1, 2)))
    with fault(pair.data, "no-send", namespace="contoso", entity="orders"):
        assert len((await carry(pair, [first])).left) == 1
    await carry(pair, [second])
    await carry(pair, [first])
    found = [View(each).properties for each in peeked(pair.primary, "orders")]
    assert [(each.message_id, each.group_id) for each in found] == [("m2", "s"), ("m1", "s")]


@pytest.mark.parametrize("case", ["all", "one is refused", "no transactions"])
async def test_within_a_namespace_a_message_is_completed_there_and_sent_here_in_one(
    pair: Pair, make_queue: MakeQueue, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(pair.secondary, "replayed", requires_session=case == "one is refused")
    if case == "no transactions":
        refusal = Refused("amqp:not-implemented", "no transactions here")
        monkeypatch.setattr(WireClient, "transaction", AsyncMock(side_effect=refusal))
    rows = stock(pair, *(message(n, group_id=None if case != "all" and n == 7 else "s") for n in range(120)))
    address = pair.secondary_address
    task = TransferTask(SinkOptions(address, address, "", destination="replayed", wants_events=True))
    settled = AsyncMock(wraps=task._settle)
    monkeypatch.setattr(task, "_settle", settled)
    try:
        await task.take(rows)
        counts = await task.finish()
    finally:
        await task.close()
    refused = case == "one is refused"
    assert counts.moved == {"replayed": 120 - refused}
    assert len(counts.refused) == refused
    assert Counter(event.kind for event in counts.events)["move"] == 120
    # those that went in transactions are not settled once more
    by_hand = sum(len(call.args[0]) for call in settled.await_args_list)
    assert by_hand == {"all": 0, "one is refused": 49, "no transactions": 120}[case]
    with wire(pair.secondary) as client:
        assert len(client.peek("replayed", 1, 200)) == 120 - refused
        assert len(client.peek(BACKLOG, 1, 200)) == refused


@pytest.mark.parametrize("detects_duplicates", [False, True])
async def test_to_a_partitioned_queue_of_the_same_namespace(
    pair: Pair, make_queue: MakeQueue, detects_duplicates: bool
) -> None:
    """A transaction to it needs one key for all: what has none, or several, is sent and then completed."""
    target = f"parted-{detects_duplicates}"
    make_queue(pair.secondary, target, enable_partitioning=True, requires_duplicate_detection=detects_duplicates)
    rows = stock(pair, *(message(number) for number in range(60)))
    address = pair.secondary_address
    task = TransferTask(SinkOptions(address, address, "", destination=target))
    try:
        await task.take(rows)
        tally = await task.finish()
    finally:
        await task.close()
    assert (tally.moved, tally.left, tally.dead_lettered) == ({target: 60}, [], {})
    assert peeked(pair.secondary, BACKLOG) == []
    assert len({View(each).properties.message_id for each in peeked(pair.secondary, target)}) == 60
