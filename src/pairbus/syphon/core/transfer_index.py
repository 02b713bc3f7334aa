"""Indexes the messages on their way home: in hand, waiting for their destination, left, or remembered.

It keeps the counts and enforces the limits; only `_move` changes a transfer's state, by `transfer.TABLE`.
`transfer_state` decides which input comes when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from .transfer import TABLE, Input, Key, PendingTransfer, State

#: If a destination has more than this waiting, and accepts it, it is worth waiting before receiving more …
CROWD: Final = 4_000
#: … and one that leaves messages waiting for longer than this is slow.
SLOW_S: Final = 2.0
#: Left messages that a stop can release; beyond that, the oldest wait for their locks to end, as usual.
LEFT_MAX: Final = 100_000
#: Confirmed messages whose completion was lost, to be recognised when they come again.
REMEMBERED_MAX: Final = 100_000


class TransferIndex:
    def __init__(self) -> None:
        #: Everything in hand, by message: WAITING, SENT, CONFIRMED, REFUSED. How many by destination. Their bytes.
        self._transfers: dict[Key, PendingTransfer] = {}
        self._in_hand: dict[str, int] = {}
        self._in_hand_bytes = 0
        self._waiting: dict[str, deque[PendingTransfer]] = {}
        self._left: dict[Key, PendingTransfer] = {}
        self._remembered: dict[Key, None] = {}

    def __repr__(self) -> str:
        waiting = sum(map(len, self._waiting.values()))
        return (
            f"<{type(self).__name__} {len(self._transfers)} in hand, {waiting} of them waiting, "
            f"{len(self._left)} left, "
            f"{len(self._remembered)} remembered>"
        )

    # -- asked

    @property
    def in_hand(self) -> int:
        """Return how many messages are locked and not given up; they count against the engine's limit."""
        return len(self._transfers)

    @property
    def in_hand_bytes(self) -> int:
        return self._in_hand_bytes

    @property
    def left(self) -> int:
        return len(self._left)

    def left_paths(self) -> set[str]:
        """Return the destinations that left messages wait for, without those that refused a message permanently."""
        return {transfer.path for transfer in self._left.values() if transfer.reason is None}

    def waiting(self, path: str) -> int:
        return len(self._waiting.get(path, ()))

    def is_crowded(self, now: float) -> bool:
        """Return whether a destination has enough messages in hand, so that more can wait in the backlog."""
        return any(len(waiting) > CROWD and not self._is_slow(path, now) for path, waiting in self._waiting.items())

    def _is_slow(self, path: str, now: float) -> bool:
        waiting = self._waiting.get(path)
        return waiting is not None and now - waiting[0].since > SLOW_S

    # -- the index

    def _move(self, transfers: Iterable[PendingTransfer], what: Input) -> list[PendingTransfer]:
        """Change the state of transfers, and return those that it changed."""
        moved: list[PendingTransfer] = []
        before: State | None = None
        after: State | None = None
        for transfer in transfers:
            if transfer.state is not before:
                before = transfer.state
                after = TABLE.get((before, what))
            if after is not None:
                transfer.state = after
                moved.append(transfer)
        ended = [transfer for transfer in moved if transfer.state is State.LEFT or transfer.state is State.DONE]
        self._forget(ended)
        for transfer in ended:
            if transfer.state is State.LEFT:
                self._left[transfer.key] = transfer
                if len(self._left) > LEFT_MAX:
                    del self._left[next(iter(self._left))]
            elif self._left.get(transfer.key) is transfer:
                del self._left[transfer.key]
        return moved

    def _forget(self, transfers: Iterable[PendingTransfer]) -> None:
        for transfer in transfers:
            transfer.payload = b""
            if self._transfers.get(transfer.key) is transfer:
                del self._transfers[transfer.key]
                self._in_hand_bytes -= transfer.size
                count = self._in_hand.pop(transfer.path) - 1
                if count:
                    self._in_hand[transfer.path] = count

    def _unqueue(self, transfer: PendingTransfer) -> None:
        waiting = self._waiting.get(transfer.path)
        if waiting is not None and transfer in waiting:
            waiting.remove(transfer)
            if not waiting:
                del self._waiting[transfer.path]

    def _remember(self, transfer: PendingTransfer) -> None:
        if transfer.key[1] is not None:
            self._remembered[transfer.key] = None
            if len(self._remembered) > REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
