"""kill -9 of a syphon at any moment: nothing is lost, and only what was in flight can come twice (P39)."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.waiting import soon

from .pair import Pair, diverted

MESSAGES = 3000


async def start(pair: Pair, folder: Path, *options: str) -> asyncio.subprocess.Process:
    environment = os.environ | {
        "PAIRBUS_PRIMARY": pair.east.connection_string,
        "PAIRBUS_SECONDARY": pair.west.connection_string,
    }
    with open(folder / "stderr", "ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pairbus", "syphon", "--engine", "in-process", "--primary-name", pair.name,
            "--ca-file", pair.west.ca_file, *options,
            env=environment, stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip


async def kill_again_and_again(pair: Pair, folder: Path, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    orders, news = await pair.destination("orders"), await pair.destination("news")
    await pair.backlog(0, 1, 2)
    wanted: dict[str, list[str]] = {orders: [], news: []}
    for index in range(3):
        batch = []
        for number in range(MESSAGES // 3):
            destination = dice.choice((orders, news))
            wanted[destination].append(f"{index}-{number:04d}")
            batch.append(diverted(destination, f"{index}-{number:04d}", b"x" * dice.choice((10, 1000))))
        await pair.divert(index, batch)
    before = sum([await pair.left(index) > 0 for index in range(3)])
    assert before == 3
    arrived: Counter[tuple[str, str]] = Counter()
    for _ in range(kills):
        syphon = await start(pair, folder, "--max-rate", str(dice.choice((500, 2000, 100_000))))
        # from before it has connected to when it is through
        await asyncio.sleep(dice.uniform(0.3, 2.0))
        syphon.kill()
        await syphon.wait()
        pair.expire_locks()
    last = await start(pair, folder, "--drain")
    assert await asyncio.wait_for(last.wait(), 100) == 0, (folder / "stderr").read_text()
    for destination in (orders, news):
        arrived.update((destination, each) for each in await pair.ids(destination))
    assert [await pair.left(index) for index in range(3)] == [0, 0, 0]
    assert [await pair.dead(index) for index in range(3)] == [[], [], []]
    missing = [(to, each) for to, names in wanted.items() for each in names if not arrived[to, each]]
    assert missing == []
    strange = arrived.keys() - {(to, each) for to, names in wanted.items() for each in names}
    assert strange == set()
    # at most once more for each kill
    assert max(arrived.values()) <= 1 + kills


async def test_p39_killed_at_any_moment_nothing_is_lost(pair: Pair, tmp_path: Path) -> None:
    await kill_again_and_again(pair, tmp_path, 2, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
async def test_p39_killed_again_and_again(pair: Pair, tmp_path: Path, seed: int) -> None:
    await kill_again_and_again(pair, tmp_path, 8, seed=seed)


async def test_p44_sigterm_gives_back_what_is_locked(pair: Pair, tmp_path: Path) -> None:
    orders = await pair.destination("orders")
    (queue, _), *_ = await pair.backlog(0)
    with pair.fault("no-send", entity=orders):
        await pair.divert(0, [diverted(orders, f"m{number}") for number in range(20)])
        syphon = await start(pair, tmp_path, "--json")
        receiver = await pair.west_client.receiver(queue)

        async def is_held() -> bool:
            held = await receiver.receive(20, 0.2)
            if held:
                await receiver.release(held)
            return not held

        await soon(is_held, 20.0)
        syphon.terminate()
        assert await asyncio.wait_for(syphon.wait(), 10) == 0, (tmp_path / "stderr").read_text()
        assert len(await receiver.receive(20, 2.0)) == 20
    assert syphon.stdout is not None
    assert '"outcome": "stopped"' in (await syphon.stdout.read()).decode().splitlines()[-1]
