"""A receiving application that hosts the syphon: it receives orders from the primary, and brings diverted ones home.

Senders need only the right to send; the syphon runs where messages are received. Here the primary is a broker in a
separate process, which is killed with -9 in between and started again on the same data. A sending application goes on,
and the receiving application survives with its usual loop: it receives from the primary only, and while that is down
its receives fail as without pairing. The exit code is 0 only if every order arrived.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import Event, ServiceBusClient, StateChanged
from pairbus.broker import serve_sync

ORDERS = 90
LIMIT_S = 150
started = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - started:6.2f} s  {text}", flush=True)


def start_primary(data: str, port: int = 0) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    command = [sys.executable, "-m", "pairbus", "broker", "--namespace", f"contoso:{port}", "--data", data]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    return broker, json.loads(broker.stdout.readline())


class ReceivingApplication:
    """As any: a client, a receiver, a loop. Paired, with `enable_syphon`, it also brings home what was diverted."""

    def __init__(self, primary: str, secondary: str, ca_file: str) -> None:
        self.received: Counter[str] = Counter()
        self._client = ServiceBusClient.paired(
            primary,
            secondary,
            primary_name="contoso",  # only since these namespaces have no host names of their own
            secondary_ca_file=ca_file,
            enable_syphon=True,
            syphon_engine="in-process",
            backlog_queue_count=2,
            client_options={"retry_total": 0},
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="receiving")
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                with self._client.get_queue_receiver("orders") as receiver:
                    while not self._stop.is_set():
                        for message in receiver.receive_messages(20, max_wait_time=0.5):
                            self.received[str(message)] += 1
                            receiver.complete_message(message)
            except ServiceBusError as error:
                say(f"        receiving: {type(error).__name__}; trying again")
                self._stop.wait(2)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


def tell(event: Event) -> None:
    if isinstance(event, StateChanged):
        say(f"        sending: {event.entity} {event.previous.value} → {event.state.value} ({event.cause})")


def send(client: ServiceBusClient, numbers: range) -> None:
    with client.get_queue_sender("orders") as sender:
        for number in numbers:
            sender.send_messages(ServiceBusMessage(f"order {number}"))
    say(f"sending: orders {numbers.start} to {numbers.stop - 1} are sent")


def demonstrate(folder: str, secondary: str, ca_file: str, brokers: list[subprocess.Popen[str]]) -> bool:
    broker, ready = start_primary(folder + "/primary")
    brokers.append(broker)
    primary = ready["connection_string"]
    with ServiceBusAdministrationClient.from_connection_string(primary, connection_verify=ready["ca_file"]) as admin:
        admin.create_queue("orders", requires_duplicate_detection=True)
    # What the syphon finds while the primary is away waits for its lock to run out: a minute, unless the backlog queues
    # are made beforehand. One that exists is used as it is.
    with ServiceBusAdministrationClient.from_connection_string(secondary, connection_verify=ca_file) as admin:
        for index in range(2):
            admin.create_queue(
                f"contoso/x-servicebus-transfer/{index}",
                lock_duration=timedelta(seconds=10),
                max_delivery_count=2147483647,
            )
    application = ReceivingApplication(primary, secondary, ca_file)
    say("the receiving application runs, and the syphon in it")
    try:
        with ServiceBusClient.paired(
            primary,
            secondary,
            primary_name="contoso",
            secondary_ca_file=ca_file,
            send_timeout=4,
            failover_interval=0,
            ping_primary_interval=1,
            backlog_queue_count=2,
        ) as client:
            client.subscribe(tell)
            send(client, range(30))
            broker.kill()
            broker.wait()
            say("kill -9: the primary is dead")
            send(client, range(30, 60))
            broker, _ = start_primary(folder + "/primary", ready["port"])
            brokers.append(broker)
            say("the primary is back")
            send(client, range(60, ORDERS))
        while len(application.received) < ORDERS and time.monotonic() - started < LIMIT_S:
            time.sleep(0.1)
    finally:
        application.close()
    missing = [number for number in range(ORDERS) if f"order {number}" not in application.received]
    # A receiver that dies between taking an order and completing it gets it again: at least once, as ever.
    twice = application.received.total() - len(application.received)
    say(f"receiving: {len(application.received)} orders, {len(missing)} lost, {twice} received again")
    return not missing


def main() -> int:
    brokers: list[subprocess.Popen[str]] = []
    with (
        tempfile.TemporaryDirectory(prefix="pairbus-") as folder,
        serve_sync("contoso2", data=folder + "/secondary") as secondary,
    ):
        namespace = secondary.namespaces["contoso2"]
        try:
            good = demonstrate(folder, namespace.connection_string, namespace.ca_file, brokers)
        finally:
            for broker in brokers:
                broker.kill()
                broker.wait()
                if broker.stdout is not None:
                    broker.stdout.close()
    print("PASSED" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
