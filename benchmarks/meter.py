"""CPU, memory and wall time of a stretch of work: of the servers by process id, of the client, of everybody else.

The kernel's per-process CPU clock is read rather than /proc/<pid>/stat, which counts in ticks of 10 ms: 300 messages
at 50 µs each would be a tick and a half. It holds the time of threads that have ended, too. Kernel threads that write
the pages back are nobody's and show up as "others".
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_tree(pid: int) -> list[int]:
    """The process and all its descendants that live now."""
    found = [pid]
    for parent in found:  # grows while it is walked
        for task in _tasks(parent):
            try:
                children = Path(f"/proc/{parent}/task/{task}/children").read_text().split()
            except OSError:
                continue
            found.extend(int(child) for child in children)
    return found


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of that process, all its threads
    except OSError:
        return 0.0  # it has ended


def resident_bytes(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        except OSError:
            continue
    return total


def machine_busy_seconds() -> float:
    """All CPUs together, since boot: user, nice, system, irq, softirq, steal."""
    fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) * _TICK_S


@dataclass(slots=True)
class Reading:
    seconds: float
    server_s: float | None  # None: there is no server
    client_s: float
    others_s: float

    def without(self, start: Reading) -> Reading:
        """What it took beyond a start that was measured by itself."""
        server_s = None if self.server_s is None else self.server_s - (start.server_s or 0.0)
        others_s = max(0.0, self.others_s - start.others_s)
        return Reading(self.seconds - start.seconds, server_s, self.client_s - start.client_s, others_s)

    def per_message(self, messages: int) -> dict[str, float]:
        found = {
            "rate": messages / self.seconds,
            "client_us": self.client_s / messages * 1e6,
            # counted in ticks of 10 ms: a very short stretch may seem to have more than there is
            "others": min(1.0, self.others_s / self.seconds / (os.cpu_count() or 1)),
        }
        if self.server_s is not None:
            found["server_us"] = self.server_s / messages * 1e6
        return found


def _own_seconds() -> float:
    """CPU of this process and of the children that it has waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class _Processes:
    """CPU of some processes and their descendants since this was made. The descendants are looked up again at the end:
    one that was forked in between is counted whole."""

    __slots__ = ("_before", "_pids")

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self._before = self._now()

    def _now(self) -> dict[int, float]:
        return {each: cpu_seconds(each) for pid in self._pids for each in process_tree(pid)}

    def seconds(self) -> float:
        return sum(now - self._before.get(pid, 0.0) for pid, now in self._now().items())


class Meter:
    """`with Meter(server.pid) as meter: …`, then `meter.per_message(count)`. Several servers, or none, are fine. The
    client is this process, with the commands that it ran meanwhile, unless another is named."""

    __slots__ = ("_busy", "_client", "_client_pid", "_own", "_pids", "_servers", "_start", "reading")

    def __init__(self, *servers: int, client: int | None = None) -> None:
        self._pids = servers
        self._client_pid = client
        self.reading: Reading | None = None

    def __enter__(self) -> Meter:
        self._servers = _Processes(self._pids)
        self._client = None if self._client_pid is None else _Processes([self._client_pid])
        self._busy = machine_busy_seconds()
        self._own = _own_seconds()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        seconds = time.perf_counter() - self._start
        client = _own_seconds() - self._own if self._client is None else self._client.seconds()
        busy = machine_busy_seconds() - self._busy
        server = self._servers.seconds()
        others = max(0.0, busy - client - server)
        self.reading = Reading(seconds, server if self._pids else None, client, others)

    def per_message(self, messages: int) -> dict[str, float]:
        assert self.reading is not None
        return self.reading.per_message(messages)
