"""Shows the cost report as text for people: both books, the detour, where they differ and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pairbus.cost.columns import columns

from .results import CostSummary, Period

_NAMES: Final = ("namespace", "entity", "cause", "operation", "term")


def cost_lines(summary: CostSummary, shown: list[dict[str, Any]], lines_max: int) -> list[str]:
    """Return the lines of the text. `shown` are the lines of both books, `lines_max` of them at most."""
    currency = summary["currency"]
    lines = [f"{_when(summary['period'])}; {summary['prices']}"]
    for name, total, heading in (
        ("broker", summary["broker"], "Billed, by the brokers' ledgers"),
        ("clients", summary["clients"], "By the clients' ledgers"),
    ):
        lines += ["", heading if total else f"{heading}: there is none"]
        if total is None:
            continue
        mine = [row for row in shown if row["book"] == name and row["operations"]]
        rows = [[*(row[key] for key in _NAMES), *_cells(row)] for row in mine]
        rows.append(["total", "", "", "", "", *_cells(total)])
        heads = [*_NAMES, "operations", "units", "bytes in", "bytes out", currency]
        lines += columns(heads, rows, left=_NAMES)
        if len(shown) >= lines_max:
            lines.append(f"(the first {lines_max} lines of both; --parquet writes all)")
    lines += ["", *_detour_text(summary, currency)]
    if summary["differences"]:
        lines += ["", "Where the books differ, brokers' less clients'"]
        rows = [
            [
                row["cause"],
                row["operation"],
                row["place"],
                f"{row['operations']:+,}",
                f"{row['bytes']:+,}",
                row["explanation"],
            ]
            for row in summary["differences"]
        ]
        heads = ["cause", "operation", "at", "operations", "bytes", "because"]
        lines += columns(heads, rows, left=("cause", "operation", "at", "because"))
    lines += [f"note: {note}" for note in summary["notes"]]
    return lines


def _detour_text(summary: CostSummary, currency: str) -> list[str]:
    detour = summary["detour"]
    if detour["carried"]:
        lines = [
            f"The detour: {detour['carried']:,} messages came home, {detour['operations_per_message']:.2f} operations"
            f" each ({', '.join(f'{count:,} {leg}' for leg, count in detour['legs'].items())}), {detour['bytes_in']:,}"
            f" bytes in, {detour['bytes_out']:,} out, {detour['money']:.6f} {currency}"
        ]
    else:
        lines = [f"The detour: no message came home; {_or_unknown(detour['diverted'])} diverted"]
    for found, word in ((summary["pings"], "Pings"), (summary["idle_polls"], "Idle polls of the backlog")):
        books = (("billed", found["broker"]), ("by the clients", found["clients"]))
        said = ", ".join(
            f"{figures['operations']:,} {by}" + (f" ({figures['refused']:,} more failed)" if figures["refused"] else "")
            for by, figures in books
            if figures is not None
        )
        lines.append(f"{word}: {said or 'unknown'}")
    return lines


def _or_unknown(value: int | None) -> str:
    return "unknown how many" if value is None else f"{value:,}"


def _when(period: Period) -> str:
    if period["start"] is None or period["end"] is None:
        return "The ledgers have no events"
    start, end = (datetime.fromtimestamp(t, UTC) for t in (period["start"], period["end"]))
    return f"{start:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC, {period['seconds']:,.0f} s"


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [*(f"{row[key]:,}" for key in ("operations", "units", "bytes_in", "bytes_out")), f"{row['money']:.6f}"]
