"""Table `growth`: what more messages in a queue, and more queues and connections, do to rate, memory and restart.

Depth: a fresh broker each time; filled, weighed, killed with -9, started again (timed to its ready line), weighed,
emptied. Crowd: one broker with many queues; each round opens as many connections, each sends to a queue of its own, one
message at a time, while a bystander in another process minds its own business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from benchmarks.amqp_driver import AmqpDriver, create_queues
from benchmarks.bystander import Bystander
from benchmarks.figures import Column, Goal, Row, Table
from benchmarks.meter import Meter, process_tree, resident_bytes
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import BATCH, WINDOW, Settings, body

NAME = "growth"
MEMORY_BYTES_GOAL = 800e6
RESTART_S_GOAL = 20.0
DEEPEST = 1_000_000
COLUMNS = (
    Column("rate", "messages", "rate"),
    Column("ratio", "÷ shallowest", "ratio"),
    Column("server_us", "server CPU", "us"),
    Column("client_us", "client CPU", "us"),
    Column("memory", "resident", "mb"),
    Column("memory_each", "per message", "bytes"),
    Column("seconds", "time", "s"),
    Column("p50", "bystander p50", "ms"),
    Column("p99", "bystander p99", "ms"),
    Column("others", "others' CPU", "share"),
)
FILL, MEMORY, RESTART, AFTER, EMPTY = (
    "send (batches of 100)",
    "memory when full",
    "restart after kill -9",
    "memory after restart",
    "receive + settle",
)
ALONE = "bystander alone"
OPEN, CROWD_SEND, CROWD_MEMORY, CROWD_RECEIVE = "connect + attach", "send", "memory", "receive + settle"


def _depth_step(depth: int, settings: Settings) -> Step:
    who = f"{depth:,} messages"
    payload = body()
    folder = settings.data / f"depth-{depth}"

    async def run() -> Mapping[Key, Metrics]:
        measured: dict[Key, Metrics] = {}
        server = PairbusServer(folder)
        with server:
            await create_queues(server, ["deep"])
            empty = resident_bytes(process_tree(server.pid))
            driver = await AmqpDriver.to_pairbus(server, "deep", receive=False)
            with Meter(server.pid) as filling:
                await driver.send_batches(payload, depth, BATCH, WINDOW)
            measured[FILL, who] = filling.per_message(depth)
            full = resident_bytes(process_tree(server.pid))
            measured[MEMORY, who] = {"memory": full, "memory_each": max(0, full - empty) / depth}
            await driver.close()
            server.kill()
            server.start()
            measured[RESTART, who] = {"seconds": server.ready_s}
            again = resident_bytes(process_tree(server.pid))
            measured[AFTER, who] = {"memory": again, "memory_each": max(0, again - empty) / depth}
            driver = await AmqpDriver.to_pairbus(server, "deep")
            with Meter(server.pid) as emptying:
                await driver.receive(depth, WINDOW)
            measured[EMPTY, who] = emptying.per_message(depth)
            await driver.close()
        return measured

    return Step(who, run)


class Crowd:
    """One broker, many queues; connections come and go with each round."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.server = PairbusServer(settings.data / "crowd")
        self.queues = [f"crowd-{number}" for number in range(settings.crowd)]
        self.who = f"{settings.crowd:,} queues and connections"

    async def _connect(self) -> list[AmqpDriver]:
        """50 at a time: a listen queue holds no thousand."""
        gate = asyncio.Semaphore(50)

        async def one(queue: str) -> AmqpDriver:
            async with gate:
                return await AmqpDriver.to_pairbus(self.server, queue)

        return list(await asyncio.gather(*(one(queue) for queue in self.queues)))

    async def run(self, bystander: Bystander) -> Mapping[Key, Metrics]:
        pid = self.server.pid
        payload = body()
        alone = await bystander.latency_ms(self.settings.crowd_s)
        started = time.perf_counter()
        drivers = await self._connect()
        opened_s = time.perf_counter() - started
        try:
            # the crowd is busy for as long as the bystander watches, and no longer
            watched = asyncio.ensure_future(bystander.latency_ms(self.settings.crowd_s))

            async def send(driver: AmqpDriver) -> int:
                sent = 0
                while not sent or not watched.done():
                    await driver.send(payload, 1, 1)
                    sent += 1
                return sent

            with Meter(pid) as sending:
                sent = await asyncio.gather(*(send(driver) for driver in drivers))
            memory = resident_bytes(process_tree(pid))
            crowded = await watched
            with Meter(pid) as receiving:
                await asyncio.gather(*(d.receive(count, count) for d, count in zip(drivers, sent, strict=True)))
        finally:
            await asyncio.gather(*(driver.close() for driver in drivers))
        return {
            (OPEN, self.who): {"rate": len(drivers) / opened_s, "seconds": opened_s},
            (CROWD_SEND, self.who): {**sending.per_message(sum(sent)), "p50": crowded["p50"], "p99": crowded["p99"]},
            (CROWD_MEMORY, self.who): {"memory": memory},
            (CROWD_RECEIVE, self.who): receiving.per_message(sum(sent)),
            (ALONE, self.who): {"p50": alone["p50"], "p99": alone["p99"]},
        }


async def _measure_depths(settings: Settings) -> Outcome:
    steps = [_depth_step(depth, settings) for depth in settings.depths]
    # each step starts from nothing: there is nothing to warm up
    return await run_rounds(steps, settings.rounds, Progress(NAME), warm_up=False)


async def _measure_crowd(settings: Settings) -> Outcome:
    crowd = Crowd(settings)
    progress = Progress(f"{NAME}, crowd")
    progress.show(f"making {settings.crowd} queues", always=True)
    with crowd.server:
        await create_queues(crowd.server, [*crowd.queues, "bystander"])
        with Bystander(crowd.server.connection_string, "bystander") as bystander:
            return await run_rounds(
                [Step(crowd.who, lambda: crowd.run(bystander))], settings.rounds, progress, warm_up=not settings.quick
            )


def _rows(depths: Outcome, crowd: Outcome, settings: Settings) -> list[Row]:
    rows = []
    names = [(depth, f"{depth:,} messages") for depth in settings.depths]
    for case in (FILL, EMPTY, MEMORY, RESTART, AFTER):
        shallow = depths.get(case, names[0][1], "rate")
        for depth, who in names:
            metrics = dict(depths.series.get((case, who), {}))
            if not metrics:
                continue
            if shallow and who != names[0][1]:
                metrics["ratio"] = metrics["rate"].over(shallow)
            goal = None
            if depth == DEEPEST and case in (MEMORY, AFTER):
                goal = Goal("memory", below=MEMORY_BYTES_GOAL)
            if depth == DEEPEST and case == RESTART:
                goal = Goal("seconds", below=RESTART_S_GOAL)
            rows.append(Row(case, who, metrics, goal))
    for case in (OPEN, CROWD_SEND, CROWD_RECEIVE, CROWD_MEMORY, ALONE):
        for (found, who), metrics in crowd.series.items():
            if found == case:
                rows.append(Row(f"crowd: {case}", who, dict(metrics)))
    return rows


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "How cost grows", COLUMNS)
    nothing = Outcome()
    depths = await _measure_depths(settings) if settings.wants(NAME, "depth") else nothing
    crowd = await _measure_crowd(settings) if settings.wants(NAME, "crowd") else nothing
    table.rows = _rows(depths, crowd, settings)
    table.notes += [
        "Depth: 1 KB messages in one queue; restart is from the start of the process to its ready line.",
        f"Crowd: a queue and a connection each for {settings.crowd:,} senders, one message at a time; "
        "connect + attach counts TCP, SASL, $cbs and both links. The bystander sends, receives and settles one at a "
        "time in a process of its own.",
    ]
    return table, depths.failures + crowd.failures
