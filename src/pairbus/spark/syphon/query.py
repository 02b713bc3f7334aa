"""The syphon on Spark: one query over all backlog queues, kept running, watched, and ended without leaving locks.

    lock stream (executors receive) ──rows with lock tokens──▶ sink (executors restore, send, settle by token)

The plan has no shuffle, since locks would expire during one between source and sink. A query that fails is started
again. The queue is the state, so losing the checkpoint loses no messages. The decisions are those of the in-process
engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from pairbus.amqp.errors import AmqpError
from pairbus.billing import SYPHON
from pairbus.errors import PairbusError, first_line
from pairbus.spark.connector import connections
from pairbus.spark.connector.lock_reader import HALTS, MOVES, POLLS, QUEUES
from pairbus.spark.connector.options import as_options
from pairbus.spark.connector.process_mailbox import STOP, ProcessMailbox
from pairbus.spark.connector.values.option_text import as_text
from pairbus.spark.runtime.checkpoints import write_quickly
from pairbus.spark.runtime.session import beside, existing, is_gone, is_started_here, quick_java, session
from pairbus.syphon import inspection
from pairbus.syphon.core import draining
from pairbus.syphon.core.arrival import annotations_of
from pairbus.syphon.core.destinations import RefusalVerdict, Trouble, pause
from pairbus.syphon.core.pair_lifecycle import Which
from pairbus.syphon.core.progress import Progress, Report
from pairbus.syphon.core.queue_discovery import GONE, Listed
from pairbus.syphon.core.transfer import Key
from pairbus.syphon.settings import SyphonSettings
from pairbus.wire import WireClient
from pairbus.wire.errors import NotFound, Unauthorized, WireError
from pairbus.wire.partitions import ask_async, search_ranges
from pairbus.wire.settling import ABANDONED
from pairbus.wire.sync import LoopThread

from .addresses import address_of
from .sink import EVENTS, NAME, SyphonSink
from .task import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


LOOK_S: Final = 0.1
#: The same if somebody waits for the end.
LOOK_S_SOON: Final = 0.03
#: The same if nothing has come for a while: each look also asks the JVM.
LOOK_S_IDLE: Final = 0.5
IDLE_AFTER_S: Final = 2.0
RESTART_S_FIRST: Final = 1.0
RESTART_S_MAX: Final = 60.0
#: A drain gives up after so many failures in a row.
DRAIN_STRIKES: Final = 3
#: A drain peeks at the backlog when nothing has been moved for this long.
QUIET_S: Final = 1.0
#: The first look comes sooner, and is a glance: the drain is over if it finds nothing at all, and goes on if it does.
GLANCE_S: Final = 0.15
GLANCE_S_MAX: Final = 5.0
#: Beyond it, sequence numbers are not counted up one by one (those of a partitioned queue), and say nothing.
COUNT_MAX: Final = 1_000_000_000

#: Messages that can't be released in this time wait for their locks to end.
GIVE_BACK_S: Final = 5.0

_BOTH: Final[tuple[Which, ...]] = ("primary", "secondary")

_log = logging.getLogger("pairbus.syphon")


class _Left(NamedTuple):
    """A message left to its lock: its destination, and the unix time of the lock's end. `is_refused`: permanently, in a
    replay."""

    path: str
    end: float
    is_refused: bool


refusal: Final = partial(Unauthorized, "amqp:unauthorized-access")


def look_s(is_drain: bool, quiet_s: float) -> float:
    """Return how long to wait before the next look at the query, when nothing has come for so long."""
    return LOOK_S_SOON if is_drain else LOOK_S if quiet_s < IDLE_AFTER_S else LOOK_S_IDLE


class SparkSyphon:
    """Runs the syphon's query: `run` until `stop`, or until a drain is over."""

    def __init__(self, settings: SyphonSettings) -> None:
        self._settings = settings
        ends = (address_of(each) for each in (settings.primary, settings.secondary))
        self._primary, self._secondary = (replace(each, cause=SYPHON) for each in ends)
        self._indexes = dict(settings.queues)
        self._paths = [settings.read_path(path) for path, _ in settings.queues]
        self._missing: set[str] = set()
        self._lister = None if settings.drain else settings.lister
        self._spark = None if settings.spark is None else beside(settings.spark)
        self._ledger = settings.ledger
        self._halts: dict[str, float] = {}
        #: The destinations of messages.
        self._known: set[str] = set()
        self._stop = threading.Event()
        self._folder = Path(tempfile.mkdtemp(prefix="pairbus-syphon-"))
        self._mailbox = ProcessMailbox(self._folder)
        self.progress = Progress(time.monotonic())
        if self._lister is not None:
            self.progress.waiting_for = self._lister.discovery.waiting_for
        self._troubles: dict[str, Trouble] = {}
        self._refused: dict[Key, str] = {}
        #: Messages left to the end of their locks, by queue and lock token.
        self._left: dict[tuple[str, str], _Left] = {}
        #: The last batch that the source began, by its epoch.
        self._begun = 0
        self._source_stopped = False
        self._moved_at = time.monotonic()
        self._has_glanced = False
        self._has_moved = False
        self._is_counted = False
        self._failures = 0
        #: Ends of the query with nothing moved between them.
        self._breaks = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        route = f"{self._settings.secondary.label} to {self._settings.primary.label}"
        return f"<SparkSyphon {route}: {len(self._paths)} queues>"

    def stop(self) -> None:
        """Ask `run`, from any thread, to end with the batch in progress and to give back what is locked."""
        self._stop.set()

    def report(self) -> Report:
        with self._lock:
            return self.progress.report(time.monotonic(), self._troubles.items())

    def run(self) -> list[draining.Unavailable]:
        """Run the query; return what a drain had to leave behind, by destination, and nothing otherwise."""
        looking = LoopThread()
        delay, broke_at = RESTART_S_FIRST, 0.0
        try:
            if self._lister is not None:
                looking.start(self._lister.keep_listing(self._take_in))
            while not self._paths:  # no JVM before there is something to read
                if self._stop.wait(LOOK_S):
                    return []
            if self._settings.drain and self._is_empty(looking):  # then no JVM either
                return []
            while not self._stop.is_set():
                try:
                    return self._keep_running(self._session(), looking)
                except Exception as error:
                    # The driver's JVM died: a session that is ours to start is started again.
                    time.sleep(LOOK_S)  # its sockets close before it is known to have ended
                    if not (self._settings.spark is None and is_gone()):
                        raise
                    if time.monotonic() - broke_at > RESTART_S_MAX:
                        delay = RESTART_S_FIRST
                    self._spark = None
                    # It may have been raised for the one that died, before that was known.
                    self._mailbox.lower_flag(STOP)
                    self._source_stopped = False
                    _log.warning("Spark's driver died (%s); started again in %.0f s", first_line(error), delay)
                    self._stop.wait(delay)
                    delay, broke_at = min(RESTART_S_MAX, delay * 2), time.monotonic()
            return []
        finally:
            looking.stop()
            shutil.rmtree(self._folder, ignore_errors=True)

    def warm_up(self) -> None:
        """Run one batch of the query and end it: whatever is slow for the first time in a session is so here, and not
        in the drain that follows. Needs an object of its own, as `run` does."""
        looking = LoopThread()
        try:
            query = self._query(self._session())
            try:
                while query.isActive and query.lastProgress is None and not self._stop.wait(LOOK_S):
                    self._hear()
            finally:
                self._finish(query, looking)
        finally:
            looking.stop()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _take_in(self, queues: Sequence[Listed]) -> None:
        """Add queues that were found, on the lister's thread: the source reads these as well, and a query that is
        started later knows them by its options."""
        paths = [self._settings.read_path(each.path) for each in queues]
        self._mailbox.append(QUEUES, {"entities": paths})
        with self._lock:
            self._indexes |= {each.path: each.number for each in queues}
            if not self._paths:
                self.progress.waiting_for = None
            self.progress.found(
                sum(each.dead_letters if self._settings.dead_letters else each.messages for each in queues)
            )
        self._paths += paths

    # -- the query

    def _session(self) -> SparkSession:
        if self._spark is None:
            found = existing()
            is_theirs = found is not None and not is_started_here(found)
            if found is not None and is_theirs and self._settings.master in (None, found.sparkContext.master):
                self._spark = beside(found)
            else:
                master, conf = self._settings.master, self._settings.conf
                started = session(master, conf=quick_java(master, conf), on_progress=self._settings.on_start)
                self._spark = beside(started)
        # Makes it the active one of this thread: without, a writer does not find Python sinks (4.0 to 4.3).
        self._spark.createDataFrame([], "none int")
        self._spark.dataSource.register(SyphonSink)
        if self._settings.checkpoint is None:
            write_quickly(self._spark)
        return self._spark

    def source_options(self) -> dict[str, str]:
        """Return the options of the lock stream."""
        options = {
            **as_options(self._secondary),
            "entity": ",".join(self._paths),
            "mode": "lock",
            "maxMessagesPerTrigger": str(self._settings.messages_per_trigger),
            "minPartitions": str(self._settings.min_partitions),
            "board": self._mailbox.folder,
        }
        if self._settings.max_rate is not None:
            options["maxRate"] = str(self._settings.max_rate)
        return options

    def _sink_options(self) -> SinkOptions:
        return SinkOptions(
            self._primary,
            self._secondary,
            self._mailbox.folder,
            count_backlog_time=self._settings.count_backlog_time,
            is_replay=self._settings.dead_letters,
            wants_events=self._ledger is not None,
        )

    def _query(self, spark: SparkSession) -> StreamingQuery:
        self._begun = 0
        rows = spark.readStream.format("servicebus").options(**self.source_options()).load()
        context = spark.sparkContext
        if (context.master or "").startswith("local["):
            # A task for each core, not for each queue: to start one costs more than to move a hundred messages. Where
            # executors come and go, their number is Spark's to know.
            rows = rows.coalesce(context.defaultParallelism)
        return (
            rows.writeStream.format(NAME)
            .option("syphon", as_text(self._sink_options()))
            .option("checkpointLocation", str(self._settings.checkpoint or f"file:{self._folder}/checkpoint"))
            .queryName(f"pairbus-syphon-{self._folder.name[-8:]}")
            .start()
        )

    def _keep_running(self, spark: SparkSession, looking: LoopThread) -> list[draining.Unavailable]:
        if self._stop.is_set():
            return []
        query = self._query(spark)
        delay, broke_at = RESTART_S_FIRST, 0.0
        if self._settings.on_running is not None:
            self._settings.on_running()
        try:
            while not self._stop.wait(look_s(self._settings.drain, time.monotonic() - self._moved_at)):
                self._hear()
                if not query.isActive:
                    error = query.exception()
                    self._breaks += 1
                    if "stage failure" in str(error):  # one that failed elsewhere had no task to lose
                        with self._lock:
                            self._heard_of_lost_tasks(1)
                    if self._settings.drain and self._breaks >= DRAIN_STRIKES:
                        raise PairbusError(f"the query failed {self._breaks} times in a row: {first_line(error)}")
                    if time.monotonic() - broke_at > RESTART_S_MAX:
                        delay = RESTART_S_FIRST
                    _log.warning("the query ended (%s); started again in %.0f s", first_line(error), delay)
                    if self._stop.wait(delay):
                        break
                    delay, broke_at = min(RESTART_S_MAX, delay * 2), time.monotonic()
                    query = self._query(spark)
                elif self._settings.drain and self._is_settled(query) and self._is_empty(looking):
                    return []
                elif self._settings.drain and self._is_quiet(query):
                    verdict = self._judge(looking)
                    if isinstance(verdict, draining.Finished):
                        return verdict.remaining
                    if verdict is not None:
                        with self._lock:
                            wanted = self._chosen(set(verdict.paths))
                        self._give_back(looking, wanted)
                elif not self._settings.drain:
                    self._revive(looking)
                elif self._has_moved and not self._is_counted:
                    self._is_counted = True
                    looking.start(self._count())
            return []
        finally:
            self._finish(query, looking)

    def _finish(self, query: StreamingQuery, looking: LoopThread) -> None:
        """Wait for the batch in progress; then give back what was left to its lock."""
        if is_gone():
            self._hear()
            if self._stop.is_set():
                self._give_back(looking, list(self._left))
            return
        self._mailbox.raise_flag(STOP)
        deadline = time.monotonic() + self._settings.stop_s
        while query.isActive and time.monotonic() < deadline and not self._source_stopped:
            self._hear()
            time.sleep(LOOK_S_SOON)
        query.stop()
        self._hear()
        self._give_back(looking, list(self._left))

    # -- messages of the other processes

    def _hear(self) -> None:
        with self._lock:
            for notice in self._mailbox.read_new(POLLS):
                self._heard_of_source(notice)
            for notice in self._mailbox.read_new(MOVES):
                self._heard_of_sink(notice)
            if self._ledger is not None:
                self._write_events()
            self._tell_halts()
            now = time.time()
            for token in [token for token, left in self._left.items() if left.end <= now]:
                del self._left[token]

    def _tell_halts(self) -> None:
        """Send the application's pauses of destinations to the source, which holds their messages back."""
        if self._settings.halted_until is None:
            return
        now, wall = time.monotonic(), time.time()
        halts = {path: until for path in self._known if (until := self._settings.halted_until(path)) > now}
        if halts != self._halts:
            self._halts = halts
            self._mailbox.append(HALTS, {"halts": {path: wall + until - now for path, until in halts.items()}})

    def _heard_of_source(self, notice: dict[str, Any]) -> None:
        if "epoch" in notice:
            self._begun = notice["epoch"]
            self._missing.difference_update(notice["entities"])
        elif "stopped" in notice:
            self._source_stopped = True
        elif "error" in notice and notice["condition"] in GONE:
            self._heard_of_missing(notice["entity"], was_there=notice["kind"] == "LinkLost")
        elif "error" in notice:
            self._failures += 1
            self.progress.waiting_for = f"the secondary: {notice['error']}"
            if notice["kind"] == "Unauthorized" and self._settings.on_access is not None:
                self._settings.on_access("secondary", refusal(notice["error"]))
        else:
            self._missing.discard(notice["entity"])
            self.progress.polled()
            if self._ledger is not None:
                path = notice["entity"]
                queue = self._indexes.get(path.removesuffix("/$DeadLetterQueue"))
                self._ledger.event(
                    "poll", notice["t"], self._settings.secondary.label, path, size=0, cause="syphon", queue=queue
                )

    def _heard_of_missing(self, path: str, *, was_there: bool) -> None:
        """Note that a queue is missing: it is looked for again, the others flow meanwhile, and nothing is wrong with
        the secondary."""
        self._missing.add(path)
        if was_there:
            _log.warning("%s does not exist any more; it is looked for again", path)
        if self._missing.issuperset(self._paths):
            self.progress.waiting_for = "none of the backlog queues exists"

    def _heard_of_sink(self, notice: dict[str, Any]) -> None:
        now, wall = time.monotonic(), time.time()
        self._failures = self._breaks = 0
        self.progress.waiting_for = None
        moved = sum(notice["moved"].values())
        self._has_moved = self._has_moved or moved > 0
        self._known.update(notice["moved"], notice["troubles"], (path for _, _, path, _, _ in notice["left"]))
        if lost := notice.get("retried", 0):
            self._heard_of_lost_tasks(lost)
        for path, count in notice["moved"].items():
            self.progress.moved(path, count, notice["bytes"] * count // max(1, moved), now)
        for path, count in notice["dead_lettered"].items():
            self.progress.dead_lettered(path, count)
        for queue, token, path, end, is_refused in notice["left"]:
            self.progress.left(path, 1)
            if end > wall:
                self._left[queue, token] = _Left(path, end, is_refused)
        self._heard_of_destinations(notice, moved, now)
        if moved or notice["dead_lettered"] or notice["left"]:
            self._moved_at = now
            self._has_glanced = False

    def _heard_of_destinations(self, notice: dict[str, Any], moved: int, now: float) -> None:
        for path in notice["moved"]:
            self._troubles.pop(path, None)
        for path, (verdict, text, condition, strikes) in notice["troubles"].items():
            known = self._troubles.get(path)
            seen = strikes if known is None else max(strikes, known.strikes + (1 if path not in notice["moved"] else 0))
            until = now + pause(RefusalVerdict(verdict), seen)
            self._troubles[path] = Trouble(RefusalVerdict(verdict), text, condition, seen, now, until)
        for queue, number, enqueued, reason in notice["refused"]:
            self._refused[queue, number, enqueued] = reason
        for which in _BOTH:
            if self._settings.on_access is not None and (which in notice["denied"] or moved):
                text = notice["denied"].get(which)
                self._settings.on_access(which, None if text is None else refusal(text))
        if self._settings.on_busy is not None:
            for path in notice["busy"]:
                self._settings.on_busy(path)

    def _heard_of_lost_tasks(self, count: int) -> None:
        """Note that tasks died: the messages that they had moved are moved, but their number is unknown."""
        self.progress.lost_tasks += count
        _log.warning("%d tasks died before they could tell what they had moved; it is not in the count", count)
        if self._ledger is not None:
            self._ledger.skip(count)  # a gap: what was sent before it is unknown to an audit, never lost

    def _write_events(self) -> None:
        assert self._ledger is not None
        for notice in self._mailbox.read_new(EVENTS):
            for kind, t, entity, message_id, size, outcome, queue in notice["events"]:
                label = self._settings.label("primary" if kind == "move" else "secondary")
                self._ledger.event(
                    kind, t, label, entity, mid=message_id, size=size, outcome=outcome, cause="syphon",
                    queue=self._indexes.get(queue),
                )  # fmt: skip
        self._ledger.flush()

    # -- a drain

    def _is_at_work(self, query: StreamingQuery) -> bool:
        """Return whether the source has begun a batch that Spark has not reported as done; the first begins with the
        query."""
        done = query.lastProgress
        if done is None:
            return True
        end = done["sources"][0]["endOffset"]
        return bool(self._begun > (json.loads(end) if end else {}).get("epoch", 0))

    def _is_settled(self, query: StreamingQuery) -> bool:
        """Return whether it is time for a glance: once after each movement, and only where every message that was taken
        has gone home. With destinations in trouble it takes the whole look, and its pauses."""
        if self._has_glanced or self._troubles or self._left or self._refused:
            return False
        return time.monotonic() - self._moved_at > GLANCE_S and not self._is_at_work(query)

    def _is_empty(self, looking: LoopThread) -> bool:
        """Return whether a peek at each queue finds nothing. Where it fails, the looks that follow deal with
        that."""
        self._has_glanced = True
        try:
            if looking.run(self._glance()):
                return False
        except (WireError, TimeoutError):
            return False
        with self._lock:
            self.progress.counted(0)
        return True

    def _is_quiet(self, query: StreamingQuery) -> bool:
        return time.monotonic() - self._moved_at > QUIET_S and not self._is_at_work(query)

    def _judge(self, looking: LoopThread) -> draining.Finished | draining.TryAgain | None:
        self._moved_at = time.monotonic()
        try:
            seen = looking.run(self._scan())
        except WireError as error:
            self._failures += 1
            if self._failures >= DRAIN_STRIKES:
                raise
            self.progress.waiting_for = f"the secondary: {error}"
            return None
        with self._lock:
            self.progress.counted(len(seen))
            return draining.judge(seen, _Known(self._troubles), time.monotonic(), self._refused)

    def _revive(self, looking: LoopThread) -> None:
        """Give back messages before their locks end, which is the back-off while a destination is away, and
        not after: all those of one that is back, one of each that may be tried again."""
        now = time.monotonic()
        with self._lock:
            due = {path for path, trouble in self._troubles.items() if trouble.until <= now}
            wanted = self._chosen(due)
            for path in due:
                trouble = self._troubles[path]
                self._troubles[path] = trouble._replace(until=now + pause(trouble.verdict, trouble.strikes))
        self._give_back(looking, wanted)

    def _chosen(self, due: set[str]) -> list[tuple[str, str]]:
        wanted: list[tuple[str, str]] = []
        tried: set[str] = set()
        for token, (path, _, is_refused) in self._left.items():
            if is_refused:  # it would only be received and refused once more
                continue
            if path not in self._troubles or (path in due and path not in tried):
                wanted.append(token)
                tried.add(path)
        return wanted

    def _give_back(self, looking: LoopThread, tokens: list[tuple[str, str]]) -> None:
        if tokens:
            looking.run(self._release(tokens))

    async def _scan(self) -> list[draining.Seen]:
        seen: list[draining.Seen] = []
        async with connections.endpoint(self._secondary).client() as client:
            for path in self._paths:
                queue = path.removesuffix("/$DeadLetterQueue")
                with contextlib.suppress(NotFound):
                    seen += [each async for each, _ in inspection.scan(client, queue, path)]
        return seen

    async def _glance(self) -> bool:
        """Return whether there is any message, for any destination, locked or not."""
        async with asyncio.timeout(GLANCE_S_MAX), connections.endpoint(self._secondary).client() as client:
            for path in self._paths:
                with contextlib.suppress(NotFound):
                    async for _ in inspection.scan(client, path, path, 1):
                        return True
        return False

    async def _count(self) -> None:
        """Count about how many are left, for the progress display; where the caller has not said so, or a look found
        out."""
        if self.report().remaining is not None:
            return
        count = 0
        with contextlib.suppress(WireError, AmqpError):
            async with connections.endpoint(self._secondary).client() as client:
                for path in self._paths:
                    with contextlib.suppress(NotFound):
                        count += await _span(client, path)
            if count <= COUNT_MAX and self.report().remaining is None:
                with self._lock:
                    self.progress.counted(count)

    async def _release(self, tokens: list[tuple[str, str]]) -> None:
        by_queue: dict[str, list[UUID]] = {}
        for queue, token in tokens:
            self._left.pop((queue, token), None)
            by_queue.setdefault(queue, []).append(UUID(token))
        async with connections.endpoint(self._secondary).client() as client:
            for queue, given in by_queue.items():
                await client.settle_each(queue, given, ABANDONED, timeout=GIVE_BACK_S)


class _Known:
    """Answers the questions of `draining.judge` about destinations, from the workers' reports."""

    def __init__(self, troubles: dict[str, Trouble]) -> None:
        self._troubles = troubles

    def trouble(self, path: str) -> Trouble | None:
        return self._troubles.get(path)

    def troubled(self) -> list[tuple[str, Trouble]]:
        return list(self._troubles.items())

    def due(self, now: float) -> list[str]:
        return list(self._troubles)


async def _span(client: WireClient, path: str) -> int:
    """Return how many sequence numbers lie from the first message to the last, in all partitions: some dozens of peeks
    at one message each, where a look at all of them would take about as long as to move them."""
    found = await ask_async(search_ranges({}), partial(_number_from, client, path))
    return sum(each.span for each in found.values())


async def _number_from(client: WireClient, path: str, number: int) -> int | None:
    for payload in await client.peek(path, number, 1):
        found = annotations_of(payload).get("x-opt-sequence-number")
        return found if isinstance(found, int) else None
    return None
