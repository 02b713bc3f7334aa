from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import time
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp import errors as conditions
from pairbus.amqp.message import BATCH_FORMAT as BATCH
from pairbus.amqp.message import Properties, encode_message, join_batch, read_properties
from pairbus.amqp.performative_types import (
    Accepted,
    Begin,
    Error,
    Flow,
    Modified,
    Received,
    Rejected,
    Released,
    Transfer,
)
from pairbus.amqp.performatives import decode_performative
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.broker import Broker, NamespaceServer
from pairbus.broker.amqp import links
from pairbus.broker.amqp.links import outcome_of
from pairbus.broker.control.control_socket import request
from pairbus.broker.control.faults import Fault
from pairbus.broker.format.content_checks import Checked
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer, Release
from pairbus.journal import Journal, JournalFailed
from pairbus.testing import fault
from pairbus.wire import Refused, TimedOut, TooLarge, WireClient, WireError
from tests.broker.attack_words import Target, attach, credit, frame, let_in
from tests.broker.broker_process import BrokerProcess
from tests.broker.crash_load import admin_client, payload_of, split_of
from tests.broker.namespace_rig import make_special
from tests.broker.raw_client import raw_client
from tests.broker.sdk import Sdk
from tests.message_view import View
from tests.waiting import soon


def dead_letter(condition: str, description: str | None = None, **info: Any) -> Rejected:
    return Rejected(error=Error(condition, description, info))


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (Accepted(), Complete()),
        (Released(), Release()),
        (Modified(), Abandon({})),
        (Modified(delivery_failed=True), Abandon({})),
        (Modified(delivery_failed=True, message_annotations={"tries": 1}), Abandon({"tries": 1})),
        (Rejected(), DeadLetter(None, None, {})),
        (
            dead_letter(
                "com.microsoft:dead-letter", None, DeadLetterReason="r", DeadLetterErrorDescription="d", more=1
            ),
            DeadLetter("r", "d", {"more": 1}),
        ),
        (dead_letter("com.microsoft:dead-letter", "said"), DeadLetter(None, None, {})),
        (dead_letter("amqp:decode-error", "not JSON"), DeadLetter("amqp:decode-error", "not JSON", {})),
        (Modified(delivery_failed=True, undeliverable_here=True, message_annotations={"k": 1}), Defer({"k": 1})),
        (Modified(undeliverable_here=True), Defer({})),
        (None, None),
        (Received(section_number=0, section_offset=0), None),
    ],
)
def test_what_a_delivery_state_asks_for(state: Any, outcome: Any) -> None:
    assert outcome_of(state) == outcome


# -- faults that leave a sender without an answer


@pytest.fixture
def queues(broker: Broker) -> Iterator[tuple[str, str]]:
    served = broker.namespaces["contoso"]
    with admin_client(served.connection_string, str(served.ca_file)) as admin:
        names = ("faulty", "sound")
        for name in names:
            admin.create_queue(name)
        yield names
        for name in names:
            admin.delete_queue(name)


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[WireClient]:
    text = broker.namespaces["contoso"].connection_string
    async with WireClient.from_connection_string(text, timeout=10.0, backoff=lambda: iter(lambda: 0.01, None)) as wire:
        yield wire


async def ids_in(wire: WireClient, queue: str) -> list[str]:
    return [message_id(payload) for payload in await wire.peek(queue, 1, 1000)]


def message_id(payload: bytes) -> str:
    return str(read_properties(payload, split_of(payload).sections).message_id)


def hung(broker: Broker) -> list[set[str]]:
    """Of each connection on which sends hang."""
    return [connection.hung for connection in list(broker.namespaces["contoso"].connections) if connection.hung]


@pytest.mark.parametrize("removes", [True, False])
async def test_a_shut_session_window_takes_nothing_from_the_queue(
    broker: Broker, wire: WireClient, queues: tuple[str, str], removes: bool
) -> None:
    """What can't be sent would be gone with the client, or locked where others wait for it."""
    queue, _ = queues
    sender = await wire.sender(queue)
    for id in ("1", "2", "3"):
        await sender.send(payload_of(id))
    served = broker.namespaces["contoso"]
    target = Target(served.connection_string, str(served.ca_file))
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)

    async def answered(answer: type, window: int, **fields: Any) -> None:
        """Set the window of the session and wait for this answer there."""
        flow = Flow(
            next_incoming_id=0, incoming_window=window, next_outgoing_id=0, outgoing_window=9, echo=True, **fields
        )
        writer.write(frame(flow.encode(), channel=1))
        while True:
            head = await reader.readexactly(8)
            if not head.startswith(b"AMQP"):
                size, _, _, channel = struct.unpack(">IBBH", head)
                body = await reader.readexactly(size - 8)
                if channel == 1 and isinstance(decode_performative(body)[0], answer):
                    return

    with contextlib.closing(writer):
        begin = Begin(next_outgoing_id=0, incoming_window=0, outgoing_window=9)
        writer.write(let_in(target) + frame(begin.encode(), channel=1))
        writer.write(attach(0, queue, receives=True, channel=1, snd_settle_mode=int(removes)))
        async with asyncio.timeout(10):
            await answered(Flow, 0, handle=0, delivery_count=0, link_credit=3)
            other = await wire.receiver(queue)
            (first,) = await other.receive(1, 2.0)
            assert message_id(first.payload) == "1"
            await answered(Transfer, 1)
            (third,) = await other.receive(1, 2.0)
            assert message_id(third.payload) == "3"


async def test_all_of_many_sends_are_stored_and_none_is_answered(
    broker: Broker, wire: WireClient, queues: tuple[str, str]
) -> None:
    queue, _ = queues
    sender = await wire.sender(queue)
    ids = [str(number) for number in range(200)]
    async with fault(broker, "lost-answer", entity=queue):
        sends = [sender.send_nowait(encode_message(properties=Properties(message_id=id), body=b"")) for id in ids]
        results = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(result, WireError) and result.outcome_unknown for result in results), results
    await sender.send(payload_of("after"))
    # those that the broker had read when the cut came are there, in order and once
    *stored, last = await ids_in(wire, queue)
    assert last == "after"
    assert stored == ids[: len(stored)] != []


async def test_the_cut_may_come_later_than_the_answer_would(
    broker: Broker, wire: WireClient, queues: tuple[str, str]
) -> None:
    queue, _ = queues
    sender = await wire.sender(queue)
    async with fault(broker, "lost-answer", entity=queue, delay=0.3):
        began = time.monotonic()
        with pytest.raises(WireError) as caught:
            await sender.send(payload_of("cut"))
        assert time.monotonic() - began >= 0.3
        assert caught.value.outcome_unknown
        # the fault's end comes too late for an answer that is lost already
        sending = asyncio.ensure_future(sender.send(payload_of("lost for good")))
        while "lost for good" not in await ids_in(wire, queue):
            pass
    with pytest.raises(WireError) as caught:
        await sending
    assert caught.value.outcome_unknown
    assert await ids_in(wire, queue) == ["cut", "lost for good"]


async def test_what_is_refused_is_answered(broker: Broker, wire: WireClient, queues: tuple[str, str]) -> None:
    queue, _ = queues
    sender = await wire.sender(queue)
    async with fault(broker, "lost-answer"):
        with pytest.raises(Refused):
            await sender.send_batch([payload_of("good"), b"no message"])
        async with fault(broker, "hang"), fault(broker, "no-send", entity=queue):
            with pytest.raises(Refused, match="unable to process"):
                await sender.send(payload_of("refused"))
    assert await ids_in(wire, queue) == []


async def test_a_hang_is_over_with_the_last_fault_that_covers_it(
    broker: Broker, wire: WireClient, queues: tuple[str, str]
) -> None:
    queue, other = queues
    text = broker.namespaces["contoso"].connection_string
    async with WireClient.from_connection_string(text) as bystander:
        at_ease, sender = await bystander.sender(other), await wire.sender(queue)
        faults = broker.faults("contoso")
        async with fault(broker, "hang", entity=queue):
            sending = asyncio.ensure_future(sender.send(payload_of("hangs")))
            await soon(lambda: hung(broker) == [{queue}])
            async with fault(broker, "hang"):
                assert len(faults.active(broker.clock())) == 2
            assert faults.active(broker.clock()) == [Fault("hang", entity=queue)]
            assert hung(broker) == [{queue}]
            await at_ease.send(payload_of("meanwhile"))
            assert not sending.done()
        with pytest.raises(WireError) as caught:
            await sending
        assert caught.value.outcome_unknown
        assert hung(broker) == []
        assert bystander.is_connected
        await at_ease.send(payload_of("never cut"))
        await sender.send(payload_of("after"))
        assert await ids_in(wire, queue) == ["after"]
        assert await ids_in(wire, other) == ["meanwhile", "never cut"]


async def test_a_hang_that_ends_by_itself_cuts_too(broker: Broker, wire: WireClient, queues: tuple[str, str]) -> None:
    queue, _ = queues
    sender = await wire.sender(queue)
    message = {"command": "fault", "namespace": "contoso", "kind": "hang", "entity": queue, "for": 2.0}
    assert (await asyncio.to_thread(request, broker.data, message))["ok"]
    with pytest.raises(WireError) as caught:
        await sender.send(payload_of("hangs"), timeout=30.0)
    assert caught.value.outcome_unknown
    assert not isinstance(caught.value, TimedOut)
    await sender.send(payload_of("after"))
    assert await ids_in(wire, queue) == ["after"]


async def test_more_than_a_connection_may_hold_can_hang(
    broker: Broker, wire: WireClient, queues: tuple[str, str]
) -> None:
    """What hangs is not kept, so the connection is read from as before: receiving goes on over it."""
    queue, other = queues
    await (await wire.sender(other)).send(payload_of("to be had"))
    receiver, sender = await wire.receiver(other), await wire.sender(queue)
    async with fault(broker, "hang", entity=queue):
        payload = encode_message(properties=Properties(message_id="hangs"), body=b"x" * 200_000)
        sends = [asyncio.ensure_future(sender.send(payload)) for _ in range(100)]
        await soon(lambda: hung(broker) == [{queue}])
        (message,) = await receiver.receive(1, 10.0)
        await receiver.complete([message])
        assert not any(send.done() for send in sends)
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(result, WireError) for result in results)
    assert await ids_in(wire, queue) == []


async def test_schedules_hang_and_lose_their_answers_too(
    broker: Broker, wire: WireClient, queues: tuple[str, str]
) -> None:
    queue, _ = queues

    async def schedule(id: str) -> Any:
        payload = encode_message(
            properties=Properties(message_id=id),
            message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(int(time.time() + 3600) * 1000)},
            body=b"",
        )
        entry = {"message-id": id, "message": payload}
        return await wire.request(queue, "com.microsoft:schedule-message", {"messages": [entry]}, timeout=5.0)

    await schedule("before")
    async with fault(broker, "lost-answer", entity=queue):
        with pytest.raises(WireError) as caught:
            await schedule("stored")
        assert caught.value.outcome_unknown
    async with fault(broker, "hang", entity=queue):
        hanging = asyncio.ensure_future(schedule("not stored"))
        await soon(lambda: hung(broker) == [{queue}])
    with pytest.raises(WireError) as caught:
        await hanging
    assert caught.value.outcome_unknown
    assert await ids_in(wire, queue) == ["before", "stored"]


async def test_a_send_whose_answer_is_lost_survives_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        process.start()
        with admin_client(process.connection_string, process.ca_file) as admin:
            admin.create_queue("orders")
        async with WireClient.from_connection_string(process.connection_string) as wire:
            sender = await wire.sender("orders")
            async with fault(process.data, "lost-answer"):
                with pytest.raises(WireError):
                    await sender.send(payload_of("stored"))
        process.kill()
        process.start()
        async with WireClient.from_connection_string(process.connection_string) as wire:
            assert await ids_in(wire, "orders") == ["stored"]


@pytest.mark.parametrize("removes", [False, True], ids=["peek-lock", "receive-and-delete"])
@pytest.mark.parametrize("delay", [0.0, 0.01], ids=["at-once", "late"])
async def test_a_drain_is_answered_where_the_credit_is_used_up_and_messages_remain(
    broker: Broker, wire: WireClient, queues: tuple[str, str], removes: bool, delay: float
) -> None:
    """A JavaScript receiver waits for the answer, and closes its link when there is none."""
    queue = queues[0]
    sender = await wire.sender(queue)
    assert await sender.send_many([payload_of(str(number)) for number in range(4)]) == [None] * 4
    served = broker.namespaces["contoso"]
    target = Target(served.connection_string, str(served.ca_file))
    late = fault(broker, "latency", delay=delay, entity=queue) if delay else contextlib.nullcontext()
    async with raw_client(served) as raw:
        with late:
            raw.say(let_in(target), attach(5, queue, receives=True, snd_settle_mode=int(removes)))
            heard = []

            async def until_drained() -> Flow:
                while True:
                    frame = (await raw.hear(Transfer, Flow))[1]
                    if isinstance(frame, Flow) and frame.handle == 5:
                        return frame
                    heard.append(frame)

            raw.say(credit(5, 3, drain=True))
            for _ in range(2):
                flow = await until_drained()
                assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 3)
                assert len([each for each in heard if each.handle == 5]) == 3
                raw.say(credit(5, 3, drain=True))  # all of it is used: this asks for nothing but the answer


async def test_p45_latency_does_not_starve_receivers_that_compete(
    broker: Broker, wire: WireClient, queues: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets a few at a time: what is left of its credit must be served after the delay, and its drain answered."""
    monkeypatch.setattr("pairbus.wire.receiver.DRAIN_S_MAX", 1000.0)  # a drain that nobody answers hangs
    queue = queues[0]
    sender = await wire.sender(queue)
    assert await sender.send_many([payload_of(str(number)) for number in range(400)]) == [None] * 400
    receivers = [await wire.receiver(queue) for _ in range(2)]

    async def take(receiver: Any) -> int:
        got = 0
        while some := await receiver.receive(200, max_wait=0.5):
            got += len(some)
        return got

    with fault(broker, "latency", delay=0.05, entity=queue):
        assert sum(await asyncio.gather(*map(take, receivers))) == 400


async def test_no_answer_says_that_it_was_not_done_where_only_a_restart_shows_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk neither kept the record nor let the journal refuse it for good."""
    namespace = broker.namespaces["contoso"]
    queue = await Sdk(True, namespace).queue()

    def fail(self: Journal, kind: int, parts: object, size: int, done: Any, flags: int) -> int:
        asyncio.get_running_loop().call_soon(done, JournalFailed("EIO", unknown=True), 0, 0)
        return 0

    async with WireClient.from_connection_string(namespace.connection_string, timeout=10.0) as client:
        sender, receiver = await client.sender(queue), await client.receiver(queue)
        await sender.send_many([make_special(b"x", id="one"), make_special(b"x", id="two")])
        one, two = await receiver.receive(2, 10.0)
        assert two.lock_token is not None
        transaction = await client.transaction(queue)
        await sender.send(make_special(b"x", id="three"), transaction=transaction)
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "_append", fail)
            for attempt in (
                sender.send(make_special(b"x", id="four")),
                receiver.complete(one),
                transaction.commit(),
                client.settle_by_token(queue, [two.lock_token], "completed"),
            ):
                with pytest.raises(WireError, match="may yet turn up after a restart") as caught:
                    await attempt
                assert caught.value.condition == "amqp:internal-error"
                assert caught.value.outcome_unknown
        await sender.send(make_special(b"x", id="five"))
        found = [View(payload).properties.message_id for payload in await client.peek(queue)]
        assert found == ["one", "two", "five"]


# -- large messages and batches


def many_values(id: str, count: int = 60_000, last: bytes = b"\x40") -> bytes:
    """A message whose body is a list that takes long to check."""
    head = encode_message(properties=Properties(message_id=id), body=None)
    return head + b"\x00\x53\x77\xd0" + struct.pack(">II", count + 3 + len(last), count) + b"\x40" * (count - 1) + last


def look_late(served: NamespaceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each look at the clock be a millisecond later than the one before: a turn has time for three units."""
    monkeypatch.setattr(served.namespace.slices, "_clock", (n * 0.001 for n in itertools.count()).__next__)


async def test_a_large_message_is_checked_in_slices_and_keeps_its_place(
    broker: Broker, wire: WireClient, queues: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = queues
    served = broker.namespaces["contoso"]
    look_late(served, monkeypatch)
    sender = await wire.sender(queue)
    payloads = [many_values("first", 250_000), payload_of("second"), many_values("third"), payload_of("fourth")]
    async with WireClient.from_connection_string(served.connection_string) as bystander:
        at_ease = await bystander.sender(other)
        sending = [asyncio.ensure_future(sender.send(payload)) for payload in payloads]
        await soon(lambda: any(connection._check is not None for connection in served.connections))
        await at_ease.send(payload_of("at ease"))
        assert not any(each.done() for each in sending)
    await asyncio.gather(*sending)
    assert await ids_in(wire, queue) == ["first", "second", "third", "fourth"]


async def test_a_large_message_that_is_not_sound_is_refused_and_the_link_goes_on(
    wire: WireClient, queues: tuple[str, str]
) -> None:
    queue, _ = queues
    sender = await wire.sender(queue)
    with pytest.raises(Refused) as caught:
        await sender.send(many_values("bad", last=b"\x3f"))
    assert caught.value.condition == conditions.DECODE_ERROR
    with pytest.raises(Refused, match="end at byte"):
        await sender.send(join_batch([many_values("good"), many_values("bad", last=b"\x40\x40")]), message_format=BATCH)
    await sender.send(join_batch([many_values("one"), payload_of("two")]), message_format=BATCH)
    assert await ids_in(wire, queue) == ["one", "two"]


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_has_its_large_message_before_it_ends(
    wire: WireClient, queues: tuple[str, str], commits: bool
) -> None:
    queue, _ = queues
    sender = await wire.sender(queue)
    transaction = await wire.transaction(queue)
    sending = [
        asyncio.ensure_future(sender.send(payload, transaction=transaction))
        for payload in (many_values("large", 200_000), payload_of("small"))
    ]
    await asyncio.sleep(0)
    await (transaction.commit() if commits else transaction.roll_back())
    await asyncio.gather(*sending)
    assert await ids_in(wire, queue) == (["large", "small"] if commits else [])


async def test_a_connection_that_is_lost_while_a_large_message_is_checked(
    broker: Broker, wire: WireClient, queues: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, _ = queues
    served = broker.namespaces["contoso"]
    look_late(served, monkeypatch)
    async with WireClient.from_connection_string(served.connection_string) as client:
        sender = await client.sender(queue)
        sending = asyncio.ensure_future(sender.send(many_values("gone", 250_000)))
        await soon(lambda: any(connection._check is not None for connection in served.connections))
        for connection in list(served.connections):
            connection.abort()
        with pytest.raises(WireError):
            await sending
    await soon(lambda: not served.connections)
    assert len(served.namespace.slices) == 0
    assert await ids_in(wire, queue) == []


@pytest.mark.parametrize("is_late", [False, True])
async def test_an_error_of_the_check_closes_the_connection_that_it_is_about(
    broker: Broker,
    wire: WireClient,
    queues: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_late: bool,
) -> None:
    queue, _ = queues
    served = broker.namespaces["contoso"]
    look_late(served, monkeypatch)

    def failing(payload: bytes, is_batch: bool) -> Generator[None, None, Checked]:
        for _ in range(10 * is_late):
            yield
        raise ValueError("a bug")

    async with WireClient.from_connection_string(served.connection_string) as client:
        sender = await client.sender(queue)
        with monkeypatch.context() as patched:
            patched.setattr(links, "checking", failing)
            with pytest.raises(WireError, match="the broker failed to handle a request"):
                await sender.send(many_values("unlucky"))
    assert "a connection is closed after an error" in caplog.text
    assert await ids_in(wire, queue) == []


async def test_a_batch_is_bounded_as_the_service_bounds_it(broker: Broker, wire: WireClient) -> None:
    served = broker.namespaces["contoso"]
    with admin_client(served.connection_string, str(served.ca_file)) as admin:
        admin.create_queue("roomy", max_message_size_in_kilobytes=10_240)
    sender = await wire.sender("roomy")
    most = [b"\x00\x53\x75\xa0\x00"] * 4500
    await sender.send(join_batch(most), message_format=BATCH)
    for batch, text in (
        ([*most, most[0]], "4501 messages; 4500 are allowed"),
        ([make_special(bytes(400_000))] * 3, "takes up to 1049600 bytes at once"),
    ):
        with pytest.raises(TooLarge, match=text):
            await sender.send(join_batch(batch), message_format=BATCH)
    await sender.send(make_special(bytes(3_000_000)))
    with admin_client(served.connection_string, str(served.ca_file)) as admin:
        assert admin.get_queue_runtime_properties("roomy").total_message_count == 4501
        admin.delete_queue("roomy")
