"""The syphon in an application without a loop, with the SDK's clients. With ours: tests/e2e/test_closing_proof.py."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient

from pairbus.pairing.errors import ClientFaultedError, PairingError
from pairbus.pairing.events import ClientFaulted, Event, SyphonStarted, SyphonStopped
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.sync.syphon import SyphonHost
from pairbus.syphon import hosting
from pairbus.syphon.core import pair_lifecycle

from ..syphon.conftest import pair as pair
from ..syphon.conftest import syphon_brokers as syphon_brokers
from ..syphon.conftest import syphon_clock as syphon_clock
from ..syphon.pair import Pair, diverted


def wait_until(condition: Callable[[], Any], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class Application:
    def __init__(self, pair: Pair, **options: Any) -> None:
        self.events: list[Event] = []
        self.primary = ServiceBusClient.from_connection_string(pair.east.connection_string)
        self.secondary = ServiceBusClient.from_connection_string(pair.west.connection_string)
        self.options = SendAvailabilityPairedNamespaceOptions(
            None, self.secondary, 1, enable_syphon=True, **({"syphon_engine": "in-process"} | options)
        )
        self.host = SyphonHost(
            self.primary,
            self.secondary,
            self.options,
            primary_name=pair.name,
            secondary_name="west",
            indexes=(0,),
            announce=self.events.append,
        )

    def close(self) -> None:
        self.host.stop()
        self.primary.close()
        self.secondary.close()

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


async def test_p36_p38_it_brings_messages_home_on_a_thread(pair: Pair) -> None:
    orders = await pair.destination("orders")
    await pair.backlog(0)
    await pair.divert(0, [diverted(orders, "m1")])
    before = set(threading.enumerate())
    application = Application(pair)
    application.host.start()
    with application.primary.get_queue_receiver(orders) as receiver:
        (message,) = receiver.receive_messages(1, 10)
        assert message.message_id == "m1"
        receiver.complete_message(message)
    wait_until(lambda: application.told(SyphonStarted))
    application.close()
    application.host.stop()
    assert await pair.left(0) == 0
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("pairbus")] == []


async def test_p43_the_secondary_is_closed_and_the_primary_is_not(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_lifecycle, "GRACE_S", 0.3)
    await pair.backlog(0)
    application = Application(pair)
    application.host.start()
    application.secondary.close()
    wait_until(lambda: application.told(SyphonStopped))
    with pytest.raises(ClientFaultedError, match=rf"{pair.name}.*west.*was closed"):
        application.primary.get_queue_sender("orders")
    assert len(application.told(ClientFaulted)) == 1
    application.close()


async def test_p38_the_engine_that_is_not_there(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "SPARK", "pairbus.nowhere.hosting")
    with pytest.raises(PairingError, match=r"pairbus\[spark\]"):
        Application(pair, syphon_engine="spark")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_in_a_forked_child_there_is_nothing_to_stop(pair: Pair) -> None:
    await pair.backlog(0)
    application = Application(pair)
    application.host.start()
    child = os.fork()
    if child == 0:
        try:
            application.host.client_closed("secondary")
            application.host.stop()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    application.close()
