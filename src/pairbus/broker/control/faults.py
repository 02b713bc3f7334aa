"""Decides which faults are in force on a namespace, and what they do to an operation. Pure.

It decides whether a namespace or an entity is unreachable or silent, whether an operation is refused and with which
text, how late it is answered, and whether a send or its answer is lost. It does not close sockets, delay frames or read
a clock: the broker's shells ask, with `now` in unix seconds, and act. The control socket never asks, so no fault can
lock its user out.

    kind         on a namespace                        on an entity                       needs
    unreachable  the port refuses                      its links are refused and cut      -
    black-hole   connections are taken, nothing said   its links hear nothing             -
    no-send      sends are refused                     likewise                           -
    no-receive   receives are refused                  likewise                           -
    no-manage    management calls are refused          likewise                           -
    throttle     past `rate` all are refused with      likewise; each fault has one       rate >= 0 (0: all refused)
                 server busy; `by` says what counts:   bucket, of one second's worth      (by)
                 messages a second, bytes, links, …
                 (access/throttling.py)
    latency      answers come `delay` seconds late     likewise, added to the namespace's delay > 0
    lost-answer  sends are stored; in place of the     likewise                           (delay >= 0)
                 answer the connection is cut, at
                 once or `delay` seconds later
    hang         sends are taken, not stored and not   likewise                           -
                 answered; when it ends, connections
                 on which one hung are cut
    storage-stall  what the journal does in its       -                                  (late)
                 folder does not return
    crash-entity -                                     its state fails: answers are       entity (delay)
                                                       `delay` seconds late, then it is
                                                       rebuilt from the journal
    crash-node   the same for all entities of `node`   of the node that the entity is on  node or entity (delay)

Sends are messages on a link and those scheduled over `$management`.

A fault on an entity covers its sub-queues and nodes (`orders/$DeadLetterQueue`, `orders/$management`,
`news/Subscriptions/all`). unreachable and black-hole may be for one `client` alone: its address, or the name of the key
that it uses. no-send, no-receive and unreachable may be for one `partition` alone, of an entity or of all that are
partitioned: messages without a key go to other partitions, those with one of its keys are refused as server busy, and
its messages are not received until the fault ends. A second fault of the same kind on the same target replaces the
first; throttles that count different things, and faults for different clients or partitions, are independent.

With `late`, which needs a standby folder, messages that arrive while the store stalls are kept from receivers until the
store is back and that many seconds have passed. The stall then ends first, on its own or when it is cleared, and the
fault stays as long as messages are late; clearing it once more releases them.

A crash lasts as long as its fault, half of it with late answers; `on_crash` carries it out (crashes.py). Another crash
of the same entity can't be caused before it is over.

The thresholds of the configuration are checked here, too: a fault replaces the one on the same target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pairbus.broker.access.throttling import LIMIT_MAX, MEASURES, Operation, Target, Throttling
from pairbus.broker.model.partitions import PARTITIONS
from pairbus.broker.refusal import Refusal
from pairbus.errors import InvalidFault, did_you_mean

FAULTS_MAX = 1_000
DELAY_S_MAX = 3_600.0
LATE_S_MAX = 900.0
RATE_MAX = LIMIT_MAX
CLIENT_CHARS_MAX = 256
#: The default measure of a throttle.
MESSAGES: Final = "messages"
STALL: Final = "storage-stall"
INTERNAL_ERROR = "amqp:internal-error"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """The arguments of a kind of fault, and the refusal that it answers with."""

    needs: str | None = None
    takes: str | None = None
    condition: str = ""
    text: str = ""


_UNABLE = "The service was unable to process the request; please retry the operation. (Fault {kind} on {target}.)"

KINDS: Mapping[str, FaultKind] = {
    "unreachable": FaultKind(takes="client"),
    "black-hole": FaultKind(takes="client"),
    "no-send": FaultKind(condition=INTERNAL_ERROR, text=_UNABLE),
    "no-receive": FaultKind(condition=INTERNAL_ERROR, text=_UNABLE),
    "no-manage": FaultKind(condition=INTERNAL_ERROR, text=_UNABLE),
    "throttle": FaultKind("rate", "by"),
    "latency": FaultKind("delay"),
    "lost-answer": FaultKind(takes="delay"),
    "hang": FaultKind(),
    STALL: FaultKind(takes="late"),
    "crash-entity": FaultKind(takes="delay"),
    "crash-node": FaultKind(takes="delay"),
}
CRASHES: Final = ("crash-entity", "crash-node")


def unknown_kind(kind: str) -> InvalidFault:
    return InvalidFault(f"there is no fault {kind!r}; {did_you_mean(str(kind), KINDS)}the kinds are {', '.join(KINDS)}")


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    entity: str | None = None
    rate: float | None = None
    delay: float | None = None
    until: float | None = None
    by: str | None = None
    client: str | None = None
    partition: int | None = None
    node: int | None = None
    late: float | None = None
    #: Of a stall: its end, since the store is back; what came is late until the fault ends.
    is_back: bool = False
    #: Of a crash: the file that will say what was inconsistent.
    diagnostics: str | None = None

    def __post_init__(self) -> None:
        kind = KINDS.get(self.kind)
        if kind is None:
            raise unknown_kind(self.kind)
        self._check_entity()
        for name in ("by", "client"):
            if getattr(self, name) is not None and name != kind.takes:
                raise InvalidFault(f"{self.kind} takes no {name}; {_USERS[name]}")
        if self.by is not None and self.by not in MEASURES:
            raise InvalidFault(f"by {self.by!r} is nothing that a throttle counts; it counts {', '.join(MEASURES)}")
        if self.by == "credits" and self.entity is not None:
            raise InvalidFault("credits are the whole namespace's; leave out the entity")
        if self.client is not None:
            if self.entity is not None:
                raise InvalidFault("a client is cut off from the whole namespace; leave out the entity")
            if not (isinstance(self.client, str) and 0 < len(self.client) <= CLIENT_CHARS_MAX):
                raise InvalidFault(f"client {self.client!r} is neither an address nor the name of a key")
        self._check_partition()
        self._check_crash()
        for name, bounds in (
            ("rate", (0.0, RATE_MAX)),
            ("delay", (0.0, DELAY_S_MAX)),
            ("late", (0.001, LATE_S_MAX)),
            ("until", (0.0, math.inf)),
        ):
            value = getattr(self, name)
            if value is None:
                if kind.needs == name:
                    raise InvalidFault(f"{self.kind} needs a {name}: {_UNITS[name]}")
            elif name != "until" and name not in (kind.needs, kind.takes):
                raise InvalidFault(f"{self.kind} takes no {name}; {_USERS[name]}")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not bounds[0] <= value <= bounds[1]:
                raise InvalidFault(f"{name} {value!r} of {self.kind} is out of bounds: {_UNITS[name]}")

    def _check_entity(self) -> None:
        if self.entity is None:
            return
        if not (isinstance(self.entity, str) and self.entity.strip("/")):
            raise InvalidFault(f"entity {self.entity!r} is not the name of one; leave it out for the whole namespace")
        if self.kind == STALL:
            raise InvalidFault("the store is the whole namespace's; leave out the entity")

    def _check_partition(self) -> None:
        if self.partition is None:
            return
        if self.kind not in _OF_PARTITIONS:
            raise InvalidFault(f"{self.kind} takes no partition; {_USERS['partition']}")
        if self.client is not None:
            raise InvalidFault("a client is cut off from the whole namespace; leave out the partition")
        if type(self.partition) is not int or not 0 <= self.partition < PARTITIONS:
            raise InvalidFault(f"partition {self.partition!r} is out of bounds: 0 to {PARTITIONS - 1}")

    def _check_crash(self) -> None:
        if self.node is not None and self.kind != "crash-node":
            raise InvalidFault(f"{self.kind} takes no node; {_USERS['node']}")
        if self.node is not None and (type(self.node) is not int or self.node < 0):
            raise InvalidFault(f"node {self.node!r} is not the number of one; they count from 0")
        if self.kind == "crash-entity" and self.entity is None:
            raise InvalidFault("crash-entity needs an entity; crash-node is for all entities of a node")
        if self.kind == "crash-node" and (self.node is None) == (self.entity is None):
            raise InvalidFault("crash-node needs a node, or an entity that is on it, and not both")

    @property
    def target(self) -> str:
        if self.node is not None:
            return f"node {self.node}"
        return "the namespace" if self.entity is None else repr(self.entity)

    @property
    def mark(self) -> str | None:
        """What tells it from another fault of its kind on its target: what it counts, its client, partition or node."""
        return mark_of(self.by, self.client, self.partition, self.node)

    def as_json(self) -> dict[str, Any]:
        names = ("kind", "entity", "client", "partition", "node", "by", "rate", "delay", "late", "until", "diagnostics")
        fields = {name: getattr(self, name) for name in names} | ({"is_back": True} if self.is_back else {})
        return {name: value for name, value in fields.items() if value is not None}


_UNITS = {
    "rate": f"operations a second, or what it counts, 0 (none) to {RATE_MAX:.0f}",
    "delay": f"seconds, 0 to {DELAY_S_MAX:.0f}",
    "late": f"seconds, more than 0 and at most {LATE_S_MAX:.0f}",
    "until": "unix seconds",
}
_USERS = {
    "rate": "throttle does",
    "delay": "latency does, and lost-answer and crashes may",
    "late": "storage-stall may",
    "by": "throttle does",
    "client": "unreachable and black-hole do",
    "partition": "unreachable, no-send and no-receive do",
    "node": "crash-node does",
}
#: The faults of one partition: whether it accepts no messages, and whether it delivers none.
_OF_PARTITIONS: Final = {"unreachable": (True, True), "no-send": (True, False), "no-receive": (False, True)}
#: Kind, entity in lower case, and what tells faults of one kind and entity apart.
Key = tuple[str, Target, str | None]


def _key(entity: str) -> str:
    return entity.strip("/").lower()


def covered_names(entity: str) -> tuple[str, ...]:
    """Return the names under which a fault covers `entity`: itself, and the entity whose sub-queue or node it is."""
    key = _key(entity)
    names = [key]
    cut = key.find("/$")
    if cut > 0:
        key = key[:cut]
        names.append(key)
    cut = key.find("/subscriptions/")
    if cut > 0:
        names.append(key[:cut])
    return tuple(names)


def key_of(fault: Fault) -> Key:
    return fault.kind, None if fault.entity is None else _key(fault.entity), fault.mark


def _targets(entity: str | None) -> tuple[Target, ...]:
    return (None,) if entity is None else (None, *covered_names(entity))


def mark_of(
    by: str | None = None, client: str | None = None, partition: int | None = None, node: int | None = None
) -> str | None:
    """Return what tells faults of one kind on one target apart."""
    if node is not None:
        return f"node {node}"
    if partition is not None:
        return f"partition {partition}"
    text = by or client
    return None if text is None or text == MESSAGES else text.lower()


class Faults:
    """The faults of one namespace. `on_change` is called after every set, clear and expiry that changed something."""

    __slots__ = ("_faults", "_slow", "_throttling", "has_standby", "is_on", "late_count", "on_change", "on_crash")

    def __init__(self, on_change: Callable[[], None] | None = None, throttling: Throttling | None = None) -> None:
        """`throttling` has the thresholds of the configuration."""
        self.on_change = on_change
        #: Begins a crash, and returns its fault with its end; raises InvalidFault where that can't be.
        self.on_crash: Callable[[Fault], Fault] | None = None
        #: Whether sends are taken while the store stalls, and how many messages are late.
        self.has_standby = False
        self.late_count: Callable[[], int] = int
        self._faults: dict[Key, Fault] = {}
        # By how many seconds answers are late of entities that are about to crash.
        self._slow: dict[str, float] = {}
        self._throttling = Throttling() if throttling is None else throttling
        #: Whether there is anything to ask: a fault, or a threshold of the configuration. The same as the truth of it,
        #: for those that ask on the way of every message: without a call.
        self.is_on = bool(self._throttling)

    def __repr__(self) -> str:
        names = ", ".join(f"{f.kind} on {f.target}" for f in self._faults.values())
        return f"<Faults {names or 'none'}>"

    def __bool__(self) -> bool:
        return self.is_on

    def set(self, fault: Fault) -> None:
        """Bring a fault into force; it replaces one of the same kind on the same target."""
        key = key_of(fault)
        if key not in self._faults and len(self._faults) >= FAULTS_MAX:
            raise InvalidFault(f"{FAULTS_MAX} faults are in force, which is the most; clear some first")
        if fault.late is not None and not self.has_standby:
            raise InvalidFault(
                "storage-stall takes late only where the broker has a standby folder (--standby): without one sends "
                "are refused while the store stalls, and nothing can be late"
            )
        if fault.kind in CRASHES:
            if self.on_crash is None:
                raise InvalidFault(f"{fault.kind} needs a broker that runs")
            fault = self.on_crash(fault)
        self._faults[key] = fault
        if fault.rate is not None:
            self._throttling.set(fault.by or MESSAGES, key[1], fault.rate, fault.until)
        self._changed()

    def clear(
        self,
        kind: str | None = None,
        entity: str | None = None,
        *,
        which: str | None = None,
        exact: bool = False,
        now: float | None = None,
    ) -> int:
        """End the faults of that kind (None: any kind) on that entity (None: wherever they are, or, when `exact`,
        on the namespace itself) and return how many there were. `which`: only those that this tells from others
        (`mark_of`); None: all, or, when `exact`, those of which nothing does. With `now` the lateness of a stall begins
        when that is cleared; without it, that ends too."""
        if kind is not None and kind not in KINDS:
            raise unknown_kind(kind)
        wanted = None if entity is None else _key(entity)
        anywhere = wanted is None and not exact
        every = which is None and not exact
        return self._drop(
            [
                key
                for key in self._faults
                if kind in (None, key[0]) and (anywhere or key[1] == wanted) and (every or key[2] == mark_of(which))
            ],
            now,
        )

    def active(self, now: float) -> list[Fault]:
        return [fault for fault in self._faults.values() if fault.until is None or fault.until > now]

    def has(self, key: Key) -> bool:
        return key in self._faults

    def slow_down(self, entities: Iterable[str], delay: float) -> None:
        """Let the answers of these queues and topics be so many seconds late; 0: no longer."""
        for name in entities:
            self._slow.pop(name.lower(), None)
            if delay:
                self._slow[name.lower()] = delay

    def deadline(self, now: float) -> float | None:
        """When the next fault ends by itself; never before `now`."""
        ends = [fault.until for fault in self._faults.values() if fault.until is not None]
        return max(now, min(ends)) if ends else None

    def tick(self, now: float) -> float | None:
        """End the faults whose time is up and return the next deadline."""
        self._drop([k for k, fault in self._faults.items() if fault.until is not None and fault.until <= now], now)
        return self.deadline(now)

    def shift(self, seconds: float) -> None:
        """Move the ends of all faults: the wall clock was set by so many seconds, and as much is left of each as
        before."""
        for key, fault in self._faults.items():
            if fault.until is not None:
                self._faults[key] = replace(fault, until=max(0.0, fault.until + seconds))
        self._throttling.shift(seconds)

    def cuts_off(self, clients: Iterable[str], now: float) -> bool:
        """Return whether one of these, the names of one client, is cut off."""
        return self._is_for_one_of("unreachable", clients, now)

    def silences(self, clients: Iterable[str], now: float) -> bool:
        """Return whether one of these, the names of one client, hears nothing."""
        return self._is_for_one_of("black-hole", clients, now)

    def _is_for_one_of(self, kind: str, clients: Iterable[str], now: float) -> bool:
        found = (self._faults.get((kind, None, name.lower())) for name in clients)
        return any(fault is not None and (fault.until is None or fault.until > now) for fault in found)

    def partitions_down(self, entity: str, now: float) -> tuple[frozenset[int], frozenset[int]]:
        """Return the partitions of an entity to which nothing can be sent, and those from which nothing is received."""
        targets = _targets(entity)
        found: tuple[set[int], set[int]] = (set(), set())
        for (kind, target, _), fault in self._faults.items():
            if fault.partition is not None and target in targets and (fault.until is None or fault.until > now):
                for is_down, partitions in zip(_OF_PARTITIONS[kind], found, strict=True):
                    if is_down:
                        partitions.add(fault.partition)
        return frozenset(found[0]), frozenset(found[1])

    def unreachable(self, entity: str | None, now: float) -> bool:
        return self.is_on and bool(self._covering("unreachable", entity, now))

    def black_hole(self, entity: str | None, now: float) -> bool:
        return self.is_on and bool(self._covering("black-hole", entity, now))

    def latency(self, entity: str | None, now: float) -> float:
        """Return the seconds by which an answer is late; a namespace's and an entity's delay add up."""
        if not self.is_on:
            return 0.0
        slow = sum(self._slow.get(name, 0.0) for name in covered_names(entity)) if self._slow and entity else 0.0
        return slow + sum(self._faults[key].delay or 0.0 for key in self._covering("latency", entity, now))

    def hangs(self, entity: str | None, now: float) -> bool:
        """Return whether a send is taken and neither stored nor answered."""
        return self.is_on and bool(self._covering("hang", entity, now))

    def stalls_storage(self, now: float) -> bool:
        return self.is_on and any(not self._faults[key].is_back for key in self._covering(STALL, None, now))

    def late(self, now: float) -> tuple[bool, bool]:
        """Return whether messages are late, and whether those are that come now."""
        stall = self._faults.get((STALL, None, None))
        if stall is None or stall.late is None:
            return False, False
        ends = math.inf if stall.until is None else stall.until + (0.0 if stall.is_back else stall.late)
        return now < ends, self.stalls_storage(now)

    def lost_answer(self, entity: str | None, now: float) -> float | None:
        """Return the seconds after which the connection is cut in place of the answer to a stored send; None: never."""
        if not self.is_on:
            return None
        return min((self._faults[key].delay or 0.0 for key in self._covering("lost-answer", entity, now)), default=None)

    def refusal(
        self,
        operation: Operation,
        entity: str | None,
        now: float,
        count: int = 1,
        size: int = 0,
        partition: int | None = None,
    ) -> Refusal | None:
        """Return the refusal of an operation, if any. Ask once per operation: an allowed one of `count` messages and
        `size` bytes uses up as many permits, of its partition if it has one."""
        if not self.is_on:
            return None
        return self._failure(operation, entity, now) or self._throttling.refusal(
            operation, _targets(entity), now, count, size, partition
        )

    def receive(self, entity: str, now: float, count: int, *, is_partitioned: bool = False) -> int | Refusal:
        """Return how many of `count` messages may be delivered now, or the refusal where it is none."""
        return self._failure("receive", entity, now) or self._throttling.receive(
            _targets(entity), now, count, is_partitioned=is_partitioned
        )

    def receive_from(
        self, entity: str, now: float, count: int, partitions: Iterable[int]
    ) -> tuple[int, frozenset[int]]:
        """Return how many of `count` messages these partitions may deliver now, and which of them may deliver none."""
        return self._throttling.receive_from(_targets(entity), now, count, partitions)

    def spend(
        self,
        entity: str,
        now: float,
        count: int = 0,
        size: int = 0,
        credits: int = 0,
        *,
        partition: int | None = None,
    ) -> None:
        """Use up the permits of what an operation turned out to be; with `partition` of one message that it gave."""
        targets, is_partitioned = _targets(entity), partition is not None
        self._throttling.spend(targets, now, count, size, credits, is_partitioned=is_partitioned)
        if partition is not None:
            self._throttling.spend_of(targets, now, partition, 1, size)

    def link_refusal(self, entity: str, now: float, receives: int | None = None) -> Refusal | None:
        """Return why no more links may be attached, if so. `receives`: of a link that receives, how many receive from
        its queue or topic already."""
        return self._throttling.link_refusal(_targets(entity), now, receives)

    def _failure(self, operation: Operation, entity: str | None, now: float) -> Refusal | None:
        kind = f"no-{operation}"
        covering = self._covering(kind, entity, now)
        if not covering:
            return None
        rule = KINDS[kind]
        return Refusal(rule.condition, rule.text.format(kind=kind, target=self._faults[covering[0]].target))

    def _covering(self, kind: str, entity: str | None, now: float) -> list[Key]:
        found: list[Key] = []
        for name in _targets(entity):
            fault = self._faults.get((kind, name, None))
            if fault is not None and (fault.until is None or fault.until > now):
                found.append((kind, name, None))
        return found

    def _drop(self, keys: list[Key], now: float | None) -> int:
        for key in keys:
            fault = self._faults.pop(key)
            if fault.late is not None and not fault.is_back and now is not None:
                back = now if fault.until is None else min(now, fault.until)
                self._faults[key] = replace(fault, is_back=True, until=back + fault.late)
            if fault.rate is not None:
                self._throttling.drop(fault.by or MESSAGES, key[1])
        if keys:
            self._changed()
        return len(keys)

    def _changed(self) -> None:
        self.is_on = bool(self._faults) or bool(self._throttling)
        if self.on_change is not None:
            self.on_change()
