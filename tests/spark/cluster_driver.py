"""Runs where the driver is: `python -m tests.spark.cluster_driver TASK HOST MASTER DATA`, with two namespaces on HOST;
prints what came of it as JSON.

syphon    a backlog, and `pairbus syphon --drain` on the cluster, with a Python file for its executors
program   in one session: the connector (a write, a read, a lock stream of a queue with sessions), an ingest, an audit
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pairbus.broker import serve_sync

from .conftest import admin_of, wire
from .fault_scene import Scene, until
from .ledger_file import LedgerFile

COUNT = 60


def syphon(broker: Any, master: str, conf: dict[str, str], data: Path) -> dict[str, Any]:
    module = data / "brought_along.py"
    module.write_text("WORD = 'brought along'\n")
    primary, secondary = broker.namespaces["contoso"], broker.namespaces["backup"]
    scene = Scene(primary, secondary)
    scene.stock(COUNT)
    (data / "primary").write_text(primary.connection_string)
    (data / "secondary").write_text(secondary.connection_string)
    ended = subprocess.run(
        [sys.executable, "-m", "pairbus", "syphon", "--drain", "--json", "--count", "3", "--master", master,
         "--primary-name", scene.name, "--primary", f"@{data / 'primary'}", "--secondary", f"@{data / 'secondary'}",
         "--ca-file", str(primary.ca_file), *(word for each in conf.items() for word in ("--conf", "=".join(each))),
         "--py-files", str(module)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    with wire(secondary) as client:
        left = sum(len(client.peek(each)) for each in scene.backlog)
    found = {"code": ended.returncode, "err": ended.stderr[-2000:], "out": ended.stdout.splitlines()[-1:]}
    return {**found, "left": left, "home": scene.home()}


def program(broker: Any, master: str, conf: dict[str, str], data: Path) -> dict[str, Any]:
    from pyspark import SparkContext

    from pairbus.spark import carry, ingest, locked, session
    from pairbus.spark.reports.audit import audit
    from pairbus.spark.reports.ledgers import read_ledgers

    primary = broker.namespaces["contoso"]
    with admin_of(primary) as admin:
        admin.create_queue("talks", requires_session=True)
        admin.create_queue("lake")
    spark = session(master, conf=conf)
    bus = {"connectionString": primary.connection_string, "caFile": str(primary.ca_file)}
    found: dict[str, Any] = {}
    try:
        rows = spark.range(COUNT).selectExpr(
            "concat('m', id) AS message_id", "concat('s', id % 4) AS session_id", "'x' AS body"
        )
        rows.write.format("servicebus").options(**bus, entity="talks").mode("append").save()
        found["read"] = (
            spark.read.format("servicebus").options(**bus, entity="talks", columns="message_id").load().count()
        )
        stream = locked(spark, primary.connection_string, "talks", sessions=True, minPartitions=2)
        with carry(stream, primary.connection_string, "lake", settle=primary.connection_string) as carrying:
            until(lambda: carrying.sent >= COUNT or carrying.query.exception(), 300, lambda: carrying)
            found["carried"], found["failed"] = carrying.sent, str(carrying.query.exception() or "")
        running = ingest(spark, primary.connection_string, "lake", data / "table", drain=True, min_partitions=2)
        found["left"] = running.wait(300)
        if found["failed"]:
            return found
        table = spark.read.parquet(str(data / "table"))
        found["table"] = [table.count(), table.select("message_id").distinct().count()]
        plant(data / "ledgers")
        with read_ledgers(spark, data / "ledgers") as ledgers:
            summary = audit(ledgers).summary
        found["audit"] = [summary["sent"], summary["lost"]]
        context = SparkContext.getOrCreate()
        found["executors"] = sorted({str(each.host()) for each in context._jsc.sc().statusTracker().getExecutorInfos()})
    finally:
        spark.stop()
    return found


def plant(folder: Path) -> None:
    """Messages that arrived and were received, and one of them that was not."""
    client, broker = LedgerFile(folder, "client", "contoso", pid=10), LedgerFile(folder, "broker", "contoso", pid=20)
    with client, broker:
        for number in range(COUNT):
            client("send", 10.0 + number, "orders", f"m{number}", ms=4.0)
            broker("send", 10.0 + number, "orders", f"m{number}", seq=number + 1, cause="app")
            if number:
                broker("receive", 200.0 + number, "orders", f"m{number}", seq=number + 1, cause="app")
                broker("settle", 200.1 + number, "orders", seq=number + 1, cause="app")


def main(task: str, host: str, master: str, data: Path) -> None:
    conf = {"spark.driver.host": host, "spark.executor.memory": "512m"}
    begun = time.monotonic()
    with serve_sync("contoso", "backup", data=data / f"bus-{task}", host=host) as broker:
        found = {"syphon": syphon, "program": program}[task](broker, master, conf, data)
    print(json.dumps({**found, "seconds": round(time.monotonic() - begun, 1)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
