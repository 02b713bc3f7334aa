"""Table `sdk`: the unmodified official SDK against our broker, with both sides' CPU and the server's share of it.

One sender, one receiver, SDK defaults. The sync client is driven on this thread while nothing else runs here, so that
this process's CPU is the client's.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from benchmarks.amqp_driver import create_queues
from benchmarks.figures import Column, Goal, Row, Table
from benchmarks.meter import Meter
from benchmarks.rounds import Key, Metrics, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import BATCH, Settings, body

NAME = "sdk"
SINGLE, LISTED, RECEIVE = "single sends", "lists of 100", "receive + complete"
SHARE_GOALS = {SINGLE: 1 / 2, LISTED: 1 / 3, RECEIVE: 1 / 3}
COLUMNS = (
    Column("rate", "messages", "rate"),
    Column("client_us", "client CPU", "us"),
    Column("server_us", "server CPU", "us"),
    Column("share", "server's share", "share"),
    Column("others", "others' CPU", "share"),
)
RECEIVE_WAIT_S = 20
Send = Callable[[bytes, int], Awaitable[None]]


async def done(result: Any) -> Any:
    """Return what a call of either API gives."""
    return await result if inspect.isawaitable(result) else result


async def entered(stack: AsyncExitStack, context: Any) -> Any:
    """Enter a client, sender or receiver of either API."""
    return await done(
        stack.enter_async_context(context) if hasattr(context, "__aenter__") else stack.enter_context(context)
    )


def sends(sender: Any) -> dict[str, Send]:
    async def single(payload: bytes, count: int) -> None:
        for _ in range(count):
            await done(sender.send_messages(ServiceBusMessage(payload)))

    async def listed(payload: bytes, count: int) -> None:
        for _ in range(count // BATCH):
            await done(sender.send_messages([ServiceBusMessage(payload) for _ in range(BATCH)]))

    return {SINGLE: single, LISTED: listed}


def _with_share(metrics: Mapping[str, float]) -> dict[str, float]:
    both = metrics["server_us"] + metrics["client_us"]
    return {**metrics, "share": metrics["server_us"] / both}


async def _receive(receiver: Any, left: int) -> None:
    while left:
        messages = await done(
            receiver.receive_messages(max_message_count=min(BATCH, left), max_wait_time=RECEIVE_WAIT_S)
        )
        if not messages:
            raise RuntimeError(f"{left} messages did not come within {RECEIVE_WAIT_S} s")
        for message in messages:
            await done(receiver.complete_message(message))
        left -= len(messages)


def _step(case: str, who: str, sender: Any, receiver: Any, pid: int, count: int) -> Step:
    payload, send = body(), sends(sender)[case]

    async def run() -> Mapping[Key, Metrics]:
        with Meter(pid) as sending:
            await send(payload, count)
        with Meter(pid) as receiving:
            await _receive(receiver, count)
        measured = {(case, who): _with_share(sending.per_message(count))}
        if case == LISTED:  # the larger number of the two to receive
            measured[RECEIVE, who] = _with_share(receiving.per_message(count))
        return measured

    return Step(f"{case} · {who}", run)


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "Through the official SDK", COLUMNS)
    progress = Progress(NAME)
    progress.show("starting the broker", always=True)
    kinds = {"sync": ServiceBusClient, "async": AsyncServiceBusClient}
    steps = []
    with PairbusServer(settings.data / "sdk") as server:
        async with AsyncExitStack() as stack:
            await create_queues(server, list(kinds))
            for queue, kind in kinds.items():
                client = await entered(stack, kind.from_connection_string(server.connection_string))  # type: ignore[attr-defined]
                sender = await entered(stack, client.get_queue_sender(queue))
                receiver = await entered(stack, client.get_queue_receiver(queue))
                for case, count in ((SINGLE, settings.sdk_single), (LISTED, settings.sdk_listed)):
                    steps.append(_step(case, f"SDK {queue}", sender, receiver, server.pid, count))
            outcome = await run_rounds(steps, settings.rounds, progress)
    for case in (SINGLE, LISTED, RECEIVE):
        for queue in kinds:
            if metrics := outcome.series.get((case, f"SDK {queue}")):
                table.rows.append(Row(case, f"SDK {queue}", dict(metrics), Goal("share", below=SHARE_GOALS[case])))
    table.notes.append("The server's share is its part of the CPU that client and server spend on a message.")
    return table, outcome.failures
