from __future__ import annotations

import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.amqp.performative_types import Error
from pairbus.credentials import Token
from pairbus.sas import AuthorizationRule, verify
from pairbus.wire import SharedKey, SharedSignature, TimedOut, Unauthorized, WireClient
from pairbus.wire import tokens as tokens_module
from tests.waiting import soon

from .peer import Peer, message

KEY = "c2VjcmV0"
RULE = AuthorizationRule(key_name="root", primary_key=KEY, rights=("Manage",))


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def connection_string(peer: Peer) -> str:
    return (
        f"Endpoint=sb://127.0.0.1:{peer.port};SharedAccessKeyName=root;SharedAccessKey={KEY};"
        "UseDevelopmentEmulator=true;"
    )


async def test_one_token_for_each_entity_before_its_first_link(peer: Peer) -> None:
    clock = Clock()
    async with WireClient.from_connection_string(connection_string(peer), clock=clock) as client:
        await client.sender("orders")
        await client.receiver("orders")
        await client.sender("news/$DeadLetterQueue")
    assert [token["name"] for token in peer.tokens] == [
        f"sb://127.0.0.1:{peer.port}/orders",
        f"sb://127.0.0.1:{peer.port}/news/$DeadLetterQueue",
    ]
    first = peer.tokens[0]
    claims = verify(first["token"], clock.now, lambda path: [RULE])
    assert claims.scope_path == "orders"
    assert first["type"] == "servicebus.windows.net:sastoken"
    assert first["expiration"] == int(claims.expires_at * 1000)
    assert peer.logins == [("ANONYMOUS", None)]


async def test_a_refused_token(peer: Peer) -> None:
    peer.token_status = (401, "InvalidSignature: the token has an invalid signature.")
    async with WireClient.from_connection_string(connection_string(peer)) as client:
        with pytest.raises(Unauthorized, match="InvalidSignature") as caught:
            await client.sender("orders")
        assert KEY not in str(caught.value)
        assert KEY not in repr(client)
        with pytest.raises(Unauthorized):
            await client.peek("orders")


async def test_a_token_is_renewed_on_the_same_links_before_it_runs_out(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "LOOK_S_MAX", 0.01)
    clock = Clock()
    async with WireClient.from_connection_string(connection_string(peer), clock=clock) as client:
        sender = await client.sender("orders")
        await client.sender("news")
        clock.now += 3239
        await asyncio.sleep(0.03)
        assert len(peer.tokens) == 2
        clock.now += 2
        await soon(lambda: len(peer.tokens) == 4)
        await sender.send(message())
        assert sorted(token["name"].rsplit("/")[-1] for token in peer.tokens[2:]) == ["news", "orders"]
        assert peer.tokens[2]["expiration"] > peer.tokens[0]["expiration"]
    assert len([name for name, role in peer.attached if name == "$cbs"]) == 2
    assert peer.connections == 1


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
async def test_a_token_is_renewed_in_time_although_the_wall_clock_was_set(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """Back: the token still runs out where it is checked. Forward: it may have run out there already."""
    monkeypatch.setattr(tokens_module, "LOOK_S_MAX", 0.01)
    monkeypatch.setattr(Token, "renew_at", lambda token, now: now + (0.05 if step < 0 else 3240.0))
    clock = Clock()
    async with WireClient.from_connection_string(connection_string(peer), clock=clock) as client:
        await client.sender("orders")
        clock.now += step
        await soon(lambda: len(peer.tokens) >= 2)


async def test_nothing_is_renewed_on_a_connection_that_is_lost(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tokens_module, "LOOK_S_MAX", 0.01)
    clock = Clock()
    caplog.set_level(logging.WARNING, "pairbus.wire")
    async with WireClient.from_connection_string(connection_string(peer), clock=clock) as client:
        await client.sender("orders")
        [renewal] = [task for task in asyncio.all_tasks() if "Tokens._renew" in repr(task)]
        await peer.stop()
        await soon(lambda: not client.is_connected)
        clock.now += 3500
        await soon(renewal.done)
    assert "renewing the token" not in caplog.text


async def test_a_renewal_that_fails_is_tried_again(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tokens_module, "LOOK_S_MAX", 0.01)
    clock = Clock()
    caplog.set_level(logging.WARNING, "pairbus.wire")
    async with WireClient.from_connection_string(connection_string(peer), clock=clock) as client:
        await client.sender("orders")
        peer.token_status = (503, "busy")
        clock.now += 3500
        await soon(lambda: bool(caplog.records))
        peer.token_status = (202, "Accepted")
        clock.now += 6
        await soon(lambda: len(peer.tokens) == 3)
    assert "renewing the token for sb://127.0.0.1" in caplog.text
    assert KEY not in caplog.text
    assert "sig=" not in caplog.text


async def test_after_a_denial_the_next_link_puts_a_new_token(peer: Peer) -> None:
    async with WireClient.from_connection_string(connection_string(peer)) as client:
        sender = await client.sender("orders")
        peer.detach("orders", Error("amqp:unauthorized-access", "the token has expired", None))
        await soon(lambda: not sender.is_open)
        await sender.send(message())
        assert len(peer.tokens) == 2
        peer.refuse["orders"] = Error("amqp:unauthorized-access", "Send is missing", None)
        with pytest.raises(Unauthorized, match="Send is missing"):
            await client.sender("orders")
        peer.refuse.clear()
        await client.sender("orders")
        assert len(peer.tokens) == 3


async def test_a_signature_made_elsewhere(peer: Peer) -> None:
    text = SharedKey("root", KEY).token(f"sb://127.0.0.1:{peer.port}/orders", 1_700_000_000.0).text
    async with WireClient("127.0.0.1", peer.port, tls=False, credential=SharedSignature(text)) as client:
        await client.sender("orders")
    assert peer.tokens[0]["token"] == text


class SyncCredential:
    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.thread: int | None = None

    def get_token(self, *scopes: str) -> Any:
        self.asked.append(scopes)
        self.thread = threading.get_ident()
        return SimpleNamespace(token=f"eyJ{len(self.asked)}", expires_on=1_700_003_600)


class AsyncCredential(SyncCredential):
    async def get_token(self, *scopes: str) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().get_token(*scopes)


class Wrapped(SyncCredential):
    """A plain function that gives a coroutine."""

    def get_token(self, *scopes: str) -> Any:
        inner = super().get_token

        async def later() -> Any:
            return inner(*scopes)

        return later()


@pytest.mark.parametrize("kind", [SyncCredential, AsyncCredential, Wrapped])
async def test_azure_identity_credentials(peer: Peer, kind: type[SyncCredential]) -> None:
    credential = kind()
    async with WireClient("127.0.0.1", peer.port, tls=False, credential=credential, clock=Clock()) as client:
        await client.sender("orders")
        await client.sender("news")
    assert credential.asked == [("https://servicebus.azure.net/.default",)]  # one token serves all entities
    assert [(token["type"], token["token"]) for token in peer.tokens] == [("jwt", "eyJ1")] * 2
    assert (credential.thread == threading.get_ident()) is (kind is not SyncCredential)


async def test_an_entra_token_is_fetched_anew_when_due(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "LOOK_S_MAX", 0.01)
    credential, clock = AsyncCredential(), Clock()
    async with WireClient("127.0.0.1", peer.port, tls=False, credential=credential, clock=clock) as client:
        await client.sender("orders")
        clock.now += 3300
        await soon(lambda: len(peer.tokens) >= 2)
    assert peer.tokens[1]["token"] == "eyJ2"


async def test_a_credential_that_fails_or_hangs(peer: Peer) -> None:
    class Failing:
        def get_token(self, *scopes: str) -> Any:
            raise RuntimeError("the secret is s3cr3t")

    class Hanging:
        async def get_token(self, *scopes: str) -> Any:
            await asyncio.Event().wait()

    async with WireClient("127.0.0.1", peer.port, tls=False, credential=Failing()) as client:
        with pytest.raises(Unauthorized, match="Failing gave no token: RuntimeError") as caught:
            await client.sender("orders")
        assert "s3cr3t" not in str(caught.value)
    async with WireClient("127.0.0.1", peer.port, tls=False, credential=Hanging(), timeout=0.1) as client:
        with pytest.raises(TimedOut, match="getting a token"):
            await client.sender("orders", open_timeout=5.0)


async def test_cbs_that_does_not_answer(peer: Peer) -> None:
    peer.grant = 0
    async with WireClient.from_connection_string(connection_string(peer), timeout=0.1) as client:
        with pytest.raises(TimedOut, match="put-token"):
            await client.sender("orders", open_timeout=5.0)
