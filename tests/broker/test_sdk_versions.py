"""azure-servicebus 7.8 to 7.15 as published, each in an environment of its own: a tour of the broker, sdk_tour.py."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from .broker_process import ROOT, BrokerProcess
from .client_environments import INSTALL_S_MAX, environments

#: Before 7.14 the SDK knows no plain AMQP, and heeds a port only where it speaks WebSocket. Up to 7.9 it runs on uamqp.
WAYS = [
    ("7.8", "uamqp"),
    ("7.10", "uamqp-by-choice"),
    ("7.10", "websocket"),
    ("7.11", "websocket"),
    ("7.12", "websocket"),
    ("7.13", "websocket"),
    ("7.14", "plain"),
    ("7.15", "plain"),
]
TOUR_S_MAX = 120
Tour = Future[subprocess.CompletedProcess[str]]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_S_MAX + TOUR_S_MAX + 60)]


#: uamqp gives up on a token when the machine is so busy that its thread does not run for a while.
AT_ONCE = 3


@pytest.fixture(scope="module")
def tours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Tour]]:
    """Some of them at once, since each waits most of its time."""
    try:
        pythons = environments(*{f"sdk-{version}" for version, _ in WAYS})
    except RuntimeError as error:
        pytest.skip(str(error))
    folder: Path = tmp_path_factory.mktemp("versions")
    with BrokerProcess(folder / "data") as broker, ThreadPoolExecutor(AT_ONCE) as pool:
        broker.start()
        environment = {
            **os.environ,
            "PAIRBUS_NAMESPACE": broker.connection_string,
            "PAIRBUS_CA": broker.ca_file,
            # of the administration clients, which until 7.14 can't be given a CA in any other way
            "REQUESTS_CA_BUNDLE": broker.ca_file,
            "SSL_CERT_FILE": broker.ca_file,
        }
        yield {
            (version, way): pool.submit(
                subprocess.run,
                [str(pythons[f"sdk-{version}"]), "-m", "tests.broker.sdk_tour", way],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TOUR_S_MAX,
            )
            for version, way in WAYS
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("version", "way"), WAYS)
def test_a_tour_of_the_broker(tours: dict[tuple[str, str], Tour], version: str, way: str) -> None:
    tour = tours[version, way].result()
    said = tour.stdout
    assert tour.returncode == 0, tour.stderr[-3000:]
    told, stops = said.split()
    assert told.startswith(f"{version}.")
    assert int(stops) == 14
