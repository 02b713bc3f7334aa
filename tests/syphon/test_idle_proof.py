"""P37 on a simulated clock: what ten idle backlog queues cost."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.broker import serve
from pairbus.broker.storage.maintenance import Maintenance
from pairbus.ledger import LedgerWriter
from pairbus.pairing.backlog.backlog_queues import path
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import SyphonEngine
from pairbus.syphon.settings import SyphonSettings
from tests.waiting import soon

from .virtual_loop import VirtualLoop

CONFIG = """
[namespaces.west]
link_idle_timeout = 600  # as the service has it: a link with credit outstanding is not idle
[[namespaces.east.queues]]
name = "orders"
"""


def polls(folder: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()[1:]]
    return [event for event in events if event["kind"] == "poll"]


async def idle(loop: VirtualLoop, data: Path, hours: float, *, messages: int = 0) -> list[dict[str, Any]]:
    def wall() -> float:
        return time.time() + loop.ahead

    config = data / "config.toml"
    toml = "".join(f'[[namespaces.west.queues]]\nname = "{path("east", index)}"\n' for index in range(10))
    config.write_text(CONFIG + toml)
    async with serve("east", "west", data=data / "brokers", config=config, clock=wall, durability="none") as broker:
        broker.loop_turns.stop()  # its beats would be all that happens in the time that is jumped over
        east, west = (
            Endpoint.from_connection_string(broker.namespaces[name].connection_string, name=name)
            for name in ("east", "west")
        )
        ledger = LedgerWriter(data / "ledger", "syphon", clock=wall)
        queues = [(path("east", index), index) for index in range(10)]
        engine = SyphonEngine(SyphonSettings(east, west, queues, ledger=ledger), wall=wall)
        task = asyncio.create_task(engine.run())
        await soon(lambda: all(source._receiving is not None for source in engine.sources))
        loop.is_virtual = True
        began = loop.time()
        for number in range(messages):
            await asyncio.sleep(hours * 3600 / (messages + 1))
            async with west.client(clock=wall) as client:
                sender = await client.sender(path("east", number % 10))
                loop.is_virtual = False  # the broker's disk is on a thread, which knows no other time than the real one
                await sender.send(encode_message(None, None, Properties(message_id="m"), {"x-ms-path": "orders"}))
                await soon(lambda number=number: engine.progress.moved_count == number + 1)
                loop.is_virtual = True
        await asyncio.sleep(began + hours * 3600 + 0.5 - loop.time())
        loop.is_virtual = False
        ledger.flush()
        found = polls(data / "ledger")
        engine.stop()
        await task
        ledger.close()
        return found


@pytest.fixture(autouse=True)
def no_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journals hold nothing to look after, twice a second for a day."""

    async def nothing(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Maintenance, "run", nothing)


def run(data: Path, hours: float, **options: Any) -> list[dict[str, Any]]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(idle(loop, data, hours, **options))


def test_p37_ten_idle_queues_cost_forty_polls_an_hour(tmp_path: Path) -> None:
    """That makes 960 a day."""
    found = run(tmp_path, 1.0)
    assert len(found) == 40
    assert {event["queue"] for event in found} == set(range(10))
    assert all(event["cause"] == "syphon" and event["ns"] == "west" for event in found)
    assert all(event["ms"] == pytest.approx(900_000, rel=0.01) for event in found)


def test_p37_a_message_costs_no_poll(tmp_path: Path) -> None:
    """It ends one that would have been empty, and another quarter of an hour begins."""
    found = run(tmp_path, 0.5, messages=2)
    assert 18 <= len(found) <= 20
