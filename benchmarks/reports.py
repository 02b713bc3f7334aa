"""Table `reports`: how long audit, availability and cost take on large ledgers, from JSON lines and from Parquet, and
how much memory; and the audit where one sender sent most of the messages.

Each report runs in a process of its own, cold; Spark's start is in the notes. The lines are as
`benchmarks.ledger_lines` writes them, and what the audit finds must be what was planted there. Parquet is what
`pairbus ledger compact` makes of the lines or, of a checkout that has no such command, what `--parquet` wrote.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import ledger_lines
from benchmarks.figures import Column, Goal, Row, Table
from benchmarks.ledger_lines import Written
from benchmarks.report_host import ReportHost
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import COMMAND, environment
from benchmarks.settings import Settings

NAME = "reports"
JSON, PARQUET, SKEWED = "from JSON lines", "from Parquet", "one sender, JSON lines"
REPORTS = ("audit", "availability", "cost")
#: Each takes minutes.
ROUNDS_MAX = 3
GOAL_LINES, GOAL_S, GOAL_BYTES = 6_000_000, 90.0, 3e9
COLUMNS = (Column("seconds", "seconds", "s"), Column("rate", "lines", "rate"), Column("memory", "peak memory", "mb"))


def report_step(case: str, report: str, folder: Callable[[], Path], written: Written, starts: list[float]) -> Step:
    async def run() -> Mapping[Key, Metrics]:
        def measured() -> tuple[float, int, dict[str, object]]:
            with ReportHost(report, str(folder())) as host:
                starts.append(host.start_s)
                return host.run()

        seconds, memory, found = await asyncio.to_thread(measured)
        if report == "audit" and (found["lost"], found["doubled"]) != (written.lost, written.doubled):
            raise RuntimeError(
                f"{found['lost']} lost and {found['doubled']} doubled were found, planted were {written}"
            )
        return {(case, report): {"seconds": seconds, "rate": written.lines / seconds, "memory": float(memory)}}

    return Step(f"{case}: {report}", run)


def packed(lines: Path) -> Path:
    """Return a folder with the same ledger as Parquet."""
    folder = lines.with_name(f"{lines.name}-packed")
    shutil.copytree(lines, folder)
    subprocess.run([COMMAND, "ledger", "compact", folder], env=environment(), capture_output=True, check=True)
    return folder


def rows_from(outcome: Outcome, lines: int) -> list[Row]:
    rows = []
    for (case, report), metrics in outcome.series.items():
        goal = None
        if lines == GOAL_LINES and report == "audit" and case != PARQUET:
            goal = Goal("seconds", below=GOAL_S)
        elif lines > GOAL_LINES:
            goal = Goal("memory", below=GOAL_BYTES)
        rows.append(Row(case, report, dict(metrics), goal))
    return rows


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "Reports on large ledgers", COLUMNS)
    progress = Progress(NAME)
    starts: list[float] = []
    steps: list[Step] = []
    reports = REPORTS[:1] if settings.quick else REPORTS  # each starts Spark
    written = Written(0, 0, 0, 0)

    def made(name: str, *, skewed: bool = False) -> tuple[Path, Written]:
        progress.show(f"writing {settings.ledger_lines:,} lines", always=True)
        folder = settings.data / name
        return folder, ledger_lines.write(folder, settings.ledger_lines, skewed=skewed)

    if settings.wants(NAME, "json") or settings.wants(NAME, "parquet"):
        lines, written = made("ledger")
        if settings.wants(NAME, "json"):
            steps += [report_step(JSON, report, lambda: lines, written, starts) for report in reports]
        if settings.wants(NAME, "parquet"):
            parquet = await asyncio.to_thread(packed, lines)
            steps += [report_step(PARQUET, report, lambda: parquet, written, starts) for report in reports]
    if settings.wants(NAME, "skewed"):
        folder, skewed = made("skewed", skewed=True)
        steps.append(report_step(SKEWED, "audit", lambda: folder, skewed, starts))
    outcome = await run_rounds(steps, min(ROUNDS_MAX, settings.rounds), progress, warm_up=False)
    table.rows = rows_from(outcome, settings.ledger_lines)
    table.notes += [
        f"About {settings.ledger_lines:,} lines of {ledger_lines.SENDERS} senders, a receiver, a syphon and two"
        " brokers; a tenth of the messages takes the detour. One sender: it sends nineteen of twenty, to one queue.",
        "Each report is a process of its own and reads cold; peak memory is that of the driver, the JVM and the Python"
        " workers together.",
    ]
    if starts:
        table.notes.append(f"Spark's start, {sorted(starts)[len(starts) // 2]:.1f} s, is not in the seconds.")
    return table, outcome.failures
