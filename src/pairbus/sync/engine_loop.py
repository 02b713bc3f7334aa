"""Runs the in-process syphon for an application without an event loop: on a daemon thread with its own loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pairbus.syphon.daemon_thread import in_daemon_thread
from pairbus.wire.errors import ClientClosed
from pairbus.wire.sync import LoopThread


class EngineLoop:
    def __init__(self) -> None:
        self._thread = LoopThread()
        self.run = self._thread.run

    def stop(self, last_work: Coroutine[Any, Any, None]) -> None:
        try:
            self.run(last_work)
        except ClientClosed:  # the thread is gone
            pass
        self._thread.stop()


async def queue_names(manager: Any, limits: dict[str, float]) -> list[str]:
    """List the queues of the manager's namespace; awaited on the syphon's loop, and does not block it."""
    return await in_daemon_thread(lambda: [queue.name for queue in manager.list_queues(**limits)])
