"""An ingest on a `local-cluster` and on a standalone cluster, in which a Python worker, the executors, the driver or
the broker are killed with -9 at each moment: every message is in the table once, none is lost, and the source is empty
at the end."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.broker import Broker, serve_sync
from pairbus.testing import fault
from tests.broker.broker_process import BrokerProcess

from .conftest import admin_of, peeked, wire
from .fault_scene import Clock, executors_of, kill, workers_of
from .ingest_driver import MOMENTS, Driver
from .standalone import cluster

pytestmark = pytest.mark.timeout(1800)
VICTIMS = ("worker", "executors", "driver", "broker")
CASES = list(itertools.product(VICTIMS, MOMENTS))
#: One for each victim at least, where most is at stake.
IN_CI = [
    ("worker", "in the write"),
    ("executors", "in the write"),
    ("executors", "after the write"),
    ("broker", "before the settle"),
    ("driver", "in the commit"),
    ("driver", "before the settle"),
]
#: More than one of the two tasks of a first batch takes, so that there are two files to commit.
MESSAGES = 300


class Drivers:
    """One driver for all that leaves it alive. `roots`: processes beside it below which there are executors."""

    def __init__(self, folder: Path, master: str, roots: list[int]) -> None:
        self._folder, self._master = folder, master
        self.roots = roots
        self._driver: Driver | None = None

    def get(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._folder, self._master)
        return self._driver

    def kill(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver = None


@pytest.fixture(scope="module")
def on_local_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    made = Drivers(tmp_path_factory.mktemp("drivers"), "local-cluster[2,1,1024]", [])
    yield made
    made.kill()


@pytest.fixture(scope="module")
def on_standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    folder = tmp_path_factory.mktemp("standalone")
    with cluster(folder) as standalone:
        made = Drivers(folder, standalone.url, standalone.pids)
        yield made
        made.kill()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def served(tmp_path: Path, clock: Clock) -> Iterator[Broker]:
    with serve_sync("contoso", data=tmp_path / "served", clock=clock) as broker:
        yield broker


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "moment"), IN_CI)
def test_whatever_dies_each_message_is_in_the_table_once(
    victim: str, moment: str, on_local_cluster: Drivers, served: Broker, clock: Clock, tmp_path: Path
) -> None:
    prove(victim, moment, on_local_cluster, served, clock, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("where", ["on_local_cluster", "on_standalone"])
@pytest.mark.parametrize(("victim", "moment"), CASES)
def test_whatever_dies_at_any_moment_each_message_is_in_the_table_once(
    victim: str, moment: str, where: str, request: pytest.FixtureRequest, served: Broker, clock: Clock, tmp_path: Path
) -> None:
    prove(victim, moment, request.getfixturevalue(where), served, clock, tmp_path)


def prove(victim: str, moment: str, drivers: Drivers, served: Broker, clock: Clock, folder: Path) -> None:
    if victim != "broker":
        kill_one(victim, moment, drivers, served.namespaces["contoso"], served.data, clock, folder)
        return
    with BrokerProcess(folder / "bus") as broker:
        broker.start()
        kill_one(victim, moment, drivers, broker, broker.data, clock, folder)


def kill_one(
    victim: str, moment: str, drivers: Drivers, namespace: Any, data: Path, clock: Clock, folder: Path
) -> None:
    queue, table = f"{victim}-{moment.replace(' ', '-')}", folder / "table"
    with admin_of(namespace) as admin:
        admin.create_queue(queue, lock_duration=dt.timedelta(minutes=5), max_delivery_count=50)
    names = [f"m{number}" for number in range(MESSAGES)]
    with wire(namespace) as client:
        payloads = [encode_message(properties=Properties(message_id=each), body=b"x" * 300) for each in names]
        assert client.sender(queue).send_many(payloads) == [None] * MESSAGES
    driver = drivers.get()
    given = {"namespace": namespace.connection_string, "entity": queue, "table": str(table)}
    with fault(data, "latency", namespace="contoso", entity=queue, delay=1.5 if moment == "in the write" else 0.0):
        driver.say(**given, moment=moment, roots=drivers.roots)
        assert driver.hear("held") == moment
        at_kill = in_table(table)
        if victim == "broker":
            namespace.kill()
            namespace.start()
        elif victim == "driver":
            drivers.kill()
        else:
            victims = {"worker": workers_of, "executors": executors_of}[victim](driver.pid, *drivers.roots)
            assert kill(victims) or moment[0] == "b"
    clock.advance(301.0)
    if victim == "driver":
        driver = drivers.get()
        driver.say(**given, moment=None, roots=[])
    elif moment != "in the write":
        driver.say(go=True)
    ended = driver.hear("ended", 900)
    assert isinstance(ended, dict) and ended["left"] == [], (ended, driver)
    assert in_table(table) == Counter(names), (victim, moment, at_kill.total())
    assert peeked(namespace, queue) == peeked(namespace, f"{queue}/$DeadLetterQueue") == []
    print(f"{victim} {moment}: {at_kill.total()} in the table when it died, lost 0, duplicated 0")
    if moment == "in the commit":
        assert 0 < at_kill.total() < MESSAGES
    else:
        assert at_kill.total() == (MESSAGES if "settle" in moment else 0)
    if victim == "driver" and moment in ("in the commit", "before the settle"):
        assert ended["already"] == at_kill.total(), "what was in the table was completed only"


def in_table(table: Path) -> Counter[str]:
    """The message ids that a reader sees, whoever it is."""
    if not any(table.glob("enqueued_date=*/*.parquet")):
        return Counter()
    found = pyarrow.dataset.dataset(table, partitioning="hive").to_table(columns=["message_id"])
    return Counter(found.column("message_id").to_pylist())
