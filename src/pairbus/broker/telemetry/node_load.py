"""Measures the load of the node: the CPU and the memory that this process uses, and the disk space of its journals.

A shell: it reads the operating system's counters when somebody asks, at most once a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_EVERY_S = 1.0
_MEGABYTE = 1 << 20


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


@dataclass(eq=False)
class NodeLoad:
    """The load of this process, by measure: `cpu` in per cent of a core, `memory` and `storage` in megabytes."""

    storage_bytes: Callable[[], int]
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic
    cpu_clock: Callable[[], float] = time.process_time
    memory_bytes: Callable[[], int] = _resident_bytes

    def __post_init__(self) -> None:
        self._read_at, self._cpu_s = self.clock(), self.cpu_clock()
        self._load: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<NodeLoad {self._load}>"

    def read(self, measure: str) -> float:
        """Return how high a measure was when it was last looked at, a second ago at most."""
        now = self.clock()
        passed = now - self._read_at
        if passed >= _EVERY_S or not self._load:
            cpu_s = self.cpu_clock()
            self._load = {
                "cpu": 100.0 * (cpu_s - self._cpu_s) / passed if passed > 0 else 0.0,
                "memory": self.memory_bytes() / _MEGABYTE,
                "storage": self.storage_bytes() / _MEGABYTE,
            }
            self._read_at, self._cpu_s = now, cpu_s
        return self._load[measure]
