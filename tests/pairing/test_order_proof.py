"""What an application must accept (docs/explanation/order-and-duplicates.md), shown on two embedded namespaces."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import EntityState, ServiceBusClient
from pairbus.broker import Broker, serve_sync
from pairbus.pairing.backlog import backlog_queues
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import SyphonEngine
from pairbus.testing import fault
from tests.untidy_sdk import UNTIDY_SDK
from tests.untidy_sdk import swept as swept

pytestmark = UNTIDY_SDK
QUEUES = 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serve_sync("contoso", "contoso2", data=tmp_path_factory.mktemp("order")) as broker:
        yield broker


class World:
    """A queue, a paired client whose backlog nobody else uses, and a syphon that runs when it is told to."""

    def __init__(self, broker: Broker, **properties: Any) -> None:
        self.broker = broker
        self.name = f"contoso-{uuid.uuid4().hex[:8]}"
        self.queue = f"queue-{self.name}"
        self.primary = broker.namespaces["contoso"]
        self.secondary = broker.namespaces["contoso2"]
        with ServiceBusAdministrationClient.from_connection_string(
            self.primary.connection_string, connection_verify=self.primary.ca_file
        ) as admin:
            admin.create_queue(self.queue, **properties)
        self.client = ServiceBusClient.paired(
            self.primary.connection_string,
            self.secondary.connection_string,
            ca_file=self.secondary.ca_file,
            primary_name=self.name,
            backlog_queue_count=QUEUES,
            send_timeout=4,
            failover_interval=0,
            ping_primary_interval=1,
            client_options={"retry_total": 0},
        )

    def send(self, *texts: str, session_id: str | None = None) -> None:
        with self.client.get_queue_sender(self.queue) as sender:
            for text in texts:
                sender.send_messages(ServiceBusMessage(text, session_id=session_id))

    def receive(self, count: int, session_id: str | None = None) -> list[str]:
        found: list[str] = []
        with self.client.get_queue_receiver(self.queue, session_id=session_id) as receiver:
            while len(found) < count and (messages := receiver.receive_messages(count, max_wait_time=5)):
                for message in messages:
                    assert message.session_id == session_id
                    found.append(str(message))
                    receiver.complete_message(message)
        return found

    def drain(self) -> None:
        paths = [(backlog_queues.path(self.name, index), index) for index in range(QUEUES)]
        engine = SyphonEngine(
            Endpoint.from_connection_string(self.primary.connection_string),
            Endpoint.from_connection_string(self.secondary.connection_string),
            paths,
            drain=True,
        )
        assert asyncio.run(engine.run()).unavailable == []


@pytest.fixture
def world(broker: Broker) -> Iterator[World]:
    world = World(broker)
    yield world
    world.client.close()


@pytest.fixture
def session_world(broker: Broker) -> Iterator[World]:
    world = World(broker, requires_session=True)
    yield world
    world.client.close()


def test_p55_p58_new_messages_overtake_the_backlog(world: World) -> None:
    world.send("one")
    world.client.force_failover(world.queue, hold=True)
    world.send("two", "three")
    world.client.mark_healthy(world.queue)
    world.send("four")
    # the primary takes new messages, and hands them out, while the backlog has not been delivered
    assert world.receive(2) == ["one", "four"]
    world.drain()
    assert sorted(world.receive(2)) == ["three", "two"]


def test_p42_p56_a_session_only_groups(session_world: World) -> None:
    world = session_world
    world.client.force_failover(world.queue, hold=True)
    world.send("ordered", session_id="ada")
    world.send("ordered", session_id="ben")
    world.client.mark_healthy(world.queue)
    world.send("cancelled", session_id="ada")
    world.drain()
    # all of them are in their sessions; what was sent last comes first
    assert world.receive(2, session_id="ada") == ["cancelled", "ordered"]
    assert world.receive(1, session_id="ben") == ["ordered"]


def test_p57_session_state_lives_on_the_primary_only(session_world: World) -> None:
    world = session_world
    world.send("hat", session_id="ada")
    with world.client.get_queue_receiver(world.queue, session_id="ada") as receiver:
        receiver.session.set_state("hat is in the cart", timeout=5)
        with fault(world.broker, "unreachable", namespace="contoso"):
            world.send("coat", session_id="ada")
            assert world.client.state(world.queue) is EntityState.FAILED_OVER
            with pytest.raises(ServiceBusError):
                receiver.session.set_state("hat and coat are in the cart", timeout=2)
    world.drain()
    with world.client.get_queue_receiver(world.queue, session_id="ada") as receiver:
        assert receiver.session.get_state(timeout=5) == b"hat is in the cart"
        assert sorted(map(str, receiver.receive_messages(2, max_wait_time=5))) == ["coat", "hat"]


def test_p20_the_documents_say_so() -> None:
    text = (Path(__file__).parents[2] / "docs" / "explanation" / "order-and-duplicates.md").read_text()
    for said in (
        "requires_duplicate_detection",
        "## Order",
        "Within a session",
        "Session state lives on the primary only",
        "## Receiving",
        "can't be switched on later",
        "ten minutes",
    ):
        assert said in text
