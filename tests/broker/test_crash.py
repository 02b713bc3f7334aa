"""Killed with -9 under load, again and again: nothing that was confirmed is lost, doubled, changed or raised again.

Once under much traffic, once while all that queues and topics can do is done: sessions and their state, schedules,
deferred messages, dead letters, duplicates, subscriptions, rules, forwarding; and while nodes of the broker fail beside
that and are restarted from the journal (P49). And the proof of the proof: the checker
(its own tests are in tests/simulation/test_history.py) is shown a broker whose journal has been tampered with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.broker import NamespaceServer
from pairbus.broker.format import records
from pairbus.journal import Record
from pairbus.wire import WireClient
from tests.simulation.checker import Checker
from tests.simulation.history import ACTIVE, DEAD, DEFERRED, GONE, SCHEDULED, History

from .broker_process import SMALL_SEGMENTS, BrokerProcess
from .crash_drive import SEED, UNTIDY_SDK, Drive, rewrite_journal
from .crash_features import FEATURES, PARTITIONED, cancel, colour_rule, create_features, schedule, settle_seen
from .crash_load import (
    Load,
    Proof,
    Worker,
    admin_client,
    async_sdk_client,
    look_at,
    payload_of,
    take_inventory,
    wire_client,
    without_overtaken,
)
from .crash_traffic import TRAFFIC
from .crash_transactions import TRANSACTIONS

pytestmark = UNTIDY_SDK


def test_killed_under_load(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED)
    drive.run(kills=3, confirmed=50, settled=20)
    assert drive.totals.kills >= 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_twelve_times_under_load(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED)
    drive.run(kills=12, audits=5, confirmed=500)
    assert drive.totals.kills >= 12


def stalling(tmp_path: Path) -> Drive:
    """Return a drive of a broker whose data folder stalls every few syncs, for as long as it lives or shorter."""
    drive = Drive(tmp_path / "data", SEED)
    drive.broker.standby = tmp_path / "standby"
    drive.broker.journal = {**SMALL_SEGMENTS, "stall_s": 0.1}
    drive.broker.disk = {"folder": str(tmp_path / "data"), "hangs": [10, 1.0]}
    return drive


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_p48_killed_in_the_middle_of_a_storage_stall(tmp_path: Path) -> None:
    drive = stalling(tmp_path)
    drive.run(kills=4, confirmed=100, audits=2)
    assert drive.totals.kills >= 4
    assert list(tmp_path.glob("standby/contoso/*.segment")), "no stall was noticed"


def test_killed_while_everything_is_used(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED, FEATURES)
    drive.run(kills=2, confirmed=50)
    assert drive.totals.kills >= 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_ten_times_while_everything_is_used(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED, FEATURES)
    drive.run(kills=10, audits=4, confirmed=300, retried=30, by_number=5)
    assert drive.totals.kills >= 10


def test_killed_while_everything_is_partitioned(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED, PARTITIONED)
    drive.run(kills=2, confirmed=50)
    assert drive.totals.kills >= 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_six_times_while_everything_is_partitioned(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED, PARTITIONED)
    drive.run(kills=6, audits=3, confirmed=200, retried=10, by_number=2)
    assert drive.totals.kills >= 6


def test_killed_in_transactions(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED, TRANSACTIONS)
    drive.run(kills=2, confirmed=30)
    assert drive.totals.kills >= 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_ten_times_in_transactions(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED, TRANSACTIONS)
    drive.run(kills=10, confirmed=200, audits=4)
    assert drive.totals.kills >= 10


def test_p49_killed_while_nodes_fail(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED, crashes=True)
    drive.run(kills=2, confirmed=20, crashes=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("proof", [TRAFFIC, FEATURES, TRANSACTIONS], ids=["traffic", "features", "transactions"])
def test_p49_killed_again_and_again_while_nodes_fail(tmp_path: Path, proof: Proof) -> None:
    drive = Drive(tmp_path / "data", SEED, proof, crashes=True)
    drive.run(kills=3, confirmed=50, audits=2, crashes=3)


@pytest.mark.parametrize("is_doubled", [False, True])
async def test_a_message_that_falls_due_between_two_looks_is_no_second_copy(
    pairbus_namespace: NamespaceServer, pairbus_queue: Callable[..., str], is_doubled: bool
) -> None:
    queue = pairbus_queue()
    later = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(4_000_000_000_000)} if is_doubled else None
    async with WireClient.from_connection_string(pairbus_namespace.connection_string) as client:
        sender = await client.sender(queue)
        for annotations in (later, None):
            await sender.send(encode_message(None, annotations, Properties(message_id="m"), body=b"x"))
        looks = [look_at(queue, False, payload) for payload in await client.peek(queue, 1, 10)]
        first = looks[0]._replace(state=SCHEDULED, sequence=looks[0].sequence if is_doubled else 0)
        found = await without_overtaken(client, [first, looks[1]])
    assert found == ([first, looks[1]] if is_doubled else [looks[1]])


# -- a real broker whose journal has been tampered with


async def send_by_wire(worker: Worker, path: str, home: str, *ids: str) -> None:
    async with wire_client(worker) as client:
        sender = await client.sender(path)
        for id in ids:
            with worker.sending([id], home):
                await sender.send(payload_of(id))


async def do_one_of_each(worker: Worker, admin: Any) -> None:
    await send_by_wire(worker, "news", "news/all", "published")
    await send_by_wire(worker, "once", "once", "done once")
    await send_by_wire(worker, "deferred", "deferred", "set aside", "bad", "done", "kept")
    async with async_sdk_client(worker) as client:
        for home, settlements in (("once", [GONE]), ("deferred", [DEFERRED, DEAD, GONE])):
            async with client.get_queue_receiver(home) as receiver:
                for to in settlements:
                    (message,) = await receiver.receive_messages(1, max_wait_time=10)
                    await settle_seen(worker, receiver, home, message, ACTIVE, to)
        async with client.get_queue_sender("due") as sender:
            due = time.time() + 3600
            known = await schedule(worker, sender, ["cancelled"], "due", due=due)
            await schedule(worker, sender, ["waiting"], "due", due=due)
            await cancel(worker, sender, ["due"], *known[0])
        async with client.get_queue_receiver("sessions", session_id="s0") as receiver:
            with worker.writing({("state", "s0"): "where it was"}):
                await receiver.session.set_state(b"where it was")
    for key in (("queue", "gone"), ("subscription", "shift/guest")):
        for verb, value in (("create", ""), ("delete", None)):
            with worker.writing({key: value}):
                getattr(admin, f"{verb}_{key[0]}")(*key[1].split("/"))
    with worker.writing({("rule", "shift/live", "one"): "colour red"}):
        admin.create_rule("shift", "live", "one", filter=colour_rule("red"))


class Tampering:
    """A history of one of each, and the journal that it left."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.history = History()
        with BrokerProcess(data) as broker:
            broker.start()
            create_features(broker.connection_string, broker.ca_file, self.history)
            with admin_client(broker.connection_string, broker.ca_file) as admin:
                asyncio.run(do_one_of_each(self._worker(broker, self.history), admin))
            broker.kill()

    def _worker(self, broker: BrokerProcess, history: History) -> Worker:
        return Load(broker.connection_string, broker.ca_file, 1, history).worker("teller", lambda _: None)

    def look_again(self, data: Path, tamper: Callable[[list[Record]], list[tuple[int, bytes]]]) -> list[str]:
        """What the checker says of a broker that starts with another journal, and is sent an old message again."""
        rewrite_journal(self.data, data, tamper)
        history = History()
        with BrokerProcess(data) as broker:
            broker.start()
            asyncio.run(send_by_wire(self._worker(broker, history), "once", "once", "done once"))
            history.audited(asyncio.run(take_inventory(broker.connection_string, broker.ca_file)))
        checker = Checker()
        checker.fold(self.history.events)
        checker.fold(history.take())
        return checker.problems


@pytest.fixture(scope="module")
def tampering(tmp_path_factory: pytest.TempPathFactory) -> Tampering:
    return Tampering(tmp_path_factory.mktemp("tampering") / "data")


def test_an_honest_journal_has_no_problems(tampering: Tampering, tmp_path: Path) -> None:
    assert tampering.look_again(tmp_path / "data", lambda all: [(each.kind, each.payload) for each in all]) == []


def of(kind: int, name: str = "") -> Callable[[Record, str], bool]:
    return lambda record, its_name: record.kind == kind and name in ("", its_name)


def to(place: int) -> Callable[[Record, str], bool]:
    def says(record: Record, name: str) -> bool:
        updates = records.read_updates(record.payload)[1] if record.kind == records.UPDATE else ()
        return any(update.place == place for update in updates)

    return says


LEFT_OUT: list[tuple[Callable[[Record, str], bool], str]] = [
    (of(records.PUBLISH), "published in news/all: it is lost"),
    (of(records.ENQUEUE, "deferred"), "kept in deferred: it is lost"),
    (of(records.ENQUEUE, "once"), "done once in once: it came back"),
    (of(records.REMOVE, "deferred"), "done in deferred: it came back as active"),
    (to(records.ACTIVE_DEFERRED), "set aside in deferred: it is active; it can only be deferred"),
    (to(records.DEAD), "bad in deferred: it is active; it can only be dead"),
    (of(records.REMOVE, "due"), "cancelled in due: it came back as"),
    (of(records.ENQUEUE, "due"), "waiting in due: it is lost"),
    (of(records.SESSION), "state s0: it is None"),
    (of(records.DELETED, "gone"), "queue gone: it is ''; it can only be None"),
    (of(records.DELETED), "subscription shift/guest: it is ''; it can only be None"),
    (of(records.SUBSCRIPTION), "rule shift/live one: it is None"),
]


def test_each_record_left_out_is_noticed(tampering: Tampering, tmp_path: Path) -> None:
    def leave_out(history: list[Record]) -> list[tuple[int, bytes]]:
        names: dict[int, str] = {}
        last: dict[int, int] = {}  # of LEFT_OUT: where the last record is of which that is true
        for place, record in enumerate(history):
            if record.kind == records.QUEUE:
                id, _, _, description = records.read_queue(record.payload)
                names[id] = description["name"]
            name = "" if record.kind == records.META else names.get(records.read_id(record.payload), "")
            last |= {number: place for number, (says, _) in enumerate(LEFT_OUT) if says(record, name)}
        assert len(set(last.values())) == len(LEFT_OUT)
        return [(record.kind, record.payload) for place, record in enumerate(history) if place not in last.values()]

    found = tampering.look_again(tmp_path / "data", leave_out)
    assert [problem for _, problem in LEFT_OUT if not any(problem in each for each in found)] == [], found
