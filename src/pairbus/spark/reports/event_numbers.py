"""Replaces the names in ledgers by numbers: files, namespaces and entities are few, and every line repeats them.

Pure. A number is a name's rank, so the smallest number is the smallest name, as Spark compares strings. Spark then
parses each name once rather than on every line, and groups by numbers, which it can do without sorting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from .event_location import BROKER, series

#: Columns of the three tables that a line is joined with, by its entity, its namespace and its file.
ENTITIES: Final = (
    "entity string, path string, is_dead boolean, is_backlog boolean, place string, backlog_home string, path_no int, "
    "place_no int, full_place_no int, name_no int, entity_no int, backlog_home_no int"
)
NAMESPACES: Final = "ns string, ns_home string, ns_home_no int"
FILES: Final = "by_broker boolean, series string, told_home string, series_no int, told_home_no int"
#: What a line has then: where it happened, by name and by number.
HOME: Final = (
    "case when kind = 'divert' then coalesce(told_home, '') when in_backlog then backlog_home else ns_home end"
)
HOME_NO: Final = (
    "case when kind = 'divert' then told_home_no when in_backlog then backlog_home_no else coalesce(ns_home_no, -1) end"
)


@dataclass(frozen=True, slots=True)
class Names:
    """All names of some kind, in order, and the number of each."""

    ordered: tuple[str, ...]
    numbers: Mapping[str, int]

    @classmethod
    def of(cls, names: Iterable[str | None]) -> Names:
        # as Spark orders strings, by their bytes
        ordered = tuple(sorted({name for name in names if name is not None}, key=str.encode))
        return cls(ordered, {name: number for number, name in enumerate(ordered)})

    def number(self, name: str | None) -> int | None:
        return None if name is None else self.numbers[name]

    def name(self, number: int) -> str:
        """Return the name that has this number; nothing for -1, which stands for no name."""
        return self.ordered[number] if number >= 0 else ""


class Numbers(NamedTuple):
    """The names, and the rows of the three tables."""

    homes: Names
    places: Names
    #: Of entities as they are shown: a queue or topic, and whole paths.
    shown: Names
    entities: list[tuple[Any, ...]]
    namespaces: list[tuple[Any, ...]]
    #: By file.
    files: dict[str, tuple[Any, ...]]


def numbered(
    counted: Iterable[Mapping[str, Any]], writers: Mapping[str, str], told_homes: Mapping[str, str]
) -> Numbers:
    """Return numbers for all that the facts name. `counted`: the facts as Spark counted them; `writers`: by file."""
    found: dict[str, Mapping[str, Any]] = {}
    spaces: set[str] = set()
    for row in counted:
        if row["ns"] is not None:
            spaces.add(row["ns"])
        for each in row["entities"]:
            if each["entity"] is not None:
                found[each["entity"]] = each
    rows = [found[entity] for entity in sorted(found)]
    homes = Names.of(["", *(ns.lower() for ns in spaces), *told_homes.values(), *(row["backlog_home"] for row in rows)])
    places = Names.of([*(row["place"] for row in rows), *(row["full_place"] for row in rows)])
    paths = Names.of(row["path"] for row in rows)
    shown = Names.of([*(row["name"] for row in rows), *(row["entity"] for row in rows)])
    senders = Names.of(series(file) for file in writers)
    entities = [
        (
            row["entity"], row["path"], row["is_dead"], row["is_backlog"], row["place"], row["backlog_home"],
            paths.number(row["path"]), places.number(row["place"]), places.number(row["full_place"]),
            shown.number(row["name"]), shown.number(row["entity"]), homes.number(row["backlog_home"]),
        )
        for row in rows
    ]  # fmt: skip
    files = {}
    for file, writer in writers.items():
        home = told_homes.get(file)
        told = (writer == BROKER, series(file), home, senders.number(series(file)), homes.number(home or ""))
        files[file] = told
    namespaces = [(ns, ns.lower(), homes.number(ns.lower())) for ns in sorted(spaces)]
    return Numbers(homes, places, shown, entities, namespaces, files)
