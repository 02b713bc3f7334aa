"""Gives the Spark syphon the interface of the in-process engine, so that hosts and commands can run either."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pairbus.spark.runtime.running import Runnable
from pairbus.syphon.core.progress import Progress, Report
from pairbus.syphon.daemon_thread import in_daemon_thread
from pairbus.syphon.engine import Outcome
from pairbus.syphon.settings import SyphonSettings

from .query import SparkSyphon


class ThreadedEngine:
    """Runs a pipeline on its own thread for a caller with a loop: `run` is awaited, `stop` ends it cleanly."""

    def __init__(self, inner: Runnable) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._inner!r}>"

    @property
    def progress(self) -> Progress:
        return self._inner.progress

    def report(self) -> Report:
        return self._inner.report()

    def stop(self) -> None:
        self._inner.stop()

    async def run(self) -> Outcome:
        try:
            unavailable = await in_daemon_thread(self._inner.run)
        finally:
            self._inner.stop()
        return Outcome(self.report(), unavailable)


class SparkEngine(ThreadedEngine):
    """The Spark syphon as an engine, of the settings that `SyphonSettings` has. Calls `on_access`, which gets an error
    or None, and `on_running` on the loop."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        made = SyphonSettings(*arguments, **settings)
        calls = {"on_access": self._on_loop(made.on_access), "on_running": self._on_loop(made.on_running)}
        self._syphon = SparkSyphon(replace(made, **calls))
        super().__init__(self._syphon)

    async def run(self) -> Outcome:
        self._loop = asyncio.get_running_loop()
        return await super().run()

    def _on_loop(self, call: Callable[..., None] | None) -> Any:
        def called(*arguments: Any) -> None:
            if self._loop is not None and call is not None:
                self._loop.call_soon_threadsafe(call, *arguments)

        return called


def warm_up(engine: SparkEngine) -> None:
    """Run one empty batch of an engine that does not run, and end it."""
    engine._syphon.warm_up()


# for `help` and editors
SparkEngine.__signature__ = inspect.signature(SyphonSettings)  # type: ignore[attr-defined]


def of(settings: SyphonSettings) -> SparkEngine:
    return SparkEngine(**vars(settings))
