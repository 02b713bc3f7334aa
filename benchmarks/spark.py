"""Table `spark`: the syphon on Spark against a plain loop with the official SDK and against our own in-process engine;
the connector's read and write. How it grows: table `scale`.

The brokers and Spark are processes of their own. Spark's session stands before the first round, as in a syphon that
runs all the time; its start is shown apart. A drain's time holds the start of its query and the look
that finds the queues empty; of the in-process engine's, which is the command `pairbus syphon`, those are taken off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from benchmarks import syphon
from benchmarks.amqp_driver import AmqpDriver, create_queues
from benchmarks.figures import Column, Goal, Row, Table
from benchmarks.meter import Reading, cpu_seconds, process_tree
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import BATCH, MESSAGE_BYTES, WINDOW, Settings
from benchmarks.spark_host import QUICK_JAVA, SparkHost

NAME = "spark"
HOME, CONNECTOR, READ, WRITE, START, IDLE = (
    "backlog to primary", "connector", "connector: read", "connector: write", "start-up", "idle",
)  # fmt: skip
SPARK, ENGINE, LOOP = "Spark syphon", "in-process engine", "plain SDK loop"
GOAL, READ_GOAL, WRITE_GOAL = 3.0, 20_000.0, 15_000.0
LOCAL = "local[2,4]"
QUEUES = 10
DESTINATIONS = ("orders", "news", "bills")
TABLE_ROWS = "rows"
FIRST_JOB = "session of a command, and first job"
START_ROUNDS_MAX = 5
CPU_GOAL, ENGINE_GOAL, IDLE_GOAL = 80.0, 0.85, 0.01
#: Until compilers and idle workers are done, and measured for so long.
SETTLE_S, IDLE_S = 70.0, 60.0
COLUMNS = (
    Column("rate", "messages", "rate"),
    Column("ratio", "Spark ÷ it", "ratio"),
    Column("first_s", "first after", "s"),
    Column("flowing", "flowing", "rate"),
    Column("client_us", "mover's CPU", "us"),
    Column("server_us", "brokers' CPU", "us"),
    Column("seconds", "seconds", "s"),
    Column("cpu_s", "CPU", "s"),
    Column("share", "of a core", "share"),
)
PATHS = syphon.backlog_paths(QUEUES)


class Bench:
    def __init__(self, primary: PairbusServer, secondary: PairbusServer) -> None:
        self.primary, self.secondary = primary, secondary
        self._named = {
            "primary": primary.connection_string,
            "secondary": secondary.connection_string,
            "primary_name": syphon.PRIMARY_NAME,
        }

    async def fill(self, total: int, queues: int = QUEUES) -> None:
        await syphon.fill(self.secondary, PATHS[:queues], DESTINATIONS, total)

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

    def spark_step(
        self, host: SparkHost, case: str, who: str, count: int, queues: int = QUEUES, **options: object
    ) -> Step:
        async def run() -> Mapping[Key, Metrics]:
            await self.fill(count, queues)
            said: dict[str, float] = {}

            async def work() -> None:
                said.update(await self._drain(host, count=queues, **options))

            reading = await self.metered(work, host)
            await self.empty(count)
            return {(case, who): {**reading.per_message(count), **flow(said)}}

        return Step(f"{case}: {who}", run)

    async def _drain(self, host: SparkHost, **options: object) -> dict[str, float]:
        return await asyncio.to_thread(host.ask, "drain", **self._named, **options)

    def idle_step(self, host: SparkHost, settle_s: float, seconds: float) -> Step:
        """What a syphon takes that has nothing to do, and how soon a message that comes then is confirmed."""

        async def run() -> Mapping[Key, Metrics]:
            said = await asyncio.to_thread(
                host.ask, "idle", **self._named, count=QUEUES, settle_s=settle_s, seconds=seconds
            )
            begun = time.perf_counter()
            arrival = asyncio.create_task(asyncio.to_thread(host.ask, "arrival"))
            await self.fill(BATCH)
            await arrival
            first_s = time.perf_counter() - begun
            await self.empty(BATCH)
            return {(IDLE, SPARK): {"share": said["share"], "first_s": first_s}}

        return Step(IDLE, run)

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


def session_step() -> Step:
    """From the start of a process to the end of its session's first job."""

    async def run() -> Mapping[Key, Metrics]:
        with await asyncio.to_thread(SparkHost, LOCAL, QUICK_JAVA) as host:
            cpu_s = sum(map(cpu_seconds, process_tree(host.pid)))
        return {(START, FIRST_JOB): {"seconds": host.start_s, "cpu_s": cpu_s}}

    return Step(f"{START}: {FIRST_JOB}", run)


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
        goal = Goal("client_us", below=CPU_GOAL)
        if spark and who != SPARK:
            metrics["ratio"] = spark["rate"].over(metrics["rate"])
            goal = Goal("ratio", at_least=GOAL if who == LOOP else ENGINE_GOAL)
        rows.append(Row(HOME, who, metrics, goal))
    for case, bound in ((READ, READ_GOAL), (WRITE, WRITE_GOAL)):
        rows += [
            Row(case, who, dict(metrics), Goal("rate", at_least=bound))
            for (found, who), metrics in outcome.series.items()
            if found == case
        ]
    if (IDLE, SPARK) in outcome.series:
        rows.append(Row(IDLE, SPARK, dict(outcome.series[IDLE, SPARK]), Goal("share", below=IDLE_GOAL)))
    for (case, who), metrics in outcome.series.items():
        if case == START:
            rows.append(Row(START, who, dict(metrics)))
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
        if settings.wants(NAME, "start"):
            rounds = min(START_ROUNDS_MAX, settings.rounds)
            outcome = await run_rounds([session_step()], rounds, progress, warm_up=not settings.quick)
        for case, java_options in ((HOME, [QUICK_JAVA]), (CONNECTOR, [])):
            if not settings.wants(NAME, "home" if case == HOME else case):
                continue
            with SparkHost(LOCAL, *java_options) as host:
                steps = [bench.connector_step(host, settings.spark_messages)]
                if case == HOME:
                    steps = [
                        bench.spark_step(host, HOME, SPARK, settings.spark_backlog),
                        bench.engine_step(settings.spark_backlog),
                        bench.loop_step(settings.spark_looped),
                    ]
                moved = await run_rounds(steps, settings.rounds, progress, warm_up=not settings.quick)
                outcome = Outcome(outcome.series | moved.series, outcome.failures + moved.failures)
                if case == HOME:
                    idle = bench.idle_step(host, *((2.0, 2.0) if settings.quick else (SETTLE_S, IDLE_S)))
                    waited = await run_rounds([idle], 1, progress, warm_up=False)
                    outcome = Outcome(outcome.series | waited.series, outcome.failures + waited.failures)
    table.rows = rows_from(outcome)
    table.notes += [
        f"{settings.spark_backlog:,} messages of 1 KB, {QUEUES} backlog queues, {len(DESTINATIONS)} destinations; the "
        f"plain loop moves {settings.spark_looped:,} of them, since its rate does not depend on how many there are; "
        f"the connector writes and reads {settings.spark_messages:,}.",
        f"Spark on {LOCAL}, for the syphon with Java as `pairbus syphon` starts it (its quick compiler alone), for the "
        "connector as `session()` does. The start-up is not in the rates: seconds from the start of a process to the "
        "end of its session's first job.",
        "The start of a query takes as long for few messages as for many, and is in Spark's rate and CPU: the first "
        "message is confirmed after so many seconds, and flowing is the rate after it.",
        f"Idle: the syphon's processes over {IDLE_S:.0f} s, {QUEUES} queues, a minute after the last message, and the "
        "time from a message that is sent then to its confirm at the primary.",
        "The in-process engine's figures are without what `pairbus syphon` takes with nothing to move.",
        "The mover's CPU is the engine's or the loop's process; for Spark the driver, the JVM and the Python workers. "
        "All of it, the two brokers too, shares the machine's cores.",
    ]
    return table, outcome.failures
