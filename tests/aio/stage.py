"""A paired sender without brokers: its inner senders answer as they are told, and its clock stands until moved."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from pairbus.aio.heart import Heart
from pairbus.aio.sender import PairedSender

from ..paired.stage import FakeHalf, StageHalf


class FakeInner(FakeHalf):
    async def _answer(self, call: str, argument: Any, timeout_s: float) -> None:
        answer = self._called(call, argument, timeout_s)
        if answer is not None:
            done = answer()
            if inspect.isawaitable(done):
                await done
        self._succeeded()

    async def open(self, timeout_s: float, goes_on_s: float = 0.0) -> None:
        await self._answer("open", None, timeout_s)

    async def send(self, message: Any, timeout_s: float) -> None:
        await self._answer("send", message, timeout_s)

    async def schedule(self, messages: Any, schedule_time_utc: Any, timeout_s: float) -> list[int]:
        await self._answer("schedule", messages, timeout_s)
        return [1]

    async def cancel(self, sequence_numbers: Any, timeout_s: float) -> None:
        await self._answer("cancel", sequence_numbers, timeout_s)

    async def close(self, timeout_s: float = 2.0) -> None:
        self.is_closed = True


class Stage(StageHalf):
    kinds = (ServiceBusClient, Heart, PairedSender, FakeInner)

    async def close(self) -> None:
        await self.heart.close()
        assert self.heart._timer is None
        assert not self.heart._tasks


async def wait_until(condition: Callable[[], bool], within: float = 5.0) -> bool:
    """For what another task is about to do."""
    for _ in range(int(within / 0.005)):
        if condition():
            return True
        await asyncio.sleep(0.005)
    return condition()


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Stage]]:
    monkeypatch.setattr(PairedSender, "_inner", FakeInner)
    made: list[Stage] = []

    def make(**settings: Any) -> Stage:
        made.append(Stage(**settings))
        return made[-1]

    yield make
    for each in made:
        await each.close()
