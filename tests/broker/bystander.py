"""A client that minds its own business while others attack: sends, receives, completes, and says how long it took.

A process of its own, so that what it measures is the broker and not the attackers beside it. It prints the name of its
client after each round, and runs until its stdin is closed; then it prints one JSON line: rounds, errors, the median
and the longest, of the SDK and of the wire client. A round that the broker keeps waiting for 20 s is an error.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.amqp.message import Properties, encode_message
from pairbus.wire.sync import WireClient

ROOT = Path(__file__).parent.parent.parent
QUEUES = {"sdk": "bystander-sdk", "wire": "bystander-wire"}


class Bystander:
    """That process, seen from the test."""

    def __init__(self, connection_string: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__, connection_string],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self._rounds: Counter[str] = Counter()
        self._last_line = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last_line = line
            self._rounds[line.strip().decode()] += 1

    def rounds(self) -> int:
        """Return how many rounds the slower of its two clients has finished so far."""
        return min(self._rounds[name] for name in QUEUES)

    def finish(self) -> dict[str, dict[str, Any]]:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=90)
        self._close()
        return dict(json.loads(self._last_line))

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Rounds:
    def __init__(self) -> None:
        self.took: list[float] = []
        self.errors: list[str] = []

    def go_on(self, one: Callable[[], None], over: threading.Event, name: str) -> None:
        while not over.is_set():
            started = time.monotonic()
            try:
                one()
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}"[:300])
                time.sleep(0.1)
            self.took.append(time.monotonic() - started)
            print(name, flush=True)
            time.sleep(0.005)

    def report(self) -> dict[str, Any]:
        return {
            "rounds": len(self.took),
            "errors": self.errors[:20],
            "median_s": round(statistics.median(self.took), 4) if self.took else None,
            "longest_s": round(max(self.took, default=0.0), 3),
        }


def by_sdk(connection_string: str, over: threading.Event, ready: threading.Barrier, rounds: Rounds) -> None:
    queue = QUEUES["sdk"]
    with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue) as receiver,
    ):

        def one() -> None:
            sender.send_messages(ServiceBusMessage("x"))
            (message,) = receiver.receive_messages(1, max_wait_time=20)
            receiver.complete_message(message)

        one()
        ready.wait()
        rounds.go_on(one, over, "sdk")


def by_wire(connection_string: str, over: threading.Event, ready: threading.Barrier, rounds: Rounds) -> None:
    queue = QUEUES["wire"]
    client = WireClient.from_connection_string(connection_string)
    sender, receiver = client.sender(queue), client.receiver(queue)
    payload = encode_message(properties=Properties(message_id="m"), body=b"x")

    def one() -> None:
        sender.send(payload)
        (message,) = receiver.receive(1, 20)
        receiver.complete(message)

    one()
    ready.wait()
    rounds.go_on(one, over, "wire")
    client.close()


def main() -> None:
    over, ready = threading.Event(), threading.Barrier(3, lambda: print("ready", flush=True))
    rounds = {name: Rounds() for name in QUEUES}
    threads = [
        threading.Thread(target=run, args=(sys.argv[1], over, ready, rounds[name]), daemon=True)
        for name, run in (("sdk", by_sdk), ("wire", by_wire))
    ]
    for thread in threads:
        thread.start()
    ready.wait(60)
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join(30)
    print(json.dumps({name: each.report() for name, each in rounds.items()}), flush=True)


if __name__ == "__main__":
    main()
