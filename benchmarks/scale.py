"""Table `scale`: how the rate of the syphon on Spark depends on the size of the backlog and on executors, with a
destination that is near and one 20 ms away; what starting Spark, and a query, costs.

On one machine executors, brokers and Spark's driver share the same cores. So executors are also measured as if each had
a small machine of its own: the kernel gives each a part of a core.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks import spark
from benchmarks.amqp_driver import create_queues
from benchmarks.cpu_share import CpuShare
from benchmarks.figures import Column, Goal, Row, Series, Table
from benchmarks.meter import process_tree
from benchmarks.rounds import Outcome, Progress, Step, run_rounds
from benchmarks.servers import COMMAND, PairbusServer
from benchmarks.settings import Settings
from benchmarks.spark_host import QUICK_JAVA, SparkHost

NAME = "scale"
DEPTH, EXECUTORS, START = "by backlog", "by executors", "start-up of Spark"
FAR_S = 0.02
FAR = f"{EXECUTORS}, {FAR_S * 1000:.0f} ms away"
#: Of a core, for each executor where they have none in common: so little that brokers and driver have what they need.
SHARE = 0.25
APART = f"{FAR}, each with {SHARE:.0%} of a core"
#: Two executors ÷ one: what must be carried more, or at least not less.
GOALS = {EXECUTORS: 1.0, FAR: 1.6, APART: 1.6}
#: How Java's process that is an executor can be told from the others.
EXECUTOR_CLASS = b"CoarseGrainedExecutorBackend"
#: Half a million messages take minutes.
DEPTH_ROUNDS_MAX = 3
COLUMNS = (
    Column("rate", "messages", "rate"),
    Column("first_s", "first after", "s"),
    Column("flowing", "flowing", "rate"),
    Column("flat", "÷ first", "ratio"),
    Column("client_us", "Spark's CPU", "us"),
    Column("server_us", "brokers' CPU", "us"),
    Column("seconds", "seconds", "s"),
)


def rows_from(outcome: Outcome, depths: Sequence[str], starts: Mapping[str, float]) -> list[Row]:
    """Make the rows. The first of those by executors, as `outcome` has them, is what the others are held
    against."""
    rows = []
    smallest = outcome.get(DEPTH, depths[0], "flowing") if depths else None
    for who in depths:
        metrics = dict(outcome.series.get((DEPTH, who), {}))
        if metrics:
            if smallest is not None and "flowing" in metrics and who != depths[0]:
                metrics["flat"] = metrics["flowing"].over(smallest)
            rows.append(Row(DEPTH, who, metrics))
    for case in GOALS:
        first: Series | None = None
        for (found, who), series in outcome.series.items():
            if found == case:
                metrics = dict(series)
                goal = None
                rate = metrics["flowing" if "flowing" in metrics else "rate"]
                if first is None:
                    first = rate
                else:
                    metrics["flat"] = rate.over(first)
                    goal = Goal("flat", at_least=GOALS[case])
                rows.append(Row(case, who, metrics, goal))
    rows += [Row(START, master, {"seconds": Series((seconds,))}) for master, seconds in starts.items()]
    return rows


@contextmanager
def far_away(server: PairbusServer) -> Iterator[None]:
    """While the block runs the broker's answers come later, as if it were elsewhere."""
    command = [str(COMMAND), "fault", "--data", str(server.folder / "data"), "bench", "latency"]
    subprocess.run([*command, "--delay", str(FAR_S)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([*command, "--clear"], check=True, capture_output=True)


def executors_of(host: SparkHost) -> list[list[int]]:
    """Return the processes of each executor: Java and its Python workers."""
    found = []
    for pid in process_tree(host.pid):
        with suppress(OSError):
            if EXECUTOR_CLASS in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(process_tree(pid))
    return found


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "The syphon on Spark, by backlog and by executors", COLUMNS)
    progress = Progress(NAME)
    progress.show("starting the brokers and Spark", always=True)
    outcome = Outcome()
    depths = [f"{depth:,} messages" for depth in settings.spark_depths]
    starts: dict[str, float] = {}

    async def add(steps: list[Step], *, warm_up: bool, rounds_max: int = settings.rounds) -> None:
        found = await run_rounds(steps, min(rounds_max, settings.rounds), progress, warm_up=warm_up)
        names = [step.name for step in steps]  # the order of the first round may be the other way round
        outcome.series.update(sorted(found.series.items(), key=lambda item: names.index(": ".join(item[0]))))
        outcome.failures.extend(found.failures)

    with PairbusServer(settings.data / "primary") as primary, PairbusServer(settings.data / "secondary") as secondary:
        await create_queues(primary, spark.DESTINATIONS)
        await create_queues(secondary, spark.PATHS)
        bench = spark.Bench(primary, secondary)
        if settings.wants(NAME, "depth"):
            with SparkHost(spark.LOCAL, QUICK_JAVA) as host:
                starts[spark.LOCAL] = host.start_s
                steps = [
                    bench.spark_step(host, DEPTH, who, depth)
                    for depth, who in zip(settings.spark_depths, depths, strict=True)
                ]
                await steps[0].run()  # all of Spark's first times, in the smallest of them
                await add(steps, warm_up=False, rounds_max=DEPTH_ROUNDS_MAX)
        if settings.spark_clusters and settings.wants(NAME, "executors"):
            with ExitStack() as stack:
                shares = stack.enter_context(CpuShare(SHARE))
                hosts = {
                    master: stack.enter_context(SparkHost(master, QUICK_JAVA)) for master in settings.spark_clusters
                }
                starts |= {master: host.start_s for master, host in hosts.items()}

                def steps_of(case: str) -> list[Step]:
                    scaled = settings.spark_scaled
                    return [bench.spark_step(host, case, master, scaled) for master, host in hosts.items()]

                await add(steps_of(EXECUTORS), warm_up=True)
                with far_away(primary):
                    await add(steps_of(FAR), warm_up=True)
                    if shares.is_possible:
                        for executor in itertools.chain.from_iterable(map(executors_of, hosts.values())):
                            shares.confine(executor)
                        await add(steps_of(APART), warm_up=True)
    table.rows = rows_from(outcome, depths, starts)
    table.notes.append(
        f"1 KB messages, {spark.QUEUES} backlog queues, {len(spark.DESTINATIONS)} destinations; by "
        f"executors {settings.spark_scaled:,} of them. Messages a second are those of "
        "the whole drain, from its start to the look that finds the queues empty. The start of its query takes as long "
        "for few as for many, so it is shown apart: the first messages are confirmed after so many seconds, and "
        "flowing is the rate of those that come after them. Flowing rates are held against the smallest backlog's and "
        f"against one executor's. {FAR_S * 1000:.0f} ms away: the primary's answers come so much later."
    )
    table.notes.append(
        "Executors, brokers and Spark's driver share the machine's cores, so executors are measured with "
        f"{SHARE:.0%} of a core each as well, by a quota of the kernel's, as if each had a small machine of its own. "
        "That needs root and control groups, and is left out without them."
    )
    return table, outcome.failures
