"""An embedded broker as the secondary of a primary elsewhere: a second namespace without a second subscription.

The backlog is then in this process, and on this machine's disk. WARNING: if that disk is lost, so is the backlog. A
restart of the application or of the machine loses nothing, since a send is confirmed only when it is on disk; but a
lost machine loses all messages that had not been brought home. Two cloud namespaces in two regions don't have that
weakness. Use a disk that outlives the machine (a network volume), or accept the risk: it is still better than no
backlog.

The primary here stands in for one in the cloud: a broker in a separate process, which goes away and comes back. In
between this application is restarted too, and finds its backlog again. The exit code is 0 only if every order arrived.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import ServiceBusClient
from pairbus.broker import serve_sync

ORDERS = 40
started = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - started:6.2f} s  {text}", flush=True)


def start_primary(data: str, port: int = 0) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    command = [sys.executable, "-m", "pairbus", "broker", "--namespace", f"contoso:{port}", "--data", data]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    return broker, json.loads(broker.stdout.readline())


def application(primary: str, backlog: str, numbers: range, wait_for_all: bool = False) -> int:
    """One run of the application, from its start to its end; returns how many orders it received."""
    with serve_sync("backlog", data=backlog) as broker:
        secondary = broker.namespaces["backlog"]
        with ServiceBusClient.paired(
            primary,
            secondary.connection_string,
            primary_name="contoso",  # a namespace in the cloud has its name from its host
            secondary_ca_file=secondary.ca_file,
            send_timeout=4,
            failover_interval=0,
            ping_primary_interval=1,
            backlog_queue_count=1,  # more would share the same disk
            enable_syphon=True,
            syphon_engine="in-process",
        ) as client:
            say(f"the application runs; its backlog is in {backlog}, on THIS machine's disk")
            with client.get_queue_sender("orders") as sender:
                for number in numbers:
                    sender.send_messages(ServiceBusMessage(f"order {number}"))
            if numbers:
                say(f"orders {numbers.start} to {numbers.stop - 1} sent; orders are {client.state('orders').value}")
            received = receive_all(client) if wait_for_all else set()
        say("the application ends")
    return len(received)


def receive_all(client: ServiceBusClient) -> set[str]:
    received: set[str] = set()
    with client.get_queue_receiver("orders") as receiver:
        while len(received) < ORDERS and (messages := receiver.receive_messages(20, max_wait_time=100)):
            for message in messages:
                received.add(str(message))
                receiver.complete_message(message)
    return received


def demonstrate(folder: str, brokers: list[subprocess.Popen[str]]) -> bool:
    broker, ready = start_primary(folder + "/primary")
    brokers.append(broker)
    primary = ready["connection_string"]
    with ServiceBusAdministrationClient.from_connection_string(primary, connection_verify=ready["ca_file"]) as admin:
        admin.create_queue("orders")
    application(primary, folder + "/backlog", range(20))
    broker.kill()
    broker.wait()
    say("the primary is gone")
    application(primary, folder + "/backlog", range(20, ORDERS))
    broker, _ = start_primary(folder + "/primary", ready["port"])
    brokers.append(broker)
    say("the primary is back")
    received = application(primary, folder + "/backlog", range(0), wait_for_all=True)
    say(f"{received} of {ORDERS} orders received")
    return received == ORDERS


def main() -> int:
    brokers: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="pairbus-") as folder:
        try:
            good = demonstrate(folder, brokers)
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
