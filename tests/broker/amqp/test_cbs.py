"""Tokens put to `$cbs`, as clients put them that can't be run here: what Go and .NET are told of an unknown entity."""

from __future__ import annotations

import time

import pytest

from pairbus.amqp.performative_types import Open, Transfer
from pairbus.amqp.types import Symbol
from pairbus.broker import Broker
from pairbus.sas import make_token
from pairbus.wire import NotFound, WireClient
from tests.broker.attack_words import AMQP_HEADER, attach, begun, credit, frame, request, sasl, transfer
from tests.broker.raw_client import raw_client
from tests.broker.sdk import Sdk
from tests.message_view import View

SASTOKEN = "servicebus.windows.net:sastoken"
UNKNOWN = "The messaging entity 'sb://here.example:5671/{}' could not be found. To know more visit "


async def put(broker: Broker, audience: str, *, kind: str = SASTOKEN, product: str | None = None, by: str = "") -> str:
    """Return status and description of the answer to a put-token."""
    served = broker.namespaces["contoso"]
    rule = next(each for each in served.authorization_rules("") if each.key_name == (by or "RootManageSharedAccessKey"))
    token = make_token(f"sb://{served.host}", rule.key_name, rule.primary_key, time.time() + 3600)
    asked = request(1, {"operation": "put-token", "type": kind, "name": audience}, token)
    properties = None if product is None else {Symbol("product"): product}
    async with raw_client(served) as raw:
        raw.say(sasl(), AMQP_HEADER, frame(Open(container_id="x", properties=properties).encode()), begun())
        raw.say(attach(0, "$cbs", receives=False), attach(1, "$cbs", receives=True), credit(1, 1))
        raw.say(transfer(0, 0, asked, settled=True))
        await raw.hear(Transfer)
        answer = View(raw.payload).application_properties
        return f"{answer['status-code']} {answer['status-description']}"


@pytest.mark.parametrize("path", ["nowhere", "nowhere/$management", "there/Subscriptions/none", "Caf%C3%A9"])
@pytest.mark.parametrize("scheme", ["sb", "amqps"])
async def test_who_may_manage_learns_that_an_entity_does_not_exist(broker: Broker, scheme: str, path: str) -> None:
    said = await put(broker, f"{scheme}://here.example:5671/{path}")
    assert said.startswith(f"404 {UNKNOWN.format(path)}"), said


async def test_for_what_exists_and_for_the_namespace_a_token_is_accepted(broker: Broker) -> None:
    sdk = Sdk(True, broker.namespaces["contoso"])
    queue, topic = await sdk.queue(), await sdk.topic("all")
    for path in ("", "$cbs", queue, queue.upper(), f"{queue}/$management", f"{queue}/$DeadLetterQueue", topic,
                 f"{topic}/Subscriptions/all", f"{topic}/subscriptions/all/$management"):  # fmt: skip
        assert await put(broker, f"amqps://here.example/{path}") == "202 Accepted", path


@pytest.mark.parametrize(
    ("kind", "product"),
    [("jwt", None), ("jwt", "azsdk-python-servicebus"), (SASTOKEN, "azsdk-python-servicebus")],
    ids=["jwt", "pyamqp", "uamqp"],
)
async def test_python_learns_so_from_its_link(broker: Broker, kind: str, product: str | None) -> None:
    """It tries a token again that was refused, for 15 s, and reports a failed authentication."""
    assert await put(broker, "sb://here.example/nowhere", kind=kind, product=product) == "202 Accepted"


async def test_a_key_that_may_not_manage_does_not_learn_it(broker: Broker) -> None:
    broker.namespaces["contoso"]._keys.grant("sender", ("Send", "Listen"), time.time())
    assert await put(broker, "sb://here.example/nowhere", by="sender") == "202 Accepted"


async def test_our_own_client_is_told_at_once(broker: Broker) -> None:
    text = broker.namespaces["contoso"].connection_string
    async with WireClient.from_connection_string(text, timeout=10.0) as client:
        with pytest.raises(NotFound, match="could not be found"):
            await client.sender("nowhere")
