"""One broker for the run, with the namespaces of every world."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.broker import Broker, serve_sync
from tests.untidy_sdk import swept as swept

from ..broker.broker_process import quiet_port
from .scenarios import Stage
from .world import OTHERS, PRIMARIES, SECONDARIES

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The SDK leaves sockets and coroutines behind when a connection fails under it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """On a thread of its own, so that a hung caller hangs alone. Ports outside the range of outgoing connections: a
    client that tries a refusing port again and again would else end up connected to itself."""
    names = [f"{name}:{quiet_port()}" for name in (*PRIMARIES, *SECONDARIES, *OTHERS)]
    with serve_sync(*names, data=tmp_path_factory.mktemp("e2e")) as broker:
        yield broker


@pytest.fixture(scope="session")
def stage(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(broker, tmp_path_factory.mktemp("worlds"))
    yield stage
    stage.close()
    gc.collect()  # here, where what the SDK left behind is forgiven, and not at the end of the run
