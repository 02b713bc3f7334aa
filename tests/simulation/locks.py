"""Locks of messages and sessions: whether one certainly holds, or is certainly over. Pure.

While one certainly holds, no other receiver gets what is locked, and no settlement with it is lost. When one is
certainly over, no settlement with it is confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

from .history import CONFIRMED, LOST, TICK_S, UNKNOWN
from .wall_clock import WallClock


@dataclass(slots=True, eq=False)
class Lock:
    what: str
    home: str
    receiver: Any
    is_of_session: bool
    first_end: float  # without any doubt it holds until here,
    last_end: float  # and is over from here on
    has_left: bool = False  # or something else may have ended it
    is_over: bool = False
    doubts: set[int] = field(default_factory=set)  # tickets of what may have ended or prolonged it

    def holds(self, at: float, ticket: int = 0) -> bool:
        """Return whether it certainly holds, whatever became of that ticket."""
        return not (self.is_over or self.has_left or self.doubts - {ticket}) and at < self.first_end


class Locks:
    def __init__(self, clock: WallClock, problems: list[str]) -> None:
        self._clock = clock
        self._problems = problems
        self._by_token: dict[Any, Lock] = {}
        self._of_sessions: dict[tuple[str, str], list[Lock]] = {}
        self._renewals: dict[int, tuple[float, list[tuple[Lock, float]]]] = {}
        self._ended_at = -inf  # when a broker was last certainly over
        self._freed_at: dict[str, float] = {}  # when a home was last restarted while the broker went on

    def __repr__(self) -> str:
        return f"<Locks: {len(self._by_token)} tokens>"

    def new(
        self, token: Any, what: str, home: str, receiver: Any, until: float, at: float, since: float | None,
        is_of_session: bool = False,
    ) -> Lock:  # fmt: skip
        since = at if since is None else since
        # That of a broker which has ended since is over.
        ends = self._ends(until, at, since)
        over_at = max(self._ended_at, self._freed_at.get(home, -inf))
        lock = self._by_token[token] = Lock(what, home, receiver, is_of_session, *ends, since <= over_at)
        return lock

    def _ends(self, until: float, at: float, since: float) -> tuple[float, float]:
        """Return between which moments a lock ends that the broker, between these, said to hold until then."""
        offsets = self._clock.offsets(at, at - since)
        return until - max(offsets) - TICK_S, until - min(offsets) + TICK_S

    def begin(self, token: Any, ticket: int) -> Lock | None:
        """Return the lock with which something is tried."""
        lock = self._by_token.get(token)
        if lock is not None:
            lock.doubts.add(ticket)
        return lock

    def judge_delivery(self, lock: Lock | None, others: list[Lock], at: float, what: str) -> None:
        """Judge a delivery by the locks that there are; `lock` is its own, unless it takes the message."""
        others[:] = [other for other in others if not other.is_over and other.last_end > at]
        whose = "" if lock is None else f" to {lock.receiver}"
        for other in others:
            if other.holds(at) and (lock is None or lock.holds(at)):
                self._problems.append(f"{what}{whose} while {other.receiver} held its lock")
        if lock is not None:
            others.append(lock)

    def judge_answer(self, lock: Lock, ticket: int, outcome: str, begun_at: float, at: float, what: str) -> None:
        """Judge the answer to what was tried with a lock."""
        was_over = lock.is_over and begun_at > self._ended_at  # else a broker that has ended may have answered it
        if outcome == CONFIRMED and (was_over or lock.last_end <= begun_at):
            self._problems.append(f"{what} was confirmed, but the lock of {lock.what} was over")
        if outcome == LOST and lock.holds(at, ticket):
            self._problems.append(f"{what} was refused as lost, but the lock of {lock.what} holds")
        if outcome != UNKNOWN:
            lock.doubts.discard(ticket)

    def accepted(self, home: str, session: str, receiver: Any, until: float, at: float, since: float | None) -> None:
        what = f"the session {session} of {home}"
        lock = self.new(receiver, what, home, receiver, until, at, since, is_of_session=True)
        self.judge_delivery(lock, self._of_sessions.setdefault((home, session), []), at, f"{what} was given")

    def renew(self, ticket: int, token: Any, at: float) -> None:
        lock = self._by_token.get(token)
        if lock is None:
            return
        locks = [lock]
        if lock.is_of_session:  # those of its messages end with it
            all_locks = self._by_token.values()
            held = [each for each in all_locks if each is not lock and not each.is_over]
            locks += [each for each in held if (each.home, each.receiver) == (lock.home, lock.receiver)]
        self._renewals[ticket] = (at, [(each, each.last_end) for each in locks])
        for each in locks:
            each.doubts.add(ticket)
            # What is certainly over stays so.
            each.last_end = inf if at < each.last_end else each.last_end

    def renewed(self, ticket: int, outcome: str, at: float, until: float) -> None:
        begun_at, locks = self._renewals.pop(ticket, (at, []))
        for lock, last_end in locks:
            self.judge_answer(lock, ticket, outcome, begun_at, at, "a renewal")
            if outcome == CONFIRMED:
                lock.first_end, lock.last_end = self._ends(until, at, begun_at)
            elif outcome != UNKNOWN:
                lock.last_end = last_end
                lock.is_over |= outcome == LOST

    def left(self, receiver: Any) -> None:
        for lock in self._by_token.values():
            lock.has_left |= lock.receiver == receiver

    def dropped(self, home: str) -> None:
        for lock in self._by_token.values():
            lock.has_left |= lock.home == home

    def free(self, homes: tuple[str, ...], at: float, is_certain: bool) -> None:
        """These homes are being restarted, or some of them: what was locked there is free, and nothing can be locked
        yet."""
        self._freed_at.update(dict.fromkeys(homes, at))
        for lock in self._by_token.values():
            if lock.home in homes:
                lock.has_left = True
                if is_certain:
                    lock.last_end = min(lock.last_end, at)

    def end(self, at: float) -> None:
        """The broker has ended, and with it all locks."""
        self._ended_at = at
        for lock in self._by_token.values():
            lock.is_over = True
