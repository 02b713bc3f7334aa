"""P37 on Spark, on a simulated clock: what ten idle backlog queues cost, in the syphon's notices and in the broker's
ledger. Spark is played by hand: it asks for the latest offset again and again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker import serve
from pairbus.broker.namespace import Namespace
from pairbus.pairing.backlog import path
from pairbus.spark import watcher
from pairbus.spark.lock_reader import POLLS, LockStream
from pairbus.spark.noticeboard import Noticeboard
from pairbus.spark.options import parse
from pairbus.spark.watcher import Watcher
from pairbus.syphon.endpoint import Endpoint
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


async def idle(loop: VirtualLoop, data: Path, hours: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    def wall() -> float:
        return time.time() + loop.ahead

    (data / "config.toml").write_text(CONFIG)
    (data / "board").mkdir()
    async with serve(
        "west", data=data / "broker", config=data / "config.toml", clock=wall, durability="none", ledger=True
    ) as broker:
        text = broker.namespaces["west"].connection_string
        given = {"connectionString": text, "mode": "lock", "board": str(data / "board")}
        stream = LockStream(parse(given, {}), lambda: QUEUES)
        endpoint = Endpoint.from_connection_string(text)
        watching = stream._watcher = Watcher(
            lambda: endpoint.client(clock=wall),
            QUEUES,
            polled=lambda entity: stream._tell({"entity": entity, "t": wall()}),
            failed=lambda entity, error: stream._tell({"entity": entity, "error": str(error)}),
            found=stream._found,
        )
        server = broker.namespaces["west"]
        while sum(len(each.links()) for each in server.connections) < len(QUEUES) + 1:  # and $cbs
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        loop.is_virtual = True
        end = loop.time() + hours * 3600 + 5.0
        first = stream.initialOffset()
        while loop.time() < end:
            assert stream.latestOffset(first) == first, "a batch, although nothing came"
            await asyncio.sleep(20.0)
        loop.is_virtual = False
        told = Noticeboard(data / "board").news(POLLS)
        watching.stop()
        await asyncio.gather(*watching._thread.tasks)
    lines = [json.loads(line) for file in (data / "broker").rglob("*.jsonl") for line in file.read_text().splitlines()]
    return told, [line for line in lines if line.get("kind") == "poll"]


def test_p37_ten_idle_queues_cost_forty_polls_an_hour_and_no_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Namespace, "maintain", nothing)
    monkeypatch.setattr(watcher, "LoopThread", OnThisLoop)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        told, polls = runner.run(idle(loop, tmp_path, 1.0))
    assert len(told) == 40 and {each["entity"] for each in told} == set(QUEUES)
    assert not [each for each in told if "error" in each]
    # and each link's last one, when the watcher let go of it
    assert len(polls) == 40 + len(QUEUES)
