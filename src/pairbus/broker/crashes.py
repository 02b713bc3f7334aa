"""Carries out the faults crash-entity and crash-node on a namespace that is served.

    slow        what is asked of the entities is answered late, for half of the time
    down        their links are detached and everything is refused with an internal error; what differs between memory
                and journal is written to a file; what is in memory is thrown away and rebuilt from the journal
    serving     when the time is over and that is done, they are served again, on another node

A shell: tasks, timers, the file and the log. nodes.py decides on which node an entity is and goes to, restart.py
restarts it, and diagnostics.py finds the differences.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp import errors as conditions
from pairbus.broker.control.faults import Fault, Key, key_of
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.transaction import root_of
from pairbus.broker.operations.nodes import NODES, Nodes
from pairbus.broker.operations.restart import RestartFailed
from pairbus.broker.storage.diagnostics import report
from pairbus.broker.storage.durable_files import write_file
from pairbus.errors import InvalidFault, did_you_mean
from pairbus.journal import JournalCorrupt, JournalError
from pairbus.journal.files import make_folder

from .refusal import Refusal

if TYPE_CHECKING:
    from .server import NamespaceServer

log = logging.getLogger("pairbus.broker.crashes")

CRASH_S: Final = 4.0
CRASH_S_MAX: Final = 300.0
DELAY_S: Final = 0.5
#: The share of its time in which a crash is slow before it is down.
SLOW_SHARE = 0.5
#: How many files of diagnostics are kept for a namespace.
FILES_MAX: Final = 20
_FOLDER: Final = "diagnostics"
#: How soon the journal is read once more after it could not be.
_RETRY_S: Final = 1.0
#: By so much a fault may end before its time, as two clocks tell it.
_EARLY_S: Final = 0.01
_TEXT: Final = "The service was unable to process the request; please retry the operation. ({what} is being restarted.)"


class _Crash:
    """One crash in progress."""

    __slots__ = ("_is_over", "began_at", "ends_at", "fault", "is_cancelled", "names", "node", "task")

    def __init__(self, fault: Fault, node: int, names: list[str], began_at: float, ends_at: float) -> None:
        self.fault = fault
        self.node = node
        #: The queues and topics.
        self.names = names
        self.began_at = began_at
        #: By the loop's time, at which its fault ends unless somebody ends it before.
        self.ends_at = ends_at
        self.is_cancelled = False
        self.task: asyncio.Task[None]
        self._is_over = asyncio.Event()

    def __repr__(self) -> str:
        return f"<_Crash of node {self.node}: {', '.join(self.names)}>"

    def end(self, now: float) -> None:
        """End it with its fault; before it is slow no longer, that means that it does not come about."""
        if not self._is_over.is_set():
            self.is_cancelled = now < self.ends_at - _EARLY_S
            self._is_over.set()

    async def wait(self, seconds: float | None) -> None:
        """Wait for this long, or until it ends; None: until it ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_over.wait()


class Crashes:
    """The nodes of a namespace and those of its entities that are being restarted."""

    def __init__(self, server: NamespaceServer, nodes: int = NODES) -> None:
        self.nodes = Nodes(nodes)
        self._server = server
        self._running: dict[Key, _Crash] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"<Crashes: {len(self._running)} under way, {self.nodes!r}>"

    @property
    def under_way(self) -> int:
        """How many crashes have begun and are not over."""
        return len(self._running)

    def begin(self, fault: Fault) -> Fault:
        """Begin the crash of a fault, and return the fault with its end; raises InvalidFault."""
        now = self._server.clock()
        seconds = CRASH_S if fault.until is None else fault.until - now
        if seconds > CRASH_S_MAX:
            raise InvalidFault(f"{fault.kind} lasts {CRASH_S_MAX:g} seconds at most, not {seconds:g}")
        node, names = self._chosen(fault)
        for crash in self._running.values():
            if both := set(names) & set(crash.names):
                raise InvalidFault(f"{min(both)!r} is being restarted already; wait until that is over")
        self._count += 1
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        # The name tells the order: files that are too many go by it.
        path = self._server.folder.absolute() / _FOLDER / f"{stamp}-{self._count:04d}-node-{node}.json"
        delay = DELAY_S if fault.delay is None else fault.delay
        begun = replace(fault, until=now + seconds, delay=delay, diagnostics=str(path))
        crash = self._running[key_of(begun)] = _Crash(begun, node, names, now, self._server.loop.time() + seconds)
        crash.task = asyncio.create_task(self._run(crash, seconds * SLOW_SHARE))
        crash.task.add_done_callback(partial(self._done, key_of(begun)))
        return begun

    def _chosen(self, fault: Fault) -> tuple[int, list[str]]:
        """Return the node of a fault, and the queues and topics that fail."""
        names = self._server.entity_names
        if fault.entity is None:
            assert fault.node is not None
            if fault.node >= self.nodes.count:
                raise InvalidFault(f"there is no node {fault.node}; the nodes are 0 to {self.nodes.count - 1}")
            found = self.nodes.on(fault.node, names)
            if not found:
                used = sorted({self.nodes.node_of(name) for name in names})
                there = f"there are some on {', '.join(map(str, used))}" if used else "there are none"
                raise InvalidFault(f"node {fault.node} has no entities; {there}")
            return fault.node, found
        target = self._server.namespace.resolve(fault.entity.strip("/"))
        if target is None or target.entity.deleting:
            hint = did_you_mean(fault.entity, names)
            raise InvalidFault(f"{self._server.name} has no {fault.entity!r}; {hint}{fault.kind} needs one that exists")
        owner = root_of(target.entity)
        node = self.nodes.node_of(owner)
        if fault.kind == "crash-node":
            return node, self.nodes.on(node, names)
        return node, [name for name in names if name.lower() == owner]

    def follow(self) -> None:
        """End the crashes whose faults have ended."""
        for key, crash in self._running.items():
            if not self._server.faults.has(key):
                crash.end(self._server.loop.time())

    async def stop(self) -> None:
        """Leave everything as it is: the broker is shutting down."""
        tasks = [crash.task for crash in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, key: Key, task: asyncio.Task[None]) -> None:
        del self._running[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a restart failed", self._server.name, exc_info=error)

    # -- one crash

    async def _run(self, crash: _Crash, slow_s: float) -> None:
        server, namespace = self._server, self._server.namespace
        log.warning("%s: node %d is slow: %s", server.name, crash.node, ", ".join(crash.names))
        server.faults.slow_down(crash.names, crash.fault.delay or 0.0)
        try:
            await crash.wait(slow_s)
        finally:
            server.faults.slow_down(crash.names, 0.0)
        if crash.is_cancelled:
            log.warning("%s: node %d does not fail: the fault was ended", server.name, crash.node)
            return
        if crash.fault.kind == "crash-node":
            crash.names = self.nodes.on(crash.node, server.entity_names)
        found = [namespace.registry.find(name) for name in crash.names]
        owners = [owner for owner in found if owner is not None and not owner.deleting]
        old = [part for owner in owners for part in owner.with_parts()]
        what = repr(owners[0].name) if len(owners) == 1 else f"node {crash.node}"
        refusal = Refusal(conditions.INTERNAL_ERROR, _TEXT.format(what=what))
        server.detach({each for part in old for each in (part, part.active, part.dead_letter)}, refusal)
        namespace.restart.suspend(old, refusal)
        served: Sequence[QueueEntity] = old
        try:
            served = await self._restart(crash, old, refusal)
            self.nodes.move(crash.names)
            self.nodes.forget_others(server.entity_names)
            await crash.wait(None)
        except (RestartFailed, JournalCorrupt) as error:
            log.error("%s: node %d can't be restarted, and goes on as it was: %s", server.name, crash.node, error)
        finally:
            namespace.restart.resume([entity for entity in served if not entity.deleted])
        moved = ", ".join(f"{name} on node {self.nodes.node_of(name)}" for name in crash.names)
        log.warning("%s: served again: %s", server.name, moved)

    async def _restart(self, crash: _Crash, old: Sequence[QueueEntity], refusal: Refusal) -> list[QueueEntity]:
        """Rebuild entities that are suspended, however often the disk can't be read, and return them."""
        server, namespace = self._server, self._server.namespace
        while True:
            try:
                async with namespace.restart.rebuilding(old, server.run_aside) as rebuilt:
                    said = await server.run_aside(partial(report, self._head(crash), rebuilt.old, rebuilt.by_id))
                    await self._write(crash, said)
                    return namespace.restart.replace(rebuilt, refusal, server.clock())
            except (RestartFailed, JournalCorrupt):
                raise
            except JournalError as error:
                log.warning("%s: the journal can't be read again, which is tried on: %s", server.name, error)
                await asyncio.sleep(_RETRY_S)

    def _head(self, crash: _Crash) -> dict[str, Any]:
        now = self._server.clock()
        return {
            "namespace": self._server.name,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
            "fault": crash.fault.kind,
            "node": crash.node,
            "slow_s": round(now - crash.began_at, 3),
            "failed": crash.names,
        }

    async def _write(self, crash: _Crash, data: bytes) -> None:
        path = Path(crash.fault.diagnostics or "")
        try:
            await self._server.write_diagnostics(path, data)
        except OSError as error:
            log.warning(
                "%s: the diagnostics of node %d can't be written to %s (%s); the restart goes on",
                self._server.name, crash.node, path, error.strerror or error,
            )  # fmt: skip
        else:
            log.warning("%s: node %d has failed and restarts; diagnostics: %s", self._server.name, crash.node, path)


def write_bounded(path: Path, data: bytes) -> None:
    """Write a file of diagnostics, and remove the oldest ones where there are too many. Raises OSError."""
    make_folder(str(path.parent))
    present = sorted(path.parent.glob("*.json"))
    for each in chain(present[: max(0, len(present) - FILES_MAX + 1)], path.parent.glob("*.new")):
        each.unlink(missing_ok=True)
    write_file(path, data)
