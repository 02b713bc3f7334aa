"""Decides which faults are in force on a namespace, and what they do to an operation (P46, P47). Pure.

Decides: whether a namespace or an entity is out of reach or silent, whether an operation is refused and with which
words, how late it is answered, whether a send is lost or its answer. Does not close sockets, delay frames or read a
clock: the broker's shells ask, with `now` in unix seconds, and act. The control socket never asks, so no fault can
lock its user out.

    kind         on a namespace                        on an entity                       needs
    unreachable  the port refuses                      its links are refused and cut      -
    black-hole   connections are taken, nothing said   its links hear nothing             -
    no-send      sends are refused                     likewise                           -
    no-receive   receives are refused                  likewise                           -
    no-manage    management calls are refused          likewise                           -
    throttle     past `rate` operations a second       likewise; each fault has one       rate >= 0 (0: all refused)
                 all are refused with server busy      bucket, of one second's worth
    latency      answers come `delay` seconds late     likewise, added to the namespace's delay > 0
    lost-answer  sends are stored; in place of the     likewise                           (delay >= 0)
                 answer the connection is cut, at
                 once or `delay` seconds later
    hang         sends are taken, not stored and not   likewise                           -
                 answered; when it ends, connections
                 on which one hung are cut

Sends are messages on a link and those scheduled over `$management`.

A fault on an entity covers its sub-queues and nodes (`orders/$DeadLetterQueue`, `orders/$management`,
`news/Subscriptions/all`). A second fault of the same kind on the same target replaces the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pairbus.broker.refusal import Refusal
from pairbus.errors import InvalidFault, did_you_mean

Operation = Literal["send", "receive", "manage"]

FAULTS_MAX = 1_000
DELAY_S_MAX = 3_600.0
RATE_MAX = 1e9
SERVER_BUSY = "com.microsoft:server-busy"
INTERNAL_ERROR = "amqp:internal-error"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """What a kind of fault needs or may be given, and what it answers with to what it refuses."""

    needs: str | None = None
    takes: str | None = None
    condition: str = ""
    text: str = ""


_UNABLE = "The service was unable to process the request; please retry the operation. (Fault {kind} on {target}.)"
# The service's own words for throttling: clients and people look for the number (P24, P47).
_BUSY = (
    "The request was terminated because the entity is being throttled. Error code : 50009. "
    "Please wait 2 seconds and try again."
)

KINDS: Mapping[str, FaultKind] = {
    "unreachable": FaultKind(),
    "black-hole": FaultKind(),
    "no-send": FaultKind(condition=INTERNAL_ERROR, text=_UNABLE),
    "no-receive": FaultKind(condition=INTERNAL_ERROR, text=_UNABLE),
    "no-manage": FaultKind(condition=INTERNAL_ERROR, text=_UNABLE),
    "throttle": FaultKind("rate", condition=SERVER_BUSY, text=_BUSY),
    "latency": FaultKind("delay"),
    "lost-answer": FaultKind(takes="delay"),
    "hang": FaultKind(),
}


def unknown_kind(kind: str) -> InvalidFault:
    return InvalidFault(f"there is no fault {kind!r}; {did_you_mean(str(kind), KINDS)}the kinds are {', '.join(KINDS)}")


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    entity: str | None = None
    rate: float | None = None
    delay: float | None = None
    until: float | None = None

    def __post_init__(self) -> None:
        kind = KINDS.get(self.kind)
        if kind is None:
            raise unknown_kind(self.kind)
        if self.entity is not None and not (isinstance(self.entity, str) and self.entity.strip("/")):
            raise InvalidFault(f"entity {self.entity!r} is not the name of one; leave it out for the whole namespace")
        for name, bounds in (("rate", (0.0, RATE_MAX)), ("delay", (0.0, DELAY_S_MAX)), ("until", (0.0, math.inf))):
            value = getattr(self, name)
            if value is None:
                if kind.needs == name:
                    raise InvalidFault(f"{self.kind} needs a {name}: {_UNITS[name]}")
            elif name != "until" and name not in (kind.needs, kind.takes):
                raise InvalidFault(f"{self.kind} takes no {name}; {_USERS[name]}")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not bounds[0] <= value <= bounds[1]:
                raise InvalidFault(f"{name} {value!r} of {self.kind} is out of bounds: {_UNITS[name]}")

    @property
    def target(self) -> str:
        return "the namespace" if self.entity is None else repr(self.entity)

    def as_json(self) -> dict[str, Any]:
        fields = {"kind": self.kind, "entity": self.entity, "rate": self.rate, "delay": self.delay, "until": self.until}
        return {name: value for name, value in fields.items() if value is not None}


_UNITS = {
    "rate": f"operations a second, 0 (none) to {RATE_MAX:.0f}",
    "delay": f"seconds, 0 to {DELAY_S_MAX:.0f}",
    "until": "unix seconds",
}
_USERS = {"rate": "throttle does", "delay": "latency does, and lost-answer may"}


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


class _Bucket:
    """One second's worth of permits, refilled evenly."""

    __slots__ = ("at", "level", "rate", "size")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        # A rate below one a second still lets a whole operation through now and then; 0 never does.
        self.size = max(1.0, rate) if rate > 0 else 0.0
        self.level = self.size
        self.at = -math.inf

    def holds(self, count: int, now: float) -> bool:
        if now > self.at:
            if self.at != -math.inf:
                self.level = min(self.size, self.level + (now - self.at) * self.rate)
            self.at = now
        # A batch larger than the bucket passes when the bucket is full; else it never would. Unix seconds as floats
        # are good to a quarter of a microsecond: a permit that is due must not wait for that.
        return self.size > 0 and self.level >= min(count, self.size) - 1e-6 * self.size

    def take(self, count: int) -> None:
        # Below zero after an over-sized batch: what follows waits for it.
        self.level -= count


class Faults:
    """The faults of one namespace. `on_change` is called after every set, clear and expiry that changed something."""

    __slots__ = ("_buckets", "_faults", "on_change")

    def __init__(self, on_change: Callable[[], None] | None = None) -> None:
        self.on_change = on_change
        self._faults: dict[tuple[str, str | None], Fault] = {}
        self._buckets: dict[tuple[str, str | None], _Bucket] = {}

    def __repr__(self) -> str:
        names = ", ".join(f"{f.kind} on {f.target}" for f in self._faults.values())
        return f"<Faults {names or 'none'}>"

    def __bool__(self) -> bool:
        return bool(self._faults)

    def set(self, fault: Fault) -> None:
        """Bring a fault into force; it replaces one of the same kind on the same target."""
        key = (fault.kind, None if fault.entity is None else _key(fault.entity))
        if key not in self._faults and len(self._faults) >= FAULTS_MAX:
            raise InvalidFault(f"{FAULTS_MAX} faults are in force, which is the most; clear some first")
        self._faults[key] = fault
        if fault.rate is not None:
            self._buckets[key] = _Bucket(fault.rate)
        self._changed()

    def clear(self, kind: str | None = None, entity: str | None = None, *, exact: bool = False) -> int:
        """End the faults of that kind (None: any kind) on that entity (None: wherever they are, or, when `exact`,
        on the namespace itself) and return how many there were."""
        if kind is not None and kind not in KINDS:
            raise unknown_kind(kind)
        wanted = None if entity is None else _key(entity)
        anywhere = wanted is None and not exact
        return self._drop([k for k in self._faults if kind in (None, k[0]) and (anywhere or k[1] == wanted)])

    def active(self, now: float) -> list[Fault]:
        return [fault for fault in self._faults.values() if fault.until is None or fault.until > now]

    def deadline(self, now: float) -> float | None:
        """When the next fault ends by itself; never before `now`."""
        ends = [fault.until for fault in self._faults.values() if fault.until is not None]
        return max(now, min(ends)) if ends else None

    def tick(self, now: float) -> float | None:
        """End the faults whose time is up and return the next deadline."""
        self._drop([k for k, fault in self._faults.items() if fault.until is not None and fault.until <= now])
        return self.deadline(now)

    def shift(self, seconds: float) -> None:
        """Move the ends of all faults: the wall clock was set by so many seconds, and as much is left of each as
        before."""
        for key, fault in self._faults.items():
            if fault.until is not None:
                self._faults[key] = replace(fault, until=max(0.0, fault.until + seconds))
        for bucket in self._buckets.values():
            bucket.at += seconds

    def unreachable(self, entity: str | None, now: float) -> bool:
        return bool(self._faults) and bool(self._covering("unreachable", entity, now))

    def black_hole(self, entity: str | None, now: float) -> bool:
        return bool(self._faults) and bool(self._covering("black-hole", entity, now))

    def latency(self, entity: str | None, now: float) -> float:
        """Return the seconds by which an answer is late; a namespace's and an entity's delay add up."""
        if not self._faults:
            return 0.0
        return sum(self._faults[key].delay or 0.0 for key in self._covering("latency", entity, now))

    def hangs(self, entity: str | None, now: float) -> bool:
        """Return whether a send is taken and neither stored nor answered."""
        return bool(self._faults) and bool(self._covering("hang", entity, now))

    def lost_answer(self, entity: str | None, now: float) -> float | None:
        """Return the seconds after which the connection is cut in place of the answer to a stored send; None: never."""
        if not self._faults:
            return None
        return min((self._faults[key].delay or 0.0 for key in self._covering("lost-answer", entity, now)), default=None)

    def refusal(self, operation: Operation, entity: str | None, now: float, count: int = 1) -> Refusal | None:
        """Return the refusal of an operation, if any. Ask once per operation: an allowed one uses up `count`
        permits."""
        if not self._faults:
            return None
        for kind in (f"no-{operation}", "throttle"):
            covering = self._covering(kind, entity, now)
            if not covering:
                continue
            rule = KINDS[kind]
            if kind == "throttle":
                buckets = [self._buckets[key] for key in covering]
                # All are asked before one is charged: a refused operation must cost nothing.
                if all(bucket.holds(count, now) for bucket in buckets):
                    for bucket in buckets:
                        bucket.take(count)
                    continue
            return Refusal(rule.condition, rule.text.format(kind=kind, target=self._faults[covering[0]].target))
        return None

    def _covering(self, kind: str, entity: str | None, now: float) -> list[tuple[str, str | None]]:
        names: tuple[str | None, ...] = (None,) if entity is None else (None, *covered_names(entity))
        found = []
        for name in names:
            fault = self._faults.get((kind, name))
            if fault is not None and (fault.until is None or fault.until > now):
                found.append((kind, name))
        return found

    def _drop(self, keys: list[tuple[str, str | None]]) -> int:
        for key in keys:
            del self._faults[key]
            self._buckets.pop(key, None)
        if keys:
            self._changed()
        return len(keys)

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()
