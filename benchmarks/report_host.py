"""One report in a process of its own: `python -m benchmarks.report_host REPORT LEDGER`.

Starts Spark as the command of the report would, says so, waits for a line, and answers with what the report found. A
process for each, so that nothing is warm from the one before, and Spark's start is told from the report.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from benchmarks.meter import process_tree, resident_bytes
from benchmarks.servers import Helper

LOOK_S = 0.1


class ReportHost(Helper):
    """The near side. `start_s`: until the session has done its first job."""

    def __init__(self, report: str, ledger: str) -> None:
        begun = time.perf_counter()
        super().__init__("benchmarks.report_host", report, ledger)
        self._answer()
        self.start_s = time.perf_counter() - begun

    def run(self) -> tuple[float, int, dict[str, Any]]:
        """Return the seconds that the report took, the most memory of all its processes, and its summary."""
        done = threading.Event()
        peak = 0

        def watch() -> None:
            nonlocal peak
            while not done.wait(LOOK_S):
                peak = max(peak, resident_bytes(process_tree(self.pid)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        begun = time.perf_counter()
        try:
            self.tell("go")
            summary = self._answer()
            return time.perf_counter() - begun, peak, summary
        finally:
            done.set()
            watcher.join()

    def _answer(self) -> dict[str, Any]:
        line = self.hear()
        if not line:
            raise RuntimeError(f"the report's process ended with {self.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


def _serve(report: str, ledger: str) -> None:
    from pairbus.spark import session
    from pairbus.spark.reports.audit import audit
    from pairbus.spark.reports.availability import availability
    from pairbus.spark.reports.cost_report import cost_report
    from pairbus.spark.reports.effort import at_start
    from pairbus.spark.reports.ledgers import read_ledgers, size_of

    spark = session(conf=at_start(size_of(ledger)))
    spark.range(2).count()
    print(json.dumps({"ready": True}), flush=True)
    if sys.stdin.readline():
        with read_ledgers(spark, ledger) as read:
            found: Any = {"audit": audit, "availability": availability, "cost": cost_report}[report](read)
            print(found.to_json(), flush=True)
    spark.stop()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
