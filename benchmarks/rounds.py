"""Runs the steps of a table in interleaved rounds (A B C, C B A, A B C …) and collects a series per case and contender.

Every other round runs backwards: who comes after whom is part of what is measured (pages still written back, caches),
and one that always came first would differ from its own twin.

One round more than asked for is run first and thrown away: caches, compiled regular expressions, first segments.
A step that fails is named, left out from then on, and makes the run fail at its end, after the others were measured.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.figures import Series

STEP_S_MAX = 900.0
Metrics = Mapping[str, float]
Key = tuple[str, str]  # case, who


async def at_once() -> None:
    """The turn of a process that measures alone."""


#: Awaited before each step: where two processes measure in turns, it waits until the other has done its step.
turn: Callable[[], Awaitable[None]] = at_once


@dataclass(slots=True)
class Step:
    name: str
    run: Callable[[], Awaitable[Mapping[Key, Metrics]]]


@dataclass(slots=True)
class Outcome:
    series: dict[Key, dict[str, Series]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def get(self, case: str, who: str, metric: str) -> Series | None:
        return self.series.get((case, who), {}).get(metric)


class Progress:
    """To stderr: what runs, and how far. One line rewritten on a terminal; else a line every 10 s."""

    def __init__(self, table: str, stream: object = sys.stderr) -> None:
        self._table = table
        self._stream = stream
        self._tty = bool(getattr(stream, "isatty", lambda: False)())
        self._last = 0.0

    def show(self, text: str, *, always: bool = False) -> None:
        now = time.monotonic()
        if self._tty:
            print(f"\r\x1b[K{self._table}: {text}", end="\n" if always else "", file=self._stream, flush=True)  # type: ignore[call-overload]
        elif always or now - self._last >= 10:
            self._last = now
            print(f"{self._table}: {text}", file=self._stream, flush=True)  # type: ignore[call-overload]

    def clear(self) -> None:
        if self._tty:
            print("\r\x1b[K", end="", file=self._stream, flush=True)  # type: ignore[call-overload]


async def run_rounds(steps: Sequence[Step], rounds: int, progress: Progress, *, warm_up: bool = True) -> Outcome:
    outcome = Outcome()
    collected: dict[Key, dict[str, list[float]]] = {}
    alive = list(steps)
    plan_rounds = rounds + warm_up
    for number in range(plan_rounds):
        order = alive[::-1] if number % 2 else alive[:]
        for step in order:
            what = f"round {number + 1 - warm_up} of {rounds}" if number >= warm_up else "warming up"
            await turn()
            progress.show(f"{what} · {step.name}")
            try:
                async with asyncio.timeout(STEP_S_MAX):
                    measured = await step.run()
            except Exception as error:
                alive.remove(step)
                said = f"{step.name}: {type(error).__name__}: {error}"
                outcome.failures.append(said)
                progress.show(f"failed, left out: {said}", always=True)
                traceback.print_exc()
                continue
            if number >= warm_up:
                for key, metrics in measured.items():
                    for metric, value in metrics.items():
                        collected.setdefault(key, {}).setdefault(metric, []).append(value)
    progress.clear()
    full = {key: m for key, m in collected.items() if all(len(v) == rounds for v in m.values())}
    outcome.series = {
        key: {metric: Series(tuple(values)) for metric, values in metrics.items()} for key, metrics in full.items()
    }
    return outcome
