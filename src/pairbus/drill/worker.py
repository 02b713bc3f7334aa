"""Runs an application on the paired client as a process: `python -m pairbus.drill.worker sender|receiver`.

It reads its settings as one JSON line from stdin, prints facts as JSON lines on stdout, and ends when stdin says `stop`
or ends, so that nothing is left running when the drill itself is killed. A sender sends until stdin says `enough`,
however long Spark's start or the outage take; then it prints that it has finished, and keeps its client open until
`stop`. `traffic.py` decides what is sent when, and `timeline.py` what the facts mean.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.aio import ServiceBusClient
from pairbus.drill.traffic import PlannedSend, planned_sends, traffic_ends
from pairbus.pairing.events import Event, PingFailed, PingSucceeded, StateChanged
from pairbus.pairing.observers import Observer, RouteWord

TELL_S: Final = 0.25
#: One receive waits so long; each that ends with nothing is an operation on the bill.
WAIT_S: Final = 20.0
#: A receiver that a fault has cut is made anew after so long; one that hangs is given up after so long.
AGAIN_S: Final = 0.3
HANGS_S: Final = 3.0
#: One at a time: of more the SDK gives back what comes between two calls, and each delivery is billed; with a prefetch
#: it hands over what came after a pause only when its waiting time is over, and locks run out.
RECEIVE_MAX: Final = 1


def say(fact: str, **details: Any) -> None:
    sys.stdout.write(json.dumps({"t": time.time(), "fact": fact, **details}) + "\n")
    sys.stdout.flush()


# -- sending


class Counts(Observer):
    """Counts attempts by route, and prints a fact when the route of an entity changes."""

    wants_sends = True

    def __init__(self) -> None:
        self.diverted = self.raised = self.confirmed = 0
        #: The longest that a caller waited.
        self.waited_s = 0.0
        #: Entity → the route of its last confirmed message.
        self._last_route: dict[str, RouteWord] = {}

    def sent(self, entity: str, route: RouteWord, queue: int | None, messages: Any, outcome: str, ms: float) -> None:
        if outcome not in ("ok", "duplicate"):
            return
        if route != "primary":
            self.diverted += len(messages)
        if self._last_route.get(entity, "primary") != route:
            say("route", entity=entity, route=route)
        self._last_route[entity] = route

    def tell(self) -> None:
        counts = {name: getattr(self, name) for name in ("confirmed", "diverted", "raised")}
        say("sent", **counts, waited_s=round(self.waited_s, 3))


def announced(event: Event) -> None:
    match event:
        case StateChanged():
            change = {"from": event.previous.value, "to": event.state.value}
            say("state", entity=event.entity, **change, cause=event.cause)
        case PingFailed() | PingSucceeded():
            say("ping", entity=event.entity, ok=isinstance(event, PingSucceeded))


async def send(settings: dict[str, Any], client: ServiceBusClient, enough: EnoughSignal) -> None:
    counts = Counts()
    client.observe(counts)
    client.subscribe(announced)
    begins = asyncio.get_running_loop().time()
    telling = asyncio.create_task(_keep_telling(counts.tell))
    try:
        async with asyncio.TaskGroup() as tasks:
            for each in settings["entities"]:
                tasks.create_task(_send_to(client, each, settings, begins, counts, enough))
    finally:
        telling.cancel()
    counts.tell()
    say("finished")
    await asyncio.Event().wait()


async def _send_to(
    client: ServiceBusClient,
    entity: dict[str, Any],
    settings: dict[str, Any],
    begins: float,
    counts: Counts,
    enough: EnoughSignal,
) -> None:
    name = entity["name"]
    loop = asyncio.get_running_loop()
    make = client.get_topic_sender if entity["is_topic"] else client.get_queue_sender
    async with make(name) as sender:
        seconds = entity["seconds"]
        for planned in planned_sends(name, entity["messages"], seconds, entity["list_size"], settings["seed"]):
            due = begins + planned.at_s
            await enough.wait_until(due)
            ended_at = None if enough.said_at is None else enough.said_at - begins
            if planned.at_s >= traffic_ends(seconds, settings["after_s"], ended_at):
                return
            await asyncio.sleep(due - loop.time())
            began = loop.time()
            try:
                await sender.send_messages(_messages(planned))
            except (ServiceBusError, ValueError) as error:
                counts.raised += len(planned.ids)
                say("raised", entity=name, ids=planned.ids, error=type(error).__name__)
            else:
                counts.confirmed += len(planned.ids)
            counts.waited_s = max(counts.waited_s, loop.time() - began)


def _messages(planned: PlannedSend) -> ServiceBusMessage | list[ServiceBusMessage]:
    made = [ServiceBusMessage(body, message_id=name) for name, body in zip(planned.ids, planned.bodies, strict=True)]
    return made[0] if len(made) == 1 else made


# -- receiving


class Received:
    """Counts messages by id, since what a fault caught between receive and complete comes again."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.settled: set[str] = set()
        self.cut_off: set[str] = set()

    def tell(self) -> None:
        say("received", count=len(self.ids), settled=len(self.settled))


async def receive(settings: dict[str, Any], client: ServiceBusClient, enough: EnoughSignal) -> None:
    received = Received()
    telling = asyncio.create_task(_keep_telling(received.tell))
    try:
        async with asyncio.TaskGroup() as tasks:
            for each in settings["entities"]:
                tasks.create_task(_receive_from(client, each, received))
    finally:
        telling.cancel()
        received.tell()


async def _receive_from(client: ServiceBusClient, entity: dict[str, Any], received: Received) -> None:
    """Receive forever; during an outage receivers fail as with the bare SDK, so they are made anew."""
    name = entity["name"]
    while True:
        try:
            await _receive_while_it_works(client, entity, received)
        except (ServiceBusError, TimeoutError, OSError) as error:
            if name not in received.cut_off:
                received.cut_off.add(name)
                say("deaf", entity=name, error=type(error).__name__)
        await asyncio.sleep(AGAIN_S)


async def _receive_while_it_works(client: ServiceBusClient, entity: dict[str, Any], received: Received) -> None:
    name = entity["name"]
    if entity["is_topic"]:
        receiver = client.get_subscription_receiver(name, entity["subscription"], max_wait_time=WAIT_S)
    else:
        receiver = client.get_queue_receiver(name, max_wait_time=WAIT_S)
    try:
        while True:
            async with asyncio.timeout(WAIT_S + HANGS_S):
                messages = await receiver.receive_messages(RECEIVE_MAX)
            received.ids.update(str(message.message_id) for message in messages)
            for message in messages:
                async with asyncio.timeout(HANGS_S):
                    await receiver.complete_message(message)
                received.settled.add(str(message.message_id))
            if messages and name in received.cut_off:
                received.cut_off.discard(name)
                say("hears", entity=name)
    finally:
        with suppress(ServiceBusError, TimeoutError, OSError):
            async with asyncio.timeout(HANGS_S):
                await receiver.close()


# -- the process


async def _keep_telling(tell: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(TELL_S)
        tell()


class EnoughSignal:
    """Whether and when stdin said `enough`, by the loop's clock."""

    def __init__(self) -> None:
        self.said_at: float | None = None
        self._enough = asyncio.Event()

    def said(self) -> None:
        self.said_at = asyncio.get_running_loop().time()
        self._enough.set()

    async def wait_until(self, due: float) -> None:
        """Wait until `due`, or until stdin says `enough`."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._enough.wait()


async def _until_stop(stdin: asyncio.StreamReader, enough: EnoughSignal) -> None:
    while line := await stdin.readline():
        if line.strip() == b"enough":
            enough.said()
        if line.strip() == b"stop":
            return


async def _work(role: str, settings: dict[str, Any], enough: EnoughSignal) -> None:
    client = await ServiceBusClient.paired(
        settings["primary"],
        settings["secondary"],
        manage=False,
        ledger=settings["ledger"],
        client_options=settings["client_options"],
        **settings["pairing"],
    )
    async with client:
        say("ready")
        await (send if role == "sender" else receive)(settings, client, enough)


async def main(role: str) -> None:
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    settings = json.loads(await stdin.readline())
    enough = EnoughSignal()
    work = asyncio.create_task(_work(role, settings, enough))
    stop = asyncio.create_task(_until_stop(stdin, enough))
    await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not work.done():
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
    else:
        work.result()
    say("done")


if __name__ == "__main__":
    # To stderr, which is the drill's log file. The SDK tells every lost connection; the drill is about those.
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main(sys.argv[1]))
