"""The SDK that is installed, sync and async, on a tour of the broker: sdk_tour.py. Other tests use one of the two."""

from __future__ import annotations

import os
import subprocess
import sys

from pairbus.broker import Broker

from .broker_process import ROOT


def test_both_clients_can_do_everything(broker: Broker) -> None:
    namespace = broker.namespaces["contoso"]
    environment = {
        **os.environ,
        "PAIRBUS_NAMESPACE": namespace.connection_string,
        "PAIRBUS_CA": namespace.ca_file,
        "REQUESTS_CA_BUNDLE": namespace.ca_file,
        "SSL_CERT_FILE": namespace.ca_file,
    }
    command = [sys.executable, "-m", "tests.broker.sdk_tour", "plain"]
    tour = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert tour.returncode == 0, tour.stderr[-3000:]
    assert tour.stdout.split()[1] == "14"
