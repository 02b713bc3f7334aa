"""Requests to `$management`, as a client sees it that writes them by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Array, Int, Timestamp, UInt
from pairbus.broker import Broker
from pairbus.broker.amqp import links
from pairbus.broker.amqp.requests import Request, read_request
from pairbus.broker.model.message import DEFERRED, SETTLING
from pairbus.broker.model.queue import MessageQueue
from pairbus.wire import WireClient
from pairbus.wire.errors import Refused
from tests.broker.namespace_rig import make_special
from tests.broker.sdk import Sdk
from tests.message_view import View


async def test_a_peek_may_leave_the_bodies_out(broker: Broker) -> None:
    namespace = broker.namespaces["contoso"]
    queue = await Sdk(True, namespace).queue()
    async with WireClient.from_connection_string(namespace.connection_string, timeout=10.0) as client:
        sender = await client.sender(queue)
        await sender.send(make_special(b"large" * 1000, id="one"))
        asked: dict[str, Any] = {"from-sequence-number": 1, "message-count": 10}
        for omits, length in ((True, 0), (False, 1), (None, 1)):
            flag = {} if omits is None else {"omit-message-body": omits}
            _, body = await client.request(queue, "com.microsoft:peek-message", {**asked, **flag})
            (payload,) = [each["message"] for each in body["messages"]]
            view = View(payload)
            assert view.properties.message_id == "one"
            assert len(view.body) == length
        with pytest.raises(Refused, match="omit-message-body is 'yes'; a boolean is needed"):
            await client.request(queue, "com.microsoft:peek-message", {**asked, "omit-message-body": "yes"})


async def test_a_request_of_too_many_values_is_refused_before_it_is_decoded(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = broker.namespaces["contoso"]
    queue = await Sdk(True, namespace).queue()
    sizes: list[int] = []

    def reading(payload: bytes) -> Request:
        sizes.append(len(payload))
        return read_request(payload)

    monkeypatch.setattr(links, "read_request", reading)
    peek: dict[str, Any] = {"from-sequence-number": 1, "message-count": 1}
    async with WireClient.from_connection_string(namespace.connection_string, timeout=10.0) as client:
        for value in ([None] * 900_000, [{}] * 300_000, Array.of(0x50, [0] * 900_000)):
            with pytest.raises(Refused, match="may have some 70000 values"):
                await client.request(queue, "com.microsoft:peek-message", {**peek, "more": value})
        assert max(sizes) < 10_000
        due = {"x-opt-scheduled-enqueue-time": Timestamp(4_000_000_000_000)}
        payload = encode_message(message_annotations=due, properties=Properties(message_id="m"), body=b"x")
        said = {"message-id": "m", "session-id": None, "partition-key": None, "via-partition-key": None}
        messages = [{**said, "message": payload}] * 4500
        _, body = await client.request(queue, "com.microsoft:schedule-message", {"messages": messages})
        assert len(body["sequence-numbers"]) == 4500


async def test_a_message_that_is_being_deferred_is_waited_for(broker: Broker) -> None:
    """azure-servicebus up to 7.14 defers without waiting for the answer, and asks for the message at once."""
    namespace = broker.namespaces["contoso"]
    queue = await Sdk(True, namespace).queue()
    async with WireClient.from_connection_string(namespace.connection_string, timeout=10.0) as client:
        sender = await client.sender(queue)
        await sender.send(make_special(b"x", id="one"))
        receiver = await client.receiver(queue)
        (message,) = await receiver.receive(1, 10.0)
        await receiver.defer(message)
        found = namespace.namespace.resolve(queue)
        assert isinstance(found, MessageQueue)
        (stored,) = found.scan(0)
        stored.state = SETTLING  # as while its record is written
        asked = {"sequence-numbers": Array.of(0x81, [stored.sequence_number]), "receiver-settle-mode": UInt(1)}
        asking = asyncio.ensure_future(client.request(queue, "com.microsoft:receive-by-sequence-number", asked))
        await asyncio.wait([asking], timeout=0.1)
        stored.state = DEFERRED
        _, body = await asking
        (payload,) = [each["message"] for each in body["messages"]]
        assert View(payload).properties.message_id == "one"
        stored.state = SETTLING
        with pytest.raises(Refused, match="has no deferred message"):  # not for ever
            await client.request(queue, "com.microsoft:receive-by-sequence-number", asked)
        stored.state = DEFERRED


@pytest.mark.parametrize("dead", [False, True], ids=["queue", "dead-letters-of-one-with-sessions"])
async def test_a_session_id_means_nothing_to_settlements_where_there_are_no_sessions(
    broker: Broker, dead: bool
) -> None:
    """JavaScript names the session id of a message when it settles one that was deferred, whatever the entity is."""
    namespace = broker.namespaces["contoso"]
    queue = await Sdk(True, namespace).queue(requires_session=dead)
    async with WireClient.from_connection_string(namespace.connection_string, timeout=10.0) as client:
        sender = await client.sender(queue)
        await sender.send(make_special(b"x", id="one", session_id="red"))
        if dead:
            source = await client.receiver(queue, session_id="red")
            (message,) = await source.receive(1, 10.0)
            await source.dead_letter(message)
            queue = f"{queue}/$DeadLetterQueue"
        receiver = await client.receiver(queue)
        (message,) = await receiver.receive(1, 10.0)
        await receiver.defer(message)
        assert message.sequence_number is not None
        numbers = Array.of(0x81, [message.sequence_number])
        asked = {"sequence-numbers": numbers, "receiver-settle-mode": UInt(1), "session-id": "red"}
        _, body = await client.request(queue, "com.microsoft:receive-by-sequence-number", asked)
        (token,) = [each["lock-token"] for each in body["messages"]]
        done = {"disposition-status": "completed", "lock-tokens": Array.of(0x98, [token]), "session-id": "red"}
        await client.request(queue, "com.microsoft:update-disposition", done)
        assert await client.peek(queue) == []
        with pytest.raises(Refused, match="' has no sessions"):
            await client.request(queue, "com.microsoft:get-session-state", {"session-id": "red"})


async def test_sessions_are_listed_in_an_array(broker: Broker) -> None:
    """Java casts the ids to an array of strings, and fails on a list."""
    namespace = broker.namespaces["contoso"]
    queue = await Sdk(True, namespace).queue(requires_session=True)
    async with WireClient.from_connection_string(namespace.connection_string, timeout=10.0) as client:
        sender = await client.sender(queue)
        for id in ("red", ""):
            await sender.send(make_special(b"x", session_id=id))
        asked = {"last-updated-time": Timestamp(253402300799999), "skip": Int(0), "top": Int(10)}
        _, body = await client.request(queue, "com.microsoft:get-message-sessions", asked)
        assert isinstance(body["sessions-ids"], Array)
        assert sorted(body["sessions-ids"]) == ["", "red"]
        assert body["skip"] == 2


async def test_rules_are_listed_in_the_order_of_their_names(broker: Broker) -> None:
    """The rule manager of JavaScript goes over them page by page, and its tests expect that order."""
    namespace = broker.namespaces["contoso"]
    topic = await Sdk(True, namespace).topic("all")
    path = f"{topic}/Subscriptions/all"
    async with WireClient.from_connection_string(namespace.connection_string, timeout=10.0) as client:
        for name in ("sqlRule", "Blue", "correlationRule"):
            rule = {"sql-filter": {"expression": f"colour = '{name}'"}}
            await client.request(path, "com.microsoft:add-rule", {"rule-name": name, "rule-description": rule})
        found: list[str] = []
        while True:
            page = {"skip": Int(len(found)), "top": Int(1)}
            status, answer = await client.request(path, "com.microsoft:enumerate-rules", page)
            if status == 204:
                break
            found += [each["rule-description"].value[2] for each in answer["rules"]]
        assert found == ["$Default", "Blue", "correlationRule", "sqlRule"]
