"""Moves the messages that an entity holds at the start to another entity, dead letters included: `pairbus move`.

    choose by peek ──▶ rounds of one job each: lock ──▶ carry (send, confirm, then settle by token) ──▶ look again

It is the syphon's pipeline with a fixed destination and an end: at least once, with nothing lost, since a message
leaves the source only after the destination confirmed it. Within one namespace it leaves and arrives in one
transaction, so it is in one place at any time. `transfer_loop` decides how it continues. After each round messages that
were locked and could not be moved are released, so that a stop leaves nothing locked.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pairbus.billing import MOVE
from pairbus.errors import first_line
from pairbus.ledger import LedgerWriter
from pairbus.spark.connector import connections, listing
from pairbus.spark.connector.entities import without_dead_letters
from pairbus.spark.connector.lock_reader import MOVES
from pairbus.spark.connector.options import Address
from pairbus.spark.connector.process_mailbox import ProcessMailbox
from pairbus.spark.connector.selection import Selection
from pairbus.spark.connector.values.option_text import as_text
from pairbus.spark.runtime.session import quick_java
from pairbus.spark.syphon.api import address_of_text, host_of
from pairbus.spark.syphon.sink import EVENTS, NAME, SyphonSink, TransferBatchWriter, end_tasks
from pairbus.spark.syphon.task import SinkOptions
from pairbus.syphon.core.destinations import RefusalVerdict, Trouble
from pairbus.syphon.core.draining import Unavailable
from pairbus.syphon.core.progress import Report
from pairbus.syphon.core.rate_limit import RateLimit
from pairbus.wire.errors import WireError
from pairbus.wire.settling import ABANDONED

from .lock_batches import LockBatch
from .preflight import (
    EVERYTHING,
    Chosen,
    TransferFailed,
    check_destination,
    check_filter,
    check_source,
    choose,
    still_there,
)
from .transfer import Transfer, rate_of, run_here, seconds_of
from .transfer_loop import LOOK_MAX, PATIENCE_S, RoundResult, TransferLoop, spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class EntityAddress(NamedTuple):
    """An entity of a namespace. `label`: what the namespace is called in ledgers and messages."""

    address: Address
    entity: str
    label: str

    def __repr__(self) -> str:
        return f"<EntityAddress {self.entity} of {self.label}>"


class Mover(Transfer):
    """Runs one move: `run` once; `stop` from any thread. `gone`: chosen messages that nobody moved here and that are no
    longer there: taken by others, expired, or moved by a task that died before it could tell."""

    def __init__(
        self,
        source: EntityAddress,
        destination: EntityAddress,
        *,
        where: str | None = None,
        count: int | None = None,
        max_rate: float | None = None,
        ledger: LedgerWriter | None = None,
        patience_s: float = PATIENCE_S,
        **session: Any,
    ) -> None:
        session["conf"] = quick_java(session.get("master"), session.get("conf"))
        super().__init__(where, **session)
        same_namespace = source.address == destination.address
        if same_namespace and source.entity.lower() == destination.entity.lower():
            raise TransferFailed(f"{source.entity} is both ends of the move; name another entity, or another namespace")
        self._source = source._replace(address=replace(source.address, cause=MOVE))
        self._destination = destination._replace(address=replace(destination.address, cause=MOVE))
        self._count = count
        self._rate = RateLimit(rate_of(max_rate))
        self._ledger = ledger
        self._patience_s = seconds_of("patience_s", patience_s)
        #: Sequence numbers that the destination refuses permanently, and why.
        self.refused: dict[int, str] = {}
        self.gone = 0

    def __repr__(self) -> str:
        return f"<Mover {self._source!r} to {self._destination!r}>"

    def run(self) -> list[Unavailable]:
        """Move; return what could not be moved, and why, or nothing where it was stopped. Raises TransferFailed."""
        check_source(*self._source)
        check_destination(*self._destination)
        check_filter(self._where)
        if not still_there(self._source.address, self._source.entity, EVERYTHING, 1):
            self.progress.counted(0)
            return []  # Spark is not started for nothing
        spark = self._start()
        folder = Path(tempfile.mkdtemp(prefix="pairbus-move-"))
        try:
            return self._move(spark, ProcessMailbox(folder))
        finally:
            if spark is None:
                end_tasks(str(folder))
            shutil.rmtree(folder, ignore_errors=True)
            if self._ledger is not None:
                self._ledger.flush()

    def _move(self, spark: SparkSession | None, mailbox: ProcessMailbox) -> list[Unavailable]:
        address, entity = self._source.address, self._source.entity
        chosen = choose(spark, address, entity, self._where, self._count)
        self._count_them(chosen)
        if not len(chosen.selection):
            return []
        selection = chosen.selection
        rounds = TransferLoop(chosen.messages, self._rate, time.monotonic(), patience_s=self._patience_s)

        def take(count: int) -> None:
            result = self._round(spark, mailbox, rounds, selection.without(self.refused), count)
            if result is not None:
                rounds.ended(result, time.monotonic())

        def look() -> int:
            return len(still_there(address, entity, selection.without(self.refused), LOOK_MAX))

        over = self._go_through(rounds, take, look)
        return [] if over is None else self._remaining(chosen, over.reason)

    def _count_them(self, chosen: Chosen) -> None:
        depth = chosen.messages
        if depth is None:
            depth = listing.depth(self._source.address, self._source.entity)
        self.progress.counted(len(chosen.selection) if depth is None else min(depth, len(chosen.selection)))

    def _round(
        self,
        spark: SparkSession | None,
        mailbox: ProcessMailbox,
        rounds: TransferLoop,
        selection: Selection,
        count: int,
    ) -> RoundResult | None:
        from pyspark.errors import PySparkException

        source = self._source
        sink = SinkOptions(
            self._destination.address,
            source.address,
            mailbox.folder,
            is_replay=without_dead_letters(source.entity)[1],
            wants_events=self._ledger is not None,
            destination=self._destination.entity,
        )
        batch = LockBatch(source.address, source.entity, self._counts(count), selection, slim=True)
        try:
            if spark is None:
                run_here(batch.reader(), TransferBatchWriter(sink))
            else:
                spark.dataSource.register(SyphonSink)
                batch.load(spark).write.format(NAME).option("syphon", as_text(sink)).mode("append").save()
        except (PySparkException, WireError) as error:
            self._hear(mailbox)
            if not self._stop.is_set() and not rounds.failed(f"a round failed: {first_line(error)}", time.monotonic()):
                # a source or a destination that can't be used any more says so best itself
                check_source(*source)
                check_destination(*self._destination)
                raise TransferFailed(f"{rounds!r}: the rounds fail, the last one with: {first_line(error)}") from None
            return None
        return self._hear(mailbox)

    def _counts(self, count: int) -> tuple[int, ...]:
        if self._where is not None:
            # one reader: a second would be given what the first has passed over and released, and pass over it again
            return (count,)
        return spread(count, self.report().remaining)

    # -- the result of a round

    def _hear(self, mailbox: ProcessMailbox) -> RoundResult:
        now, wall = time.monotonic(), time.time()
        moved = left = refused = 0
        trouble: str | None = None
        is_busy = False
        tokens: list[UUID] = []
        with self._lock:
            self._troubles.clear()
            for notice in mailbox.read_new(MOVES):
                self.progress.lost_tasks += notice.get("retried", 0)
                if self._ledger is not None and notice.get("retried"):
                    self._ledger.skip(notice["retried"])
                for path, count in notice["moved"].items():
                    moved += count
                    self.progress.moved(path, count, notice["bytes"], now)
                for _, token, path, end, _ in notice["left"]:
                    left += 1
                    self.progress.left(path, 1)
                    if end > wall:
                        tokens.append(UUID(token))
                for _, number, _, why in notice["refused"]:
                    if number is not None and number not in self.refused:
                        refused += 1
                        self.refused[number] = why
                for path, (verdict, text, condition, strikes) in notice["troubles"].items():
                    trouble = f"{verdict}: {text} ({condition})"
                    self._troubles[path] = Trouble(RefusalVerdict(verdict), text, condition, strikes, now, now)
                is_busy = is_busy or bool(notice["busy"])
            if self._ledger is not None:
                self._write_events(mailbox)
        self._give_back(tokens)
        return RoundResult(moved, left, refused, trouble, is_busy)

    def _give_back(self, tokens: list[UUID]) -> None:
        """Give locks back at once: waiting for the lock to end would raise the delivery count just the same."""
        client = connections.client(self._source.address)
        client.settle_each(self._source.entity, tokens, ABANDONED, timeout=5.0)

    def _write_events(self, mailbox: ProcessMailbox) -> None:
        assert self._ledger is not None
        for notice in mailbox.read_new(EVENTS):
            for kind, t, entity, message_id, size, outcome, _ in notice["events"]:
                label = self._destination.label if kind == "move" else self._source.label
                self._ledger.event(kind, t, label, entity, mid=message_id, size=size, outcome=outcome, cause=MOVE)
        self._ledger.flush()

    def _remaining(self, chosen: Chosen, reason: str | None) -> list[Unavailable]:
        found: list[int] = []
        if reason is not None or self.refused:  # else the last look has found nothing
            found = still_there(self._source.address, self._source.entity, chosen.selection)
        reasons: dict[str, int] = {}
        for number in found:
            text = self.refused.get(number) or reason or "came back after the last round"
            reasons[text] = reasons.get(text, 0) + 1
        self.progress.counted(len(found))
        if chosen.messages is not None:
            self.gone = max(0, chosen.messages - self.progress.moved_count - len(found))
        return [Unavailable(self._source.entity, count, text) for text, count in reasons.items()]


def move(
    source: str,
    destination: str,
    *,
    namespace: str,
    to: str | None = None,
    spark: SparkSession | None = None,
    ca_file: str | Path | None = None,
    ledger: str | Path | None = None,
    **options: Any,
) -> tuple[Report, list[Unavailable]]:
    """Moves what `source` holds now, and returns when that is done: how it went, and what could not be moved.

    `namespace` and `to` (by default the same) are connection strings, or host names (then DefaultAzureCredential).
    `options`: where, count, max_rate, in_process, master, conf, patience_s.
    """
    target = namespace if to is None else to
    writer = None if ledger is None else LedgerWriter(Path(ledger), "move")
    try:
        mover = Mover(
            EntityAddress(address_of_text(namespace, ca_file), source, host_of(namespace)),
            EntityAddress(address_of_text(target, ca_file), destination, host_of(target)),
            spark=spark,
            ledger=writer,
            **options,
        )
        remaining = mover.run()
        return mover.report(), remaining
    finally:
        if writer is not None:
            writer.close()
