"""The cost report as text for people: both books, the detour, where they differ and why. Pure.

Pure: takes what the report's JSON holds, and nothing of Spark.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from pairbus.cost.columns import columns

_BOOKS: Final = ("broker", "clients")
_NAMES: Final = ("namespace", "entity", "cause", "operation", "term")
_DIFFERENCE: Final = ("cause", "operation", "place")


def cost_lines(summary: dict[str, Any], shown: list[dict[str, Any]], lines_max: int) -> list[str]:
    """`shown` are the lines of both books, `lines_max` of them at most."""
    currency = summary["currency"]
    lines = [f"{_when(summary['period'])}; {summary['prices']}"]
    for name, heading in (("broker", "Billed, by the brokers' ledgers"), ("clients", "By the clients' ledgers")):
        total = summary[name]
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
            [*(row[key] for key in _DIFFERENCE), f"{row['operations']:+,}", f"{row['bytes']:+,}", row["explanation"]]
            for row in summary["differences"]
        ]
        heads = ["cause", "operation", "at", "operations", "bytes", "because"]
        lines += columns(heads, rows, left=("cause", "operation", "at", "because"))
    lines += [f"note: {note}" for note in summary["notes"]]
    return lines


def _detour_text(summary: dict[str, Any], currency: str) -> list[str]:
    detour = summary["detour"]
    if detour["carried"]:
        lines = [
            f"The detour: {detour['carried']:,} messages came home, {detour['operations_per_message']:.2f} operations"
            f" each ({', '.join(f'{count:,} {leg}' for leg, count in detour['legs'].items())}), {detour['bytes_in']:,}"
            f" bytes in, {detour['bytes_out']:,} out, {detour['money']:.6f} {currency}"
        ]
    else:
        lines = [f"The detour: no message came home; {_or_unknown(detour['diverted'])} diverted"]
    for key, word in (("pings", "Pings"), ("idle_polls", "Idle polls of the backlog")):
        told = {name: summary[key][name] for name in _BOOKS if summary[key][name] is not None}
        said = ", ".join(
            f"{figures['operations']:,} {'billed' if name == 'broker' else 'by the clients'}"
            + (f" ({figures['refused']:,} more failed)" if figures["refused"] else "")
            for name, figures in told.items()
        )
        lines.append(f"{word}: {said or 'unknown'}")
    return lines


def _or_unknown(value: int | None) -> str:
    return "unknown how many" if value is None else f"{value:,}"


def _when(period: dict[str, Any]) -> str:
    if period["start"] is None:
        return "The ledgers have no events"
    start, end = (datetime.fromtimestamp(period[key], UTC) for key in ("start", "end"))
    return f"{start:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC, {period['seconds']:,.0f} s"


def _cells(row: dict[str, Any]) -> list[str]:
    return [*(f"{row[key]:,}" for key in ("operations", "units", "bytes_in", "bytes_out")), f"{row['money']:.6f}"]
