"""The checker can fail: stories of broken brokers, each with the problem that it must find, and stories that are right.

A story is told in steps, `verb arguments name=value`, which are the methods of `Story`. A look is written
`id:number`, with a state and a reason behind it where they matter. A `/` between looks begins the next page of an
inventory, half a second later.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from .checker import Checker
from .history import (
    ABANDON,
    ACTIVE,
    CONFIRMED,
    DEAD,
    DEFERRED,
    EXHAUSTED,
    EXPIRED,
    GONE,
    GRACE_S,
    RECEIVED,
    TAKEN,
    History,
    Inventory,
    Look,
)

DESCRIPTION = "why"
WORDS = {"complete": GONE, "cancel": GONE, "defer": DEFERRED, "bury": DEAD, "abandon": ABANDON, "release": "release"}


class Story:
    """A history that is told, of a broker with the homes `orders`, `events` and what is published to."""

    def __init__(self, late_s: float = GRACE_S, fails: bool = False) -> None:
        self.history = History()
        self.now = 100.0
        self.checker = Checker(
            lossy={"events": 1},
            max_delivery_count={"limited": 3},
            lock_s={"orders": 30.0},
            window_s={"once": 60.0},
            dead_on_expiry={"buried"},
            exact=True,
            late_s=late_s,
            fails=fails,
        )
        self._open: dict[str, int] = {}

    def tell(self, text: str) -> Story:
        for step in text.split("|"):
            verb, *words = step.split()
            named = dict(word.split("=") for word in words if "=" in word)
            getattr(self, verb)(*(word for word in words if "=" not in word), **named)
        return self

    @property
    def problems(self) -> list[str]:
        self.checker.fold(self.history.take())
        return self.checker.problems

    def look(self, text: str, home: str = "orders", count: str = "0", since: str = "", session: str | None = None,
             description: str = DESCRIPTION, intact: str = "1") -> Look:  # fmt: skip
        id, number, state, reason = [*text.split(":"), ACTIVE, ""][: 2 + 2] if text.count(":") < 3 else text.split(":")
        return Look(
            home, id, state, int(number), self.now, int(count), intact == "1", reason or None,
            description if reason else None, session, self.now - float(since) if since else None,
        )  # fmt: skip

    # what clients do

    def send(self, *ids: str, outcome: str = CONFIRMED, takes: str = "0", **of: Any) -> None:
        self.offer(*ids, **of)
        self.now += float(takes)
        self.answer(ids[0], outcome)

    def offer(self, *ids: str, to: str = "orders", due: str = "", ttl: str = "", **of: Any) -> None:
        of |= {"due": self.now + float(due)} if due else {}
        of |= {"ttl": float(ttl)} if ttl else {}
        self._open[ids[0]] = self.history.send(ids, to.split(","), at=self.now, **of)

    def answer(self, id: str, outcome: str = CONFIRMED) -> None:
        self.history.sent(self._open.pop(id), outcome, self.now)

    def see(self, text: str, how: str = RECEIVED, **fields: Any) -> None:
        self.history.seen(self.look(text, **fields), how)

    def take(self, text: str, **fields: Any) -> None:
        self.see(text, TAKEN, **fields)

    def lock(self, text: str, token: str, by: str = "one", lasts: str = "30", **fields: Any) -> None:
        look = self.look(text, **fields)
        self.history.locked(look, token, by, self.now - float(fields.get("since", 0)) + float(lasts))

    def settle(self, id: str, how: str, outcome: str = CONFIRMED, home: str = "orders", **fields: Any) -> None:
        self.begin(id, how, home=home, **fields)
        self.end(id, outcome)

    def begin(self, id: str, how: str, reason: str | None = None, count: str = "0", home: str = "orders",
              token: str | None = None, together: str | None = None) -> None:  # fmt: skip
        self._open[id] = self.history.settle(
            home, id, WORDS[how], at=self.now, reason=reason, description=DESCRIPTION if reason else None,
            deliveries=int(count), token=token, synced=how == "cancel" or together is not None, together=together,
        )  # fmt: skip

    def end(self, id: str, outcome: str = CONFIRMED) -> None:
        self.history.settled(self._open.pop(id), outcome, self.now)

    def accept(self, session: str, by: str, lasts: str = "30") -> None:
        self.history.accepted("orders", session, by, self.now + float(lasts), at=self.now)

    def renew(self, token: str, outcome: str = CONFIRMED, lasts: str = "30") -> None:
        self.history.renewed(self.history.renew(token, self.now), outcome, self.now, self.now + float(lasts))

    def write(self, value: str, outcome: str = CONFIRMED, since: str = "0") -> None:
        self.history.written(self.history.write(("state", "s"), value, self.now - float(since)), outcome)

    def read(self, value: str, since: str = "0") -> None:
        self.history.read(("state", "s"), value, self.now - float(since))

    def miss(self, id: str) -> None:
        self.history.missed("orders", id, self.now, self.now)

    def deliver(self, session: str, *ids: str, home: str = "orders") -> None:
        self.history.delivered(home, session, ids)

    def leave(self, receiver: str) -> None:
        self.history.left(receiver)

    def delete(self, home: str) -> None:
        self.history.drop(home)
        self.history.dropped(home)

    # what happens to the broker

    def wait(self, seconds: str) -> None:
        self.now += float(seconds)

    def step(self, seconds: str) -> None:
        self.history.stepped(float(seconds), self.now)

    def stall(self, seconds: str, late: str) -> None:
        until = self.now + float(seconds)
        self.history.stalled(self.now, until, until + float(late))

    def start(self, durability: str) -> None:
        self.history.started(durability, self.now)

    def crash(self, home: str = "orders") -> None:
        self.history.crashed([home], self.now)

    def kill(self) -> None:
        self.history.killed(self.now)
        self.now += 0.001

    def cut(self, fails: str = "") -> None:
        self.history.power_cut(self.now, self.now - float(fails) if fails else None)
        self.now += 0.001

    def audit(self, *looks: str, state: str | None = None, **fields: Any) -> None:
        self.history.audited(self._inventory(looks, state, fields))

    def drain(self, *looks: str, **fields: Any) -> None:
        self.history.drained(self._inventory(looks, None, fields))

    def _inventory(self, looks: tuple[str, ...], state: str | None, fields: dict[str, Any]) -> Inventory:
        homes = fields.pop("home", "orders").split(",")
        begun, found = self.now, []
        for home, text in itertools.product(homes, looks):
            if text == "/":
                self.now += 0.5
            else:
                found.append(self.look(text, home=home, **fields))
        return Inventory(begun, found, {} if state is None else {("state", "s"): state}, self.now)


BROKEN = [
    # lost, there twice, there though it must not be
    ("send a | audit", "a in orders: it is lost; it can only be active"),
    ("send a | audit a:1 | audit", "it is lost; it can only be active, its sequence number 1"),
    ("send a | see a:1 | settle a complete refused | audit", "it is lost"),
    ("send a | see a:1 | settle a complete lost | audit", "it is lost"),
    ("send a | see a:1 | settle a abandon unknown | audit", "it is lost"),
    ("send a | see a:1 | settle a complete unknown | see a:1 | audit", "it is lost"),
    ("send a outcome=unknown | see a:1 | audit", "it is lost"),
    ("send a | see a:1 | kill | audit", "it is lost"),
    ("send a | audit a:1 a:2", "a in orders: 2 copies: active or active"),
    ("send a | see a:1 | settle a bury unknown reason=r | audit a:1 a:1:dead:r", "2 copies: active or dead"),
    ("send a outcome=refused | audit a:1", "it is active; it can only be absent"),
    ("send a outcome=refused | see a:1", "it is active; it can only be absent"),
    ("send a outcome=refused | audit | see a:1", "it was never sent there"),
    ("offer a | see a:1 | answer a refused", "it was refused, and was seen before"),
    ("send a ping=1 | audit a:1", "it is active; it can only be absent"),
    ("audit a:1", "it was never sent there"),
    ("send a | audit a:1 home=other", "a in other: it was never sent there"),
    ("send a | see a:1 | settle a complete | audit a:1", "it came back as active"),
    ("send a | see a:1 | settle a complete | audit | audit a:1", "it came back as active"),
    ("send a to=events | take a:1 home=events | take a:1 home=events", "it came back as active"),
    ("send a b to=events | kill | audit", "2 messages vanished, too many for 1 kills"),
    ("send a to=events | audit", "1 messages vanished, too many for 0 kills"),
    ("send a | see a:1 intact=0", "its body is not what was sent"),
    # late
    ("stall 10 5 | wait 1 | send a | wait 11 | see a:1", "a in orders: it is active 3.000 s before it should"),
    ("stall 10 5 | wait 1 | offer a | wait 1 | see a:1 | answer a", "it is active 13.000 s before it should be"),
    ("stall 10 5 | wait 1 | send a | stall 20 5 | wait 16 | see a:1", "it is active 9.000 s before it should be"),
    ("stall 10 5 | crash | wait 1 | send a | see a:1", "it is active 14.000 s before it should be"),
    # sends are whole or not at all
    ("send a b c outcome=unknown | audit a:1 c:3", "b in orders: it is lost"),
    ("send a b outcome=unknown | see a:1 | settle a complete | audit", "b in orders: it is lost"),
    ("send a to=news/one,news/two | see a:1 home=news/one | settle a complete home=news/one | audit",
     "a in news/two: it is lost"),
    ("send a to=news/one,news/two outcome=unknown | audit a:1 home=news/one", "a in news/two: it is lost"),
    ("send a to=news/one | audit a:1 home=news/one,news/two", "a in news/two: it was never sent there"),
    # so are transactions
    ("send a together=t outcome=unknown | send b together=t to=other outcome=unknown | audit a:1", "b in other: it is"),
    ("send a | see a:1 | settle a complete unknown together=t | send b together=t outcome=unknown | audit a:1 b:2",
     "t is half done: b is in orders, but a in orders is active"),
    ("send a | see a:1 | settle a complete unknown together=t | send b together=t outcome=unknown | audit",
     "t is half done: a in orders is gone, but b is not in orders"),
    ("send a | see a:1 | settle a bury unknown together=t reason=r | send b together=t outcome=unknown | see b:2 "
     "| wait 1 | see a:1", "t is half done: b is in orders, but a in orders is active"),
    ("send a | see a:1 | settle a complete together=t | cut | audit a:1", "it came back as active"),
    # sequence numbers
    ("send a | see a:1 | audit a:2", "sequence number 1 became 2"),
    ("send a | see a:1 | settle a complete | audit | send b | audit b:1", "sequence number 1 is also that of a"),
    ("send a b | audit a:1 b:1", "sequence number 1 is also that of a"),
    ("send a | cut | see a:1 | send b | see b:1", "sequence number 1 is also that of a"),
    ("send a | send b | audit a:7 b:6", "b in orders: sequence number 6, but 7 was given out before it was sent"),
    ("send a | see a:7 | kill | send b | see b:5", "sequence number 5, but 7 was given out"),
    # delivery counts and dead letters
    ("send a | see a:1 count=1 | audit a:1", "delivery count 1 fell to 0"),
    ("send a | see a:1 | settle a abandon | audit a:1", "delivery count 1 fell to 0"),
    ("send a | see a:1 | settle a abandon | kill | audit a:1", "delivery count 1 fell to 0"),
    ("send a to=limited | see a:1 home=limited count=3", "delivered again after 3 deliveries of 3"),
    ("send a to=limited | audit a:1:dead:exhausted home=limited count=2", "exhausted after 2 deliveries of 3"),
    ("send a | audit a:1:dead:exhausted count=2", "it is dead; it can only be active"),
    ("send a | see a:1 | settle a bury reason=r | audit a:1", "it is active; it can only be dead"),
    ("send a | see a:1 | settle a bury reason=r | audit a:1:dead:q", "dead for ('q', 'why'); it can only be ('r'"),
    ("send a | see a:1 | settle a bury reason=r | audit a:1:dead:r description=not", "dead for ('r', 'not')"),
    ("send a | see a:1 | settle a bury reason=r | audit a:1:dead:exhausted count=3", "dead for ('MaxDelivery"),
    ("send a to=limited | audit a:1:dead:r home=limited", "dead for ('r', 'why'); it can only be nothing"),
    # deferred
    ("send a | see a:1 | settle a defer | see a:1", "it is active; it can only be deferred"),
    ("send a | see a:1 | settle a defer | audit a:1", "it is active; it can only be deferred"),
    ("send a | see a:1 | settle a defer | miss a", "it is deferred and can't be received by its number"),
    # scheduled
    ("send a due=5 | see a:1", "it is active, 5.000 s before its time; it can only be scheduled"),
    ("send a due=0.1 | wait 3 | audit a:1:scheduled", "it is still scheduled 2.9 s after its time"),
    ("send a due=0.1 takes=3 | wait 2.5 | audit a:1:scheduled", "it is still scheduled 2.5 s after its time"),
    ("send a due=0.1 | wait 6 | see a:1:scheduled peeked since=3", "it is still scheduled 2.9 s after its time"),
    ("send a due=5 | audit", "it is lost; it can only be scheduled"),
    ("send a due=5 elsewhere=1 | audit | wait 8 | audit", "it is lost; it can only be scheduled"),
    ("send a due=5 | wait 6 | see a:2 | settle a complete | see a:3", "it came back as active"),
    ("send a due=5 | settle a cancel | audit a:1:scheduled", "it came back as scheduled"),
    ("send a due=5 | settle a cancel | wait 6 | see a:2", "it came back as active"),
    ("send a due=5 elsewhere=1 | settle a cancel | audit | wait 6 | see a:1", "it came back as active"),
    ("send a due=5 elsewhere=1 | settle a cancel unknown | wait 8 | audit | see a:1", "it came back as active"),
    ("send a due=5 elsewhere=1 outcome=refused | audit | wait 6 | see a:1", "it was never sent there"),
    ("send a due=50 | step 40 | wait 5 | see a:1", "it is active"),
    ("send a due=1 | wait 1 | audit a:1:scheduled a:2", "2 copies: active or scheduled"),
    ("send a due=1 | wait 1 | audit a:2 / a:1:scheduled", "2 copies: active or scheduled"),
    ("send a due=1 | wait 1 | audit a:1:scheduled / a:1", "2 copies: active or scheduled"),
    ("send a due=5 | audit a:1:scheduled / a:2", "it is active, 4.500 s before its time"),
    ("send a due=1 | wait 1 | audit a:1:scheduled / a:2 | audit a:1:scheduled", "it is scheduled; it can only be act"),
    # time to live
    ("send a ttl=5 | wait 8 | see a:1", "delivered 3.0 s after its time to live"),
    ("send a to=plain ttl=5 | wait 8 | audit a:1 home=plain", "still there 3.0 s after its time to live"),
    ("send a ttl=5 | wait 38 | audit a:1", "still there 3.0 s after its time to live"),
    ("send a ttl=5 | wait 4 | audit", "it is lost"),
    ("send a ttl=5 | wait 4.4 | audit /", "it is lost"),
    ("send a ttl=5 | wait 6 | audit a:1:dead:expired", "it is dead; it can only be active"),
    ("send a to=buried ttl=5 | wait 10 | audit", "it is lost"),
    ("send a to=buried ttl=5 | wait 4 | audit a:1:dead:expired home=buried", "it is dead; it can only be active"),
    ("send a to=limited ttl=5 | audit a:1:dead:expired home=limited", "dead-lettered as expired before its time"),
    # duplicates
    ("send a outcome=unknown | send a | audit a:1 a:2", "2 copies"),
    ("send a outcome=unknown | see a:1 | send a | see a:2", "sequence number 1 became 2"),
    ("send a outcome=unknown | see a:1 | settle a complete | send a | audit a:2", "it came back as active"),
    ("send a to=once | take a:1 home=once | wait 30 | send a to=once | see a:2 home=once", "it is active; it can only"),
    ("send a to=once | take a:1 home=once | offer a to=once | see a:2 home=once | answer a", "a second message with"),
    ("send a to=once | take a:1 home=once | wait 70 | send a to=once | audit", "a in once: it is lost"),
    # sessions and registers
    ("send a session=s | see a:1 session=t", "it was of the session 's' and is of 't'"),
    ("send a b session=s | audit a:2 b:1 session=s", "session s of orders: b overtook a"),
    ("send a session=s | send b session=s | deliver s b a", "session s of orders: out of order: b, a"),
    ("send a b session=s | deliver s b", "session s of orders: a was skipped before b"),
    (
        "send a b to=limited session=s | lock a:1 t home=limited count=1 session=s | leave one"
        " | deliver s b home=limited",
        "session s of limited: a was skipped before b",
    ),
    ("write one | audit", "state s: it is None; it can only be one"),
    ("write one | write two | read one", "state s: it is 'one'; it can only be two"),
    ("write one | write two unknown | audit state=one | audit state=two", "state s: it is 'two'; it can only be one"),
    ("audit state=what", "state s: it is 'what'; it can only be None"),
    ("write one | write two refused | audit state=two", "state s: it is 'two'; it can only be one"),
    ("send a to=news/guest | delete news/guest | audit a:1 home=news/guest", "it came back as active"),
    # locks
    ("send a | lock a:1 t | wait 29 | lock a:1 u by=two", "it was delivered to two while one held its lock"),
    ("send a | lock a:1 t | wait 29 | take a:1", "it was delivered while one held its lock"),
    ("send a | lock a:1 t | renew t lasts=60 | wait 31 | lock a:1 u by=two", "while one held its lock"),
    ("send a | lock a:1 t | settle a abandon refused token=t | lock a:1 u by=two", "while one held its lock"),
    ("send a | lock a:1 t | step 60 | wait 5 | lock a:1 u by=two lasts=90", "while one held its lock"),
    ("send a | lock a:1 t | wait 31 | settle a complete token=t", "its gone was confirmed, but the lock of a in"),
    ("send a | lock a:1 t | kill | settle a complete token=t", "was confirmed, but the lock of a in orders was over"),
    ("send a | lock a:1 t | settle a abandon token=t | settle a complete token=t", "was confirmed, but the lock"),
    ("send a | lock a:1 t | wait 29 | settle a complete lost token=t", "refused as lost, but the lock of a in orders"),
    ("send a | lock a:1 t | wait 29 | renew t lost", "a renewal was refused as lost, but the lock of a"),
    ("send a | lock a:1 t | wait 31 | renew t", "a renewal was confirmed, but the lock of a in orders was over"),
    ("accept s by=one | wait 5 | accept s by=two", "the session s of orders was given to two while one held its lock"),
    ("accept s by=one | wait 29 | renew one | wait 5 | accept s by=two", "was given to two while one held its lock"),
    ("accept s by=one | wait 31 | renew one", "was confirmed, but the lock of the session s of orders was over"),
    # a receiver that is slow to hear does not excuse what comes later
    ("send a | lock a:1 t | wait 1 | settle a complete token=t | wait 9 | lock a:1 u by=two since=8", "it came back"),
    ("send a | see a:1 | begin a complete | see a:1 peeked | end a | audit a:1", "it came back as active"),
    # power cuts
    ("send a | cut | audit", "it is lost"),
    ("send a | cut | lock a:1 t since=0.001 | audit", "it is lost"),
    ("send a | see a:1 | settle a complete | wait 1 | cut | audit a:1", "it came back as active"),
    ("start strict | send a | see a:1 | settle a complete | cut | audit a:1", "it came back as active"),
    ("start none | send a | start none | cut | audit", "it is lost"),
    ("send a | see a:1 | settle a complete | cut | audit | audit a:1", "it came back as active"),
    ("send a due=5 | settle a cancel | cut | audit a:1:scheduled", "it came back as scheduled"),
    ("send a due=1 | wait 40 | take a:2 count=1 | wait 1 | lock a:2 t since=0.5", "it came back as active"),
    ("send a | see a:1 | settle a abandon | cut | lock a:1 t count=1 | audit a:1", "delivery count 1 fell to 0"),
    ("start strict | send a | see a:1 | settle a abandon | cut | lock a:1 t since=0.001 count=1 | audit a:1",
     "delivery count 1 fell to 0"),
    ("send a | cut | take a:1 since=0.001 | audit a:1", "it came back as active"),
    ("start none | write one | cut | read one | audit", "state s: it is None; it can only be one"),
    ("write one | cut | read one since=0.002 | audit", "state s: it is None; it can only be one"),
    ("send a | step -3600 | wait 40 | take a:1 | wait 1 | lock a:1 t lasts=-3570", "it came back as active"),
    ("send a to=events | take a:1 home=events | cut | audit a:1 home=events", "it came back as active"),
    ("write one | cut | audit", "state s: it is None; it can only be one"),
    ("send a | see a:1 | settle a bury reason=r | cut | audit", "it is lost; it can only be active or dead"),
    ("send a | see a:1 | settle a complete | wait 1 | kill | audit a:1", "it came back as active"),
    # the end
    ("send a | drain a:1", "it is still active, and no receiver got it"),
    ("send a | drain", "it is lost"),
]  # fmt: skip

RIGHT = [
    # late
    "send a | stall 10 5 | see a:1",
    "stall 10 5 | wait 1 | send a | wait 14 | see a:1",
    "stall 10 5 | wait 1 | send a due=4 | wait 5 | see a:1:scheduled peeked",
    "stall 10 5 | wait 9 | send a takes=2 | see a:1",
    "stall 10 5 | wait 1 | send a | stall 2 5 | wait 7 | see a:1",
    "stall 10 5 | wait 1 | send a | kill | see a:1",
    "stall 10 5 | wait 1 | send a | wait 1 | crash | see a:1",
    "send a | see a:1 | settle a complete unknown together=t | send b together=t outcome=unknown | audit b:2",
    "send a | see a:1 | settle a complete unknown together=t | send b together=t outcome=unknown | audit a:1",
    "send a | see a:1 | settle a complete refused together=t | send b together=t outcome=refused | audit a:1",
    "start none | send a | see a:1 | settle a complete together=t | send b together=t | cut | audit b:2 a:1",
    "send a due=0.1 takes=3 | see a:1:scheduled peeked | wait 3 | see a:2",
    "send a b | see a:1 | settle a complete | see b:2 | settle b abandon | audit b:2 count=1",
    "send a outcome=unknown | audit | send b outcome=unknown | audit b:2 | see b:2 | settle b complete unknown | audit",
    "send a outcome=refused | send p ping=1 | audit",
    "send a to=events | kill | audit",
    "send a to=events | leave one | audit",
    "send a | see a:1 | settle a bury unknown reason=r | audit a:1:dead:r | see a:1:dead:r | settle a complete | audit",
    "send a to=limited | see a:1 home=limited count=2 | settle a abandon home=limited count=2 | audit"
    " a:1:dead:exhausted home=limited count=3 | see a:1:dead:exhausted home=limited count=3",
    "send a to=news/one,news/two | see a:1 home=news/one | settle a complete home=news/one | audit a:1 home=news/two",
    "send a outcome=unknown | see a:2 | settle a complete | send a | audit",
    "send a outcome=unknown | audit | send a | see a:1",
    "send a due=0.1 | wait 3 | see a:1:scheduled peeked since=3 | wait 3 | see a:2",
    "send a due=5 | audit a:1:scheduled | wait 6 | see a:2 | settle a complete",
    "send a due=5 | settle a cancel unknown | audit",
    "send a due=0.1 | wait 1 | settle a cancel refused | audit a:3",
    "send a | see a:3 | settle a defer unknown | miss a | audit a:3:deferred | see a:3:deferred",
    "send a b session=s | deliver s a b | audit a:1 b:2 session=s",
    # its last delivery has ended without a settlement, so that it is dead, and no longer before the others
    "send a b to=limited session=s | lock a:1 t home=limited count=2 session=s | leave one | deliver s b home=limited"
    " | audit a:1:dead:exhausted b:2 home=limited count=3 session=s",
    "write one | write two unknown | audit state=two",
    "send a to=t/guest | see a:1 home=t/guest | delete t/guest | send b to=t/guest | see b:1 home=t/guest",
    # what waits on a topic may show although an audit did not find it
    "send a due=5 elsewhere=1 | settle a cancel unknown | audit | wait 5 | see a:1 | settle a complete",
    "send a due=5 elsewhere=1 outcome=unknown | audit | wait 5 | see a:1 | settle a complete",
    # an inventory takes a while
    "send a due=1 | wait 0.9 | audit a:1:scheduled / a:2 | see a:2 | settle a complete",
    "send a due=1 ttl=1 to=buried | wait 1.9 | audit a:1:scheduled / a:2:dead:expired home=buried",
    "send a ttl=5 | wait 4.9 | audit /",
    # without syncs a power cut can take an entity and leave what it has forwarded
    "start none | send a | cut | offer b | see a:1 | answer b | see b:1",
    "start none | send a due=1 ttl=5 | wait 3 | see a:2 | wait 20 | cut | start none | see a:2",
    # a step of the wall clock brings due times nearer, and is noticed after a while
    "send a due=50 | step 50 | wait 1 | see a:2",
    "send a due=5 | wait 6 | step -50 | wait 5 | see a:2",
    "send a due=5 | step -50 | wait 6 | audit a:1:scheduled",
    # lifetimes
    "send a ttl=5 | wait 6 | audit",
    "send a ttl=5 | wait 4 | see a:1 | settle a complete",
    "send a ttl=500 | step 500 | wait 1 | audit",
    "step -3600 | wait 9 | send a due=1 ttl=3 to=buried | wait 30 | step 3600 | wait 4 | audit",
    "step 3600 | wait 40 | send a due=1 ttl=9 | wait 2 | step -3600 | wait 5 | audit a:1",
    "send a due=1 ttl=8 | wait 3 | step -3600 | wait 5 | see a:1 | wait 13 | see a:1",
    "send a to=buried ttl=5 | wait 6 | audit a:1:dead:expired home=buried",
    # windows of duplicates
    "send a to=once | take a:1 home=once | wait 30 | send a to=once | audit",
    "send a to=once | take a:1 home=once | wait 70 | send a to=once | see a:2 home=once",
    "send a to=once | take a:1 home=once | wait 59 | send a to=once takes=3 | audit",
    "start default | send a to=once | lock a:1 t home=once | settle a complete home=once token=t | offer a to=once "
    "| cut | answer a | see a:1 home=once",
    # two clients at one message
    "send a | see a:1 | begin a bury reason=r | see a:1:dead:r | settle a complete unknown home=orders | audit",
    # locks
    "send a | lock a:1 t | wait 31 | lock a:1 u by=two count=1 | settle a complete lost token=t"
    " | settle a complete token=u",
    "send a | lock a:1 t | settle a abandon token=t | lock a:1 u by=two count=1 | settle a complete token=u",
    "send a | lock a:1 t | leave one | lock a:1 u by=two",
    "send a | kill | lock a:1 t since=0.001 | settle a complete token=t",
    "send a | see a:1 | settle a defer | lock a:1:deferred t | miss a",
    "send a | lock a:1 t | kill | lock a:1 u by=two | settle a complete lost token=t",
    "send a | lock a:1 t | begin a complete token=t | wait 1 | end a unknown | lock a:1 u by=two",
    "send a | lock a:1 t | wait 20 | renew t | wait 20 | settle a complete token=t",
    "accept s by=one | leave one | accept s by=two | wait 31 | accept s by=three",
    # one delivery was so long on its way that its lock was over, and the message gone, when it came
    "send a | wait 31 | lock a:1 u by=two count=1 | wait 1 | settle a complete token=u | wait 1 | lock a:1 t since=33"
    " | settle a complete lost token=t | audit",
    "send a due=1 | wait 40 | take a:2 count=1 | wait 1 | lock a:2 t since=33 | settle a complete lost token=t",
    "send a | wait 1 | step -3600 | wait 39 | take a:1 count=1 | wait 1 | lock a:1 t lasts=-10"
    " | settle a complete lost token=t",
    # power cuts
    "send a | see a:1 | settle a complete | wait 0.05 | cut | audit a:1",
    "send a | see a:1 | settle a complete | wait 0.05 | cut | audit",
    "send a | see a:1 | settle a bury reason=r | cut | audit a:1",
    "send a | see a:1 | settle a abandon | cut | audit a:1",
    "send a | see a:1 | settle a complete | wait 5 | cut fails=6 | audit a:1",
    "start none | send a b | see a:1 | settle a complete | write one | cut | audit | send c | see c:1",
    "start none | send a b | see a:1 | settle a complete | cut | audit a:1 b:2",
    # a delivery that was on its way when the power was cut says nothing of what is left
    "start none | send a | cut | lock a:1 t since=0.001 | audit | send c | see c:1",
    "send a | see a:1 | settle a abandon | cut | lock a:1 t since=0.001 count=1 | audit a:1",
    "start none | write one | cut | read one since=0.002 | audit",
    "start none | cut | write one since=0.002 | audit",
    "send a | see a:1 | settle a defer | cut | see a:1:deferred since=0.001 | audit a:1",
    "start strict | send a | see a:1 | settle a complete | cut | audit",
    # the end
    "send a b | see a:1 | settle a complete | see b:2 | settle b bury reason=r | drain b:2:dead:r",
]  # fmt: skip


def with_reasons(text: str) -> str:
    return text.replace(":exhausted", f":{EXHAUSTED}").replace(":expired", f":{EXPIRED}")


@pytest.mark.parametrize(("text", "problem"), BROKEN)
def test_the_checker_sees_what_is_wrong(text: str, problem: str) -> None:
    found = Story().tell(with_reasons(text)).problems
    assert any(problem in each for each in found), found


@pytest.mark.parametrize("text", RIGHT)
def test_the_checker_is_content_with_what_is_right(text: str) -> None:
    assert Story().tell(with_reasons(text)).problems == []


def test_what_waits_on_a_topic_may_be_late_until_the_end() -> None:
    text = "send a due=1 elsewhere=1 | wait 20 | audit"
    assert Story(late_s=60.0).tell(f"{text} | wait 3 | see a:1 | settle a complete | drain").problems == []
    assert Story(late_s=60.0).tell(f"{text} | wait 3 | drain").problems != []
    assert Story(late_s=60.0).tell(f"{text} | wait 50 | audit").problems != []


def test_a_settlement_without_an_answer_may_turn_up_until_something_is_written() -> None:
    """Where the disk fails or stalls, its record may be in the journal, and be found by the next start."""
    text = "send a b | see a:1 | settle a complete outcome=unknown | wait 5 | see a:1 count=1"
    assert Story(fails=True).tell(f"{text} | kill | audit b:2").problems == []
    assert Story(fails=True).tell(f"{text} | kill | audit a:1 b:2").problems == []
    for known in ("send c", "kill | start default | see a:1 count=1"):
        assert Story(fails=True).tell(f"{text} | wait 1 | {known} | see a:1 count=1 | kill | audit b:2 c:3").problems
    assert Story().tell(f"{text} | kill | audit b:2").problems != []


def test_the_count_of_a_lock_that_ran_out_may_be_lost_with_a_node_where_the_disk_fails() -> None:
    text = "send a | lock a:1 t | wait 40 | lock a:1 u count=1 | wait 40"
    assert Story(fails=True).tell(f"{text} | crash | audit a:1").problems == []
    assert Story().tell(f"{text} | crash | audit a:1").problems != []
    assert Story(fails=True).tell(f"{text} | crash other | audit a:1").problems != []
    assert Story(fails=True).tell("send a | see a:1 | settle a abandon | crash | audit a:1").problems != []


def test_the_checker_counts_what_it_saw_and_forgets_what_is_gone() -> None:
    story = Story().tell("send a b c outcome=unknown | see a:1 | settle a complete | kill | audit b:2 c:3 | send a")
    assert story.problems == []
    assert story.checker.live == 2
    totals = story.checker.totals
    assert (totals.unknown, totals.unknown_stored, totals.settled, totals.retried) == (3, 1, 1, 1)
    assert (totals.kills, totals.audits) == (1, 1)
