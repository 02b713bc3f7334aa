"""Decides which backlog queue a sender uses, which queues are ejected, and how they return.

A sender picks at random at failover and keeps its queue. A queue that failed is ejected for all senders until the retry
interval is over; then the next message of any sender tries it, alone. `dispatch` decides about time limits and which
failures count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pairbus.pairing.events import Announce, BacklogQueueEjected, BacklogQueueReturned, Command


class Pick(NamedTuple):
    """A backlog queue for one attempt."""

    queue: int
    #: This attempt decides whether an ejected queue returns.
    trial: bool
    #: How often the queue had come back: a failure from before its last return is stale.
    term: int


@dataclass(slots=True, eq=False)
class _Out:
    due: float
    #: It refused when it was last asked, so asking it takes no waiting.
    has_refused: bool
    #: Whose message is its trial, if one is under way.
    trying: object = None


class Rotation:
    """The backlog queues of one paired client, by index: those in use, and those ejected for a while."""

    __slots__ = ("_choose", "_in", "_kept", "_out", "_retry_interval", "_terms", "count")

    def __init__(self, queues: Sequence[int], *, retry_interval: float, choose: Callable[[Sequence[int]], int]) -> None:
        self._retry_interval = retry_interval
        self._choose = choose
        self._in: list[int] = list(dict.fromkeys(queues))
        #: Queues known, in or out: an attribute, since every healthy send asks for it.
        self.count = len(self._in)
        self._out: dict[int, _Out] = {}
        self._terms: dict[int, int] = {}
        # Sender → (failover, queue): at the next failover it picks anew.
        self._kept: dict[Hashable, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"<Rotation {self._in}, out {sorted(self._out)}, {len(self._kept)} senders>"

    def __len__(self) -> int:
        return self.count

    @property
    def queues(self) -> tuple[int, ...]:
        """The queues in use."""
        return tuple(self._in)

    @property
    def ejected(self) -> dict[int, float]:
        """The ejected queues, each with the time from which a message may try it."""
        return {queue: out.due for queue, out in self._out.items()}

    def replace(self, queues: Sequence[int]) -> None:
        """Replace the queues by what pairing found or created later. Ejected queues stay ejected."""
        wanted = dict.fromkeys(queues)
        self.count = len(wanted)
        self._out = {queue: out for queue, out in self._out.items() if queue in wanted}
        self._in = [queue for queue in wanted if queue not in self._out]
        self._terms = {queue: term for queue, term in self._terms.items() if queue in wanted}

    def pick(
        self,
        sender: Hashable,
        failover: int,
        now: float,
        tried: Collection[int] = (),
        *,
        may_try: bool = True,
        by: object = True,
    ) -> Pick | None:
        """Return the next queue for a message of this sender that has tried `tried`; None if none is left.

        With `may_try` an ejected queue whose time has come goes first: one for each message, unless nothing else is
        left. If nothing is left at all, a message that has tried none asks one that refused when it was last asked,
        whatever its time. `by` answers for the trial, or has it `abandoned`.
        """
        usable = [queue for queue in self._in if queue not in tried] if tried else self._in
        if self._out and (may_try or not usable):
            for queue, out in self._out.items():
                if now >= out.due and not out.trying and queue not in tried:
                    out.trying = by
                    return Pick(queue, True, self._terms.get(queue, 0))
        if not usable:
            for queue, out in self._out.items() if not tried else ():
                if out.has_refused and not out.trying:
                    out.trying = by
                    return Pick(queue, True, self._terms.get(queue, 0))
            return None
        kept = self._kept.get(sender)
        if kept is not None and kept[0] == failover and kept[1] in usable:
            queue = kept[1]
        else:
            queue = self._choose(usable)
            self._kept[sender] = (failover, queue)
        return Pick(queue, False, self._terms.get(queue, 0))

    def in_use(self, queue: int) -> Pick | None:
        """Return the pick of this queue, if it is in use."""
        return Pick(queue, False, self._terms.get(queue, 0)) if queue in self._in else None

    def last_pick(self, tried: Collection[int], by: object) -> Pick | None:
        """Return any queue that the message has not tried, ejected or not; None if there is none.

        For an ejected queue the message is the trial, unless another message is.
        """
        for queue in (*self._in, *self._out):
            if queue not in tried:
                out = self._out.get(queue)
                is_trial = out is not None and not out.trying
                if out is not None and is_trial:
                    out.trying = by
                return Pick(queue, is_trial, self._terms.get(queue, 0))
        return None

    def untried(self, tried: Collection[int]) -> int:
        """Return how many queues, ejected ones included, the message has not tried."""
        return sum(queue not in tried for queue in (*self._in, *self._out))

    def has_another(self, pick: Pick, now: float, tried: Collection[int]) -> bool:
        """Return whether the message could go on to another queue if this pick fails."""
        if any(queue != pick.queue and queue not in tried for queue in self._in):
            return True
        return any(
            queue != pick.queue and queue not in tried and now >= out.due and not out.trying
            for queue, out in self._out.items()
        )

    def sent(self, pick: Pick) -> list[Command]:
        """Note a success. A late success, of an attempt from before the ejection, does not bring the queue back."""
        if not pick.trial or not self._end_trial(pick):
            return []
        del self._out[pick.queue]
        self._terms[pick.queue] = pick.term + 1
        self._in.append(pick.queue)
        return [Announce(BacklogQueueReturned(pick.queue))]

    def failed(self, pick: Pick, now: float, error: BaseException, *, is_definite: bool = False) -> list[Command]:
        """Note a failure: eject the queue, or put off its next trial."""
        if pick.trial:
            if self._end_trial(pick):
                out = self._out[pick.queue]
                out.due, out.has_refused = now + self._retry_interval, is_definite
            return []
        if pick.queue not in self._in or pick.term != self._terms.get(pick.queue, 0):
            return []
        self._in.remove(pick.queue)
        self._out[pick.queue] = _Out(now + self._retry_interval, is_definite)
        return [Announce(BacklogQueueEjected(pick.queue, error))]

    def inconclusive(self, pick: Pick, now: float) -> None:
        """Note an attempt that says nothing about the queue: cancelled, not begun, or the message's own fault.

        A trial is postponed, so that callers who give up early do not all become trials.
        """
        if pick.trial and self._end_trial(pick):
            self._out[pick.queue].due = now + self._retry_interval

    def abandoned(self, by: object, now: float) -> None:
        """End the trial of this caller, if there is one: no answer will come."""
        for out in self._out.values():
            if out.trying is by:
                out.trying = None
                out.due = now + self._retry_interval

    def forget(self, sender: Hashable) -> None:
        self._kept.pop(sender, None)

    def forked(self) -> None:
        """Forget the trials of the parent process in a forked child."""
        for out in self._out.values():
            out.trying = None

    def _end_trial(self, pick: Pick) -> bool:
        out = self._out.get(pick.queue)
        if out is None or not out.trying:
            return False
        out.trying = None
        return True
