"""What clients did to a broker, and what must be true of it. Pure: no socket, no clock.

Clients write a `History`: what they are about to do, what came of it, what they saw. `Checker` folds it in. Of each
message in each *home* (a queue, or `topic/subscription`) it keeps a *copy* with the set of states in which that may be:
what is begun adds a state, an answer leaves one, and whatever is seen must be in the set. A *register* holds a value
that clients write (a session's state, a rule, the description of an entity): the set of values that it may have.

Messages
- A confirmed message is in each of its homes once and in no other, until something was tried that takes it away.
- A send without an answer happened once or not at all, and the messages of one send, in all of their homes, together.
- What was refused, and a ping, never shows. Bodies stay as they were sent.
- What is gone stays gone. A second message with the id of another is confirmed and stored nowhere, for as long as the
  window of its home.
- A sequence number belongs to one message and stays, but for the new one that a scheduled message gets when its time
  comes. Whatever is sent later gets a higher one, also after a restart.
- A scheduled message shows not before its time, then once; a cancelled one never.
- A message is not delivered after its time to live: it is then dead-lettered or gone, as its home says.
- A deferred message is given out by its number only, and is given out by it.
- A dead letter stays dead and keeps reason and description, which are those that a client gave, or the broker's own
  when deliveries or lifetime were used up.
- Delivery counts never fall, and nothing is delivered more often than its home allows.
- Receive-and-delete may lose what was on its way: so many messages for each kill and each receiver that left.
- Sessions keep their order. What a confirmed write left in a register is there; a home that was deleted is empty.
- What was sent while the storage stalled (`stalled`) shows not before it is late enough, unless the broker has ended
  meanwhile, or its entity has crashed.
- In the end (`drained`) nothing waits that receivers should have got.
- Sends and settlements of one transaction (`together`) all happened, or none of them. They begin with its commit: what
  shows before was never sent.
- Of what is forwarded, the queues on its way are one home. It is in one of them, with the number of the first.

Locks, for those who know tokens and times
- While a message or session is certainly locked for one receiver, no other gets it.
- A settlement with a lock that is certainly over is not confirmed; one with a lock that certainly holds is not lost.
- A lock is over when its time is, when it is settled and when the broker ends; it may be when its receiver left.

Paired clients: paired.py lists the rules.

Ends of a broker
- A kill undoes nothing. After a power cut, durability `strict` has everything; `default` may have undone settlements
  that were answered in the last 0.1 s in which it ran; of `none` everything since the broker started is uncertain.

Times (`at`) are seconds that pass evenly; `until` and `due` are the wall clock's, which `stepped` sets. Who does not
know them leaves them out. The order of events is the order in which they were known. Where several clients receive in
one home, a look says in `since` the earliest moment at which the broker can have sent it, so that one which was long
on its way is not judged by what happened meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple

#: Outcomes. LOST: refused, since the lock is lost.
CONFIRMED, REFUSED, UNKNOWN, LOST = "confirmed", "refused", "unknown", "lost"
#: States, and with them what a settlement makes of a message; ABANDON and RELEASE leave it in the state it had.
ABSENT, SCHEDULED, ACTIVE, DEFERRED, DEAD, GONE = "absent", "scheduled", "active", "deferred", "dead", "gone"
ABANDON, RELEASE = "abandon", "release"
#: How a message was seen.
RECEIVED, TAKEN, PEEKED = "received", "taken", "peeked"
EXHAUSTED: Final = "MaxDeliveryCountExceeded"
EXPIRED: Final = "TTLExpiredException"
#: The service's instants have milliseconds.
TICK_S: Final = 0.001
#: So long the broker may take for what its clock tells it: schedules, lifetimes, a step of the wall clock.
GRACE_S: Final = 2.0
#: So long before a power cut an answered settlement may be undone: 0.1 s, and the time of the write and the sync.
LAZY_S: Final = 0.15


@dataclass(slots=True)
class Totals:
    """How much of what happened."""

    confirmed: int = 0
    refused: int = 0
    unknown: int = 0
    unknown_stored: int = 0
    retried: int = 0
    seen: int = 0
    by_number: int = 0
    settled: int = 0
    written: int = 0
    vanished: int = 0
    kills: int = 0
    audits: int = 0


class Look(NamedTuple):
    """One message as a receiver or a peek saw it; `at` is when that was over, `since` when it was begun."""

    home: str
    id: str
    state: str
    sequence: int
    at: float = 0.0
    deliveries: int = 0
    intact: bool = True
    reason: str | None = None
    description: str | None = None
    session: str | None = None
    since: float | None = None


class Sending(NamedTuple):
    """One send; several ids are one batch, and `homes` are all that will have them.

    `due`: it is scheduled; `elsewhere`: it waits where nobody sees it. An id is sent again only to homes that find
    duplicates, and after their window only when the first message is gone. `together`: the transaction that it is
    in."""

    ids: tuple[str, ...]
    homes: tuple[str, ...]
    at: float = 0.0
    ping: bool = False
    due: float = 0.0
    elsewhere: bool = False
    session: str | None = None
    ttl: float | None = None
    together: str | None = None


class Settling(NamedTuple):
    """One settlement or cancellation, `to` a state, or ABANDON or RELEASE.

    `deliveries` is the count that the delivery had; `synced`: it is answered only when no power cut can undo it."""

    home: str
    id: str
    to: str
    at: float = 0.0
    reason: str | None = None
    description: str | None = None
    deliveries: int = 0
    token: Any = None
    synced: bool = False
    together: str | None = None


class Inventory(NamedTuple):
    """Everything that the broker has, and when it was begun to be looked at, and ended.

    It is taken page by page, so that what becomes active meanwhile may show in both of its states."""

    at: float
    looks: Sequence[Look]
    registers: Mapping[tuple[str, ...], Any]
    until: float | None = None


class History:
    """Events in the order in which they were known. Appending is atomic, so any thread may.

    What is begun returns a ticket, which names it to the verb that tells its outcome.
    """

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._tickets = itertools.count(1)

    def __repr__(self) -> str:
        return f"<History: {len(self.events)} events>"

    def take(self) -> list[tuple[Any, ...]]:
        """Return what came since the last call."""
        events, self.events = self.events, []
        return events

    def _begin(self, verb: str, *fields: Any) -> int:
        ticket = next(self._tickets)
        self.events.append((verb, ticket, *fields))
        return ticket

    # sending and settling

    def send(self, ids: Iterable[str], homes: Iterable[str], **of: Any) -> int:
        """A send begins; `of` it is known what else `Sending` says."""
        return self._begin("send", Sending(tuple(ids), tuple(homes), **of))

    def sent(self, ticket: int, outcome: str, at: float = 0.0) -> None:
        self.events.append(("sent", ticket, outcome, at))

    def seen(self, look: Look, how: str = RECEIVED) -> None:
        self.events.append(("seen", look, how))

    def locked(self, look: Look, token: Any, receiver: Any, until: float) -> None:
        """A message was received with a lock; `seen`, for those who know tokens and times."""
        self.events.append(("locked", look, token, receiver, until))

    def missed(self, home: str, id: str, at: float = inf, since: float = inf) -> None:
        """The broker, which was asked at `since`, says that there is no deferred message with this one's number."""
        self.events.append(("missed", home, id, at, since))

    def delivered(self, home: str, session: str, ids: Sequence[str]) -> None:
        """All that a receiver of the session got in one go, while it held no other message of it."""
        self.events.append(("delivered", home, session, tuple(ids)))

    def settle(self, home: str, id: str, to: str, **of: Any) -> int:
        """A settlement or a cancellation begins; `of` it is known what else `Settling` says."""
        return self._begin("settle", Settling(home, id, to, **of))

    def settled(self, ticket: int, outcome: str, at: float = 0.0) -> None:
        self.events.append(("settled", ticket, outcome, at))

    # locks

    def accepted(
        self, home: str, session: str, receiver: Any, until: float, *, at: float, since: float | None = None
    ) -> None:
        """A receiver got the lock of a session; `receiver` is also the token by which that is renewed."""
        self.events.append(("accepted", home, session, receiver, until, at, since))

    def renew(self, token: Any, at: float) -> int:
        return self._begin("renew", token, at)

    def renewed(self, ticket: int, outcome: str, at: float, until: float = 0.0) -> None:
        self.events.append(("renewed", ticket, outcome, at, until))

    def left(self, receiver: Any) -> None:
        """From here on the broker may know that the receiver's link or connection has ended, whoever ended it."""
        self.events.append(("left", receiver))

    # registers and homes

    def write(self, key: tuple[str, ...], value: Any, at: float = inf) -> int:
        return self._begin("write", key, value, at)

    def written(self, ticket: int, outcome: str) -> None:
        self.events.append(("written", ticket, outcome))

    def read(self, key: tuple[str, ...], value: Any, since: float = inf) -> None:
        """The broker, which was asked at `since`, says that this is the value."""
        self.events.append(("read", key, value, since))

    def drop(self, home: str) -> None:
        """The home is about to be deleted, with what is in it."""
        self.events.append(("drop", home))

    def dropped(self, home: str) -> None:
        self.events.append(("dropped", home))

    # paired clients

    def paired(self, verb: str, *fields: Any) -> None:
        """What a paired client was told, or did; the verbs are the public methods of `paired.Paired`."""
        self.events.append(("paired", verb, *fields))

    # the broker and its world

    def started(self, durability: str = "default", at: float = 0.0) -> None:
        self.events.append(("started", durability, at))

    def stopped(self, at: float = 0.0) -> None:
        self.events.append(("stopped", at))

    def killed(self, at: float = 0.0) -> None:
        self.events.append(("killed", at))

    def crashed(self, homes: Sequence[str], at: float, is_certain: bool = True) -> None:
        """These homes, or some of them, were restarted from the journal while the broker went on: nobody has a lock
        there."""
        self.events.append(("crashed", tuple(homes), at, is_certain))

    def power_cut(self, at: float, since: float | None = None) -> None:
        """`since`: settlements may be undone that were answered after it, since the disk failed or the broker was
        frozen."""
        self.events.append(("power_cut", at, since))

    def stalled(self, at: float, until: float, late_until: float) -> None:
        """The storage stalls from `at` to `until`, and makes late. What is sent meanwhile, and what was in an earlier
        stall and does not yet show, is kept from receivers until `late_until`."""
        self.events.append(("stalled", at, until, late_until))

    def stepped(self, seconds: float, at: float) -> None:
        """The wall clock was set, forward or (negative) back."""
        self.events.append(("stepped", seconds, at))

    def audited(self, inventory: Inventory) -> None:
        """Nothing is under way, and this is everything that the broker has."""
        self.events.append(("audited", inventory))

    def drained(self, inventory: Inventory, states: Sequence[str] = (ACTIVE,)) -> None:
        """Receivers had all the time that they need to get what is in these states."""
        self.events.append(("drained", inventory, tuple(states)))
