"""Nodes and entities that fail (P49), brought about on purpose; the application's view."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import stat
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, exceptions

from pairbus.broker import Broker, NamespaceServer, serve_sync
from pairbus.broker.control.control_socket import request
from pairbus.broker.crashes import FILES_MAX
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.partitions import PARTITION_SHIFT, PARTITIONS, partition_for
from pairbus.broker.model.topic import Subscription, Topic
from pairbus.errors import InvalidFault
from pairbus.testing import fault
from tests.untidy_sdk import UNTIDY_SDK
from tests.waiting import soon

from .sdk import Sdk, both_apis

pytestmark = UNTIDY_SDK

#: Longer than any of these tests takes, and at most 300 s.
LONG_S = 240.0


@pytest.fixture
def soon_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash is hardly slow, and is down until its fault is ended."""
    monkeypatch.setattr("pairbus.broker.crashes.SLOW_SHARE", 0.001)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Broker]:
    """A broker of its own with one node, so that all of its entities fail together."""
    with serve_sync("contoso", data=tmp_path / "data", nodes=1) as broker:
        yield broker


@pytest.fixture
def own(served: Broker) -> Sdk:
    return Sdk(True, served.namespaces["contoso"])


def crash(broker: Broker, kind: str, seconds: float = 0.02, **target: Any) -> dict[str, Any]:
    message = {"command": "fault", "namespace": "contoso", "kind": kind, "for": seconds, **target}
    answer = request(broker.data, message)
    if not answer["ok"]:
        raise InvalidFault(answer["error"])
    wanted = {"kind": kind, **target}
    return next(each for each in answer["faults"] if wanted.items() <= each.items())


def entity_at(server: NamespaceServer, entity: str) -> QueueEntity:
    found = server.namespace.resolve(entity)
    assert found is not None
    return found.entity


async def until_down(server: NamespaceServer, entity: str) -> None:
    await soon(lambda: entity_at(server, entity).suspended is not None, 30)


async def until_served(server: NamespaceServer, *entities: str) -> None:
    await soon(lambda: not server.crashes.under_way, 30)
    assert [name for name in entities if entity_at(server, name).suspended is not None] == []


async def crash_now(broker: Broker, kind: str, *entities: str, **target: Any) -> dict[str, Any]:
    """Let something crash, and wait until it is served again; return what was written down."""
    found = await asyncio.to_thread(crash, broker, kind, **target)
    await until_served(broker.namespaces["contoso"], *entities)
    said: dict[str, Any] = json.loads(Path(found["diagnostics"]).read_text())
    return said


async def test_p49_an_entity_is_slow_at_first(sdk: Sdk, queue: str, broker: Broker) -> None:
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        async with fault(broker, "crash-entity", entity=queue, delay=0.4, seconds=LONG_S):
            begun = time.monotonic()
            await sender.send_messages(ServiceBusMessage("slow"))
            assert time.monotonic() - begun >= 0.4
            assert entity_at(sdk.namespace, queue).suspended is None
            (listed,) = broker.faults("contoso").active(sdk.namespace.clock())
            assert (listed.entity, listed.delay) == (queue, 0.4)
        await until_served(sdk.namespace)
        await sender.send_messages(ServiceBusMessage("ended before it failed"))
    assert not Path(listed.diagnostics or "").exists()


@pytest.mark.usefixtures("soon_down")
@both_apis
async def test_p49_then_it_is_down_and_comes_back_on_another_node(sdk: Sdk, queue: str, broker: Broker) -> None:
    server = sdk.namespace
    node = server.crashes.nodes.node_of(queue)
    refused = pytest.raises(exceptions.ServiceBusError, match="unable to process the request")
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        async with client.get_queue_receiver(queue) as receiver, sdk.admin() as admin:
            async with fault(broker, "crash-entity", entity=queue, seconds=LONG_S):
                await until_down(server, queue)
                with pytest.raises(exceptions.ServiceBusConnectionError):  # its link was detached
                    await sender.send_messages(ServiceBusMessage("refused"))
                with refused as failed:
                    await sender.send_messages(ServiceBusMessage("refused"))
                assert not isinstance(failed.value, exceptions.MessagingEntityNotFoundError)
                with refused:
                    await receiver.receive_messages(max_wait_time=5)
                with refused:
                    await receiver.peek_messages()
                properties = await admin.get_queue(queue)
                for change in (lambda: admin.update_queue(properties), lambda: admin.delete_queue(queue)):
                    with pytest.raises(HttpResponseError, match="unable to process the request"):
                        await change()
            await until_served(server, queue)
    assert server.crashes.nodes.node_of(queue) != node
    assert [str(message) for message in await sdk.receive(queue, 1)] == ["before"]


@both_apis
async def test_p49_the_retries_of_the_sdk_hide_it(sdk: Sdk, broker: Broker) -> None:
    queue, topic = await sdk.queue(requires_duplicate_detection=True), await sdk.topic("all")
    patient = {"retry_total": 20, "retry_backoff_factor": 0.1, "retry_backoff_max": 0.5}
    expected, got = [], []
    async with sdk.client(**patient) as client, client.get_queue_sender(queue) as sender:
        receiver, publisher = client.get_queue_receiver(queue), client.get_topic_sender(topic)
        async with receiver, publisher:
            for number in range(4):
                if number in (1, 2):
                    for name in (queue, topic):
                        await asyncio.to_thread(crash, broker, "crash-entity", 0.6, delay=0.05, entity=name)
                    await until_down(sdk.namespace, queue)
                message = ServiceBusMessage(str(number), message_id=str(number))
                await sender.send_messages(message)
                await publisher.send_messages(message)
                expected.append(str(number))
                for received in await receiver.receive_messages(1, max_wait_time=5):
                    await receiver.complete_message(received)
                    got.append(str(received))
                if number in (1, 2):
                    await until_served(sdk.namespace, queue, topic)
    assert got == expected
    assert {str(message) for message in await sdk.read(topic, "all", 4)} == set(expected)


@pytest.mark.usefixtures("soon_down")
async def test_p49_short_of_patience_the_sdk_ends_in_a_messaging_error(sdk: Sdk, queue: str, broker: Broker) -> None:
    hasty = {"retry_total": 1, "retry_backoff_factor": 0.05}
    async with fault(broker, "crash-entity", entity=queue, seconds=LONG_S):
        await until_down(sdk.namespace, queue)
        async with sdk.client(**hasty) as client:
            with pytest.raises((exceptions.ServiceBusError, exceptions.OperationTimeoutError)):
                async with client.get_queue_sender(queue) as sender:
                    await sender.send_messages(ServiceBusMessage("x"))
    await until_served(sdk.namespace)
    assert await sdk.receive(queue, 1, wait=0.5) == [], "what was refused was not stored"


async def test_p49_others_go_on(sdk: Sdk, broker: Broker) -> None:
    server = sdk.namespace
    queue = await sdk.queue()
    node = server.crashes.nodes.node_of(queue)
    others = [await sdk.queue() for _ in range(8)]
    other = next(name for name in others if server.crashes.nodes.node_of(name) != node)
    async with sdk.client() as client, client.get_queue_sender(other) as sender:
        await sender.send_messages([ServiceBusMessage("locked"), ServiceBusMessage("next")])
        async with client.get_queue_receiver(other) as receiver:
            (locked,) = await receiver.receive_messages(1, max_wait_time=5)
            connections = set(server.connections)
            async with fault(broker, "crash-node", node=node, delay=5, seconds=4):
                for _ in range(5):
                    await sender.send_messages(ServiceBusMessage("slow phase"))
                await until_down(server, queue)
                for _ in range(5):
                    await sender.send_messages(ServiceBusMessage("down"))
                more = await receiver.receive_messages(20, max_wait_time=5)
                await receiver.complete_message(locked)
                assert entity_at(server, other).links == 2, "its links are as they were"
            await until_served(server, queue)
            for message in more:
                await receiver.complete_message(message)
            assert connections <= set(server.connections)
    assert server.crashes.nodes.node_of(queue) != node


def key_down(sdk: Sdk, broker: Broker, entity: str) -> Any:
    """The partition of the key `a` does not answer."""
    return fault(broker, "unreachable", entity=entity, partition=partition_for("a"))


async def check_others_serve(sdk: Sdk, queue: str, text: str) -> None:
    """The partition of `a` is down, and those of `b` and of messages without a key take and give."""
    async with sdk.client(retry_total=0) as client, client.get_queue_sender(queue) as sender:
        with pytest.raises(exceptions.ServiceBusServerBusyError, match=f"Partition {partition_for('a')} "):
            await sender.send_messages(ServiceBusMessage("refused", partition_key="a"))
        await sender.send_messages(ServiceBusMessage(text, partition_key="b"))
        for _ in range(PARTITIONS):
            await sender.send_messages(ServiceBusMessage(text))
    got = await sdk.receive(queue, PARTITIONS + 1)
    assert [str(message) for message in got] == [text] * (PARTITIONS + 1)
    assert partition_for("a") not in {message.sequence_number >> PARTITION_SHIFT for message in got}
    assert await sdk.depth(queue) == (1, 0)


async def test_p49_a_partition_that_is_down_stays_so_through_a_crash_and_the_others_serve(
    sdk: Sdk, broker: Broker
) -> None:
    queue = await sdk.queue(enable_partitioning=True)
    await sdk.send(queue, ServiceBusMessage("before", partition_key="a"))
    async with key_down(sdk, broker, queue):
        said = await crash_now(broker, "crash-entity", queue, entity=queue)
        assert said["summary"].startswith("memory and journal agree"), said
        await check_others_serve(sdk, queue, "after the crash")
    assert [str(message) for message in await sdk.receive(queue, 1)] == ["before"]
    await sdk.send(queue, ServiceBusMessage("after", partition_key="a"))
    assert [str(message) for message in await sdk.receive(queue, 1)] == ["after"]


async def test_p49_what_was_inconsistent_is_written_down_first(own: Sdk, served: Broker) -> None:
    queue = await own.queue()
    await own.send(queue, *(ServiceBusMessage(str(n)) for n in range(4)))
    server = own.namespace

    def break_it() -> None:
        active = server.namespace.queues[queue].active
        message = active.get(2)
        assert message is not None
        active.ready_list.discard(message)
        active.remove(message)
        other = active.get(3)
        assert other is not None
        other.delivery_count = 7

    await on_loop(server, break_it)
    said = await crash_now(served, "crash-entity", queue, entity=queue)
    (entity,) = said["entities"]
    assert said["summary"] == "memory and journal differ in 2 points"
    assert entity["differences"] == [
        f"message 3 of {queue}: delivery count 7 in memory, 0 in the journal",
        f"message 2 of {queue}: in the journal, and not in memory",
    ]
    assert (entity["memory"]["active_messages"], entity["journal"]["active_messages"]) == (3, 4)
    folder = served.data / "contoso" / "diagnostics"
    (path,) = folder.iterdir()
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(folder.stat().st_mode)) == (0o600, 0o700)
    assert [str(m) for m in await own.receive(queue, 4)] == ["0", "1", "2", "3"]


async def on_loop(server: NamespaceServer, work: Any) -> None:
    """Do something on the broker's own loop."""

    async def run() -> None:
        work()

    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), server.loop))


async def test_p49_diagnostics_are_bounded_in_number(own: Sdk, served: Broker) -> None:
    queue = await own.queue()
    folder = served.data / "contoso" / "diagnostics"
    for _ in range(FILES_MAX + 3):
        await crash_now(served, "crash-entity", queue, entity=queue)
    kept = sorted(path.name for path in folder.iterdir())
    assert len(kept) == FILES_MAX
    assert [name.split("-")[1] for name in kept] == [f"{n:04d}" for n in range(4, FILES_MAX + 4)]


async def test_p49_diagnostics_that_can_t_be_written_keep_nothing_from_restarting(
    own: Sdk, served: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await own.queue()
    await own.send(queue, ServiceBusMessage("kept"))
    (served.data / "contoso" / "diagnostics").write_text("in the way")
    with caplog.at_level(logging.WARNING, "pairbus"):
        await asyncio.to_thread(crash, served, "crash-entity", entity=queue)
        await until_served(own.namespace, queue)
    assert "can't be written to" in caplog.text and "the restart goes on" in caplog.text
    assert "served again" in caplog.text
    assert [str(m) for m in await own.receive(queue, 1)] == ["kept"]


async def test_p49_what_is_thrown_away_is_freed(own: Sdk, served: Broker) -> None:
    queue, topic = await own.queue(requires_session=True), await own.topic("a", "b")
    server = own.namespace

    def entities() -> Counter[str]:
        gc.collect()
        return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, QueueEntity))

    await own.send(queue, *(ServiceBusMessage("x" * 1000, session_id="s") for _ in range(50)))
    await own.publish(topic, *(ServiceBusMessage("y" * 1000) for _ in range(50)))
    assert server.namespace.resident_bytes > 90_000
    before = entities()
    for _ in range(3):
        await crash_now(served, "crash-node", queue, topic, node=0)
    await soon(lambda: server.namespace.resident_bytes == 0)
    await soon(lambda: entities() == before)
    assert before[Topic.__name__] >= 1 and before[Subscription.__name__] >= 2
    await own.send(queue, ServiceBusMessage("more", session_id="s"))
    assert server.namespace.message_count == 151


async def test_p49_what_can_t_crash_is_named(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('[[namespaces.contoso.queues]]\nname = "orders"\n')
    with serve_sync(data=tmp_path / "data", config=config) as broker:
        nodes = broker.namespaces["contoso"].crashes.nodes
        empty = next(n for n in range(4) if n != nodes.node_of("orders"))
        for wanted, problem in (
            ({"kind": "crash-entity", "entity": "ordres"}, "contoso has no 'ordres'; did you mean 'orders'"),
            ({"kind": "crash-node", "entity": "nothing"}, "contoso has no 'nothing'"),
            ({"kind": "crash-node", "node": 4}, "there is no node 4; the nodes are 0 to 3"),
            ({"kind": "crash-node", "node": empty}, f"node {empty} has no entities"),
            ({"kind": "crash-entity"}, "crash-entity needs an entity"),
            ({"kind": "crash-node"}, "needs a node, or an entity"),
            ({"kind": "crash-entity", "entity": "orders", "for": 301}, "lasts 300 seconds at most, not 301"),
            ({"kind": "crash-entity", "entity": "orders", "delay": -1}, "delay -1 of crash-entity is out of bounds"),
        ):
            answer = request(broker.data, {"command": "fault", "namespace": "contoso", **wanted})
            assert not answer["ok"] and problem in answer["error"], wanted
        assert request(broker.data, {"command": "list"})["namespaces"] == {"contoso": []}


async def test_p49_a_second_crash_waits_for_the_first(own: Sdk, served: Broker) -> None:
    queue, other = await own.queue(), await own.queue()
    async with fault(served, "crash-entity", entity=queue, seconds=LONG_S):
        for kind in ("crash-entity", "crash-node"):
            with pytest.raises(InvalidFault, match=f"'{queue}' is being restarted already; wait until that is over"):
                await asyncio.to_thread(crash, served, kind, entity=queue)
        found = await asyncio.to_thread(crash, served, "crash-entity", entity=other)
        await soon(lambda: Path(found["diagnostics"]).exists(), 10)
    await until_served(own.namespace, queue, other)
    assert len(list((served.data / "contoso" / "diagnostics").iterdir())) == 1, "the first did not come about"
