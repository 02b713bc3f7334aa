"""What a load did with all that queues and topics can do, and what must be true after kills. Pure: no socket, no clock.

Two kinds of things are followed. A *copy* is one message in one home (a queue, or `topic/subscription`): the set of
states in which it may be. What is begun adds a state, an answer leaves one, and whatever is seen must be in the set.
A *register* holds a value that clients write (a session's state, a rule, a description): the set of values it may have.

- A confirmed message is in each of its homes once, and in no other: homes are settled each for itself.
- A scheduled message shows not before its time, then once; a cancelled one never.
- A deferred message is given out by its number only, and is given out by it.
- A dead letter stays dead and keeps its reason. What is gone stays gone, also when it is sent again (duplicates).
- A sequence number stays, but for the new one that a scheduled message gets when its time comes.
- Sessions keep their order. What a confirmed write left in a register is there.

One worker does all receiving in a home, so that the order of events is the order of what it did.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from .crash_check import CONFIRMED, REFUSED, Events

ABSENT, SCHEDULED, ACTIVE, DEFERRED, DEAD, GONE = "absent", "scheduled", "active", "deferred", "dead", "gone"
#: The service's clock of a schedule has milliseconds.
TICK_S: Final = 0.001
#: After its time a message may stay scheduled for so long.
GRACE_S: Final = 2.0


class Look(NamedTuple):
    """One message as a receiver or a peek saw it; `at` is when that was over."""

    home: str
    id: str
    state: str
    sequence: int
    at: float
    intact: bool = True
    reason: str | None = None
    session: str | None = None


class Inventory(NamedTuple):
    """Everything that the broker has, and when it was begun to be looked at."""

    at: float
    looks: Sequence[Look]
    registers: dict[tuple[str, ...], Any]


class FeatureHistory(Events):
    """What the load on all features does."""

    def put(
        self, id: str, homes: Iterable[str], *, due: float = 0.0, elsewhere: bool = False, session: str | None = None
    ) -> None:
        """A send begins, for the first time or again. `due`: scheduled; `elsewhere`: it waits where nobody sees it."""
        self.events.append(("put", id, tuple(homes), due, elsewhere, session))

    def put_done(self, id: str, outcome: str) -> None:
        self.events.append(("put_done", id, outcome))

    def seen(self, look: Look) -> None:
        self.events.append(("seen", look))

    def missed(self, home: str, id: str, at: float) -> None:
        """The broker says that there is no deferred message with the number of this one."""
        self.events.append(("missed", home, id, at))

    def delivered(self, home: str, session: str, ids: Sequence[str]) -> None:
        """All that a receiver of the session got in one go, while it held no other message of it."""
        self.events.append(("delivered", home, session, tuple(ids)))

    def change(self, home: str, id: str, to: str, reason: str | None = None) -> int:
        ticket = next(self._tickets)
        self.events.append(("change", ticket, home, id, to, reason))
        return ticket

    def changed(self, ticket: int, outcome: str) -> None:
        self.events.append(("changed", ticket, outcome))

    def write(self, key: tuple[str, ...], value: Any) -> int:
        ticket = next(self._tickets)
        self.events.append(("write", ticket, key, value))
        return ticket

    def written(self, ticket: int, outcome: str) -> None:
        self.events.append(("written", ticket, outcome))

    def read(self, key: tuple[str, ...], value: Any) -> None:
        self.events.append(("read", key, value))

    def drop(self, home: str) -> None:
        """The home is about to be deleted, with what is in it."""
        self.events.append(("drop", home))

    def dropped(self, home: str) -> None:
        self.events.append(("dropped", home))


@dataclass(slots=True)
class _Copy:
    home: str
    id: str
    order: int
    due: float
    elsewhere: bool
    session: str | None
    states: set[str]
    numbers: dict[bool, int] = field(default_factory=dict)  # was it scheduled then → sequence number
    reasons: set[str | None] = field(default_factory=set)

    def states_at(self, at: float) -> set[str]:
        if SCHEDULED in self.states and at >= self.due - TICK_S:
            return self.states | {ACTIVE}
        return self.states


@dataclass(slots=True)
class FeatureTotals:
    confirmed: int = 0
    refused: int = 0
    unknown: int = 0
    retried: int = 0
    seen: int = 0
    by_number: int = 0
    changed: int = 0
    written: int = 0
    kills: int = 0
    audits: int = 0


class FeatureChecker:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.totals = FeatureTotals()
        self._copies: dict[tuple[str, str], _Copy] = {}
        self._homes: dict[str, list[_Copy]] = {}  # id → its copies, while a send of it is under way
        self._gone: set[tuple[str, str]] = set()
        self._changes: dict[int, tuple[_Copy, str, str | None]] = {}
        self._values: dict[tuple[str, ...], list[Any]] = {}
        self._writes: dict[int, tuple[tuple[str, ...], Any]] = {}
        self._orders = itertools.count(1)

    def __repr__(self) -> str:
        return f"<FeatureChecker: {len(self._copies)} copies, {len(self._gone)} gone, {len(self.problems)} problems>"

    @property
    def live(self) -> int:
        return len(self._copies)

    def fold(self, events: Iterable[tuple[Any, ...]]) -> None:
        for event in events:
            getattr(self, f"_on_{event[0]}")(*event[1:])

    # -- copies

    def _on_put(self, id: str, homes: tuple[str, ...], due: float, elsewhere: bool, session: str | None) -> None:
        copies = self._homes[id] = []
        for home in homes:
            if (home, id) in self._gone:
                self.totals.retried += 1
                continue
            copy = self._copies.get((home, id))
            if copy is None:
                first = SCHEDULED if due else ACTIVE
                copy = _Copy(home, id, next(self._orders), due, elsewhere, session, {ABSENT, first})
                self._copies[home, id] = copy
            else:
                self.totals.retried += 1
            copies.append(copy)

    def _on_put_done(self, id: str, outcome: str) -> None:
        setattr(self.totals, outcome, getattr(self.totals, outcome) + 1)
        for copy in self._homes.pop(id, ()):
            if outcome == CONFIRMED:
                copy.states.discard(ABSENT)
            elif outcome == REFUSED and ABSENT in copy.states:
                copy.states = {ABSENT}

    def _on_seen(self, look: Look) -> None:
        self.totals.seen += 1
        self.totals.by_number += look.state == DEFERRED
        copy = self._observe(look)
        if copy is not None:
            copy.states = {look.state}

    def _observe(self, look: Look) -> _Copy | None:
        """What must hold whenever a message shows."""
        where = f"{look.id} in {look.home}"
        copy = self._copies.get((look.home, look.id))
        if copy is None:
            gone = (look.home, look.id) in self._gone
            self.problems.append(f"{where}: {'it came back as ' + look.state if gone else 'it was never sent there'}")
            return None
        if look.state not in copy.states_at(look.at):
            early = f", {copy.due - look.at:.3f} s before its time" if copy.due > look.at else ""
            self.problems.append(f"{where}: it is {look.state}{early}; it can only be {known(copy.states)}")
        if look.state == SCHEDULED and look.at > copy.due + GRACE_S:
            self.problems.append(f"{where}: it is still scheduled {look.at - copy.due:.1f} s after its time")
        if not look.intact:
            self.problems.append(f"{where}: its body is not what was sent")
        if look.session != copy.session:
            self.problems.append(f"{where}: it was of the session {copy.session!r} and is of {look.session!r}")
        number = copy.numbers.setdefault(look.state == SCHEDULED, look.sequence)
        if number != look.sequence:
            self.problems.append(f"{where}: sequence number {number} became {look.sequence}")
        if look.state == DEAD:
            if look.reason not in copy.reasons:
                self.problems.append(f"{where}: dead for {look.reason!r}; the load gave {known(copy.reasons)}")
            copy.reasons = {look.reason}
        return copy

    def _on_missed(self, home: str, id: str, at: float) -> None:
        copy = self._copies.get((home, id))
        if copy is not None and copy.states == {DEFERRED}:
            self.problems.append(f"{id} in {home}: it is deferred and can't be received by its number")

    def _on_delivered(self, home: str, session: str, ids: tuple[str, ...]) -> None:
        copies = [self._copies[home, id] for id in ids if (home, id) in self._copies]
        orders = [copy.order for copy in copies]
        if orders != sorted(orders):
            self.problems.append(f"session {session} of {home}: out of order: {', '.join(ids)}")
        for other in self._copies.values():
            if other.session != session or other.home != home or other.states != {ACTIVE} or other in copies:
                continue
            if orders and other.order < orders[-1]:
                self.problems.append(f"session {session} of {home}: {other.id} was skipped before {ids[-1]}")

    def _on_change(self, ticket: int, home: str, id: str, to: str, reason: str | None) -> None:
        copy = self._copies.get((home, id))
        if copy is None:
            return  # a problem already
        self._changes[ticket] = (copy, to, reason)
        copy.states = copy.states | {to}
        if to == DEAD:
            copy.reasons.add(reason)

    def _on_changed(self, ticket: int, outcome: str) -> None:
        if ticket not in self._changes:
            return
        copy, to, reason = self._changes.pop(ticket)
        if outcome == CONFIRMED:
            self.totals.changed += 1
            copy.states = {to}
            if to == DEAD:
                copy.reasons = {reason}
        elif outcome == REFUSED:
            copy.states = copy.states - {to}
        if copy.states == {GONE}:
            self._forget(copy)

    def _forget(self, copy: _Copy) -> None:
        self._copies.pop((copy.home, copy.id), None)
        self._gone.add((copy.home, copy.id))

    def _on_drop(self, home: str) -> None:
        for copy in self._copies.values():
            if copy.home == home:
                copy.states = copy.states | {GONE}

    def _on_dropped(self, home: str) -> None:
        for copy in [copy for copy in self._copies.values() if copy.home == home]:
            self._forget(copy)

    # -- registers

    def _on_write(self, ticket: int, key: tuple[str, ...], value: Any) -> None:
        self._writes[ticket] = (key, value)
        self._values.setdefault(key, [None]).append(value)

    def _on_written(self, ticket: int, outcome: str) -> None:
        key, value = self._writes.pop(ticket)
        if outcome == CONFIRMED:
            self.totals.written += 1
            self._values[key] = [value]
        elif outcome == REFUSED:
            self._values[key].remove(value)

    def _on_read(self, key: tuple[str, ...], value: Any) -> None:
        values = self._values.setdefault(key, [None])
        if value not in values:
            self.problems.append(f"{' '.join(key)}: it is {value!r}; it can only be {known(values)}")
        self._values[key] = [value]

    # -- kills and audits

    def _on_killed(self) -> None:
        self.totals.kills += 1

    def _on_audited(self, inventory: Inventory) -> None:
        """Nothing is under way: what is not there now will never be."""
        self.totals.audits += 1
        for key in self._values.keys() | inventory.registers.keys():
            self._on_read(key, inventory.registers.get(key))
        found: dict[tuple[str, str], list[Look]] = {}
        for look in inventory.looks:
            found.setdefault((look.home, look.id), []).append(look)
        for (home, id), looks in found.items():
            if len(looks) > 1:
                self.problems.append(f"{id} in {home}: {len(looks)} copies: {known(look.state for look in looks)}")
            copy = self._observe(looks[0])
            if copy is not None:
                copy.states = {looks[0].state}
        for key, copy in list(self._copies.items()):
            if key not in found:
                self._check_absence(copy, inventory.at)
        self._check_sessions()

    def _check_absence(self, copy: _Copy, at: float) -> None:
        # Until its time nobody can see what waits elsewhere, so that it does not show says nothing: neither that the
        # send was not stored, nor that a cancellation without an answer was carried out.
        if copy.elsewhere and SCHEDULED in copy.states and at <= copy.due + GRACE_S:
            return
        if GONE in copy.states:
            self._forget(copy)
        elif ABSENT in copy.states:
            del self._copies[copy.home, copy.id]
        else:
            self.problems.append(f"{copy.id} in {copy.home}: it is lost; it can only be {known(copy.states)}")
            self._forget(copy)

    def _check_sessions(self) -> None:
        last: dict[tuple[str, str], _Copy] = {}
        for copy in self._copies.values():  # in the order in which they were sent
            if copy.session is None or False not in copy.numbers:
                continue
            before = last.get((copy.home, copy.session))
            if before is not None and before.numbers[False] > copy.numbers[False]:
                self.problems.append(f"session {copy.session} of {copy.home}: {copy.id} overtook {before.id}")
            last[copy.home, copy.session] = copy


def known(values: Iterable[Any]) -> str:
    return " or ".join(sorted(map(str, values))) or "nothing"
