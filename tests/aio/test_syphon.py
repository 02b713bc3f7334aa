"""The syphon in an application, on asyncio and without, with the SDK's clients; ours: e2e/test_closing_proof.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import azure.servicebus.aio
import pytest

import pairbus.aio.syphon
import pairbus.sync.syphon
from pairbus.pairing.errors import ClientFaultedError, PairingError
from pairbus.pairing.events import ClientFaulted, Event, SyphonStarted, SyphonStopped
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.syphon import hosting
from pairbus.syphon.core import pair_lifecycle
from tests.waiting import soon

from ..syphon.conftest import pair as pair
from ..syphon.conftest import syphon_brokers as syphon_brokers
from ..syphon.conftest import syphon_clock as syphon_clock
from ..syphon.pair import Pair, diverted
from .background import called


class Application:
    """Its methods are coroutines for both APIs."""

    def __init__(self, is_sync: bool, pair: Pair, **options: Any) -> None:
        sdk: Any = azure.servicebus if is_sync else azure.servicebus.aio
        host: Any = pairbus.sync.syphon.SyphonHost if is_sync else pairbus.aio.syphon.SyphonHost
        self.events: list[Event] = []
        self.primary = sdk.ServiceBusClient.from_connection_string(pair.east.connection_string)
        self.secondary = sdk.ServiceBusClient.from_connection_string(pair.west.connection_string)
        self.options = SendAvailabilityPairedNamespaceOptions(
            None, self.secondary, 1, enable_syphon=True, **({"syphon_engine": "in-process"} | options)
        )
        self.host = host(
            self.primary,
            self.secondary,
            self.options,
            primary_name=pair.name,
            secondary_name="west",
            indexes=(0,),
            announce=self.events.append,
        )

    async def start(self) -> None:
        await called(self.host.start)

    async def close(self) -> None:
        for each in (self.host.stop, self.primary.close, self.secondary.close):
            await called(each)

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(params=[True, False], ids=["sync", "async"])
def make(request: pytest.FixtureRequest, pair: Pair) -> Callable[..., Application]:
    return partial(Application, request.param, pair)


async def test_p44_what_was_stopped_before_it_started_never_runs(make: Callable[..., Application], pair: Pair) -> None:
    """As when `close()` comes on another thread while a degraded client tries to pair again."""
    await pair.backlog(0)
    before = set(threading.enumerate())
    application = make()
    await called(application.host.stop)
    await application.start()
    await application.close()
    assert application.told(SyphonStarted) == []
    assert set(threading.enumerate()) - before == set()


async def test_p36_p38_it_brings_messages_home(make: Callable[..., Application], pair: Pair, tmp_path: Path) -> None:
    orders = await pair.destination("orders")
    await pair.backlog(0)
    before = set(threading.enumerate())
    application = make(ledger=tmp_path)
    await application.start()
    await pair.divert(0, [diverted(orders, "m1")])
    receiver = application.primary.get_queue_receiver(orders)
    (message,) = await called(lambda: receiver.receive_messages(1, 10))
    assert message.message_id == "m1"
    await called(lambda: receiver.complete_message(message))
    await soon(lambda: application.told(SyphonStarted))
    await application.close()
    await called(application.host.stop)
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("pairbus")] == []
    assert await pair.left(0) == 0
    lines = [json.loads(line) for file in tmp_path.glob("syphon-*") for line in file.read_text().splitlines()]
    assert [line["mid"] for line in lines if line.get("kind") == "move"] == ["m1"]
    assert lines[-1]["kind"] == "end"
    assert repr(application.host) == "<SyphonHost <HostedSyphon stopped>>"


async def test_p44_a_stop_gives_back_what_is_locked(make: Callable[..., Application], pair: Pair) -> None:
    orders = await pair.destination("orders")
    ((queue, _),) = await pair.backlog(0)
    application = make()
    with pair.fault("no-send", entity=orders):
        await pair.divert(0, [diverted(orders, "m1"), diverted(orders, "m2")])
        await application.start()
        await soon(
            lambda: application.host._syphon._engine and application.host._syphon._engine.transfer_state.left == 2
        )
        await application.close()
    receiver = await pair.west_client.receiver(queue)
    assert len(await receiver.receive(5, 2.0)) == 2
    await receiver.close()


async def test_p43_the_secondary_is_closed_and_the_primary_is_not(
    make: Callable[..., Application], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_lifecycle, "GRACE_S", 0.3)
    await pair.backlog(0)
    application = make()
    await application.start()
    await called(application.secondary.close)
    await soon(lambda: application.told(SyphonStopped))
    with pytest.raises(ClientFaultedError, match=rf"{pair.name}.*west.*was closed"):
        application.primary.get_queue_sender("orders")
    (event,) = application.told(ClientFaulted)
    assert event.namespace == pair.name
    await application.close()


async def test_p43_both_are_closed_in_time(
    make: Callable[..., Application], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_lifecycle, "GRACE_S", 0.3)
    await pair.backlog(0)
    application = make()
    await application.start()
    await called(application.secondary.close)
    application.host.client_closed("primary")
    await soon(lambda: application.host._syphon._lifecycle._is_over)
    assert application.told(ClientFaulted) == []
    await application.close()


async def test_p38_the_engine_that_is_not_there(
    make: Callable[..., Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "SPARK", "pairbus.nowhere.hosting")
    with pytest.raises(PairingError, match=r"pairbus\[spark\]"):
        make(syphon_engine="spark")
