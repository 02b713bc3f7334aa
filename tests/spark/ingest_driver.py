"""A driver that can be held at a moment of an ingest, and killed: `python -m tests.spark.ingest_driver MASTER`.

Takes one ingest a line on stdin, as JSON; prints a line when it is held, goes on after a line on stdin, and prints how
it ended. `Driver` is the test's end of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Final

from .fault_scene import descendants, drivers_of, kill, until, workers_of

MOMENTS: Final = (
    "before the write",
    "in the write",
    "after the write",
    "in the commit",
    "before the settle",
    "after the settle",
)


class Driver:
    """The process, once its session stands."""

    def __init__(self, folder: Path, master: str) -> None:
        self._log = folder / f"driver-{time.monotonic_ns()}.stderr"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, master],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1,
            )  # fmt: skip
        self._lines: Queue[dict[str, Any]] = Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.hear("ready", 900)
        except AssertionError:
            self.kill()
            raise

    def __repr__(self) -> str:
        return f"<Driver {self.pid}: {self._process.poll()}; {self._log.read_text()[-3000:]}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self._lines.put(json.loads(line))

    def hear(self, word: str, within_s: float = 600.0) -> Any:
        end = time.monotonic() + within_s
        while True:
            try:
                found = self._lines.get(timeout=0.5)
                break
            except Empty:
                assert self._process.poll() is None and time.monotonic() < end, f"no {word!r} from {self!r}"
        assert word in found, (word, found, self)
        return found[word]

    def say(self, **words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """kill -9, of its JVM too."""
        below = list(descendants(self.pid))
        kill([self.pid, *drivers_of(self.pid)])
        self._process.wait(30)
        with contextlib.suppress(AssertionError):  # executors and workers end when they miss their driver
            until(lambda: not any(Path(f"/proc/{each}").exists() for each in below), 10)
        kill(below)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


def main(master: str) -> None:
    from pairbus.spark import ingest, session
    from pairbus.spark.pipelines.table_files import LocalFiles

    spark = session(master)
    spark.range(1).count()
    say(ready=True)
    real_commit = LocalFiles.commit
    for line in sys.stdin:
        wanted = json.loads(line)
        moment, roots = wanted.pop("moment"), wanted.pop("roots")
        with holding(moment, roots):
            running = ingest(spark, **wanted, drain=True, min_partitions=2)
            try:
                left = running.wait(900)
                say(ended={"left": left, "moved": running.report().moved, "already": running.already})
            except BaseException as error:
                say(ended=str(error))
        assert LocalFiles.commit is real_commit


@contextlib.contextmanager
def holding(moment: str | None, roots: list[int]) -> Iterator[None]:
    """Hold the first ingest that comes to this moment. `roots`: the processes below which its executors are."""
    from pairbus.spark.pipelines.ingest import Ingester
    from pairbus.spark.pipelines.table_files import LocalFiles

    owner, name, call = {
        "before the write": (Ingester, "_stage", 1),
        "in the write": (Ingester, "_stage", 1),
        "after the write": (Ingester, "_present", 1),
        "in the commit": (LocalFiles, "commit", 2),
        "before the settle": (Ingester, "_settle", 1),
        "after the settle": (Ingester, "_settle", 1),
        None: (Ingester, "_stage", 0),
    }[moment]
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def held(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != call:
            return real(*given, **more)
        if moment == "in the write":
            threading.Thread(target=tell_of_the_write, args=(Path(given[2].removeprefix("file:")), roots)).start()
            return real(*given, **more)
        found = real(*given, **more) if moment == "after the settle" else None
        say(held=moment)
        sys.stdin.readline()
        return found if moment == "after the settle" else real(*given, **more)

    setattr(owner, name, held)
    try:
        yield
    finally:
        setattr(owner, name, real)


def tell_of_the_write(stage: Path, roots: list[int]) -> None:
    """The job has begun, and its workers run."""
    until(lambda: (stage / "_temporary").exists() and workers_of(os.getpid(), *roots), 300)
    time.sleep(0.7)
    say(held="in the write")


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
