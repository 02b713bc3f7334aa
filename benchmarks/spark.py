"""Table `spark`: the syphon on Spark against a plain loop with the official SDK and against our own in-process engine;
the connector's read and write. How it grows: table `scale`.

The brokers and Spark are processes of their own. Spark's session stands before the first round, as in a syphon that
runs all the time; what its start costs stands in the notes. A drain's time holds the start of its query and the look
that finds the queues empty; of the in-process engine's, which is the command `pairbus syphon`, those are taken off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from benchmarks import syphon
from benchmarks.amqp_driver import AmqpDriver, create_queues
from benchmarks.figures import Column, Goal, Row, Table
from benchmarks.meter import Reading
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import BATCH, MESSAGE_BYTES, WINDOW, Settings
from benchmarks.spark_host import SparkHost

NAME = "spark"
HOME, DEPTH, EXECUTORS, READ, WRITE, START = (
    "backlog to primary", "by backlog", "by executors", "connector: read", "connector: write", "start-up",
)  # fmt: skip
SPARK, ENGINE, LOOP = "Spark syphon", "in-process engine", "plain SDK loop"
GOAL, READ_GOAL, WRITE_GOAL = 3.0, 20_000.0, 15_000.0
LOCAL = "local[2,4]"
QUEUES = 10
DESTINATIONS = ("orders", "news", "bills")
TABLE_ROWS = "rows"
COLUMNS = (
    Column("rate", "messages", "rate"),
    Column("ratio", "Spark ÷ it", "ratio"),
    Column("client_us", "mover's CPU", "us"),
    Column("server_us", "brokers' CPU", "us"),
)
PATHS = syphon.backlog_paths(QUEUES)


class Bench:
    def __init__(self, primary: PairbusServer, secondary: PairbusServer) -> None:
        self.primary, self.secondary = primary, secondary

    async def fill(self, total: int) -> None:
        await syphon.fill(self.secondary, PATHS, DESTINATIONS, total)

    async def empty(self, total: int) -> None:
        """Every message is at its destination, and gone for the next round."""
        for index, name in enumerate(DESTINATIONS):
            expected = len(range(index, total // BATCH, len(DESTINATIONS))) * BATCH
            if expected:
                await self._take(name, expected)

    async def _take(self, entity: str, count: int) -> None:
        driver = await AmqpDriver.to_pairbus(self.primary, entity, send=False)
        try:
            await driver.receive(count, WINDOW)
        finally:
            await driver.close()

    async def metered(self, work: Callable[[], Awaitable[object]], host: SparkHost | None = None) -> Reading:
        client = None if host is None else host.pid
        return await syphon.metered(work, self.primary.pid, self.secondary.pid, client=client)

    def spark_step(self, host: SparkHost, case: str, who: str, count: int) -> Step:
        async def run() -> Mapping[Key, Metrics]:
            await self.fill(count)
            said: dict[str, float] = {}

            async def work() -> None:
                said.update(await self._drain(host))

            reading = await self.metered(work, host)
            await self.empty(count)
            return {(case, who): {**reading.per_message(count), **flow(said)}}

        return Step(f"{case}: {who}", run)

    async def _drain(self, host: SparkHost) -> dict[str, float]:
        namespaces = {"primary": self.primary.connection_string, "secondary": self.secondary.connection_string}
        return await asyncio.to_thread(host.ask, "drain", **namespaces, primary_name=syphon.PRIMARY_NAME, count=QUEUES)

    def engine_step(self, count: int) -> Step:
        async def run() -> Mapping[Key, Metrics]:
            drain = partial(syphon.by_engine, self.primary, self.secondary, QUEUES)
            start = await self.metered(drain)
            await self.fill(count)
            reading = await self.metered(drain)
            await self.empty(count)
            return {(HOME, ENGINE): reading.without(start).per_message(count)}

        return Step(ENGINE, run)

    def loop_step(self, count: int) -> Step:
        async def run() -> Mapping[Key, Metrics]:
            await self.fill(count)
            reading = await self.metered(partial(syphon.by_loop, self.primary, self.secondary, PATHS, count // QUEUES))
            await self.empty(count)
            return {(HOME, LOOP): reading.per_message(count)}

        return Step(LOOP, run)

    def connector_step(self, host: SparkHost, count: int) -> Step:
        """Written, read without being taken, then taken away."""
        where = {"namespace": self.primary.connection_string, "entity": TABLE_ROWS}

        async def run() -> Mapping[Key, Metrics]:
            write = partial(asyncio.to_thread, host.ask, "write", **where, count=count, size=MESSAGE_BYTES)
            written = await self.metered(write, host)
            found = await self.metered(partial(asyncio.to_thread, host.ask, "read", **where), host)
            await self._take(TABLE_ROWS, count)
            return {(WRITE, "append"): written.per_message(count), (READ, "all columns"): found.per_message(count)}

        return Step("connector", run)


def flow(said: Mapping[str, float]) -> Metrics:
    """When a drain's first messages were confirmed, and the rate after them, if there were more."""
    later = {"flowing": said["later"] / said["later_s"]} if said["later_s"] > 0 else {}
    return {"first_s": said["first_s"], **later}


def rows_from(outcome: Outcome) -> list[Row]:
    rows = []
    spark = outcome.series.get((HOME, SPARK), {})
    for who in (SPARK, ENGINE, LOOP):
        metrics = dict(outcome.series.get((HOME, who), {}))
        if not metrics:
            continue
        goal = None
        if spark and who != SPARK:
            metrics["ratio"] = spark["rate"].over(metrics["rate"])
            goal = Goal("ratio", at_least=GOAL) if who == LOOP else None
        rows.append(Row(HOME, who, metrics, goal))
    for case, bound in ((READ, READ_GOAL), (WRITE, WRITE_GOAL)):
        rows += [
            Row(case, who, dict(metrics), Goal("rate", at_least=bound))
            for (found, who), metrics in outcome.series.items()
            if found == case
        ]
    return rows


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "The syphon and the connector on Spark", COLUMNS)
    progress = Progress(NAME)
    progress.show("starting the brokers and Spark", always=True)
    outcome = Outcome()
    with PairbusServer(settings.data / "primary") as primary, PairbusServer(settings.data / "secondary") as secondary:
        await create_queues(primary, [*DESTINATIONS, TABLE_ROWS])
        await create_queues(secondary, PATHS)
        bench = Bench(primary, secondary)
        with SparkHost(LOCAL) as host:
            steps = []
            if settings.wants(NAME, "home"):
                steps += [
                    bench.spark_step(host, HOME, SPARK, settings.spark_messages),
                    bench.engine_step(settings.spark_messages),
                    bench.loop_step(settings.spark_looped),
                ]
            if settings.wants(NAME, "connector"):
                steps.append(bench.connector_step(host, settings.spark_messages))
            outcome = await run_rounds(steps, settings.rounds, progress)
    table.rows = rows_from(outcome)
    table.notes += [
        f"{settings.spark_messages:,} messages of 1 KB, {QUEUES} backlog queues, {len(DESTINATIONS)} destinations; the "
        f"plain loop moves {settings.spark_looped:,} of them, since its rate does not depend on how many there are.",
        f"Spark on {LOCAL}. Its start-up, {host.start_s:.1f} s to the end of the first job, is not in the rates.",
        "The in-process engine's figures are without what `pairbus syphon` takes with nothing to move.",
        "The mover's CPU is the engine's or the loop's process; for Spark the driver, the JVM and the Python workers. "
        "All of it, the two brokers too, shares the machine's cores.",
    ]
    return table, outcome.failures
