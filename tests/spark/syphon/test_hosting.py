"""The Spark engine's host: pairing is complete when the query runs; Spark itself is in test_spark_proof."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pairbus.pairing.errors import PairingError
from pairbus.spark.syphon import hosting
from pairbus.syphon.endpoint import Endpoint


class Engine:
    """In place of Spark's: begins to run when the test says so."""

    error: Exception | None = None
    made: list[Engine]

    def __init__(self, *_: Any, on_running: Callable[[], None], **options: Any) -> None:
        self.on_running, self.options = on_running, options
        self.over = asyncio.Event()
        Engine.made.append(self)

    def stop(self) -> None:
        self.over.set()

    async def run(self) -> None:
        if Engine.error is not None:
            raise Engine.error
        await self.over.wait()


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "SparkEngine", Engine)
    monkeypatch.setattr(Engine, "error", None)
    monkeypatch.setattr(Engine, "made", [], raising=False)


def host(**options: Any) -> hosting.HostedSyphon:
    endpoints = (Endpoint("127.0.0.1", 1, credential=object()) for _ in range(2))
    return hosting.HostedSyphon(
        *endpoints, primary_name="contoso", indexes=[0], announce=lambda _: None, fault=lambda *_: None, **options
    )


async def test_it_has_started_when_its_query_runs_and_ends_in_five_seconds() -> None:
    hosted = host(spark="theirs", master=None, checkpoint="s3a://x")
    starting = asyncio.create_task(hosted.start())
    while not Engine.made:
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not starting.done(), "the query does not run yet"
    (engine,) = Engine.made
    assert {name: engine.options[name] for name in ("spark", "master", "checkpoint")} == {
        "spark": "theirs", "master": None, "checkpoint": "s3a://x",
    }  # fmt: skip
    assert engine.options["stop_s"] < hosted.stop_s < 5.0
    engine.on_running()
    await starting
    await hosted.stop()


async def test_p3_a_query_that_cannot_start_is_raised_by_pairing() -> None:
    Engine.error = ValueError("this process has a Spark session already")
    with pytest.raises(PairingError, match="can't be started: this process has a Spark session already"):
        await host().start()
