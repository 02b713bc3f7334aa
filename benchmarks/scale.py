"""Table `scale`: how the rate of the syphon on Spark depends on the size of the backlog and on executors; what starting
Spark, and a query, costs. A report without a goal: on one machine executors, brokers and Spark share the same cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks import spark
from benchmarks.amqp_driver import create_queues
from benchmarks.figures import Column, Row, Series, Table
from benchmarks.rounds import Outcome, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import Settings
from benchmarks.spark_host import SparkHost

NAME = "scale"
DEPTH, EXECUTORS, START = "by backlog", "by executors", "start-up of Spark"
#: Half a million messages take minutes.
ROUNDS_MAX = 3
COLUMNS = (
    Column("rate", "messages", "rate"),
    Column("first_s", "first after", "s"),
    Column("flowing", "flowing", "rate"),
    Column("flat", "÷ smallest", "ratio"),
    Column("client_us", "Spark's CPU", "us"),
    Column("server_us", "brokers' CPU", "us"),
    Column("seconds", "seconds", "s"),
)


def rows_from(outcome: Outcome, depths: Sequence[str], starts: Mapping[str, float]) -> list[Row]:
    rows = []
    smallest = outcome.get(DEPTH, depths[0], "flowing") if depths else None
    for who in depths:
        metrics = dict(outcome.series.get((DEPTH, who), {}))
        if metrics:
            if smallest is not None and "flowing" in metrics and who != depths[0]:
                metrics["flat"] = metrics["flowing"].over(smallest)
            rows.append(Row(DEPTH, who, metrics))
    rows += [Row(EXECUTORS, who, dict(metrics)) for (case, who), metrics in outcome.series.items() if case == EXECUTORS]
    rows += [Row(START, master, {"seconds": Series((seconds,))}) for master, seconds in starts.items()]
    return rows


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "The syphon on Spark, by backlog and by executors", COLUMNS)
    progress = Progress(NAME)
    progress.show("starting the brokers and Spark", always=True)
    outcome = Outcome()
    depths = [f"{depth:,} messages" for depth in settings.spark_depths]
    starts: dict[str, float] = {}

    async def add(steps: list[Step], *, warm_up: bool) -> None:
        found = await run_rounds(steps, min(ROUNDS_MAX, settings.rounds), progress, warm_up=warm_up)
        outcome.series.update(found.series)
        outcome.failures.extend(found.failures)

    with PairbusServer(settings.data / "primary") as primary, PairbusServer(settings.data / "secondary") as secondary:
        await create_queues(primary, spark.DESTINATIONS)
        await create_queues(secondary, spark.PATHS)
        bench = spark.Bench(primary, secondary)
        if settings.wants(NAME, "depth"):
            with SparkHost(spark.LOCAL) as host:
                starts[spark.LOCAL] = host.start_s
                steps = [
                    bench.spark_step(host, DEPTH, who, depth)
                    for depth, who in zip(settings.spark_depths, depths, strict=True)
                ]
                await steps[0].run()  # all of Spark's first times, in the smallest of them
                await add(steps, warm_up=False)
        if settings.wants(NAME, "executors"):
            for master in settings.spark_clusters:
                with SparkHost(master) as host:
                    starts[master] = host.start_s
                    await add([bench.spark_step(host, EXECUTORS, master, settings.spark_messages)], warm_up=True)
    table.rows = rows_from(outcome, depths, starts)
    table.notes.append(
        f"1 KB messages, {spark.QUEUES} backlog queues, {len(spark.DESTINATIONS)} destinations; by executors "
        f"{settings.spark_messages:,} of them. Messages a second are those of the whole drain, from its start to the "
        "look that finds the queues empty. The start of its query takes as long for few as for many, so it is shown "
        "apart: the first messages are confirmed after so many seconds, and flowing is the rate of those that come "
        "after them. It is the flowing rates that are held against the smallest backlog's."
    )
    return table, outcome.failures
