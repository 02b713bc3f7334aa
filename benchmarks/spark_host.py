"""A process with a Spark session, told by lines of JSON what to do: `python -m benchmarks.spark_host MASTER [OPTION]`.

Apart from the benchmark's own process, since a process can have one session only, and so that the CPU of Spark (the
JVM and its Python workers) can be told from the rest. Answers each line with one: the seconds that it took, and of a
drain also those to the first messages that the primary confirmed, and how many came after them, how fast.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.meter import cpu_seconds, process_tree
from benchmarks.servers import Helper

LOOK_S = 0.01
#: How `pairbus syphon` and `pairbus move` start Java, for work that is mostly Python's; `session()` leaves it out.
QUICK_JAVA = "-XX:TieredStopAtLevel=1"


class SparkHost(Helper):
    """The near side. `start_s` is the time from the process's start to a session that has done its first job."""

    def __init__(self, master: str, *java_options: str, **environ: str) -> None:
        begun = time.perf_counter()
        super().__init__("benchmarks.spark_host", master, *java_options, **environ)
        self._answer()
        self.start_s = time.perf_counter() - begun

    def ask(self, what: str, **arguments: Any) -> dict[str, float]:
        self.tell(json.dumps({"what": what, **arguments}))
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self.hear()
        if not line:
            raise RuntimeError(f"the Spark process ended with {self.wait()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise RuntimeError(found["error"])
        return found


def _serve(master: str, *java_options: str) -> None:
    from pairbus.spark import session, syphon

    spark = session(master, conf={"spark.driver.defaultJavaOptions": " ".join(java_options)} if java_options else None)
    spark.range(2).count()

    def drain(primary: str, secondary: str, **options: Any) -> dict[str, float]:
        begun = time.perf_counter()
        moving = syphon(primary, secondary, spark=spark, drain=True, **options)
        seen = [(0, begun)]
        is_running = True
        while is_running:
            is_running = moving.is_running  # after its end, one look more
            if (moved := moving.report().moved) > seen[-1][0]:
                seen.append((moved, time.perf_counter()))
            time.sleep(LOOK_S)
        if (left := moving.wait()) or len(seen) == 1:
            raise RuntimeError(f"{moving.report().line()}; left behind: {left}")
        (first, first_at), (last, last_at) = seen[1], seen[-1]
        return {"first_s": first_at - begun, "later": last - first, "later_s": last_at - first_at}

    waiting: list[Any] = []

    def idle(primary: str, secondary: str, settle_s: float, seconds: float, **options: Any) -> dict[str, float]:
        """Start a syphon that goes on, and return what share of a core it takes once it has settled."""
        waiting.append(syphon(primary, secondary, spark=spark, **options))
        time.sleep(settle_s)
        before = {pid: cpu_seconds(pid) for pid in process_tree(os.getpid())}
        time.sleep(seconds)
        used = [cpu_seconds(pid) - before.get(pid, 0.0) for pid in process_tree(os.getpid())]
        return {"share": sum(used) / seconds}

    def arrival() -> None:
        """Return when that syphon has moved something, and end it."""
        moving = waiting.pop()
        while not moving.report().moved:
            time.sleep(LOOK_S)
        moving.stop()
        moving.wait()

    def read(namespace: str, entity: str) -> None:
        source = spark.read.format("servicebus").options(connectionString=namespace, entity=entity).load()
        source.write.format("noop").mode("overwrite").save()

    def write(namespace: str, entity: str, count: int, size: int) -> None:
        rows = spark.range(0, count, 1, 4).selectExpr(f"cast(rpad(cast(id as string), {size}, 'x') as binary) as body")
        sink = rows.write.format("servicebus").options(connectionString=namespace, entity=entity)
        sink.mode("append").save()

    told: dict[str, Callable[..., dict[str, float] | None]] = {
        "drain": drain, "idle": idle, "arrival": arrival, "read": read, "write": write
    }  # fmt: skip
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        begun = time.perf_counter()
        try:
            more = told[request.pop("what")](**request) or {}
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:2000]}), flush=True)
        else:
            print(json.dumps({"seconds": time.perf_counter() - begun, **more}), flush=True)
    spark.stop()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
