"""Parses a price book (TOML), and computes what billed units, bytes and months cost by it. Pure.

It decides what a price book may contain, and what a number of billed units and bytes costs. Operations are priced in
tiers of a month: `used_per_month` is the other use, so the result is what these operations add to the bill. Bandwidth
is priced by direction: to and from the primary's entities, and to and from the backlog queues, which are in another
region. `pairbus.billing` decides what is billed, and `price_file` reads the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pairbus.errors import PairbusError

#: As the service counts traffic; a backlog queue's 5 GB are another matter (`estimate.QUEUE_BYTES`).
GB: Final = 10**9
MILLION: Final = 10**6

EXAMPLE_TOML: Final = """\
# An EXAMPLE: the structure of the public list prices of the Standard tier, with round figures.
# Replace every price by your own: they differ by region, contract and day.
name = "example prices, replace by your own"
currency = "USD"

[base]
per_month = 10.0              # EXAMPLE of the base charge, once for all namespaces of a subscription
hours_per_month = 730

[operations]
used_per_month = 13_000_000   # what you use anyway: these operations come on top, in the tier that is reached then

[[operations.tiers]]
up_to_million = 13
per_million = 0.0             # EXAMPLE: included in the base charge

[[operations.tiers]]
up_to_million = 100
per_million = 0.80            # EXAMPLE

[[operations.tiers]]
up_to_million = 2_500
per_million = 0.50            # EXAMPLE

[[operations.tiers]]          # the last tier has no end
per_million = 0.20            # EXAMPLE

[bandwidth]
primary_in_per_gb = 0.0       # EXAMPLE: senders, receivers and the syphon are in the primary's region
primary_out_per_gb = 0.0      # EXAMPLE
backlog_in_per_gb = 0.02      # EXAMPLE: the secondary is in another region, and so is every byte of the backlog
backlog_out_per_gb = 0.02     # EXAMPLE
"""


class PriceError(PairbusError, ValueError):
    """A price book that can't be used."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Operations of a month up to `up_to_million`, from where the tier before ends; None: all the rest."""

    up_to_million: float | None
    per_million: float


@dataclass(frozen=True, slots=True)
class PriceBook:
    name: str
    currency: str
    base_per_month: float
    tiers: tuple[Tier, ...]
    primary_in_per_gb: float
    primary_out_per_gb: float
    backlog_in_per_gb: float
    backlog_out_per_gb: float
    used_per_month: float = 0.0
    hours_per_month: float = 730.0

    def __repr__(self) -> str:
        return f"<PriceBook {self.name}: {self.currency}, {len(self.tiers)} tiers>"

    def base(self, hours: float) -> float:
        return self.base_per_month * hours / self.hours_per_month

    def operations(self, units: float, hours: float) -> float:
        """What that many billed units add within so many hours. Longer than a month: spread evenly over the months."""
        months = max(1.0, hours / self.hours_per_month)
        return months * (self._month(self.used_per_month + units / months) - self._month(self.used_per_month))

    def per_unit(self, units: float, hours: float) -> float:
        """The average over `units`, by which every part of a bill bears its share; for none, what the first costs."""
        counted = max(1.0, units)
        return self.operations(counted, hours) / counted

    def traffic(self, bytes_in: float, bytes_out: float, *, backlog: bool) -> float:
        into, out = self.per_byte(backlog=backlog)
        return bytes_in * into + bytes_out * out

    def per_byte(self, *, backlog: bool) -> tuple[float, float]:
        """In, out."""
        if backlog:
            return self.backlog_in_per_gb / GB, self.backlog_out_per_gb / GB
        return self.primary_in_per_gb / GB, self.primary_out_per_gb / GB

    def _month(self, units: float) -> float:
        money = begin = 0.0
        for tier in self.tiers:
            end = units if tier.up_to_million is None else min(units, tier.up_to_million * MILLION)
            money += max(0.0, end - begin) / MILLION * tier.per_million
            begin = max(begin, end)
        return money


def parse(text: str, source: str = "the price book") -> PriceBook:
    """`source` is what errors call it: the file's name."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PriceError(f"{source} is no TOML: {error}; docs/reference/price-book.md shows a whole one") from None
    book = _Table(source, "", content, ("name", "currency", "base", "operations", "bandwidth"))
    base = book.table("base", ("per_month", "hours_per_month"))
    operations = book.table("operations", ("used_per_month", "tiers"))
    bandwidth = book.table("bandwidth", _BANDWIDTH)
    return PriceBook(
        name=book.value("name", _text, "text", source),
        currency=book.value("currency", _text, 'text such as "EUR"'),
        base_per_month=base.price("per_month"),
        hours_per_month=base.value("hours_per_month", _positive, "a number above 0", 730.0),
        used_per_month=operations.value("used_per_month", _amount, _AMOUNT, 0.0),
        tiers=_tiers(operations),
        **{key: bandwidth.price(key) for key in _BANDWIDTH},
    )


_BANDWIDTH: Final = ("primary_in_per_gb", "primary_out_per_gb", "backlog_in_per_gb", "backlog_out_per_gb")
_AMOUNT: Final = "a number, 0 or more"


def _tiers(operations: _Table) -> tuple[Tier, ...]:
    listed = operations.value("tiers", _list, "tables [[operations.tiers]], at least one")
    tiers: list[Tier] = []
    for number, content in enumerate(listed):
        table = operations.nested(f"tiers[{number}]", content, ("up_to_million", "per_million"))
        is_last = number == len(listed) - 1
        if is_last and "up_to_million" in content:
            raise table.wrong("up_to_million", "is there, and the last tier has no end; leave it out, or add a tier")
        end = None if is_last else table.value("up_to_million", _positive, "a number above 0")
        if end is not None and tiers and end <= (tiers[-1].up_to_million or 0.0):
            raise table.wrong("up_to_million", f"is {end:g}, and must be above that of the tier before")
        tiers.append(Tier(end, table.price("per_million")))
    return tuple(tiers)


_REQUIRED: Final = object()


class _Table:
    """A table of the book and its place in it. A price that was forgotten must not be 0: it is an error."""

    def __init__(self, source: str, place: str, content: Any, keys: tuple[str, ...]) -> None:
        self._source = source
        self._place = place
        self._keys = keys
        if not isinstance(content, dict):
            raise PriceError(f"{source}: {place} must be a table with the keys {', '.join(keys)}")
        self._content: dict[str, Any] = content
        for key in content:
            if key not in keys:
                raise self.wrong(key, f"is not a key of a price book; the keys {self._here()} are {', '.join(keys)}")

    def _here(self) -> str:
        return f"of {self._place}" if self._place else "at the top"

    def _at(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key

    def wrong(self, key: str, problem: str) -> PriceError:
        return PriceError(f"{self._source}: {self._at(key)} {problem}")

    def table(self, key: str, keys: tuple[str, ...]) -> _Table:
        if key not in self._content:
            raise self.wrong(key, f"is missing; it is a table with the keys {', '.join(keys)}")
        return self.nested(key, self._content[key], keys)

    def nested(self, name: str, content: Any, keys: tuple[str, ...]) -> _Table:
        return _Table(self._source, self._at(name), content, keys)

    def price(self, key: str) -> float:
        return float(self.value(key, _amount, _AMOUNT))

    def value(self, key: str, read: Callable[[Any], Any], allowed: str, default: Any = _REQUIRED) -> Any:
        if key not in self._content:
            if default is _REQUIRED:
                raise self.wrong(key, f"is missing; the keys {self._here()} are {', '.join(self._keys)}")
            return default
        try:
            return read(self._content[key])
        except ValueError:
            raise self.wrong(key, f"may not be {self._content[key]!r}; allowed: {allowed}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _amount(value: Any) -> float:
    # A bool is an int to Python, and to nobody else; TOML knows inf and nan.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise ValueError
    return float(value)


def _positive(value: Any) -> float:
    if not _amount(value):
        raise ValueError
    return float(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError
    return value


EXAMPLE: Final = parse(EXAMPLE_TOML, "the example")
