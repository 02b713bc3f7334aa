"""What is put behind a link, as a client sees it that attaches by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from pairbus.amqp.types import Described, Symbol, ULong
from pairbus.broker import Broker
from pairbus.wire import WireClient, receiver
from pairbus.wire.errors import Refused
from tests.broker.namespace_rig import make_special
from tests.broker.sdk import Sdk
from tests.message_view import View

SESSION_FILTER = "com.microsoft:session-filter"


@pytest.fixture
def sdk(broker: Broker) -> Sdk:
    return Sdk(True, broker.namespaces["contoso"])


def wire(broker: Broker) -> WireClient:
    return WireClient.from_connection_string(broker.namespaces["contoso"].connection_string, timeout=10.0)


@pytest.mark.parametrize("id", ["red", ""], ids=["id", "empty-id"])
@pytest.mark.parametrize(
    "described",
    [
        lambda id: id,
        lambda id: Described(Symbol(SESSION_FILTER), id),
        lambda id: Described(ULong(0x000001370000000C), id),
    ],
    ids=["bare", "by-symbol", "by-number"],
)
async def test_a_session_filter_is_echoed_in_the_form_in_which_it_came(
    broker: Broker, sdk: Sdk, described: Any, id: str
) -> None:
    """Go closes the connection over a bare string where it sent a described one."""
    queue = await sdk.queue(requires_session=True)
    async with wire(broker) as client:
        sender = await client.sender(queue)
        await sender.send(make_special(b"x", session_id=id))
        for wanted in (described(id), described(None)):
            if wanted is None:
                continue  # our client has no way to ask for it
            link = await client.receiver(queue, session_id=wanted)
            assert link._receiver is not None
            assert link._receiver.source.filter == {SESSION_FILTER: described(id)}
            (message,) = await link.receive(1, 10.0)
            assert View(message.payload).properties.group_id == id
            await link.close()


@pytest.mark.parametrize("requires_session", [False, True])
async def test_a_filter_that_is_not_known_is_refused_by_name(
    broker: Broker, sdk: Sdk, monkeypatch: pytest.MonkeyPatch, requires_session: bool
) -> None:
    queue = await sdk.queue(requires_session=requires_session)
    monkeypatch.setattr(receiver, "SESSION_FILTER", "apache.org:selector-filter:string")
    async with wire(broker) as client:
        with pytest.raises(Refused, match=r"The filter 'apache.org:selector-filter:string' is not supported") as caught:
            await client.receiver(queue, session_id="color = 'red'")
        assert caught.value.condition == "amqp:not-implemented"


@pytest.mark.parametrize("requires_session", [False, True])
async def test_a_browser_is_refused_since_it_would_be_given_the_messages_themselves(
    broker: Broker, sdk: Sdk, monkeypatch: pytest.MonkeyPatch, requires_session: bool
) -> None:
    """A source of distribution mode `copy` is one to look at: proton's `Copy`, a queue browser of JMS."""
    queue = await sdk.queue(requires_session=requires_session)
    session_id = "red" if requires_session else None
    async with wire(broker) as client:
        with monkeypatch.context() as patched:
            patched.setattr(receiver, "Source", partial(receiver.Source, distribution_mode="copy"))
            with pytest.raises(Refused, match="distribution mode 'copy' is not supported") as caught:
                await client.receiver(queue, session_id=session_id)
            assert caught.value.condition == "amqp:not-implemented"
        monkeypatch.setattr(receiver, "Source", partial(receiver.Source, distribution_mode="move"))
        await client.receiver(queue, session_id=session_id)
