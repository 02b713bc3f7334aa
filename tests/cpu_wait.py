"""Measures how long a busy machine kept processes from running: what a test may add to a time limit."""

from __future__ import annotations

import contextlib
from pathlib import Path


class CpuWait:
    """Counts, from now on, the time in which threads of the processes are ready to run and have no CPU.

    It is the kernel's count. Threads that end meanwhile are left out; the waits of several threads are added up.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._before = self._read()

    @property
    def seconds(self) -> float:
        return sum(waited - self._before.get(thread, 0) for thread, waited in self._read().items()) / 1e9

    def _read(self) -> dict[str, int]:
        found = {}
        for pid in self._pids:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                    found[thread.name] = int((thread / "schedstat").read_text().split()[1])
        return found
