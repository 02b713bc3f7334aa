"""How long the rehearsal waits; the whole drill is in test_drill_proof.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pairbus.drill import rehearsal
from pairbus.drill.plan import DrillPlan
from pairbus.drill.processes import DrillFailed
from pairbus.drill.rehearsal import Rehearsal
from pairbus.drill.syphon import Spark


async def test_a_pause_is_not_longer_because_the_sender_ends_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    loop, really = asyncio.get_running_loop(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        if asyncio.get_running_loop() is loop:  # other threads have loops of their own
            slept.append(seconds)
        else:
            await really(seconds)

    sending: asyncio.Future[None] = loop.create_future()
    loop.call_later(0.3, sending.set_result, None)
    played = Rehearsal(DrillPlan(), Spark(), tmp_path, lambda line: None)
    monkeypatch.setattr(rehearsal.asyncio, "sleep", sleep)
    await played._pause(0.5, sending)
    assert len(slept) == 1 and slept[0] <= 0.2 + 0.01


async def test_a_sender_that_fails_ends_a_pause_at_once(tmp_path: Path) -> None:
    sending: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    sending.set_exception(DrillFailed("the drill's sender ended"))
    played = Rehearsal(DrillPlan(), Spark(), tmp_path, lambda line: None)
    with pytest.raises(DrillFailed, match="sender ended"):
        await played._pause(3600.0, sending)
