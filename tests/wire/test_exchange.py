from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from pairbus.amqp.performative_types import Error
from pairbus.amqp.types import Timestamp
from pairbus.wire import LinkLost, LockLost, NotFound, Refused, TimedOut, TooLarge, Unreachable, WireClient, WireError
from pairbus.wire import exchange as exchange_module
from tests.waiting import soon

from .peer import Peer, stored


async def test_a_request_and_its_answer(peer: Peer, client: WireClient) -> None:
    peer.manage = lambda operation, body: (200, {"echo": body}, None)
    assert await client.request("orders", "com.microsoft:x", {"a": 1}, timeout=2.0) == (200, {"echo": {"a": 1}})
    address, operation, body, fields = peer.requests[0]
    assert (address, operation, body) == ("orders/$management", "com.microsoft:x", {"a": 1})
    assert fields["com.microsoft:server-timeout"] == 2000


async def test_answers_find_their_requests(peer: Peer, client: WireClient) -> None:
    peer.manage = lambda operation, body: (200, body, None)
    answers = await asyncio.gather(*(client.request("orders", "x", {"n": number}) for number in range(300)))
    assert answers == [(200, {"n": number}) for number in range(300)]
    assert len([name for name, role in peer.attached if name == "orders/$management" and role == "receiver"]) == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((410, {}, "com.microsoft:message-lock-lost"), LockLost),
        ((404, {}, "com.microsoft:message-not-found"), NotFound),
        ((501, {}, "amqp:not-implemented"), Refused),
        ((500, {}, None), Refused),
    ],
)
async def test_a_refused_request(peer: Peer, client: WireClient, answer: object, kind: type[WireError]) -> None:
    peer.manage = lambda operation, body: answer  # type: ignore[assignment,return-value]
    with pytest.raises(kind) as caught:
        await client.request("orders", "x", {})
    assert not caught.value.outcome_unknown


async def test_no_answer(peer: Peer, client: WireClient) -> None:
    peer.manage = lambda operation, body: None
    with pytest.raises(TimedOut, match=r"com\.microsoft:x on orders") as caught:
        await client.request("orders", "com.microsoft:x", {}, timeout=0.05)
    assert caught.value.outcome_unknown
    peer.manage = lambda operation, body: (200, {}, None)
    await client.request("orders", "x", {})


async def test_a_cancelled_request_harms_no_other(peer: Peer, client: WireClient) -> None:
    peer.manage = lambda operation, body: None if operation == "hang" else (200, {}, None)
    hanging = asyncio.ensure_future(client.request("orders", "hang", {}))
    await soon(lambda: len(peer.requests) == 1)
    hanging.cancel()
    assert await client.request("orders", "x", {}) == (200, {})


async def test_a_loss_in_mid_request(peer: Peer, client: WireClient) -> None:
    peer.manage = lambda operation, body: None
    request = asyncio.ensure_future(client.request("orders", "x", {}))
    await soon(lambda: len(peer.requests) == 1)
    peer.drop()
    with pytest.raises(Unreachable) as caught:
        await request
    assert caught.value.outcome_unknown
    peer.manage = lambda operation, body: (200, {}, None)
    await client.request("orders", "x", {})


async def test_a_detached_management_link_opens_again(peer: Peer, client: WireClient) -> None:
    peer.manage = lambda operation, body: None
    request = asyncio.ensure_future(client.request("orders", "x", {}))
    await soon(lambda: len(peer.requests) == 1)
    peer.detach("orders/$management", Error("amqp:link:detach-forced", "idle", None))
    with pytest.raises(LinkLost, match="idle"):
        await request
    peer.manage = lambda operation, body: (200, {}, None)
    await client.request("orders", "x", {})
    assert peer.connections == 1


async def test_a_refused_management_link(peer: Peer, client: WireClient) -> None:
    peer.refuse["nope/$management"] = Error("amqp:not-found", "no such thing", None)
    with pytest.raises(NotFound, match="no such thing"):
        await client.request("nope", "x", {})


async def test_a_request_too_large_is_not_sent(peer: Peer, client: WireClient) -> None:
    peer.max_message_size = 1000
    with pytest.raises(TooLarge, match="takes 1000 at most"):
        await client.request("orders", "x", {"data": b"x" * 1000})


async def test_requests_wait_their_turn(peer: Peer, client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "REQUESTS_MAX", 2)
    peer.manage = lambda operation, body: None
    first = [asyncio.ensure_future(client.request("orders", "x", {})) for _ in range(2)]
    await soon(lambda: len(peer.requests) == 2)
    with pytest.raises(TimedOut, match="waiting for 2 other requests") as caught:
        await client.request("orders", "x", {}, timeout=0.05)
    assert not caught.value.outcome_unknown
    for request in first:
        request.cancel()


async def test_no_credit_for_requests(peer: Peer, client: WireClient) -> None:
    peer.grant = 0
    with pytest.raises(TimedOut, match="waiting for credit") as caught:
        await client.request("orders", "x", {}, timeout=0.1)
    assert not caught.value.outcome_unknown


async def test_settle_by_token(peer: Peer, client: WireClient) -> None:
    peer.manage = lambda operation, body: (200, {}, None)
    token = uuid4()
    await client.settle_by_token("orders", [token.bytes_le], "completed")
    await client.settle_by_token("orders", [token], "suspended", reason="why", description="because")
    assert [(operation, body) for _, operation, body, _ in peer.requests] == [
        ("com.microsoft:update-disposition", {"disposition-status": "completed", "lock-tokens": [token]}),
        (
            "com.microsoft:update-disposition",
            {
                "disposition-status": "suspended",
                "lock-tokens": [token],
                "deadletter-reason": "why",
                "deadletter-description": "because",
            },
        ),
    ]


async def test_renew(peer: Peer, client: WireClient) -> None:
    peer.manage = lambda operation, body: (200, {"expirations": [Timestamp(5500)] * len(body["lock-tokens"])}, None)
    assert await client.renew("orders", [uuid4(), uuid4()]) == [5.5, 5.5]
    peer.manage = lambda operation, body: (200, {}, None)
    with pytest.raises(WireError, match="no list of expirations"):
        await client.renew("orders", [uuid4()])


async def test_peek(peer: Peer, client: WireClient) -> None:
    peer.manage = lambda operation, body: (200, {"messages": [{"message": stored(7)}]}, None)
    assert await client.peek("orders", 5, 10) == [stored(7)]
    assert peer.requests[0][2] == {"from-sequence-number": 5, "message-count": 10}
    peer.manage = lambda operation, body: (204, {}, None)
    assert await client.peek("orders") == []


async def test_an_answer_that_is_none(peer: Peer, client: WireClient) -> None:
    peer.manage = lambda operation, body: (0, {}, None)
    with pytest.raises(WireError, match="no status code"):
        await client.request("orders", "x", {})
