"""The in-process engine of the syphon: one asyncio loop that moves messages from backlog queues to the primary.

A shell around `transfer_state`, `rate_limit` and `draining`, which decide: it owns connections, links, timers and the
ledger's file. `backlog_reader.py` reads and settles one backlog queue, `destination_sender.py` sends to one
destination. Messages are moved as bytes and never decoded as a whole.

While the primary can't be reached at all nothing is received: messages are safe in the backlog, and each receive costs
money. A failed connection is tried again forever; in a drain, which somebody waits for, it soon becomes an error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pairbus.billing import SYPHON
from pairbus.errors import PairbusError
from pairbus.syphon.core.arrival import message_id_of
from pairbus.syphon.core.destinations import Destinations, RefusalVerdict, verdict_of
from pairbus.syphon.core.pair_lifecycle import Which
from pairbus.syphon.core.progress import Progress, Report
from pairbus.syphon.core.queue_discovery import Listed
from pairbus.syphon.core.rate_limit import RateLimit
from pairbus.syphon.core.transfer import (
    Command,
    Complete,
    DeadLetter,
    Key,
    Leave,
    PendingTransfer,
    Rejection,
    Release,
    Renew,
)
from pairbus.syphon.core.transfer_index import LEFT_MAX
from pairbus.syphon.core.transfer_state import TransferState
from pairbus.wire import WireClient
from pairbus.wire.errors import LockLost, Unauthorized, WireError

from . import backlog_reader, inspection
from .backlog_reader import BacklogReader
from .core import draining
from .destination_sender import OPEN_S, DestinationSender
from .settings import SyphonSettings

if TYPE_CHECKING:
    pass

#: Messages and bytes in hand beyond which nothing more is asked for.
ROOM: Final = 100_000
ROOM_BYTES: Final = 64 * 1024 * 1024
#: How long readers wait for a destination that already has many messages in hand.
CROWDED_S: Final = 0.02
#: Connections of their own for destinations that could not be reached.
ISOLATED_MAX: Final = 32
SENDERS_MAX: Final = 1_000
#: A stop waits so long for answers of the primary, then for the backlog, then for the ends of links and connections:
#: together it leaves the client that hosts the syphon a second of its five.
STOP_S: Final = 2.0
RELEASE_S: Final = 1.0
CLOSE_S: Final = 0.5
#: A drain gives up after so many failed connections in a row.
DRAIN_STRIKES: Final = 3
RECONNECT_S_FIRST: Final = 0.2
RECONNECT_S_MAX: Final = 15.0
LEDGER_FLUSH_S: Final = 0.2

_log = logging.getLogger("pairbus.syphon")


class SyphonFailed(PairbusError):
    """A drain could not go on: `error` is the failure of the namespace `which`."""

    def __init__(self, which: Which, label: str, error: WireError) -> None:
        self.which = which
        self.error = error
        if isinstance(error, Unauthorized):
            right = "Send" if which == "primary" else "Listen"
            text = f"the {which} {label} refuses access: {error}; the syphon needs the {right} right there"
        else:
            text = f"the {which} {label} can't be reached: {error}; without a drain it would be tried for ever"
        super().__init__(text)


class Outcome(NamedTuple):
    """`unavailable`: what a drain had to leave behind, by destination."""

    report: Report
    unavailable: list[draining.Unavailable]


class SyphonEngine:
    """Runs once: `run` until `stop`, or until a drain is over."""

    def __init__(self, settings: SyphonSettings, *, wall: Callable[[], float] = time.time) -> None:
        self.primary = settings.primary._replace(cause=SYPHON)
        self.secondary = settings.secondary._replace(cause=SYPHON)
        self.settings = settings
        self.wall = wall
        self.transfer_state = TransferState(
            Destinations(settings.halted_until), can_dead_letter=not settings.dead_letters
        )
        self.rate = RateLimit(settings.max_rate)
        self.loop: asyncio.AbstractEventLoop
        self.primary_client: WireClient
        self.secondary_client: WireClient
        self.progress = Progress(0.0)
        self.sources = [
            BacklogReader(self, path, index, is_replay=settings.dead_letters) for path, index in settings.queues
        ]
        self._sources = {source.queue: source for source in self.sources}
        self._senders: dict[str, DestinationSender] = {}
        self._isolated = 0
        #: Messages that can't be delivered and can't be dead-lettered (a replay): which, and why.
        self._refused: dict[Key, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closers: dict[asyncio.TimerHandle, Callable[[], Awaitable[Any]]] = {}
        self._tick: asyncio.TimerHandle | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._told: dict[str, str] = {}
        self._told_of_none = False
        self._is_stopping = False
        self._unavailable: list[draining.Unavailable] = []
        self._is_begun = False
        self._stop_wanted = False

    def __repr__(self) -> str:
        return f"<SyphonEngine {self.secondary.label} to {self.primary.label}: {len(self.sources)} queues>"

    # -- life

    async def run(self) -> Outcome:
        """Run until `stop` is called or a drain is over. Raises SyphonFailed if a drain can't go on."""
        self._begin()
        try:
            if not self._stop_wanted:
                await self._ended
        finally:
            await self._shut()
        return Outcome(self.report(), self._unavailable)

    def _begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.progress = Progress(self.loop.time())
        self.primary_client = self.primary.client(clock=self.wall, timeout=OPEN_S)
        self.secondary_client = self.secondary.client(clock=self.wall)
        self._ended: asyncio.Future[None] = self.loop.create_future()
        self._is_begun = True
        self._gate = asyncio.Event()
        self._doubt = asyncio.Event()
        self._doubt.set()
        self._room = asyncio.Event()
        self._quiet = asyncio.Event()
        self._round: asyncio.Future[None] = self.loop.create_future()
        self._readers: list[asyncio.Task[None]] = []
        if self.sources:
            self._read_from(self.sources)
        if self.settings.drain:
            self.spawn(self._keep_judging())
        elif self.settings.lister is not None:
            self.progress.waiting_for = self.settings.lister.discovery.waiting_for
            self.spawn(self.settings.lister.keep_listing(self._take_in))

    def _read_from(self, sources: Sequence[BacklogReader]) -> None:
        if not self._readers:
            self.spawn(self._keep_primary())
        self._readers += [self.spawn(source.run()) for source in sources]

    def _take_in(self, queues: Sequence[Listed]) -> None:
        """Read new queues as well, while the others go on undisturbed."""
        if self._is_stopping:
            return
        made = [BacklogReader(self, each.path, each.number, is_replay=self.settings.dead_letters) for each in queues]
        self._sources |= {source.queue: source for source in made}
        if not self.sources:
            self.progress.waiting_for = None
        self.sources += made
        self.progress.found(sum(each.dead_letters if self.settings.dead_letters else each.messages for each in queues))
        self._read_from(made)

    def stop(self) -> None:
        """End `run` within seconds; locked messages are released first. May be called more than once."""
        self._stop_wanted = True
        if self._is_begun:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _shut(self) -> None:
        try:
            await self._close()
        finally:  # also when nobody waits any longer for the end of this engine
            for task in tuple(self._tasks):
                task.cancel()
            self.primary_client.abort()
            self.secondary_client.abort()

    async def _close(self) -> None:
        self._is_stopping = True
        self._gate.clear()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self.carry_out(self.transfer_state.stop())
        await self._wait_until(lambda: not self.transfer_state.in_hand, STOP_S)
        self.carry_out(self.transfer_state.give_up())
        await self._wait_until(lambda: not any(task.get_name() == "release" for task in self._tasks), RELEASE_S)
        for timer in (self._tick, self._flush, *self._closers):
            if timer is not None:
                timer.cancel()
        closers = [closer() for closer in self._closers.values()]
        closers += [sender.close() for sender in self._senders.values()] + [source.stop() for source in self.sources]
        await _within(CLOSE_S, closers)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _within(CLOSE_S, [self.primary_client.close(), self.secondary_client.close()])
        if self.settings.ledger is not None:
            self.settings.ledger.flush()

    async def _wait_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        deadline = self.loop.time() + limit_s
        while not condition() and self.loop.time() < deadline:
            await asyncio.sleep(0.02)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        task = self.loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)
        return task

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._is_stopping:
            self._end(error)

    def later(self, seconds: float, closer: Callable[[], Awaitable[Any]]) -> None:
        """Close something once its outstanding answers have come, or when the engine stops."""

        def now() -> None:
            self._closers.pop(timer, None)
            self.spawn(_awaited(closer))

        timer = self.loop.call_later(seconds, now)
        self._closers[timer] = closer

    # -- whether to read

    async def may_read(self) -> None:
        while True:
            await self._gate.wait()
            wait_s = self.rate.wait_s(self.loop.time())
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            elif self.transfer_state.in_hand >= ROOM or self.transfer_state.in_hand_bytes >= ROOM_BYTES:
                self._room.clear()
                await self._room.wait()
            elif self.transfer_state.is_crowded(self.loop.time()):
                await asyncio.sleep(CROWDED_S)
            else:
                return

    def may_ask(self, count: int) -> int:
        return self.rate.batch(count, len(self.sources), self.loop.time())

    async def _keep_primary(self) -> None:
        """Keep the gate open while there is a connection to the primary, and reconnect after a failure."""
        failures = 0
        while True:
            await self._doubt.wait()
            if not self.primary_client.is_connected:
                self._gate.clear()
                try:
                    await self.primary_client.connect()
                except WireError as error:
                    failures += 1
                    if failures == 1:
                        await asyncio.gather(*(source.interrupt() for source in self.sources))
                    self.trouble_with("primary", error, failures)
                    if isinstance(error, Unauthorized):
                        self.access_refused("primary", error)
                    await asyncio.sleep(min(RECONNECT_S_MAX, RECONNECT_S_FIRST * 2.0 ** min(failures - 1, 10)))
                    continue
            failures = 0
            self.well("primary")
            self._doubt.clear()
            self._gate.set()

    def trouble_with(self, which: Which, error: WireError, failures: int) -> None:
        """Note that a connection failed rather than a message."""
        endpoint = self.primary if which == "primary" else self.secondary
        self.progress.waiting_for = f"the {which} can't be reached"
        if self.settings.drain:
            if failures >= DRAIN_STRIKES or isinstance(error, Unauthorized):
                self._end(SyphonFailed(which, endpoint.label, error))
        elif self._told.get(which) != error.condition:
            _log.warning("the %s %s: %s; it is tried again", which, endpoint.label, error)
        self._told[which] = error.condition

    def well(self, which: Which) -> None:
        if self._told.pop(which, None) is not None:
            _log.warning("the %s can be reached again", which)
        if not self._told:
            self.progress.waiting_for = None

    def access_refused(self, which: Which, error: WireError) -> None:
        if self.settings.on_access is not None:
            self.settings.on_access(which, error)

    def access_granted(self, which: Which) -> None:
        self.well(which)
        if which == "secondary":
            self._told_of_none = False
        if self.settings.on_access is not None:
            self.settings.on_access(which, None)

    def busy(self) -> None:
        self.rate.busy(self.loop.time())

    # -- from the backlog

    def polled(self, source: BacklogReader, began: float) -> None:
        """Note an empty receive."""
        self.progress.polled()
        if self.settings.ledger is not None:
            self.settings.ledger.event(
                "poll",
                self.wall(),
                self.secondary.label,
                source.path,
                size=0,
                ms=(self.loop.time() - began) * 1000,
                cause="syphon",
                queue=source.index,
            )
            self._flush_soon()

    def missing(self, source: BacklogReader, *, was_there: bool) -> None:
        """Note that a queue does not exist, which the secondary has answered. Logs when none exists at all, since
        without the Manage right they can't be listed, and when one existed before."""
        self.well("secondary")
        if was_there:
            _log.warning("%s does not exist any more; it is looked for again", source.path)
        else:
            _log.info("%s does not exist", source.path)
        if all(each.is_missing for each in self.sources) and not self._told_of_none:
            self._told_of_none = True
            _log.warning("none of the backlog queues exists (%s …); they are looked for again", self.sources[0].queue)
        self._look_if_quiet()

    def arrived(self, arrivals: list[PendingTransfer | Rejection], now: float) -> bool:
        """Add deliveries; return whether any of them could be sent."""
        if self.settings.ledger is not None:
            # every delivery is billed, whatever becomes of it
            transfers = [each.transfer if isinstance(each, Rejection) else each for each in arrivals]
            self._record("receive", self.secondary.label, None, transfers, "ok")
        commands, wanted = self.transfer_state.received(arrivals, now)
        left = sum(len(command.transfers) for command in commands if isinstance(command, Leave))
        self.rate.received(len(arrivals) - left, now)
        self.carry_out(commands)
        for path in wanted:
            self._sender_for(path).wake()
        if self._tick is None and self.transfer_state.deadline is not None:
            self._tick = self.loop.call_at(self.transfer_state.deadline, self._ticked)
        return bool(wanted)

    def can_take(self, path: str) -> bool:
        return self.transfer_state.destinations.obstacle(path, self.loop.time()) is None

    def next_trial_s(self) -> float:
        """Return the seconds until a destination that is away may be tried."""
        now = self.loop.time()
        ends = [trouble.until for _, trouble in self.transfer_state.destinations.troubled()]
        return max(0.05, min(ends, default=now + backlog_reader.SCOUT_S) - now)

    def _ticked(self) -> None:
        self._tick = None
        now = self.loop.time()
        self.carry_out(self.transfer_state.tick(now))
        if not self.settings.drain and self._gate.is_set():  # a drain asks for them when it has looked at what remains
            self.carry_out(self.transfer_state.revive(now))
        if self.transfer_state.deadline is not None:
            self._tick = self.loop.call_at(self.transfer_state.deadline, self._ticked)

    # -- to the primary

    def _sender_for(self, path: str) -> DestinationSender:
        sender = self._senders.get(path)
        if sender is None:
            if len(self._senders) >= SENDERS_MAX:
                idle = next((each for each in self._senders.values() if each.is_idle), None)
                if idle is not None:
                    self.forget_sender(idle)
            sender = self._senders[path] = DestinationSender(self, path)
        return sender

    def forget_sender(self, sender: DestinationSender) -> None:
        if self._senders.get(sender.path) is sender:
            del self._senders[sender.path]
            self.spawn(sender.close())

    def isolated_client(self) -> WireClient | None:
        if self._isolated >= ISOLATED_MAX:
            return None
        self._isolated += 1
        return self.primary.client(clock=self.wall, timeout=OPEN_S)

    async def close_isolated(self, client: WireClient) -> None:
        self._isolated -= 1
        await client.close()

    def confirmed(self, transfers: Sequence[PendingTransfer]) -> None:
        now = self.loop.time()
        path, size = transfers[0].path, sum(transfer.size for transfer in transfers)
        self.rate.moved(len(transfers), now)
        self.progress.moved(path, len(transfers), size, now)
        if self.settings.ledger is not None:
            self._record("move", self.primary.label, path, transfers, "ok")
        self.carry_out(self.transfer_state.confirmed(transfers))

    def not_confirmed(self, transfers: Sequence[PendingTransfer], error: WireError) -> None:
        now = self.loop.time()
        if self.settings.ledger is not None:
            self._record("move", self.primary.label, transfers[0].path, transfers, error.condition)
        self._look_into(transfers[0].path, error)
        self.carry_out(self.transfer_state.failed(transfers, error, now))

    def unsendable(self, path: str, error: WireError) -> None:
        self._look_into(path, error)
        self.carry_out(self.transfer_state.unsendable(path, error, self.loop.time()))

    def _look_into(self, path: str, error: WireError) -> None:
        if verdict_of(error) is RefusalVerdict.BUSY:
            now = self.loop.time()
            sender = self._senders.get(path)
            moved = 0.0 if sender is None else sender.moved_per_s(now)
            self.rate.busy(now, moved / (self.rate.measured(now) or 1.0))
            if self.settings.on_busy is not None:
                self.settings.on_busy(path)
        if not self.primary_client.is_connected:
            self._doubt.set()

    # -- commands

    def carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Complete(queue, transfers):
                    self._sources[queue].complete(transfers)
                case DeadLetter(queue, transfers, reason, description):
                    self._sources[queue].dead_letter(transfers, reason, description)
                case Leave():
                    self._leave(command)
                case Release(queue, transfers):
                    self.spawn(self._sources[queue].release(transfers), "release")
                case Renew(queue, transfers):
                    self.spawn(self._sources[queue].renew(transfers))

    def _leave(self, command: Leave) -> None:
        path, transfers, trouble = command
        self.progress.left(path, len(transfers))
        for transfer in transfers:
            self._sources[transfer.queue].left(1)
        if trouble.verdict is RefusalVerdict.REFUSED and len(self._refused) < LEFT_MAX:
            self._refused.update((transfer.key, f"{trouble.condition}: {trouble.text}") for transfer in transfers)
        for transfer in transfers:
            transfer.handle[2].payload = b""  # there may be very many of them, for a minute
        self._look_if_quiet()

    def settled(self, transfers: Sequence[PendingTransfer]) -> None:
        buried = [transfer for transfer in transfers if transfer.reason is not None]
        for transfer in buried:
            self.progress.dead_lettered(transfer.path, 1)
        if buried and self.settings.ledger is not None:
            self._record("dead-letter", self.secondary.label, None, buried, "ok")
        self.transfer_state.settled(transfers)
        self._room.set()
        self._look_if_quiet()

    def unsettled(self, transfers: Sequence[PendingTransfer], error: WireError) -> None:
        if not transfers:
            return
        lost = isinstance(error, LockLost)
        commands = self.transfer_state.unsettled(transfers, self.loop.time(), lock_lost=lost)
        if commands:
            # by token, and not at once: whatever took the link away takes its time
            self.spawn(self._after(0.5, commands))
        self._room.set()
        self._look_if_quiet()

    async def _after(self, seconds: float, commands: list[Command]) -> None:
        await asyncio.sleep(seconds)
        self.carry_out(commands)

    def renewed(self, transfers: Sequence[PendingTransfer]) -> None:
        self.transfer_state.renewed(transfers, self.loop.time())

    # -- draining

    async def look_again(self) -> None:
        """Wait until the next round; called by a reader that found nothing."""
        self._look_if_quiet()
        await asyncio.shield(self._round)

    def _look_if_quiet(self) -> None:
        if self.settings.drain and not self.transfer_state.in_hand and all(source.is_empty for source in self.sources):
            self._quiet.set()

    async def _keep_judging(self) -> None:
        failures = 0
        while True:
            await self._quiet.wait()
            self._quiet.clear()
            try:
                seen = [found async for found in self._scan()]
            except WireError as error:
                failures += 1
                self.trouble_with("secondary", error, failures)
                await asyncio.sleep(RECONNECT_S_FIRST)
                self._quiet.set()
                continue
            failures = 0
            now = self.loop.time()
            self.progress.counted(len(seen))
            verdict = draining.judge(seen, self.transfer_state.destinations, now, self._refused)
            if isinstance(verdict, draining.Finished):
                self._unavailable = verdict.remaining
                self._end(None)
                return
            for path in self.transfer_state.left_paths():
                if self.transfer_state.destinations.trouble(path) is None:
                    self.carry_out(self.transfer_state.retry(path, LEFT_MAX))
            for path in verdict.paths:
                self.carry_out(self.transfer_state.retry(path, 1))
            if not verdict.paths:
                await asyncio.sleep(max(0.05, verdict.at - now))
            for source in self.sources:
                source.is_empty = source.is_missing
            finished, self._round = self._round, self.loop.create_future()
            finished.set_result(None)

    async def _scan(self) -> Any:
        for source in self.sources:
            if not source.is_missing:
                async for seen, _ in inspection.scan(self.secondary_client, source.queue, source.path):
                    yield seen

    # -- telling

    def report(self) -> Report:
        now = self.loop.time() if self._is_begun else 0.0
        return self.progress.report(now, self.transfer_state.destinations.troubled())

    def _record(
        self, kind: str, ns: str, entity: str | None, transfers: Sequence[PendingTransfer], outcome: str
    ) -> None:
        ledger = self.settings.ledger
        assert ledger is not None
        t, now = self.wall(), self.loop.time()
        for transfer in transfers:
            source = self._sources[transfer.queue]
            ledger.event(
                kind,
                t,
                ns,
                entity or source.path,
                mid=message_id_of(transfer.handle[2].payload),
                seq=transfer.key[1],
                size=len(transfer.handle[2].payload) if kind == "receive" else transfer.size,
                outcome=outcome,
                ms=(now - transfer.since) * 1000,
                cause="syphon",
                queue=source.index,
            )
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flush is None and self.settings.ledger is not None:
            self._flush = self.loop.call_later(LEDGER_FLUSH_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        if self.settings.ledger is not None:
            self.settings.ledger.flush()


async def _within(limit_s: float, closings: Iterable[Awaitable[Any]]) -> None:
    """Await something for at most so many seconds, then cancel it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*closings, return_exceptions=True)


async def _awaited(closer: Callable[[], Awaitable[Any]]) -> None:
    await closer()
