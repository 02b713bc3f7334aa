"""Hosts the syphon inside an application: starts its engine again after errors, and follows its two clients.

A shell on one event loop: `aio/syphon.py` runs it on the application's loop, `sync/syphon.py` on that of a thread.
`pair_lifecycle` decides what follows when a client closes or loses access.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from pairbus.billing import SYPHON
from pairbus.pairing.backlog import backlog_queues
from pairbus.pairing.errors import ClientFaultedError, PairingError, PairingFailed
from pairbus.pairing.events import ClientFaulted, Event, SyphonStarted, SyphonStopped
from pairbus.syphon.core.pair_lifecycle import Fault, PairLifecycle, StartSyphon, StopSyphon, Which
from pairbus.syphon.core.queue_discovery import Listed, QueueDiscovery
from pairbus.wire.errors import Unauthorized, WireError

from .engine import Outcome, SyphonEngine
from .listing import Lister
from .settings import SyphonSettings

RESTART_S_FIRST: Final = 1.0
RESTART_S_MAX: Final = 60.0
#: For the attempt to read, before pairing is done.
LISTEN_S: Final = 5.0

_log = logging.getLogger("pairbus.syphon")


class Halts(Protocol):
    """The busy pauses that the paired client knows of. May be called from any thread."""

    def busy(self, entity: str) -> None: ...
    def halted_until(self, entity: str) -> float: ...


#: The module of the Spark engine.
SPARK: Final = "pairbus.spark.syphon.engine"
#: How long pairing waits for the query of the Spark engine: a driver's JVM takes seconds to start, and executors of a
#: busy cluster may be long in coming.
START_S: Final = 120.0
#: How long a stop waits for the batch in progress; what it does not finish is left to its locks.
BATCH_S: Final = 3.0


def check_engine(engine: str) -> None:
    """Raise PairingError if the engine that is asked for is not installed."""
    if not is_installed(engine):
        raise PairingError(
            "enable_syphon=True runs the syphon on Spark, which is not installed: install pairbus[spark], or give "
            'syphon_engine="in-process", which needs no Java and serves where there is little to move'
        )


def is_installed(engine: str) -> bool:
    return engine == "in-process" or all(map(_is_found, ("pyspark", SPARK)))


def _is_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


class Engine(Protocol):
    """What both engines are to their host: `run` until `stop`."""

    async def run(self) -> Outcome: ...
    def stop(self) -> None: ...


def maker_of(engine: str) -> Callable[[SyphonSettings], Engine]:
    """Return what makes the engine that the options name. Raises PairingError where it is not installed."""
    check_engine(engine)
    made: Callable[[SyphonSettings], Engine] = (
        SyphonEngine if engine == "in-process" else importlib.import_module(SPARK).of
    )
    return made


class HostedSyphon:
    """`announce` and `fault` are called on the loop and must not block. `client_closed` may come from any thread.

    `list_queues` gives the names of the secondary's queues, and is called on the loop: backlog queues that other
    applications make while it runs are read as well. Without it those of the settings are all that is read.
    `waits`: pairing is complete when the engine runs, and fails where that can't be started.
    """

    #: How long its stop may take: the client's closing has five seconds for all.
    stop_s = 4.5

    def __init__(
        self,
        settings: SyphonSettings,
        make_engine: Callable[[SyphonSettings], Engine],
        *,
        primary_name: str,
        announce: Callable[[Event], None],
        fault: Callable[[Which, ClientFaultedError], None],
        fault_partner: bool = True,
        halts: Halts | None = None,
        list_queues: Callable[[], Awaitable[Sequence[str]]] | None = None,
        waits: bool = False,
    ) -> None:
        self._settings = replace(
            settings,
            on_access=self._access,
            on_running=self._is_running,
            halted_until=None if halts is None else halts.halted_until,
            on_busy=None if halts is None else halts.busy,
            stop_s=BATCH_S,
        )
        self._make_engine = make_engine
        self._primary_name = primary_name
        self._queues = list(settings.queues)
        self._list_queues = list_queues
        self._announce = announce
        self._fault = fault
        self._waits = waits
        self._lifecycle = PairLifecycle(settings.primary.label, settings.secondary.label, fault_partner=fault_partner)
        self._running: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._engine: Any = None
        self._runner: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"<HostedSyphon {'stopped' if self._is_stopped else self._engine or 'at rest'}>"

    async def check_listen(self) -> None:
        """Raises PairingFailed where the secondary refuses to let a backlog queue be read. Only a refusal counts: one
        that can't be reached is tried again forever, once the syphon runs."""
        secondary = self._settings.secondary._replace(cause=SYPHON)
        async with secondary.client(timeout=LISTEN_S) as client:
            opened = await asyncio.gather(*(client.receiver(path) for path, _ in self._queues), return_exceptions=True)
        for (path, _), refusal in zip(self._queues, opened, strict=True):
            if isinstance(refusal, Unauthorized):
                raise PairingFailed(
                    f"the syphon can't read {path} of {secondary.label}: {refusal}; with enable_syphon=True the client"
                    " of the secondary needs the Listen right there: give it, or leave the syphon to another process"
                )

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._list_queues is None:
            _log.warning(
                "the syphon reads backlog queues 0 to %d of %s only: without an administration client it can't list"
                " those that other applications have made; give it one, or the largest backlog_queue_count among them",
                self._queues[-1][1],
                self._primary_name,
            )
        self._run()
        if self._waits:
            await self._runs()

    async def _runs(self) -> None:
        """Return when the query of the Spark engine runs. Raises PairingError where that fails."""
        self._running = self._loop.create_future()
        try:
            async with asyncio.timeout(START_S):
                await self._running
        except TimeoutError:
            await self.stop()
            raise PairingError(f"the syphon's query on Spark did not run within {START_S:.0f} s") from None
        except BaseException:
            await self.stop()
            raise

    def _is_running(self) -> None:
        if self._running is not None and not self._running.done():
            self._running.set_result(None)

    async def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._stopping is not None:  # by a fault, a moment ago
            await asyncio.gather(self._stopping, return_exceptions=True)
        await self._halt()

    def client_closed(self, which: Which) -> None:
        """Note that a client was closed. May be called from any thread."""
        if not self._is_stopped:
            self._loop.call_soon_threadsafe(self._closed, which)

    def _closed(self, which: Which) -> None:
        self._lifecycle.closed(which, self._loop.time())
        self._attend()

    # -- the engine

    def _run(self) -> None:
        if self._runner is None and not self._is_stopped:
            self._runner = self._loop.create_task(self._keep_running(), name="pairbus-syphon")

    async def _keep_running(self) -> None:
        delay = RESTART_S_FIRST
        while True:
            began = self._loop.time()
            engine = self._engine = self._make_engine(
                replace(self._settings, queues=self._queues, lister=self._lister())
            )
            self._announce(SyphonStarted())
            try:
                await engine.run()
                return
            except Exception as error:
                _log.exception("the syphon broke and is started again")
                self._engine = None  # there is nothing to stop
                if self._running is not None and not self._running.done():
                    why = (str(error).splitlines() or ["no reason given"])[0]
                    self._running.set_exception(PairingError(f"the syphon's query on Spark can't be started: {why}"))
                self._announce(SyphonStopped(error))
            delay = RESTART_S_FIRST if self._loop.time() - began > RESTART_S_MAX else min(RESTART_S_MAX, delay * 2)
            await asyncio.sleep(delay)

    def _lister(self) -> Lister | None:
        if self._list_queues is None:
            return None
        known = [path for path, _ in self._queues]
        return Lister(QueueDiscovery(self._primary_name, self._settings.secondary.label, known), self._find)

    async def _find(self) -> list[Listed]:
        """Look for queues on the engine's loop; an engine that is started again begins with those that were found."""
        if asyncio.get_running_loop() is self._loop:
            names = await self._named()
        else:
            names = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._named(), self._loop))
        found = {
            name: number for name in names if (number := backlog_queues.index_of(name, self._primary_name)) is not None
        }
        known = {path.lower() for path, _ in self._queues}
        self._queues += [(name, number) for name, number in found.items() if name.lower() not in known]
        return [Listed(name, number, 0, 0) for name, number in found.items()]

    async def _named(self) -> Sequence[str]:
        assert self._list_queues is not None
        return await self._list_queues()

    async def _halt(self) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if self._engine is not None:
            self._engine.stop()
            await asyncio.wait({runner}, timeout=self.stop_s)
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
        if self._runner is None:  # else it runs again already
            self._engine = None

    # -- the two clients

    def _access(self, which: Which, error: WireError | None) -> None:
        if error is None:
            self._lifecycle.granted(which)
        else:
            self._lifecycle.refused(which, str(error), self._loop.time())
        self._attend()

    def _attend(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._lifecycle.deadline
        if deadline is not None and not self._is_stopped:
            self._timer = self._loop.call_at(deadline, self._ticked)

    def _ticked(self) -> None:
        self._timer = None
        for command in self._lifecycle.tick(self._loop.time()):
            match command:
                case Fault(which, text):
                    error = ClientFaultedError(text)
                    self._fault(which, error)
                    self._announce(ClientFaulted(self._settings.label(which), error))
                    self._stop_soon(error)
                case StopSyphon(text):
                    _log.warning("%s", text)
                    self._stop_soon(PairingError(text))
                case StartSyphon():
                    self._run()
        self._attend()

    def _stop_soon(self, error: Exception) -> None:
        async def stop() -> None:
            await self._halt()
            self._announce(SyphonStopped(error))

        self._stopping = self._loop.create_task(stop())


def fault_client(client: Any, error: ClientFaultedError) -> None:
    """Make every call of the client raise `error` from now on, except closing it."""
    if hasattr(type(client), "_fault"):
        client._fault = error  # one of ours: it checks at each use
        return

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    for name in ("get_queue_sender", "get_topic_sender", "get_queue_receiver", "get_subscription_receiver"):
        setattr(client, name, refuse)
