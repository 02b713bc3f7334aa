"""What a row of figures says: medians, spreads, paired ratios, goals and the tables that show them. Pure.

A figure is a `Series`: one value per round. Its spread is the middle half (first to third quartile), since one round
in nine that meets a stalled disk says nothing of the other eight; least, most and every value go to the JSON.
Measures nothing and reads no clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

ROUNDS_MIN = 9  # fewer rounds make a look, not a figure: the table says so


@dataclass(frozen=True, slots=True)
class Series:
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a series needs at least one round")

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.values) == 1:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    def over(self, other: Series) -> Series:
        """Round by round, so that what slowed a whole round down cancels out; the median of these is *the* ratio."""
        return Series(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def to_json(self) -> dict[str, object]:
        low, high = self.quartiles
        return {
            "median": _round(self.median),
            "quartiles": [_round(low), _round(high)],
            "least": _round(min(self.values)),
            "most": _round(max(self.values)),
            "rounds": len(self.values),
            "values": [_round(v) for v in self.values],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Series:
        values = data["values"]
        assert isinstance(values, list)
        return cls(tuple(float(v) for v in values))


def _round(value: float) -> float:
    return float(f"{value:.5g}")


@dataclass(frozen=True, slots=True)
class Goal:
    """At least, or below, a bound, on one metric of a row."""

    metric: str
    at_least: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.below is None):
            raise ValueError("a goal is either at_least or below")

    def holds(self, value: float) -> bool:
        if self.at_least is not None:
            return value >= self.at_least
        assert self.below is not None
        return value < self.below

    def verdict(self, series: Series) -> str:
        """`met` or `not met` by the median; a bound inside the middle half of the rounds is said to be there."""
        met = self.holds(series.median)
        close = any(self.holds(edge) != met for edge in series.quartiles)
        return ("met" if met else "not met") + (", within the spread" if close else "")

    def text(self, column: Column) -> str:
        if self.at_least is not None:
            return f"≥ {column.show(self.at_least)}"
        assert self.below is not None
        return f"< {column.show(self.below)}"


# kind of a column → (factor to the unit shown, unit)
KINDS = {
    "rate": (1.0, "/s"),
    "us": (1.0, " µs"),
    "ms": (1.0, " ms"),
    "s": (1.0, " s"),
    "ratio": (1.0, " ×"),
    "share": (100.0, " %"),
    "mb": (1e-6, " MB"),
    "bytes": (1.0, " B"),
    "count": (1.0, ""),
}


@dataclass(frozen=True, slots=True)
class Column:
    metric: str
    header: str
    kind: str

    def show(self, value: float) -> str:
        factor, unit = KINDS[self.kind]
        return f"{digits(value * factor)}{unit}"

    def cell(self, series: Series | None) -> str:
        if series is None:
            return "—"
        shown, factor = self.show(series.median), KINDS[self.kind][0]
        if len(series.values) == 1:
            return shown
        low, high = series.quartiles
        return f"{shown} ({digits(low * factor)}–{digits(high * factor)})"


def digits(value: float) -> str:
    """Three significant digits, thousands apart: more would be noise on a shared machine."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2}f}"


@dataclass(slots=True)
class Row:
    case: str
    who: str
    metrics: dict[str, Series] = field(default_factory=dict)
    goal: Goal | None = None
    label: str = ""  # what a power cut may cost here, or why there is no figure

    @property
    def verdict(self) -> str:
        series = self.metrics.get(self.goal.metric) if self.goal else None
        return self.goal.verdict(series) if self.goal and series else "not measured"

    def to_json(self) -> dict[str, object]:
        out: dict[str, object] = {
            "case": self.case,
            "who": self.who,
            "label": self.label,
            "metrics": {name: series.to_json() for name, series in self.metrics.items()},
        }
        if self.goal:
            goal = {name: value for name, value in asdict(self.goal).items() if value is not None}
            out["goal"] = {**goal, "verdict": self.verdict}
        return out


@dataclass(slots=True)
class Table:
    name: str
    title: str
    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rounds(self) -> int:
        """Of the figure with the fewest; what is measured once by its nature, such as a start, does not count."""
        lengths = [len(series.values) for row in self.rows for series in row.metrics.values()]
        return min((length for length in lengths if length > 1), default=max(lengths, default=0))

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "title": self.title,
            "rounds": self.rounds(),
            "columns": [asdict(column) for column in self.columns],
            "rows": [row.to_json() for row in self.rows],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Table:
        rows = []
        for raw in _list(data["rows"]):
            goal = raw.get("goal")
            rows.append(
                Row(
                    raw["case"],
                    raw["who"],
                    {name: Series.from_json(series) for name, series in raw["metrics"].items()},
                    Goal(goal["metric"], goal.get("at_least"), goal.get("below")) if goal else None,
                    raw["label"],
                )
            )
        columns = [Column(**column) for column in _list(data["columns"])]
        return cls(str(data["name"]), str(data["title"]), columns, rows, [str(n) for n in _list(data["notes"])])

    def render(self) -> str:
        """Markdown that also lines up in a terminal."""
        columns = [c for c in self.columns if any(c.metric in row.metrics for row in self.rows)]
        by_metric = {c.metric: c for c in self.columns}
        with_goals = any(row.goal for row in self.rows)
        with_labels = any(row.label for row in self.rows)
        head = ["case", "who", *(c.header for c in columns)]
        head += ["goal", "verdict"] if with_goals else []
        head += ["note"] if with_labels else []
        body = []
        case_before = None
        for row in self.rows:
            cells = [row.case if row.case != case_before else "", row.who]
            case_before = row.case
            cells += [c.cell(row.metrics.get(c.metric)) for c in columns]
            if with_goals:
                column = by_metric[row.goal.metric] if row.goal else None
                cells += [f"{column.header} {row.goal.text(column)}", row.verdict] if row.goal and column else ["", ""]
            if with_labels:
                cells.append(row.label)
            body.append(cells)
        lines = [f"### {self.title}", ""]
        if self.rows and self.rounds() < ROUNDS_MIN:
            lines += [f"{self.rounds()} rounds, of {ROUNDS_MIN} that make a figure: a look, not to be quoted.", ""]
        lines += _aligned(head, body)
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"


def _list(value: object) -> list:  # type: ignore[type-arg]
    assert isinstance(value, list)
    return value


def _aligned(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    rows = [list(head), *(list(cells) for cells in body)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return lines


def span(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
