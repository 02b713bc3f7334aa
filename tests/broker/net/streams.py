"""A raw connection to a server under test, which is dropped at the end whatever became of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any


@contextlib.asynccontextmanager
async def stream(port: int, host: str = "127.0.0.1", **tls: Any) -> AsyncIterator[tuple[Any, Any]]:
    reader, writer = await asyncio.open_connection(host, port, **tls)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
