"""CPU, memory and wall time of a stretch of work: of the servers by process id, of this process, of everybody else.

The kernel's per-process CPU clock is read rather than /proc/<pid>/stat, which counts in ticks of 10 ms: 300 messages
at 50 µs each would be a tick and a half. It holds the time of threads that have ended, too; stat stands in where the
clock can't be read. Kernel threads that write the pages back are nobody's and show up as "others".
"""

from __future__ import annotations

import os
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
        pass
    try:
        # the command may hold spaces and brackets: fields count from the last one
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def resident_bytes(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        except OSError:
            continue
    return total


def disk_bytes(folder: Path) -> int:
    """Its files at any depth, with what they have allocated ahead."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
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


class Meter:
    """`with Meter(pid) as meter: …`, then `meter.per_message(count)`. The server's descendants are looked up again at
    the end: one that was forked in between is counted whole. No server: None."""

    __slots__ = ("_busy", "_client", "_pid", "_server", "_start", "reading")

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self.reading: Reading | None = None

    def __enter__(self) -> Meter:
        self._server = self._server_cpu()
        self._busy = machine_busy_seconds()
        self._client = time.process_time()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        seconds = time.perf_counter() - self._start
        client = time.process_time() - self._client
        busy = machine_busy_seconds() - self._busy
        server = sum(now - self._server.get(pid, 0.0) for pid, now in self._server_cpu().items())
        others = max(0.0, busy - client - server)
        self.reading = Reading(seconds, None if self._pid is None else server, client, others)

    def _server_cpu(self) -> dict[int, float]:
        return {} if self._pid is None else {pid: cpu_seconds(pid) for pid in process_tree(self._pid)}

    def per_message(self, messages: int) -> dict[str, float]:
        assert self.reading is not None
        return self.reading.per_message(messages)
