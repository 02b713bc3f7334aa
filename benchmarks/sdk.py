"""Table `sdk`: the unmodified official SDK against our broker, with both sides' CPU and the server's share of it.

One sender, one receiver, SDK defaults. The sync client is driven on this thread while nothing else runs here, so that
this process's CPU is the client's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio import ServiceBusReceiver as AsyncReceiver
from azure.servicebus.aio import ServiceBusSender as AsyncSender

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


def _with_share(metrics: Mapping[str, float]) -> dict[str, float]:
    both = metrics["server_us"] + metrics["client_us"]
    return {**metrics, "share": metrics["server_us"] / both}


def sync_sends(sender: Any) -> dict[str, Send]:
    async def single(payload: bytes, count: int) -> None:
        for _ in range(count):
            sender.send_messages(ServiceBusMessage(payload))

    async def listed(payload: bytes, count: int) -> None:
        for _ in range(count // BATCH):
            sender.send_messages([ServiceBusMessage(payload) for _ in range(BATCH)])

    return {SINGLE: single, LISTED: listed}


def async_sends(sender: Any) -> dict[str, Send]:
    async def single(payload: bytes, count: int) -> None:
        for _ in range(count):
            await sender.send_messages(ServiceBusMessage(payload))

    async def listed(payload: bytes, count: int) -> None:
        for _ in range(count // BATCH):
            await sender.send_messages([ServiceBusMessage(payload) for _ in range(BATCH)])

    return {SINGLE: single, LISTED: listed}


class SyncSide:
    who = "SDK sync"

    def __init__(self, stack: ExitStack, server: PairbusServer, queue: str) -> None:
        client = stack.enter_context(ServiceBusClient.from_connection_string(server.connection_string))
        self.sends = sync_sends(stack.enter_context(client.get_queue_sender(queue)))
        self._receiver = stack.enter_context(client.get_queue_receiver(queue))

    async def receive(self, count: int) -> int:
        messages = self._receiver.receive_messages(max_message_count=count, max_wait_time=RECEIVE_WAIT_S)
        for message in messages:
            self._receiver.complete_message(message)
        return len(messages)


class AsyncSide:
    who = "SDK async"

    def __init__(self, sender: AsyncSender, receiver: AsyncReceiver) -> None:
        self.sends = async_sends(sender)
        self._receiver = receiver

    @classmethod
    async def open(cls, stack: AsyncExitStack, server: PairbusServer, queue: str) -> AsyncSide:
        client = await stack.enter_async_context(AsyncServiceBusClient.from_connection_string(server.connection_string))
        sender = await stack.enter_async_context(client.get_queue_sender(queue))
        return cls(sender, await stack.enter_async_context(client.get_queue_receiver(queue)))

    async def receive(self, count: int) -> int:
        messages = await self._receiver.receive_messages(max_message_count=count, max_wait_time=RECEIVE_WAIT_S)
        for message in messages:
            await self._receiver.complete_message(message)
        return len(messages)


def _steps(side: SyncSide | AsyncSide, pid: int, settings: Settings) -> list[Step]:
    payload, who = body(), side.who

    def step(case: str, count: int) -> Step:
        async def run() -> Mapping[Key, Metrics]:
            with Meter(pid) as sending:
                await side.sends[case](payload, count)
            left = count
            with Meter(pid) as receiving:
                while left:
                    received = await side.receive(min(BATCH, left))
                    if not received:
                        raise RuntimeError(f"{left} messages did not come within {RECEIVE_WAIT_S} s")
                    left -= received
            measured = {(case, who): _with_share(sending.per_message(count))}
            if case == LISTED:  # the larger number of the two to receive
                measured[RECEIVE, who] = _with_share(receiving.per_message(count))
            return measured

        return Step(f"{case} · {who}", run)

    return [step(SINGLE, settings.sdk_single), step(LISTED, settings.sdk_listed)]


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "Through the official SDK", COLUMNS)
    progress = Progress(NAME)
    progress.show("starting the broker", always=True)
    with PairbusServer(settings.data / "sdk") as server, ExitStack() as stack:
        async with AsyncExitStack() as async_stack:
            await create_queues(server, ["sync", "async"])
            sides = (SyncSide(stack, server, "sync"), await AsyncSide.open(async_stack, server, "async"))
            steps = [step for side in sides for step in _steps(side, server.pid, settings)]
            outcome = await run_rounds(steps, settings.rounds, progress)
    for case in (SINGLE, LISTED, RECEIVE):
        for side in sides:
            if metrics := outcome.series.get((case, side.who)):
                table.rows.append(Row(case, side.who, dict(metrics), Goal("share", below=SHARE_GOALS[case])))
    table.notes.append("The server's share is its part of the CPU that client and server spend on a message.")
    return table, outcome.failures
