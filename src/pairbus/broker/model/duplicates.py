"""Keeps the message ids that an entity has accepted within its duplicate window; enqueue.py looks duplicates up here.

A duplicate is confirmed and dropped (docs/reference/protocol.md#duplicate-detection).

Pure. The ids of one record belong together: they have one time, one place in the journal, and are forgotten together.
Those of a record that is not yet written are pending: a second message waits for the outcome of the first, since it may
only be confirmed when the first one is on disk. Ids are kept as digests of 16 bytes, at most IDS_MAX of them: beyond
that sends are refused for a while, since forgetting one early would let a second copy through.

The window is a duration: setting the wall clock makes it neither longer nor shorter (`shift`). After a restart only the
instants in the records are left; ids that seem to come from the future count as seen at the restart (`resume`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import inf
from typing import Any, Final

from pairbus.amqp.codec import encode
from pairbus.broker.format.records import KEY_BYTES
from pairbus.broker.refusal import Refusal

IDS_MAX: Final = 1_000_000
#: How long forgetting may be delayed: many at once cost less.
FORGET_S: Final = 1.0
# Forgotten at once where there is no room for new ones.
_ROOM_MAX: Final = 2000

Waiter = Callable[[Refusal | None], None]


def key_of(message_id: Any) -> bytes:
    """Return the digest of a message id; equal ids of different AMQP types are different ids."""
    return blake2b(encode(message_id), digest_size=KEY_BYTES).digest()


class Sighting:
    """Ids that one record made known. `segment` is -1 while it is being written. `time` is what the record says,
    `seen_at` the same on the history's own time scale, which no step of the wall clock changes."""

    __slots__ = ("keys", "nbytes", "seen_at", "segment", "time", "waiters")

    def __init__(
        self, time: float, keys: tuple[bytes, ...], segment: int = -1, nbytes: int = 0, *, seen_at: float | None = None
    ) -> None:
        self.time = time
        self.seen_at = time if seen_at is None else seen_at
        self.keys = keys
        self.segment = segment
        self.nbytes = nbytes
        self.waiters: list[Waiter] | None = None

    @property
    def is_pending(self) -> bool:
        return self.segment < 0

    def __repr__(self) -> str:
        return f"<Sighting of {len(self.keys)} ids at {self.time}{': pending' if self.is_pending else ''}>"


class DuplicateHistory:
    """The message ids of one entity, for as long as its window."""

    __slots__ = ("_by_key", "_order", "_stepped", "release", "window")

    def __init__(self, window: float, release: Callable[[int, int], None]) -> None:
        self.window = window
        #: Called with segment and bytes for what is forgotten.
        self.release = release
        # How far the wall clock was set since the first of them was seen.
        self._stepped = 0.0
        self._by_key: dict[bytes, Sighting] = {}
        # Written ones, as they were written; nearly in order of time.
        self._order: deque[Sighting] = deque()

    def __len__(self) -> int:
        return len(self._by_key)

    def __repr__(self) -> str:
        return f"<DuplicateHistory: {len(self._by_key)} ids of {self.window} s>"

    def find(self, key: bytes, now: float) -> Sighting | None:
        sighting = self._by_key.get(key)
        return None if sighting is None or self._ends(sighting) <= now else sighting

    def has_room(self, count: int, now: float) -> bool:
        if len(self._by_key) + count > IDS_MAX:
            self.forget(now, _ROOM_MAX)
        return len(self._by_key) + count <= IDS_MAX

    def begin(self, keys: Sequence[bytes], now: float) -> Sighting:
        sighting = Sighting(now, tuple(keys), seen_at=now - self._stepped)
        for key in keys:
            self._by_key[key] = sighting
        return sighting

    def written(self, sighting: Sighting, segment: int, nbytes: int) -> None:
        sighting.segment = segment
        sighting.nbytes = nbytes
        self._order.append(sighting)
        self._answer(sighting, None)

    def refused(self, sighting: Sighting, refusal: Refusal) -> None:
        self._drop(sighting)
        self._answer(sighting, refusal)

    def wait(self, sighting: Sighting, waiter: Waiter) -> None:
        """Call `waiter` when the outcome of a pending sighting is known."""
        if sighting.waiters is None:
            sighting.waiters = []
        sighting.waiters.append(waiter)

    def restore(self, time: float, keys: tuple[bytes, ...], segment: int, nbytes: int) -> None:
        """Remember the ids of a record; a copy replaces the earlier ones."""
        known = self._by_key.get(keys[0])
        if known is not None and known.time == time and known.keys == keys:
            self.release(known.segment, known.nbytes)
            known.segment, known.nbytes = segment, nbytes
            return
        sighting = Sighting(time, keys, segment, nbytes)
        for key in keys:
            self._by_key[key] = sighting
        self._order.append(sighting)

    def known(self, time: float, keys: Sequence[bytes]) -> Sighting | None:
        """Return the sighting that a record is about, if it still counts."""
        sighting = self._by_key.get(keys[0])
        return sighting if sighting is not None and sighting.time == time and keys[-1] in sighting.keys else None

    def forget(self, now: float, count: int = IDS_MAX) -> bool:
        """Forget ids whose time is over, about `count` of them, and return whether there are more."""
        order = self._order
        while order and self._ends(order[0]) <= now:
            if count <= 0:
                return True
            sighting = order.popleft()
            count -= len(sighting.keys)
            self._drop(sighting)
            self.release(sighting.segment, sighting.nbytes)
        return False

    def stored(self) -> list[tuple[int, int]]:
        """Return the segments and sizes of what will be released when all are forgotten."""
        return [(sighting.segment, sighting.nbytes) for sighting in self._order]

    def deadline(self) -> float:
        return self._ends(self._order[0]) + FORGET_S if self._order else inf

    def shift(self, seconds: float) -> None:
        """Adapt to a wall clock that was set."""
        self._stepped += seconds

    def resume(self, now: float) -> None:
        """Adapt, after replay, to a wall clock that was set back since the last record."""
        self._stepped = min(0.0, now - max((sighting.seen_at for sighting in self._order), default=now))

    def _ends(self, sighting: Sighting) -> float:
        return sighting.seen_at + self._stepped + self.window

    def _drop(self, sighting: Sighting) -> None:
        for key in sighting.keys:
            if self._by_key.get(key) is sighting:
                del self._by_key[key]

    def _answer(self, sighting: Sighting, refusal: Refusal | None) -> None:
        waiters, sighting.waiters = sighting.waiters, None
        for waiter in waiters or ():
            waiter(refusal)
