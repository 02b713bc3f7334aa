from __future__ import annotations

import asyncio

import pytest

from pairbus.amqp.performative_types import Accepted, Error, Modified, Open, Rejected, Released
from pairbus.wire import LinkLost, LockLost, Receiver, Refused, TimedOut, TooLarge, Unreachable, WireClient
from pairbus.wire import receiver as receiver_module
from pairbus.wire.receiver import drains
from tests.waiting import soon

from .peer import Peer, message, stored


def fill(peer: Peer, count: int, name: str = "orders") -> None:
    peer.queue(name).extend(stored(number, str(number).encode()) for number in range(1, count + 1))


async def test_what_is_there_comes_in_one_go(peer: Peer, receiver: Receiver) -> None:
    fill(peer, 250)
    first = await receiver.receive(100, 5.0)
    rest = await receiver.receive(1000, 5.0)
    assert [message.sequence_number for message in first + rest] == list(range(1, 251))
    assert first[0].payload == stored(1, b"1")
    assert len({message.lock_token for message in first}) == 100
    assert peer.drains == 1  # only where less came than was asked for
    assert repr(receiver) == "<Receiver orders lock: open, 0 at hand>"


async def test_nothing_there_is_an_empty_list_and_leaves_no_credit(peer: Peer, receiver: Receiver) -> None:
    assert await receiver.receive(10, 0.0) == []
    assert await receiver.receive(10, 0.05) == []
    peer.deliver("orders", message("late"))
    assert len(peer.queue("orders")) == 1
    assert len(await receiver.receive(10, 0.0)) == 1


async def test_a_message_that_comes_while_waiting(peer: Peer, receiver: Receiver) -> None:
    receiving = asyncio.ensure_future(receiver.receive(10, 5.0))
    await soon(lambda: any(served.outgoing and served.outgoing[0].credit for served in peer.sessions))
    peer.deliver("orders", message("a"))
    assert [received.payload for received in await receiving] == [message("a")]


async def test_one_receive_at_a_time_and_sensible_arguments(client: WireClient, receiver: Receiver) -> None:
    receiving = asyncio.ensure_future(receiver.receive(1, 5.0))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="already under way"):
        await receiver.receive()
    receiving.cancel()
    with pytest.raises(ValueError, match="max_count 0"):
        await receiver.receive(0)
    with pytest.raises(ValueError, match="right are 'lock'"):
        await client.receiver("orders", mode="peek")
    with pytest.raises(ValueError, match="credit -1"):
        await client.receiver("orders", credit=-1)


async def test_cancelling_loses_nothing(peer: Peer, client: WireClient) -> None:
    receiver = await client.receiver("orders", mode="delete")
    receiving = asyncio.ensure_future(receiver.receive(10, 5.0))
    await soon(lambda: any(served.outgoing and served.outgoing[0].credit for served in peer.sessions))
    peer.deliver("orders", message("a"))
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert [received.payload for received in await receiver.receive(10, 5.0)] == [message("a")]


async def test_credit_ahead_keeps_messages_coming(peer: Peer, client: WireClient) -> None:
    fill(peer, 1000)
    receiver = await client.receiver("orders", credit=100)
    got: list[int | None] = []
    while len(got) < 1000:
        messages = await receiver.receive(64, 5.0)
        got += [received.sequence_number for received in messages]
        await receiver.complete(messages)
        assert len(receiver._buffer) <= 100
    assert got == list(range(1, 1001))
    assert await receiver.receive(10, 0.05) == []
    assert peer.drains == 0


async def test_delete_mode_comes_settled(peer: Peer, client: WireClient) -> None:
    fill(peer, 3)
    receiver = await client.receiver("orders", mode="delete")
    messages = await receiver.receive(10, 5.0)
    assert len(messages) == 3
    assert messages[0].lock_token is None
    with pytest.raises(ValueError, match="come settled"):
        await receiver.complete(messages)


async def test_settling_by_range(peer: Peer, receiver: Receiver) -> None:
    fill(peer, 10)
    messages = await receiver.receive(10, 5.0)
    await receiver.complete([*messages[:4], *messages[6:]])
    assert [entry[:3] for entry in peer.dispositions] == [(0, 3, False), (6, 9, False)]
    await receiver.complete(messages[4])
    await receiver.complete([])
    assert peer.dispositions[-1] == (4, 4, False, Accepted())


async def test_each_outcome_is_spelt_as_the_service_wants_it(peer: Peer, receiver: Receiver) -> None:
    fill(peer, 5)
    a, b, c, d, e = await receiver.receive(5, 5.0)
    await receiver.abandon(a)
    await receiver.abandon(b, {"tries": 2})
    await receiver.defer(c)
    await receiver.dead_letter(d, "why", "because")
    await receiver.release([e])
    await receiver.complete(await receiver.receive(1, 5.0))  # an answer comes only after all that was written before it
    states = [state for _, _, _, state in peer.dispositions]
    assert states[0] == Modified(delivery_failed=True, undeliverable_here=False)
    assert states[1].message_annotations == {"tries": 2}
    assert states[2] == Modified(delivery_failed=True, undeliverable_here=True)
    assert states[3].error.condition == "com.microsoft:dead-letter"
    assert states[3].error.info == {"DeadLetterReason": "why", "DeadLetterErrorDescription": "because"}
    assert (states[4], peer.dispositions[4][2]) == (Released(), True)


async def test_a_lost_lock(peer: Peer, receiver: Receiver) -> None:
    fill(peer, 6)
    messages = await receiver.receive(6, 5.0)
    peer.answer_settlements = lambda state: Rejected(error=Error("com.microsoft:message-lock-lost", "late", None))
    pending = receiver.settle_nowait(messages[:2])
    with pytest.raises(LockLost) as caught:
        await pending
    assert caught.value.delivery_ids == (0, 1)
    with pytest.raises(LockLost):
        await receiver.complete(messages[2:])


async def test_an_answer_of_another_kind_of_failure(peer: Peer, receiver: Receiver) -> None:
    fill(peer, 1)
    peer.answer_settlements = lambda state: Rejected(error=Error("amqp:internal-error", "disk", None))
    with pytest.raises(Refused, match="disk"):
        await receiver.complete(await receiver.receive(1, 5.0))


async def test_a_settlement_without_answer_is_of_unknown_outcome(peer: Peer, client: WireClient) -> None:
    fill(peer, 3)
    peer.answer_settlements = None
    receiver = await client.receiver("orders", timeout=0.1)
    a, b, c = await receiver.receive(3, 5.0)
    with pytest.raises(TimedOut) as caught:
        await receiver.complete(a, timeout=0.05)
    assert caught.value.outcome_unknown
    pending = receiver.settle_nowait([b])
    with pytest.raises(TimedOut):
        await pending
    held = receiver.settle_nowait([c])
    with pytest.raises(ValueError, match="settled twice"):
        receiver.settle_nowait([c])
    peer.drop()
    with pytest.raises(Unreachable) as lost:
        await held
    assert lost.value.outcome_unknown


async def test_a_message_settled_twice_in_one_call(peer: Peer, receiver: Receiver) -> None:
    fill(peer, 1)
    (received,) = await receiver.receive(1, 5.0)
    with pytest.raises(ValueError, match="settled twice"):
        await receiver.complete([received, received])


async def test_after_a_lost_link_only_the_token_settles(peer: Peer, receiver: Receiver) -> None:
    fill(peer, 2)
    messages = await receiver.receive(1, 5.0)
    peer.drop()
    await soon(lambda: not receiver.is_open)
    with pytest.raises(LinkLost, match="settle_by_token"):
        await receiver.complete(messages)
    with pytest.raises(LinkLost):
        await receiver.release(messages)
    assert [received.sequence_number for received in await receiver.receive(1, 5.0)] == [2]
    assert peer.connections == 2
    with pytest.raises(LinkLost):
        await receiver.complete(messages)


async def test_a_loss_while_waiting_is_told_at_once(peer: Peer, receiver: Receiver) -> None:
    receiving = asyncio.ensure_future(receiver.receive(1, 60.0))
    await soon(lambda: any(served.outgoing and served.outgoing[0].credit for served in peer.sessions))
    peer.drop()
    with pytest.raises(Unreachable):
        await receiving
    assert await receiver.receive(1, 0.0) == []


async def test_deleted_messages_outlive_their_link(peer: Peer, client: WireClient) -> None:
    fill(peer, 5)
    receiver = await client.receiver("orders", mode="delete", credit=10)
    await soon(lambda: len(receiver._buffer) == 5)
    await peer.stop()
    await soon(lambda: not receiver.is_open)
    assert len(await receiver.receive(3, 0.0)) == 3
    assert len(await receiver.receive(3, 0.0)) == 2
    with pytest.raises(Unreachable):
        await receiver.receive(3, 0.0)


async def test_a_drain_without_answer_ends_the_link(
    peer: Peer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "DRAIN_S_MAX", 0.05)
    peer.answer_drain = False
    with pytest.raises(TimedOut, match="did not answer a drain"):
        await receiver.receive(10, 0.0)
    assert not receiver.is_open
    peer.answer_drain = True
    assert await receiver.receive(10, 0.0) == []


async def test_a_drain_without_answer_keeps_what_came(
    peer: Peer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "DRAIN_S_MAX", 0.05)
    peer.answer_drain = False
    fill(peer, 3)
    messages = await receiver.receive(10, 5.0)
    assert len(messages) == 3
    await receiver.complete(messages)
    fill(peer, 1)
    assert len(await receiver.receive(1, 5.0)) == 1


async def test_a_message_beyond_our_limit(peer: Peer) -> None:
    async with WireClient("127.0.0.1", peer.port, tls=False, message_bytes_max=100_000) as client:
        peer.queue("orders").extend([message("x" * 200_000), message("small")])
        receiver = await client.receiver("orders")
        with pytest.raises(TooLarge, match="delivered 200008 bytes; message_bytes_max is 100000"):
            await receiver.receive(1, 5.0)
        await soon(lambda: bool(peer.dispositions))
        assert isinstance(peer.dispositions[0][3], Modified)


async def test_closing_gives_back_what_nobody_read(peer: Peer, client: WireClient) -> None:
    fill(peer, 5)
    receiver = await client.receiver("orders", credit=10)
    (first,) = await receiver.receive(1, 5.0)
    await receiver.complete(first)
    await soon(lambda: len(receiver._buffer) == 4)
    assert await receiver.close() == []
    assert peer.drains == 1
    assert len(peer.queue("orders")) == 4
    assert peer.dispositions[-1] == (1, 4, True, Released())
    assert await receiver.close() == []


async def test_closing_in_delete_mode_hands_out_what_nobody_read(peer: Peer, client: WireClient) -> None:
    fill(peer, 5)
    receiver = await client.receiver("orders", mode="delete", credit=10)
    await soon(lambda: len(receiver._buffer) == 5)
    assert len(await receiver.close()) == 5


async def test_more_than_a_session_window_without_settling(peer: Peer, receiver: Receiver) -> None:
    fill(peer, 12_000)
    assert len(await receiver.receive(12_000, 5.0)) == 12_000


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (None, True),
        ({"product": "pairbus"}, True),
        ({"product": "RabbitMQ", "version": "3.10.8"}, False),
        ({"product": "RabbitMQ", "version": "4.1.0"}, True),
        ({"product": "RabbitMQ"}, False),
    ],
)
def test_who_can_drain(properties: dict[str, str] | None, expected: bool) -> None:
    assert drains(Open(container_id="x", properties=properties)) is expected
    assert drains(None)


async def test_without_drain_what_follows_closely_comes_together(
    peer: Peer, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "drains", lambda opened: False)
    receiver = await client.receiver("orders")
    assert await receiver.receive(10, 0.05) == []
    fill(peer, 5)
    assert len(await receiver.receive(10, 5.0)) == 5
    assert peer.drains == 0
    await soon(lambda: all(link.credit == 0 for served in peer.sessions for link in served.outgoing))
