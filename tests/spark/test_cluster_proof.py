"""A cluster on other machines: driver, master and worker each in a network namespace of its own, where the loopback
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

import pyspark
import pytest

from pairbus.spark.runtime.java import java_home
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
HOSTS = {"driver": "10.213.7.1", "master": "10.213.7.2", "worker": "10.213.7.3"}
PORT = 7077


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)


@pytest.fixture
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
            for role in ("master", "worker"):
                to = f"to-{role}"
                ip("-n", driver, "link", "add", to, "type", "veth", "peer", "name", "eth0", "netns", names[role])
                ip("-n", driver, "link", "set", to, "master", "bridge0", "up")
                ip("-n", names[role], "addr", "add", f"{HOSTS[role]}/24", "dev", "eth0")
                ip("-n", names[role], "link", "set", "eth0", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces can't be made here: {error.stderr.strip()}")
        yield names


@contextlib.contextmanager
def running(namespace: str, log: Path, ready: str, *words: str) -> Iterator[None]:
    """A process of Spark's standalone cluster, once it is ready: what asks a master too early asks again much later."""
    home = Path(pyspark.__file__).parent
    environ = {**os.environ, "JAVA_HOME": str(java_home()), "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, str(home / "bin" / "spark-class"), *words],
            env=environ, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        until(lambda: ready in log.read_text(), 60, log.read_text)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_p38_the_syphon_runs_on_a_cluster_of_other_machines(machines: dict[str, str], tmp_path: Path) -> None:
    master = f"spark://{HOSTS['master']}:{PORT}"
    at = {role: ("--host", host) for role, host in HOSTS.items()}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    with (
        running(
            machines["master"], tmp_path / "master.log", "I have been elected leader",
            "org.apache.spark.deploy.master.Master", *at["master"], "--port", str(PORT), "--webui-port", "0",
        ),
        running(
            machines["worker"], tmp_path / "worker.log", "Successfully registered with master",
            "org.apache.spark.deploy.worker.Worker", *at["worker"], "--cores", "2", "--memory", "1g",
            "--webui-port", "0", "--work-dir", str(tmp_path / "work"), master,
        ),
    ):  # fmt: skip
        ended = subprocess.run(
            ["ip", "netns", "exec", machines["driver"], sys.executable, "-m", "tests.spark.cluster_driver",
             HOSTS["driver"], master, str(tmp_path)],
            capture_output=True, text=True, timeout=400, env=environ,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["code"] == 0, found
    assert (found["home"], found["left"]) == (60, 0)
    assert json.loads(found["out"][0])["moved"] == 60
    (executor,) = (tmp_path / "work").glob("app-*/[0-9]*")  # on the worker's machine, and nowhere else
    assert (executor / "brought_along.py").read_text() == "WORD = 'brought along'\n"
