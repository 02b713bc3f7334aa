"""Table `spark`: the syphon on Spark against a plain loop with the official SDK and against our own in-process engine;
the connector's read and write. How it grows: table `scale`.

The brokers and Spark are processes of their own. Spark's session stands before the first round, as in a syphon that
runs all the time; what its start costs stands in the notes. A drain's time holds the start of its query and the look
that finds the queues empty.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from azure.servicebus import ServiceBusMessage

from benchmarks import syphon
from benchmarks.amqp_driver import AmqpDriver, create_queues
from benchmarks.figures import Column, Goal, Row, Table
from benchmarks.meter import cpu_seconds, process_tree
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import BATCH, MESSAGE_BYTES, WINDOW, Settings, body
from benchmarks.spark_host import SparkHost
from pairbus.pairing import backlog, diversion
from pairbus.wire import WireClient

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
    Column("mover_us", "mover's CPU", "us"),
    Column("brokers_us", "brokers' CPU", "us"),
)
PATHS = [backlog.path(syphon.PRIMARY_NAME, index) for index in range(QUEUES)]


class _Cpu:
    """CPU seconds of whole process trees, now."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids

    def read(self) -> float:
        return sum(cpu_seconds(each) for pid in self._pids for each in process_tree(pid))


class Bench:
    def __init__(self, primary: PairbusServer, secondary: PairbusServer) -> None:
        self.primary, self.secondary = primary, secondary
        self._brokers = _Cpu(primary.pid, secondary.pid)
        payload = body()
        # One batch for each destination, encoded once: what is measured is moving, not making.
        self._batches = [
            [diversion.encoded(diversion.divert(ServiceBusMessage(payload), name, now_unix=0.0)) for _ in range(BATCH)]
            for name in DESTINATIONS
        ]

    async def fill(self, total: int) -> int:
        """So many, in whole batches, over all queues and destinations."""
        sent = 0
        async with WireClient.from_connection_string(self.secondary.connection_string, timeout=120) as client:
            senders = [await client.sender(path) for path in PATHS]
            while sent < total:
                number = sent // BATCH
                await senders[number % QUEUES].send_batch(self._batches[number % len(DESTINATIONS)])
                sent += BATCH
        return sent

    async def empty(self, total: int) -> None:
        """Every message is at its destination, and gone for the next round."""
        batches = -(-total // BATCH)
        for index, name in enumerate(DESTINATIONS):
            home = await AmqpDriver.to_pairbus(self.primary, name, send=False)
            try:
                expected = sum(number % len(DESTINATIONS) == index for number in range(batches)) * BATCH
                if expected:
                    await home.receive(expected, WINDOW)
            finally:
                await home.close()

    async def timed(self, total: int, mover: _Cpu, work: Callable[[], Awaitable[object]]) -> Metrics:
        brokers, moving, begun = self._brokers.read(), mover.read(), time.perf_counter()
        await work()
        seconds = time.perf_counter() - begun
        return {
            "rate": total / seconds,
            "mover_us": (mover.read() - moving) / total * 1e6,
            "brokers_us": (self._brokers.read() - brokers) / total * 1e6,
        }

    def spark_step(self, host: SparkHost, case: str, who: str, count: int) -> Step:
        async def run() -> Mapping[Key, Metrics]:
            total = await self.fill(count)
            said: dict[str, float] = {}

            async def work() -> None:
                said.update(await self._drain(host))

            measured = await self.timed(total, _Cpu(host.pid), work)
            await self.empty(total)
            return {(case, who): {**measured, **flow(said)}}

        return Step(f"{case}: {who}", run)

    async def _drain(self, host: SparkHost) -> dict[str, float]:
        primary, secondary = self.primary.connection_string, self.secondary.connection_string
        return await asyncio.to_thread(host.ask, "drain", primary=primary, secondary=secondary, paths=PATHS)

    def engine_step(self, count: int) -> Step:
        async def run() -> Mapping[Key, Metrics]:
            total = await self.fill(count)
            measured = await self.timed(total, _Own(), lambda: syphon.by_engine(self.primary, self.secondary, PATHS))
            await self.empty(total)
            return {(HOME, ENGINE): measured}

        return Step(ENGINE, run)

    def loop_step(self, count: int) -> Step:
        async def run() -> Mapping[Key, Metrics]:
            total = await self.fill(count // (BATCH * QUEUES) * BATCH * QUEUES)
            measured = await self.timed(
                total, _Own(), lambda: syphon.by_loop(self.primary, self.secondary, PATHS, total // QUEUES)
            )
            await self.empty(total)
            return {(HOME, LOOP): measured}

        return Step(LOOP, run)

    def connector_step(self, host: SparkHost, count: int) -> Step:
        """Written, read without being taken, then taken away."""

        async def run() -> Mapping[Key, Metrics]:
            ns = self.primary.connection_string
            spark = _Cpu(host.pid)

            async def write() -> None:
                await asyncio.to_thread(
                    host.ask, "write", namespace=ns, entity=TABLE_ROWS, count=count, size=MESSAGE_BYTES
                )

            async def read() -> None:
                await asyncio.to_thread(host.ask, "read", namespace=ns, entity=TABLE_ROWS)

            written = await self.timed(count, spark, write)
            found = await self.timed(count, spark, read)
            driver = await AmqpDriver.to_pairbus(self.primary, TABLE_ROWS, send=False)
            try:
                await driver.receive(count, WINDOW)
            finally:
                await driver.close()
            return {(WRITE, "append"): written, (READ, "all columns"): found}

        return Step("connector", run)


def flow(said: Mapping[str, float]) -> Metrics:
    """When a drain's first message was confirmed, and the rate after its first batch, if there was a second one."""
    later = {"flowing": said["later"] / said["later_s"]} if said["later_s"] > 0 else {}
    return {"first_s": said["first_s"], **later}


class _Own(_Cpu):
    """This process's."""

    def __init__(self) -> None:
        super().__init__()

    def read(self) -> float:
        return time.process_time()


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
        "The mover's CPU is the engine's or the loop's process; for Spark the driver, the JVM and the Python workers. "
        "All of it, the two brokers too, shares the machine's cores.",
    ]
    return table, outcome.failures
