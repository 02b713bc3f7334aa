"""Sessions and scheduled messages across an outage.

A backlog queue has no sessions and delivers at once, so session id and schedule travel as properties, and are restored
when the message comes home. Applications must know that the order within a session may change, and that
`schedule_messages` can't return a sequence number while the primary is down; a message with its own scheduled time can
be sent as usual. The outage here is a drill, `force_failover`: nothing is really broken. The exit code is 0 only if all
of this is true.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import EntityState, ScheduleDuringFailoverError, ServiceBusClient
from pairbus.broker import serve_sync

CUSTOMERS = ("ada", "ben", "cem")
started = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - started:6.2f} s  {text}", flush=True)


def send_in_sessions(client: ServiceBusClient, steps: tuple[str, ...]) -> None:
    with client.get_queue_sender("carts") as sender:
        for customer in CUSTOMERS:
            sender.send_messages([ServiceBusMessage(step, session_id=customer) for step in steps])
    say(f"carts ({client.state('carts').value}): {', '.join(steps)} sent for each of {', '.join(CUSTOMERS)}")


def receive_sessions(client: ServiceBusClient, wanted: int) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    deadline = time.monotonic() + 100
    while sum(map(len, found.values())) < wanted and time.monotonic() < deadline:
        try:
            with client.get_queue_receiver("carts", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2) as receiver:
                for message in receiver:
                    found[str(message.session_id)].add(str(message))
                    receiver.complete_message(message)
        except OperationTimeoutError:
            continue  # no session has anything yet
    return dict(found)


def remind(client: ServiceBusClient, due: datetime) -> bool:
    """True if the call that can't work said so clearly."""
    with client.get_queue_sender("reminders") as sender:
        try:
            sender.schedule_messages(ServiceBusMessage("call back"), due)
            refused = False
        except ScheduleDuringFailoverError as error:
            say(f"schedule_messages: {error}")
            refused = True
        sender.send_messages(ServiceBusMessage("call back", scheduled_enqueue_time_utc=due))
        say("the same message with scheduled_enqueue_time_utc: sent")
    return refused


def receive_reminder(client: ServiceBusClient) -> datetime | None:
    """When it arrived."""
    with client.get_queue_receiver("reminders") as receiver:
        for message in receiver.receive_messages(max_wait_time=100):
            receiver.complete_message(message)
            return datetime.now(UTC)
    return None


def demonstrate(primary: str, secondary: str, ca_file: str) -> bool:
    with ServiceBusAdministrationClient.from_connection_string(primary, connection_verify=ca_file) as admin:
        admin.create_queue("carts", requires_session=True)
        admin.create_queue("reminders")
    with ServiceBusClient.paired(
        primary,
        secondary,
        ca_file=ca_file,
        primary_name="contoso",  # only since these namespaces have no host names of their own
        ping_primary_interval=2,
        backlog_queue_count=2,
        enable_syphon=True,
        syphon_engine="in-process",
    ) as client:
        send_in_sessions(client, ("hat", "coat"))
        for entity in ("carts", "reminders"):
            client.force_failover(entity)
        say("a drill: carts and reminders are sent to the backlog, until a ping brings them back")
        due = datetime.now(UTC) + timedelta(seconds=8)
        refused = remind(client, due)
        send_in_sessions(client, ("gloves", "scarf"))
        while set(client.states().values()) != {EntityState.HEALTHY}:
            time.sleep(0.05)
        say("a ping found both healthy again")
        send_in_sessions(client, ("boots",))

        carts = receive_sessions(client, wanted=5 * len(CUSTOMERS))
        for customer, things in sorted(carts.items()):
            say(f"session {customer}: {', '.join(sorted(things))}")
        arrived = receive_reminder(client)
    early = arrived is None or arrived < due - timedelta(seconds=0.5)
    if arrived is not None:
        say(f"the reminder was received {(arrived - due).total_seconds():.1f} s after its time")
    whole = {customer: {"hat", "coat", "gloves", "scarf", "boots"} for customer in CUSTOMERS}
    return refused and not early and carts == whole


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="pairbus-") as data,
        serve_sync("contoso", "contoso2", data=data) as broker,
    ):
        primary, secondary = broker.namespaces["contoso"], broker.namespaces["contoso2"]
        good = demonstrate(primary.connection_string, secondary.connection_string, primary.ca_file)
    print("PASSED" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
