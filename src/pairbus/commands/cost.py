"""The commands `cost estimate` and `cost report`: compute what pairing will cost, and sum up what was billed.

Results go to stdout, progress to stderr. `cli.py` turns errors into one line.
"""

from __future__ import annotations

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pairbus.commands.reports import read_for_report, say, tell
from pairbus.commands.spark_options import spark_options

if TYPE_CHECKING:
    from pairbus.cost import Estimate

_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_UNITS_BYTES: Final = {"": 1, "kb": 1024, "mb": 1024 * 1024}


class _Measure(click.ParamType):  # type: ignore[type-arg]  # generic in the newer of the clicks that we allow
    """A number with a unit; a whole number where `is_whole`."""

    def __init__(self, name: str, units: dict[str, int], allowed: str, *, is_whole: bool = False) -> None:
        self.name = name
        self._units = units
        self._allowed = allowed
        self._is_whole = is_whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int | float):
            return value
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", value.strip().lower(), re.ASCII)
        if found is None or found[2] not in self._units:
            self.fail(f"{value!r} is no {self.name}; allowed: {self._allowed}", param, ctx)
        amount = float(found[1]) * self._units[found[2]]
        return round(amount) if self._is_whole else amount


_SECONDS: Final = _Measure("time", _UNITS_S, "seconds, or a number with s, m, h or d, such as 90m")
_SIZE: Final = _Measure("size", _UNITS_BYTES, "bytes, or a number with KB or MB, such as 64KB", is_whole=True)

_option = partial(click.option, show_default=True)
_time = partial(_option, type=_SECONDS, metavar="TIME")
_prices = click.option(
    "--prices",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Your price book, in TOML. Without it example prices are used, which are nobody's.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object: for scripts.")


@click.group(no_args_is_help=False)
def cost() -> None:
    """Tell what pairing costs: an estimate before an outage, a report after it.

    \b
    Examples:
      pairbus cost estimate --rate 50 --outage 2h
      pairbus cost report ./data/contoso/ledger ./data/backup/ledger ./ledger
    """


@cost.command()
@_option("--queues", type=click.IntRange(1, 1000), default=10, help="Backlog queues.")
@_option("--syphons", type=click.IntRange(0), default=1, help="Syphons that run all the time.")
@_option("--entities", type=click.IntRange(1), default=1, help="Queues and topics sent to.")
@_option("--clients", type=click.IntRange(1), default=1, help="Paired clients that send.")
@_option("--rate", type=click.FloatRange(0), default=10.0, help="Messages a second, to all entities.")
@_option("--size", type=_SIZE, metavar="BYTES", default="1KB", help="Of a message: 1500, 64KB.")
@_time("--outage", "outage_s", default="1h", help="3600, 90m, 2h.")
@_time("--ping-interval", "ping_interval_s", default="60s", help="ping_primary_interval.")
@_time("--failover-interval", "failover_interval_s", default="60s", help="failover_interval.")
@_option("--tier", type=click.Choice(("basic", "standard", "premium")), default="standard", help="Of both namespaces.")
@click.option("--max-rate", type=click.FloatRange(0, min_open=True), help="The syphon's ceiling, messages a second.")
@_option("--days", type=click.FloatRange(0, min_open=True), default=30.0, help="The period of the bill.")
@_prices
@_json
def estimate(
    outage_s: float, ping_interval_s: float, days: float, prices: Path | None, as_json: bool, **scenario: Any
) -> None:
    """Estimate what pairing will cost, term by term, how many backlog queues an outage fills, and how long the drain
    takes.

    The outage lies within the period. Every term is explained; where one is a bound, it says so. For a fleet it tells
    how many pings a second reach the primary, and how long the drain takes beside live traffic.

    \b
    Examples:
      pairbus cost estimate
      pairbus cost estimate --rate 200 --size 20KB --outage 4h --entities 5 --clients 8
      pairbus cost estimate --outage 0 --rate 0 --days 1        (what an idle syphon costs)
      pairbus cost estimate --clients 10000 --entities 20 --rate 300 --ping-interval 5m
      pairbus cost estimate --prices my-prices.toml --json
    """
    from pairbus.cost.estimate import estimate as estimate_cost
    from pairbus.cost.price_file import read_prices

    if not ping_interval_s:
        raise click.UsageError("--ping-interval may not be 0; allowed: more, such as 60s")
    if outage_s > days * 86400:
        raise click.UsageError(
            f"--outage {outage_s:g} s does not fit into --days {days:g}; make the outage shorter or the period longer"
        )
    made = estimate_cost(
        prices=read_prices(prices), outage_s=outage_s, ping_interval_s=ping_interval_s, hours=days * 24, **scenario
    )
    if as_json:
        click.echo(json.dumps(made.to_dict(), ensure_ascii=False))
        return
    for line in _estimate_lines(made):
        click.echo(line)
    for warning in made.warnings:
        click.echo(f"warning: {warning}", err=True)


def _estimate_lines(made: Estimate) -> list[str]:
    from pairbus.cost.columns import aligned

    case, currency = made.scenario, made.prices.currency
    rows = [["term", "operations", "units", "bytes in", "bytes out", currency]]
    rows += [
        [term.name, *(f"{value:,}" for value in (term.operations, term.units, term.bytes_in, term.bytes_out)),
         f"{term.money:,.4f}"]
        for term in made.terms
    ]  # fmt: skip
    sums = [sum(getattr(term, key) for term in made.terms) for key in ("operations", "units", "bytes_in", "bytes_out")]
    rows.append(["total", *(f"{value:,}" for value in sums), f"{made.money:,.4f}"])
    need = made.backlog_queues_needed
    return [
        f"{case.hours / 24:g} days, {case.rate:g} messages/s of {case.size:,} bytes, an outage of"
        f" {case.outage_s:,.0f} s; {made.prices.name}",
        "",
        *aligned(rows),
        "",
        *(f"{term.name}: {term.explanation}" for term in made.terms),
        "",
        f"The outage: {made.outage_money:,.4f} {currency} for {made.diverted:,} diverted messages and the pings; two of"
        " a message's four operations would have been due without it.",
        f"The backlog: {made.backlog_bytes:,} bytes with the aliases need {need} backlog queue{'s' if need > 1 else ''}"
        f" of 5 GB; there are {case.queues}.",
        *_fleet_lines(made),
    ]


def _fleet_lines(made: Estimate) -> list[str]:
    case, fleet = made.scenario, made.fleet
    credits = "" if fleet.credits is None else f", {fleet.live_credits:g} of {fleet.credits:,} credits a second"
    beside = f"beside {case.rate:g} live messages a second{credits}"
    if fleet.drain_s is None:
        took = f"as fast as the syphon's machine allows: no number limits the {case.tier} tier"
    elif math.isinf(fleet.drain_s):
        took = "never"
    else:
        took = (
            f"{fleet.drain_s:,.0f} s at {fleet.drain_per_s or 0:,.1f} messages a second, limited by {fleet.limited_by}"
        )
    return [
        f"The pings: {fleet.pings_per_s:,.1f} a second from {case.clients:,} clients with {case.entities:,} entities"
        " each while all are failed over, spread over the interval.",
        f"The drain: {made.diverted:,} messages, {fleet.backlog_gb:,.2f} GB, {beside}: {took}.",
    ]


@cost.command()
@click.argument("ledgers", metavar="LEDGER...", nargs=-1, required=True)
@_prices
@_json
@click.option(
    "--parquet",
    metavar="DIR",
    help="Write the lines and the differences as Parquet tables, too.",
)
@spark_options
def report(
    ledgers: tuple[str, ...],
    prices: Path | None,
    as_json: bool,
    parquet: str | None,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Sum up what was billed, from the ledgers of brokers, clients and syphons.

    LEDGER is a folder, searched for *.jsonl with all that is in it, or a file. The brokers' ledgers and the clients'
    are summed up apart, and where they differ it says why. Runs on Spark.

    \b
    Examples:
      pairbus cost report ./data/contoso/ledger ./data/backup/ledger ./client-ledger
      pairbus cost report ./data --prices my-prices.toml --json
      pairbus cost report ./data --parquet ./cost
    """
    from pairbus.cost.price_file import read_prices

    book = read_prices(prices)  # before Spark takes its seconds
    read = read_for_report(ledgers, master, conf, as_json, parquet)
    from pairbus.spark.reports.cost_report import cost_report

    say("summing up what was billed", as_json)
    tell([cost_report(read, book)], as_json, parquet, "lines and differences")
