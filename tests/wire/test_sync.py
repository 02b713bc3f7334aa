from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from pairbus.wire import ClientClosed, TimedOut, Unreachable
from pairbus.wire.sync import LoopThread, WireClient

from .peer import Peer, message


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


@pytest.fixture
def served(thread: LoopThread) -> Iterator[Peer]:
    async def make() -> Peer:
        return await Peer().start()

    peer = thread.run(make())
    yield peer
    thread.run(peer.stop())


@pytest.fixture
def client(served: Peer) -> Iterator[WireClient]:
    text = f"Endpoint=sb://127.0.0.1:{served.port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    with WireClient.from_connection_string(text, timeout=5.0) as client:
        yield client


def test_the_same_names_without_await(served: Peer, client: WireClient) -> None:
    sender = client.sender("orders")
    sender.send(message("a"))
    sender.send_batch([message("b"), message("c")])
    assert sender.send_many([message("d")]) == [None]
    assert sender.send_grouped([message("e")], [None]) == [None]
    sender.send_nowait(message("f")).result(5.0)
    sender.flush()
    receiver = client.receiver("orders")
    messages = receiver.receive(10, 5.0)
    assert [received.payload for received in messages] == [message(text) for text in "abcdef"]
    receiver.complete(messages[0])
    receiver.abandon(messages[1])
    receiver.defer(messages[2])
    receiver.dead_letter(messages[3], "why")
    receiver.release(messages[4])
    receiver.settle_nowait([messages[5]]).result(5.0)
    assert receiver.close() == []
    sender.close()
    assert client.is_connected
    assert [repr(sender), repr(receiver)] == [
        "<Sender orders: closed, 0 of 1000 under way>",
        "<Receiver orders lock: closed, 0 at hand>",
    ]
    assert (sender.entity, receiver.entity) == ("orders", "orders")


def test_requests(served: Peer, client: WireClient) -> None:
    served.manage = lambda operation, body: (200, {"messages": [], "expirations": []}, None)
    assert client.request("orders", "x", {}) == (200, {"messages": [], "expirations": []})
    assert client.peek("orders") == []
    assert client.renew("orders", [b"x" * 16]) == []
    client.settle_by_token("orders", [b"x" * 16], "completed")
    client.connect()


def test_from_many_threads(served: Peer, client: WireClient) -> None:
    sender = client.sender("orders")
    threads = [threading.Thread(target=sender.send, args=(message(str(number)),)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(served.queue("orders")) == 20


def test_a_peer_that_says_nothing_stops_nobody(served: Peer) -> None:
    served.silent = True
    with WireClient("127.0.0.1", served.port, tls=False, connect_timeout=0.1) as client, pytest.raises(TimedOut):
        client.sender("orders")


def test_closing_ends_the_thread(served: Peer) -> None:
    client = WireClient("127.0.0.1", served.port, tls=False)
    sender = client.sender("orders")
    client.close()
    client.close()
    assert not client._thread._thread.is_alive()
    with pytest.raises(ClientClosed, match="make a new one"):
        sender.send(message())
    with pytest.raises(ClientClosed):
        client.connect()


def test_an_interrupted_wait_cancels_the_call() -> None:
    thread = LoopThread()
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    future = thread.start(hang())
    future.cancel()
    assert cancelled.wait(5.0)
    thread.stop()


def test_errors_are_the_same(thread: LoopThread, served: Peer, client: WireClient) -> None:
    client.sender("orders").send(message("a"))
    receiver = client.receiver("orders")
    messages = receiver.receive(1, 5.0)
    thread.run(served.stop())
    with pytest.raises(Unreachable):
        receiver.complete(messages)
