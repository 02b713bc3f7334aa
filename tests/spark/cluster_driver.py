"""Runs where the driver is: `python -m tests.spark.cluster_driver HOST MASTER DATA`. Two namespaces on HOST, a backlog,
and `pairbus syphon --drain` on the cluster, with a Python file for its executors; prints what came home."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pairbus.broker import serve_sync

from .conftest import wire
from .fault_scene import Scene


def main(host: str, master: str, data: Path) -> None:
    given = [f"spark.driver.host={host}", "spark.executor.memory=512m"]
    module = data / "brought_along.py"
    module.write_text("WORD = 'brought along'\n")
    with serve_sync("contoso", "backup", data=data / "bus", host=host) as broker:
        primary, secondary = broker.namespaces["contoso"], broker.namespaces["backup"]
        scene = Scene(primary, secondary)
        scene.stock(60)
        (data / "primary").write_text(primary.connection_string)
        (data / "secondary").write_text(secondary.connection_string)
        ended = subprocess.run(
            [sys.executable, "-m", "pairbus", "syphon", "--drain", "--json", "--count", "3", "--master", master,
             "--primary-name", scene.name, "--primary", f"@{data / 'primary'}", "--secondary", f"@{data / 'secondary'}",
             "--ca-file", str(primary.ca_file), *(word for each in given for word in ("--conf", each)),
             "--py-files", str(module)],
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        with wire(secondary) as client:
            left = sum(len(client.peek(each)) for each in scene.backlog)
        home = scene.home()
    found = {"code": ended.returncode, "err": ended.stderr[-2000:], "out": ended.stdout.splitlines()[-1:]}
    print(json.dumps({**found, "left": left, "home": home}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
