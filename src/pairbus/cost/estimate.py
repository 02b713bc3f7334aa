"""Estimates what pairing will cost: a scenario and a price book give terms, each explained in a sentence.

It decides how many operations, units and bytes each cause brings, and how many backlog queues an outage fills. A term
has the same name as in the report after the fact (`spark/reports/cost_report.py`), so that the two can be compared. If
a figure is a bound and not a forecast, its explanation says so.

The estimate assumes that the first failure comes when the outage begins; after the failover interval the entities fail
over, and each paired client pings each of its entities once an interval from then on: first one interval later,
although clients spread their first pings over it, so that some send one ping more. The ping that succeeds is the first
one after the outage's end; until then messages go to the backlog. Callers are assumed to send messages again that
failed before the failover, so these count as diverted too.

Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final

from pairbus.billing import units as units_of
from pairbus.errors import PairbusError

from .fleet import TIER_CREDITS, FleetLoad, fleet_load
from .prices import EXAMPLE, PriceBook

#: P37: one long poll of a quarter of an hour for each backlog queue and syphon.
POLLS_PER_HOUR: Final = 4
#: P9: `max_size_in_megabytes` of a backlog queue is 5120.
QUEUE_BYTES: Final = 5120 * 1024 * 1024
#: P52: send to the backlog, receive from it, send to the primary, receive from there.
DETOUR_OPERATIONS: Final = 4
#: What a message grows by on its way to the backlog: no less, for a destination of up to 50 characters.
ALIAS_BYTES: Final = 100
#: What a broker writes on a delivery (sequence number, times, delivery count): no less.
DELIVERY_BYTES: Final = 160
#: A ping, with its session id and message id.
PING_BYTES: Final = 160

#: The terms that an outage brings.
OUTAGE_TERMS: Final = ("backlog-sends", "backlog-receives", "home-sends", "home-receives", "pings")


class InvalidScenario(PairbusError, ValueError):
    """Raised for a scenario that can't be estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What to estimate: `rate` is messages a second to all entities together, `size` the encoded bytes of a message."""

    queues: int = 10
    syphons: int = 1
    entities: int = 1
    clients: int = 1
    rate: float = 10.0
    size: int = 1024
    outage_s: float = 3600.0
    ping_interval_s: float = 60.0
    failover_interval_s: float = 60.0
    hours: float = 30 * 24.0
    alias_bytes: int = ALIAS_BYTES
    delivery_bytes: int = DELIVERY_BYTES
    #: Of both namespaces, and the messages a second that the syphon may move at most; None: no ceiling.
    tier: str = "standard"
    max_rate: float | None = None

    def __post_init__(self) -> None:
        for name, (least, is_whole) in _LEAST.items():
            value = getattr(self, name)
            is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
            if not is_number or not least <= value < math.inf:
                kind = "a whole number" if is_whole else "a number"
                raise InvalidScenario(f"{name} may not be {value!r}; allowed: {kind}, {least} or more")
        for name in ("ping_interval_s", "hours"):
            if not getattr(self, name):
                raise InvalidScenario(f"{name} may not be 0; allowed: a number above 0")
        if self.tier not in TIER_CREDITS:
            raise InvalidScenario(f"tier may not be {self.tier!r}; allowed: {', '.join(TIER_CREDITS)}")
        rate = self.max_rate
        if rate is not None and (
            isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf
        ):
            raise InvalidScenario(f"max_rate may not be {rate!r}; allowed: a number above 0, or None")
        if self.outage_s > self.hours * 3600:
            raise InvalidScenario(
                f"an outage of {self.outage_s:g} s is longer than the period of {self.hours:g} hours; make that longer"
            )

    @property
    def fails_over(self) -> bool:
        return self.outage_s > self.failover_interval_s or (self.outage_s > 0 and not self.failover_interval_s)

    @property
    def ping_rounds(self) -> int:
        """Pings of one client to one entity: the last one finds the primary back."""
        if not self.fails_over:
            return 0
        return max(1, _ceil((self.outage_s - self.failover_interval_s) / self.ping_interval_s))

    @property
    def diverted_s(self) -> float:
        """Seconds from the first failure to the ping that succeeds; no longer than the period."""
        if not self.fails_over:
            return 0.0
        return min(self.hours * 3600, self.failover_interval_s + self.ping_rounds * self.ping_interval_s)

    @property
    def messages(self) -> int:
        return round(self.rate * self.hours * 3600)

    @property
    def diverted(self) -> int:
        return min(self.messages, round(self.rate * self.diverted_s))


_LEAST: Final = {
    "queues": (1, True), "syphons": (0, True), "entities": (1, True), "clients": (1, True), "rate": (0, False),
    "size": (0, True), "outage_s": (0, False), "ping_interval_s": (0, False), "failover_interval_s": (0, False),
    "hours": (0, False), "alias_bytes": (0, True), "delivery_bytes": (0, True),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the bill. `units` are what is billed for `operations`, of 64 KB each."""

    name: str
    operations: int
    units: int
    bytes_in: int
    bytes_out: int
    money: float
    explanation: str

    @property
    def bytes(self) -> int:
        return self.bytes_in + self.bytes_out

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "operations": self.operations, "units": self.units, "bytes": self.bytes,
            "bytes_in": self.bytes_in, "bytes_out": self.bytes_out, "money": round(self.money, 6),
            "explanation": self.explanation,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    scenario: Scenario
    prices: PriceBook
    terms: list[Term]
    #: What the backlog holds at its fullest, aliases included, and the queues of 5 GB that takes.
    backlog_bytes: int
    backlog_queues_needed: int

    def __repr__(self) -> str:
        return (
            f"<Estimate {self.operations} operations, {self.money:.2f} {self.prices.currency} in"
            f" {self.scenario.hours:g} h, {self.backlog_queues_needed} backlog queues needed>"
        )

    def term(self, name: str) -> Term:
        return next(term for term in self.terms if term.name == name)

    @property
    def diverted(self) -> int:
        return self.scenario.diverted

    @property
    def operations(self) -> int:
        return sum(term.operations for term in self.terms)

    @property
    def units(self) -> int:
        return sum(term.units for term in self.terms)

    @property
    def bytes(self) -> int:
        return sum(term.bytes for term in self.terms)

    @property
    def money(self) -> float:
        return math.fsum(term.money for term in self.terms)

    @property
    def outage_money(self) -> float:
        """The cost of the outage; two operations per message of it would have been due without one."""
        return math.fsum(term.money for term in self.terms if term.name in OUTAGE_TERMS)

    @property
    def fleet(self) -> FleetLoad:
        return fleet_load(self.scenario, self.backlog_bytes)

    @property
    def warnings(self) -> list[str]:
        found: list[str] = []
        if self.scenario.queues < self.backlog_queues_needed:
            found.append(
                f"{self.scenario.queues} backlog queues of 5 GB do not hold it; {self.backlog_queues_needed} are needed"
            )
        if not self.scenario.syphons:
            found.append("without a syphon nothing comes home: run one in a receiving application, or pairbus syphon")
        return [*found, *self.fleet.warnings]

    def to_dict(self) -> dict[str, Any]:
        return {
            "scenario": {field.name: getattr(self.scenario, field.name) for field in fields(self.scenario)},
            "prices": self.prices.name,
            "currency": self.prices.currency,
            "terms": [term.to_dict() for term in self.terms],
            "totals": {
                "operations": self.operations,
                "units": self.units,
                "bytes": self.bytes,
                "money": round(self.money, 6),
                "outage_money": round(self.outage_money, 6),
            },
            "diverted": self.diverted,
            "backlog_bytes": self.backlog_bytes,
            "backlog_queues_needed": self.backlog_queues_needed,
            "fleet": self.fleet.to_dict(),
            "warnings": self.warnings,
        }


def estimate(scenario: Scenario | None = None, prices: PriceBook = EXAMPLE, **given: Any) -> Estimate:
    """Of a `Scenario`, or of its fields as keywords."""
    case = Scenario(**given) if scenario is None else scenario
    sketch = _terms(case)
    each = prices.per_unit(sum(units for _, _, units, *_ in sketch), case.hours)
    terms = [
        Term(
            name, operations, units, bytes_in, bytes_out,
            prices.base(case.hours)
            if name == "base"
            else units * each + prices.traffic(bytes_in, bytes_out, backlog=name.startswith("backlog")),
            explanation,
        )
        for name, operations, units, bytes_in, bytes_out, explanation in sketch
    ]  # fmt: skip
    backlog_bytes = case.diverted * (case.size + case.alias_bytes)
    return Estimate(case, prices, terms, backlog_bytes, max(1, _ceil(backlog_bytes / QUEUE_BYTES)))


def _terms(case: Scenario) -> list[tuple[str, int, int, int, int, str]]:
    """Name, operations, units, bytes in, bytes out, explanation."""
    polls_per_hour = POLLS_PER_HOUR * case.queues * case.syphons
    polls = round(polls_per_hour * case.hours)
    healthy, diverted = case.messages - case.diverted, case.diverted
    size, diverted_size = case.size, case.size + case.alias_bytes
    pings = case.entities * case.clients * case.ping_rounds

    def legs(name: str, count: int, size: int, *, out: bool, why: str) -> tuple[str, int, int, int, int, str]:
        each = units_of(size)
        many = f"; {size:,} bytes are {each} billed units of 64 KB" if each > 1 else ""
        return name, count, count * each, 0 if out else count * size, count * size if out else 0, f"{why}{many}."

    delivered = f"{case.delivery_bytes} bytes that the broker writes on it"
    return [
        (
            "base", 0, 0, 0, 0,
            f"The base charge for {_hours(case.hours)}, whether anything is sent or not; with it"
            f" {_many(case.clients, 'connection')} to the secondary, one for each client, kept open (warm_backlog): no"
            " operations.",
        ),
        (
            "idle-polls", polls, polls, 0, 0,
            f"{_many(case.queues, 'backlog queue')} × {_many(case.syphons, 'syphon')} × 4 empty receives an hour (a"
            f" long poll lasts 15 minutes) = {polls_per_hour:,} an hour; at most: what carries messages meanwhile is"
            " not empty.",
        ),
        legs("healthy-sends", healthy, size, out=False,
             why=f"{healthy:,} messages are sent to the primary while it is well"),
        legs("healthy-receives", healthy, size + case.delivery_bytes, out=True,
             why=f"Each is received from the primary once, with up to {delivered}"),
        legs("backlog-sends", diverted, diverted_size, out=False,
             why=f"{diverted:,} messages are diverted in {case.diverted_s:,.0f} s, each sent to a backlog queue with up"
                 f" to {case.alias_bytes} bytes of aliases: the first of its {DETOUR_OPERATIONS} operations"),
        legs("backlog-receives", diverted, diverted_size + case.delivery_bytes, out=True,
             why=f"The syphon receives each from the backlog, with up to {delivered}: the second"),
        legs("home-sends", diverted, size, out=False, why="The syphon sends each to the primary: the third"),
        legs("home-receives", diverted, size + case.delivery_bytes, out=True,
             why="Each is received from the primary: the fourth"),
        legs("pings", pings, PING_BYTES, out=False,
             why=f"{_many(case.entities, 'entity', 'entities')} × {_many(case.clients, 'client')} ×"
                 f" {_many(case.ping_rounds, 'ping')}, one every"
                 f" {case.ping_interval_s:g} s while failed over; at most: those that the primary does not take are not"
                 f" billed"),
    ]  # fmt: skip


def _ceil(value: float) -> int:
    """As `math.ceil`, except for a whole number with a rounding error."""
    return math.ceil(value - 1e-9)


def _many(count: int, word: str, words: str | None = None) -> str:
    return f"{count:,} {word if count == 1 else words or word + 's'}"


def _hours(hours: float) -> str:
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hours"
