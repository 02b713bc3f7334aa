"""A cluster on other machines: driver, master and workers each in a network namespace of its own, where the loopback
leads to none of the others. What the driver tells the executors of itself must be an address that they can reach."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .standalone import MASTER, WORKER, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HOSTS = {"driver": "10.213.7.1", "master": "10.213.7.2", "one": "10.213.7.3", "two": "10.213.7.4"}
PORT = 7077


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)


@pytest.fixture(scope="module")
def machines() -> Iterator[dict[str, str]]:
    """A network namespace for each role, joined by a bridge in the driver's; nothing is added to the machine's own."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` (the package iproute2)")
    names = {role: f"pairbus-{os.getpid()}-{role}" for role in HOSTS}
    with contextlib.ExitStack() as stack:
        try:
            for name in names.values():
                ip("netns", "add", name)
                stack.callback(ip, "netns", "delete", name)
                ip("-n", name, "link", "set", "lo", "up")
            driver = names["driver"]
            ip("-n", driver, "link", "add", "bridge0", "type", "bridge")
            ip("-n", driver, "addr", "add", f"{HOSTS['driver']}/24", "dev", "bridge0")
            ip("-n", driver, "link", "set", "bridge0", "up")
            for role in [each for each in HOSTS if each != "driver"]:
                to = f"to-{role}"
                ip("-n", driver, "link", "add", to, "type", "veth", "peer", "name", "eth0", "netns", names[role])
                ip("-n", driver, "link", "set", to, "master", "bridge0", "up")
                ip("-n", names[role], "addr", "add", f"{HOSTS[role]}/24", "dev", "eth0")
                ip("-n", names[role], "link", "set", "eth0", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces can't be made here: {error.stderr.strip()}")
        yield names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def master(machines: dict[str, str], folder: Path) -> Iterator[str]:
    """The URL of a master with a worker on each of two other machines."""
    url = f"spark://{HOSTS['master']}:{PORT}"
    with contextlib.ExitStack() as stack:

        def start(role: str, kind: str, *words: str) -> None:
            log = folder / f"{role}.log"
            stack.enter_context(running(log, kind, "--host", HOSTS[role], *words, namespace=machines[role]))

        start("master", MASTER, "--port", str(PORT))
        for role in ("one", "two"):
            work = str(folder / "work" / role)
            start(role, WORKER, "--cores", "1", "--memory", "1g", "--work-dir", work, url)
        yield url


def run(task: str, machines: dict[str, str], master: str, folder: Path) -> Any:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    ended = subprocess.run(
        ["ip", "netns", "exec", machines["driver"], sys.executable, "-m", "tests.spark.cluster_driver", task,
         HOSTS["driver"], master, str(folder)],
        capture_output=True, text=True, timeout=500, env=environ,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-5000:]
    return json.loads(ended.stdout.splitlines()[-1])


def test_p38_the_syphon_runs_on_a_cluster_of_other_machines(
    machines: dict[str, str], master: str, folder: Path
) -> None:
    found = run("syphon", machines, master, folder)
    assert found["code"] == 0, found
    assert (found["home"], found["left"]) == (60, 0)
    assert json.loads(found["out"][0])["moved"] == 60
    executors = list((folder / "work").glob("*/app-*/[0-9]*"))  # on the workers' machines, and nowhere else
    assert executors
    for executor in executors:
        assert (executor / "brought_along.py").read_text() == "WORD = 'brought along'\n"


def test_connector_ingest_and_audit_run_on_a_cluster_of_other_machines(
    machines: dict[str, str], master: str, folder: Path
) -> None:
    found = run("program", machines, master, folder)
    assert found["failed"] == ""
    assert (found["read"], found["carried"], found["left"]) == (60, 60, [])
    assert found["table"] == [60, 60], "each message once"
    assert found["audit"] == [60, 1], "and the planted loss is found"
    assert set(found["executors"]) == set(HOSTS.values()) - {HOSTS["master"]}, "the driver counts as one"
