"""What only the async client has to prove: it belongs to one loop of one process, and its administration client to an
extra."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.aio import ServiceBusClient
from pairbus.pairing.errors import ForkedClientError, WrongLoopError

from .test_client import PRIMARY, SECONDARY, Clients, options
from .test_client import clients as clients
from .test_receiver import Rig
from .test_receiver import rig as rig


async def test_another_loop_is_a_clear_error(clients: Clients) -> None:
    client = clients()
    await client.pair_namespace(options(clients(SECONDARY)))
    sender = client.get_queue_sender("orders")

    def elsewhere() -> None:
        asyncio.run(sender.send_messages(ServiceBusMessage("x")))

    with pytest.raises(WrongLoopError):
        await asyncio.to_thread(elsewhere)


async def test_without_aiohttp_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.servicebus.aio.management", None)
    with pytest.raises(ImportError, match=r"install pairbus\[aio\], or pass manage=False"):
        await ServiceBusClient.paired(PRIMARY, SECONDARY)


async def test_a_forked_child_gets_a_clear_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = rig.receiver()
    await receiver.peek_messages(1)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        for call in (receiver.receive_messages, receiver.peek_messages):
            with pytest.raises(ForkedClientError, match="Make the client in the child"):
                await call(1)
