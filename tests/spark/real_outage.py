"""A real outage with every ledger on: two namespaces, a paired sender, a fault, the syphon, a receiver; and one message
that is taken out of the backlog by hand, and one that is sent twice behind the sender's back."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from azure.servicebus import ServiceBusClient as SdkClient
from azure.servicebus import ServiceBusMessage

from pairbus import EntityState, ServiceBusClient
from pairbus.broker import serve_sync
from pairbus.testing import fault

from .conftest import admin_of

QUEUES = 2
SENT = 50


class Story(NamedTuple):
    taken: str
    doubled: str
    primary: Path
    secondary: Path
    sender: Path
    receiver: Path


def send(client: SdkClient, numbers: range) -> None:
    with client.get_queue_sender("orders") as sender:
        for number in numbers:
            sender.send_messages(ServiceBusMessage(f"order {number}", message_id=f"order-{number}"))


def take_one(client: SdkClient) -> str:
    """Somebody completes a message of the backlog and delivers it nowhere."""
    for index in range(QUEUES):
        with client.get_queue_receiver(f"contoso/x-servicebus-transfer/{index}", max_wait_time=2) as receiver:
            for message in receiver.receive_messages(1):
                receiver.complete_message(message)
                return str(message.message_id)
    raise AssertionError("nothing was diverted")


def run(folder: Path) -> Story:
    data = folder / "data"
    with serve_sync("contoso", "backup", data=data, ledger=True) as broker:
        primary, secondary = broker.namespaces["contoso"], broker.namespaces["backup"]
        with admin_of(primary) as admin:
            admin.create_queue("orders")
        pair = partial(
            ServiceBusClient.paired,
            primary.connection_string,
            secondary.connection_string,
            ca_file=primary.ca_file,
            primary_name="contoso",
            backlog_queue_count=QUEUES,
        )
        with pair(ledger=folder / "sender", send_timeout=4, failover_interval=0, ping_primary_interval=1) as client:
            send(client, range(20))
            with fault(data, "no-send", namespace="contoso"):
                send(client, range(20, 40))
            ends = time.monotonic() + 30
            while client.state("orders") is not EntityState.HEALTHY and time.monotonic() < ends:
                time.sleep(0.05)
            send(client, range(40, SENT))
        with SdkClient.from_connection_string(secondary.connection_string) as by_hand:
            taken = take_one(by_hand)
        with SdkClient.from_connection_string(primary.connection_string) as by_hand:
            send(by_hand, range(3, 4))
        with pair(ledger=folder / "receiver", enable_syphon=True, syphon_engine="in-process") as client:
            received = 0
            with client.get_queue_receiver("orders") as receiver:
                # all but the one that was taken, and one of them twice
                while received < SENT and (messages := receiver.receive_messages(50, max_wait_time=70)):
                    for message in messages:
                        receiver.complete_message(message)
                    received += len(messages)
    return Story(
        taken,
        "order-3",
        data / "contoso" / "ledger",
        data / "backup" / "ledger",
        folder / "sender",
        folder / "receiver",
    )
