"""A data folder that stalls (P48), brought about on purpose; the application's view."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from pairbus.broker import Broker, serve_sync
from pairbus.broker.control.control_socket import request
from pairbus.broker.storage.unread import UNREAD_S
from pairbus.errors import BrokerError, InvalidFault
from pairbus.journal import RealFiles
from pairbus.ledger import LedgerWriter
from pairbus.testing import fault
from tests.untidy_sdk import UNTIDY_SDK
from tests.waiting import soon, until

from .sdk import Sdk

pytestmark = UNTIDY_SDK

STALL_S = 0.3
#: A send takes the time until the stall is noticed once, and this much beside it, on a busy machine.
SEND_S_MAX = 10.0
CONFIG = f"""
[namespaces.contoso]
storage_stall_timeout = {STALL_S}
[[namespaces.contoso.queues]]
name = "orders"
lock_duration = 5
max_delivery_count = 2
[[namespaces.contoso.queues]]
name = "sessions"
requires_session = true
lock_duration = 5
max_delivery_count = 1
"""


@contextmanager
def served(folder: Path, standby: Path | None, salvage: bool = False, ledger: bool = False) -> Iterator[Broker]:
    config = folder / "broker.toml"
    config.write_text(CONFIG)
    options = {"salvage": salvage, "ledger": ledger}
    with serve_sync(data=folder / "data", config=config, standby=standby, **options) as broker:
        yield broker


def health(broker: Broker) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.namespaces['contoso'].port}/health") as answer:
            return answer.status, json.load(answer)["status"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["message"]


def client(broker: Broker) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.namespaces["contoso"].connection_string, retry_total=0)


def received(broker: Broker, count: int) -> list[str]:
    with client(broker) as app, app.get_queue_receiver("orders") as receiver:
        got: list[str] = []
        while len(got) < count and (messages := receiver.receive_messages(count, max_wait_time=5)):
            for message in messages:
                receiver.complete_message(message)
                got.append(str(message))
        return got


def test_p48_with_a_standby_folder_sends_succeed_while_storage_stalls(tmp_path: Path) -> None:
    standby = tmp_path / "standby"
    texts = [f"in the stall {i}" for i in range(5)]
    with served(tmp_path, standby) as broker, client(broker) as app, app.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        with fault(broker, "storage-stall"):
            for text in texts:
                sender.send_messages(ServiceBusMessage(text))
            assert health(broker) == (200, "healthy")
            assert list((standby / "contoso").glob("*.segment"))
            assert received(broker, 1) == ["before"], "a settlement is stored in the standby folder, too"
        sender.send_messages(ServiceBusMessage("after"))
    with served(tmp_path, standby) as broker:
        assert received(broker, 6) == [*texts, "after"], "all of it is there after a restart, once and in order"


def listed(broker: Broker) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = request(broker.data, {"command": "list"})["namespaces"]["contoso"]
    return [{name: each[name] for name in each if name not in ("until", "left_s")} for each in found]


def late_messages(broker: Broker) -> str:
    url = f"http://127.0.0.1:{broker.namespaces['contoso'].port}/metrics"
    with urllib.request.urlopen(url) as answer:
        lines = answer.read().decode().splitlines()
    return next(line.split()[-1] for line in lines if line.startswith("pairbus_late_messages{"))


def peeked(broker: Broker, queue: str, session_id: str | None = None) -> list[str]:
    with client(broker) as app, app.get_queue_receiver(queue, session_id=session_id) as receiver:
        return [str(message) for message in receiver.peek_messages(99)]


def test_p48_what_is_sent_in_a_stall_appears_late_and_none_is_lost(tmp_path: Path) -> None:
    soon_due = datetime.now(UTC) + timedelta(seconds=1)
    with served(tmp_path, tmp_path / "standby") as broker, client(broker) as app:
        with app.get_queue_sender("orders") as sender, app.get_queue_sender("sessions") as of_sessions:
            sender.send_messages(ServiceBusMessage("before"))
            with fault(broker, "storage-stall", late=900.0):
                sender.send_messages([ServiceBusMessage(str(i)) for i in range(3)])
                sender.send_messages(ServiceBusMessage("scheduled", scheduled_enqueue_time_utc=soon_due))
                of_sessions.send_messages(ServiceBusMessage("in a session", session_id="s"))
                assert listed(broker) == [{"kind": "storage-stall", "late": 900.0, "late_messages": 5}]
            sender.send_messages(ServiceBusMessage("after"))
        seen = [text for text in peeked(broker, "orders") if text != "scheduled"]  # as it is until it is due
        assert seen == ["before", "after"] and peeked(broker, "sessions", "s") == []
        assert received(broker, 2) == ["before", "after"]
        assert listed(broker) == [{"kind": "storage-stall", "late": 900.0, "is_back": True, "late_messages": 5}]
        assert late_messages(broker) == "5"
        request(broker.data, {"command": "clear", "namespace": "contoso"})
        assert received(broker, 4) == ["0", "1", "2", "scheduled"]
        assert peeked(broker, "sessions", "s") == ["in a session"]
        assert (listed(broker), late_messages(broker)) == ([], "0")


def test_p48_late_messages_come_by_themselves_when_their_time_is_over(tmp_path: Path) -> None:
    with served(tmp_path, tmp_path / "standby") as broker, client(broker) as app:
        with app.get_queue_sender("orders") as sender, fault(broker, "storage-stall", late=0.05):
            sender.send_messages(ServiceBusMessage("late"))
        assert received(broker, 1) == ["late"]


def test_p48_late_messages_outlive_a_restart(tmp_path: Path) -> None:
    with served(tmp_path, tmp_path / "standby") as broker, client(broker) as app:
        with app.get_queue_sender("orders") as sender, fault(broker, "storage-stall", late=900.0):
            sender.send_messages([ServiceBusMessage(str(i)) for i in range(3)])
        assert peeked(broker, "orders") == []
    with served(tmp_path, tmp_path / "standby") as broker:
        assert received(broker, 3) == ["0", "1", "2"]


def test_p48_without_a_standby_folder_nothing_can_be_late(tmp_path: Path) -> None:
    with (
        served(tmp_path, None) as broker,
        pytest.raises(InvalidFault, match="standby folder"),
        fault(broker, "storage-stall", late=1.0),
    ):
        pytest.fail("the fault was taken")


async def test_p48_with_a_standby_folder_async(tmp_path: Path) -> None:
    with served(tmp_path, tmp_path / "standby") as broker:
        connection_string = broker.namespaces["contoso"].connection_string
        async with (
            AsyncServiceBusClient.from_connection_string(connection_string, retry_total=0) as app,
            app.get_queue_sender("orders") as sender,
            app.get_queue_receiver("orders", max_wait_time=5) as receiver,
        ):
            async with fault(broker, "storage-stall"):
                await sender.send_messages([ServiceBusMessage(str(i)) for i in range(3)])
                await sender.send_messages(ServiceBusMessage("3"))
            got = []
            async for message in receiver:
                await receiver.complete_message(message)
                got.append(str(message))
                if len(got) == 4:
                    break
        assert got == ["0", "1", "2", "3"]


async def test_p48_without_a_standby_folder_sends_are_refused_in_good_time(tmp_path: Path) -> None:
    with served(tmp_path, None) as broker:
        sdk = Sdk(True, broker.namespaces["contoso"])
        async with sdk.client() as app, app.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            async with fault(broker, "storage-stall"):
                for outcome in ("may yet turn up", "nothing was stored", "nothing was stored"):
                    with pytest.raises(ServiceBusError, match=f"disk does not answer; .*{outcome}.*internal-error"):
                        await sender.send_messages(ServiceBusMessage("refused"))
                status, message = await asyncio.to_thread(health, broker)
                assert status == 503 and "does not answer" in message
            await soon(lambda: asyncio.to_thread(lambda: health(broker)[0] == 200), SEND_S_MAX)
            await sender.send_messages(ServiceBusMessage("after"))
    with served(tmp_path, None) as broker:
        found = await Sdk(True, broker.namespaces["contoso"]).receive("orders", 3, wait=1)
        assert [str(each) for each in found] == ["before", "after"], "what was refused never comes"


@contextmanager
def restarted(folder: Path, queue: str, *texts: str, session_id: str | None = None) -> Iterator[Broker]:
    """A broker that was restarted with these messages: they are on its disk alone."""
    with served(folder, folder / "standby") as broker, client(broker) as app, app.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(text, session_id=session_id) for text in texts])
    with served(folder, folder / "standby") as broker:
        yield broker


@pytest.mark.parametrize("mode", list(ServiceBusReceiveMode))
async def test_p48_what_cannot_be_read_is_passed_over_and_is_no_delivery(
    tmp_path: Path, mode: ServiceBusReceiveMode
) -> None:
    removes = {"receive_mode": mode} if mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE else {}
    texts = [f"in the stall {i}" for i in range(3)]
    with restarted(tmp_path, "orders", "before 0", "before 1") as broker:
        sdk = Sdk(True, broker.namespaces["contoso"])
        async with fault(broker, "storage-stall"):
            await sdk.send("orders", [ServiceBusMessage(text) for text in texts])
            assert [str(each) for each in await sdk.receive("orders", 3, **removes)] == texts
        found = await sdk.receive("orders", 2, **removes)
        assert [(str(each), each.delivery_count) for each in found] == [("before 0", 0), ("before 1", 0)]
        assert await sdk.depth("orders") == (0, 0), "and none is dead-lettered"


@pytest.mark.parametrize("mode", list(ServiceBusReceiveMode))
async def test_p48_a_session_waits_for_what_cannot_be_read_and_stays_in_order(
    tmp_path: Path, mode: ServiceBusReceiveMode
) -> None:
    with restarted(tmp_path, "sessions", "0", session_id="a") as broker:
        sdk = Sdk(True, broker.namespaces["contoso"])
        async with (
            sdk.client() as app,
            app.get_queue_receiver("sessions", session_id="a", receive_mode=mode) as receiver,
        ):
            async with fault(broker, "storage-stall"):
                await sdk.send("sessions", [ServiceBusMessage(text, session_id="a") for text in ("1", "2")])
                # longer than the broker waits until it looks again
                assert await receiver.receive_messages(1, max_wait_time=UNREAD_S + 0.3) == []
            found: list[Any] = []
            while len(found) < 3:
                found += await receiver.receive_messages(1, max_wait_time=5)
            assert [(str(each), each.delivery_count) for each in found] == [("0", 0), ("1", 0), ("2", 0)]


async def test_p48_a_peek_says_that_it_cannot_read_and_not_that_sends_are_refused(tmp_path: Path) -> None:
    with restarted(tmp_path, "orders", "before") as broker:
        sdk = Sdk(False, broker.namespaces["contoso"])
        async with (
            sdk.client() as app,
            app.get_queue_receiver("orders") as receiver,
            fault(broker, "storage-stall"),
        ):
            await sdk.send("orders", ServiceBusMessage("in the stall"))
            with pytest.raises(ServiceBusError, match=r"disk does not answer; what it holds can't be read") as told:
                await receiver.peek_messages()
            assert "sends are refused" not in str(told.value) and "stored" not in str(told.value)


async def test_p48_deferred_messages_that_cannot_be_read_are_not_counted(tmp_path: Path) -> None:
    with restarted(tmp_path, "orders", "before") as broker:
        sdk = Sdk(False, broker.namespaces["contoso"])
        async with sdk.client() as app, app.get_queue_receiver("orders") as receiver:
            (message,) = await receiver.receive_messages(1, max_wait_time=5)
            await receiver.abandon_message(message)
            (message,) = await receiver.receive_messages(1, max_wait_time=5)
            await receiver.defer_message(message)
            async with fault(broker, "storage-stall"):
                await sdk.send("orders", ServiceBusMessage("in the stall"))
                for _ in range(2):
                    with pytest.raises(ServiceBusError, match="can't be read"):
                        await receiver.receive_deferred_messages([message.sequence_number])
            await soon(lambda: asyncio.to_thread(lambda: not stalls(broker)), SEND_S_MAX)
            (again,) = await receiver.receive_deferred_messages([message.sequence_number])
            assert again.delivery_count == message.delivery_count + 1


def stalls(broker: Broker) -> bool:
    log = broker.namespaces["contoso"]._journal._log
    return log is not None and bool(log.stalled)


class FrozenDisk:
    """Nothing that is done with files of a folder returns until it thaws, whichever thread does it: what a fault, which
    holds up the journal's thread alone, can't show."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.thawed = threading.Event()
        self.thawed.set()
        self.hung: set[str] = set()  # what was asked of it while it was frozen
        self._folder = str(folder)
        for name in ("pwrite", "fdatasync", "is_same", "is_read_only", "fallocate", "truncate", "stamp"):
            monkeypatch.setattr(RealFiles, name, self._freezing(name, getattr(RealFiles, name)))
        monkeypatch.setattr(LedgerWriter, "_write", self._freezing("ledger", LedgerWriter._write))

    def _freezing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def frozen(it: Any, *arguments: Any) -> Any:
            if not self.thawed.is_set():
                target = it.path if name == "ledger" else arguments[-1] if name == "is_same" else arguments[0]
                path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
                if path.startswith(self._folder):
                    self.hung.add(name)
                    self.thawed.wait(60)
            return call(it, *arguments)

        return frozen


@pytest.mark.parametrize(("first", "hung"), [("settle", "pwrite"), ("health", "is_same"), ("ledger", "ledger")])
def test_p48_a_disk_that_freezes_does_not_take_the_broker_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, hung: str
) -> None:
    disk = FrozenDisk(tmp_path / "data", monkeypatch)
    monkeypatch.setattr("pairbus.ledger.CLOSING_S", 0.1)
    asked = ThreadPoolExecutor(1)
    with (
        served(tmp_path, tmp_path / "standby", ledger=True) as broker,
        client(broker) as app,
        app.get_queue_sender("orders") as sender,
        app.get_queue_receiver("orders") as receiver,
    ):
        sender.send_messages(ServiceBusMessage("before"))
        (message,) = receiver.receive_messages(1, max_wait_time=5)
        ledger = broker.namespaces["contoso"].recorder.ledger
        assert ledger is not None
        until(lambda: not ledger._lines)
        disk.thawed.clear()
        try:
            if first == "settle":
                asked.submit(receiver.complete_message, message)
            elif first == "health":
                asked.submit(health, broker)
            else:
                asked.submit(receiver.peek_messages)
            until(lambda: hung in disk.hung, SEND_S_MAX)
            for number in range(3):
                sender.send_messages(ServiceBusMessage(str(number)), timeout=SEND_S_MAX)
            assert health(broker) == (200, "healthy")
        finally:
            disk.thawed.set()
            asked.shutdown()


def test_p48_without_a_standby_folder_a_settlement_that_hangs_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FrozenDisk(tmp_path / "data", monkeypatch)
    asked = ThreadPoolExecutor(1)
    with (
        served(tmp_path, None) as broker,
        client(broker) as app,
        app.get_queue_sender("orders") as sender,
        app.get_queue_receiver("orders") as receiver,
        client(broker) as another,
        another.get_queue_sender("orders") as bystander,
    ):
        sender.send_messages([ServiceBusMessage("before"), ServiceBusMessage("waiting")])
        (message,) = receiver.receive_messages(1, max_wait_time=5)
        written = time.monotonic()
        until(lambda: time.monotonic() > written + 0.5)  # the disk has been asked for nothing for a while
        disk.thawed.clear()
        try:
            settled = asked.submit(receiver.complete_message, message)
            until(lambda: "pwrite" in disk.hung, SEND_S_MAX)
            assert [str(each) for each in app.get_queue_receiver("orders").peek_messages(2)] == ["before", "waiting"]
            for each in (sender, bystander):
                with pytest.raises(ServiceBusError, match="disk does not answer"):
                    each.send_messages(ServiceBusMessage("refused"), timeout=SEND_S_MAX)
            assert health(broker)[0] == 503
            with pytest.raises(ServiceBusError, match="disk does not answer"):
                settled.result(SEND_S_MAX)
        finally:
            disk.thawed.set()
            asked.shutdown()
        until(lambda: health(broker)[0] == 200, SEND_S_MAX)
        bystander.send_messages(ServiceBusMessage("after"))


def test_p48_a_start_without_the_standby_folder_is_refused_as_long_as_it_holds_messages(tmp_path: Path) -> None:
    standby = tmp_path / "standby"
    with (
        served(tmp_path, standby) as broker,
        client(broker) as app,
        app.get_queue_sender("orders") as sender,
        fault(broker, "storage-stall"),
    ):
        sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(BrokerError, match=f"{standby}/contoso holds records .*--standby"), served(tmp_path, None):
        pass
    with pytest.raises(BrokerError, match="holds records"), served(tmp_path, tmp_path / "another"):
        pass
    (tmp_path / "b").mkdir()
    with pytest.raises(BrokerError, match="of another journal"), served(tmp_path / "b", standby):
        pass
    with served(tmp_path, standby) as broker:
        assert received(broker, 1) == ["x"]
