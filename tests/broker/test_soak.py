"""The crash proofs and the attacks on the live port again, for as long as SOAK_MINUTES says, half of it each."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from .attacks import crowd, shuffled
from .crash_drive import UNTIDY_SDK, Drive, new_seed
from .siege import Siege

pytestmark = [*UNTIDY_SDK, pytest.mark.soak, pytest.mark.timeout(0)]

SECONDS = float(os.environ.get("SOAK_MINUTES") or 10) * 60 / 2


def test_killed_under_load_for_long(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", new_seed())
    drive.run(kills=30, seconds=SECONDS)
    assert drive.totals.kills >= 30


async def test_attacked_for_long(tmp_path: Path) -> None:
    seed = new_seed()
    rng = random.Random(seed)
    end = time.monotonic() + SECONDS
    async with Siege(tmp_path / "data") as siege:
        while time.monotonic() < end:
            await siege.attack(shuffled(rng, 20), seed, at_once=rng.choice((4, 8, 16)))
            async with crowd(siege.target, rng, rng.choice((100, 1000))):
                siege.check_inside()
