"""Ledgers as Spark tables, from rows written by hand: what `pairbus.spark.reports.ledgers` reads from files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

EVENTS = (
    "t double, kind string, ns string, entity string, mid string, seq long, bytes long, units long, outcome string, "
    "ms double, cause string, queue int, from_state string, to_state string, reason string, writer string, pid long, "
    "file string"
)
FILES = (
    "file string, writer string, pid long, started double, ended boolean, cut boolean, gap_events long, bad_lines long"
)


@dataclass(frozen=True, eq=False)
class Ledgers:
    events: Any
    files: Any
    notes: tuple[str, ...] = ()
    tasks: int = 2


def table(spark: Any, schema: str, rows: list[dict[str, Any]]) -> Any:
    names = [column.split()[0] for column in schema.split(", ")]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], schema)


def event(writer: str, kind: str, entity: str | None = None, **fields: Any) -> dict[str, Any]:
    size = fields.get("bytes")
    units = {} if kind in ("settle", "state") else {"units": -(-size // 65536) or 1 if size is not None else 1}
    known = {"t": 0.0, "ns": "contoso", "outcome": "ok", "cause": "app", "pid": 1, "file": f"{writer}.jsonl"}
    return {**known, **units, "writer": writer, "kind": kind, "entity": entity, **fields}


def ledgers(spark: Any, events: list[dict[str, Any]], *, cut: tuple[str, ...] = (), gap: int = 0) -> Ledgers:
    """`cut`: writers whose file a kill ended; `gap`: events that the broker's disk refused."""
    files = [
        {
            "file": f"{writer}.jsonl", "writer": writer, "pid": 1, "started": 0.0, "ended": writer not in cut,
            "cut": writer in cut, "gap_events": gap if writer == "broker" else 0, "bad_lines": 0,
        }
        for writer in sorted({each["writer"] for each in events})
    ]  # fmt: skip
    return Ledgers(table(spark, EVENTS, events), table(spark, FILES, files))
