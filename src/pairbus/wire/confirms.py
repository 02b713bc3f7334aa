"""Remembers the sends and settlements that are on the wire without an answer. Pure.

Decides which entries an answer's range concerns, which have waited too long, and what an outcome means. Delivery ids
are serial numbers of 32 bits that wrap (AMQP 2.8.9, RFC 1982). It does not know futures or clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pairbus.amqp.errors import DEAD_LETTER, OUTCOME_UNKNOWN
from pairbus.amqp.performative_types import Accepted, Modified, Rejected, Released

from .errors import RELEASED, Refused, WireError, refusal

_MASK = 0xFFFFFFFF
T = TypeVar("T")


class Confirms(Generic[T]):
    """Entries by delivery id, oldest first. Deadlines of entries that have one rise with their ids."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[T, float]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<Confirms {len(self._waiting)} waiting>"

    def __contains__(self, delivery_id: int) -> bool:
        return delivery_id in self._waiting

    def add(self, delivery_id: int, entry: T, deadline: float) -> None:
        self._waiting[delivery_id] = (entry, deadline)

    def numbers(self, first: int, last: int) -> list[int]:
        """Return the ids from `first` to `last` that wait for an answer."""
        waiting = self._waiting
        count = ((last - first) & _MASK) + 1
        if count > len(waiting):  # a range of 2³² ids must not cost 2³² steps
            return [number for number in waiting if (number - first) & _MASK < count]
        return [number for step in range(count) if (number := (first + step) & _MASK) in waiting]

    def take(self, first: int, last: int) -> list[T]:
        """Remove and return the entries from `first` to `last`; ids that do not wait, or no longer, are passed over."""
        pop = self._waiting.pop
        if first == last:
            found = pop(first, None)
            return [] if found is None else [found[0]]
        if 0 < last - first < len(self._waiting):
            return [found[0] for number in range(first, last + 1) if (found := pop(number, None)) is not None]
        return [pop(number)[0] for number in self.numbers(first, last)]

    def take_overdue(self, now: float) -> list[T]:
        overdue: list[int] = []
        for number, (_, deadline) in self._waiting.items():
            if deadline <= now:
                overdue.append(number)
            elif deadline != _NEVER:
                break
        return [self._waiting.pop(number)[0] for number in overdue]

    def entries(self) -> list[tuple[T, float]]:
        return list(self._waiting.values())

    def remove(self, entries: set[T]) -> set[T]:
        """Remove entries and return those that were waiting. It walks over all: for what is rare, a deadline that
        passed."""
        ids = [number for number, (entry, _) in self._waiting.items() if entry in entries]
        return {self._waiting.pop(number)[0] for number in ids}

    def take_all(self) -> list[T]:
        taken = [entry for entry, _ in self._waiting.values()]
        self._waiting.clear()
        return taken

    @property
    def deadline(self) -> float | None:
        return next((deadline for _, deadline in self._waiting.values() if deadline != _NEVER), None)


_NEVER = float("inf")


@dataclass(slots=True, repr=False, eq=False)
class Settlement(Generic[T]):
    """One call that settles many deliveries; it is over when each has been answered."""

    entry: T
    unanswered: int
    #: The first refusal, and the ids of all refused.
    error: WireError | None = None
    refused: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Settlement {self.unanswered} unanswered, {len(self.refused)} refused>"

    @property
    def is_over(self) -> bool:
        return self.unanswered == 0

    def refuse(self, delivery_id: int, error: WireError) -> None:
        self.unanswered -= 1
        self.refused.append(delivery_id)
        self.error = self.error or error


def ranges(delivery_ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive ids in the order given, as (first, last): each is one disposition."""
    first = last = -1
    for number in delivery_ids:
        if first < 0:
            first = last = number
        elif number == (last + 1) & _MASK:
            last = number
        else:
            yield first, last
            first = last = number
    if first >= 0:
        yield first, last


def send_error(state: Any) -> Callable[[], WireError] | None:
    """Return None where the outcome of a send is accepted, else a function that makes the error, one for each
    caller."""
    if type(state) is Accepted:
        return None
    if type(state) is Rejected:
        return _rejection(state)
    if type(state) is Released or type(state) is Modified:
        return lambda: Refused(
            RELEASED, f"the peer answered {type(state).__name__.lower()}: it did not take the message"
        )
    shown = "no outcome" if state is None else type(state).__name__
    return lambda: WireError("amqp:unknown-error", f"the peer settled a send with {shown}", outcome_unknown=True)


def settle_error(state: Any) -> Callable[[], WireError] | None:
    """Return None where a settlement has succeeded, else a function that makes the error. Only a rejection that
    carries an error is a failure (docs/reference/protocol.md#a-dead-letter-is-answered-without-an-error), unless the
    peer repeats the very error with which we dead-lettered, as RabbitMQ does."""
    if type(state) is Rejected and state.error is not None and state.error.condition != DEAD_LETTER:
        return _rejection(state)
    return None


def _rejection(state: Rejected) -> Callable[[], WireError]:
    error = state.error
    if error is None:
        return lambda: refusal(None, "the peer rejected the message and gave no reason")
    is_unknown = error.info is not None and OUTCOME_UNKNOWN in error.info
    return lambda: refusal(error.condition, error.description, outcome_unknown=is_unknown)
