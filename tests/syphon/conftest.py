"""A primary `east` and a secondary `west` on a thread for the whole run, with a clock that a test may move forward."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pairbus.broker import Broker, serve_sync
from pairbus.broker.control.control_socket import request
from tests.moving_clock import Clock as Clock

from .pair import Pair


@pytest.fixture(scope="session")
def syphon_clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def syphon_brokers(tmp_path_factory: pytest.TempPathFactory, syphon_clock: Clock) -> Iterator[Broker]:
    data: Path = tmp_path_factory.mktemp("syphon")
    with serve_sync("east", "west", data=data, durability="none", clock=syphon_clock) as broker:
        yield broker


@pytest.fixture
async def pair(syphon_brokers: Broker, syphon_clock: Clock) -> AsyncIterator[Pair]:
    pair = Pair(syphon_brokers, syphon_clock)
    yield pair
    for name in ("east", "west"):
        request(syphon_brokers.data, {"command": "clear", "namespace": name})
    await pair.close()
    syphon_clock.ahead = 0.0
