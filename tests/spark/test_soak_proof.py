"""The Spark syphon under random kills and faults for SOAK_MINUTES; the seed is printed, SOAK_SEED replays its dice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from pairbus.broker import serve_sync
from tests.broker.broker_process import wait_until

from .fault_scene import Clock, Command, Scene, drivers_of, executors_of, kill, source_runners_of, until, workers_of

FAULTS = ("unreachable", "black-hole", "lost-answer", "hang", "no-send")


@pytest.mark.soak
@pytest.mark.parametrize("master", ["local[2,4]", "local-cluster[2,1,1024]"])
def test_p39_random_kills_lose_nothing(tmp_path: Path, master: str) -> None:
    seed = int(os.environ.get("SOAK_SEED", time.time_ns() % 1_000_000))
    print(f"\nSOAK_SEED={seed}", flush=True)
    dice = random.Random(f"{seed} {master}")
    end = time.monotonic() + float(os.environ.get("SOAK_MINUTES", "10")) * 60 / 2
    clock = Clock()
    kills = moved = doubled = 0
    with serve_sync("contoso", "backup", data=tmp_path / "brokers", clock=clock) as broker:
        scene = Scene(broker.namespaces["contoso"], broker.namespaces["backup"], data=broker.data, clock=clock)
        with contextlib.ExitStack() as stack:
            command = stack.enter_context(Command(scene, tmp_path, master))
            driver_died = False

            def again() -> Command:
                """As a supervisor would: a JVM that dies before it has started ends the command, with exit code 1."""
                assert driver_died or not command.has_ended, command
                return stack.enter_context(Command(scene, tmp_path, master)) if command.has_ended else command

            while time.monotonic() < end:
                in_flight = count = scene.stock(dice.choice((30, 300, 1500)), poison=dice.choice((0, 1)))
                for _ in range(dice.randint(1, 3)):
                    with contextlib.ExitStack() as weather:
                        if dice.random() < 0.5:
                            at = dice.choice((scene.primary, scene.primary, scene.secondary))
                            entity = dice.choice((scene.bills, scene.orders, None)) if at is scene.primary else None
                            kind = dice.choice(FAULTS if at is scene.primary else FAULTS[:2])
                            weather.enter_context(scene.fault(kind, entity=entity, at=at))
                        time.sleep(dice.uniform(0.1, 4.0))
                        whom = dice.choice((workers_of, source_runners_of, drivers_of, executors_of, None))
                        if whom is not None:
                            pids = whom(command.pid)
                            kills += kill(dice.sample(pids, dice.randint(1, len(pids))) if pids else [])
                            driver_died = driver_died or (whom is drivers_of and bool(pids))
                        elif dice.random() < 0.3:
                            command.kill()
                            kills += 1
                            command = stack.enter_context(Command(scene, tmp_path, master))
                scene.expire_locks()
                beaten = time.monotonic() + 240
                while scene.waiting():
                    assert time.monotonic() < beaten, (scene, command)
                    command = again()
                    wait_until(lambda: not scene.waiting(), 1.0)
                    if time.monotonic() > beaten - 200:  # what a kill left locked meanwhile
                        scene.expire_locks()
                        wait_until(lambda: not scene.waiting(), 20.0)
                moved += count
                doubled += scene.settle_accounts(4 * in_flight)
                print(f"{moved:,} moved, {kills} kills, {doubled} doubled, 0 lost", flush=True)
            # one that has only just begun ends as every process does
            assert command.has_ended or command.terminate() in (0, -signal.SIGTERM)
        until(lambda: scene.locked() == 0, 10, lambda: scene)
