"""Waiting for what another thread, task or process is about to do; it is an error where that does not come."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], within_s: float = 60.0, told: Callable[[], object] = lambda: "") -> Any:
    """Return the first true value of the condition; `told` says in the error how far it came."""
    end = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {within_s:g} s: {told()}"
        time.sleep(0.02)
    return found


async def soon(condition: Callable[[], Any], within_s: float = 20.0, told: Callable[[], object] = lambda: "") -> Any:
    """As `until`, on the loop; the condition may be a coroutine function."""
    end = time.monotonic() + within_s
    while True:
        found = condition()
        if found := await found if inspect.isawaitable(found) else found:
            return found
        assert time.monotonic() < end, f"not within {within_s:g} s: {told()}"
        await asyncio.sleep(0.005)
