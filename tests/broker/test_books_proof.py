"""P51: every billable operation is counted, and the ledger adds up to the counters, to the operation, unit and byte.

One mixed run through the official SDK, sync and async, and through our wire client with a cause of its own.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.message import Header, Properties, encode_message
from pairbus.broker import Broker, serve
from pairbus.broker.control.control_socket import request
from pairbus.broker.format.content import PING_CONTENT_TYPE
from pairbus.broker.slices import finish
from pairbus.wire import Refused, WireClient, WireError
from tests.untidy_sdk import UNTIDY_SDK
from tests.waiting import soon

from .books import added_up, counted, events, exposed
from .conftest import Clock
from .sdk import Sdk

# the SDK leaves sockets and coroutines behind
pytestmark = UNTIDY_SDK

NOW = datetime.UTC
Event = dict[str, Any]


class Bench:
    """A broker of this test's own, and what its ledger says after it has stopped."""

    def __init__(self, broker: Broker, data: Path, clock: Clock) -> None:
        self.broker = broker
        self.data = data
        self.clock = clock
        self.served = broker.namespaces["contoso"]

    def flushed(self) -> list[Event]:
        ledger = self.served.recorder.ledger
        assert ledger is not None
        ledger.flush()
        return events(self.data, "contoso")

    def check(self) -> list[Event]:
        """The three books agree."""
        found = self.flushed()
        assert added_up(found) == counted(self.broker, "contoso")
        assert exposed(finish(self.broker.metrics.exposition("contoso")), "contoso") == counted(self.broker, "contoso")
        return found

    def of(self, entity: str, *kinds: str) -> list[Event]:
        return [
            each for each in self.flushed() if each.get("entity") == entity and (not kinds or each["kind"] in kinds)
        ]


@pytest.fixture
async def bench(tmp_path: Path, clock: Clock) -> AsyncIterator[Bench]:
    async with serve("contoso", data=tmp_path, ledger=True, durability="none", clock=clock) as broker:
        yield Bench(broker, tmp_path, clock)


def outcomes(found: list[Event]) -> Counter[tuple[str, str, str | None]]:
    return Counter((each["kind"], each["outcome"], each.get("cause")) for each in found if "entity" in each)


async def until(count: int, bench: Bench, entity: str, kind: str) -> None:
    await soon(lambda: len(bench.of(entity, kind)) >= count)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_p51_a_mixed_run_through_the_sdk_adds_up(bench: Bench, is_async: bool) -> None:
    sdk = Sdk(is_async, bench.served)
    queue = await sdk.queue()
    once = await sdk.queue(requires_duplicate_detection=True)
    sessions = await sdk.queue(requires_session=True)
    topic = await sdk.topic("all", "more")
    empty = await sdk.topic()
    big = 150_000
    async with sdk.client() as client:
        async with client.get_queue_sender(queue) as sender:
            for n in range(5):
                await sender.send_messages(ServiceBusMessage("one", message_id=f"one-{n}"))
            batch = sender.target.create_message_batch()
            batch = await batch if is_async else batch
            for n in range(4):
                batch.add_message(ServiceBusMessage("batched", message_id=f"batch-{n}"))
            await sender.send_messages(batch)
            await sender.send_messages(ServiceBusMessage(b"x" * big, message_id="big"))
            await sender.send_messages(ServiceBusMessage("", message_id="ping", content_type=PING_CONTENT_TYPE))
            with pytest.raises(ServiceBusError):
                await sender.send_messages(ServiceBusMessage(b"x" * 300_000, message_id="huge"))
            later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
            numbers = await sender.schedule_messages(
                [ServiceBusMessage("later", message_id=f"later-{n}") for n in range(3)], later
            )
            await sender.cancel_scheduled_messages(numbers[:2])
        async with client.get_queue_sender(once) as sender:
            for _ in range(3):
                await sender.send_messages(ServiceBusMessage("same", message_id="same"))
        async with client.get_queue_sender(sessions) as sender:
            await sender.send_messages(ServiceBusMessage("s", session_id="s", message_id="in-session"))
            with pytest.raises(ServiceBusError):
                await sender.send_messages(ServiceBusMessage("none", message_id="no-session"))
        for name in (topic, empty):
            async with client.get_topic_sender(name) as sender:
                await sender.send_messages([ServiceBusMessage("t", message_id=f"{name}-{n}") for n in range(2)])
        async with client.get_queue_receiver(queue, max_wait_time=5) as receiver:
            assert len(await receiver.peek_messages(max_message_count=20)) == 11
            got: list[Any] = []
            while len(got) < 7:
                got += await receiver.receive_messages(max_message_count=7 - len(got), max_wait_time=5)
            await receiver.renew_message_lock(got[0])
            await receiver.complete_message(got[0])
            await receiver.abandon_message(got[1])
            await receiver.dead_letter_message(got[2], reason="r")
            await receiver.defer_message(got[3])
            for message in await receiver.receive_deferred_messages([got[3].sequence_number]):
                await receiver.complete_message(message)
            for message in got[4:]:
                await receiver.complete_message(message)
        async with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            count = 0
            while count < 4:
                count += len(await receiver.receive_messages(max_message_count=9, max_wait_time=5))
            assert await receiver.receive_messages(max_wait_time=0.1) == []
        async with client.get_queue_receiver(sessions, session_id="s") as receiver:
            await receiver.session.set_state(b"state") if is_async else await asyncio.to_thread(
                receiver.session.set_state, b"state"
            )
            (message,) = await receiver.receive_messages(max_wait_time=5)
            await receiver.complete_message(message)
    for subscription in ("all", "more"):
        assert len(await sdk.read(topic, subscription, 2)) == 2
    await until(1, bench, queue, "poll")

    found = bench.check()
    assert outcomes(bench.of(once)) == {
        ("manage", "ok", "manage"): 1, ("send", "ok", "app"): 1, ("send", "duplicate", "app"): 2,
    }  # fmt: skip
    sends = outcomes(bench.of(queue, "send", "ping"))
    assert sends[("send", "ok", "app")] == 5 + 4 + 1 + 3
    assert sends[("ping", "ok", "ping")] == 1
    assert sum(count for (_, outcome, _), count in sends.items() if outcome != "ok") == 1
    assert next(each["units"] for each in bench.of(queue, "send") if each.get("mid") == "big") == 3
    assert outcomes(bench.of(queue, "receive", "dead-letter")) == {
        ("receive", "ok", "app"): 7 + 1 + 4, ("dead-letter", "ok", "app"): 1,
    }  # fmt: skip
    # peek, renew, cancel; settlements, receiving by number and scheduling are booked as what they are
    assert outcomes(bench.of(queue, "manage"))[("manage", "ok", "app")] == 3
    assert [each["mid"] for each in bench.of(empty, "expire")] == [f"{empty}-0", f"{empty}-1"]
    assert outcomes(bench.of(empty, "expire")) == {("expire", "no-subscription", None): 2}
    assert outcomes(bench.of(f"{topic}/Subscriptions/all", "receive", "settle")) == {
        ("receive", "ok", "app"): 2, ("settle", "ok", "app"): 2,
    }  # fmt: skip
    gone = [each["mid"] for each in bench.of(queue, "settle") if "cause" not in each]
    assert gone == ["later-0", "later-1"], "called off: gone although nobody received them"
    assert Counter(each.get("mid") for each in bench.of(queue, "send") if each["outcome"] == "ok").total() == 13
    assert {each["cause"] for each in found if each["kind"] in ("send", "receive", "poll")} == {"app"}


def encoded(mid: str, body: bytes = b"x", ttl_ms: int | None = None, **properties: Any) -> bytes:
    header = None if ttl_ms is None else Header(ttl=ttl_ms)
    return encode_message(header=header, properties=Properties(message_id=mid, **properties), body=body)


async def test_p51_a_wire_client_is_booked_under_its_cause(bench: Bench) -> None:
    sdk = Sdk(True, bench.served)
    queue = await sdk.queue()
    text = bench.served.connection_string
    async with WireClient.from_connection_string(text, cause="syphon") as client:
        sender = await client.sender(queue)
        assert await sender.send_many([encoded(f"m{n}") for n in range(20)]) == [None] * 20
        await sender.send_batch([encoded(f"b{n}", b"y" * 1000) for n in range(5)])
        with pytest.raises(WireError):
            await sender.send(encoded("huge", b"z" * 300_000))
        with pytest.raises(Refused):
            await sender.send(b"nonsense")
        receiver = await client.receiver(queue)
        got = await receiver.receive(10, 5)
        await receiver.complete(got[:5])
        await client.settle_by_token(queue, [each.lock_token for each in got[5:]], "completed")
        assert len(await client.peek(queue, 1, 5)) == 5
        await receiver.close()
        taking = await client.receiver(queue, mode="delete")
        taken: list[Any] = []
        while len(taken) < 15:
            taken += await taking.receive(15 - len(taken), 5)
        assert await taking.receive(1, 0.1) == []
    await until(1, bench, queue, "poll")
    bench.check()
    found = outcomes(bench.of(queue))
    assert found.pop(("manage", "ok", "manage")) == 1
    assert {cause for _, _, cause in found} == {"syphon"}
    assert (found["send", "ok", "syphon"], found["receive", "ok", "syphon"]) == (25, 25)
    assert (found["settle", "ok", "syphon"], found["manage", "ok", "syphon"]) == (25, 1)
    refused = {outcome: count for (kind, outcome, _), count in found.items() if kind == "send" and outcome != "ok"}
    assert refused == {"amqp:decode-error": 1}, "what is too large for the link never left the client"
    settled = [each.get("mid") for each in bench.of(queue, "settle")]
    assert sorted(settled) == sorted(each["mid"] for each in bench.of(queue, "receive"))


async def test_what_outlives_its_time_is_booked(bench: Bench) -> None:
    sdk = Sdk(True, bench.served)
    dropping = await sdk.queue()
    burying = await sdk.queue(dead_lettering_on_message_expiration=True)
    topic = await sdk.topic("all")
    async with WireClient.from_connection_string(bench.served.connection_string) as client:
        for entity in (dropping, burying, topic):
            await (await client.sender(entity)).send_batch([encoded("mortal", ttl_ms=5000), encoded("other")])
    bench.clock.advance(10)
    for entity, kind in ((dropping, "expire"), (burying, "dead-letter"), (f"{topic}/Subscriptions/all", "expire")):
        await until(1, bench, entity, kind)
        (line,) = bench.of(entity, kind)
        assert (line["mid"], line["seq"], line["outcome"]) == ("mortal", 1, "ok")
    bench.check()


async def test_what_expired_while_the_broker_was_down_is_booked(tmp_path: Path, clock: Clock) -> None:
    async with serve("contoso", data=tmp_path, ledger=True, clock=clock) as broker:
        queue = await Sdk(True, broker.namespaces["contoso"]).queue()
        async with WireClient.from_connection_string(broker.namespaces["contoso"].connection_string) as client:
            await (await client.sender(queue)).send_batch([encoded("mortal", ttl_ms=5000), encoded("other")])
    assert [(each["mid"], each["seq"]) for each in events(tmp_path, "contoso") if each["kind"] == "left"] == [
        ("mortal", 1), ("other", 2),
    ]  # fmt: skip
    clock.advance(10)
    async with serve("contoso", data=tmp_path, ledger=True, clock=clock) as broker:
        await until(1, Bench(broker, tmp_path, clock), queue, "expire")
    found = events(tmp_path, "contoso")
    assert [(each["mid"], each["entity"]) for each in found if each["kind"] == "expire"] == [("mortal", queue)]
    assert [each["mid"] for each in found if each["kind"] == "left"] == ["mortal", "other", "other"]


async def test_too_many_deliveries_are_booked_as_a_dead_letter(bench: Bench) -> None:
    sdk = Sdk(True, bench.served)
    queue = await sdk.queue(max_delivery_count=2, lock_duration=datetime.timedelta(seconds=5))
    await sdk.send(
        queue, ServiceBusMessage("a", message_id="abandoned"), ServiceBusMessage("b", message_id="forgotten")
    )
    async with WireClient.from_connection_string(bench.served.connection_string) as client:
        receiver = await client.receiver(queue)
        for _ in range(2):
            (first, _) = [*(await receiver.receive(1, 5)), *(await receiver.receive(1, 5))]
            await receiver.abandon(first)
            bench.clock.advance(6)
            await asyncio.sleep(0.01)
        await until(2, bench, queue, "dead-letter")
    assert sorted(each["mid"] for each in bench.of(queue, "dead-letter")) == ["abandoned", "forgotten"]
    bench.check()


async def test_what_is_deleted_with_its_queue_is_booked(bench: Bench) -> None:
    sdk = Sdk(True, bench.served)
    queue = await sdk.queue()
    await sdk.send(queue, ServiceBusMessage("a", message_id="a"), ServiceBusMessage("b", message_id="b"))
    async with sdk.admin() as admin:
        await admin.delete_queue(queue)
    await until(2, bench, queue, "expire")
    assert outcomes(bench.of(queue, "expire")) == {("expire", "entity-deleted", None): 2}
    bench.check()


async def test_left_is_written_when_asked_and_at_the_end(tmp_path: Path) -> None:
    async with serve("contoso", data=tmp_path, ledger=True) as broker:
        sdk = Sdk(True, broker.namespaces["contoso"])
        queue, topic = await sdk.queue(), await sdk.topic("all")
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        await sdk.send(queue, *[ServiceBusMessage("m", message_id=each) for each in ("active", "dead", "deferred")])
        await sdk.send(queue, ServiceBusMessage("m", message_id="later", scheduled_enqueue_time_utc=later))
        await sdk.publish(topic, ServiceBusMessage("m", message_id="copied"))
        await sdk.publish(topic, ServiceBusMessage("m", message_id="due", scheduled_enqueue_time_utc=later))
        async with sdk.client() as client, client.get_queue_receiver(queue) as receiver:
            for message in [*(await receiver.receive_messages(3, 5)), *(await receiver.receive_messages(3, 1))]:
                if message.message_id == "dead":
                    await receiver.dead_letter_message(message)
                elif message.message_id == "deferred":
                    await receiver.defer_message(message)
        wanted = {
            (queue, "active"), (queue, "deferred"), (queue, "later"), (f"{queue}/$DeadLetterQueue", "dead"),
            (f"{topic}/Subscriptions/all", "copied"), (topic, "due"),
        }  # fmt: skip
        answer = await asyncio.to_thread(request, tmp_path, {"command": "left", "namespace": "contoso"})
        assert answer == {"ok": True, "left": 6}
        asked = [each for each in events(tmp_path, "contoso") if each["kind"] == "left"]
        assert {(each["entity"], each["mid"]) for each in asked} == wanted
        assert all(each["seq"] >= 1 and each["outcome"] == "ok" for each in asked)
    assert len([each for each in events(tmp_path, "contoso") if each["kind"] == "left"]) == 12


async def test_left_needs_a_ledger_and_a_namespace(tmp_path: Path) -> None:
    async with serve("contoso", data=tmp_path):
        ask = {"command": "left", "namespace": "contoso"}
        answer = await asyncio.to_thread(request, tmp_path, ask)
        assert answer == {
            "ok": False, "error": "namespace 'contoso' keeps no ledger; start the broker with --ledger",
        }  # fmt: skip
        answer = await asyncio.to_thread(request, tmp_path, {**ask, "namespace": "fabrikam"})
        assert answer["error"] == "no namespace 'fabrikam' is served here; there is contoso"
