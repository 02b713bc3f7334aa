"""Decides where an event of a ledger happened: at home or in the backlog, in which entity, and who recorded it. Pure.

It decides by names alone. A message's *home* is the primary namespace and the queue or topic that it was sent to. A
backlog queue names its primary; a client's `divert` line names the secondary, so that its home is what the other lines
of the same file tell. The expressions are Spark SQL; `homes` is the one decision that needs several lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pairbus.pairing.backlog.backlog_queues import INFIX

BROKER: Final = "broker"
DEAD_LETTERS: Final = "/$deadletterqueue"
SUBSCRIPTIONS: Final = "/subscriptions/"
#: What the name of an entity tells. Names are compared as the service does, without regard to case.
BY_ENTITY: Final[Mapping[str, str]] = {
    "path": f"replace(lower(entity), '{DEAD_LETTERS}', '')",
    "is_dead": f"coalesce(contains(lower(entity), '{DEAD_LETTERS}'), false)",
    "is_backlog": f"coalesce(contains(lower(entity), '{INFIX}'), false)",
    "place": f"case when is_backlog then path else substring_index(path, '{SUBSCRIPTIONS}', 1) end",
    "backlog_home": f"case when is_backlog then substring_index(lower(entity), '{INFIX}', 1) end",
    "full_place": "lower(entity)",
    "name": "substring(entity, 1, length(place))",
}
IN_BACKLOG: Final = "coalesce(is_backlog and kind <> 'divert', false)"
_TELLS_HOME: Final = "kind in ('send', 'ping', 'state') or (kind = 'move' and cause = 'syphon')"
#: One row for each file and place: few enough for one machine, and all that is asked of files as wholes.
FACT_KEYS: Final = ("ns", "in_backlog", "place")
#: Counted first by these, which each line has ready, in numbers alone: Spark does that without sorting the lines. Names
#: and lists are made of the few rows that are left.
LINE_KEYS: Final[Mapping[str, str]] = {
    "ns": "ns",
    "entity": "entity",
    "kind": "case when kind = 'divert' then kind else '' end",
    "stock_at": "case when kind = 'stock' then t end",
}
_NO_ID: Final = (
    "kind in ('send', 'divert') and mid is null and outcome in ('ok', 'duplicate') "
    "and coalesce(cause, 'app') <> 'syphon'"
)
_COUNTED: Final[Mapping[str, str]] = {
    "tells_home": _TELLS_HOME,
    "diverts": "kind = 'divert'",
    "receives": "kind = 'receive'",
    "states": "kind = 'state'",
    "no_id": _NO_ID,
    "numbered": f"{_NO_ID} and seq is not null",
}
OF_LINES: Final[Mapping[str, str]] = {
    "first": "min(t)",
    "last": "max(t)",
    # A snapshot tells of what was sent before it began; its line comes when it is complete.
    "asked": "max(case when kind = 'stock' then t - coalesce(ms, 0) / 1000 end)",
    "gap": "max(case when kind = 'gap' then t end)",
    **{name: f"count_if({condition})" for name, condition in _COUNTED.items()},
}
FACTS: Final[Mapping[str, str]] = {
    "name": "min(name)",
    "entities": f"collect_set(struct(entity, {', '.join(BY_ENTITY)}))",
    "completed": "slice(sort_array(collect_set(stock_at), false), 1, 2)",
    "first": "min(first)",
    "last": "max(last)",
    "asked": "max(asked)",
    "gap": "max(gap)",
    **{name: f"sum({name})" for name in _COUNTED},
}
_AS_COUNTED: Final = (
    "file", "by_broker", "in_backlog", "first", "last", "diverts", "receives", "states", "asked", "gap", "no_id",
)  # fmt: skip
_SERIES: Final = re.compile(r"-[0-9]+[.]jsonl([.](gz|parquet))?$")


@dataclass(frozen=True, slots=True)
class Fact:
    """What one file says of one place. `completed`: when its last snapshots of what is left were complete."""

    file: str
    by_broker: bool
    ns: str | None
    in_backlog: bool
    place: str
    name: str
    home: str
    first: float
    last: float
    tells_home: bool
    diverts: int
    receives: int
    states: int
    asked: float | None
    completed: tuple[float, ...]
    gap: float | None
    no_id: int
    numbered: int


def facts(rows: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """Return the facts that Spark counted. The home of a file's diverted messages is known only when all files are."""
    made = []
    for row in rows:
        ns = None if row["ns"] is None else row["ns"].lower()
        place = row["place"] or ""
        home = place.split(INFIX, 1)[0] if row["in_backlog"] else ns or ""
        made.append(
            Fact(
                **{name: row[name] for name in _AS_COUNTED},
                ns=ns, place=place, name=row["name"] or place, home=home, tells_home=row["tells_home"] > 0,
                completed=tuple(row["completed"]), numbered=row["numbered"] if row["by_broker"] else 0,
            )
        )  # fmt: skip
    known = homes(made)
    return [replace(fact, home=known.get(fact.file, "")) if _is_away(fact) else fact for fact in made]


def _is_away(fact: Fact) -> bool:
    return not fact.by_broker and fact.diverts > 0 and not fact.tells_home


def homes(facts: Iterable[Fact]) -> dict[str, str]:
    """Return for each client's file with diverted messages the primary that they belong to, where that can be told.

    A file that names none takes that of its process's other files, else the only one that there is at all.
    """
    by_file: dict[str, set[str]] = {}
    by_series: dict[str, set[str]] = {}
    everywhere: set[str] = set()
    wanted: list[str] = []
    for fact in facts:
        if fact.by_broker:
            continue
        if fact.diverts:
            wanted.append(fact.file)
        if fact.tells_home and fact.ns is not None:
            by_file.setdefault(fact.file, set()).add(fact.ns)
            by_series.setdefault(series(fact.file), set()).add(fact.ns)
            everywhere.add(fact.ns)
    found = {}
    for file in wanted:
        for known in (by_file.get(file, set()), by_series.get(series(file), set()), everywhere):
            if len(known) == 1:
                found[file] = next(iter(known))
                break
    return found


def series(file: str) -> str:
    """Return the name that the files of one process share."""
    return _SERIES.sub("", file)


def named(expressions: Mapping[str, str]) -> list[str]:
    """Return the expressions for one SELECT, in which each may use those before it."""
    return [f"{expression} as {name}" for name, expression in expressions.items()]


def shown(names: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """Return what each (home, place) is called in a report: its name, and its namespace too where two have that
    name."""
    times = Counter(place for _, place in names)
    return {key: name if times[key[1]] == 1 else f"{key[0]}:{name}" for key, name in names.items()}
