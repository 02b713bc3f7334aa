"""A whole drill: Spark begins to warm up, the rehearsal runs, Spark reads the ledgers, the findings come back.

Joins the shells; decides nothing. Whatever happens, no process is left: the rehearsal ends its own, the session ends
with this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .findings import Findings
from .plan import DrillPlan
from .reckoning import Reports, reckon
from .rehearsal import Hook, Rehearsal
from .story import Line
from .syphoning import Spark, on_a_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: A drill's ledgers are small and its questions many: compiling each of them would take longer than answering it.
SMALL: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


async def conduct(
    plan: DrillPlan, folder: Path, tell: Callable[[Line], None], *, in_outage: Hook | None = None
) -> Findings:
    spark = Spark()
    spark.begin()
    try:
        # The reports on what there is so far: the second time takes a fraction of the first.
        rehearsal = Rehearsal(plan, spark, folder, tell, in_the_quiet=read_reports, in_outage=in_outage)
        await rehearsal.run()
        loop = asyncio.get_running_loop()

        def say(text: str) -> None:
            for line in rehearsal.story.say(time.time(), "report", text):
                tell(line)

        say("Spark reads the ledgers")
        session = await spark.ready()
        reports = await on_a_thread(
            lambda: read_reports(session, rehearsal.ledgers, lambda text: loop.call_soon_threadsafe(say, text))
        )
        return reckon(plan, rehearsal.story, reports, time.time(), rehearsal.drain_s)
    finally:
        await spark.stop()


def read_reports(session: SparkSession, folder: Path, said: Callable[[str], object] = lambda text: None) -> Reports:
    """`said` hears what has been read, one by one."""
    from pairbus.spark.reports.audit import audit
    from pairbus.spark.reports.availability import availability
    from pairbus.spark.reports.cost_report import cost_report
    from pairbus.spark.reports.ledgers import read_ledgers
    from pairbus.spark.reports.series import series

    for name, value in SMALL.items():
        session.conf.set(name, value)
    with read_ledgers(session, folder) as ledgers:
        followed = audit(ledgers).summary
        said(f"audit: {followed['confirmed']:,} messages followed, lost {followed['lost']:,}")
        seen = availability(ledgers).summary
        said(f"availability: refused to callers {seen['refused']:,}")
        billed = cost_report(ledgers).summary
        said("cost: every operation counted")
        return Reports(followed, seen, billed, series(ledgers))
