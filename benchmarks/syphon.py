"""Table `syphon`: the in-process syphon against a plain loop with the official SDK, on the same backlog.

Both empty the same number of backlog queues into one destination: the brokers are processes of their own, the mover
is this process. The plain loop is what one would write: receive a hundred, send them as a list, complete each, one
task for each queue. It does less than the syphon (it restores no session, schedule or time to live, and what it sends
is no longer exact), and nobody stops it from losing order or doubling what it was at when it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from benchmarks.amqp_driver import AmqpDriver, create_queues
from benchmarks.figures import Column, Goal, Row, Table
from benchmarks.meter import Meter
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import BATCH, WINDOW, Settings, body
from pairbus.pairing import backlog, diversion
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import SyphonEngine
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
PATHS = [backlog.path(PRIMARY_NAME, index) for index in range(QUEUES)]


async def _fill(secondary: PairbusServer, payload: bytes, each: int) -> None:
    """As paired senders would: diverted messages with ids of their own, spread over the queues."""
    async with WireClient.from_connection_string(secondary.connection_string, timeout=120) as client:
        for path in PATHS:
            sender = await client.sender(path)
            for _ in range(0, each, BATCH):
                messages = [ServiceBusMessage(payload) for _ in range(BATCH)]
                encoded = [
                    diversion.encoded(diversion.divert(message, DESTINATION, now_unix=0.0)) for message in messages
                ]
                await sender.send_batch(encoded)


async def by_engine(primary: PairbusServer, secondary: PairbusServer, paths: Sequence[str]) -> None:
    engine = SyphonEngine(
        Endpoint.from_connection_string(primary.connection_string),
        Endpoint.from_connection_string(secondary.connection_string),
        [(path, index) for index, path in enumerate(paths)],
        drain=True,
    )
    outcome = await engine.run()
    if outcome.unavailable:
        raise RuntimeError(f"left behind: {outcome.unavailable}")


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
        found.setdefault(path.decode() if isinstance(path, bytes) else path, []).append(
            ServiceBusMessage(b"".join(message.body), message_id=message.message_id, application_properties=properties)
        )
    return found


def _steps(primary: PairbusServer, secondary: PairbusServer, home: AmqpDriver, settings: Settings) -> list[Step]:
    payload = body()
    each = settings.syphoned // QUEUES // BATCH * BATCH
    total = each * QUEUES

    def step(who: str) -> Step:
        async def run() -> Mapping[Key, Metrics]:
            await _fill(secondary, payload, each)
            with Meter(None) as meter:
                if who == SYPHON:
                    await by_engine(primary, secondary, PATHS)
                else:
                    await by_loop(primary, secondary, PATHS, each)
            await home.receive(total, WINDOW)  # all of it is there, and gone for the next
            return {(CASE, who): meter.per_message(total)}

        return Step(who, run)

    return [step(SYPHON), step(LOOP)]


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
        await create_queues(secondary, PATHS)
        home = await AmqpDriver.to_pairbus(primary, DESTINATION, send=False)
        try:
            steps = _steps(primary, secondary, home, settings)
            outcome = await run_rounds(steps, settings.rounds, Progress(NAME))
        finally:
            await home.close()
    table.rows = rows_from(outcome)
    table.notes.append(
        f"{settings.syphoned:,} messages of 1 KB in {QUEUES} backlog queues. The time begins with opening connections "
        "and ends when the last message is completed; for the syphon also with the look that finds the queues empty."
    )
    return table, outcome.failures
