"""One object of the official SDK, sync or async, behind one async face. Imports nothing but the standard library, so
that it also runs where only some version of the SDK is installed.

Nothing of the SDK is changed: sync calls run on a thread, async ones are awaited.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Bridge:
    """One object of the SDK: `await bridge.send_messages(…)`, `async with bridge`."""

    def __init__(self, target: Any, is_async: bool) -> None:
        self.target = target
        self.is_async = is_async

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.target, name)
        if not callable(found):
            return found
        if name in MAKERS:
            return lambda *args, **options: Bridge(found(*args, **options), self.is_async)

        async def call(*args: Any, **options: Any) -> Any:
            args = tuple(arg.target if isinstance(arg, Bridge) else arg for arg in args)
            if self.is_async:
                return await found(*args, **options)
            return await asyncio.to_thread(found, *args, **options)

        return call

    async def __aenter__(self) -> Bridge:
        if self.is_async:
            await self.target.__aenter__()
        else:
            await asyncio.to_thread(self.target.__enter__)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        if self.is_async:
            await self.target.__aexit__(*exc)
        else:
            await asyncio.to_thread(self.target.__exit__, *exc)

    async def collect(self, name: str, *args: Any) -> list[Any]:
        """All pages of a listing."""
        if self.is_async:
            return [item async for item in getattr(self.target, name)(*args)]
        return await asyncio.to_thread(lambda: list(getattr(self.target, name)(*args)))


MAKERS = {"get_queue_sender", "get_queue_receiver", "get_topic_sender", "get_subscription_receiver"}
