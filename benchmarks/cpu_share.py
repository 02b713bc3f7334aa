"""Gives processes a part of a core each, by quotas of Linux's control groups, of version 1 or 2; root only."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

PERIOD_US = 100_000
#: How long processes that were told to end may take.
END_S = 10.0
_ROOT = Path("/sys/fs/cgroup")


class CpuShare:
    """`with CpuShare(0.25) as shares: shares.confine(pids)`: those together get a quarter of a core, and so do the
    processes that they start. At the end of the block, by which they must have ended, the groups are removed."""

    def __init__(self, cores: float) -> None:
        self._quota_us = int(cores * PERIOD_US)
        self.groups: list[Path] = []
        self._names = (f"pairbus-{os.getpid()}-{number}" for number in itertools.count())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        end = time.monotonic() + END_S
        for group in self.groups:
            while True:
                try:
                    group.rmdir()
                    break
                except OSError:  # a process in it still ends
                    if time.monotonic() > end:
                        break
                    time.sleep(0.1)

    @property
    def is_possible(self) -> bool:
        """Whether this machine has such quotas, and lets us set them."""
        try:
            self._make().rmdir()
        except OSError:
            return False
        return True

    def confine(self, pids: Iterable[int]) -> None:
        """Give the processes one share of a core together. Raises OSError where it is not possible."""
        group = self._make()
        self.groups.append(group)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))

    def _make(self) -> Path:
        parent = _ROOT / "cpu" if (_ROOT / "cpu").is_dir() else _ROOT
        group = parent / next(self._names)
        group.mkdir()
        try:
            if parent != _ROOT:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(self._quota_us))
            else:
                (group / "cpu.max").write_text(f"{self._quota_us} {PERIOD_US}")
        except OSError:
            group.rmdir()
            raise
        return group
