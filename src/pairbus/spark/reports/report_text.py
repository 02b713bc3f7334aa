"""Formats the reports as aligned text for people, audit and availability in 100 columns if names allow it. Pure."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pairbus.cost.columns import aligned

from .results import AuditSummary, AvailabilitySummary, CostSummary, Period, counts_of, in_words

WIDTH: Final = 100
#: The columns of the audit's table: what they are called, and what they show.
_AUDIT: Final = (
    ("SENT", "sent"),
    ("CONFIRMED", "confirmed"),
    ("DIVERTED", "diverted"),
    ("HOME", "carried_home"),
    ("RECEIVED", "received"),
    ("THERE", "still_there"),
    ("LOST", "lost"),
    ("UNKNOWN", "unknown"),
    ("DUPLICATED", "doubled"),
)
_ALSO: Final = ("late", "out_of_order", "redelivered", "dead_lettered", "expired", "no_id")
#: How many ids of a finding the table shows; the JSON has more.
_IDS_SHOWN: Final = 10
_COST_NAMES: Final = ("namespace", "entity", "cause", "operation", "term")
_NAMED: Final = ("lost", "unknown", "doubled")


def audit_table(summary: AuditSummary) -> str:
    confirmed, in_all = summary["confirmed"], counts_of(summary)
    more = " and what the missing ledger files tell" if summary["missing_files"] else ""
    lines = [
        f"lost {summary['lost']:,}, unknown {summary['unknown']:,}{more}, duplicated {summary['doubled']:,}"
        f" of {confirmed:,} confirmed {'message' if confirmed == 1 else 'messages'}"
    ]
    if summary["start"] is not None:
        lines.append(f"{_moment(summary['start'])} to {_moment(summary['end'])}")
    entities = summary["entities"]
    if entities:
        rows = [["", *(title for title, _ in _AUDIT)]]
        rows += [[name, *(f"{counts_of(counts)[key]:,}" for _, key in _AUDIT)] for name, counts in entities.items()]
        if len(entities) > 1:
            rows.append(["in all", *(f"{in_all[key]:,}" for _, key in _AUDIT)])
        lines += ["", *aligned(rows)]
        also = ", ".join(f"{in_words(key)} {in_all[key]:,}" for key in _ALSO if in_all[key])
        late = f" (late: more than {summary['late_s']:g} s)" if summary["late"] else ""
        lines += ["", *textwrap.wrap(f"also: {also}{late}", WIDTH, subsequent_indent="      ")] if also else []
    for finding in _NAMED:
        lines += _ids(finding, summary)
    if summary["notes"]:
        lines += ["", *notes(summary["notes"])]
    return "\n".join(lines)


def _ids(finding: str, summary: AuditSummary) -> list[str]:
    found = [each for each in summary["findings"] if each["finding"] == finding]
    if not found:
        return []
    rows = [
        [f"  {each['mid']}", each["entity"], _clock(each["sent_at"]), each["detail"] or ""]
        for each in found[:_IDS_SHOWN]
    ]
    more = counts_of(summary)[finding] - len(rows)
    return ["", f"{in_words(finding)}:", *aligned(rows, left=range(4))] + ([f"  and {more:,} more"] if more > 0 else [])


def availability_table(summary: AvailabilitySummary) -> str:
    share = summary["availability"]
    lines = [
        f"failed {summary['refused']:,} of {summary['calls']:,} sends"
        + ("" if share is None else f", availability {percent(share)}")
        + f", {len(summary['outages']):,} {'outage' if len(summary['outages']) == 1 else 'outages'}"
    ]
    if summary["start"] is not None:
        lines.append(f"{_moment(summary['start'])} to {_moment(summary['end'])}")
    if summary["entities"]:
        rows = [["", "SENDS", "FAILED", "AVAILABLE", "OUTAGES", "OUT", "FAIL OVER", "RETURN", "PRIMARY UP"]]
        rows += [
            [
                name,
                f"{each['calls']:,}",
                f"{each['refused']:,}",
                percent(each["availability"]),
                f"{len(each['outages']):,}",
                seconds(each["outage_s"]),
                seconds(each["time_to_fail_over_s"]),
                seconds(each["time_to_return_s"]),
                percent(each["primary_availability"]),
            ]
            for name, each in summary["entities"].items()
        ]
        lines += ["", *aligned(rows)]
    if summary["outages"]:
        rows = [["", "FROM", "TO", "FOR", "FAILED OVER AFTER", "BACK WITHIN"]]
        rows += [
            [
                each["entity"],
                _clock(each["start"]),
                _clock(each["end"]) if not each["open"] else "still out",
                seconds(each["seconds"]),
                seconds(each["time_to_fail_over_s"]),
                seconds(each["time_to_return_s"]),
            ]
            for each in summary["outages"][:_IDS_SHOWN]
        ]
        lines += ["", *aligned(rows)]
        if len(summary["outages"]) > _IDS_SHOWN:
            lines.append(f"and {len(summary['outages']) - _IDS_SHOWN:,} more: --json has them all")
    if summary["notes"]:
        lines += ["", *notes(summary["notes"])]
    return "\n".join(lines)


def notes(said: Iterable[str]) -> list[str]:
    return [
        line
        for note in said
        for line in textwrap.wrap(
            f"note: {note}", WIDTH, subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
        )
    ]


def percent(share: float | None) -> str:
    """100 % only where nothing is missing: 99.9996 % is not rounded up to it."""
    if share is None:
        return "-"
    if share == 100:
        return "100 %"
    return f"{min(share, 99.999):.3f} %"


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _moment(t: float | None) -> str:
    return "-" if t is None else dt.datetime.fromtimestamp(t, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _clock(t: float | None) -> str:
    return "-" if t is None else dt.datetime.fromtimestamp(t, dt.UTC).strftime("%H:%M:%S")


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
        rows = [[*_COST_NAMES, "operations", "units", "bytes in", "bytes out", currency]]
        rows += [[*(row[key] for key in _COST_NAMES), *_cells(row)] for row in mine]
        rows.append(["total", "", "", "", "", *_cells(total)])
        lines += aligned(rows, left=range(len(_COST_NAMES)))
        if len(shown) >= lines_max:
            lines.append(f"(the first {lines_max} lines of both; --parquet writes all)")
    lines += ["", *_detour_text(summary, currency)]
    if summary["differences"]:
        lines += ["", "Where the books differ, brokers' less clients'"]
        rows = [["cause", "operation", "at", "operations", "bytes", "because"]]
        for row in summary["differences"]:
            figures = f"{row['operations']:+,}", f"{row['bytes']:+,}"
            rows.append([row["cause"], row["operation"], row["place"], *figures, row["explanation"]])
        lines += aligned(rows, left=(0, 1, 2, 5))
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
    if period["start"] is None:
        return "The ledgers have no events"
    start = dt.datetime.fromtimestamp(period["start"], dt.UTC)
    return f"{start:%Y-%m-%d %H:%M:%S} to {_moment(period['end'])}, {period['seconds']:,.0f} s"


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [*(f"{row[key]:,}" for key in ("operations", "units", "bytes_in", "bytes_out")), f"{row['money']:.6f}"]
