"""The wire client against RabbitMQ's AMQP 1.0 plugin: somebody else's reading of the same specification."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from benchmarks.servers import RabbitServer, ServerMissing

from pairbus.amqp.message import Header, Properties, encode_message, read_application_properties, read_properties
from pairbus.amqp.types import Symbol, Timestamp, UInt
from pairbus.wire import Login, Unauthorized, Unreachable, WireClient
from pairbus.wire import sync as wire_sync
from tests.message_view import View

from .peer import message

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

QUEUES = ("single", "pipelined", "large", "outcomes", "delete", "types", "ahead", "sync", "restart")


def address(queue: str) -> str:
    return f"/amq/queue/{queue}"


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    try:
        RabbitServer.version()
    except ServerMissing as missing:
        pytest.skip(str(missing))  # with PAIRBUS_REQUIRE=all a skip is a failure (tests/conftest.py)
    with RabbitServer(tmp_path_factory.mktemp("rabbitmq"), dict.fromkeys(QUEUES, "classic")) as rabbit:
        yield rabbit


@pytest.fixture
async def client(rabbit: RabbitServer) -> AsyncIterator[WireClient]:
    login = Login(rabbit.user, rabbit.password)
    async with WireClient("127.0.0.1", rabbit.port, tls=False, credential=login, timeout=20.0) as client:
        yield client


def body(payload: bytes) -> bytes:
    ((_, value),) = View(payload).body
    assert isinstance(value, bytes)
    return value


async def test_send_receive_complete(client: WireClient) -> None:
    sender = await client.sender(address("single"))
    for number in range(20):
        await sender.send(message(str(number)))
    receiver = await client.receiver(address("single"))
    messages = await receiver.receive(20, 10.0)
    assert [body(received.payload) for received in messages] == [str(number).encode() for number in range(20)]
    await receiver.complete(messages[:10])
    for received in messages[10:]:
        await receiver.complete(received)
    assert await receiver.receive(1, 0.2) == []
    await receiver.close()
    again = await client.receiver(address("single"))
    assert await again.receive(1, 0.2) == []


async def test_pipelined(client: WireClient) -> None:
    sender = await client.sender(address("pipelined"), window=500)
    results = await sender.send_many([message(str(number)) for number in range(12_000)])
    assert results == [None] * 12_000
    receiver = await client.receiver(address("pipelined"))
    got: list[bytes] = []
    while len(got) < 12_000:
        messages = await receiver.receive(12_000 - len(got), 10.0)
        assert messages
        got += [body(received.payload) for received in messages]
        await receiver.complete(messages)
    assert got == [str(number).encode() for number in range(12_000)]


async def test_credit_ahead(client: WireClient) -> None:
    sender = await client.sender(address("ahead"))
    await sender.send_many([message(str(number)) for number in range(3_000)])
    receiver = await client.receiver(address("ahead"), credit=200)
    got: list[bytes] = []
    answers: list[asyncio.Future[None]] = []
    while len(got) < 3_000:
        messages = await receiver.receive(200, 10.0)
        assert messages
        got += [body(received.payload) for received in messages]
        answers.append(receiver.settle_nowait(messages))
    for answer in answers:
        await answer
    assert got == [str(number).encode() for number in range(3_000)]


async def test_a_message_of_many_frames_each_way(client: WireClient) -> None:
    large = bytes(range(256)) * 8192
    sender = await client.sender(address("large"))
    await sender.send(message(large))
    receiver = await client.receiver(address("large"))
    (received,) = await receiver.receive(1, 10.0)
    assert body(received.payload) == large
    await receiver.complete(received)


async def test_released_comes_back_rejected_does_not(client: WireClient) -> None:
    sender = await client.sender(address("outcomes"))
    await sender.send_many([message("keep"), message("drop")])
    receiver = await client.receiver(address("outcomes"))
    keep, drop = await receiver.receive(2, 10.0)
    await receiver.dead_letter(drop, "why", "because")
    await receiver.release(keep)
    (again,) = await receiver.receive(2, 10.0)
    assert body(again.payload) == b"keep"
    await receiver.complete(again)
    assert await receiver.receive(1, 0.2) == []


async def test_what_is_not_settled_comes_back_after_a_loss(client: WireClient, rabbit: RabbitServer) -> None:
    sender = await client.sender(address("restart"))
    await sender.send(message("once more"))
    receiver = await client.receiver(address("restart"))
    assert len(await receiver.receive(1, 10.0)) == 1
    assert client._transport is not None
    client._transport.lose(Unreachable("test", "cut"))
    (received,) = await receiver.receive(1, 10.0)
    assert body(received.payload) == b"once more"
    await receiver.complete(received)


async def test_settled_on_delivery(client: WireClient) -> None:
    sender = await client.sender(address("delete"))
    await sender.send_many([message(str(number)) for number in range(10)])
    receiver = await client.receiver(address("delete"), mode="delete")
    assert len(await receiver.receive(10, 10.0)) == 10
    await receiver.close()
    again = await client.receiver(address("delete"), mode="delete")
    assert await again.receive(1, 0.2) == []


async def test_sections_and_types_survive(client: WireClient) -> None:
    payload = encode_message(
        header=Header(durable=True, priority=7),
        properties=Properties(message_id="m-1", correlation_id="c-1", content_type=Symbol("text/plain"), subject="s"),
        application_properties={"uint": UInt(7), "text": "x", "flag": True, "when": Timestamp(1_700_000_000_000)},
        body=b"body",
    )
    sender = await client.sender(address("types"))
    await sender.send(payload)
    receiver = await client.receiver(address("types"))
    (received,) = await receiver.receive(1, 10.0)
    properties = read_properties(received.payload, received.sections)
    assert (properties.message_id, properties.correlation_id, properties.subject) == ("m-1", "c-1", "s")
    fields = read_application_properties(received.payload, received.sections)
    assert {name: fields[name] for name in ("uint", "text", "flag")} == {"uint": 7, "text": "x", "flag": True}
    await receiver.complete(received)


async def test_a_wrong_password(rabbit: RabbitServer) -> None:
    async with WireClient("127.0.0.1", rabbit.port, tls=False, credential=Login(rabbit.user, "wr0ng")) as client:
        with pytest.raises((Unauthorized, Unreachable)) as caught:
            await client.connect()
        assert "wr0ng" not in str(caught.value)


async def test_many_links_on_one_connection(client: WireClient) -> None:
    senders = await asyncio.gather(*(client.sender(address(name)) for name in QUEUES))
    for sender in senders:
        await sender.close()


def test_the_sync_front(rabbit: RabbitServer) -> None:
    login = Login(rabbit.user, rabbit.password)
    with wire_sync.WireClient("127.0.0.1", rabbit.port, tls=False, credential=login, timeout=20.0) as client:
        assert client.sender(address("sync")).send_many([message("a"), message("b")]) == [None, None]
        receiver = client.receiver(address("sync"))
        messages = receiver.receive(2, 10.0)
        assert [body(received.payload) for received in messages] == [b"a", b"b"]
        receiver.complete(messages)
