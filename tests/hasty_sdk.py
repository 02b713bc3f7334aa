"""The official SDK, but that it looks more often whether a link is open or closed.

After each frame that opens a link it sleeps for 50 ms, half a second in all; and what keeps a link alive notices that
it is closed a second later. There is no option for either, and together they are most of what a small test through the
SDK takes. Retries, time-outs and whatever else it waits for stay as they are.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

#: For how long it sleeps → for how long it does here.
SHORTER_S = {0.05: 0.001, 1: 0.02}
MODULES = (
    "_servicebus_sender",
    "_servicebus_receiver",
    "_pyamqp.client",
    "aio._servicebus_sender_async",
    "aio._servicebus_receiver_async",
    "_pyamqp.aio._client_async",
)


class Hasty:
    """`time` or `asyncio`, with shorter sleeps."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def sleep(self, seconds: float) -> Any:
        return self._module.sleep(SHORTER_S.get(seconds, seconds))


@pytest.fixture(scope="module", autouse=True)
def hasty_sdk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in MODULES:
            module = importlib.import_module(f"azure.servicebus.{name}")
            used = asyncio if hasattr(module, "asyncio") else time
            patch.setattr(module, used.__name__, Hasty(used))
        yield
