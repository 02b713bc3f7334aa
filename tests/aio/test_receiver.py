from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusServerBusyError

from pairbus.aio import receiver as receiver_module
from pairbus.aio.receiver import PairedReceiver
from pairbus.amqp.message import Properties, encode_message
from pairbus.broker.server import Broker, NamespaceServer
from pairbus.pairing.observers import LedgerObserver, Observer
from pairbus.testing import fault
from pairbus.wire.sync import WireClient

from ..pairing.ledger_lines import told
from ..pairing.sdk_rig import in_queue, sdk_client, takes
from .background import Background, wait_until

PING = "a ping to these tests"  # the embedded broker never delivers a true one


class Rig:
    def __init__(self, broker: Broker, make_queue: Callable[..., str], stack: contextlib.AsyncExitStack) -> None:
        self.broker = broker
        self.server: NamespaceServer = broker.namespaces["contoso"]
        self.make_queue = make_queue
        self.queue = make_queue("receiver")
        self._stack = stack
        self.client: ServiceBusClient = sdk_client(ServiceBusClient, "plain", self.server)
        stack.push_async_callback(self.client.close)
        self.halt_s = 1.0
        self.until = 0.0
        self.busy = 0
        self.asked = 0  # how often somebody wanted to know of a halt
        self.watchers: tuple[Observer, ...] = ()

    def on_busy(self) -> None:
        self.busy += 1
        self.until = time.monotonic() + self.halt_s

    def halted_until(self) -> float:
        self.asked += 1
        return self.until

    def receiver(self, queue: str = "", client: ServiceBusClient | None = None, **options: Any) -> PairedReceiver:
        made = (client or self.client).get_queue_receiver(queue or self.queue, **options)
        receiver = PairedReceiver.adopt(
            made,
            queue or self.queue,
            on_busy=self.on_busy,
            halted_until=self.halted_until,
            watchers=lambda: self.watchers,
        )
        self._stack.push_async_callback(receiver.close)
        return receiver

    def send(self, *bodies: str, queue: str = "", session: str | None = None) -> None:
        with WireClient.from_connection_string(self.server.connection_string) as client:
            sender = client.sender(queue or self.queue)
            for body in bodies:
                kind = PING if body.startswith("ping") else None
                properties = Properties(message_id=f"{body} {uuid4()}", content_type=kind, group_id=session)
                sender.send(encode_message(None, None, properties, None, body.encode()))

    async def given(self, *bodies: str, **options: Any) -> PairedReceiver:
        """A receiver, its link open, of a queue to which this was sent."""
        self.send(*bodies)
        receiver = self.receiver(**options)
        await receiver._open_with_retry()
        return receiver

    def left(self) -> list[str]:
        return in_queue(self.server, self.queue)


@pytest.fixture
async def rig(
    pairbus_broker: Broker,
    pairbus_namespace: NamespaceServer,
    pairbus_queue: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Rig]:
    monkeypatch.setattr(receiver_module, "is_ping", lambda message: message.content_type == PING)
    async with contextlib.AsyncExitStack() as stack:
        yield Rig(pairbus_broker, pairbus_queue, stack)


def texts(messages: Any) -> list[str]:
    return [str(each) for each in messages]


async def test_p7_it_is_the_sdks_receiver_in_all_respects(rig: Rig) -> None:
    made = rig.client.get_queue_receiver(rig.queue, prefetch_count=3, max_wait_time=2, client_identifier="me")
    receiver = PairedReceiver.adopt(made, rig.queue, on_busy=rig.on_busy, halted_until=lambda: 0.0)
    assert receiver is made
    assert isinstance(receiver, ServiceBusReceiver)
    assert receiver.client_identifier == "me"
    assert receiver in rig.client._handlers
    rig.send("one", "two")
    async with receiver:
        first, second = await receiver.receive_messages(2, max_wait_time=2)
        await receiver.complete_message(first)
        await receiver.renew_message_lock(second)
        await receiver.defer_message(second)
        [again] = await receiver.receive_deferred_messages(second.sequence_number or 0)
        await receiver.dead_letter_message(again)
        assert texts(await receiver.peek_messages(5)) == []
    async with rig.receiver(sub_queue="deadletter") as dead:
        assert texts(await dead.receive_messages(1, max_wait_time=2)) == ["two"]


async def test_p32_pings_are_completed_and_dropped(rig: Rig) -> None:
    receiver = await rig.given("ping 1", "one", "ping 2", "two")
    got = await receiver.receive_messages(4, max_wait_time=2)
    assert texts(got) == ["one", "two"]
    for each in got:
        await receiver.complete_message(each)
    await receiver.close()
    assert rig.left() == []


async def test_p32_with_receive_and_delete_they_are_only_dropped(rig: Rig) -> None:
    receiver = await rig.given("ping 1", "one", receive_mode="receiveanddelete")
    assert texts(await receiver.receive_messages(2, max_wait_time=2)) == ["one"]
    assert rig.left() == []


async def test_p32_a_receive_that_found_only_pings_goes_on_waiting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = await rig.given("ping 1")

    async def complete(ping: Any) -> None:
        await ServiceBusReceiver.complete_message(receiver, ping)
        rig.send("late")

    monkeypatch.setattr(receiver, "complete_message", complete)
    assert texts(await receiver.receive_messages(1, max_wait_time=6)) == ["late"]


async def test_p32_and_not_for_longer_than_it_was_told(rig: Rig) -> None:
    receiver = await rig.given("ping 1")
    with takes(1.0, 5.0):
        assert await receiver.receive_messages(1, max_wait_time=1.3) == []


async def test_p32_iteration_passes_over_pings(rig: Rig) -> None:
    receiver = await rig.given("ping 1", "one", "ping 2", "ping 3", "two", "ping 4", max_wait_time=2)
    seen = []
    async for message in receiver:
        seen.append(str(message))
        await receiver.complete_message(message)
    assert seen == ["one", "two"]
    rig.send("ping 5", "three")
    assert str(await anext(receiver)) == "three"


async def test_p32_peek_looks_behind_pings(rig: Rig) -> None:
    receiver = await rig.given("ping 1", "ping 2", "one", "ping 3")
    assert texts(await receiver.peek_messages(2)) == ["one"]
    assert texts(await receiver.peek_messages(4, sequence_number=1, timeout=5)) == ["one"]
    assert texts(await receiver.peek_messages(4, sequence_number=4)) == []


async def test_p32_deferred_pings_are_dropped_too(rig: Rig) -> None:
    rig.send("ping 1", "one")
    async with rig.client.get_queue_receiver(rig.queue) as bare:
        messages = await bare.receive_messages(2, max_wait_time=2)
        numbers = [each.sequence_number or 0 for each in messages]
        for each in messages:
            await bare.defer_message(each)
    receiver = rig.receiver()
    [one] = await receiver.receive_deferred_messages(numbers)
    assert str(one) == "one"
    await receiver.complete_message(one)
    assert rig.left() == []


async def test_p32_in_sessions(rig: Rig) -> None:
    queue = rig.make_queue("sessions", requires_session=True)
    rig.send("ping 1", "one", queue=queue, session="a")
    receiver = rig.receiver(queue, session_id="a")
    assert texts(await receiver.receive_messages(2, max_wait_time=2)) == ["one"]
    await receiver.session.set_state(b"state")
    assert await receiver.session.get_state() == b"state"


async def test_p32_a_ping_that_cannot_be_completed_is_no_matter(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = await rig.given("ping 1", "one")

    async def refuse(_message: Any) -> None:
        raise ServiceBusConnectionError(message="gone")

    monkeypatch.setattr(receiver, "complete_message", refuse)
    assert texts(await receiver.receive_messages(2, max_wait_time=2)) == ["one"]


async def test_p24_a_receive_told_busy_waits_the_halt_out_and_goes_on(rig: Rig) -> None:
    receiver = await rig.given("one")
    await receiver.receive_messages(1, max_wait_time=2)
    rig.send("two")
    throttle = fault(rig.broker, "throttle", entity=rig.queue, rate=0)
    await throttle.__aenter__()

    async def end() -> None:
        assert await wait_until(lambda: rig.busy == 1)
        await throttle.__aexit__(None, None, None)

    ending = Background(end)
    with takes(0.9, 5.0):
        assert texts(await receiver.peek_messages(2, timeout=8)) == ["two"]
    await ending.result()
    assert rig.busy == 1


async def test_p24_while_halted_a_call_whose_time_is_shorter_raises_at_once(rig: Rig) -> None:
    receiver = await rig.given("one")
    [message] = await receiver.receive_messages(1, max_wait_time=2)
    rig.until = time.monotonic() + 60
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: receiver.receive_messages(1, max_wait_time=2),
        lambda: receiver.peek_messages(1, timeout=2),
        lambda: receiver.renew_message_lock(message, timeout=2),
        lambda: receiver.receive_deferred_messages([1], timeout=2),
        lambda: anext(aiter(receiver._get_streaming_message_iter(2))),
    ]
    for call in calls:
        with takes(0.0, 1.5), pytest.raises(ServiceBusServerBusyError, match=f"{rig.queue} was told"):
            await call()
    assert rig.busy == 0, "nobody asked the broker"


async def test_p24_while_halted_a_call_with_time_waits_and_then_asks(rig: Rig) -> None:
    receiver = await rig.given("one")
    rig.until = time.monotonic() + 0.7
    with takes(0.6, 3.0):
        [message] = await receiver.receive_messages(1, max_wait_time=5)
    rig.until = time.monotonic() + 0.5
    with takes(0.5, 5.0):
        await receiver.renew_message_lock(message)
    rig.until = time.monotonic() + 0.5
    with takes(0.5, 5.0):
        await receiver.peek_messages(1)


async def test_p24_a_settlement_on_its_own_link_does_not_wait(rig: Rig) -> None:
    receiver = await rig.given("one")
    [message] = await receiver.receive_messages(1, max_wait_time=2)
    rig.until = time.monotonic() + 20
    with takes(0.0, 5.0):
        await receiver.complete_message(message)
    assert rig.left() == []


async def test_p24_a_settlement_by_management_does(rig: Rig) -> None:
    receiver = await rig.given("one")
    [message] = await receiver.receive_messages(1, max_wait_time=2)
    await receiver.defer_message(message)
    [again] = await receiver.receive_deferred_messages(message.sequence_number or 0)
    rig.until = time.monotonic() + 0.7
    with takes(0.6, 5.0):
        await receiver.complete_message(again)
    assert rig.left() == []


async def test_p24_a_call_without_a_time_ends_after_the_configured_retries(rig: Rig) -> None:
    client: ServiceBusClient = sdk_client(ServiceBusClient, "plain", rig.server, retry_total=2)
    rig.halt_s = 0.3
    rig.send("one")
    async with client:
        receiver = rig.receiver(client=client)
        await receiver.peek_messages(1)
        with (
            fault(rig.broker, "throttle", entity=rig.queue, rate=0),
            takes(0.5, 5.0),
            pytest.raises(ServiceBusServerBusyError),
        ):
            await receiver.peek_messages(1)
        assert rig.busy == 3


async def test_p24_closing_ends_the_wait(rig: Rig) -> None:
    receiver = rig.receiver()
    await receiver.peek_messages(1)
    rig.until = time.monotonic() + 20
    rig.asked = 0
    waiting = Background(receiver.peek_messages, 1)
    assert await wait_until(lambda: rig.asked)
    with takes(0.0, 3.0):
        await receiver.close()
        with pytest.raises(ValueError, match="shutdown"):
            await waiting.result()


async def test_p24_the_lock_renewer_lives_with_halts(rig: Rig) -> None:
    rig.send("ping 1", "one")
    async with AutoLockRenewer() as renewer:
        receiver = rig.receiver(auto_lock_renewer=renewer)
        [message] = await receiver.receive_messages(2, max_wait_time=2)
        rig.until = time.monotonic() + 0.3
        await receiver.renew_message_lock(message)
        await receiver.complete_message(message)


async def test_p54_during_an_outage_it_behaves_as_the_sdks(rig: Rig) -> None:
    client: ServiceBusClient = sdk_client(ServiceBusClient, "plain", rig.server, retry_total=0)
    outcomes = []
    async with client, fault(rig.broker, "no-receive", entity=rig.queue):
        for receiver in (client.get_queue_receiver(rig.queue), rig.receiver(client=client)):
            try:
                outcomes.append(repr(await receiver.receive_messages(1, max_wait_time=1)))
            except Exception as error:
                outcomes.append(type(error).__name__)
    assert outcomes[0] == outcomes[1]
    assert rig.busy == 0


async def test_p51_what_is_received_and_settled_is_in_the_ledger(rig: Rig, tmp_path: Path) -> None:
    ledger = LedgerObserver(tmp_path, "contoso", "contoso2")
    rig.watchers = (ledger,)
    receiver = await rig.given("complete", "abandon", "defer", "bury")
    got: list[Any] = []
    while len(got) < 4:
        got += await receiver.receive_messages(4 - len(got), max_wait_time=5)
    first, second, third, fourth = got
    await receiver.complete_message(first)
    await receiver.defer_message(third)
    await receiver.dead_letter_message(fourth)
    (again,) = await receiver.receive_deferred_messages([third.sequence_number])
    await receiver.complete_message(again)
    with pytest.raises(ValueError):
        await receiver.complete_message(again)
    await receiver.abandon_message(second)
    taking = rig.receiver(receive_mode="receiveanddelete")
    (taken,) = await taking.receive_messages(max_wait_time=5)
    assert await taking.receive_messages(max_wait_time=0.1) == []
    burial = rig.receiver(sub_queue="deadletter")
    async for buried in burial:
        await burial.complete_message(buried)
        break
    ledger.close()
    dead = f"{rig.queue}/$DeadLetterQueue"
    found = told(tmp_path)
    seen = [(each["kind"], each["entity"], each.get("mid"), each.get("seq"), each["outcome"]) for each in found]
    kinds = {
        mid: [(kind, entity, outcome) for kind, entity, each, _, outcome in seen if each == mid]
        for mid in (first.message_id, second.message_id, third.message_id, fourth.message_id, None)
    }
    plain, settle = ("receive", rig.queue, "ok"), ("settle", rig.queue, "ok")
    assert kinds[first.message_id] == [plain, settle]
    assert kinds[second.message_id] == [plain, settle, plain, settle], "abandoned, then taken for good"
    assert kinds[third.message_id] == [plain, settle, plain, settle, ("settle", rig.queue, "MessageAlreadySettled")]
    assert kinds[fourth.message_id] == [
        plain, ("dead-letter", rig.queue, "ok"), ("receive", dead, "ok"), ("settle", dead, "ok"),
    ]  # fmt: skip
    assert kinds[None] == [("poll", rig.queue, "ok")]
    assert taken.message_id == second.message_id
    assert {seq for _, _, mid, seq, _ in seen if mid == third.message_id} == {third.sequence_number}
    for each in found:
        assert (each["ns"], each["cause"]) == ("contoso", "app")
        if each["kind"] == "receive":
            assert 100 < each["bytes"] < 1500 and each["units"] == 1
        elif each["kind"] == "poll":
            assert (each["bytes"], each["units"]) == (0, 1)


async def test_p14_nobody_who_watches_is_told_nothing_and_one_who_fails_stops_nothing(rig: Rig) -> None:
    class Failing(Observer):
        wants_receives = True

        def received(self, entity: str, messages: Any, removed: bool) -> None:
            raise RuntimeError("watching")

        def settled(self, entity: str, message: Any, is_dead_letter: bool, outcome: str, ms: float) -> None:
            raise RuntimeError("watching")

    receiver = await rig.given("a", "b")
    for watchers in ((), (Failing(),)):
        rig.watchers = watchers
        (message,) = await receiver.receive_messages(max_wait_time=5)
        await receiver.complete_message(message)
    assert rig.left() == []
