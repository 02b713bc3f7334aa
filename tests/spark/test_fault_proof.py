"""The Spark syphon under faults (P39): whatever dies when, nothing is lost; twice comes only what was in flight, and
never where the destination detects duplicates; poison is buried; the others flow.

One driver serves all that leaves it alive."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pairbus import ServiceBusClient
from pairbus.broker import Broker, serve_sync
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import SyphonEngine
from pairbus.syphon.settings import SyphonSettings
from tests.broker.broker_process import BrokerProcess
from tests.e2e.world import GRACE_S

from .fault_scene import (
    MOMENTS,
    Clock,
    Command,
    Scene,
    drivers_of,
    executors_of,
    kill,
    source_runners_of,
    until,
    workers_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
#: Bounds what is in flight where no fault holds it.
A_BATCH = 60


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[Broker]:
    with serve_sync("contoso", "backup", data=tmp_path_factory.mktemp("faults"), clock=clock) as broker:
        yield broker


@pytest.fixture
def scene(brokers: Broker, clock: Clock) -> Scene:
    return Scene(brokers.namespaces["contoso"], brokers.namespaces["backup"], data=brokers.data, clock=clock)


def running(spark: Any, scene: Scene, **options: Any) -> Any:
    from pairbus.spark import syphon

    return syphon(
        scene.primary.connection_string,
        scene.secondary.connection_string,
        spark=spark,
        primary_name=scene.name,
        count=len(scene.backlog),
        **options,
    )


def test_p39_p40_a_python_worker_dies_at_each_moment(spark: Any, scene: Scene) -> None:
    with running(spark, scene) as syphon:
        scene.stock(30, poison=3)
        scene.until_drained()
        for moment in MOMENTS:
            with scene.held(moment, 24) as in_flight:
                assert kill(workers_of(os.getpid())) >= 1
            scene.expire_locks()
            scene.until_drained()
            assert syphon.is_running
            scene.settle_accounts(in_flight)
        # the process that finds out whether there is something: the query ends, and is started again
        assert kill(source_runners_of(os.getpid())) >= 1
        scene.stock(30, poison=3)
        scene.until_drained()
        scene.settle_accounts()
    scene.assert_nothing_locked()


def test_p39_p41_the_primary_down_again_the_secondary_down_answers_lost(spark: Any, scene: Scene) -> None:
    with running(spark, scene, max_rate=60.0, messages_per_trigger=A_BATCH):
        for which in (scene.primary, scene.secondary):
            scene.stock(150, poison=1)
            until(lambda: scene.home() >= 20 and scene.waiting() >= 60, 60, lambda: scene)
            with scene.fault("unreachable", at=which):
                time.sleep(2.0)  # Spark's batches keep their own time: several of them meet the outage
            scene.expire_locks()
            scene.until_drained()
            scene.settle_accounts(A_BATCH)
        with scene.fault("lost-answer", entity=scene.bills):
            scene.stock(30, to=scene.bills, queues=1)
            until(lambda: scene.home() > 0, 60, lambda: scene)
        scene.expire_locks()
        scene.until_drained()
        scene.settle_accounts(30)
    scene.assert_nothing_locked()


def test_p40_p41_one_destination_of_three_is_dead_and_the_checkpoint_is_lost(
    spark: Any, scene: Scene, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    with scene.fault("unreachable", entity=scene.bills):
        with running(spark, scene, checkpoint=str(checkpoint)):
            scene.stock(90, poison=3)
            until(lambda: scene.home() == 60, 60, lambda: scene)
            scene.stock(30, to=scene.orders)  # behind what waits for the dead one
            until(lambda: scene.home() == 90, 60, lambda: scene)
        scene.assert_nothing_locked()
        (left,) = running(spark, scene, drain=True).wait(120)
        assert (left.path, left.messages) == (scene.bills, 30) and "unreachable" in left.reason
    scene.assert_nothing_locked()
    assert scene.waiting() == 30
    assert any(checkpoint.iterdir())
    shutil.rmtree(checkpoint)
    with running(spark, scene, checkpoint=str(checkpoint)):
        scene.until_drained()
    scene.settle_accounts()


def test_p44_closing_takes_at_most_five_seconds_while_spark_is_in_a_batch(spark: Any, scene: Scene) -> None:
    """That batch can't end: what it holds is left to its locks, and the query is gone."""
    ends = scene.primary.connection_string, scene.secondary.connection_string
    options = {"primary_name": scene.name, "backlog_queue_count": len(scene.backlog), "manage": False}
    client = ServiceBusClient.paired(*ends, **options, enable_syphon=True, syphon_spark=spark)
    try:
        with scene.held("before send", 24) as in_flight:
            begun = time.monotonic()
            client.close()
            assert time.monotonic() - begun < 5.0 + GRACE_S
            until(lambda: "pairbus-work" not in [each.name for each in threading.enumerate()], 30)
    finally:
        client.close()
    scene.expire_locks()
    assert running(spark, scene, drain=True).wait(120) == []
    scene.settle_accounts(in_flight)


def test_p39_two_syphons_at_once_one_of_each_engine(spark: Any, scene: Scene) -> None:
    scene.stock(300, poison=3)
    ends = [
        Endpoint.from_connection_string(each.connection_string, name=each.name)
        for each in (scene.primary, scene.secondary)
    ]
    queues = [(path, index) for index, path in enumerate(scene.backlog)]
    moved: list[int] = []

    async def other() -> None:
        engine = SyphonEngine(SyphonSettings(*ends, queues, max_rate=60.0))
        task = asyncio.create_task(engine.run())
        while scene.waiting():
            await asyncio.sleep(0.05)
        engine.stop()
        await task
        moved.append(engine.progress.moved_count)

    thread = threading.Thread(target=lambda: asyncio.run(other()))
    with running(spark, scene, max_rate=60.0, messages_per_trigger=A_BATCH) as syphon:
        until(lambda: syphon.report().moved > 0, 60, lambda: scene)
        thread.start()
        scene.until_drained()
        thread.join(30)
        until(lambda: syphon.report().moved + sum(moved) == 300, 10, syphon.report)
    assert moved[0] > 0
    scene.settle_accounts()
    scene.assert_nothing_locked()


def test_p39_brokers_killed_and_started_again(spark: Any, tmp_path: Path) -> None:
    primary, secondary = BrokerProcess(tmp_path / "primary"), BrokerProcess(tmp_path / "secondary")
    secondary.name = "backup"
    with primary, secondary:
        primary.start()
        secondary.start()
        scene = Scene(primary, secondary, lock_duration="PT10S")
        scene.stock(180, poison=3)
        with running(spark, scene, max_rate=60.0, messages_per_trigger=A_BATCH) as syphon:
            for broker, moved in ((primary, 20), (secondary, 80)):
                until(lambda moved=moved: syphon.report().moved >= moved, 60, syphon.report)
                broker.kill()
                broker.start()
            until(lambda: not scene.peeked(), 120, syphon.report)
        scene.settle_accounts(2 * A_BATCH)
        primary.stop()
        secondary.stop()


def test_p39_an_executor_dies_at_each_moment(scene: Scene, tmp_path: Path) -> None:
    with Command(scene, tmp_path, "local-cluster[2,1,1024]") as command:
        scene.stock(30, poison=3)
        scene.until_drained()
        for moment in MOMENTS:
            with scene.held(moment, 24):
                assert kill(executors_of(command.pid)) >= 1
            scene.expire_locks()
            scene.until_drained()
            # its Python workers outlive it for a moment, and may still send what they hold
            scene.settle_accounts(24)
        assert command.terminate() == 0
    scene.assert_nothing_locked()


def test_p39_p41_the_driver_dies_at_each_moment_and_sigterm_leaves_nothing_locked(scene: Scene, tmp_path: Path) -> None:
    with Command(scene, tmp_path, "local[2,4]") as command:
        for moment in MOMENTS[:3]:
            with scene.held(moment, 24):
                assert kill(drivers_of(command.pid)) == 1
            scene.expire_locks()
            scene.until_drained()  # the command starts another one
            # its Python workers outlive it for a moment, and may still send what they hold
            scene.settle_accounts(24)
        with scene.held(MOMENTS[3], 24):
            command.kill()
    scene.expire_locks()
    with Command(scene, tmp_path, "local[2,4]") as command:
        scene.until_drained()
        scene.settle_accounts(24)
        with scene.fault("unreachable", entity=scene.bills):
            scene.stock(30, to=scene.bills)
            until(lambda: scene.locked() == 30, 60, lambda: scene)
            assert command.terminate() == 0
            scene.assert_nothing_locked()
    assert scene.waiting() == 30
