"""The real broker as a process of the simulated world: on a simulated disk, network and clock.

Everything from the listener to the journal's files is the broker's own code. Simulated are the sockets, the files and
the clock; left out are TLS, the control socket and the key file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from pairbus.broker.access.keys import ROOT_RULE, KeyRing
from pairbus.broker.config.plan import NamespacePlan
from pairbus.broker.model.description import RIGHTS, AuthorizationRule
from pairbus.broker.server import Broker, NamespaceServer
from pairbus.broker.slices import Slices
from pairbus.journal import Journal, JournalStalled, Options
from pairbus.journal.log import ANSWERED, Answer, write_all

from .disk import MachineStopped, SimulatedDisk
from .loop import Clock, Process, SimulatedLoop
from .network import SimulatedNetwork

T = TypeVar("T")
KEY = "c2ltdWxhdGVk"
PORT = 5672
#: A broker waits for four minutes; simulated time is cheap, but not free.
IDLE_S = 20.0
_LOOK_S = 0.05
#: Of long work, in one turn of a broker's loop; and how long such a turn takes.
UNITS_MAX = 3
_TURN_S = 0.002
_ROOT = AuthorizationRule(key_name=ROOT_RULE, rights=RIGHTS, primary_key=KEY)


class SimulatedMachine:
    """A host with a disk and a clock, on which a broker is started, stopped, killed, or left without power."""

    def __init__(
        self,
        name: str,
        loop: SimulatedLoop,
        network: SimulatedNetwork,
        plan: NamespacePlan,
        options: Options,
        seed: str,
        has_standby: bool = False,
    ) -> None:
        self.name = name
        self.folders = {"home": f"/{name}/journal"} | ({"standby": f"/{name}-standby/journal"} if has_standby else {})
        self.clock = Clock(loop)
        self.disk = SimulatedDisk()
        self.process: Process | None = None
        self.server: NamespaceServer | None = None
        self._loop = loop
        self._network = network
        self._plan = plan
        self._options = options
        self._seed = seed
        #: Called with what the broker writes down when a node of it has failed.
        self.on_diagnosed: Callable[[dict[str, Any]], None] = lambda said: None
        #: How many answers said that no folder answers.
        self.refused_for_stalls = 0
        self._lives = 0
        self._thread: DiskThread | None = None
        self._had_power = True
        #: When the disk stopped the machine, since the broker last started; infinity: it has not.
        self.stopped_at = inf

    def __repr__(self) -> str:
        return f"<SimulatedMachine {self.name}: {self.process or 'no process'}>"

    @property
    def is_serving(self) -> bool:
        return self.process is not None and self.process.is_alive

    @property
    def is_behind(self) -> bool:
        """Whether settlements that were answered are to be written again, since the disk failed, or are not yet synced
        after that."""
        log = self.server.namespace.store.journal._log if self.is_serving and self.server is not None else None
        return log is not None and (log._redo != [] or any(entry[5] & ANSWERED for entry, _ in log._unsynced))

    @property
    def hangs_since(self) -> float:
        """Since when an operation of the journal has not returned, which nobody has noticed yet; infinity: all do."""
        return inf if self._thread is None or not self.is_serving else self._thread.hangs_since

    def stall(self, which: str, call: str = "") -> None:
        """Let a folder, or "all", no longer answer, from the next call of that name on, if it is given."""
        folders = [folder for name, folder in self.folders.items() if which in (name, "all")]
        if call:
            self.disk.stalls_at.update(dict.fromkeys(folders, call))
        else:
            self.disk.stalled.update(folders)

    def resume(self) -> None:
        """Let all folders answer."""
        with contextlib.suppress(MachineStopped):
            self.disk.resume()

    async def start(self) -> None:
        """Start the broker on what the disk holds; raises what the broker raises."""
        self._lives += 1
        if self.process is not None:
            self._network.power_back(self.process)
        process = self.process = Process(f"{self.name} {self._lives}")
        process.on_death.append(lambda: self._network.lose(process, silently=not self._had_power))
        self._had_power, self.stopped_at = True, inf
        self.disk.on_stop, self.disk.on_read = partial(self._stopped, process), self._was_read
        broker = _SimulatedBroker(self, process, random.Random(f"{self._seed} {process.name}"))
        await self._finish(process, broker.begin(self._plan))
        self.server = broker.namespaces[self.name]

    async def stop(self) -> None:
        """Stop the broker as a SIGTERM does."""
        if self.server is not None and self.process is not None and self.process.is_alive:
            await self._finish(self.process, self.server.stop())
            self.process.kill()

    async def _finish(self, process: Process, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run something in the process to its end, or raise MachineStopped when that comes first."""
        died = self._loop.create_future()
        process.on_death.append(lambda: died.done() or died.set_result(None))
        task: asyncio.Task[None] = process.run(self._loop.create_task, coroutine)
        await asyncio.wait((task, died), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise MachineStopped
        task.result()

    def kill(self) -> None:
        """End the process; the machine and its page cache go on."""
        if self.process is not None:
            self.process.kill()
        if self.disk.late and self.disk.chance.random() < 0.5:
            self.resume()  # what hangs ends with the process, or does its work before
        self._replace(self.disk.kill())

    def cut_power(self, chance: random.Random | None) -> None:
        """End the machine: of what was not synced any part may be on the disk, or, without chance, nothing."""
        self._had_power = False
        if self.process is not None:
            self.process.kill()
        self._replace(self.disk.power_cut(chance))

    def _stopped(self, process: Process) -> None:
        """The disk stopped, and with it the machine, in the middle of a call."""
        self._had_power, self.stopped_at = False, self._loop.now
        process.kill()

    def _was_read(self, folder: str) -> None:
        """A folder was read that does not answer: where that was known, the broker would hang for no reason."""
        if self._thread is not None and folder in self._thread.stalled:
            self._loop.problems.append(f"{folder} is known to be stalled, and was read")

    def _replace(self, disk: SimulatedDisk) -> None:
        """Go on with what is left, and with the faults that have not struck yet."""
        disk.faults = self.disk.faults
        self.disk = disk

    def open_journal(self, folder: Path) -> Journal:
        return Journal.open(
            self.folders["home"], self._options, self.disk, self._loop.time, self.folders.get("standby")
        )


class _SimulatedBroker(Broker):
    def __init__(self, machine: SimulatedMachine, process: Process, rng: random.Random) -> None:
        self._machine = machine
        self._process = process
        self._rng = rng
        super().__init__(
            Path("/nowhere"),
            host=machine.name,
            advertise=machine.name,
            emulator=False,
            durability="default",
            ledger=False,
            clock=machine.clock,
            salvage=False,
        )
        self.certificates = cast(Any, SimpleNamespace(server_context=lambda: None, ca_file="none"))

    async def begin(self, plan: NamespacePlan) -> None:
        """Start the one namespace."""
        server = NamespaceServer(self, plan)
        server.idle_timeout_s = IDLE_S
        self.namespaces = {plan.name: server}
        await server.reserve()
        await server.start()

    def make_slices(self) -> Slices:
        loop = self._machine._loop
        return Slices(_UnitClock(loop, self._process.name), partial(loop.call_later, _TURN_S), slice_s=UNITS_MAX)

    def open_keys(self, folder: Path) -> KeyRing:
        return KeyRing(folder, (_ROOT,))

    def open_journal(self, folder: Path, plan: NamespacePlan) -> Journal:
        return self._machine.open_journal(folder)

    async def run_aside(self, work: Callable[[], T]) -> T:
        return work()

    async def write_diagnostics(self, path: Path, data: bytes) -> None:
        self._machine.on_diagnosed(json.loads(data))
        disk, name = self._machine.disk, f"/{self._machine.name}/diagnostics-{path.name}-{self._process.name}"
        fd = disk.create(name)
        try:
            write_all(disk, fd, data, 0)
            disk.fdatasync(fd)
        finally:
            disk.close(fd)

    def note_version(self, folder: Path) -> None:
        pass

    def start_journal(self, journal: Journal) -> None:
        self._machine._thread = DiskThread(journal, self._machine, self._process, self._rng)


class _UnitClock:
    """A clock that passes by one each time that it is read: after each unit of long work, and before a run of them. No
    turn of the loop may do more of them than it has room for."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._read = self._turn = self._read_in_turn = 0

    def __call__(self) -> float:
        if self._turn != self._loop.turns:
            self._turn, self._read_in_turn = self._loop.turns, 0
        self._read += 1
        self._read_in_turn += 1
        if self._read_in_turn == 2 * UNITS_MAX + 3:
            self._loop.problems.append(f"{self._name}: a turn of the loop did more than {UNITS_MAX} units of long work")
        return self._read


class DiskThread:
    """The journal's writer thread as callbacks of the loop: it wakes some time after it was given work, and what it
    answers comes some time later, in order. Where a folder stalls, it hangs until that is noticed."""

    def __init__(self, journal: Journal, machine: SimulatedMachine, process: Process, rng: random.Random) -> None:
        self.hangs_since = inf
        self._machine = machine
        self._journal = journal
        self._loop = machine._loop
        self._process = process
        self._rng = rng
        self._items: deque[Any] = deque()
        self._timer: Any = None
        self._heard_at = 0.0
        journal.start(self._post, thread=False, write_here=True)
        writer = journal._writer
        assert writer is not None
        self._writer = writer
        writer.queue = cast(Any, self)
        self._answer, writer.answer = writer.answer, self._count_and_answer  # type: ignore[method-assign]

    @property
    def stalled(self) -> set[str]:
        return self._writer.log.stalled

    # as the queue between the loop's thread and the writer's

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._wake(self._rng.choice((0.0, 0.0002, 0.001, 0.001, 0.01)))

    def empty(self) -> bool:
        return not self._items

    def get(self, block: bool, timeout: float | None = None) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()

    def _post(self, callback: Callable[[], None]) -> None:
        # in order, as `call_soon_threadsafe` does: what was answered first is heard first
        self._heard_at = max(self._heard_at, self._loop.now + self._rng.choice((0.0, 0.0, 0.0005)))
        if self._heard_at > self._loop.now:
            self._loop.call_at(self._heard_at, callback)
        else:
            self._loop.call_soon(callback)

    def _count_and_answer(self, answers: list[Answer]) -> None:
        self._machine.refused_for_stalls += sum(isinstance(error, JournalStalled) for _, error, _, _ in answers)
        self._answer(answers)

    def _hangs(self) -> bool:
        """Return whether what there is to do does not return, and nobody has noticed it yet."""
        log, now = self._writer.log, self._loop.now
        is_stalled = log.folder in self._machine.disk.stalled or log.folder == log.gate.folder
        has_work = bool(self._items) or log.has_unsynced
        if is_stalled and has_work and log.folder not in log.stalled:
            self.hangs_since = min(self.hangs_since, now)
            is_hanging = now < self.hangs_since + self._journal.options.stall_s
        else:
            is_hanging = False
        if not is_hanging:
            self.hangs_since = inf
        self._journal._writes_here = not is_hanging  # the log is in use
        return is_hanging

    def _wake(self, delay: float) -> None:
        when = self._loop.now + delay
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._run)

    def _run(self) -> None:
        self._timer = None
        if self._journal._state != "started":
            return
        if self._hangs():
            self._wake(_LOOK_S)
            return
        try:
            self._writer.turn(wait=False)
        except MachineStopped:
            return
        if self._items:
            self._wake(0.0002)
        else:
            timeout = self._writer.log.timeout(self._loop.now)
            if timeout is not None:
                self._wake(timeout)
