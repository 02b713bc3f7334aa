"""The simulation's time, weather and brokers: what a message meets once it has left the client.

A `Namespace` stores messages by path and answers, late or never, as the weather of that moment says. It knows nothing
of pairing: the truth that the audit compares the clients' reports with.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

LOCK_S = 10.0
AT_ONCE_MAX = 20_000
#: Told None for a confirm, else one of REFUSALS, "refuse" (nothing was sent) or "reset" (nobody knows).
Answer = Callable[[str | None], None]


def backlog_path(queue: int) -> str:
    return f"contoso/x-servicebus-transfer/{queue}"


class Timer:
    __slots__ = ("cancelled", "run")

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Schedule:
    """The simulated clock: what happens when, and in which order at the same instant."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0

    def at(self, when: float, run: Callable[[], None]) -> Timer:
        timer = Timer(run)
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, timer))
        return timer

    def after(self, delay: float, run: Callable[[], None]) -> Timer:
        return self.at(self.now + delay, run)

    def run_until(self, end: float) -> None:
        at_once = 0
        while self._heap and self._heap[0][0] <= end:
            when, _, timer = heapq.heappop(self._heap)
            at_once = at_once + 1 if when == self.now else 0
            if at_once > AT_ONCE_MAX:
                raise RuntimeError(f"time stands still at {when:.3f}: somebody wakes up for nothing, again and again")
            self.now = when
            if not timer.cancelled:
                timer.run()
        self.now = end


# What a namespace or an entity does to a request. `NETWORK` kinds keep it from arriving at all.
NETWORK = ("refuse", "black-hole")
REFUSALS = ("busy", "full", "gone", "disabled", "denied", "internal")
KINDS = (*NETWORK, *REFUSALS, "lost-answer", "late")


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    start: float
    end: float
    path: str | None = None  # None: the whole namespace
    share: float = 1.0  # of the requests; the others pass
    delay: float = 0.0  # of a late answer

    def __str__(self) -> str:
        share = f" for {self.share:.0%}" if self.share < 1 else ""
        delay = f" by {self.delay:g} s" if self.delay else ""
        return f"{self.kind}{delay}{share} on {self.path or 'everything'}, {self.start:.2f}–{self.end:.2f} s"


@dataclass(slots=True)
class Stored:
    """A copy of a message at a broker. `confirmed`: its sender was told, in time."""

    mid: str
    path: str
    at: float
    home: str  # where it is meant to go; the path itself at the primary
    by: str = "app"
    confirmed: bool = False
    sequence: int = 0
    locked_until: float = 0.0
    lock: int = 0
    gone: bool = False


@dataclass(slots=True)
class Namespace:
    name: str
    schedule: Schedule
    random: random.Random
    faults: list[Fault] = field(default_factory=list)
    stored: dict[str, list[Stored]] = field(default_factory=dict)
    dead: list[Stored] = field(default_factory=list)
    pings: int = 0
    sequence: int = 0
    locks: int = 0

    def add(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.stored.setdefault(path, [])

    def fault(self, path: str, kinds: tuple[str, ...] = KINDS) -> Fault | None:
        """The one that this request meets now, the network's first."""
        now = self.schedule.now
        for fault in self.faults:
            if (
                fault.start <= now < fault.end
                and fault.kind in kinds
                and fault.path in (None, path)
                and (fault.share >= 1 or self.random.random() < fault.share)
            ):
                return fault
        return None

    def offer(self, path: str, copies: Sequence[Stored], answer: Answer) -> None:
        """Messages (none: a ping) on their way, all or nothing. `answer` is called once at most, whoever listens."""
        met = self.fault(path, NETWORK)
        if met is not None:
            if met.kind == "refuse":
                self.schedule.after(self._latency(), lambda: answer("refuse"))
            return
        self.schedule.after(self._latency(), lambda: self._arrived(path, copies, answer))

    def _arrived(self, path: str, copies: Sequence[Stored], answer: Answer) -> None:
        met = self.fault(path, (*REFUSALS, "lost-answer", "late"))
        if met is not None and met.kind in REFUSALS:
            kind = met.kind
            self.schedule.after(self._latency(), lambda: self._answered(path, answer, kind))
            return
        wait = met.delay if met is not None and met.kind == "late" else 0.0
        lost = met is not None and met.kind == "lost-answer"

        def store() -> None:
            for copy in copies:
                copy.at = self.schedule.now
                self.sequence += 1
                copy.sequence = self.sequence
                self.stored[path].append(copy)
            self.pings += not copies
            if not lost:
                self.schedule.after(self._latency() + wait / 2, lambda: self._answered(path, answer, None))

        self.schedule.after(wait / 2, store)

    def _answered(self, path: str, answer: Answer, said: str | None) -> None:
        """The way back is a way too: a connection cut in between leaves the outcome unknown."""
        met = self.fault(path, NETWORK)
        if met is None:
            answer(said)
        elif met.kind == "refuse":
            answer("reset")

    def _latency(self) -> float:
        return self.random.choice((0.0, 0.001, 0.002, 0.01, 0.03))

    # -- for the syphon

    def receive(self, path: str, count: int) -> list[Stored]:
        now = self.schedule.now
        found = [copy for copy in self.stored[path] if copy.locked_until <= now][:count]
        for copy in found:
            self.locks += 1
            copy.lock = self.locks
            copy.locked_until = now + LOCK_S
        return found

    def settle(self, copy: Stored, lock: int, *, dead: bool = False) -> bool:
        """False: the lock was lost, somebody else may have it."""
        if copy.gone or copy.lock != lock or copy.locked_until <= self.schedule.now:
            return False
        self.stored[copy.path].remove(copy)
        copy.gone = True
        if dead:
            self.dead.append(copy)
        return True

    def renew(self, copy: Stored, lock: int) -> bool:
        if copy.gone or copy.lock != lock or copy.locked_until <= self.schedule.now:
            return False
        copy.locked_until = self.schedule.now + LOCK_S
        return True

    def release(self, copy: Stored, lock: int) -> None:
        if not copy.gone and copy.lock == lock:
            copy.locked_until = 0.0
