"""Table `brokers`: persistent 1 KB messages, confirmed, against RabbitMQ and NATS JetStream and against the bare disk.

The same kind of driver for all: one connection, our wire client for both AMQP servers, a raw-socket client for NATS.
Servers run side by side through the whole table and rest while another is measured.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.amqp_driver import AmqpDriver, create_queues
from benchmarks.figures import Column, Goal, Row, Series, Table
from benchmarks.meter import Meter
from benchmarks.nats_driver import NatsDriver
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import NatsServer, PairbusServer, RabbitServer, Server, ServerMissing
from benchmarks.settings import BATCH, WINDOW, Settings, body

NAME = "brokers"
PAIRBUS = "pairbus"
RABBIT = ("RabbitMQ classic", "RabbitMQ quorum")
NATS = "NATS JetStream"
ONE, WINDOWED, BATCHED, RECEIVE = "one at a time", "1,000 in flight", "batches of 100", "receive + settle"
CASES = (ONE, WINDOWED, BATCHED, RECEIVE)
RATIO_GOALS = {ONE: 1.0, WINDOWED: 2.0, RECEIVE: 1.5}
BATCH_RATE_GOAL = 50_000.0

COLUMNS = (
    Column("rate", "messages", "rate"),
    Column("ratio", "pairbus ÷ it", "ratio"),
    Column("server_us", "server CPU", "us"),
    Column("client_us", "client CPU", "us"),
    Column("others", "others' CPU", "share"),
)


class Driver(Protocol):
    async def send(self, payload: bytes, count: int, window: int) -> None: ...
    async def receive(self, count: int, window: int) -> None: ...
    async def close(self) -> None: ...


class Contender:
    """A server, a driver to it, and what a power cut costs there."""

    def __init__(self, who: str, durability: str, server: Server | None, driver: Driver) -> None:
        self.who = who
        self.durability = durability
        self.pids = (server.pid,) if server else ()
        self.driver = driver


class Disk:
    """The floor under one at a time: 1 KB appended and fdatasynced, nothing else."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def send(self, payload: bytes, count: int, window: int) -> None:
        for _ in range(count):
            os.write(self._file, payload)
            os.fdatasync(self._file)

    async def receive(self, count: int, window: int) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        os.close(self._file)


async def open_contenders(stack: ExitStack, settings: Settings, notes: list[str]) -> list[Contender]:
    """Those whose servers are installed; a missing one becomes a note, or an error under PAIRBUS_REQUIRE=all."""
    if not settings.rivals:
        return await _pairbus(stack, settings.data)
    found: list[Contender] = []
    openers: tuple[Callable[[ExitStack, Path], Awaitable[list[Contender]]], ...] = (_pairbus, _rabbit, _nats)
    for opener in openers:
        try:
            found += await opener(stack, settings.data)
        except ServerMissing as missing:
            if os.environ.get("PAIRBUS_REQUIRE") == "all":
                raise
            notes.append(f"Left out: {missing}.")
    found.append(Contender("the disk", "append 1 KB + fdatasync", None, Disk(settings.data / "disk")))
    return found


async def _pairbus(stack: ExitStack, data: Path) -> list[Contender]:
    synced = "synced before the confirm; settlements synced within 100 ms"
    none = PairbusServer(data / "pairbus-none", "--durability", "none")
    return [
        await _broker(stack, PAIRBUS, synced, PairbusServer(data / "pairbus")),
        await _broker(stack, "pairbus, none", "nothing synced", none),
    ]


async def _broker(stack: ExitStack, who: str, durability: str, server: PairbusServer) -> Contender:
    stack.enter_context(server)
    await create_queues(server, ["bench"])
    return Contender(who, durability, server, await AmqpDriver.to_pairbus(server, "bench"))


async def _rabbit(stack: ExitStack, data: Path) -> list[Contender]:
    RabbitServer.version()
    server = RabbitServer(data / "rabbitmq", {"classic": "classic", "quorum": "quorum"})
    stack.enter_context(server)
    classic = "a sync per send, shared in flight; settlements synced rarely, as pairbus"
    quorum = "one node; a sync per send, shared in flight; settlements SYNCED TOO (pairbus: not)"
    return [
        Contender(who, durability, server, await AmqpDriver.to_rabbit(server, queue))
        for who, queue, durability in ((RABBIT[0], "classic", classic), (RABBIT[1], "quorum", quorum))
    ]


async def _nats(stack: ExitStack, data: Path) -> list[Contender]:
    server = NatsServer(data / "nats")
    stack.enter_context(server)
    driver = await NatsDriver.connect(server.port)
    await driver.create()
    durability = "NOT synced per message (2 min by default): compare with pairbus, none"
    return [Contender(NATS, durability, server, driver)]


def steps_for(contenders: list[Contender], settings: Settings) -> list[Step]:
    """Case by case, contender by contender within it; what a case sends, it takes away again. `receive` shares its
    step with the in-flight send, whose messages it receives."""
    payload = body()

    async def one(c: Contender) -> Mapping[Key, Metrics]:
        count = settings.one_at_a_time
        with Meter(*c.pids) as meter:
            await c.driver.send(payload, count, 1)
        if not isinstance(c.driver, Disk):
            await c.driver.receive(count, WINDOW)
        return {(ONE, c.who): meter.per_message(count)}

    async def windowed(c: Contender) -> Mapping[Key, Metrics]:
        count = settings.windowed
        with Meter(*c.pids) as sending:
            await c.driver.send(payload, count, WINDOW)
        with Meter(*c.pids) as receiving:
            await c.driver.receive(count, WINDOW)
        return {(WINDOWED, c.who): sending.per_message(count), (RECEIVE, c.who): receiving.per_message(count)}

    async def batched(c: Contender) -> Mapping[Key, Metrics]:
        count, driver = settings.batched, c.driver
        assert isinstance(driver, AmqpDriver)
        with Meter(*c.pids) as meter:
            await driver.send_batches(payload, count, BATCH, WINDOW)
        await driver.receive(count, WINDOW)
        return {(BATCHED, c.who): meter.per_message(count)}

    servers = [c for c in contenders if not isinstance(c.driver, Disk)]
    batching = [c for c in servers if isinstance(c.driver, AmqpDriver) and c.driver.batches]
    cases = (
        ("one", ONE, one, contenders),
        ("window", WINDOWED, windowed, servers),
        ("batch", BATCHED, batched, batching),
    )
    return [
        Step(f"{case} · {c.who}", partial(run, c))
        for slug, case, run, who in cases
        if settings.wants(NAME, slug) or (case == WINDOWED and settings.wants(NAME, "receive"))
        for c in who
    ]


def rows_from(outcome: Outcome, contenders: list[tuple[str, str]]) -> list[Row]:
    """Ratios against pairbus, round by round; goals stand in the row of the rival they name."""
    rows = []
    for case in CASES:
        ours = outcome.get(case, PAIRBUS, "rate")
        for who, durability in contenders:
            metrics = dict(outcome.series.get((case, who), {}))
            if not metrics:
                continue
            row = Row(case, who, metrics, label=durability)
            rate = metrics["rate"]
            if ours and who != PAIRBUS:
                metrics["ratio"] = ours.over(rate)
            if who in RABBIT and case in RATIO_GOALS:
                row.goal = Goal("ratio", at_least=RATIO_GOALS[case])
            if who == PAIRBUS and case == BATCHED:
                row.goal = Goal("rate", at_least=BATCH_RATE_GOAL)
            rows.append(row)
    return rows


def _batch_ratios(rows: list[Row], outcome: Outcome) -> list[Row]:
    """Neither rival has a batch that is confirmed as one; their in-flight rate is the nearest thing."""
    ours = outcome.get(BATCHED, PAIRBUS, "rate")
    if not ours:
        return []
    nearest = []
    for who in (*RABBIT, NATS):
        theirs = outcome.get(WINDOWED, who, "rate")
        if theirs:
            metrics: dict[str, Series] = {"ratio": ours.over(theirs)}
            nearest.append(Row(BATCHED, who, metrics, label="has no batches: against its 1,000 in flight"))
    return nearest


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "Persistent 1 KB messages, confirmed", COLUMNS)
    progress = Progress(NAME)
    progress.show("starting the servers", always=True)
    with ExitStack() as stack:
        contenders = await open_contenders(stack, settings, table.notes)
        try:
            outcome = await run_rounds(steps_for(contenders, settings), settings.rounds, progress)
        finally:
            for contender in contenders:
                await contender.driver.close()
            await asyncio.sleep(0)
    rows = rows_from(outcome, [(c.who, c.durability) for c in contenders])
    last = max((i for i, row in enumerate(rows) if row.case == BATCHED), default=-1)
    if last >= 0:
        rows[last + 1 : last + 1] = _batch_ratios(rows, outcome)
    table.rows = rows
    table.notes += [
        "The goals are held against both of RabbitMQ's durable queue types.",
        "receive + settle: credit for 1,000 ahead, every message settled and every answer awaited. AMQP: what arrives "
        "together is settled by one range; NATS: an ack for each.",
    ]
    return table, outcome.failures
