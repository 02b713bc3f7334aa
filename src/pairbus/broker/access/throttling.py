"""Decides when a request is denied as server busy: thresholds on an entity, on a namespace and on the node. Pure.

A threshold has a measure, a target (an entity, or None for the namespace) and a limit. A rate has a bucket of one
second's worth; for a level, `read` returns the present value. Thresholds of the configuration always apply; one that a
fault sets replaces them while it lasts. A send is judged before any of it is stored. In a partitioned entity rates
apply to each partition separately; requests to its management node count together.

    measure     counts                                                             denies
    messages    messages sent and received, and management calls                   all three
    bytes       bytes sent and received                                            sends, receives
    credits     one for a message sent, received or peeked, one for each filter    all three
                that a sent message is compared with, ten for a management call
    dependency  messages sent and management calls: what the storage takes         sends, management
    links       links that are attached                                            new links
    receives    links that receive; 5,000 an entity, unless another limit is set   new receivers
    cpu         per cent of a core that the process used in the last second        all three
    memory      MB that the process has in memory                                  sends, management
    storage     MB of the journals on disk                                         sends, management
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from pairbus.amqp.errors import SERVER_BUSY
from pairbus.broker.refusal import Refusal

Operation = Literal["send", "receive", "manage"]
#: An entity's name in lower case, or None for the namespace.
Target = str | None

#: Of an entity; those of a topic's subscriptions count together.
RECEIVES_MAX: Final = 5_000
MANAGEMENT_CREDITS: Final = 10
LIMIT_MAX: Final = 1e9
FILTERS: Final = "filters"

_ALL: Final = frozenset(("send", "receive", "manage"))
_WRITES: Final = frozenset(("send", "manage"))
# The service's own text: clients and people look for the number.
_BUSY: Final = (
    "The request was terminated because the entity is being throttled. Error code : 50009. "
    "Please wait 2 seconds and try again. ({why}.)"
)


@dataclass(frozen=True, slots=True)
class Measure:
    """The quantity that a threshold counts. `key` is its name in a configuration file, `unit` follows the limit in
    texts."""

    key: str
    unit: str
    denies: frozenset[str]
    is_rate: bool = False


MEASURES: Final[Mapping[str, Measure]] = {
    "messages": Measure("messages_per_second", "messages a second", _ALL, is_rate=True),
    "bytes": Measure("bytes_per_second", "bytes a second", frozenset(("send", "receive")), is_rate=True),
    "credits": Measure("credits_per_second", "credits a second", _ALL, is_rate=True),
    "dependency": Measure("dependency_writes_per_second", "writes a second to its storage", _WRITES, is_rate=True),
    "links": Measure("links", "links", frozenset()),
    "receives": Measure("concurrent_receives", "concurrent receives", frozenset()),
    "cpu": Measure("cpu_percent", "per cent of a core on its node", _ALL),
    "memory": Measure("memory_in_megabytes", "MB of memory on its node", _WRITES),
    "storage": Measure("storage_in_megabytes", "MB of storage on its node", _WRITES),
}


class Bucket:
    """One second's worth of permits, refilled evenly."""

    __slots__ = ("at", "level", "rate", "size")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        # A rate below one a second still lets a whole operation through now and then; 0 never does.
        self.size = max(1.0, rate) if rate > 0 else 0.0
        self.level = self.size
        self.at = -math.inf

    def holds(self, count: float, now: float) -> bool:
        self._refill(now)
        # A batch larger than the bucket passes when the bucket is full; else it never would. Unix seconds as floats
        # are good to a quarter of a microsecond: a permit that is due must not wait for that.
        return self.size > 0 and self.level >= min(count, self.size) - 1e-6 * self.size

    def whole(self, now: float) -> int:
        """Return how many whole permits there are."""
        self._refill(now)
        return max(0, math.floor(self.level + 1e-6 * self.size))

    def take(self, count: float) -> None:
        # Below zero after an over-sized batch: what follows waits for it.
        self.level -= count

    def _refill(self, now: float) -> None:
        if now > self.at:
            if self.at != -math.inf:
                self.level = min(self.size, self.level + (now - self.at) * self.rate)
            self.at = now


@dataclass(slots=True, eq=False)
class _Threshold:
    measure: str
    target: Target
    limit: float
    until: float | None = None
    bucket: Bucket | None = field(init=False)
    of_partitions: dict[int, Bucket] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.bucket = Bucket(self.limit) if MEASURES[self.measure].is_rate else None

    def bucket_of(self, partition: int | None) -> Bucket | None:
        """Return the bucket for a partition of its entity; a namespace has one for all."""
        if partition is None or self.bucket is None or self.target is None:
            return self.bucket
        if partition not in self.of_partitions:
            self.of_partitions[partition] = Bucket(self.limit)
        return self.of_partitions[partition]

    def shift(self, seconds: float) -> None:
        for bucket in (self.bucket, *self.of_partitions.values()):
            if bucket is not None:
                bucket.at += seconds
        if self.until is not None:
            self.until = max(0.0, self.until + seconds)

    def refusal(self) -> Refusal:
        who = "the namespace" if self.target is None else repr(self.target)
        return busy(f"{who} takes up to {self.limit:g} {MEASURES[self.measure].unit}")


def busy(why: str) -> Refusal:
    """Return the refusal of a client that asks too much, in the service's words."""
    return Refusal(SERVER_BUSY, _BUSY.format(why=why[:1].upper() + why[1:]))


def _nothing(measure: str, target: Target) -> float:
    return 0.0


class Throttling:
    """The thresholds of a namespace. `read` gives the level of a measure at a target, and the filters of a topic."""

    __slots__ = ("_read", "_set", "_standing")

    def __init__(
        self,
        standing: Mapping[Target, Mapping[str, float]] | None = None,
        read: Callable[[str, Target], float] = _nothing,
    ) -> None:
        self._read = read
        self._standing = {
            target: {measure: _Threshold(measure, target, limit) for measure, limit in limits.items()}
            for target, limits in (standing or {}).items()
            if limits
        }
        self._set: dict[Target, dict[str, _Threshold]] = {}

    def __bool__(self) -> bool:
        return bool(self._standing or self._set)

    def __repr__(self) -> str:
        count = sum(map(len, self._standing.values()))
        return f"<Throttling: {count} standing thresholds, {sum(map(len, self._set.values()))} set by faults>"

    def set(self, measure: str, target: Target, limit: float, until: float | None) -> None:
        """Set a threshold until a time, in place of the standing one."""
        self._set.setdefault(target, {})[measure] = _Threshold(measure, target, limit, until)

    def drop(self, measure: str, target: Target) -> None:
        """End a threshold that was set; the standing one, if any, holds again."""
        there = self._set[target]
        del there[measure]
        if not there:
            del self._set[target]

    def shift(self, seconds: float) -> None:
        """Adapt to a wall clock that was set."""
        for there in (*self._standing.values(), *self._set.values()):
            for each in there.values():
                each.shift(seconds)

    def refusal(
        self,
        operation: Operation,
        targets: Sequence[Target],
        now: float,
        count: int = 1,
        size: int = 0,
        partition: int | None = None,
    ) -> Refusal | None:
        """Return why an operation of so many messages and bytes is denied, if it is; an admitted one is charged.
        `targets` are the namespace and the names that cover the entity, the last of them the widest."""
        charges: list[tuple[Bucket, float]] = []
        for each in self._over(targets, now):
            if operation not in MEASURES[each.measure].denies:
                continue
            bucket = each.bucket_of(partition)
            if bucket is None:
                if self._read(each.measure, each.target) >= each.limit:
                    return each.refusal()
                continue
            cost = self._cost(each.measure, operation, targets[-1], count, size)
            # All are asked before one is charged: a refused operation must cost nothing.
            if not bucket.holds(cost, now):
                return each.refusal()
            charges.append((bucket, cost))
        for bucket, cost in charges:
            bucket.take(cost)
        return None

    def receive(
        self, targets: Sequence[Target], now: float, count: int, *, is_partitioned: bool = False
    ) -> int | Refusal:
        """Return how many of `count` messages may be delivered now, and charge them; their bytes are charged with
        `spend`, when they are known. A rate only delays what is on its way to a receiver, so 0 means later; where
        nothing may be delivered at all, return the refusal. The rates of a partitioned entity: see `receive_from`."""
        over = [each for each in self._over(targets, now) if "receive" in MEASURES[each.measure].denies]
        if is_partitioned:
            over = [each for each in over if not each.limit or each.bucket is None or each.target is None]
        for each in over:
            if each.bucket is None:
                if self._read(each.measure, each.target) >= each.limit:
                    return each.refusal()
            elif not each.limit:
                return each.refusal()
            elif each.measure != "bytes":
                count = min(count, each.bucket.whole(now))
            elif not each.bucket.holds(1, now):
                count = 0
        self._charge(over, count, 0, count)
        return count

    def receive_from(
        self, targets: Sequence[Target], now: float, count: int, partitions: Iterable[int]
    ) -> tuple[int, frozenset[int]]:
        """Return how many of `count` messages may be delivered from these partitions of a partitioned entity, whichever
        of them they come from, and which partitions may deliver none now. They are charged with `spend_of`."""
        over = [each for each in self._over_entity(targets, now) if "receive" in MEASURES[each.measure].denies]
        spent: set[int] = set()
        for partition in partitions:
            for each in over:
                bucket = each.bucket_of(partition)
                assert bucket is not None
                if each.measure != "bytes" and (allowed := bucket.whole(now)):
                    count = min(count, allowed)
                elif each.measure != "bytes" or not bucket.holds(1, now):
                    spent.add(partition)
        return count, frozenset(spent)

    def spend_of(self, targets: Sequence[Target], now: float, partition: int, count: int, size: int) -> None:
        """Charge the rates of a partition for what it has delivered."""
        self._charge(self._over_entity(targets, now), count, size, 0, partition)

    def spend(
        self,
        targets: Sequence[Target],
        now: float,
        count: int = 0,
        size: int = 0,
        credits: int = 0,
        *,
        is_partitioned: bool = False,
    ) -> None:
        """Charge what is known only after an operation was admitted: the next ones wait for it."""
        self._charge(self._over(targets[:1] if is_partitioned else targets, now), count, size, credits)

    def link_refusal(self, targets: Sequence[Target], now: float, receives: int | None) -> Refusal | None:
        """Return why one more link can't be attached, if it can't. `receives`: of a link that receives, how many do so
        from its queue or topic already."""
        has_limit = False
        for each in self._over(targets, now):
            if each.measure == "links" or (each.measure == "receives" and receives is not None):
                has_limit = has_limit or each.measure == "receives"
                if self._read(each.measure, each.target) >= each.limit:
                    return each.refusal()
        if receives is not None and receives >= RECEIVES_MAX and not has_limit:
            return busy(f"{targets[-1]!r} takes up to {RECEIVES_MAX} {MEASURES['receives'].unit}")
        return None

    def _over(self, targets: Iterable[Target], now: float) -> list[_Threshold]:
        found: list[_Threshold] = []
        for target in targets:
            there = self._standing.get(target, {})
            if target in self._set:
                lasting = self._set[target].items()
                there = there | {m: each for m, each in lasting if each.until is None or each.until > now}
            found += there.values()
        return found

    def _over_entity(self, targets: Sequence[Target], now: float) -> list[_Threshold]:
        """Return the rates of an entity, without those of the namespace, which is the first target."""
        return [each for each in self._over(targets[1:], now) if each.bucket is not None]

    def _cost(self, measure: str, operation: Operation, entity: Target, count: int, size: int) -> float:
        if measure == "bytes":
            return size
        if operation == "manage":
            return MANAGEMENT_CREDITS if measure == "credits" else 1
        if measure == "credits" and operation == "send":
            return count * (1 + self._read(FILTERS, entity))
        return count

    @staticmethod
    def _charge(over: Iterable[_Threshold], count: int, size: int, credits: int, partition: int | None = None) -> None:
        costs = {"messages": count, "bytes": size, "credits": credits}
        for each in over:
            bucket = each.bucket_of(partition)
            if bucket is not None:
                bucket.take(costs.get(each.measure, 0))
