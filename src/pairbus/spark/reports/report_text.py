"""Shows audit and availability as text for people: aligned, at most 100 columns where names allow it. Pure."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from .results import AuditSummary, AvailabilitySummary, counts_of

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
    ("DOUBLED", "doubled"),
)
_ALSO: Final = {
    "late": "late",
    "out_of_order": "out of order",
    "redelivered": "redelivered",
    "dead_lettered": "dead-lettered",
    "expired": "expired",
    "no_id": "without id",
}
#: How many ids of a finding the table shows; the JSON has more.
_IDS_SHOWN: Final = 10
_NAMED: Final = ("lost", "unknown", "doubled")


def audit_table(summary: AuditSummary) -> str:
    confirmed, in_all = summary["confirmed"], counts_of(summary)
    lines = [
        f"lost {summary['lost']:,}, unknown {summary['unknown']:,}, doubled {summary['doubled']:,}"
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
        also = ", ".join(f"{words} {in_all[key]:,}" for key, words in _ALSO.items() if in_all[key])
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
    return ["", f"{finding}:", *aligned(rows, right=())] + ([f"  and {more:,} more"] if more > 0 else [])


def availability_table(summary: AvailabilitySummary) -> str:
    share = summary["availability"]
    lines = [
        f"refused {summary['refused']:,} of {summary['calls']:,} sends"
        + ("" if share is None else f", availability {percent(share)}")
        + f", {len(summary['outages']):,} {'outage' if len(summary['outages']) == 1 else 'outages'}"
    ]
    if summary["start"] is not None:
        lines.append(f"{_moment(summary['start'])} to {_moment(summary['end'])}")
    if summary["entities"]:
        rows = [["", "SENDS", "REFUSED", "AVAILABLE", "OUTAGES", "OUT", "FAIL OVER", "RETURN", "PRIMARY UP"]]
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


def aligned(rows: Sequence[Sequence[str]], right: Iterable[int] | None = None) -> list[str]:
    """Return lines with columns two spaces apart; the first on the left, the others on the right unless told which."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    to_the_right = set(range(1, len(widths)) if right is None else right)
    return [
        "  ".join(
            cell.rjust(width) if index in to_the_right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _moment(t: float | None) -> str:
    return "-" if t is None else dt.datetime.fromtimestamp(t, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _clock(t: float | None) -> str:
    return "-" if t is None else dt.datetime.fromtimestamp(t, dt.UTC).strftime("%H:%M:%S")
