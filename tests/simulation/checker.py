"""Judges a `History` by the rules that history.py lists. Pure: no socket, no clock."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from .accounts import Change, Copy, Past, Send, Together
from .history import (
    ABANDON,
    ABSENT,
    ACTIVE,
    CONFIRMED,
    DEAD,
    DEFERRED,
    EXHAUSTED,
    EXPIRED,
    GONE,
    GRACE_S,
    LAZY_S,
    LOST,
    PEEKED,
    RECEIVED,
    REFUSED,
    RELEASE,
    SCHEDULED,
    TAKEN,
    TICK_S,
    UNKNOWN,
    Inventory,
    Look,
    Sending,
    Settling,
    Totals,
)
from .locks import Lock, Locks
from .numbers import Highest, highest_of, is_within
from .paired import Paired
from .wall_clock import WallClock


class Checker:
    """Holds histories against the rules; `problems` says what was broken.

    For homes by name: `lossy`, how many messages may vanish for each kill and each receiver that left;
    `max_delivery_count`; `lock_s`, how long locks last (of homes without sessions); `dead_on_expiry`, those that
    dead-letter what has expired; `window_s` of duplicates (for ever, if left out). `exact`: times are exact, so that
    several clients may receive in a home and power may be cut. `late_s`: how late a scheduled message may be, and
    `notice_s` the notice of a step of the clock.
    `undeliverable`: the reason for which a home dead-letters what it can't forward. `fails`: the disk may do so.
    """

    def __init__(
        self,
        *,
        lossy: Mapping[str, int] | None = None,
        max_delivery_count: Mapping[str, int] | None = None,
        lock_s: Mapping[str, float] | None = None,
        window_s: Mapping[str, float] | None = None,
        dead_on_expiry: Iterable[str] = (),
        exact: bool = False,
        late_s: float = GRACE_S,
        undeliverable: Mapping[str, str] | None = None,
        notice_s: float = GRACE_S,
        fails: bool = False,
    ) -> None:
        self.problems: list[str] = []
        self.totals = Totals()
        self._lossy = dict(lossy or {})
        self._max_delivery_count = dict(max_delivery_count or {})
        self._lock_s = dict(lock_s or {})
        self._window_s = dict(window_s or {})
        self._dead_on_expiry = frozenset(dead_on_expiry)
        self._exact = exact
        self._late_s = late_s
        self._undeliverable = dict(undeliverable or {})
        self._fails = fails
        self._sound_at = 0.0  # what was in doubt before this is not in the journal, or known to be
        self.transactions: dict[str, Together] = {}
        self._event = 0
        self._orders = itertools.count(1)
        self._copies: dict[tuple[str, str], Copy] = {}
        self._gone: dict[tuple[str, str], Copy | None] = {}
        self._sends: dict[int, Send] = {}
        self._unanswered: list[Send] = []
        self._changes: dict[int, Change] = {}
        self._learnt: dict[tuple[str, str, bool], int] = {}  # home, id and was it scheduled → sequence number
        self._owners: dict[str, dict[int, str]] = {}  # home → sequence number → id
        self._highest = Highest()
        self._vanished: dict[str, int] = {}
        self._departures = 0
        self._values: dict[tuple[str, ...], list[Any]] = {}
        self._writes: dict[int, tuple[tuple[str, ...], Any, float]] = {}
        self._clock = WallClock(notice_s)
        self._locks = Locks(self._clock, self.problems)
        self._on_stepped, self._on_accepted = self._clock.step, self._locks.accepted
        self._on_renew, self._on_renewed = self._locks.renew, self._locks.renewed
        self._on_paired = Paired(self.problems).fold
        self._durability = "default"
        self._cut_at, self._cut_durability = -inf, ""
        self._life = 0  # when the broker started, in events
        self._highest_before = Highest()
        self._stalls: list[tuple[float, float, float]] = []  # of this life: from, to, and until when it is late
        self._freed_at: dict[str, float] = {}  # home → when it was restarted, with what was late
        self._past: list[Past] = []
        self._past_values: list[tuple[int, tuple[str, ...], list[Any]]] = []

    def __repr__(self) -> str:
        return f"<Checker: {len(self._copies)} copies, {len(self._gone)} gone, {len(self.problems)} problems>"

    @property
    def live(self) -> int:
        """Copies that are or may be there."""
        return len(self._copies)

    def fold(self, events: Sequence[tuple[Any, ...]]) -> None:
        # Numbers first: the order of sends is judged by them, and they are often learnt later.
        self._learnt.clear()
        for event in events:
            looks = (event[1],) if event[0] in ("seen", "locked") else ()
            for look in event[1].looks if event[0] in ("audited", "drained") else looks:
                self._learnt.setdefault((look.home, look.id, look.state == SCHEDULED), look.sequence)
        for event in events:
            self._event += 1
            getattr(self, f"_on_{event[0]}")(*event[1:])

    def _problem(self, copy: Copy | Look, text: str) -> None:
        self.problems.append(f"{copy.id} in {copy.home}: {text}")

    # -- sending

    def _on_send(self, ticket: int, of: Sending) -> None:
        send = self._sends[ticket] = Send(of, self._event)
        send.together = self._transaction(of.together)
        if send.together is not None:
            send.together.sends.append(send)
        first = SCHEDULED if of.due else ACTIVE
        for home, id in itertools.product(of.homes, of.ids):
            copy = self._copies.get((home, id))
            is_again = copy is None and (home, id) in self._gone
            self.totals.retried += copy is not None or is_again
            if copy is not None:
                copy.sends.append(send)
                if ABSENT in copy.base and not of.ping:
                    copy.base.add(first)
            elif is_again and home not in self._window_s:
                continue
            else:
                base = {ABSENT} if of.ping else {ABSENT, first}
                copy = Copy(home, id, of, next(self._orders), self._highest.of(home), base, [send], is_again)
                self._copies[home, id] = copy
            send.copies.append(copy)

    def _on_sent(self, ticket: int, outcome: str, at: float) -> None:
        send = self._sends.pop(ticket)
        setattr(self.totals, outcome, getattr(self.totals, outcome) + len(send.of.ids))
        if outcome == CONFIRMED and self._is_undone(send.of.at, synced=True):
            send.copies.clear()  # each of them may be there
            self._doubt(send.together)
            outcome = UNKNOWN
        if outcome == UNKNOWN:
            self._unanswered.append(send)  # it may still be on its way
            return
        if outcome == CONFIRMED:
            self._sound_at = max(self._sound_at, send.of.at)
        send.ended = self._event
        self._learn(send.together, outcome == CONFIRMED, f"its commit was {outcome}")
        for copy in send.copies:
            if outcome == REFUSED:
                self._refuse(copy, send)
            elif copy.is_again:
                self._judge_duplicate(copy, send, at)
            elif copy.base != {ABSENT}:
                self._confirm(copy, at)

    def _confirm(self, copy: Copy, at: float) -> None:
        copy.base.discard(ABSENT)
        copy.answered_at = at
        is_scheduled = copy.of.due > 0
        if not is_scheduled:
            copy.stored_at = min(copy.stored_at, at)
        number = copy.numbers.get(is_scheduled) or self._learnt.get((*copy.key, is_scheduled), 0)
        self._highest.note(copy.home, number)

    def _refuse(self, copy: Copy, send: Send) -> None:
        copy.sends.remove(send)
        if copy.sends:
            return
        if ABSENT not in copy.base:
            self._problem(copy, "it was refused, and was seen before")
        copy.base = {ABSENT}

    def _judge_duplicate(self, copy: Copy, send: Send, at: float) -> None:
        """Judge a confirmed send with the id of a message that is gone: within the window nothing is stored."""
        former = self._gone[copy.key]
        assert former is not None, "windows of duplicates need exact times"
        window_s, sent_at = self._window_s[copy.home], former.of.at
        doubt_s = GRACE_S + self._clock.moved(sent_at)
        if at < sent_at + window_s - doubt_s:
            if ABSENT not in copy.base:
                self._problem(copy, "a second message with its id was stored within the window")
            copy.base = {ABSENT}
        elif send.of.at > former.stored_at + window_s + doubt_s:
            self._confirm(copy, at)

    def _stored(self, copy: Copy) -> None:
        """It was seen. If only one send can have stored it, everything else in that send is stored too."""
        self.totals.unknown_stored += ABSENT in copy.base
        copy.base.discard(ABSENT)
        if len(copy.sends) == 1:
            together = copy.sends[0].together
            self._learn(together, True, f"{copy.id} is in {copy.home}")
            for send in copy.sends if together is None else together.sends:
                for other in send.copies:
                    if not other.is_again and other.base != {ABSENT}:
                        other.base.discard(ABSENT)

    # -- transactions

    def _transaction(self, name: str | None) -> Together | None:
        return None if name is None else self.transactions.setdefault(name, Together(name))

    def _learn(self, together: Together | None, happened: bool, text: str) -> None:
        """Note what says that a transaction happened, or that it did not: both can't be."""
        if together is None or not together.is_certain:
            return
        together.said.setdefault(happened, text)
        if len(together.said) == 2:
            self.problems.append(f"{together.name} is half done: {together.said[True]}, but {together.said[False]}")
            together.is_certain = False

    def _learn_of_doubts(self, copy: Copy, state: str, dropped: Iterable[Change]) -> None:
        """Note what the state of a copy says of the settlements that were in doubt, and are so no more."""
        dropped = list(dropped)
        for change in dropped:
            to = change.of.to
            if to in (ABANDON, RELEASE):
                continue
            if state == to:
                if not copy.base & {to, ABSENT} and len(dropped) == 1 and (to != DEAD or copy.reasons == {change.why}):
                    self._learn(change.together, True, f"{copy.id} in {copy.home} is {to}")
            elif state == ACTIVE or to == GONE:
                self._learn(change.together, False, f"{copy.id} in {copy.home} is {state}")

    def _doubt(self, together: Together | None) -> None:
        if together is not None:
            together.is_certain = False

    # -- seeing

    def _on_seen(self, look: Look, how: str) -> None:
        self._see(look, how, None)

    def _on_locked(self, look: Look, token: Any, receiver: Any, until: float) -> None:
        if look.since is None and look.home in self._lock_s:
            lock_s, key = self._lock_s[look.home], (look.home, look.id)
            copy = self._copies.get(key) or self._gone.get(key)
            begun = until - lock_s
            # The client may have kept it for long, and the clock have been set meanwhile.
            moments = self._clock.moments(begun, look.at if copy is None else copy.of.at, look.at)
            moments = moments or [begun - max(self._clock.offsets(look.at, lock_s))]
            look = look._replace(since=min(look.at, *moments))
        what = f"{look.id} in {look.home}"
        self._see(look, RECEIVED, self._locks.new(token, what, look.home, receiver, until, look.at, look.since))

    def _see(self, look: Look, how: str, lock: Lock | None) -> None:
        if how != PEEKED:
            self.totals.seen += 1
            self.totals.by_number += look.state == DEFERRED
        since = look.at if look.since is None else look.since
        if self._is_undone(since, synced=how == TAKEN) and (look.home, look.id) in self._copies:
            # It was on its way when the power was cut, and what it says of may be undone.
            self._copies[look.home, look.id].base.add(GONE if how == TAKEN else look.state)
            return
        copy = self._observe(look)
        if copy is None:
            return
        if how != PEEKED:
            self._check_delivery(copy, look)
            what = f"{look.id} in {look.home}: it was delivered"
            self._locks.judge_delivery(lock, copy.locks, look.at, what)
        if since < copy.fact_at or look.state not in self._states_at(copy, look.at):
            return  # more is known by now, or a problem already
        if how == TAKEN:
            self._narrow(copy, GONE, look.at, {}, is_lazy=False)
            self.totals.settled += 1
            self._forget(copy)
            return
        known_doubts = copy.doubts.items()
        doubts = {t: c for t, c in known_doubts if how == PEEKED or c.ended_at > since or self._may_turn_up(c)}
        self._learn_of_doubts(copy, look.state, [copy.doubts[ticket] for ticket in copy.doubts.keys() - doubts.keys()])
        self._narrow(copy, look.state, look.at, doubts)

    def _may_turn_up(self, change: Change) -> bool:
        """Return whether the next start may find an unanswered settlement: the disk failed, and wrote nothing since."""
        return self._fails and change.ended_at >= self._sound_at

    def _narrow(self, copy: Copy, state: str, at: float, doubts: dict[int, Change], is_lazy: bool = True) -> None:
        """Set the state in which a copy certainly is, but for what is in doubt."""
        if copy.base != {state}:
            self._remember(copy, at, is_lazy)
            copy.fact = self._event
        for other in self._states_at(copy, at) - {state}:
            copy.left[other] = at
        copy.base, copy.doubts, copy.fact_at = {state}, doubts, at

    def _observe(self, look: Look) -> Copy | None:
        """Check what must hold whenever a message shows."""
        key = look.home, look.id
        copy = self._copies.get(key)
        if copy is None:
            copy = self._gone.get(key)
            if copy is None:
                self._problem(look, f"it came back as {look.state}" if key in self._gone else "it was never sent there")
                return None
        since = look.at if look.since is None else look.since
        if look.state not in self._states_at(copy, look.at) and copy.left.get(look.state, -inf) <= since:
            self._problem(look, self._impossible(copy, look))
        # A broker that was frozen while it stored or showed the message had no time for it then.
        overdue = min(self._clock.earliest(since) - copy.of.due, since - copy.answered_at)
        if look.state == SCHEDULED and overdue > self._late_s:
            self._problem(look, f"it is still scheduled {overdue:.1f} s after its time")
        self._check_lateness(copy, look)
        if not look.intact:
            self._problem(look, "its body is not what was sent")
        if look.session != copy.of.session:
            self._problem(look, f"it was of the session {copy.of.session!r} and is of {look.session!r}")
        if look.deliveries < copy.deliveries and since >= copy.fact_at:
            self._problem(look, f"delivery count {copy.deliveries} fell to {look.deliveries}")
        copy.deliveries = max(copy.deliveries, look.deliveries)
        if look.sequence:
            self._check_number(copy, look)
        if look.state == DEAD:
            self._check_reason(copy, look)
        if ABSENT in copy.base and copy.base != {ABSENT}:
            self._stored(copy)
        if look.state != SCHEDULED:
            copy.stored_at = min(copy.stored_at, look.at)
        return copy

    def _check_lateness(self, copy: Copy, look: Look) -> None:
        sent_at, stored_by = copy.of.at, copy.answered_at if copy.answered_at > -inf else look.at
        for begin, end, late_until in self._stalls if look.state != SCHEDULED else ():
            was_late = begin < sent_at and stored_by <= end and sent_at >= self._freed_at.get(copy.home, -inf)
            if was_late and look.at < late_until:
                self._problem(look, f"it is {look.state} {late_until - look.at:.3f} s before it should be, so late")

    def _impossible(self, copy: Copy, look: Look) -> str:
        if copy.states == {GONE}:
            return f"it came back as {look.state}"
        early = f", {copy.of.due - look.at:.3f} s before its time" if copy.of.due > look.at else ""
        return f"it is {look.state}{early}; it can only be {known(copy.states)}"

    def _check_number(self, copy: Copy, look: Look) -> None:
        number = copy.numbers.setdefault(look.state == SCHEDULED, look.sequence)
        if number != look.sequence:
            self._problem(look, f"sequence number {number} became {look.sequence}")
            return
        owner = self._owners.setdefault(look.home, {}).setdefault(number, look.id)
        # Without syncs, an entity that was lost with the power counts anew; what it has forwarded is still there.
        if owner != look.id and self._cut_durability != "none":
            self._problem(look, f"sequence number {number} is also that of {owner}")
        if number <= (floor := highest_of(number, copy.floor)):
            self._problem(look, f"sequence number {number}, but {floor} was given out before it was sent")
        self._highest.note(look.home, number)

    def _check_reason(self, copy: Copy, look: Look) -> None:
        why = (look.reason, look.description)
        if why in copy.reasons:
            pass
        elif look.reason == EXHAUSTED and copy.base != {DEAD}:
            limit = self._max_delivery_count.get(look.home)
            if limit is None or look.deliveries < limit:
                self._problem(look, f"exhausted after {look.deliveries} deliveries of {limit}")
        elif look.reason == EXPIRED and copy.base != {DEAD}:
            if look.home not in self._dead_on_expiry or not self._can_expire(copy, look.at):
                self._problem(look, "dead-lettered as expired before its time, or in a home that drops what expires")
        elif look.reason == self._undeliverable.get(look.home) and look.reason and copy.base != {DEAD}:
            pass
        else:
            self._problem(look, f"dead for {why}; it can only be {known(copy.reasons)}")
        copy.reasons = {why}

    def _check_delivery(self, copy: Copy, look: Look) -> None:
        limit = self._max_delivery_count.get(look.home)
        if look.state == ACTIVE and limit is not None and look.deliveries >= limit:
            self._problem(look, f"delivered again after {look.deliveries} deliveries of {limit}")
        if look.state == ACTIVE:
            self._check_lifetime(copy, look.at, 0.0 if look.since is None else look.at - look.since, "delivered")

    def _check_lifetime(self, copy: Copy, at: float, before_s: float, what: str) -> None:
        if copy.of.ttl is None or copy.stored_at == inf:
            return
        # It may have become active long before it was seen, and by another time of the wall clock.
        end = self._clock.latest(copy.of.at, copy.stored_at) + copy.of.ttl
        if (overdue := self._clock.earliest(at, before_s) - end) > GRACE_S:
            self._problem(copy, f"{what} {overdue:.1f} s after its time to live")

    def _on_missed(self, home: str, id: str, at: float, since: float) -> None:
        copy = self._copies.get((home, id))
        if copy is None or copy.fact_at > since or any(lock.last_end > at for lock in copy.locks if not lock.is_over):
            return
        if copy.states == {DEFERRED}:
            self._problem(copy, "it is deferred and can't be received by its number")

    def _on_delivered(self, home: str, session: str, ids: tuple[str, ...]) -> None:
        copies = [self._copies[home, id] for id in ids if (home, id) in self._copies]
        if any(later.is_before(copy) for n, copy in enumerate(copies) for later in copies[n + 1 :]):
            self.problems.append(f"session {session} of {home}: out of order: {', '.join(ids)}")
        last = self._max_delivery_count.get(home, inf) - 1  # with one delivery more it is dead-lettered
        for other in self._copies.values():
            if other.of.session != session or other.home != home or other.states != {ACTIVE} or other in copies:
                continue
            if copies and other.is_before(copies[-1]) and other.of.ttl is None and other.deliveries < last:
                self.problems.append(f"session {session} of {home}: {other.id} was skipped before {ids[-1]}")

    # -- settling

    def _on_settle(self, ticket: int, of: Settling) -> None:
        lock = self._locks.begin(of.token, ticket)
        copy = self._copies.get((of.home, of.id)) or self._gone.get((of.home, of.id))
        if copy is None:
            return  # a problem already, or gone long ago
        change = self._changes[ticket] = copy.doubts[ticket] = Change(of, copy, self._event, lock)
        change.together = self._transaction(of.together)
        if of.to == DEAD:
            copy.reasons.add(change.why)

    def _on_settled(self, ticket: int, outcome: str, at: float) -> None:
        change = self._changes.pop(ticket, None)
        if change is None:
            return
        of, copy, lock = change.of, change.copy, change.lock
        if lock is not None:
            self._locks.judge_answer(lock, ticket, outcome, of.at, at, f"{copy.id}: its {of.to}")
            lock.is_over |= outcome in (CONFIRMED, LOST)
        if outcome == UNKNOWN or (outcome == CONFIRMED and self._is_undone(of.at, of.synced)):
            change.ended_at = at
            if outcome == CONFIRMED:
                self._doubt(change.together)
            return
        copy.doubts.pop(ticket, None)
        if outcome != CONFIRMED:
            return
        self.totals.settled += 1
        self._sound_at = max(self._sound_at, of.at)
        if of.to == ABANDON:
            self._remember(copy, at)
            # a dead letter's abandoning is not counted
            copy.counted = max(copy.counted, of.deliveries + (DEAD not in copy.states))
            copy.deliveries = max(copy.deliveries, copy.counted)
            copy.fact_at = max(copy.fact_at, at)
        elif of.to != RELEASE:
            self._make(copy, change, at)

    def _make(self, copy: Copy, change: Change, at: float) -> None:
        """Note what a confirmed settlement has made of a message."""
        if copy.fact > change.begun:  # something else is known of the time in which it happened
            copy.base.add(change.of.to)
            return
        doubts = {ticket: other for ticket, other in copy.doubts.items() if other.ended_at > change.of.at}
        self._narrow(copy, change.of.to, at, doubts, is_lazy=not change.of.synced)
        if change.of.to == DEAD:
            copy.reasons = {change.why, *(other.why for other in doubts.values() if other.of.to == DEAD)}
        if copy.states == {GONE}:
            self._forget(copy)

    def _forget(self, copy: Copy) -> None:
        if self._copies.get(copy.key) is copy:
            del self._copies[copy.key]
            self._gone[copy.key] = copy if self._exact else None
            for number in () if self._exact else copy.numbers.values():
                self._owners[copy.home].pop(number, None)

    def _on_drop(self, home: str) -> None:
        for copy in self._copies.values():
            if copy.home == home:
                copy.base.add(GONE)
        self._locks.dropped(home)

    def _on_dropped(self, home: str) -> None:
        for copy in [copy for copy in self._copies.values() if copy.home == home]:
            self._narrow(copy, GONE, copy.fact_at, {}, is_lazy=False)
            self._forget(copy)
        self._owners.pop(home, None)
        self._highest.forget(home)

    def _on_left(self, receiver: Any) -> None:
        self._departures += 1
        self._locks.left(receiver)

    # -- registers

    def _on_write(self, ticket: int, key: tuple[str, ...], value: Any, at: float) -> None:
        self._writes[ticket] = (key, value, at)
        self._values.setdefault(key, [None]).append(value)

    def _on_written(self, ticket: int, outcome: str) -> None:
        key, value, begun_at = self._writes.pop(ticket)
        if outcome == CONFIRMED:
            self.totals.written += 1
            self._set(key, value, begun_at)
        elif outcome == REFUSED:
            self._values[key].remove(value)

    def _on_read(self, key: tuple[str, ...], value: Any, since: float = inf) -> None:
        values = self._values.setdefault(key, [None])
        if value not in values:
            self.problems.append(f"{' '.join(key)}: it is {value!r}; it can only be {known(values)}")
        self._set(key, value, since)

    def _set(self, key: tuple[str, ...], value: Any, begun_at: float) -> None:
        if self._is_undone(begun_at, synced=True):
            return
        if self._exact:
            self._past_values.append((self._event, key, self._values[key]))
        self._values[key] = [value]

    # -- time

    def _states_at(self, copy: Copy, at: float) -> set[str]:
        """Return the states in which a copy may be, also by what the broker does by itself."""
        states = copy.states
        if SCHEDULED in states and self._clock.latest(copy.of.at, at) >= copy.of.due - TICK_S:
            states.add(ACTIVE)
        if states & {ACTIVE, DEFERRED} and copy.home in self._max_delivery_count:
            states.add(DEAD)
        if ACTIVE in states and self._can_expire(copy, at):
            states.add(DEAD if copy.home in self._dead_on_expiry else GONE)
        return states

    def _can_expire(self, copy: Copy, at: float) -> bool:
        of = copy.of
        if of.ttl is None:
            return False
        return self._clock.latest(of.at, at) >= (of.due or self._clock.earliest(of.at)) + of.ttl - TICK_S

    # -- the broker ends, or its storage stalls

    def _on_stalled(self, at: float, until: float, late_until: float) -> None:
        self._stalls = [(begin, min(end, at), late_until) for begin, end, late in self._stalls if late > at]
        self._stalls.append((at, until, late_until))

    def _on_started(self, durability: str, at: float) -> None:
        self._end_life(at)
        self._durability, self._life, self._sound_at = durability, self._event, at
        self._highest_before = self._highest.copy()

    def _on_stopped(self, at: float) -> None:
        self._end_life(at)

    def _on_killed(self, at: float) -> None:
        self.totals.kills += 1
        self._end_life(at)
        if self._exact:
            self._forget_counts()

    def _on_crashed(self, homes: Sequence[str], at: float, is_certain: bool) -> None:
        self._locks.free(homes, at, is_certain)
        self._freed_at |= dict.fromkeys(homes, at)
        if self._fails:
            self._forget_counts(homes)

    def _forget_counts(self, homes: Sequence[str] | None = None) -> None:
        for copy in self._copies.values():
            if homes is None or copy.home in homes:
                copy.deliveries = copy.counted  # a lock that ran out is counted, but nobody waits for that

    def _end_life(self, at: float) -> None:
        self._locks.end(at)
        self._stalls.clear()
        self._end_sends()

    def _end_sends(self) -> None:
        for send in self._unanswered:
            send.ended = self._event
        self._unanswered.clear()

    def _remember(self, copy: Copy, at: float, is_lazy: bool = True) -> None:
        if self._exact:
            self._past.append(Past(self._event, at, is_lazy, copy, copy.states, copy.counted, set(copy.reasons)))

    def _is_undone(self, begun_at: float, synced: bool) -> bool:
        """Return whether an answer that comes now may be of a broker whose power was cut, with what it answered."""
        return begun_at <= self._cut_at and (self._cut_durability == "none" or not synced)

    def _on_power_cut(self, at: float, since: float | None) -> None:
        self._on_killed(at)
        if self._durability != "strict" or since is not None:
            self._cut_at, self._cut_durability = at, self._durability
        if self._durability == "none":
            self._undo_life()
        elif self._durability == "default" or since is not None:
            since = at - LAZY_S if since is None else since
            for past in self._past:
                if past.is_lazy and past.at >= since:
                    self._undo(past, past.states - {ABSENT, SCHEDULED})

    def _undo(self, past: Past, states: set[str]) -> None:
        """What a copy was then it may be again."""
        copy = past.copy
        now = self._copies.setdefault(copy.key, copy)
        if now is not copy:
            if not now.is_again:
                return
            copy.sends += now.sends  # duplicates of it, which were stored nowhere
            for send in now.sends:  # an answer that is still on its way is about it
                send.copies = [copy if each is now else each for each in send.copies]
            self._copies[copy.key] = copy
        self._gone.pop(copy.key, None)
        copy.base |= states
        copy.reasons |= past.reasons
        copy.counted = copy.deliveries = min(copy.counted, past.counted)

    def _undo_life(self) -> None:
        """Nothing that was written since the broker started is certain."""
        for together in self.transactions.values():
            self._doubt(together)
        for past in self._past:
            if past.event > self._life:
                self._undo(past, past.states)
        for copy in self._copies.values():
            if copy.sends and copy.sends[-1].ended > self._life:
                copy.base.add(ABSENT)
                for send in copy.sends:
                    send.copies.clear()  # a part of it may be there
            before = self._highest_before.of(copy.home)
            copy.numbers = {key: number for key, number in copy.numbers.items() if is_within(number, before)}
            if copy.of.due and False not in copy.numbers:
                copy.stored_at = inf  # it may be scheduled again, and its lifetime begin anew
            copy.floor = {partition: min(floor, before.get(partition, 0)) for partition, floor in copy.floor.items()}
        for home, owners in self._owners.items():
            self._owners[home] = {n: id for n, id in owners.items() if is_within(n, self._highest_before.of(home))}
        self._highest, self._learnt = self._highest_before.copy(), {}
        for event, key, values in self._past_values:
            if event > self._life:
                self._values[key] = [*self._values[key], *values]

    # -- audits

    def _on_audited(self, inventory: Inventory) -> None:
        self._audit(inventory, self._late_s)

    def _audit(self, inventory: Inventory, late_s: float) -> None:
        """Nothing is under way: what is not there now will never be, but for what is scheduled and so late."""
        self.totals.audits += 1
        self._end_sends()
        for key in self._values.keys() | inventory.registers.keys():
            self._on_read(key, inventory.registers.get(key))
        found: dict[tuple[str, str], list[Look]] = {}
        for look in inventory.looks:
            found.setdefault((look.home, look.id), []).append(look)
        for looks in found.values():
            self._find(looks)
        for key, copy in list(self._copies.items()):
            if key not in found:
                self._check_absence(copy, inventory.at, inventory.until or inventory.at, late_s)
        self._check_sessions()

    def _find(self, looks: list[Look]) -> None:
        if _became_due(looks):
            before = looks.pop(0)
            copy = self._observe(before)
            if copy is not None:
                self._narrow(copy, before.state, before.at, {})
        elif len(looks) > 1:
            self._problem(looks[0], f"{len(looks)} copies: {known(look.state for look in looks)}")
        look = looks[0]
        copy = self._observe(look)
        if copy is None:
            return
        if look.state == ACTIVE and not any(lock.last_end > look.at - GRACE_S for lock in copy.locks):
            # a receiver that asked for more than it took may hold it, unseen, for as long as a lock lasts
            unseen_s = self._lock_s.get(copy.home, 0.0) if self._exact else 0.0
            self._check_lifetime(copy, look.at, unseen_s, "still there")
        self._learn_of_doubts(copy, look.state, copy.doubts.values())
        self._narrow(copy, look.state, look.at, {})

    def _check_absence(self, copy: Copy, at: float, until: float, late_s: float) -> None:
        """Judge that an inventory, which was taken from `at` to `until`, does not have a copy."""
        states = self._states_at(copy, until)
        # Until its time nobody can see what waits elsewhere, so that it does not show says nothing: neither that the
        # send was not stored, nor that a cancellation without an answer was carried out.
        if copy.of.elsewhere and SCHEDULED in states and self._clock.earliest(at) <= copy.of.due + late_s:
            return
        # What has just expired shows neither as active nor as dead before the broker has dead-lettered it.
        if self._exact and copy.of.ttl and copy.home in self._dead_on_expiry and self._can_expire(copy, until):
            begun = max(copy.of.due, self._clock.latest(copy.of.at, copy.of.at), self._clock.last_set)
            if self._clock.earliest(at) <= begun + copy.of.ttl + 2 * GRACE_S:
                return
        if ABSENT in states and GONE not in states:
            if len(copy.sends) == 1 and copy.base != {ABSENT}:
                self._learn(copy.sends[0].together, False, f"{copy.id} is not in {copy.home}")
            del self._copies[copy.key]
            return
        if GONE not in states:
            self._lose(copy)
        self._learn_of_doubts(copy, GONE, copy.doubts.values())
        self._narrow(copy, GONE, at, {})
        self._forget(copy)

    def _lose(self, copy: Copy) -> None:
        if copy.home not in self._lossy:
            number = next(reversed(copy.numbers.values()), None)
            self._problem(copy, f"it is lost; it can only be {known(copy.states)}, its sequence number {number}")
            return
        lost = self._vanished[copy.home] = self._vanished.get(copy.home, 0) + 1
        self.totals.vanished += 1
        ends = self.totals.kills + self._departures
        if lost > self._lossy[copy.home] * ends:
            self._problem(copy, f"{lost} messages vanished, too many for {ends} kills and receivers that left")

    def _check_sessions(self) -> None:
        sessions: dict[tuple[str, str], list[Copy]] = {}
        for copy in self._copies.values():  # in the order in which they were sent
            if copy.of.session is not None and False in copy.numbers:
                sessions.setdefault((copy.home, copy.of.session), []).append(copy)
        for (home, session), copies in sessions.items():
            for before, copy in itertools.combinations(copies, 2):
                if before.numbers[False] > copy.numbers[False] and before.is_before(copy):
                    self.problems.append(f"session {session} of {home}: {copy.id} overtook {before.id}")

    def _on_drained(self, inventory: Inventory, states: tuple[str, ...]) -> None:
        self._audit(inventory, GRACE_S)
        for look in inventory.looks:
            if look.state in states:
                self._problem(look, f"it is still {look.state}, and no receiver got it")


def _became_due(looks: Sequence[Look]) -> bool:
    """Return whether these are one message, scheduled on one page of an inventory and active, or dead already, on a
    later one: it has then a new number, behind those of the first page."""
    if [look.state for look in looks] not in ([SCHEDULED, ACTIVE], [SCHEDULED, DEAD]):
        return False
    return looks[0].at < looks[1].at and looks[0].sequence < looks[1].sequence


def known(values: Iterable[Any]) -> str:
    return " or ".join(sorted(map(str, values))) or "nothing"
