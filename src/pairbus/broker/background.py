"""Runs what is served on an asyncio loop for code that has none, on its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def for_code_without_a_loop(
    serve: Callable[P, contextlib.AbstractAsyncContextManager[T]],
) -> Callable[P, contextlib.AbstractContextManager[T]]:
    """Return the counterpart of an async context manager for code without a loop."""

    @functools.wraps(serve, assigned=())
    @contextlib.contextmanager
    def serve_sync(*arguments: P.args, **options: P.kwargs) -> Iterator[T]:
        """Do as `serve`, for code without a loop: the broker runs on its own thread.

        `broker.faults(name)` may be used from this thread through `pairbus.testing`, which crosses over safely.
        """
        ready = threading.Event()
        outcome: list[T | BaseException] = []
        stopping: list[Callable[[], object]] = []

        async def run() -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            try:
                async with serve(*arguments, **options) as served:
                    stopping.append(lambda: loop.call_soon_threadsafe(stop.set))
                    outcome.append(served)
                    ready.set()
                    await stop.wait()
            except BaseException as error:
                outcome.append(error)
                ready.set()
                if not isinstance(error, Exception):
                    raise

        thread = threading.Thread(target=lambda: asyncio.run(run()), name="pairbus-broker", daemon=True)
        thread.start()
        ready.wait()
        if isinstance(outcome[0], BaseException):
            thread.join()
            raise outcome[0]
        try:
            yield outcome[0]
        finally:
            stopping[0]()
            thread.join()
        if len(outcome) > 1 and isinstance(outcome[1], BaseException):
            raise outcome[1]

    return serve_sync
