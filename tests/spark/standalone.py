"""A standalone cluster: a master and workers, on this machine or each in a network namespace of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyspark

from pairbus.spark.runtime.java import java_home
from tests.broker.broker_process import quiet_port
from tests.waiting import until

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
READY = {MASTER: "I have been elected leader", WORKER: "Successfully registered with master"}


class Cluster(NamedTuple):
    url: str
    #: Of the workers, below which the executors are.
    pids: list[int]


@contextlib.contextmanager
def running(log: Path, kind: str, *words: str, namespace: str | None = None, **environ: str) -> Iterator[int]:
    """A master or a worker, once it is ready: what asks a master too early asks again much later. Yields its pid."""
    home = Path(pyspark.__file__).parent
    inside = [] if namespace is None else ["ip", "netns", "exec", namespace]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*inside, str(home / "bin" / "spark-class"), kind, *words, "--webui-port", "0"],
            env={
                **os.environ, "JAVA_HOME": str(java_home()), "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m",
                **environ,
            },
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        until(lambda: READY[kind] in log.read_text(), 240, log.read_text)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster on this machine; each worker has a core and a folder w0, w1, …"""
    at = ("--host", "127.0.0.1")
    local = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder / "local")}
    port = quiet_port()
    url = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(folder / "master.log", MASTER, *at, "--port", str(port), **local))
        pids = [
            stack.enter_context(
                running(
                    folder / f"w{number}.log", WORKER, *at, "--cores", "1", "--memory", "1g",
                    "--work-dir", str(folder / f"w{number}"), url, **local,
                )
            )
            for number in range(workers)
        ]  # fmt: skip
        yield Cluster(url, pids)
