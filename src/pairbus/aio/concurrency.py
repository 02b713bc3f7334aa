"""Wraps the parts of asyncio that the paired clients need; `sync/concurrency.py` does the same for threads.

`client.py`, `sender.py`, `guarded_sender.py`, `receiver.py`, `provisioning.py`, `syphon.py` and `warm_link.py` are
written once, here in `aio/`, and `scripts/generate_sync.py` makes those of `sync/` from them. What tasks and threads do
differently is in this file, in `engine_loop.py`, `health_monitor.py` and `sdk_sender.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from pairbus.pairing.sdk import forked

T = TypeVar("T")
_log: Final = logging.getLogger("pairbus.pairing")
CLOSES_AT_ONCE_MAX: Final = 1000
sleep = asyncio.sleep


async def pause(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set or the time is over, and return whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def call_all(calls: Sequence[Callable[[], Awaitable[T]]], at_once_max: int) -> list[T]:
    """Make all the calls, a limited number at once, and return their results in order."""
    turns = asyncio.Semaphore(at_once_max)

    async def in_turn(call: Callable[[], Awaitable[T]]) -> T:
        async with turns:
            return await call()

    return await asyncio.gather(*(in_turn(call) for call in calls))


def closes_session_with(client: Any, manager: Any) -> None:
    """Close the HTTP session of this administration client when the client is dropped, or at the end of the process: in
    a program that closes neither aiohttp would complain of it.

    Private parts that it uses: `_pipeline._transport` of the administration client, and of aiohttp's connector the
    `_close` that it calls itself when it is dropped.
    """
    weakref.finalize(client, _close_session, manager._pipeline._transport, asyncio.get_running_loop())


def _close_session(transport: Any, loop: asyncio.AbstractEventLoop) -> None:
    session = getattr(transport, "session", None)
    if session is None or session.closed:
        return
    if loop.is_running():
        loop.call_soon_threadsafe(lambda: loop.create_task(session.close()))
        return
    connector = session.connector
    session.detach()
    if connector is not None:
        with contextlib.suppress(RuntimeError):  # its loop is closed
            connector._close()


async def await_safely(awaitable: Awaitable[object]) -> None:
    """Log whatever the awaitable raises, a cancellation of its own included; that this task is cancelled passes."""
    try:
        await awaitable
    except BaseException as error:
        task = asyncio.current_task()
        is_ours = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
        if is_ours or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        _log.exception("%r failed and is ignored", awaitable)


async def run_safely(call: Callable[[], Awaitable[object]]) -> None:
    await await_safely(call())


def is_interruption(_error: Exception) -> bool:
    """Return False: an exception from a signal handler is raised by the loop, and a cancellation is no Exception."""
    return False


class RepeatedAttempt:
    """Calls `attempt` at every interval, on a task, until it returns True or `stop` is called."""

    def __init__(
        self, attempt: Callable[[], Awaitable[bool]], interval_s: float, name: str, *, at_once: bool = False
    ) -> None:
        self._attempt = attempt
        self._interval_s = interval_s
        self._at_once = at_once
        self._task = asyncio.create_task(self._run(), name=name)

    async def _run(self) -> None:
        if not self._at_once:
            await asyncio.sleep(self._interval_s)
        while not await self._attempt():
            await asyncio.sleep(self._interval_s)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


def administration_client() -> Any:
    """Return the SDK's class; raises ImportError, naming the extra, where aiohttp is not installed."""
    try:
        from azure.servicebus.aio.management import ServiceBusAdministrationClient
    except ImportError as error:
        raise ImportError(
            "the SDK's async administration client needs aiohttp: install pairbus[aio], or pass manage=False where the"
            " backlog queues are ready-made"
        ) from error
    return ServiceBusAdministrationClient


class ReceiverAfterFork:
    """Makes a receiver refuse to work in a forked child, since it belongs to the parent's loop."""

    _halting_entity: str
    _process: int

    def _made_in_this_process(self) -> None:
        self._process = os.getpid()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise forked(self._halting_entity)
