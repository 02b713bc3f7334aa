"""Transactions over real sockets: what clients see of them, and every way in which they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pairbus.amqp.message import encode_message
from pairbus.amqp.performative_types import (
    Accepted,
    Attach,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    Source,
    TransactionalState,
    Transfer,
)
from pairbus.amqp.transactions import encode_coordination
from pairbus.broker import Broker
from pairbus.broker.access import unauthenticated
from pairbus.broker.amqp import transactions as subject
from pairbus.broker.operations.quotas import TIERS
from pairbus.wire import LinkLost, LockLost, NotFound, Refused, Sender, TooLarge, Unauthorized, WireClient, WireError
from pairbus.wire.transactions import Transaction, via_of
from tests.broker.attack_words import Target, attach, begun, credit, frame, opened, put_token, transfer
from tests.broker.namespace_rig import body_of, make, make_special
from tests.broker.raw_client import raw_client
from tests.broker.sdk import Sdk
from tests.waiting import soon

ROLLBACK = "amqp:transaction:rollback"


@pytest.fixture
def sdk(broker: Broker) -> Sdk:
    return Sdk(True, broker.namespaces["contoso"])


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[WireClient]:
    async with wire(broker) as client:
        yield client


def wire(broker: Broker, text: str | None = None) -> WireClient:
    return WireClient.from_connection_string(text or broker.namespaces["contoso"].connection_string, timeout=5.0)


async def bodies(client: WireClient, path: str) -> list[bytes]:
    return [body_of(payload) for payload in await client.peek(path)]


async def filled(client: WireClient, queue: str, *messages: bytes) -> None:
    sender = await client.sender(queue)
    for number, message in enumerate(messages):
        await sender.send(make(message, message_id=f"m{number}"))


async def test_complete_and_send_in_one(client: WireClient, sdk: Sdk) -> None:
    queue, other = await sdk.queue(), await sdk.queue()
    await filled(client, queue, b"one", b"two", b"three", b"four")
    receiver = await client.receiver(queue)
    one, two, three, four = await receiver.receive(4, 10.0)
    here, there = await client.sender(queue), await client.sender(other, via=queue)
    async with await client.transaction(queue) as transaction:
        await receiver.complete(one, transaction=transaction)
        await receiver.abandon(two, {"tried": True}, transaction=transaction)
        await receiver.dead_letter(three, "bad", "very bad", transaction=transaction)
        await receiver.defer(four, transaction=transaction)
        await here.send(make(b"here"), transaction=transaction)
        assert await there.send_many([make(b"a"), make(b"b")], transaction=transaction) == [None, None]
        assert await bodies(client, other) == []
        assert await bodies(client, queue) == [b"one", b"two", b"three", b"four"]
    assert await bodies(client, other) == [b"a", b"b"]
    assert await bodies(client, queue) == [b"two", b"four", b"here"]
    assert await bodies(client, f"{queue}/$DeadLetterQueue") == [b"three"]
    with pytest.raises(ValueError, match="begin another one"):
        await transaction.commit()


async def test_a_batch_is_part_of_it(client: WireClient, sdk: Sdk) -> None:
    from pairbus.amqp.message import BATCH_FORMAT, join_batch

    queue = await sdk.queue()
    sender = await client.sender(queue)
    async with await client.transaction(queue) as transaction:
        batch = join_batch([make(b"a"), make(b"b")])
        await sender.send(batch, message_format=BATCH_FORMAT, transaction=transaction)
        with pytest.raises(Refused, match="amqp:decode-error"):
            await sender.send(b"\x00", message_format=BATCH_FORMAT, transaction=transaction)
    assert await bodies(client, queue) == [b"a", b"b"]


async def test_a_rollback_gives_the_message_back_to_its_receiver(client: WireClient, sdk: Sdk) -> None:
    queue = await sdk.queue()
    await filled(client, queue, b"one")
    receiver, sender = await client.receiver(queue), await client.sender(queue)
    (one,) = await receiver.receive(1, 10.0)

    async def work() -> None:
        async with await client.transaction(queue) as transaction:
            await receiver.complete(one, transaction=transaction)
            await sender.send(make(b"new"), transaction=transaction)
            raise RuntimeError("an error of the application")

    with pytest.raises(RuntimeError, match="of the application"):
        await work()
    assert await bodies(client, queue) == [b"one"]
    await receiver.complete(one)  # as the test of the .NET client does
    assert await bodies(client, queue) == []


async def test_settlements_by_token_are_part_of_it(client: WireClient, sdk: Sdk) -> None:
    """Clients settle so what they received by number, and what a link that is gone has delivered."""
    queue = await sdk.queue()
    await filled(client, queue, b"one", b"two")
    receiver = await client.receiver(queue)
    messages = await receiver.receive(2, 10.0)
    tokens = [message.lock_token for message in messages]
    sender = await client.sender(queue)
    transaction = await client.transaction(queue)
    await client.settle_by_token(queue, tokens, "completed", transaction=transaction)
    await client.renew(queue, tokens)
    await sender.send(make(b"new"), transaction=transaction)
    with pytest.raises(LockLost):
        await client.settle_by_token(queue, tokens, "completed", transaction=transaction)
    for operation, body in (
        ("com.microsoft:cancel-scheduled-message", {"sequence-numbers": [1]}),
        ("com.microsoft:set-session-state", {"session-id": "s", "session-state": b"mine"}),
    ):
        with pytest.raises(Refused, match=f"{operation} can't be part of a transaction.*amqp:not-allowed"):
            await client.request(queue, operation, body, transaction=transaction)
    assert await bodies(client, queue) == [b"one", b"two"]
    await transaction.commit()
    assert await bodies(client, queue) == [b"new"]


async def test_from_a_subscription_it_goes_through_the_topic(client: WireClient, sdk: Sdk) -> None:
    topic, queue = await sdk.topic("all", "more"), await sdk.queue()
    await filled(client, topic, b"one")
    path = f"{topic}/Subscriptions/all"
    receiver = await client.receiver(path)
    assert via_of(path) == via_of(f"{path}/$DeadLetterQueue") == topic
    sender, publisher = await client.sender(queue, via=topic), await client.sender(topic)
    (one,) = await receiver.receive(1, 10.0)
    async with await client.transaction(topic) as transaction:
        await receiver.complete(one, transaction=transaction)
        await sender.send(make(b"aside"), transaction=transaction)
        await publisher.send(make(b"two"), transaction=transaction)
    assert await bodies(client, path) == [b"two"]
    assert await bodies(client, f"{topic}/Subscriptions/more") == [b"one", b"two"]
    assert await bodies(client, queue) == [b"aside"]


async def test_two_entities_need_a_via(client: WireClient, sdk: Sdk) -> None:
    queue, other = await sdk.queue(), await sdk.queue()
    here, there = await client.sender(queue), await client.sender(other)
    transaction = await client.transaction(queue)
    await here.send(make(b"x"), transaction=transaction)
    with pytest.raises(Refused, match=f"works through '{queue}'.*transfer-destination-address"):
        await there.send(make(b"y"), transaction=transaction)
    await filled(client, other, b"one")
    receiver = await client.receiver(other)
    (one,) = await receiver.receive(1, 10.0)
    with pytest.raises(Refused, match=f"messages of '{other}' are settled in another transaction"):
        await receiver.complete(one, transaction=transaction)
    await receiver.complete(one)
    await transaction.commit()
    assert (await bodies(client, queue), await bodies(client, other)) == ([b"x"], [])


async def test_on_the_coordinators_session_the_via_is_inferred(
    client: WireClient, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The .NET and Java clients with cross-entity transactions have all links on one session and name no via."""
    queue, other = await sdk.queue(), await sdk.queue()
    sender = await client.sender(other)
    monkeypatch.setattr(subject, "_via", lambda node, session: original(node, node.link.session))
    await filled(client, queue, b"one")
    receiver = await client.receiver(queue)
    (one,) = await receiver.receive(1, 10.0)
    async with await client.transaction(queue) as transaction:
        await sender.send(make(b"first"), transaction=transaction)
        await receiver.complete(one, transaction=transaction)
    assert (await bodies(client, queue), await bodies(client, other)) == ([], [b"first"])


original = subject._via


async def test_both_ends_of_a_via_are_authorized(broker: Broker, sdk: Sdk, client: WireClient) -> None:
    queue, other = await sdk.queue(), await sdk.queue()
    with pytest.raises(NotFound):
        await client.sender("nowhere", via=queue)
    with pytest.raises(NotFound):
        await client.sender(queue, via="nowhere")
    with pytest.raises(Refused, match="can't be sent to"):
        await client.sender(f"{other}/$DeadLetterQueue", via=queue)
    connections = broker.namespaces["contoso"].connections
    (connection,) = connections
    allows = connection.authorization.allows
    for forbidden in (queue, other):
        connection.authorization = Only(allows, forbidden)  # type: ignore[assignment]
        with pytest.raises(Unauthorized, match=f"Resource: '{forbidden}'"):
            await client.sender(other, via=queue)


class Only:
    """What a connection may do, but for one entity."""

    def __init__(self, allows: Any, forbidden: str) -> None:
        self._allows = allows
        self._forbidden = forbidden

    def allows(self, right: str, path: str, now: float) -> bool:
        return path != self._forbidden and self._allows(right, path, now)

    def put(self, claims: Any) -> None:
        pass

    deadline = None


# -- limits and errors


async def test_an_id_that_is_not_known(client: WireClient, sdk: Sdk, broker: Broker) -> None:
    queue = await sdk.queue()
    await filled(client, queue, b"one")
    sender, receiver = await client.sender(queue), await client.receiver(queue)
    (one,) = await receiver.receive(1, 10.0)
    real = await client.transaction(queue)
    unknown = Transaction(real._controller, b"nobody")
    async with wire(broker) as other:
        foreign = await other.transaction(queue)
        for transaction in (unknown, foreign):  # it belongs to the connection that began it
            with pytest.raises(Refused, match="amqp:transaction:unknown-id"):
                await sender.send(make(b"x"), transaction=transaction)
            with pytest.raises(Refused, match="amqp:transaction:unknown-id"):
                await receiver.complete(one, transaction=transaction)
            tokens = [one.lock_token]
            with pytest.raises(Refused, match="amqp:transaction:unknown-id"):
                await client.settle_by_token(queue, tokens, "completed", transaction=transaction)
    with pytest.raises(Refused, match="amqp:transaction:unknown-id"):
        await unknown.commit()
    await receiver.complete(one, transaction=real)  # none of that has settled it
    await real.commit()
    assert await bodies(client, queue) == []


@pytest.mark.parametrize("fail", [False, True])
async def test_a_second_discharge_is_of_no_transaction(client: WireClient, sdk: Sdk, fail: bool) -> None:
    """One after the other, and both on their way at once."""
    queue = await sdk.queue()
    sender = await client.sender(queue)
    transaction = await client.transaction(queue)
    await sender.send(make(b"once"), transaction=transaction)
    discharge = transaction._controller.discharge
    first, second = await asyncio.gather(
        discharge(transaction.id, False), discharge(transaction.id, fail), return_exceptions=True
    )
    assert first is None and isinstance(second, Refused) and second.condition == "amqp:transaction:unknown-id"
    with pytest.raises(Refused, match="amqp:transaction:unknown-id"):
        await discharge(transaction.id, fail)
    with pytest.raises(Refused, match="amqp:transaction:unknown-id"):
        await sender.send(make(b"late"), transaction=transaction)
    assert await bodies(client, queue) == [b"once"]


async def test_a_hundred_messages(client: WireClient, sdk: Sdk) -> None:
    queue = await sdk.queue()
    sender = await client.sender(queue)
    transaction = await client.transaction(queue)
    answers = await sender.send_many([make(b"%d" % n) for n in range(101)], transaction=transaction)
    assert answers[:100] == [None] * 100
    assert "more than 100 messages" in str(answers[100])
    await transaction.commit()
    assert len(await bodies(client, queue)) == 100


@pytest.mark.parametrize("size", [300 * 1024])
async def test_a_message_that_is_refused_is_not_part_of_it(client: WireClient, sdk: Sdk, size: int) -> None:
    queue = await sdk.queue(requires_session=True)
    sender = await client.sender(queue)
    async with await client.transaction(queue) as transaction:
        with pytest.raises(Refused, match="requires sessions"):
            await sender.send(make(b"no session"), transaction=transaction)
        with pytest.raises(TooLarge):
            await sender.send(make_special(b"x" * size, session_id="s"), transaction=transaction)
        await sender.send(make_special(b"good", session_id="s"), transaction=transaction)
    assert await bodies(client, queue) == [b"good"]


async def test_what_a_client_sends_settled_and_is_refused_makes_the_commit_fail(client: WireClient, sdk: Sdk) -> None:
    queue = await sdk.queue(requires_session=True)
    sender = await client.sender(queue)
    transaction = await client.transaction(queue)
    await sender.send(make_special(b"good", session_id="s"), transaction=transaction)
    link = sender._sender
    assert link is not None
    link.send(make(b"no session"), b"t", settled=True, state=transaction.state())
    with pytest.raises(Refused, match="requires sessions") as told:
        await transaction.commit()
    assert told.value.condition == ROLLBACK
    assert await bodies(client, queue) == []


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"nonsense", "amqp:decode-error"),
        (encode_message(body=b"data"), "amqp:decode-error"),
        (encode_coordination(Declare(b"global")), "amqp:not-implemented"),
        (encode_coordination(Discharge(b"nobody")), "amqp:transaction:unknown-id"),
    ],
)
async def test_what_the_coordinator_does_not_take(client: WireClient, sdk: Sdk, payload: bytes, expected: str) -> None:
    queue = await sdk.queue()
    controller = (await client.transaction(queue))._controller
    with pytest.raises(WireError) as told:
        await controller.send(payload)
    assert told.value.condition == expected
    await (await client.transaction(queue)).commit()  # the link goes on


async def test_a_settled_declare_ends_the_link(client: WireClient, sdk: Sdk) -> None:
    queue = await sdk.queue()
    controller = (await client.transaction(queue))._controller
    assert controller._sender is not None
    controller._sender.send(encode_coordination(Declare()), b"t", settled=True)
    with pytest.raises(LinkLost, match="must not be settled"):
        await controller.declare()


async def test_transactions_of_a_connection_are_bounded(
    client: WireClient, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "TRANSACTIONS_MAX", 3)
    queue = await sdk.queue()
    first, *_ = [await client.transaction(queue) for _ in range(3)]
    with pytest.raises(WireError, match="the most that it can have"):
        await client.transaction(queue)
    await first.roll_back()
    await client.transaction(queue)


async def test_released_can_not_be_part_of_it(client: WireClient, sdk: Sdk) -> None:
    queue = await sdk.queue()
    await filled(client, queue, b"one")
    receiver = await client.receiver(queue)
    (one,) = await receiver.receive(1, 10.0)
    transaction = await client.transaction(queue)
    released = bytes.fromhex("00532645")
    with pytest.raises(Refused, match="this outcome is released"):
        await receiver._settle(one, released, 10.0, transaction)
    with pytest.raises(Refused, match="this outcome is none"):
        await receiver.settle_nowait([one], transaction.state())
    await receiver.complete(one, transaction=transaction)
    await transaction.commit()


async def test_a_basic_namespace_has_none(
    client: WireClient, sdk: Sdk, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await sdk.queue()
    monkeypatch.setattr(broker.namespaces["contoso"].namespace.registry, "quotas", TIERS["basic"])
    with pytest.raises(Refused, match="Transactions are not there in the tier Basic"):
        await client.transaction(queue)


# -- before any token: Java and .NET attach the coordinator, and declare, before they show one


def coordinator(handle: int) -> bytes:
    link = Attach(
        name=f"coordinator-{handle}", handle=handle, role=False, initial_delivery_count=0,
        source=Source(address="here"), target=Coordinator(capabilities=["amqp:local-transactions"]),
    )  # fmt: skip
    return frame(link.encode())


def ask(handle: int, delivery_id: int, request: Declare | Discharge) -> bytes:
    return transfer(handle, delivery_id, encode_coordination(request), settled=False)


async def test_a_transaction_is_declared_before_the_first_token(broker: Broker, client: WireClient, sdk: Sdk) -> None:
    """The order of azure-messaging-servicebus (Java) and Microsoft.Azure.ServiceBus (.NET)."""
    queue = await sdk.queue()
    served = broker.namespaces["contoso"]
    target = Target(served.connection_string, str(served.ca_file))
    async with raw_client(served) as raw:
        raw.say(opened(), begun(), coordinator(0), ask(0, 0, Declare()))
        declared = (await raw.hear(Disposition))[1].state
        assert isinstance(declared, Declared)
        raw.say(attach(1, queue, receives=False))
        refused = (await raw.hear(Detach))[1].error
        assert refused.condition == "amqp:unauthorized-access", "a transaction gives no right"
        raw.say(attach(2, "$cbs", receives=False), attach(3, "$cbs", receives=True), credit(3, 10))
        raw.say(transfer(2, 1, put_token(target.token()), settled=True))
        await raw.hear(Transfer)
        state = TransactionalState(declared.txn_id)
        raw.say(attach(4, queue, receives=False), transfer(4, 2, make(b"sent"), state=state))
        sent = (await raw.hear(Disposition))[1].state
        assert isinstance(sent, TransactionalState) and isinstance(sent.outcome, Accepted)
        assert await bodies(client, queue) == []
        raw.say(ask(0, 3, Discharge(declared.txn_id)))
        assert isinstance((await raw.hear(Disposition))[1].state, Accepted)
    assert await bodies(client, queue) == [b"sent"]


async def test_before_a_token_there_are_few_transactions_and_they_are_counted(broker: Broker) -> None:
    served = broker.namespaces["contoso"]
    most = unauthenticated.TRANSACTIONS_MAX
    before, held = set(served.connections), broker.unauthenticated._held
    async with raw_client(served) as raw:
        raw.say(opened(), begun(), coordinator(0), coordinator(1))
        raw.say(*(ask(number % 2, number, Declare()) for number in range(most)))
        states = [(await raw.hear(Disposition))[1].state for _ in range(most)]
        assert all(isinstance(state, Declared) for state in states)
        (connection,) = set(served.connections) - before
        size = most * unauthenticated.TRANSACTION_BYTES + unauthenticated.CONNECTION_BYTES
        await soon(lambda: held[connection] >= size)
        raw.say(ask(0, most, Declare()))
        error = (await raw.hear(Disposition))[1].state.error
        assert error.condition == "amqp:resource-limit-exceeded"
        assert f"that has put no token may have {most} transactions" in error.description
        raw.say(ask(0, most + 1, Discharge(states[0].txn_id)))
        assert isinstance((await raw.hear(Disposition))[1].state, Accepted)
        raw.say(ask(0, most + 2, Declare()))
        assert isinstance((await raw.hear(Disposition))[1].state, Declared)
        # with a token there may be as many as for anybody
        target = Target(served.connection_string, str(served.ca_file))
        raw.say(attach(2, "$cbs", receives=False), attach(3, "$cbs", receives=True), credit(3, 10))
        raw.say(transfer(2, most + 3, put_token(target.token()), settled=True))
        await raw.hear(Transfer)
        raw.say(ask(0, most + 4, Declare()))
        assert isinstance((await raw.hear(Disposition))[1].state, Declared)
        assert connection not in held


# -- every way of leaving


async def leave_by_detach(client: WireClient, transaction: Transaction) -> None:
    await transaction._controller.close()


async def leave_by_session(client: WireClient, transaction: Transaction) -> None:
    link = transaction._controller._link
    assert link is not None
    link.session.end()
    assert client._transport is not None
    client._transport.wake()


async def leave_by_close(client: WireClient, transaction: Transaction) -> None:
    await client.close()


async def leave_by_drop(client: WireClient, transaction: Transaction) -> None:
    assert client._transport is not None and client._transport._socket is not None
    client._transport._socket.abort()


@pytest.mark.parametrize("leave", [leave_by_detach, leave_by_session, leave_by_close, leave_by_drop])
async def test_who_leaves_rolls_back(broker: Broker, sdk: Sdk, leave: Any) -> None:
    queue = await sdk.queue()
    client = wire(broker)
    await filled(client, queue, b"one")
    receiver, sender = await client.receiver(queue), await client.sender(queue)
    (one,) = await receiver.receive(1, 10.0)
    transaction = await client.transaction(queue)
    await receiver.complete(one, transaction=transaction)
    await sender.send(make(b"new"), transaction=transaction)
    store = broker.namespaces["contoso"].namespace.store
    assert len(store.transactions) == 1
    await leave(client, transaction)
    await soon(lambda: len(store.transactions) == 0)
    assert store.transactions.size_bytes == 0
    async with wire(broker) as other:
        assert await bodies(other, queue) == [b"one"]
        await other.settle_by_token(queue, [one.lock_token], "completed")  # its lock still holds
    await client.close()


async def test_the_controller_comes_back(client: WireClient, sdk: Sdk) -> None:
    queue = await sdk.queue()
    sender = await client.sender(queue)
    lost = await client.transaction(queue)
    assert client._transport is not None and client._transport._socket is not None
    client._transport._socket.abort()
    await asyncio.sleep(0)
    with pytest.raises(WireError):
        await lost.commit()
    await sender.ready()
    async with await client.transaction(queue) as transaction:
        await sender.send(make(b"x"), transaction=transaction)
    assert await bodies(client, queue) == [b"x"]


async def test_answers_are_those_of_amqp(client: WireClient, sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A settlement is answered unsettled, round its outcome, and settled with the commit."""
    queue = await sdk.queue()
    await filled(client, queue, b"one")
    receiver, sender = await client.receiver(queue), await client.sender(queue)
    answers: list[tuple[bool, object]] = []
    for link in (receiver, sender):
        told = link.disposed

        def disposed(event: Any, told: Any = told) -> None:
            answers.append((event.settled, event.state))
            told(event)

        monkeypatch.setattr(link, "disposed", disposed)
    (one,) = await receiver.receive(1, 10.0)
    transaction = await client.transaction(queue)
    await receiver.complete(one, transaction=transaction)
    await sender.send(make(b"x"), transaction=transaction)
    for _, state in answers:
        assert isinstance(state, TransactionalState) and state.txn_id == transaction.id
    assert [settled for settled, _ in answers] == [False, True]
    await transaction.commit()
    assert [(settled, type(state).__name__) for settled, state in answers[2:]] == [(True, "Accepted")]
    assert isinstance(sender, Sender)
