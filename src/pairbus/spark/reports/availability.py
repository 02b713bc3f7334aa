"""Reports per entity the outages, the sends that failed for callers, and the times to fail over and to return.

It uses the clients' ledgers, since a broker can't tell who failed to reach it. It collects on Spark; `outages` decides
what an outage of several clients is, and `report_text` prints the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.spark.runtime.locations import below

from . import event_location
from .ledgers import Ledgers, write_rows
from .outages import Outage, merged_outages, primary_availability, share
from .report_text import availability_table
from .results import AvailabilitySummary, EntityAvailability, EntityOutage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: An attempt that begins so soon after a failed one of the same message is the same call's: the caller saw no error.
SAME_CALL_S: Final = 0.25
#: The line of a failed send may come a little before or after that of the change of state which it caused.
_NEAR_S: Final = 1.0
_TAKEN: Final = "outcome in ('ok', 'duplicate')"
_OUTAGE: Final = (
    "entity string, start double, end double, seconds double, open boolean, failed_over boolean, clients bigint, "
    "time_to_fail_over_s double, time_to_return_s double"
)
_ENTITY: Final = (
    "entity string, calls bigint, confirmed bigint, refused bigint, diverted bigint, availability double, "
    "primary_availability double, outage_s double, time_to_fail_over_s double, time_to_return_s double"
)


class Availability:
    """How far clients could send, by entity and in all."""

    def __init__(self, summary: AvailabilitySummary, ledgers: Ledgers) -> None:
        self.summary = summary
        self._spark = ledgers.spark

    def __repr__(self) -> str:
        return f"<Availability {self.summary['refused']} of {self.summary['calls']} sends refused>"

    @property
    def ok(self) -> bool:
        """Whether no send failed for its caller."""
        return self.summary["refused"] == 0

    @property
    def outages(self) -> DataFrame:
        return self._spark.createDataFrame(_rows(self.summary["outages"], _OUTAGE), _OUTAGE)

    def to_json(self) -> str:
        return json.dumps(self.summary)

    def table(self) -> str:
        return availability_table(self.summary)

    def to_parquet(self, folder: str | Path) -> None:
        """Write two tables, `availability` (a row an entity) and `availability_outages`."""
        entities = [{"entity": name, **each} for name, each in self.summary["entities"].items()]
        write_rows(self._spark, _rows(entities, _ENTITY), _ENTITY, below(folder, "availability"))
        outages = _rows(self.summary["outages"], _OUTAGE)
        write_rows(self._spark, outages, _OUTAGE, below(folder, "availability_outages"))


def _rows(found: Iterable[Mapping[str, Any]], schema: str) -> list[tuple[Any, ...]]:
    columns = [column.split()[0] for column in schema.split(", ")]
    return [tuple(each[column] for column in columns) for each in found]


def availability(ledgers: Ledgers) -> Availability:
    """Find how far the clients of these ledgers could send."""
    from pyspark.sql import functions as F

    start, end = ledgers.span
    calls = (
        attempts(ledgers)
        .groupBy("home", "place")
        .agg(
            F.min("entity").alias("name"),
            F.expr(f"count_if({_TAKEN})").alias("confirmed"),
            F.expr(f"count_if({_TAKEN} and kind = 'divert')").alias("diverted"),
            F.expr("count_if(raised)").alias("refused"),
        )
        .collect()
    )
    by_place: dict[tuple[str, str], list[Outage]] = {}
    names: dict[tuple[str, str], str] = {(row["home"], row["place"]): row["name"] for row in calls}
    for row in _outages(ledgers).collect():
        names.setdefault((row["home"], row["place"]), row["name"])
        by_place.setdefault((row["home"], row["place"]), []).append(
            Outage(row["start"], row["end"], row["failed_over_at"], row["last_failed_at"])
        )
    counted = {
        (row["home"], row["place"]): (int(row["confirmed"]), int(row["refused"]), int(row["diverted"])) for row in calls
    }
    plain = event_location.shown(names)
    entities: dict[str, EntityAvailability] = {}
    every: list[EntityOutage] = []
    for key in sorted(names):
        outages = merged_outages(by_place.get(key, ()), end or 0.0)
        confirmed, refused, diverted = counted.get(key, (0, 0, 0))
        entities[plain[key]] = {
            "calls": confirmed + refused,
            "confirmed": confirmed,
            "refused": refused,
            "diverted": diverted,
            "availability": share(confirmed, confirmed + refused),
            "primary_availability": primary_availability(outages, start, end),
            "outage_s": sum(each["seconds"] for each in outages),
            "time_to_fail_over_s": _longest(each["time_to_fail_over_s"] for each in outages),
            "time_to_return_s": _longest(each["time_to_return_s"] for each in outages),
            "outages": outages,
        }
        every += [EntityOutage(entity=plain[key], **each) for each in outages]
    confirmed = sum(each["confirmed"] for each in entities.values())
    refused = sum(each["refused"] for each in entities.values())
    return Availability(
        {
            "refused": refused,
            "calls": confirmed + refused,
            "availability": share(confirmed, confirmed + refused),
            "start": start,
            "end": end,
            "entities": entities,
            "outages": sorted(every, key=lambda each: (each["start"], each["entity"])),
            "notes": _notes(ledgers, bool(entities)),
        },
        ledgers,
    )


def _notes(ledgers: Ledgers, anything: bool) -> list[str]:
    notes = list(ledgers.notes)
    if not anything:
        notes.append(
            "there is no client's ledger, and a broker can't tell who failed to reach it; give the paired clients "
            "ledger=FOLDER, and add that folder"
        )
    cut = sum(not each.ended and each.writer != event_location.BROKER for each in ledgers.file_facts.values())
    if cut:
        notes.append(f"{cut:,} clients' files have no end: what these did in their last moments is not counted")
    unnamed = sum(fact.no_id for fact in ledgers.facts if not fact.by_broker)
    if unnamed:
        notes.append(f"{unnamed:,} sends have no id: one that failed and was then diverted counts as refused too")
    return notes


def _longest(times: Iterable[float | None]) -> float | None:
    return max((each for each in times if each is not None), default=None)


def attempts(ledgers: Ledgers) -> DataFrame:
    """Return every attempt of a client to send, with `raised`: it failed, and no attempt of the same call came after
    it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    tried = ledgers.normal.where("kind in ('send', 'divert') and not by_broker and not in_backlog").selectExpr(
        "*",
        "t - coalesce(ms, 0) / 1000 as begun",
        # without an id each line stands alone
        "coalesce(concat('id ', mid), cast(monotonically_increasing_id() as string)) as message",
    )
    in_order = Window.partitionBy("series", "home", "place", "message").orderBy("t", F.desc("kind"))
    return (
        tried.withColumn("next_kind", F.lead("kind").over(in_order))
        .withColumn("next_begun", F.lead("begun").over(in_order))
        .withColumn(
            "raised",
            F.expr(f"not ({_TAKEN}) and not coalesce(next_kind = 'divert' and next_begun < t + {SAME_CALL_S}, false)"),
        )
    )


def _outages(ledgers: Ledgers) -> DataFrame:
    """Return the outages as each client saw them: from the first failure after health to health again."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    so_far = Window.partitionBy("series", "home", "place").orderBy("t").rowsBetween(Window.unboundedPreceding, 0)
    seen = (
        ledgers.normal.where("kind = 'state' and not by_broker")
        .withColumn("number", F.sum(F.expr("case when from_state = 'healthy' then 1 else 0 end")).over(so_far))
        .groupBy("series", "home", "place", "number")
        .agg(
            F.min("entity").alias("name"),
            F.min("t").alias("noticed"),
            F.min(F.expr("case when to_state = 'healthy' then t end")).alias("end"),
            F.min(F.expr("case when to_state in ('failed over', 'unreachable') then t end")).alias("failed_over_at"),
        )
    )
    failed = ledgers.normal.where(f"kind in ('send', 'ping') and not by_broker and not ({_TAKEN})").selectExpr(
        "series", "home", "place", "t as failed_at", "t - coalesce(ms, 0) / 1000 as failed_from"
    )
    near = f"failed_at >= noticed - {_NEAR_S} and (end is null or failed_at <= end)"
    joined = failed.join(F.broadcast(seen), ["series", "home", "place"], "right")
    return joined.groupBy("series", "home", "place", "number").agg(
        F.first("name").alias("name"),
        F.expr(f"least(first(noticed), min(case when {near} then failed_from end))").alias("start"),
        F.first("end").alias("end"),
        F.first("failed_over_at").alias("failed_over_at"),
        F.expr(f"max(case when {near} then failed_at end)").alias("last_failed_at"),
    )
