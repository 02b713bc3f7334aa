"""Starts the drill's Spark session, and the syphon that uses it, on its own thread.

A session takes seconds to start, and healthy traffic takes seconds too, so both happen at the same time. Code that
needs the session waits for `ready`. It decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.ledger import LedgerWriter
from pairbus.pairing.backlog import backlog_queues
from pairbus.syphon import hosting
from pairbus.syphon.daemon_thread import in_daemon_thread
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.settings import SyphonSettings

from .plan import PRIMARY, SECONDARY, DrillPlan
from .processes import DrillFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S: Final = 0.25
#: A drain of a backlog that does not get empty is given up after so long: the audit says what remains.
DRAIN_S: Final = 120.0


def check_spark() -> Callable[..., SparkSession]:
    """Return the function that starts a session; raise DrillFailed where Spark is not installed."""
    try:
        from pairbus.spark.runtime.session import session
    except ModuleNotFoundError:
        raise DrillFailed(
            "the drill's reports are computed on Spark, and it is not installed: install pairbus[spark]"
        ) from None
    return session


class Spark:
    """Starts a Spark session in the background; `ready` waits for it."""

    def __init__(self) -> None:
        self._starting: asyncio.Future[SparkSession] | None = None

    def __repr__(self) -> str:
        state = "not begun" if self._starting is None else "ready" if self._starting.done() else "starting"
        return f"<Spark {state}>"

    def begin(self) -> None:
        session = check_spark()
        self._starting = asyncio.ensure_future(in_daemon_thread(lambda: session(app_name="pairbus-drill")))
        # Whatever waits for it hears of a failure; nothing may, when the drill is interrupted.
        self._starting.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def ready(self) -> SparkSession:
        assert self._starting is not None
        return await asyncio.shield(self._starting)

    async def run_optional(self, work: Callable[[SparkSession], object]) -> None:
        """Run optional work on the session: its jobs are cancelled with it, and its errors are ignored."""
        session = await self.ready()
        try:
            with suppress(Exception):
                await in_daemon_thread(lambda: work(session))
        except asyncio.CancelledError:
            session.sparkContext.cancelAllJobs()
            raise

    async def stop(self) -> None:
        """Stop the session if it has started; one that is starting ends with the process."""
        starting = self._starting
        if starting is None:
            return
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            await in_daemon_thread(starting.result().stop)


@dataclass
class DrillSyphon:
    """Drains the backlog on the engine of the plan, as often as needed."""

    plan: DrillPlan
    spark: Spark
    primary: str
    secondary: str
    ledger: Path
    moved: int = 0

    def __repr__(self) -> str:
        return f"<DrillSyphon {self.plan.engine}: {self.moved} moved>"

    async def drain(self, tell: Callable[[int], None]) -> None:
        """Run until the backlog is empty; `tell` gets how many messages all drains have moved so far."""
        writer = LedgerWriter(self.ledger, "syphon")
        engine = await self._engine(writer)
        running = asyncio.ensure_future(engine.run())
        try:
            async with asyncio.timeout(DRAIN_S):
                while not running.done():
                    await asyncio.wait({running}, timeout=LOOK_S)
                    tell(self.moved + engine.report().moved)
        except TimeoutError:
            raise DrillFailed(f"the syphon has not emptied the backlog in {DRAIN_S:g} s") from None
        finally:
            if not running.done():
                engine.stop()
                await asyncio.wait({running})
            writer.close()
        self.moved += running.result().report.moved
        tell(self.moved)

    async def warm_up(self) -> None:
        """Run an empty query, since the first one of a session takes seconds that later ones don't."""
        if self.plan.engine != "spark":
            return
        from pairbus.spark.syphon.engine import warm_up

        engine = await self._engine(None)
        warming = asyncio.ensure_future(in_daemon_thread(lambda: warm_up(engine)))
        try:
            await asyncio.shield(warming)
        finally:
            engine.stop()
            await asyncio.wait({warming})

    async def _engine(self, ledger: LedgerWriter | None) -> Any:
        settings = SyphonSettings(
            Endpoint.from_connection_string(self.primary, name=PRIMARY),
            Endpoint.from_connection_string(self.secondary, name=SECONDARY),
            self._queues,
            drain=True,
            ledger=ledger,
            spark=None if self.plan.engine != "spark" else await self.spark.ready(),
        )
        return hosting.maker_of(self.plan.engine)(settings)

    @property
    def _queues(self) -> list[tuple[str, int | None]]:
        return [(backlog_queues.path(PRIMARY, index), index) for index in range(self.plan.backlog_queues)]
