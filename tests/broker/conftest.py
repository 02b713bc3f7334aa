"""A broker on a thread for the whole run, with a clock that a test may move forward."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.broker import Broker, serve_sync
from pairbus.broker.net.certificates import Certificates, ensure
from tests.hasty_sdk import hasty_sdk as hasty_sdk
from tests.moving_clock import Clock as Clock

from .books import agree, booked, counted
from .namespace_rig import Rig
from .sdk import Sdk


@pytest.fixture(scope="session")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[Broker]:
    data: Path = tmp_path_factory.mktemp("broker")
    with serve_sync("contoso", data=data, ledger=True, clock=clock) as broker:
        yield broker
    # over all that this run did to it
    assert agree(booked(data, "contoso"), counted(broker, "contoso"))


@pytest.fixture(autouse=True)
def time_of_day(clock: Clock) -> Iterator[None]:
    """A test's jumps end with it: the SDK's tokens, signed by the real time, are good for an hour only."""
    yield
    clock.ahead = 0.0


@pytest.fixture
def sdk(request: pytest.FixtureRequest, broker: Broker) -> Sdk:
    """The async SDK, unless a test is marked as `both_apis`: that both can do everything is proved in test_sdk_tour."""
    return Sdk(getattr(request, "param", "async") == "async", broker.namespaces["contoso"])


@pytest.fixture
async def queue(sdk: Sdk) -> str:
    """A new one, with the properties that the service gives it."""
    return await sdk.queue()


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return ensure(tmp_path_factory.mktemp("certs"), ["here.example"], time.time())


@pytest.fixture
def bare() -> Iterator[Rig]:
    """A namespace without entities."""
    with Rig() as rig:
        yield rig


@pytest.fixture
def rig(bare: Rig) -> Rig:
    bare.create(lock_duration=30.0, max_delivery_count=3)
    return bare
