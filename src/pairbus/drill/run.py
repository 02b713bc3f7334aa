"""Runs a whole drill: starts Spark, runs the rehearsal, makes the reports and returns the findings.

It connects the shells and decides nothing. Whatever happens, no process is left: the rehearsal ends its own, and this
module ends the session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pairbus.syphon.daemon_thread import in_daemon_thread

from .findings import Findings
from .plan import DrillPlan
from .rehearsal import Hook, Rehearsal
from .syphon import Spark
from .timeline import TimelineEntry
from .verdict import Reports, judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def conduct(
    plan: DrillPlan, folder: Path, tell: Callable[[TimelineEntry], None], *, in_outage: Hook | None = None
) -> Findings:
    spark = Spark()
    spark.begin()
    try:
        # The reports on what there is so far: the second time takes a fraction of the first.
        rehearsal = Rehearsal(plan, spark, folder, tell, in_the_quiet=read_reports, in_outage=in_outage)
        await rehearsal.run()
        loop = asyncio.get_running_loop()

        def say(text: str) -> None:
            for line in rehearsal.timeline.say(time.time(), "report", text):
                tell(line)

        say("Spark reads the ledgers")
        session = await spark.ready()
        reports = await in_daemon_thread(
            lambda: read_reports(session, rehearsal.ledgers, lambda text: loop.call_soon_threadsafe(say, text))
        )
        return judge(plan, rehearsal.timeline, reports, time.time(), rehearsal.drain_s)
    finally:
        await spark.stop()


def read_reports(session: SparkSession, folder: Path, said: Callable[[str], object] = lambda text: None) -> Reports:
    """`said` hears what has been read, one by one."""
    from pairbus.spark.reports import effort
    from pairbus.spark.reports.audit import audit
    from pairbus.spark.reports.availability import availability
    from pairbus.spark.reports.cost_report import cost_report
    from pairbus.spark.reports.ledgers import read_ledgers, size_of
    from pairbus.spark.reports.outage_series import series

    is_small = effort.is_small(size_of(folder))
    for name, value in effort.SQL.items():
        if is_small:
            session.conf.set(name, value)
        else:
            session.conf.unset(name)
    with read_ledgers(session, folder) as ledgers:
        followed = audit(ledgers).summary
        said(f"audit: {followed['confirmed']:,} messages followed, lost {followed['lost']:,}")
        seen = availability(ledgers).summary
        said(f"availability: sends that failed for their callers {seen['refused']:,}")
        billed = cost_report(ledgers).summary
        said("cost: every operation counted")
        return Reports(followed, seen, billed, series(ledgers))
