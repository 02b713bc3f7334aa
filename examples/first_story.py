"""The smallest example: a broker takes messages from the official SDK, is killed with -9, and delivers them all.

Run it with `python examples/first_story.py`. It needs no network, leaves no processes or files behind, and exits with 0
only if every message came back exactly once, unchanged.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

MESSAGES = 100
QUEUE = "orders"
LIMIT_S = 90

started = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - started:6.2f} s  {text}", flush=True)


def start_broker(data: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Returns when the broker has printed its ready line, which says how to reach it."""
    command = [sys.executable, "-m", "pairbus", "broker", "--namespace", "contoso", "--data", data]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    line = broker.stdout.readline()
    if not line:
        raise SystemExit(f"the broker did not start; it exited with {broker.wait()}")
    return broker, json.loads(line)


def body(number: int) -> bytes:
    """1 KB that can't come back right by accident."""
    return f"order {number:03d} ".encode() + hashlib.sha512(str(number).encode()).digest() * 15


def send_then_kill(connection_string: str, broker: subprocess.Popen[str]) -> dict[str, bytes]:
    """Message id → body of what the broker confirmed. It dies the moment after it confirmed the last one."""
    confirmed: dict[str, bytes] = {}
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        for number in range(1, MESSAGES + 1):
            message_id = f"order-{number:03d}"
            sender.send_messages(ServiceBusMessage(body(number), message_id=message_id), timeout=10)
            confirmed[message_id] = body(number)
            if number % 25 == 0:
                say(f"{number} of {MESSAGES} sent and confirmed")
        broker.kill()
        broker.wait()
        say(f"kill -9: the broker is dead (pid {broker.pid}, exit code {broker.returncode})")
    return confirmed


def receive(connection_string: str) -> list[tuple[str, bytes]]:
    """Message id and body of everything in the queue, each completed."""
    received: list[tuple[str, bytes]] = []
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        while batch := receiver.receive_messages(
            max_message_count=25, max_wait_time=5 if len(received) < MESSAGES else 1
        ):
            for message in batch:
                received.append((str(message.message_id), b"".join(message.body)))
                receiver.complete_message(message)
            say(f"{len(received)} of {MESSAGES} received and completed")
    return received


def verdict(confirmed: dict[str, bytes], received: list[tuple[str, bytes]], left: int) -> tuple[bool, str]:
    counts = Counter(message_id for message_id, _ in received)
    lost = sorted(confirmed.keys() - counts.keys())
    duplicated = sorted(message_id for message_id, count in counts.items() if count > 1)
    changed = sorted({message_id for message_id, content in received if confirmed.get(message_id) != content})
    text = (
        f"{len(confirmed)} confirmed, {len(received)} received, {len(lost)} lost, {len(duplicated)} duplicated, "
        f"{len(changed)} changed, {left} left in the queue"
    )
    names = ", ".join([*lost, *duplicated, *changed][:5])
    good = bool(confirmed) and not (lost or duplicated or changed or left)
    return good, text if good else f"{text} ({names})" if names else text


def tell(data: str, brokers: list[subprocess.Popen[str]]) -> bool:
    say("starting the broker")
    broker, ready = start_broker(data)
    brokers.append(broker)
    say(f"ready: namespace {ready['namespace']} on {ready['host']}:{ready['port']}")
    with ServiceBusAdministrationClient.from_connection_string(
        ready["connection_string"], connection_verify=ready["ca_file"]
    ) as admin:
        admin.create_queue(QUEUE)
    say(f"queue {QUEUE!r} made with the official administration client")
    confirmed = send_then_kill(ready["connection_string"], broker)

    broker, ready = start_broker(data)
    brokers.append(broker)
    say("a new broker on the same data folder is ready")
    received = receive(ready["connection_string"])
    with ServiceBusAdministrationClient.from_connection_string(
        ready["connection_string"], connection_verify=ready["ca_file"]
    ) as admin:
        left = admin.get_queue_runtime_properties(QUEUE).total_message_count or 0

    broker.send_signal(signal.SIGTERM)
    stopped = broker.wait(timeout=20)
    say(f"SIGTERM: the broker shut down with exit code {stopped}")
    good, text = verdict(confirmed, received, left)
    print(f"\n{'PASSED' if good and stopped == 0 else 'FAILED'}: {text}")
    return good and stopped == 0


def main() -> int:
    def too_long(*_: object) -> None:
        raise SystemExit(f"FAILED: not done after {LIMIT_S} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LIMIT_S)
    brokers: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="pairbus-") as folder:
        try:
            return 0 if tell(os.path.join(folder, "data"), brokers) else 1
        finally:
            for broker in brokers:
                if broker.poll() is None:
                    broker.kill()
                broker.wait()
                if broker.stdout is not None:
                    broker.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
