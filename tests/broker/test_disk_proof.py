"""A disk that is full, fails to sync, or stops in the middle of a compaction; the application's view, through the SDK.

What is confirmed stays, what is refused is said to be, settling goes on as long as there is any room, and service
resumes by itself. (What the journal does with each single call is proved on a simulated disk, tests/journal.)
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError

from pairbus.amqp.message import read_application_properties, read_properties
from pairbus.wire import ReceivedMessage, WireClient
from tests.untidy_sdk import UNTIDY_SDK
from tests.untidy_sdk import swept as swept

from .broker_process import SMALL_SEGMENTS, BrokerProcess, used_bytes, wait_until
from .crash_drive import SEED, Drive
from .sdk import Bridge, Sdk

pytestmark = UNTIDY_SDK


CAPACITY = 6 << 20
SMALL_JOURNAL = {"segment_bytes": 1 << 20, "reserve_bytes": 256 << 10, "allocate_bytes": 64 << 10}


def text_of(message: Any) -> str:
    return str(message.message_id)


async def there(broker: BrokerProcess, path: str) -> list[ReceivedMessage]:
    """All that a queue holds, by the wire client: opening a receiver of the SDK takes half a second."""
    found: list[ReceivedMessage] = []
    async with WireClient.from_connection_string(broker.connection_string) as client:
        while page := await client.peek(path, (found[-1].sequence_number or 0) + 1 if found else 1, 1000):
            found += [ReceivedMessage(payload, 0, b"", None, True) for payload in page]
    return found


async def ids_in(broker: BrokerProcess, path: str) -> list[str]:
    return [read_properties(message.payload, message.sections).message_id for message in await there(broker, path)]


async def sends_again(sender: Bridge, id: str) -> int:
    """How many attempts it took."""
    for attempt in range(500):
        try:
            await sender.send_messages(ServiceBusMessage("x", message_id=f"{id}-{attempt}"))
            return attempt
        except ServiceBusError as error:
            if "disk" not in str(error):
                raise
            await asyncio.sleep(0.02)  # the broker looks for room now and then
    raise AssertionError("service did not resume")


# -- a sync that fails


async def test_a_sync_that_fails_once_refuses_one_send_and_undoes_no_settlement(tmp_path: Path) -> None:
    flag = tmp_path / "fail-once"
    with BrokerProcess(tmp_path / "data", disk={"fails": ["fdatasync", str(flag)]}) as broker:
        broker.start()
        sdk = Sdk(True, broker)  # type: ignore[arg-type]
        queue = await sdk.queue()
        async with (
            sdk.client() as client,
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue) as receiver,
        ):
            ids = ("completed", "dead", "abandoned", "kept")
            await sender.send_messages([ServiceBusMessage("x", message_id=id) for id in ids])
            flag.touch()
            with pytest.raises(ServiceBusError, match=r"disk refused; nothing was stored.*EIO") as caught:
                await sender.send_messages(ServiceBusMessage("x", message_id="refused"))
            assert type(caught.value) is ServiceBusError
            assert not flag.exists()
            await sender.send_messages(ServiceBusMessage("x", message_id="after"))
            messages: list[Any] = []
            while len(messages) < 3:
                messages += await receiver.receive_messages(3 - len(messages), max_wait_time=5)
            flag.touch()
            await receiver.complete_message(messages[0])
            await receiver.dead_letter_message(messages[1], reason="r", error_description="d")
            await receiver.abandon_message(messages[2])
            # lazy records: answered, then synced within a tenth of a second, which fails
            assert wait_until(lambda: not flag.exists())
        broker.kill()
        broker.start()
        assert await ids_in(broker, queue) == ["abandoned", "kept", "after"]
        (dead,) = await there(broker, f"{queue}/$deadletterqueue")
        reasons = {"DeadLetterReason": "r", "DeadLetterErrorDescription": "d"}
        assert read_application_properties(dead.payload, dead.sections) == reasons
        assert [message.delivery_count for message in await there(broker, queue)] == [1, 0, 0]
        assert "Traceback" not in broker.said()


async def test_while_every_sync_fails_nothing_is_confirmed_and_nothing_is_lost(tmp_path: Path) -> None:
    flag = tmp_path / "failing"
    with BrokerProcess(tmp_path / "data", disk={"failing": ["fdatasync", str(flag)]}) as broker:
        broker.start()
        sdk = Sdk(True, broker)  # type: ignore[arg-type]
        queue = await sdk.queue()
        await sdk.send(queue, [ServiceBusMessage("x", message_id=id) for id in ("locked", "kept")])
        async with (
            sdk.client() as client,
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue) as receiver,
        ):
            (locked,) = await receiver.receive_messages(1, max_wait_time=5)
            flag.touch()
            for number in range(3):
                with pytest.raises(ServiceBusError, match="disk"):
                    await sender.send_messages(ServiceBusMessage("x", message_id=f"refused-{number}"))
            # no segment can be made: not even a settlement can be kept, so it is refused, and the lock stands
            with pytest.raises(ServiceBusError, match="disk"):
                await receiver.complete_message(locked)
            assert await ids_in(broker, queue) == ["locked", "kept"]
            flag.unlink()
            attempts = await sends_again(sender, "after")
            async with WireClient.from_connection_string(broker.connection_string) as wire:
                await wire.settle_by_token(queue, [locked.lock_token], "completed")
            await sender.send_messages(ServiceBusMessage("x", message_id="last"))  # which syncs what was settled, too
            expected = ["kept", f"after-{attempts}", "last"]
            assert await ids_in(broker, queue) == expected
            flag.touch()
            with pytest.raises(ServiceBusError, match="disk"):
                await sender.send_messages(ServiceBusMessage("x", message_id="refused-again"))
        broker.kill()
        flag.unlink()
        broker.start()
        # the refusal said so: what was refused while no segment could be made may turn up
        ids = await ids_in(broker, queue)
        assert [id for id in ids if id != "refused-again"] == expected
        assert len(ids) == len(set(ids))
        assert "Traceback" not in broker.said()


# -- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder on a file system of its own with room for CAPACITY bytes; where that can't be mounted, a broker whose
    disk counts."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={CAPACITY},mode=700", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        yield folder, {"capacity": CAPACITY, "folder": str(folder)}
        return
    try:
        yield folder, {}
    finally:
        subprocess.run(["umount", str(folder)], check=True, capture_output=True)


async def fill(sender: Bridge, *sizes: int) -> list[str]:
    """Sends messages of each size until the disk has no room for one; the ids that were confirmed."""
    confirmed: list[str] = []
    for size in sizes:
        while True:
            id = f"m{len(confirmed)}"
            try:
                await sender.send_messages(ServiceBusMessage(os.urandom(size), message_id=id))
            except ServiceBusQuotaExceededError as error:
                if "The broker's disk is full; nothing was stored" not in str(error):
                    raise
                break
            confirmed.append(id)
            assert len(confirmed) < 3000, "the disk does not fill up"
    return confirmed


def health(broker: BrokerProcess) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.port}/health") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def test_a_full_disk_refuses_sends_lets_settle_and_resumes(small_disk: tuple[Path, dict[str, Any]]) -> None:
    folder, faults = small_disk
    with BrokerProcess(folder / "data", journal=SMALL_JOURNAL, disk=faults) as broker:
        broker.start()
        sdk = Sdk(False, broker)  # type: ignore[arg-type]
        queue = await sdk.queue()
        async with sdk.client() as client, client.get_queue_sender(queue) as sender:
            confirmed = await fill(sender, 100_000, 5_000, 10)
            assert len(confirmed) > 20
            assert await ids_in(broker, queue) == confirmed
            # killed and started on the full disk: all there, still full, still able to settle
            broker.kill()
            broker.start()
            assert await ids_in(broker, queue) == confirmed
            with pytest.raises(ServiceBusQuotaExceededError, match="disk is full"):
                await sdk.send(queue, ServiceBusMessage(b"x", message_id="refused"))
            received = await sdk.receive(queue, 15)
            assert [text_of(message) for message in received] == confirmed[:15]
            # the room of what was completed comes back by itself
        async with sdk.client() as client, client.get_queue_sender(queue) as sender:
            attempts = await sends_again(sender, "after")
        expected = [*confirmed[15:], f"after-{attempts}"]
        assert await ids_in(broker, queue) == expected
        broker.kill()
        broker.start()
        assert await ids_in(broker, queue) == expected
        assert "Traceback" not in broker.said()


async def test_a_disk_that_somebody_else_fills(small_disk: tuple[Path, dict[str, Any]]) -> None:
    folder, faults = small_disk
    filler = folder / "filler"
    with BrokerProcess(folder / "data", journal=SMALL_JOURNAL, disk=faults) as broker:
        broker.start()
        sdk = Sdk(True, broker)  # type: ignore[arg-type]
        queue = await sdk.queue()
        await sdk.send(queue, [ServiceBusMessage("x", message_id=f"before-{n}") for n in range(50)])
        with open(filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, CAPACITY - used_bytes(str(folder)) - 64 * 1024)
        async with sdk.client() as client, client.get_queue_sender(queue) as sender:
            confirmed = await fill(sender, 5_000, 10)
            # a whole segment's worth of settlements goes on in the reserve
            received = await sdk.receive(queue, 50 + len(confirmed))
            assert [text_of(message) for message in received] == [*(f"before-{n}" for n in range(50)), *confirmed]
            filler.unlink()
            attempts = await sends_again(sender, "after")
        broker.kill()
        broker.start()
        assert await ids_in(broker, queue) == [f"after-{attempts}"]
        assert "Traceback" not in broker.said()


async def test_a_disk_that_holds_one_reserve_and_no_more_resumes(small_disk: tuple[Path, dict[str, Any]]) -> None:
    """As one of 24 MB does with the reserve of 16 MB: fill it and empty it, again and again, without a restart."""
    folder, faults = small_disk
    journal = {"segment_bytes": 16 << 20, "reserve_bytes": 4 << 20, "allocate_bytes": 256 << 10}
    with BrokerProcess(folder / "data", journal=journal, disk=faults) as broker:
        broker.start()
        sdk = Sdk(False, broker)  # type: ignore[arg-type]
        queue = await sdk.queue()
        expected: list[str] = []
        for turn, size in enumerate((100_000, 5_000)):
            async with sdk.client() as client, client.get_queue_sender(queue) as sender:
                confirmed = await fill(sender, size)
                assert len(confirmed) > 5
                assert await asyncio.to_thread(health, broker) == 503
                received = await sdk.receive(queue, len(expected) + len(confirmed))
                assert [text_of(message) for message in received] == expected + confirmed
                attempts = await sends_again(sender, f"after-{turn}")
                assert await asyncio.to_thread(health, broker) == 200
            expected = [f"after-{turn}-{attempts}"]
        assert await ids_in(broker, queue) == expected
        broker.kill()
        broker.start()
        assert await ids_in(broker, queue) == expected
        assert "Traceback" not in broker.said()


# -- a process that dies in the middle


def test_killed_in_the_middle_of_a_compaction(tmp_path: Path) -> None:
    """Only compaction unlinks: when the old segment is gone, and the folder is not synced."""
    drive = Drive(tmp_path / "data", SEED)
    drive.broker.journal = SMALL_SEGMENTS
    drive.run_deaths([("unlink", 1, "after")])
    assert drive.totals.audits == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_any_call_to_the_disk(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED)
    drive.broker.journal = SMALL_SEGMENTS
    calls = [
        *(("unlink", nth, when) for nth in (1, 2) for when in ("before", "after")),
        *((name, nth, when) for name in ("fsync_dir", "fallocate") for nth, when in ((1, "before"), (3, "after"))),
        *((name, nth, "after") for name in ("pwrite", "fdatasync") for nth in (1, 10, 200)),
    ]
    drive.run_deaths(calls)
    assert drive.totals.audits == len(calls)
