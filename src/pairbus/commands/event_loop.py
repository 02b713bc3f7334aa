"""Runs a command's coroutine on the fastest event loop that is installed, since the process is the command's own."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end, on uvloop where that is installed, and return its result."""
    # asyncio is imported here, since `--help` and the other commands should not pay for it.
    import asyncio

    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
