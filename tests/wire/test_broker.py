"""The wire client against our own broker, every operation that it is used for, over the real port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Symbol
from pairbus.broker.server import Broker, NamespaceServer
from pairbus.testing import fault
from pairbus.wire import Busy, LockLost, NotFound, Refused, TimedOut, TooLarge, Unauthorized, Unreachable, WireClient
from pairbus.wire import sync as wire_sync

from .peer import message

Make = Callable[..., str]


@pytest.fixture
async def client(pairbus_namespace: NamespaceServer) -> AsyncIterator[WireClient]:
    async with WireClient.from_connection_string(
        pairbus_namespace.connection_string, timeout=10.0, backoff=lambda: iter(())
    ) as client:
        yield client


@pytest.fixture
def queue(pairbus_queue: Make) -> str:
    return pairbus_queue()


async def test_a_group_shares_its_answer_and_what_is_too_large_has_its_own(
    client: WireClient, pairbus_queue: Make
) -> None:
    sender = await client.sender(pairbus_queue())
    small, long_id, large = message("a"), message("b", message_id="x" * 129), message("c" * 300_000)
    answers = await sender.send_grouped([small, large, small, long_id, small, small], [0, 0, 0, 0, 0, 1])
    assert [type(answer) for answer in answers] == [type(None), TooLarge, Refused, Refused, Refused, type(None)]


async def test_an_entity_that_takes_no_batch_of_different_ids_gets_messages_one_by_one(
    client: WireClient, pairbus_queue: Make
) -> None:
    sender = await client.sender(pairbus_queue(enable_partitioning=True, requires_duplicate_detection=True))
    first = [message(str(number), message_id=f"m{number}") for number in range(30)]
    assert await sender.send_grouped(first, [None] * 30) == [None] * 30
    before = sender._tag
    later = [message(str(number), message_id=f"n{number}") for number in range(10)]
    assert await sender.send_grouped(later, [None] * 10) == [None] * 10
    assert sender._tag - before == 10, "remembered: no batch was tried again"
    assert len(await client.peek(sender.entity, 1, 100)) == 40


async def test_a_bad_message_in_a_batch_does_not_end_batches(client: WireClient, pairbus_queue: Make) -> None:
    sender = await client.sender(pairbus_queue(enable_partitioning=True))
    crossed = encode_message(None, {Symbol("x-opt-partition-key"): "k"}, Properties(group_id="s"), None, b"x")
    answers = await sender.send_grouped([message("a"), crossed, message("b")], [None] * 3)
    assert [type(answer) for answer in answers] == [type(None), Refused, type(None)]
    before = sender._tag
    assert await sender.send_grouped([message("c"), message("d")], [None] * 2) == [None] * 2
    assert sender._tag - before == 1, "still together"


async def test_the_next_session_that_is_free(client: WireClient, pairbus_queue: Make) -> None:
    queue = pairbus_queue(requires_session=True)
    assert await client.next_session(queue, 0.0) is None, "there is none"
    waiting = asyncio.create_task(client.next_session(queue, 30.0))
    sender = await client.sender(queue)
    for session_id in ("b", "a", "b"):
        await sender.send(encode_message(properties=Properties(group_id=session_id), body=b"x"))
    first, second = await waiting, await client.next_session(queue, 0.0)
    assert first is not None and second is not None
    assert (first.session_id, second.session_id) == ("b", "a"), "the oldest message's first"
    assert await client.next_session(queue, 0.0) is None, "both are held"
    assert [each.sequence_number for each in await first.receive(5, 5.0)] == [1, 3]
    await first.close()
    again = await client.next_session(queue, 5.0)
    assert again is not None and again.session_id == "b"
    (message,) = await again.receive(1, 5.0)
    assert message.delivery_count == 0, "given back is not failed"
    with pytest.raises(Refused, match="has no sessions"):
        await client.next_session(pairbus_queue(), 0.0)


async def test_settling_by_token_from_another_client(
    client: WireClient, pairbus_namespace: NamespaceServer, queue: str
) -> None:
    await (await client.sender(queue)).send_many([message(text) for text in "abcd"])
    receiver = await client.receiver(queue)
    messages = await receiver.receive(4, 5.0)
    tokens = [received.lock_token for received in messages if received.lock_token is not None]
    with wire_sync.WireClient.from_connection_string(pairbus_namespace.connection_string) as other:
        renewed = other.renew(queue, tokens)
        assert len(renewed) == 4
        assert renewed[0] >= (messages[0].locked_until or 0)
        other.settle_by_token(queue, tokens[:2], "completed")
        other.settle_by_token(queue, [messages[2].tag], "abandoned")
        other.settle_by_token(queue, tokens[3:], "suspended", reason="why")
        with pytest.raises(LockLost):
            other.settle_by_token(queue, tokens[:1], "completed")
        assert len(other.peek(queue)) == 1
        assert len(other.peek(f"{queue}/$DeadLetterQueue")) == 1


async def test_any_number_settled_by_token_on_one_link(client: WireClient, pairbus_queue: Make) -> None:
    """The link's own count of what it holds locked follows settlements that came over another one."""
    queue = pairbus_queue()
    sender = await client.sender(queue)
    await sender.send_batch([message(str(number)) for number in range(9000)])
    receiver = await client.receiver(queue)
    for _ in range(3):
        tokens = [received.tag for received in await receiver.receive(3000, 5.0)]
        assert len(tokens) == 3000
        for start in range(0, len(tokens), 1000):
            await client.settle_by_token(queue, tokens[start : start + 1000], "completed")
    assert await client.peek(queue) == []


async def test_a_link_that_holds_its_most_answers_a_drain(client: WireClient, queue: str) -> None:
    await (await client.sender(queue)).send_batch([message(str(number)) for number in range(5100)])
    receiver = await client.receiver(queue)
    held = await receiver.receive(5100, 5.0)
    assert len(held) == 5000
    assert await receiver.receive(1, 0.2) == []
    await receiver.complete(held)
    assert len(await receiver.receive(100, 5.0)) == 100


async def test_a_delivery_settled_twice_is_told_that_its_lock_is_lost(client: WireClient, queue: str) -> None:
    await (await client.sender(queue)).send_many([message(text) for text in "abc"])
    receiver = await client.receiver(queue)
    messages = await receiver.receive(3, 5.0)
    await receiver.complete(messages[1])
    with pytest.raises(LockLost):
        await receiver.complete(messages[1])
    await receiver.complete([messages[0], messages[2]])


async def test_what_the_broker_refuses(client: WireClient, queue: str) -> None:
    with pytest.raises(NotFound, match="could not be found"):
        await client.sender("no-such-queue")
    with pytest.raises(NotFound):
        await client.peek("no-such-queue")
    with pytest.raises(Refused) as caught:
        await client.request(queue, "com.microsoft:no-such-operation", {})
    assert caught.value.condition == "amqp:not-implemented"
    sender = await client.sender(queue)
    with pytest.raises(TooLarge):
        await sender.send(message("x" * 300_000))
    await sender.send(message("x" * 200_000))


async def test_a_wrong_key(pairbus_namespace: NamespaceServer, queue: str) -> None:
    text = pairbus_namespace.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wr0ng")
    async with WireClient.from_connection_string(text) as client:
        with pytest.raises(Unauthorized) as caught:
            await client.sender(queue)
        assert "wr0ng" not in str(caught.value)


async def test_tls_on_the_same_port(pairbus_namespace: NamespaceServer, queue: str) -> None:
    text = pairbus_namespace.connection_string.replace(";UseDevelopmentEmulator=true", "")
    async with WireClient.from_connection_string(text, ca_file=pairbus_namespace.ca_file) as client:
        await (await client.sender(queue)).send(message("secret"))
        assert len(await client.peek(queue)) == 1


async def test_the_broker_s_heartbeats_begin_with_the_connection(
    pairbus_namespace: NamespaceServer, queue: str
) -> None:
    text = pairbus_namespace.connection_string
    async with WireClient.from_connection_string(text, idle_timeout=0.3) as client:
        receiver = await client.receiver(queue)
        assert await receiver.receive(1, 1.5) == []  # a silence of 0.6 s would have ended the connection
        assert client.is_connected


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("no-send", {}, Refused),
        ("throttle", {"rate": 0}, Busy),
        ("unreachable", {}, Unreachable),
        ("black-hole", {}, TimedOut),
    ],
)
async def test_faults_and_back(
    client: WireClient,
    pairbus_broker: Broker,
    queue: str,
    kind: str,
    options: dict[str, float],
    expected: type[Exception],
) -> None:
    sender = await client.sender(queue)
    await sender.send(message("before"))
    async with fault(pairbus_broker, kind, **options):
        with pytest.raises(expected):
            await sender.send(message("during"), timeout=0.5)
    await sender.send(message("after"))
