"""Audits whether anything was lost: follows every message through the ledgers of clients, syphons and brokers.

Gathers on Spark, per message, what each ledger says; the definitions and the words are `audit_rules`, what can't be
told is `coverage`, the table is `report_text`. Nothing but sums, bounded lists of ids and facts about files reaches the
driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pairbus.spark.runtime.locations import below

from . import audit_rules as rules
from . import event_location
from .coverage import Coverage, Watch, coverage, last_snapshot_since
from .ledgers import Ledgers, write_rows
from .report_text import audit_table
from .results import AuditSummary, counts_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LATE_S: Final = 60.0
IDS: Final = 100
#: The columns of a message that the report needs.
_REPORTED: Final = (
    "home", "place", "name", "id", "reason", "sent_at", "received_at", "copies", "wanted", "x_path", "x_dead", "x_left",
    *(name for name in rules.COUNTS if name != "no_id"),
)  # fmt: skip
_KEY: Final = ("home", "place", "id")
_OK: Final = "coalesce(outcome, 'ok') = 'ok'"
_TAKEN: Final = "outcome in ('ok', 'duplicate')"
_ID: Final = "coalesce(mid, case when by_broker then concat('#', seq) end)"
#: A broker gives an id to a message that was sent without; only its later lines have it, and the number joins them.
_UNNAMED: Final = "kind = 'send' and by_broker and mid is null and seq is not null"
_LEFT: Final = "kind = 'left' and not is_dead"
_GONE: Final = f"kind in ('settle', 'expire', 'dead-letter') and {_OK}"
_COVERAGE: Final = (
    "{who}_known boolean, {who}_since double, {who}_until double, "
    "{who}_blind array<struct<after: double, until: double>>"
)


class Audit:
    """The audit of some ledgers. `summary`: the counts. `messages`: a row for each finding of each message, `ok` where
    there is none."""

    def __init__(self, summary: AuditSummary, messages: DataFrame, cached: DataFrame) -> None:
        self.summary = summary
        self.messages = messages
        self._cached = cached

    def __repr__(self) -> str:
        said = "lost {lost}, unknown {unknown}, doubled {doubled}".format(**counts_of(self.summary))
        return f"<Audit {self.summary['confirmed']} confirmed: {said}>"

    @property
    def ok(self) -> bool:
        """Whether nothing is lost as far as anyone can tell; `summary["unknown"]` says how far that is not."""
        return self.summary["lost"] == 0

    @property
    def exit_code(self) -> int:
        return rules.exit_code(self.summary["lost"], self.summary["unknown"])

    def to_json(self) -> str:
        return json.dumps(self.summary)

    def table(self) -> str:
        return audit_table(self.summary)

    def to_parquet(self, folder: str | Path) -> None:
        """Write two tables, `audit` (the counts, a row an entity) and `audit_messages`."""
        spark = self.messages.sparkSession
        columns = ", ".join(f"{name} bigint" for name in rules.COUNTS)
        rows = [(entity, *counts_of(counts).values()) for entity, counts in self.summary["entities"].items()]
        write_rows(spark, rows, f"entity string, {columns}", below(folder, "audit"))
        self.messages.write.mode("overwrite").parquet(below(folder, "audit_messages"))

    def close(self) -> None:
        self._cached.unpersist()


def audit(ledgers: Ledgers, *, late_s: float = LATE_S, ids: int = IDS) -> Audit:
    """Find what became of every message. `ids`: how many are named for each finding."""
    messages = _judged(ledgers, late_s).select(*_REPORTED).persist()
    return Audit(_summary(ledgers, messages, late_s, ids), _by_finding(messages), messages)


# -- what the ledgers say of each message


def _judged(ledgers: Ledgers, late_s: float) -> DataFrame:
    from pyspark.sql import functions as F

    at_home, in_backlog = _copies(ledgers)
    gathered = _gathered(ledgers.normal, at_home)
    # Only what was diverted, or came from there, has to do with the backlog's copy of that id.
    gathered = gathered.withColumn("x_id", F.expr("case when c_away + m_ok + b_car + b_car_dup > 0 then id end"))
    whole = gathered.join(_backlog(ledgers.normal, in_backlog), ["home", "x_id"], "full_outer").withColumns(
        {
            # Nobody says where it was going: then it belongs to the backlog queue itself.
            "id": F.expr("coalesce(id, x_id)"),
            "place": F.expr("coalesce(place, lower(x_path))"),
            "name": F.expr("coalesce(name, x_path)"),
            "sender": F.expr("coalesce(sender, 'broker')"),
            "sent_at": F.expr("coalesce(c_confirmed_at, least(b_sent_at, x_sent_at))"),
        }
    )
    whole = _watched(ledgers, whole.fillna(0, [name for name, kind in whole.dtypes if kind == "bigint"]))
    late = f"case when received_at - sent_at > {float(late_s)!r} then 1L else 0L end"
    home_at = "coalesce(carried_at, sent_at)"
    judged = {
        "home_at": home_at,
        "named": "id not like '#%'",
        **rules.NUMBERS,
        **rules.BLIND,
        "reason": rules.REASON,
        **_OUTCOMES,
        "late": late,
    }
    return _with_order(whole.selectExpr("*", *event_location.named(judged)))


_OUTCOMES: Final = {
    "lost": f"case when {rules.is_in(rules.LOST)} then missing else 0L end",
    "unknown": f"case when {rules.is_in(rules.UNKNOWN)} then missing else 0L end",
    # Without a single line of its sending nobody can say how often it should have come.
    "doubled": "case when sent > 0 and copies is not null"
    " then aggregate(copies, 0L, (sum, n) -> sum + greatest(0L, n - wanted)) else 0L end",
    "still_there": "left_home + x_left",
    "dead_lettered": "dead + x_dead",
    "expired": "expired_home + x_expired",
}


def _count(condition: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(f"count_if({condition})")


def _of_copies(condition: str) -> Column:
    """Count copies. Lines without a sequence number tell of copies that others have numbered: never add the two."""
    from pyspark.sql import functions as F

    return F.expr(f"greatest(count_if(numbered and ({condition})), count_if(not numbered and ({condition})))")


_BY_CLIENT: Final = "kind in ('send', 'divert') and not by_broker"
_CONFIRMED: Final = f"{_BY_CLIENT} and {_TAKEN}"
_BY_APP: Final = "kind = 'send' and by_broker and coalesce(cause, 'app') <> 'syphon'"
_BY_SYPHON: Final = "kind = 'send' and by_broker and cause = 'syphon'"
_MOVED: Final = "kind = 'move' and not by_broker"
_TALLIES: Final = {
    "c_lines": _BY_CLIENT,
    "c_away": f"{_BY_CLIENT} and kind = 'divert'",
    "c_send": f"{_CONFIRMED} and kind = 'send'",
    "c_divert": f"{_CONFIRMED} and kind = 'divert'",
    "b_tries": _BY_APP,
    "b_send": f"{_BY_APP} and {_OK}",
    "b_dup": f"{_BY_APP} and outcome = 'duplicate'",
    "b_car": f"{_BY_SYPHON} and {_OK}",
    "b_car_dup": f"{_BY_SYPHON} and outcome = 'duplicate'",
    "m_ok": f"{_MOVED} and {_TAKEN}",
}
_TIMES: Final = {
    "c_confirmed_at": (_CONFIRMED, "t"),
    "b_sent_at": (f"{_BY_APP} and {_TAKEN}", "t"),
    "carried_at": (f"(({_BY_SYPHON}) or ({_MOVED})) and {_TAKEN}", "t"),
    "begun_at": (f"(({_BY_CLIENT}) or ({_BY_APP})) and {_TAKEN}", "t - coalesce(ms, 0) / 1000"),
}


def _gathered(normal: DataFrame, at_home: DataFrame) -> DataFrame:
    """Return one row a message: what senders and syphons tried, what the primary answered, and the copies that were
    seen."""
    from pyspark.sql import functions as F

    offers = (
        normal.where("kind in ('send', 'divert') or (kind = 'move' and cause = 'syphon')")
        .where("not in_backlog and entity is not null")
        .withColumn("id", F.expr(_ID))
        .where("id is not null")
        .withColumn("name", F.expr("substring(entity, 1, length(place))"))
        .select(*_KEY, "name", "kind", "by_broker", "cause", "outcome", "t", "ms", "series")
    )
    return (
        offers.unionByName(at_home, allowMissingColumns=True)
        .groupBy(*_KEY)
        .agg(
            F.min("name").alias("name"),
            *(_count(condition).alias(name) for name, condition in _TALLIES.items()),
            *(
                F.min(F.expr(f"case when {condition} then {value} end")).alias(name)
                for name, (condition, value) in _TIMES.items()
            ),
            F.max(F.expr(f"case when {_CONFIRMED} then series end")).alias("sender"),
            # In the subscription that has most of them: a rule may keep a message from the others.
            *(F.max(name).alias(name) for name in ("found", "received", "dead", "left_home", "expired_home")),
            F.sum("redelivered").alias("redelivered"),
            F.min("received_at").alias("received_at"),
            F.collect_list("kept").alias("copies"),
            F.min(F.expr("case when min_seq is not null then struct(path, min_seq) end")).alias("first_copy"),
        )
    )


def _each_copy(ledgers: Ledgers) -> DataFrame:
    """Return a row for each copy (sequence number) of a message in each queue or subscription: what was seen of it."""
    from pyspark.sql import functions as F

    snapshots = ledgers.spark.createDataFrame(_snapshots(ledgers), "ns_key string, left_since double")
    seen = (
        ledgers.normal.where(f"(kind in ('receive', 'settle', 'dead-letter', 'expire', 'left') or {_UNNAMED})")
        .where("entity is not null")
        .join(F.broadcast(snapshots), F.lower("ns") == F.col("ns_key"), "left")
        .where("kind <> 'left' or t > coalesce(left_since, -1)")
        .withColumn("copy", F.expr("coalesce(cast(seq as string), concat('id ', mid))"))
        .where("copy is not null")
    )
    received = f"kind = 'receive' and not is_dead and ({_OK} or in_backlog)"
    return (
        # `in_backlog` is the path's, and no key here: Spark would go over all events once for each of its values.
        seen.groupBy("home", "place", "path", "copy")
        .agg(
            F.bool_or("in_backlog").alias("in_backlog"),
            F.min("entity").alias("entity"),
            F.collect_set("mid").alias("mids"),
            F.min("seq").alias("seq"),
            F.bool_or("by_broker").alias("by_broker"),
            _count(_UNNAMED).alias("unnamed"),
            _count(f"{received} and by_broker").alias("by_brokers"),
            _count(f"{received} and not by_broker").alias("by_receivers"),
            F.min(F.expr(f"case when {received} then t end")).alias("received_at"),
            _count(f"kind = 'settle' and {_OK}").alias("settled"),
            _count("kind = 'expire'").alias("expired"),
            _count(f"is_dead or (kind = 'dead-letter' and {_OK})").alias("dead"),
            # Whoever settled it after the broker was asked has taken it away.
            F.expr(
                f"case when max(case when {_LEFT} then t end) >= coalesce(max(case when {_GONE} then t end), 0)"
                " then 1L else 0L end"
            ).alias("left"),
        )
        .withColumn("mid", F.explode_outer("mids"))
        .selectExpr(
            "*",
            *event_location.named(
                {
                    "id": f"case when unnamed > 0 then concat('#', seq) else {_ID} end",
                    "numbered": "seq is not null",
                    # The second half follows from the first; with it both uses need the same columns, and share a pass.
                    "taken": "by_brokers + by_receivers > 0 or received_at is not null",
                }
            ),
        )
        .where("id is not null")
    )


def _copies(ledgers: Ledgers) -> tuple[DataFrame, DataFrame]:
    """Return what was seen of the copies at home, by subscription, and in the backlog, by id."""
    from pyspark.sql import functions as F

    each = _each_copy(ledgers)
    at_home = (
        each.where("not in_backlog")
        .groupBy(*_KEY, "path")
        .agg(
            F.min(F.expr("substring(entity, 1, length(place))")).alias("name"),
            _of_copies("taken or settled + expired + dead + left > 0").alias("found"),
            _of_copies("taken").alias("received"),
            # A dead letter that was sent again, after repair, has not come twice.
            _of_copies("taken and dead = 0").alias("kept"),
            _of_copies("dead > 0").alias("dead"),
            _of_copies("left > 0").alias("left_home"),
            _of_copies("expired > 0").alias("expired_home"),
            # The broker's line and the receiver's are the same delivery.
            F.sum(F.expr("greatest(0L, greatest(by_brokers, by_receivers) - 1)")).alias("redelivered"),
            F.min("received_at").alias("received_at"),
            F.min(F.expr("case when taken or left > 0 then seq end")).alias("min_seq"),
        )
    )
    in_backlog = each.where("in_backlog").select(
        "home", F.col("id").alias("x_id"), "entity", "numbered", "taken", "settled", "expired", "dead", "left"
    )
    return at_home, in_backlog


def _backlog(normal: DataFrame, in_backlog: DataFrame) -> DataFrame:
    """Return what the secondary's broker confirmed, and what was seen there, by primary and id."""
    from pyspark.sql import functions as F

    sends = normal.where(f"by_broker and in_backlog and kind = 'send' and {_TAKEN} and mid is not null").select(
        "home", F.col("mid").alias("x_id"), "entity", "t", "ms"
    )

    return (
        sends.unionByName(in_backlog, allowMissingColumns=True)
        .groupBy("home", "x_id")
        .agg(
            F.min("entity").alias("x_path"),
            F.count("t").alias("x_send"),
            F.min("t").alias("x_sent_at"),
            F.min(F.expr("t - coalesce(ms, 0) / 1000")).alias("x_begun_at"),
            _of_copies("taken or settled > 0").alias("x_taken"),
            _of_copies("left > 0 and dead = 0").alias("x_left"),
            _of_copies("dead > 0").alias("x_dead"),
            _of_copies("expired > 0 and dead = 0").alias("x_expired"),
        )
    )


def _with_order(messages: DataFrame) -> DataFrame:
    """Add `out_of_order`: another one of the same sender, begun after this was confirmed, has come before it (P55).

    Two sends that overlap have no order. The ends of all sends and their beginnings lie in one line of time, latest
    first, and each end asks for the lowest sequence number that began after it.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    begun = "coalesce(begun_at, x_begun_at, sent_at)"
    later = (
        Window.partitionBy("home", "path", "sender").orderBy(F.desc("us")).rangeBetween(Window.unboundedPreceding, -1)
    )
    first_begun = F.min(F.expr("case when begins then first_copy.min_seq end")).over(later)
    return (
        messages.selectExpr("*", "case when wanted = 1 and sent_at is not null then first_copy.path end as path")
        .selectExpr("*", "explode(case when path is null then array(false) else array(false, true) end) as begins")
        .withColumn("us", F.expr(f"cast(1e6 * case when begins then {begun} else sent_at end as bigint)"))
        .withColumn("first_begun", first_begun)
        .where("not begins")
        .withColumn("out_of_order", F.expr("case when first_begun < first_copy.min_seq then 1L else 0L end"))
    )


# -- who watched


def _snapshots(ledgers: Ledgers) -> list[tuple[str, float]]:
    """Return for each namespace the time after which `left` lines are of the last snapshot."""
    completed: dict[str, list[float]] = {}
    closed: dict[str, list[float]] = {}
    for fact in ledgers.facts:
        if fact.by_broker and fact.ns is not None:
            completed.setdefault(fact.ns, []).extend(fact.completed)
            end = ledgers.file_facts[fact.file]
            closed.setdefault(fact.ns, []).extend([end.last] if end.ended else [])
    return [(ns, max(last_snapshot_since(times, closed[ns]), -1.0)) for ns, times in completed.items()]


def _watched(ledgers: Ledgers, messages: DataFrame) -> DataFrame:
    """Add for each of the three watchers (`p`, `r`, `s`) whether, since and until when, and the blind spells."""
    from pyspark.sql import functions as F

    by_ns: dict[tuple[str, ...], set[str]] = {}
    by_place: dict[tuple[str, ...], set[str]] = {}
    hosts: dict[tuple[str, ...], set[str]] = {}
    asked: dict[str, float] = {}
    for fact in ledgers.facts:
        if fact.by_broker and fact.ns is not None:
            by_ns.setdefault((fact.ns,), set()).add(fact.file)
            if fact.in_backlog:
                hosts.setdefault((fact.home,), set()).add(fact.ns)
            if fact.asked is not None:
                asked[fact.file] = max(fact.asked, asked.get(fact.file, fact.asked))
        elif fact.receives and not fact.in_backlog:
            by_place.setdefault((fact.home, fact.place), set()).add(fact.file)
    by_home = {home: set().union(*(by_ns[ns,] for ns in names)) for home, names in hosts.items()}

    def watches(names: Iterable[str], ask: bool) -> list[Watch]:
        return [
            Watch(file.started, file.last, file.ended, asked.get(name) if ask else None, file.gap, file.bad_lines)
            for name in sorted(names)
            for file in [ledgers.file_facts[name]]
        ]

    def rows(by: dict[tuple[str, ...], set[str]], ask: bool) -> dict[tuple[str, ...], tuple[Any, ...]]:
        return {key: _as_row(coverage(watches(names, ask))) for key, names in by.items()}

    primaries, receivers, backlogs = rows(by_ns, True), rows(by_place, False), rows(by_home, True)
    nobody = (False, None, None, None)
    result = messages
    for keys, table in (
        (("home",), [(*k, *primaries.get(k, nobody), *backlogs.get(k, nobody)) for k in {**primaries, **backlogs}]),
        (("home", "place"), [(*k, *each) for k, each in receivers.items()]),
    ):
        whose = ("p", "s") if len(keys) == 1 else ("r",)
        columns = ", ".join([*(f"{key} string" for key in keys), *(_COVERAGE.format(who=who) for who in whose)])
        result = result.join(F.broadcast(ledgers.spark.createDataFrame(table, columns)), list(keys), "left")
    return result.withColumns({f"{who}_known": F.expr(f"coalesce({who}_known, false)") for who in ("p", "r", "s")})


def _as_row(each: Coverage) -> tuple[Any, ...]:
    return True, each.since, each.until, list(each.blind)


# -- the report


def _by_finding(messages: DataFrame) -> DataFrame:
    """Return a row for each finding of each message."""
    from pyspark.sql import functions as F

    details = {
        "lost": rules.words_case(),
        "unknown": rules.words_case(),
        "doubled": "concat('received as ', array_max(copies), ' messages, sent as ', wanted)",
        "late": "concat('received ', round(received_at - sent_at, 1), ' s after it was sent')",
        "out_of_order": "'overtaken by one that the same sender sent later'",
        "redelivered": "concat('delivered ', redelivered, ' times more')",
        "dead_lettered": "case when x_dead > 0 then concat('in the dead-letter queue of ', x_path) "
        "else 'in the dead-letter queue' end",
        "expired": "'its time to live was over, or nobody wanted it'",
        "still_there": "case when x_left > 0 then concat('in ', x_path) else 'not received yet' end",
    }
    found = ", ".join(
        f"case when {finding} > 0 then named_struct('finding', '{finding}', 'count', {finding}, 'detail', "
        f"cast({details[finding]} as string)) end"
        for finding in rules.FINDINGS
    )
    nothing = "array(named_struct('finding', 'ok', 'count', 0L, 'detail', cast(null as string)))"
    kept = f"filter(array({found}), f -> f is not null)"
    return (
        messages.withColumn("found_all", F.expr(kept))
        .withColumn("one", F.explode(F.expr(f"case when size(found_all) = 0 then {nothing} else found_all end")))
        .selectExpr(
            "home as ns", "name as entity", "id as mid", "one.finding", "one.detail", "one.count", "sent_at",
            "received_at", "sent", "confirmed", "diverted", "carried_home", "received",
        )
    )  # fmt: skip


def _summary(ledgers: Ledgers, messages: DataFrame, late_s: float, ids: int) -> AuditSummary:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    summed = [name for name in rules.COUNTS if name != "no_id"]
    rows = (
        messages.groupBy("home", "place", "reason")
        .agg(F.min("name").alias("name"), *(F.sum(name).alias(name) for name in summed))
        .collect()
    )
    by_place: dict[tuple[str, str], dict[str, int]] = {}
    names: dict[tuple[str, str], str] = {}
    why: dict[tuple[tuple[str, str], str], int] = {}
    for row in rows:
        key = row["home"], row["place"]
        names[key] = min(row["name"], names.get(key, row["name"]))
        counts = by_place.setdefault(key, dict.fromkeys(rules.COUNTS, 0))
        for name in summed:
            counts[name] += row[name]
        if row["unknown"]:
            why[key, row["reason"]] = row["unknown"]
    for key, (name, by_clients, by_brokers, numbered) in _without_id(ledgers).items():
        names.setdefault(key, name)
        counts = by_place.setdefault(key, dict.fromkeys(rules.COUNTS, 0))
        counts["no_id"] = max(by_clients, by_brokers)
        # Those that a broker numbered are known by that, and counted already.
        untold = max(0, counts["no_id"] - numbered)
        for each in ("sent", "confirmed", "unknown"):
            counts[each] += untold
        if untold:
            why[key, "no-id"] = why.get((key, "no-id"), 0) + untold
    plain = event_location.shown(names)
    notes = [rules.note(reason, count, plain[key]) for (key, reason), count in sorted(why.items())]
    notes += ledgers.notes
    notes += filter(None, (rules.file_note(*facts.note) for facts in ledgers.file_facts.values()))
    rank = Window.partitionBy("finding").orderBy("sent_at", "mid")
    first = (
        _by_finding(messages)
        .where("finding <> 'ok'")
        .withColumn("rank", F.row_number().over(rank))
        .where(F.col("rank") <= ids)
        .collect()
    )
    first.sort(key=lambda row: (rules.FINDINGS.index(row["finding"]), row["rank"]))
    start, end = ledgers.span
    summary = {
        **{name: sum(counts[name] for counts in by_place.values()) for name in rules.COUNTS},
        "late_s": late_s,
        "start": start,
        "end": end,
        "entities": {plain[key]: by_place[key] for key in sorted(by_place)},
        "ids": {finding: [row["mid"] for row in first if row["finding"] == finding] for finding in rules.FINDINGS},
        "findings": [
            {name: row[name] for name in ("finding", "entity", "mid", "detail", "sent_at", "received_at")}
            for row in first
        ],
        "notes": notes,
    }
    return cast(AuditSummary, summary)


def _without_id(ledgers: Ledgers) -> dict[tuple[str, str], tuple[str, int, int, int]]:
    """Return confirmed messages without id, by place: the name, in clients' ledgers, in brokers', with a sequence
    number."""
    found: dict[tuple[str, str], tuple[str, int, int, int]] = {}
    for fact in ledgers.facts:
        if fact.no_id and not fact.in_backlog:
            name, by_clients, by_brokers, numbered = found.get((fact.home, fact.place), (fact.name, 0, 0, 0))
            found[fact.home, fact.place] = (
                min(name, fact.name),
                by_clients + (0 if fact.by_broker else fact.no_id),
                by_brokers + (fact.no_id if fact.by_broker else 0),
                numbered + fact.numbered,
            )
    return found
