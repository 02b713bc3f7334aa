"""Table `syphon`: the in-process syphon against a plain loop with the official SDK, on the same backlog.

Both empty the same number of backlog queues into one destination; the brokers are processes of their own. The syphon is
the command `pairbus syphon`; what it takes to start and to find nothing is measured too, and taken off. The plain loop
is what one would write: receive a hundred, send them as a list, complete each, one task for each queue. It does less
than the syphon (it restores no session, schedule or time to live, and what it sends is no longer exact), and nobody
stops it from losing order or duplicating what it was at when it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from benchmarks.amqp_driver import AmqpDriver, create_queues, encoded
from benchmarks.figures import Column, Goal, Row, Table
from benchmarks.meter import Meter, Reading
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import COMMAND, PairbusServer
from benchmarks.settings import BATCH, WINDOW, Settings, body
from pairbus.wire import WireClient

NAME = "syphon"
CASE = "backlog to primary"
SYPHON, LOOP = "in-process syphon", "plain SDK loop"
GOAL = 3.0
QUEUES = 4
DESTINATION = "orders"
PRIMARY_NAME = "bench"
COLUMNS = (
    Column("rate", "messages", "rate"),
    Column("ratio", "syphon ÷ it", "ratio"),
    Column("client_us", "its CPU", "us"),
    Column("cpu_ratio", "CPU, syphon ÷ it", "ratio"),
    Column("others", "brokers' and others' CPU", "share"),
)


def backlog_paths(count: int) -> list[str]:
    return [f"{PRIMARY_NAME}/x-servicebus-transfer/{index}" for index in range(count)]


async def fill(secondary: PairbusServer, paths: Sequence[str], destinations: Sequence[str], total: int) -> None:
    """As paired senders would: diverted messages, in whole batches, in turn over the queues and the destinations. One
    batch for each destination is encoded once: what is measured is moving, not making."""
    payload = body()
    batches = [[encoded(payload, str(uuid.uuid4()), name) for _ in range(BATCH)] for name in destinations]
    async with WireClient.from_connection_string(secondary.connection_string, timeout=120) as client:
        senders = [await client.sender(path) for path in paths]
        for number in range(total // BATCH):
            await senders[number % len(paths)].send_batch(batches[number % len(batches)])


async def by_engine(primary: PairbusServer, secondary: PairbusServer, queues: int) -> None:
    """`pairbus syphon --drain` ends with 3 where messages remain."""
    command = [str(COMMAND), "syphon", "--engine", "in-process", "--drain", "--count", str(queues)]
    command += ["--primary-name", PRIMARY_NAME, "--ca-file", secondary.ca_file]
    namespaces = {"PAIRBUS_PRIMARY": primary.connection_string, "PAIRBUS_SECONDARY": secondary.connection_string}
    ran = await asyncio.to_thread(
        subprocess.run, command, env={**os.environ, **namespaces}, capture_output=True, text=True
    )
    if ran.returncode:
        raise RuntimeError(f"pairbus syphon ended with {ran.returncode}: {ran.stdout}{ran.stderr}")


async def metered(work: Callable[[], Awaitable[object]], *brokers: int, client: int | None = None) -> Reading:
    with Meter(*brokers, client=client) as meter:
        await work()
    assert meter.reading is not None
    return meter.reading


async def by_loop(primary: PairbusServer, secondary: PairbusServer, paths: Sequence[str], each: int) -> None:
    """Each message goes where it says, as pairbus wrote it: what one reads from `x-ms-path`."""
    async with (
        ServiceBusClient.from_connection_string(primary.connection_string) as to,
        ServiceBusClient.from_connection_string(secondary.connection_string) as source,
    ):

        async def move(path: str) -> None:
            left = each
            senders: dict[str, ServiceBusSender] = {}
            async with source.get_queue_receiver(path) as receiver, contextlib.AsyncExitStack() as opened:
                while left:
                    received = await receiver.receive_messages(max_message_count=BATCH, max_wait_time=20)
                    if not received:
                        raise RuntimeError(f"{left} messages did not come")
                    for destination, messages in by_destination(received).items():
                        if destination not in senders:
                            sender = to.get_queue_sender(destination)
                            senders[destination] = await opened.enter_async_context(sender)
                        await senders[destination].send_messages(messages)
                    for message in received:
                        await receiver.complete_message(message)
                    left -= len(received)

        await asyncio.gather(*map(move, paths))


def by_destination(received: Sequence[ServiceBusReceivedMessage]) -> dict[str, list[ServiceBusMessage]]:
    found: dict[str, list[ServiceBusMessage]] = {}
    for message in received:
        properties = message.application_properties or {}
        path = properties[b"x-ms-path"]
        found.setdefault(path.decode() if isinstance(path, bytes) else str(path), []).append(
            ServiceBusMessage(b"".join(message.body), message_id=message.message_id, application_properties=properties)
        )
    return found


def _steps(primary: PairbusServer, secondary: PairbusServer, home: AmqpDriver, settings: Settings) -> list[Step]:
    paths = backlog_paths(QUEUES)

    async def syphon() -> Mapping[Key, Metrics]:
        drain = partial(by_engine, primary, secondary, QUEUES)
        start = await metered(drain)
        await fill(secondary, paths, [DESTINATION], settings.syphoned)
        reading = await metered(drain)
        await home.receive(settings.syphoned, WINDOW)  # all of it is there, and gone for the next
        return {(CASE, SYPHON): reading.without(start).per_message(settings.syphoned)}

    async def loop() -> Mapping[Key, Metrics]:
        await fill(secondary, paths, [DESTINATION], settings.looped)
        reading = await metered(partial(by_loop, primary, secondary, paths, settings.looped // QUEUES))
        await home.receive(settings.looped, WINDOW)
        return {(CASE, LOOP): reading.per_message(settings.looped)}

    return [Step(SYPHON, syphon), Step(LOOP, loop)]


def rows_from(outcome: Outcome) -> list[Row]:
    ours, theirs = outcome.series.get((CASE, SYPHON), {}), dict(outcome.series.get((CASE, LOOP), {}))
    rows = [Row(CASE, SYPHON, dict(ours))] if ours else []
    if ours and theirs:
        theirs["ratio"] = ours["rate"].over(theirs["rate"])
        theirs["cpu_ratio"] = ours["client_us"].over(theirs["client_us"])
        rows.append(Row(CASE, LOOP, theirs, Goal("ratio", at_least=GOAL)))
    return rows


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "The syphon against a plain loop", COLUMNS)
    Progress(NAME).show("starting the brokers", always=True)
    with PairbusServer(settings.data / "primary") as primary, PairbusServer(settings.data / "secondary") as secondary:
        await create_queues(primary, [DESTINATION])
        await create_queues(secondary, backlog_paths(QUEUES))
        home = await AmqpDriver.to_pairbus(primary, DESTINATION, send=False)
        try:
            steps = _steps(primary, secondary, home, settings)
            outcome = await run_rounds(steps, settings.rounds, Progress(NAME))
        finally:
            await home.close()
    table.rows = rows_from(outcome)
    table.notes.append(
        f"{settings.syphoned:,} messages of 1 KB in {QUEUES} backlog queues; the plain loop moves {settings.looped:,} "
        "of them, since its rate does not depend on how many there are. The syphon is `pairbus syphon --engine "
        "in-process --drain`; what it takes with nothing to move is taken off."
    )
    return table, outcome.failures
