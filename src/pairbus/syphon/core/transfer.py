"""The states of a message on its way home, and the commands that an engine carries out for it.

`TABLE` has every change of a transfer's state; an input without an entry came too late and changes nothing.
`transfer_state` decides which input comes when.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from .destinations import Trouble


class State(enum.Enum):
    WAITING = "waiting"  # locked, not on the wire
    SENT = "sent"  # on the wire to the primary, without an answer
    CONFIRMED = "confirmed"  # the primary confirmed it; its completion is asked for
    REFUSED = "refused"  # its dead-lettering is asked for
    LEFT = "left"  # to its lock's expiry
    DONE = "done"  # settled, released, or no longer ours


class Input(enum.Enum):
    KNOWN = "known"  # the primary has confirmed it before; only its completion was lost
    TAKEN = "taken"  # put on the wire
    CONFIRMED = "confirmed"  # by the primary
    UNAVAILABLE = "unavailable"  # not sent, or refused, or unknown: for reasons that pass
    REJECTED = "rejected"  # refused permanently
    SPLIT = "split"  # its batch was refused permanently, which says little of this one
    SETTLED = "settled"
    UNSETTLED = "unsettled"  # the settlement failed, or its outcome is unknown
    LOCK_LOST = "lock lost"  # the backlog says so
    LOCK_OVER = "lock over"  # our clock says so, which may be wrong
    AGAIN = "again"  # the backlog delivered the same message once more
    RETRIED = "retried"  # wanted back early, to try its destination
    STOPPED = "stopped"
    GIVEN_UP = "given up"  # no more time to wait for answers


_S, _I = State, Input
TABLE: Final[Mapping[tuple[State, Input], State]] = {
    (_S.WAITING, _I.KNOWN): _S.CONFIRMED,
    (_S.WAITING, _I.TAKEN): _S.SENT,
    (_S.WAITING, _I.UNAVAILABLE): _S.LEFT,
    (_S.WAITING, _I.REJECTED): _S.REFUSED,
    (_S.WAITING, _I.LOCK_OVER): _S.DONE,
    (_S.WAITING, _I.STOPPED): _S.DONE,
    # what is on the wire may arrive whether or not the lock is still ours: only its answer ends it
    (_S.SENT, _I.CONFIRMED): _S.CONFIRMED,
    (_S.SENT, _I.UNAVAILABLE): _S.LEFT,
    (_S.SENT, _I.REJECTED): _S.REFUSED,
    (_S.SENT, _I.SPLIT): _S.WAITING,
    (_S.SENT, _I.AGAIN): _S.SENT,
    (_S.SENT, _I.GIVEN_UP): _S.DONE,
    # a completion is asked for whatever our clock says of the lock: the backlog knows better
    (_S.CONFIRMED, _I.SETTLED): _S.DONE,
    (_S.CONFIRMED, _I.UNSETTLED): _S.CONFIRMED,
    (_S.CONFIRMED, _I.LOCK_LOST): _S.DONE,
    (_S.CONFIRMED, _I.GIVEN_UP): _S.DONE,
    (_S.REFUSED, _I.SETTLED): _S.DONE,
    (_S.REFUSED, _I.UNSETTLED): _S.REFUSED,
    (_S.REFUSED, _I.LOCK_LOST): _S.DONE,
    (_S.REFUSED, _I.GIVEN_UP): _S.DONE,
    (_S.LEFT, _I.LOCK_OVER): _S.DONE,
    (_S.LEFT, _I.RETRIED): _S.DONE,
    (_S.LEFT, _I.STOPPED): _S.DONE,
}

#: Which message it is, across deliveries: queue, sequence number, and enqueued time in ms. The number alone would do
#: until somebody deletes the queue and makes it anew.
Key = tuple[str, int | None, int | None]


class PendingTransfer:
    """One delivery of one message. `handle` is what the engine needs to settle it."""

    __slots__ = (
        "alone", "epoch", "handle", "key", "lock_s", "locked_until", "path", "payload", "queue", "reason",
        "renewal_at", "since", "size", "state", "token", "tries",
    )  # fmt: skip

    def __init__(
        self,
        queue: str,
        key: Key,
        token: bytes,
        path: str,
        payload: bytes,
        *,
        now: float,
        lock_s: float,
        handle: Any = None,
        alone: bool = False,
    ) -> None:
        self.queue = queue
        self.key = key
        self.token = token
        self.path = path
        self.payload = payload
        self.size = len(payload)
        self.since = now
        self.lock_s = lock_s
        self.locked_until = now + lock_s
        self.handle = handle
        #: It must not share a transfer with others: it has a session or a partition key, or its batch was refused.
        self.alone = alone
        self.state = State.WAITING
        #: Of its destination, when it was sent.
        self.epoch = 0
        #: Failed attempts to settle it.
        self.tries = 0
        #: When its lock was last asked to be renewed.
        self.renewal_at = float("-inf")
        #: Reason and description, once it is refused.
        self.reason: tuple[str, str] | None = None

    def __repr__(self) -> str:
        return f"<PendingTransfer {self.key[1]} of {self.queue} to {self.path}: {self.state.value}>"


class Rejection(NamedTuple):
    """A message that no destination can be read from, or that can't be brought home."""

    transfer: PendingTransfer
    reason: str
    description: str


class Send(NamedTuple):
    """Command: send these messages to their destination in one AMQP transfer, all or nothing."""

    path: str
    transfers: list[PendingTransfer]


class Complete(NamedTuple):
    queue: str
    transfers: list[PendingTransfer]


class DeadLetter(NamedTuple):
    queue: str
    transfers: list[PendingTransfer]
    reason: str
    description: str


class Leave(NamedTuple):
    """Command: report these messages as left; they wait for their locks to end."""

    path: str
    transfers: list[PendingTransfer]
    trouble: Trouble


class Renew(NamedTuple):
    queue: str
    transfers: list[PendingTransfer]


class Release(NamedTuple):
    """Command: return these messages to the queue at once."""

    queue: str
    transfers: list[PendingTransfer]


Command = Complete | DeadLetter | Leave | Renew | Release
