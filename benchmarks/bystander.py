"""A process of its own that minds its own queue while others crowd the broker: send, receive, settle, one at a time.

`python -m benchmarks.bystander QUEUE`, connection string on the first line of stdin. Prints `ready`; then each line on
stdin asks for one measurement of so many seconds and is answered by a JSON line of latencies in ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.amqp_driver import AmqpDriver
from benchmarks.settings import body


def summary(latencies_ms: list[float]) -> dict[str, float]:
    ordered = sorted(latencies_ms)
    if not ordered:
        raise ValueError("no latency was measured")

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"count": float(len(ordered)), "p50": at(0.5), "p99": at(0.99), "most": ordered[-1]}


async def watch(connection_string: str, queue: str) -> None:
    driver = await AmqpDriver.to_connection_string(connection_string, queue)
    loop = asyncio.get_running_loop()
    payload = body()
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        until = time.perf_counter() + float(line)
        latencies: list[float] = []
        while not latencies or time.perf_counter() < until:
            started = time.perf_counter()
            await driver.send(payload, 1, 1)
            await driver.receive(1, 1)
            latencies.append((time.perf_counter() - started) * 1000)
        print(json.dumps(summary(latencies)), flush=True)
    await driver.close()


class Bystander:
    """The harness's handle on such a process."""

    def __init__(self, connection_string: str, queue: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bystander", queue],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        self._say(connection_string)
        if self._hear() != "ready":
            raise RuntimeError("the bystander could not connect")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    async def latency_ms(self, seconds: float) -> dict[str, float]:
        """While the caller's own tasks go on."""
        self._say(str(seconds))
        answer = await asyncio.get_running_loop().run_in_executor(None, self._hear)
        found: dict[str, float] = json.loads(answer)
        return found

    def __enter__(self) -> Bystander:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    asyncio.run(watch(sys.stdin.readline().strip(), sys.argv[1]))
