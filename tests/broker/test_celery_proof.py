"""Celery on Kombu's `azureservicebus` transport, as published: tasks, retries, and a worker that is killed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .broker_process import ROOT, BrokerProcess, wait_until
from .client_environments import INSTALL_S_MAX, environments

RUN_S_MAX = 120
#: Run as a program of its own, the module would give its tasks other names than the worker does.
APPLICATION = "from tests.broker.celery_tasks import main; main()"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_S_MAX + RUN_S_MAX + 60)]


def test_tasks_are_executed_retried_and_redelivered_after_a_killed_worker(tmp_path: Path) -> None:
    try:
        python = environments("celery")["celery"]
    except RuntimeError as error:
        pytest.skip(str(error))
    results = tmp_path / "results"
    results.mkdir()
    with BrokerProcess(tmp_path / "data") as broker:
        broker.start()
        environment = {
            **os.environ,
            "PAIRBUS_NAMESPACE": broker.connection_string,
            "PAIRBUS_RESULTS": str(results),
            "REQUESTS_CA_BUNDLE": broker.ca_file,
        }

        def run(*arguments: str, said: Path) -> subprocess.Popen[bytes]:
            with said.open("wb") as log:
                command = [str(python), *arguments]
                return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)

        application_said = tmp_path / "application"

        def worker(number: int) -> subprocess.Popen[bytes]:
            solo = ("--pool", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat")
            return run(
                "-m", "celery", "-A", "tests.broker.celery_tasks", "worker", *solo, said=tmp_path / f"worker-{number}"
            )

        running = [worker(1), run("-c", APPLICATION, said=application_said)]
        try:
            assert wait_until((results / "noted").exists, RUN_S_MAX / 2), said(tmp_path)
            first = running[0]
            assert (results / "noted").read_text() == str(first.pid)
            first.kill()  # with the task in hand: its lock runs out, and the next worker gets it
            running.append(worker(2))
            assert running[1].wait(RUN_S_MAX / 2) == 0, said(tmp_path)
            assert application_said.read_text().split() == ["sent", str(first.pid)]
        finally:
            for process in running:
                process.kill()
                process.wait()


def said(folder: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(folder.glob("[aw]*")))
