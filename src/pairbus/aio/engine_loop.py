"""Runs the in-process syphon for an application on asyncio: on the application's own loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class EngineLoop:
    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    async def stop(self, last_work: Coroutine[Any, Any, None]) -> None:
        await last_work


async def queue_names(manager: Any, limits: dict[str, float]) -> list[str]:
    """List the queues of the manager's namespace."""
    return [queue.name async for queue in manager.list_queues(**limits)]
