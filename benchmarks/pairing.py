"""Table `pairing`: what pairing costs while the primary is healthy, against the bare SDK on the same broker.

Bare and paired senders take turns in short stretches within each round (A B, B A, A B …), so that what slows the
machine down for a moment hits both; what is compared is the sum of their stretches. The primary and the secondary are
processes of their own. Memory: a fresh process for each kind, weighed before and after it opened its senders and sent
one message with each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

import pairbus
import pairbus.aio
from benchmarks.amqp_driver import AmqpDriver, create_queues
from benchmarks.figures import Column, Goal, Row, Table
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.sdk import LISTED, SINGLE, Send, entered, sends
from benchmarks.servers import Helper, PairbusServer
from benchmarks.settings import BATCH, WINDOW, Settings, body

NAME = "pairing"
MEMORY = "memory of a sender"
BARE, PAIRED = "bare", "paired"
APIS = ("sync", "async")
RATIO_GOAL = 0.98
CPU_GOAL = 1.03
TURNS = 6  # stretches of each in a round
COLUMNS = (
    Column("rate", "messages", "rate"),
    Column("ratio", "paired ÷ bare", "ratio"),
    Column("client_us", "client CPU", "us"),
    Column("cpu_ratio", "CPU, paired ÷ bare", "ratio"),
    Column("memory", "memory each", "bytes"),
    Column("memory_ratio", "memory, paired ÷ bare", "ratio"),
)


def options(primary_name: str) -> dict[str, Any]:
    return {"primary_name": primary_name, "backlog_queue_count": 2}


class Stretches:
    """The time and CPU of one contender, summed up over its turns."""

    def __init__(self) -> None:
        self._seconds = self._cpu = 0.0
        self._messages = 0

    async def add(self, send: Send, payload: bytes, count: int) -> None:
        cpu, start = time.process_time(), time.perf_counter()
        await send(payload, count)
        self._seconds += time.perf_counter() - start
        self._cpu += time.process_time() - cpu
        self._messages += count

    def metrics(self) -> dict[str, float]:
        return {"rate": self._messages / self._seconds, "client_us": self._cpu / self._messages * 1e6}


def _step(case: str, api: str, bare: Send, paired: Send, drain: Callable[[int], Awaitable[None]], count: int) -> Step:
    payload = body()
    each = max(BATCH if case == LISTED else 1, count // TURNS)

    async def run() -> Mapping[Key, Metrics]:
        sums = {BARE: Stretches(), PAIRED: Stretches()}
        for turn in range(TURNS):
            order = [(BARE, bare), (PAIRED, paired)]
            for who, send in order[::-1] if turn % 2 else order:
                await sums[who].add(send, payload, each)
        await drain(2 * TURNS * each)
        return {(case, f"{who} {api}"): sums[who].metrics() for who in (BARE, PAIRED)}

    return Step(f"{case} · {api}", run)


async def _measure_cost(primary: PairbusServer, secondary: PairbusServer, settings: Settings) -> Outcome:
    text = primary.connection_string
    # a sync paired client and an async one share the backlog queues: what they are called does not matter here
    paired = {"secondary": secondary.connection_string, "ca_file": secondary.ca_file, **options("bench")}
    async with AsyncExitStack() as stack:
        clients = {
            (BARE, "sync"): ServiceBusClient.from_connection_string(text),
            (PAIRED, "sync"): pairbus.ServiceBusClient.paired(text, **paired),
            (BARE, "async"): AsyncServiceBusClient.from_connection_string(text),
            (PAIRED, "async"): await pairbus.aio.ServiceBusClient.paired(text, **paired),
        }
        sending: dict[tuple[str, str], dict[str, Send]] = {}
        for (who, api), client in clients.items():
            sender = (await entered(stack, client)).get_queue_sender(api)
            sending[who, api] = sends(await entered(stack, sender))
        steps = []
        for api in APIS:
            driver = await AmqpDriver.to_pairbus(primary, api, send=False)
            stack.push_async_callback(driver.close)
            for case, count in ((SINGLE, settings.paired_single), (LISTED, settings.paired_listed)):
                bare, pair = sending[BARE, api][case], sending[PAIRED, api][case]
                steps.append(_step(case, api, bare, pair, partial(driver.receive, window=WINDOW), count))
        return await run_rounds(steps, settings.rounds, Progress(NAME))


def _memory_step(kind: str, primary: PairbusServer, secondary: PairbusServer, settings: Settings) -> Step:
    async def run() -> Mapping[Key, Metrics]:
        with Helper("benchmarks.sender_memory", kind, str(settings.weighed_senders)) as weighing:
            for line in (primary.connection_string, secondary.connection_string, secondary.ca_file):
                weighing.tell(line)
            weight = await asyncio.to_thread(weighing.hear)
        if not weight:
            raise RuntimeError(f"benchmarks.sender_memory ended with {weighing.wait()}")
        return {(MEMORY, f"{kind} async"): {"memory": float(weight)}}

    return Step(f"{MEMORY} · {kind}", run)


def rows_from(outcome: Outcome, cases: tuple[str, ...] = (SINGLE, LISTED, MEMORY)) -> list[Row]:
    """Paired against bare, round by round; two goals need two rows."""
    rows = []
    for case in cases:
        for api in APIS:
            bare = outcome.series.get((case, f"{BARE} {api}"), {})
            paired = dict(outcome.series.get((case, f"{PAIRED} {api}"), {}))
            if not bare or not paired:
                continue
            rows.append(Row(case, f"{BARE} {api}", dict(bare)))
            if case == MEMORY:
                paired["memory_ratio"] = paired["memory"].over(bare["memory"])
                rows.append(Row(case, f"{PAIRED} {api}", paired))
                continue
            paired["ratio"] = paired["rate"].over(bare["rate"])
            rows.append(Row(case, f"{PAIRED} {api}", paired, Goal("ratio", at_least=RATIO_GOAL)))
            cpu = {"cpu_ratio": paired["client_us"].over(bare["client_us"])}
            rows.append(Row(case, f"{PAIRED} {api}, CPU", cpu, Goal("cpu_ratio", below=CPU_GOAL)))
    return rows


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "Paired against the bare SDK, primary healthy", COLUMNS)
    Progress(NAME).show("starting the brokers", always=True)
    outcome, memory = Outcome(), Outcome()
    with PairbusServer(settings.data / "primary") as primary, PairbusServer(settings.data / "secondary") as secondary:
        await create_queues(primary, ["sync", "async", "weighed"])
        if settings.wants(NAME, "cost"):
            outcome = await _measure_cost(primary, secondary, settings)
        if settings.wants(NAME, "memory"):
            steps = [_memory_step(kind, primary, secondary, settings) for kind in (BARE, PAIRED)]
            memory = await run_rounds(steps, settings.rounds, Progress(f"{NAME}, memory"), warm_up=False)
    table.rows = rows_from(outcome) + rows_from(memory)
    table.notes += [
        f"1 KB messages, one sender, both kinds to the same queue; bare and paired in turns of "
        f"{settings.paired_single // TURNS} sends, or {settings.paired_listed // TURNS // BATCH} lists.",
        f"Memory: what a process grows by when it opens {settings.weighed_senders} senders and sends a message with "
        "each, divided by their number.",
    ]
    return table, outcome.failures + memory.failures
