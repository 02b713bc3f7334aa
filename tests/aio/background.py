"""What the tests of both clients need of asyncio; `tests/sync/background.py` gives the same of threads.

`scripts/generate_sync.py` makes the sync tests from the async ones; whatever differs by more than a word is in here.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pairbus
from pairbus.aio import sdk_sender

from ..pairing.managers import FakeManager

#: The other API's, which can't be mixed with this one.
OtherClient = pairbus.ServiceBusClient
OtherFakeManager = FakeManager
Event = asyncio.Event
#: What ends a call from outside.
Interruption = asyncio.CancelledError
sleep = asyncio.sleep
on_a_thread = asyncio.to_thread


class Background:
    """A call on a task of its own."""

    def __init__(self, call: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        async def run() -> Any:
            return await call(*arguments)

        self.task = asyncio.create_task(run())

    async def result(self) -> Any:
        """Wait for the end of the call; raises what it raised."""
        async with asyncio.timeout(10):
            return await self.task

    @property
    def is_over(self) -> bool:
        return self.task.done()


async def wait_until(condition: Callable[[], Any], within: float = 5.0) -> bool:
    """For what another task is about to do."""
    for _ in range(int(within / 0.005)):
        if condition():
            return True
        await asyncio.sleep(0.005)
    return bool(condition())


def names_of_all() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def called(call: Callable[[], Any]) -> Any:
    """Call it, and wait for what it gives where that is a coroutine."""
    result = call()
    return await result if inspect.isawaitable(result) else result


class Leftovers:
    """Tasks and file descriptors that were there before, and that must not have grown after."""

    def __init__(self) -> None:
        gc.collect()
        self._before = self._now()

    @staticmethod
    def _now() -> tuple[int, int, int]:
        return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")), len(sdk_sender._background)

    async def none(self) -> None:
        """What was left behind in the background may take a moment to end."""

        def is_clean() -> bool:
            gc.collect()
            return all(now <= before for now, before in zip(self._now(), self._before, strict=True))

        assert await wait_until(is_clean, 6), (self._before, self._now(), asyncio.all_tasks())
