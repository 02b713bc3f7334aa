"""P37 on Spark, on a simulated clock: what ten idle backlog queues cost, in the syphon's ledger and in the broker's.
Spark is played by hand: it asks for the latest offset again and again. The rest is what a query runs: the stream makes
its watcher itself, and the syphon writes its ledger from what that tells."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from pairbus.broker import serve
from pairbus.broker.storage.maintenance import Maintenance
from pairbus.ledger import LedgerWriter
from pairbus.pairing.backlog.backlog_queues import path
from pairbus.spark.connector import lock_reader, long_poll
from pairbus.spark.connector.lock_reader import LockStream
from pairbus.spark.connector.long_poll import LongPoll
from pairbus.spark.connector.options import parse
from pairbus.spark.syphon.query import SparkSyphon
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.settings import SyphonSettings
from tests.syphon.virtual_loop import VirtualLoop

QUEUES = [path("east", index) for index in range(10)]
CONFIG = "[namespaces.west]\nlink_idle_timeout = 600\n" + "".join(
    f'[[namespaces.west.queues]]\nname = "{each}"\n' for each in QUEUES
)


class OnThisLoop:
    """In place of a thread with a loop of its own, for which no simulated time would go by."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.ensure_future(coroutine))
        return self.tasks[-1]

    start = run

    def stop(self) -> None:
        pass


class Idle(NamedTuple):
    """Lines of the syphon's ledger and of the broker's within the time, and how often Spark asked in vain."""

    syphon: list[dict[str, Any]]
    broker: list[dict[str, Any]]
    asked: int


async def idle(loop: VirtualLoop, data: Path, hours: float, monkeypatch: pytest.MonkeyPatch) -> Idle:
    def wall() -> float:
        return time.time() + loop.ahead

    (data / "config.toml").write_text(CONFIG)
    simulated = SimpleNamespace(time=wall, monotonic=time.monotonic, time_ns=time.time_ns)
    monkeypatch.setattr(lock_reader, "time", simulated)
    async with serve(
        "west", data=data / "broker", config=data / "config.toml", clock=wall, durability="none", ledger=True
    ) as broker:
        broker.loop_turns.stop()  # its beats would be all that happens in the time that is jumped over
        text = broker.namespaces["west"].connection_string
        ledger = LedgerWriter(data / "syphon", "syphon", clock=wall)
        queues = [(each, index) for index, each in enumerate(QUEUES)]
        west = Endpoint.from_connection_string(text, name="west")
        syphon = SparkSyphon(SyphonSettings(west, west, queues, ledger=ledger))
        endpoint = west._replace(cause="syphon")
        monkeypatch.setattr(lock_reader.connections, "endpoint", lambda _: OfThisTime(endpoint, wall))
        # As the query gives them, and as Spark hands them to the source.
        stream = LockStream(parse({**syphon.source_options()}, {}), lambda: QUEUES)
        first = stream.initialOffset()
        assert stream.latestOffset(first) == first
        server = broker.namespaces["west"]
        while sum(len(each.links()) for each in server.connections) < len(QUEUES) + 1:  # and $cbs
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        loop.is_virtual = True
        end = loop.time() + hours * 3600 + 5.0
        asked = 0
        while loop.time() < end:
            assert stream.latestOffset(first) == first, "a batch, although nothing came"
            asked += 1
            await asyncio.sleep(20.0)  # of virtual time
        loop.is_virtual = False
        over = wall()
        syphon._hear()
        ledger.close()
        watching = stream._watcher
        assert watching is not None
        watching.stop()
        await asyncio.gather(*watching._thread.tasks)  # type: ignore[attr-defined]
        assert syphon.report().polls == len(lines_of(data / "syphon", "poll"))
    # What a link's end costs comes after the hour.
    return Idle(
        lines_of(data / "syphon"), [line for line in lines_of(data / "broker") if line.get("t", 0.0) < over], asked
    )


def lines_of(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    lines = [json.loads(line) for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines()]
    return [line for line in lines if "kind" in line and kind in (None, line["kind"])]


class OfThisTime(NamedTuple):
    """An endpoint whose clients go by the simulated clock."""

    endpoint: Endpoint
    wall: Callable[[], float]

    def client(self) -> Any:
        return self.endpoint.client(clock=self.wall)


def test_p37_ten_idle_queues_cost_forty_polls_an_hour_and_no_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Maintenance, "run", nothing)
    monkeypatch.setattr(long_poll, "LoopThread", OnThisLoop)
    for waits in ("wait", "wait_for_any"):
        monkeypatch.setattr(LongPoll, waits, lambda *_: None)  # no time would go by
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        found = runner.run(idle(loop, tmp_path, 1.0, monkeypatch))
    assert found.asked >= 180, "and Spark asked again and again"
    for lines in (found.syphon, found.broker):
        polls = [(line["entity"], line["cause"]) for line in lines if line["kind"] == "poll"]
        assert Counter(polls) == dict.fromkeys([(each, "syphon") for each in QUEUES], 4), "40 receives in an hour"
    assert {line["kind"] for line in found.syphon} == {"poll", "end"}
    assert not [line for line in found.broker if line["kind"] in ("receive", "send", "settle")]
