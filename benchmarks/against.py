"""`--against CHECKOUT`: every table measured by two checkouts in turns, and the figures of this one over the other's.

A table is measured by two processes, each on the interpreter of its checkout (`.venv/bin/python`) with the broker, the
client and the dependencies installed there. Both run the benchmark of this checkout, which knows pairbus by its
commands and public names only, so the other may be any commit that has those. Only one of them works at any time: it
asks before each step, and holds the turn until it asks again. Who was second in one step is first in the next.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Column, Row, Series, Table
from benchmarks.servers import ROOT, Helper, environment

#: Where the whole middle half of the rounds is worse by more than this, the row says so.
NOISE = 0.03


def why_not(checkout: Path) -> str | None:
    """Return why this checkout can't be measured; None if it can."""
    python = _python(checkout)
    if not python.with_name("pairbus").exists():
        return f"there is no {python.with_name('pairbus')}: run `make setup` there"
    where = "import pairbus; print(pairbus.__file__)"
    ran = subprocess.run([python, "-c", where], cwd=ROOT, env=environment(), capture_output=True, text=True)
    if not Path(ran.stdout.strip()).is_relative_to(checkout.resolve() / "src"):
        return f"its .venv has another pairbus: {ran.stdout.strip() or ran.stderr[-500:]}"
    return None


def _python(checkout: Path) -> Path:
    return checkout.absolute() / ".venv" / "bin" / "python"


async def turn() -> None:
    """Ask for the next turn and wait for it: what a measuring process does before each step."""
    print("next", flush=True)
    if not await asyncio.to_thread(sys.stdin.readline):
        raise EOFError("nobody gives turns any more")


class Side(Helper):
    """A process that measures a table, from one turn to the next. It has begun, and waits, when this is made."""

    def __init__(self, python: Path | str, arguments: Sequence[str], out: Path) -> None:
        super().__init__("benchmarks", *arguments, "--out", str(out), "--turns", python=python)
        self._out = out
        self.is_waiting = bool(self.hear())

    def go_on(self) -> None:
        self.tell("")
        self.is_waiting = bool(self.hear())

    def table(self, name: str) -> Table:
        """Return what it measured; raise RuntimeError if that is nothing."""
        if not self._out.exists():
            raise RuntimeError(f"ended with {self.wait()}, without figures")
        return Table.from_json(json.loads(self._out.read_text())["tables"][name])


def take_turns(first: Side, second: Side) -> None:
    while first.is_waiting or second.is_waiting:
        for side in (first, second):
            if side.is_waiting:
                side.go_on()
        first, second = second, first


def measure(name: str, checkout: Path, data: Path, arguments: Sequence[str]) -> tuple[Table, list[str]]:
    def side(who: str, python: Path | str) -> Side:
        return Side(python, arguments, data / f"{name}-{who}.json")

    with side("this", sys.executable) as this, side("other", _python(checkout)) as other:
        take_turns(this, other)
        failures = [f"{name}: {who}" for who, each in (("this checkout", this), ("the other", other)) if each.wait()]
        try:
            return compared(this.table(name), other.table(name), checkout.resolve().name), failures
        except RuntimeError as error:
            return Table(name, name, ()), [*failures, f"{name}: {error}"]


def compared(ours: Table, theirs: Table, other: str) -> Table:
    """Return the rows that both have, with ratios round by round; both sides' own figures are in them for the JSON."""
    columns = [column for column in ours.columns if column.kind not in ("ratio", "share")]
    ratios = [Column(f"{each.metric}_ratio", each.header, "ratio") for each in columns]
    table = Table(ours.name, f"{ours.title}: this checkout ÷ {other}", ratios)
    rows = {(row.case, row.who): row.metrics for row in theirs.rows}
    for row in ours.rows:
        before = rows.pop((row.case, row.who), {})
        found: dict[str, Series] = {}
        worse = []
        for column in columns:
            now, then = row.metrics.get(column.metric), before.get(column.metric)
            if now and then and all(then.values):
                ratio = now.over(then)
                found |= {column.metric: now, f"{column.metric}_other": then, f"{column.metric}_ratio": ratio}
                if is_worse(column, ratio):
                    worse.append(f"{column.header} {column.show(now.median)}, other {column.show(then.median)}")
        if found:
            table.rows.append(Row(row.case, row.who, found, label="; ".join(worse)))
        elif any(column.metric in row.metrics for column in columns):
            table.notes.append(f"Left out, the other has no figure to divide by: {row.case}, {row.who}.")
    table.notes += [f"Left out, this checkout has no figure: {case}, {who}." for case, who in rows]
    table.notes.append(
        "Above one, this checkout does more messages, or takes more time, CPU or memory. A note stands where the whole "
        f"middle half of the rounds is worse by more than {NOISE:.0%}."
    )
    return table


def is_worse(column: Column, ratio: Series) -> bool:
    low, high = ratio.quartiles
    return high < 1 - NOISE if column.kind == "rate" else low > 1 + NOISE
