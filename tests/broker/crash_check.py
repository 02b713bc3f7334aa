"""What a load did to a broker that is killed under it, and what must be true of the broker afterwards.

`History` is written by the load while it runs. `Checker` folds it in and holds each audit (all that the broker has, by
peeking, when nothing is under way) against it. Pure: no socket, no clock. The rules, for a broker that is killed but
whose disk goes on (design.md, Journal):

- a confirmed message is there exactly once, until something was tried that takes it away;
- what was confirmed to be gone does not come back; what was refused never shows;
- a send or settlement without an answer happened once or not at all; a batch happened whole or not at all;
- a dead letter stays dead and keeps reason and description;
- a message keeps its sequence number; whatever is sent later gets a higher one;
- delivery counts never fall;
- a queue that was created is there, one that was deleted is not, nor is anything that was in it.

Receive-and-delete may lose what was on its way when the broker died: `lossy` says how many that can be for a kill.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

CONFIRMED, REFUSED, UNKNOWN = "confirmed", "refused", "unknown"
LOCKED, TAKEN, PEEKED = "locked", "taken", "peeked"
COMPLETE, ABANDON, DEAD_LETTER = "complete", "abandon", "dead-letter"
EXHAUSTED: Final = "MaxDeliveryCountExceeded"


class Sighting(NamedTuple):
    """A message as a receiver or a peek saw it."""

    queue: str
    dead: bool
    id: str
    sequence: int
    count: int  # type: ignore[assignment]  # a field hides the tuple's method, on purpose
    intact: bool
    reason: str | None = None
    description: str | None = None


class Audit(NamedTuple):
    """Everything that the broker has."""

    queues: frozenset[str]
    sightings: Sequence[Sighting]


def body_of(id: str) -> bytes:
    """The one body that goes with an id: mostly small, now and then of several frames."""
    seed = zlib.crc32(id.encode())
    size = seed % 900 if seed % 100 else 40_000 + seed % 120_000
    return f"{id}:{seed:08x}:".encode() + bytes((seed + n) & 0xFF for n in range(min(size, 256))) * (size // 256 + 1)


class Events:
    """Events in the order in which they were known. Appending is atomic, so any thread may."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._tickets = itertools.count(1)

    def killed(self) -> None:
        self.events.append(("killed",))

    def audited(self, found: Any) -> None:
        """`found` is everything that the broker has."""
        self.events.append(("audited", found))

    def take(self) -> list[tuple[Any, ...]]:
        """What came since the last call."""
        events, self.events = self.events, []
        return events


class History(Events):
    """What the plain load does."""

    def attempt(self, home: str, ids: Sequence[str], *, ping: bool = False) -> None:
        """A send begins; several ids are one batch. `home` is the queue's name, with `#n` where names are reused."""
        self.events.append(("attempt", home, tuple(ids), ping))

    def sent(self, id: str, outcome: str) -> None:
        self.events.append(("sent", id, outcome))

    def seen(self, sighting: Sighting, how: str) -> None:
        self.events.append(("seen", sighting, how))

    def settle(self, sighting: Sighting, action: str, reason: str | None = None) -> tuple[str, int]:
        """A settlement begins; what is returned names it to `settled`."""
        number = next(self._tickets)
        self.events.append(("settle", number, sighting, action, reason))
        return sighting.id, number

    def settled(self, settlement: tuple[str, int], outcome: str) -> None:
        self.events.append(("settled", *settlement, outcome))

    def queue(self, home: str, change: str, outcome: str) -> None:
        """`change` is 'create' or 'delete'; UNKNOWN is said before the call, its outcome after it."""
        self.events.append(("queue", home, change, outcome))


@dataclass(slots=True)
class _Message:
    id: str
    home: str
    batch: tuple[str, ...]
    ping: bool
    floor: int = 0  # the highest sequence number that was known when the send began
    outcome: str = UNKNOWN
    sequence: int = 0
    seen: bool = False
    count: int = 0  # at least
    settling: dict[int, tuple[str, str | None, int]] = field(default_factory=dict)
    removing: set[int] = field(default_factory=set)  # completions that may have happened
    removed: bool = False
    reasons: set[str | None] = field(default_factory=set)  # with which it may have been dead-lettered
    dead: bool = False  # for certain
    reason: str | None = None


@dataclass(slots=True)
class Totals:
    confirmed: int = 0
    refused: int = 0
    unknown: int = 0
    unknown_stored: int = 0
    deliveries: int = 0
    settled: int = 0
    peeked: int = 0
    vanished: int = 0
    kills: int = 0
    audits: int = 0


class Checker:
    def __init__(
        self,
        *,
        lossy: Mapping[str, int] | None = None,
        max_delivery_count: Mapping[str, int] | None = None,
        description: str | None = None,
    ) -> None:
        """`lossy`: home → messages that may vanish for each kill. `description` goes with every dead letter of the
        load."""
        self.problems: list[str] = []
        self.totals = Totals()
        self._lossy = dict(lossy or {})
        self._max_delivery_count = dict(max_delivery_count or {})
        self._description = description
        self._messages: dict[str, _Message] = {}
        self._owners: dict[tuple[str, int], str] = {}  # (home, sequence number) → id
        self._highest: dict[str, int] = {}  # home → sequence number
        self._queues: dict[str, tuple[str, str]] = {}  # home → last change and its outcome
        self._vanished: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Checker: {len(self._messages)} messages known, {len(self.problems)} problems>"

    @property
    def live(self) -> int:
        return len(self._messages)

    def fold(self, events: Iterable[tuple[Any, ...]]) -> None:
        chunk: list[tuple[Any, ...]] = []
        for event in events:
            chunk.append(event)
            if event[0] == "audited":
                self._fold(chunk)
                chunk = []
        self._fold(chunk)

    def _fold(self, events: list[tuple[Any, ...]]) -> None:
        # numbers first: the order of sends is judged by them, and they are often learnt later
        for event in events:
            if event[0] == "attempt":
                self._begin(*event[1:])
        for event in events:
            if event[0] == "seen":
                self._number(event[1])
            elif event[0] == "audited":
                for sighting in event[1].sightings:
                    self._number(sighting)
        for event in events:
            getattr(self, f"_on_{event[0]}")(*event[1:])

    def _problem(self, text: str) -> None:
        self.problems.append(text)

    def _begin(self, home: str, ids: tuple[str, ...], ping: bool) -> None:
        for id in ids:
            if id in self._messages:
                self._problem(f"{id}: the load used an id twice")
            self._messages[id] = _Message(id, home, ids, ping)

    def _number(self, sighting: Sighting) -> None:
        message = self._messages.get(sighting.id)
        if message is None or message.sequence == sighting.sequence:
            return
        if message.sequence:
            self._problem(f"{sighting.id}: sequence number {message.sequence} became {sighting.sequence}")
            return
        message.sequence = sighting.sequence
        owner = self._owners.setdefault((message.home, sighting.sequence), sighting.id)
        if owner != sighting.id:
            self._problem(f"{message.home}: sequence number {sighting.sequence} is of {owner} and of {sighting.id}")

    # -- events

    def _on_attempt(self, home: str, ids: tuple[str, ...], ping: bool) -> None:
        for id in ids:
            self._messages[id].floor = self._highest.get(home, 0)

    def _on_sent(self, id: str, outcome: str) -> None:
        message = self._messages[id]
        message.outcome = outcome
        setattr(self.totals, outcome, getattr(self.totals, outcome) + 1)
        if outcome == CONFIRMED and message.sequence:
            self._raise(message)

    def _raise(self, message: _Message) -> None:
        if message.sequence <= message.floor:
            self._problem(
                f"{message.id}: sequence number {message.sequence}, but {message.floor} was given out in "
                f"{message.home} before it was sent"
            )
        self._highest[message.home] = max(self._highest.get(message.home, 0), message.sequence)

    def _on_seen(self, sighting: Sighting, how: str) -> None:
        self.totals.deliveries += how != PEEKED
        message = self._sight(sighting)
        if message is None:
            return
        if how == TAKEN:
            message.removed = True
            self.totals.settled += 1

    def _sight(self, sighting: Sighting) -> _Message | None:
        """What must hold whenever a message shows."""
        where = f"{sighting.queue}{' (dead letters)' if sighting.dead else ''}"
        message = self._messages.get(sighting.id)
        if message is None:
            self._problem(f"{sighting.id} in {where}: it was never sent, or was gone for good")
            return None
        name = message.home.partition("#")[0]
        if name != sighting.queue:
            self._problem(f"{sighting.id} in {where}: it was sent to {message.home}")
        change = self._queues.get(message.home)
        if change == ("delete", CONFIRMED):
            self._problem(f"{sighting.id} in {where}: {message.home} was deleted with it")
        if message.ping:
            self._problem(f"{sighting.id} in {where}: a ping was stored")
        elif message.outcome == REFUSED:
            self._problem(f"{sighting.id} in {where}: it was refused")
        if message.removed:
            self._problem(f"{sighting.id} in {where}: it came back after it was settled")
        if not sighting.intact:
            self._problem(f"{sighting.id} in {where}: its body is not what was sent")
        if sighting.count < message.count:
            self._problem(f"{sighting.id} in {where}: delivery count {message.count} fell to {sighting.count}")
        if message.outcome == UNKNOWN and not message.seen:
            self.totals.unknown_stored += 1
        message.count = max(message.count, sighting.count)
        message.seen = True
        self._raise(message)
        self._check_dead(message, sighting, where)
        return message

    def _check_dead(self, message: _Message, sighting: Sighting, where: str) -> None:
        if not sighting.dead:
            if message.dead:
                self._problem(f"{sighting.id} in {where}: it had been dead-lettered")
            return
        limit = self._max_delivery_count.get(message.home)
        if message.dead:
            if sighting.reason != message.reason:
                self._problem(f"{sighting.id} in {where}: reason {message.reason!r} became {sighting.reason!r}")
        elif sighting.reason == EXHAUSTED:
            if limit is None or sighting.count < limit:
                self._problem(f"{sighting.id} in {where}: exhausted after {sighting.count} deliveries of {limit}")
        elif sighting.reason not in message.reasons:
            given = sorted(map(str, message.reasons))
            self._problem(f"{sighting.id} in {where}: reason {sighting.reason!r}; the load gave {given}")
        if sighting.reason != EXHAUSTED and sighting.description != self._description:
            self._problem(f"{sighting.id} in {where}: description {sighting.description!r}")
        message.dead = True
        message.reason = sighting.reason

    def _on_settle(self, number: int, sighting: Sighting, action: str, reason: str | None) -> None:
        message = self._messages[sighting.id]
        message.settling[number] = (action, reason, sighting.count)
        if action == COMPLETE:
            message.removing.add(number)
        elif action == DEAD_LETTER:
            message.reasons.add(reason)

    def _on_settled(self, id: str, number: int, outcome: str) -> None:
        message = self._messages[id]
        action, reason, count = message.settling.pop(number)
        if outcome == REFUSED:
            message.removing.discard(number)  # a reason stays: another attempt may have had the same
        if outcome != CONFIRMED:
            return
        self.totals.settled += 1
        if action == COMPLETE:
            message.removed = True
        elif action == ABANDON:
            message.count = max(message.count, count + 1)
        elif not message.dead:
            message.dead = True
            message.reason = reason

    def _on_queue(self, home: str, change: str, outcome: str) -> None:
        self._queues[home] = (change, outcome)

    def _on_killed(self) -> None:
        self.totals.kills += 1

    # -- audits

    def _on_audited(self, audit: Audit) -> None:
        """Nothing is under way: what is not there now will never be."""
        self.totals.audits += 1
        self.totals.peeked += len(audit.sightings)
        self._check_queues(audit.queues)
        found: dict[str, int] = {}
        for sighting in audit.sightings:
            found[sighting.id] = found.get(sighting.id, 0) + 1
            self._sight(sighting)
        for id, copies in found.items():
            if copies > 1:
                self._problem(f"{id}: {copies} copies")
        for message in list(self._messages.values()):
            self._check_presence(message, message.id in found)
        self._check_batches()
        for message in list(self._messages.values()):
            if message.id not in found:
                self._forget(message)

    def _check_queues(self, queues: frozenset[str]) -> None:
        last = {home.partition("#")[0]: change for home, change in self._queues.items()}
        for name, (change, outcome) in last.items():
            if outcome == CONFIRMED and (name in queues) != (change == "create"):
                self._problem(
                    f"the queue {name}: after a confirmed {change} it is {'' if name in queues else 'not '}there"
                )

    def _check_presence(self, message: _Message, present: bool) -> None:
        if present or message.ping or message.outcome == REFUSED or message.removed or message.removing:
            return
        if message.outcome == UNKNOWN and not message.seen:
            return
        if self._queues.get(message.home, ("",))[0] == "delete":
            return
        if message.home in self._lossy:
            lost = self._vanished[message.home] = self._vanished.get(message.home, 0) + 1
            self.totals.vanished += 1
            if lost > self._lossy[message.home] * max(1, self.totals.kills):
                self._problem(
                    f"{message.id}: {lost} messages of {message.home} vanished, too many for {self.totals.kills} kills"
                )
            return
        self._problem(f"{message.id}: it was {message.outcome}, {self._known(message)}, and is lost")

    def _known(self, message: _Message) -> str:
        state = "dead-lettered" if message.dead else "seen" if message.seen else "not yet seen"
        return f"{state} in {message.home}, sequence number {message.sequence or 'unknown'}"

    def _check_batches(self) -> None:
        judged: set[tuple[str, ...]] = set()
        for message in self._messages.values():
            if len(message.batch) < 2 or message.batch in judged or message.home in self._lossy:
                continue
            if message.outcome != UNKNOWN or self._queues.get(message.home, ("",))[0] == "delete":
                continue
            judged.add(message.batch)
            stored = [id for id in message.batch if id not in self._messages or self._messages[id].seen]
            if stored and len(stored) < len(message.batch):
                self._problem(
                    f"of the batch {message.batch[0]} … only {len(stored)} of {len(message.batch)} are stored"
                )

    def _forget(self, message: _Message) -> None:
        """It is nowhere and may stay so. Should it show again, it is one that was never sent."""
        del self._messages[message.id]
        self._owners.pop((message.home, message.sequence), None)
