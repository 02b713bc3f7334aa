"""Through an outage: an application keeps sending while its namespace is down, and every order arrives.

Two namespaces of the embedded broker, `contoso` and `contoso2`, an application that sends, and one that receives. Run
it with `python examples/through_an_outage.py`: no network is needed, nothing is left behind, and the exit code is 0
only if every order arrived exactly once, unchanged.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from functools import partial

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import EntityState, Event, ServiceBusClient, StateChanged
from pairbus.broker import serve_sync
from pairbus.testing import fault

ORDERS = 60
started = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - started:6.2f} s  {text}", flush=True)


def tell(event: Event) -> None:
    if isinstance(event, StateChanged):
        say(f"        {event.entity}: {event.previous.value} → {event.state.value} ({event.cause})")


def send(client: ServiceBusClient, numbers: range) -> None:
    began = time.monotonic()
    with client.get_queue_sender("orders") as sender:
        for number in numbers:
            sender.send_messages(ServiceBusMessage(f"order {number}", message_id=str(number)))
    say(f"orders {numbers.start} to {numbers.stop - 1} sent in {time.monotonic() - began:.2f} s, none refused")


def receive(client: ServiceBusClient) -> Counter[str]:
    received: Counter[str] = Counter()
    with client.get_queue_receiver("orders") as receiver:
        while messages := receiver.receive_messages(50, max_wait_time=60 if len(received) < ORDERS else 1):
            for message in messages:
                received[f"{message.message_id}: {message}"] += 1
                receiver.complete_message(message)
            say(f"{len(received)} of {ORDERS} received")
    return received


def demonstrate(primary: str, secondary: str, ca_file: str, data: str) -> bool:
    with ServiceBusAdministrationClient.from_connection_string(primary, connection_verify=ca_file) as admin:
        admin.create_queue("orders")
    pair = partial(
        ServiceBusClient.paired,
        primary,
        secondary,
        ca_file=ca_file,
        primary_name="contoso",  # only since these namespaces have no host names of their own
        backlog_queue_count=3,
    )
    with pair(
        send_timeout=4,  # for each send; the primary gets half of it
        failover_interval=0,  # at the first failure; 60 s if you leave it out
        ping_primary_interval=1,
    ) as client:
        client.subscribe(tell)
        say("contoso is paired with contoso2")
        send(client, range(20))
        with fault(data, "unreachable", namespace="contoso"):
            say("contoso is gone: connections are cut and refused")
            send(client, range(20, 40))
        say("contoso is back")
        while client.state("orders") is not EntityState.HEALTHY:
            time.sleep(0.05)
        send(client, range(40, ORDERS))
    with pair(enable_syphon=True, syphon_engine="in-process") as client:
        say("a receiving application starts, and the syphon in it, which brings home what is in contoso2")
        received = receive(client)
    expected = {f"{number}: order {number}" for number in range(ORDERS)}
    lost, duplicated = len(expected - received.keys()), received.total() - len(received)
    say(f"{received.total()} received, {lost} lost, {duplicated} duplicated")
    return received == Counter(expected)


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="pairbus-") as data,
        serve_sync("contoso", "contoso2", data=data) as broker,
    ):
        primary, secondary = broker.namespaces["contoso"], broker.namespaces["contoso2"]
        good = demonstrate(primary.connection_string, secondary.connection_string, primary.ca_file, data)
    print("PASSED" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
