"""A data folder that stalls (P48), brought about on purpose; the application's view, sync and async."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from pairbus.broker import Broker, serve_sync
from pairbus.errors import BrokerError
from pairbus.testing import fault
from tests.untidy_sdk import UNTIDY_SDK

pytestmark = UNTIDY_SDK

STALL_S = 0.3
#: A send takes the time until the stall is noticed once, and this much beside it, on a busy machine.
SEND_S_MAX = 10.0
CONFIG = f"""
[namespaces.contoso]
storage_stall_timeout = {STALL_S}
[[namespaces.contoso.queues]]
name = "orders"
"""


@contextmanager
def served(folder: Path, standby: Path | None, salvage: bool = False) -> Iterator[Broker]:
    config = folder / "broker.toml"
    config.write_text(CONFIG)
    with serve_sync(data=folder / "data", config=config, standby=standby, salvage=salvage) as broker:
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
                began = time.monotonic()
                sender.send_messages(ServiceBusMessage(text))
                assert time.monotonic() - began < SEND_S_MAX
            assert health(broker) == (200, "healthy")
            assert list((standby / "contoso").glob("*.segment"))
            assert received(broker, 1) == ["before"], "a settlement is stored in the standby folder, too"
        sender.send_messages(ServiceBusMessage("after"))
    with served(tmp_path, standby) as broker:
        assert received(broker, 6) == [*texts, "after"], "all of it is there after a restart, once and in order"


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


def test_p48_without_a_standby_folder_sends_are_refused_in_good_time(tmp_path: Path) -> None:
    with served(tmp_path, None) as broker, client(broker) as app, app.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        with fault(broker, "storage-stall"):
            for outcome in ("may yet turn up", "nothing was stored", "nothing was stored"):
                began = time.monotonic()
                with pytest.raises(ServiceBusError, match=f"disk does not answer; .*{outcome}.*internal-error"):
                    sender.send_messages(ServiceBusMessage("refused"))
                assert time.monotonic() - began < SEND_S_MAX
            status, message = health(broker)
            assert status == 503 and "does not answer" in message
        deadline = time.monotonic() + SEND_S_MAX
        while health(broker)[0] != 200:
            assert time.monotonic() < deadline, "the stall has ended, and sends are still refused"
        sender.send_messages(ServiceBusMessage("after"))
    with served(tmp_path, None) as broker:
        assert received(broker, 3) == ["before", "after"], "what was refused never comes"


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


@pytest.fixture
def stalled_once(tmp_path: Path) -> Path:
    """A folder with the data of a broker that has stalled: of four messages the third is in the folder `standby` alone,
    and the second, whose write hung, in both."""
    with (
        served(tmp_path, tmp_path / "standby") as broker,
        client(broker) as app,
        app.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("before"))
        with fault(broker, "storage-stall"):
            sender.send_messages(ServiceBusMessage("hung"))
            sender.send_messages(ServiceBusMessage("meanwhile"))
        journal = broker.namespaces["contoso"]._journal
        deadline = time.monotonic() + SEND_S_MAX
        while journal._log is not None and journal._log.stalled:
            assert time.monotonic() < deadline, "the stall has ended, and the journal is still in its standby folder"
        sender.send_messages(ServiceBusMessage("after"))
    return tmp_path


@pytest.mark.parametrize("where", ["standby/contoso/standby", "data/contoso/journal/standby"])
def test_p48_salvage_finds_all_where_only_the_file_is_damaged_by_which_folders_know_each_other(
    stalled_once: Path, where: str
) -> None:
    standby = stalled_once / "standby"
    (stalled_once / where).write_text("damaged")
    with pytest.raises(BrokerError, match="--salvage"), served(stalled_once, standby):
        pass
    with served(stalled_once, standby, salvage=True):
        pass
    with served(stalled_once, standby) as broker:
        assert received(broker, 4) == ["before", "hung", "meanwhile", "after"]


def test_p48_salvage_goes_on_without_a_standby_folder_that_is_lost(
    stalled_once: Path, caplog: pytest.LogCaptureFixture
) -> None:
    standby = stalled_once / "standby"
    standby.rename(stalled_once / "lost")
    refused = pytest.raises(BrokerError, match=r"is not the standby folder .* may hold records.*--salvage")
    with refused, served(stalled_once, standby):
        pass
    with served(stalled_once, standby, salvage=True) as broker:
        assert received(broker, 3) == ["before", "hung", "after"]
    assert "may hold records" in caplog.text and "is missing" in caplog.text
    standby.rename(stalled_once / "new")
    (stalled_once / "lost").rename(standby)
    with pytest.raises(BrokerError, match="of another journal"), served(stalled_once, standby, salvage=True):
        pass
