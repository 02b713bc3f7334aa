"""Runs the Spark syphon inside an application, with the host class of `syphon/hosting.py`.

Pairing is complete when its query runs, and fails if that can't be started.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pairbus.pairing.errors import PairingError
from pairbus.pairing.events import Event, SyphonStopped
from pairbus.syphon import hosting

from .engine import SparkEngine

#: A driver's JVM takes seconds to start, and executors of a busy cluster may be long in coming.
START_S: Final = 120.0
#: How long a stop waits for the batch in progress; what it does not finish is left to its locks.
BATCH_S: Final = 3.0


class HostedSyphon(hosting.HostedSyphon):
    """Hosts a `SparkEngine`, and has started when its query runs."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._running: asyncio.Future[None] | None = None
        self._pass_on, self._announce = self._announce, self._heard

    def make_engine(self, *arguments: Any, **options: Any) -> SparkEngine:
        return SparkEngine(*arguments, stop_s=BATCH_S, on_running=self._is_running, **options)

    async def start(self) -> None:
        """Start, and return when the query runs. Raises PairingError where that fails."""
        self._running = asyncio.get_running_loop().create_future()
        await super().start()
        try:
            async with asyncio.timeout(START_S):
                await self._running
        except TimeoutError:
            await self.stop()
            raise PairingError(f"the syphon's query on Spark did not run within {START_S:.0f} s") from None
        except BaseException:
            await self.stop()
            raise

    def _is_running(self) -> None:
        if self._running is not None and not self._running.done():
            self._running.set_result(None)

    def _heard(self, event: Event) -> None:
        if isinstance(event, SyphonStopped) and self._running is not None and not self._running.done():
            why = (str(event.error).splitlines() or ["no reason given"])[0]
            self._running.set_exception(PairingError(f"the syphon's query on Spark can't be started: {why}"))
        self._pass_on(event)
