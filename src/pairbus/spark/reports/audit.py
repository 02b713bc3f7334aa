"""Audits whether anything was lost: follows every message through the ledgers of clients, syphons and brokers.

It collects on Spark, per message, what each ledger says; `audit_rules` has the definitions and the wording, `coverage`
decides what can't be told, and `report_text` prints the table. Only sums, bounded lists of ids and facts about files
reach the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pairbus.spark.runtime import cached_tables
from pairbus.spark.runtime.locations import below

from . import audit_rules as rules
from . import event_location
from .clock_skew import clock_notes
from .coverage import Coverage, Watch, coverage, last_snapshot_since
from .ledger_files.file_facts import MissingFiles
from .ledgers import Ledgers, small_table, write_rows
from .report_text import audit_table
from .results import AuditSummary, Missing, counts_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LATE_S: Final = 60.0
IDS: Final = 100
#: The columns of a message that the report needs.
_REPORTED: Final = (
    "home_no", "place_no", "name_no", "id", "reason", "sent_at", "received_at", "most_copies", "wanted", "x_path_no",
    "x_dead", "x_left", "sender_no", *rules.SKEWS,
    *(name for name in rules.COUNTS if name not in ("no_id", "out_of_order")),
)  # fmt: skip
#: Home, place and id are a message; the names stand as numbers, see `event_numbers`.
_KEY: Final = ("home_no", "place_no", "id")
#: The columns that the order of messages is judged by, beside those that are reported.
_ORDER: Final = ("order_path", "order_seq", "begun_us", "sent_us")
_ONE_SENDER: Final = ("home_no", "order_path", "sender_no")
_SENDER_COLUMNS: Final = "home_no int, order_path int, sender_no int"
#: Which span of time a message's beginning or end lies in; a sender with few messages has one.
_SPAN: Final = "case when bounds is null then 0 else size(filter(bounds, each -> each <= {us})) end"
#: A sender with more messages is looked at in several spans of time, each of about so many.
SPAN_MESSAGES: Final = 100_000
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

    def __init__(self, summary: AuditSummary, messages: DataFrame) -> None:
        self.summary = summary
        self.messages = messages

    def __repr__(self) -> str:
        said = "lost {lost}, unknown {unknown}, duplicated {doubled}".format(**counts_of(self.summary))
        return f"<Audit {self.summary['confirmed']} confirmed: {said}>"

    @property
    def ok(self) -> bool:
        """Whether nothing is known to be lost; `summary["unknown"]` and `summary["missing_files"]` say what is
        uncertain."""
        return self.summary["lost"] == 0

    @property
    def exit_code(self) -> int:
        return rules.exit_code(self.summary["lost"], self.summary["unknown"], len(self.summary["missing_files"]))

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
        """Free the memory of `messages`; the end of the ledgers does so, too."""
        cached_tables.release(self)


def audit(ledgers: Ledgers, *, late_s: float = LATE_S, ids: int = IDS) -> Audit:
    """Find out what happened to every message. `ids`: how many are named for each finding."""
    judged = _judged(ledgers, late_s).select(*_REPORTED, *_ORDER).persist()
    messages = _with_order(judged, ledgers.tasks).select(*_REPORTED, "out_of_order").persist()
    try:
        summary = _summary(ledgers, messages, late_s, ids)  # which has gone over all messages
    except BaseException:
        messages.unpersist()
        raise
    finally:
        judged.unpersist()
    found = Audit(summary, _by_finding(ledgers, messages))
    cached_tables.keep(found, messages, within=ledgers)
    return found


# -- what the ledgers say of each message


def _judged(ledgers: Ledgers, late_s: float) -> DataFrame:
    from pyspark.sql import functions as F

    normal, tasks = ledgers.normal.where("entity is not null"), ledgers.tasks
    seen = _seen(ledgers, normal)
    arrived = _arrived(_copies(seen.where("not in_backlog"), tasks), tasks)
    backlog = _backlog(normal, _copies(seen.where("in_backlog"), tasks), tasks)
    whole = (
        _offered(normal, backlog, tasks)
        .join(arrived.hint("shuffle_hash"), list(_KEY), "full_outer")
        .withColumns(
            {
                # Nobody says where it was going: then it belongs to the backlog queue itself.
                "name_no": F.expr("coalesce(least(name_no, seen_name_no), x_path_no)"),
                "sender_no": F.expr("coalesce(sender_no, -1)"),
                "sent_at": F.expr("coalesce(c_confirmed_at, least(b_sent_at, x_sent_at))"),
            }
        )
    )
    whole = _watched(ledgers, whole.fillna(0, [name for name, kind in whole.dtypes if kind == "bigint"]))
    late = f"case when received_at - sent_at > {float(late_s)!r} then 1L else 0L end"
    judged = {
        "home_at": "coalesce(carried_at, sent_at)",
        "named": "id not like '#%'",
        **rules.NUMBERS,
        **rules.BLIND,
        "reason": rules.REASON,
        **_OUTCOMES,
        "late": late,
        **rules.SKEWS,
        "most_copies": "array_max(copies)",
        # Of a topic, in one subscription; what was sent more than once has no place in the order.
        "order_path": "case when wanted = 1 and sent_at is not null then first_copy.path_no end",
        "order_seq": "first_copy.min_seq",
        "begun_us": "cast(1e6 * coalesce(begun_at, x_begun_at, sent_at) as bigint)",
        "sent_us": "cast(1e6 * sent_at as bigint)",
    }
    return whole.selectExpr("*", *event_location.named(judged))


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
    "c_begun_at": (_CONFIRMED, "t - coalesce(ms, 0) / 1000"),
    "begun_at": (f"(({_BY_CLIENT}) or ({_BY_APP})) and {_TAKEN}", "t - coalesce(ms, 0) / 1000"),
}


#: What was diverted, or came from there, has to do with the backlog's copy of that id.
_AWAY: Final = (
    f"({_BY_CLIENT} and kind = 'divert') or ({_MOVED} and {_TAKEN}) or ({_BY_SYPHON} and ({_OK} or {_TAKEN}))"
)


def _offered(normal: DataFrame, backlog: DataFrame, tasks: int) -> DataFrame:
    """Return one row a message: what senders and syphons tried, what the primary answered, and what the backlog has."""
    from pyspark.sql import functions as F

    offers = (
        normal.where("kind in ('send', 'divert') or (kind = 'move' and cause = 'syphon')")
        .where("not in_backlog")
        .withColumn("id", F.expr(_ID))
        .where("id is not null")
        .select(*_KEY, "name_no", "kind", "by_broker", "cause", "outcome", "t", "ms", "series_no")
    )
    away = offers.where(_AWAY).select(*_KEY).repartition(tasks, "home_no", "id").distinct()
    there = backlog.join(away.hint("shuffle_hash"), ["home_no", "id"], "left").withColumn(
        "place_no", F.expr("coalesce(place_no, x_path.full_place_no)")
    )
    there = there.withColumn("x_path_no", F.expr("x_path.entity_no")).drop("x_path")
    return (
        offers.unionByName(there, allowMissingColumns=True)
        .repartition(tasks, *_KEY)
        .groupBy(*_KEY)
        .agg(
            F.min("name_no").alias("name_no"),
            *(_count(condition).alias(name) for name, condition in _TALLIES.items()),
            *(
                F.min(F.expr(f"case when {condition} then {value} end")).alias(name)
                for name, (condition, value) in _TIMES.items()
            ),
            F.max(F.expr(f"case when {_CONFIRMED} then series_no end")).alias("sender_no"),
            *(F.max(name).alias(name) for name in ("x_send", "x_taken", "x_left", "x_dead", "x_expired")),
            *(F.min(name).alias(name) for name in ("x_sent_at", "x_begun_at", "x_path_no")),
        )
    )


def _seen(ledgers: Ledgers, normal: DataFrame) -> DataFrame:
    """Return the lines that tell of copies: stored, delivered, settled, or still there by the last snapshot."""
    from pyspark.sql import functions as F

    since = [(ledgers.numbers.homes.numbers[ns], t) for ns, t in _snapshots(ledgers)]
    snapshots = small_table(ledgers.spark, since, "ns_home_no int, left_since double")
    return (
        normal.where(f"kind in ('receive', 'settle', 'dead-letter', 'expire', 'left') or {_UNNAMED}")
        .where("seq is not null or mid is not null")
        .join(F.broadcast(snapshots), "ns_home_no", "left")
        .where("kind <> 'left' or t > coalesce(left_since, -1)")
    )


def _copies(seen: DataFrame, tasks: int) -> DataFrame:
    """Return a row for each id of each copy (sequence number) in each queue or subscription: what was seen of it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    received = f"kind = 'receive' and not is_dead and ({_OK} or in_backlog)"
    found = {
        "by_broker": (F.max, "max(by_broker)"),
        "name_no": (F.min, "min(name_no)"),
        "entity_no": (F.min, "min(entity_no)"),
        "full_place_no": (F.min, "min(full_place_no)"),
        "unnamed": (F.sum, f"count_if({_UNNAMED})"),
        "by_brokers": (F.sum, f"count_if({received} and by_broker)"),
        "by_receivers": (F.sum, f"count_if({received} and not by_broker)"),
        "received_at": (F.min, f"min(case when {received} then t end)"),
        "by_receivers_at": (F.min, f"min(case when {received} and not by_broker then t end)"),
        "settled": (F.sum, f"count_if(kind = 'settle' and {_OK})"),
        "expired": (F.sum, "count_if(kind = 'expire')"),
        "dead": (F.sum, f"count_if(is_dead or (kind = 'dead-letter' and {_OK}))"),
        "left_at": (F.max, f"max(case when {_LEFT} then t end)"),
        "gone_at": (F.max, f"max(case when {_GONE} then t end)"),
    }
    copy = ("seq", "home_no", "path_no", "only_mid")
    one = Window.partitionBy(*copy)
    return (
        # Without a number the id alone tells copies apart. Numbers come first in the key: sorting is quickest by them.
        seen.withColumn("only_mid", F.expr("case when seq is null then mid end"))
        .repartition(tasks, *copy)
        .groupBy(*copy, "place_no", "mid")
        .agg(*(F.expr(expression).alias(name) for name, (_, expression) in found.items()))
        # Few lines of a settlement have the id: what they tell goes to those of the same number that have one.
        .withColumns({name: total(name).over(one) for name, (total, _) in found.items()})
        .withColumn("ids", F.count("mid").over(one))
        .where("mid is not null or ids = 0")
        .selectExpr(
            "*",
            *event_location.named(
                {
                    "id": f"case when unnamed > 0 then concat('#', seq) else {_ID} end",
                    "numbered": "seq is not null",
                    "taken": "by_brokers + by_receivers > 0",
                    # A client that settled it after the broker was asked has taken it away.
                    "left": "case when left_at >= coalesce(gone_at, 0) then 1L else 0L end",
                }
            ),
        )
        .where("id is not null")
    )


def _arrived(copies: DataFrame, tasks: int) -> DataFrame:
    """Return one row a message: what was seen of its copies at home."""
    from pyspark.sql import functions as F

    return (
        copies.repartition(tasks, *_KEY)
        .groupBy(*_KEY, "path_no")
        .agg(
            F.min("name_no").alias("name_no"),
            _of_copies("taken or settled + expired + dead + left > 0").alias("found"),
            _of_copies("taken").alias("received"),
            # A dead letter that was sent again, after repair, has not come twice.
            _of_copies("taken and dead = 0").alias("kept"),
            _of_copies("dead > 0").alias("dead"),
            _of_copies("left > 0").alias("left_home"),
            _of_copies("expired > 0").alias("expired_home"),
            # The broker's line and the receiver's are the same delivery.
            F.sum(F.expr("greatest(0L, greatest(by_brokers, by_receivers) - 1)")).alias("redelivered"),
            *(F.min(name).alias(name) for name in ("received_at", "by_receivers_at")),
            F.min(F.expr("case when taken or left > 0 then seq end")).alias("min_seq"),
        )
        .groupBy(*_KEY)
        .agg(
            F.min("name_no").alias("seen_name_no"),
            # In the subscription that has most of them: a rule may keep a message from the others.
            *(F.max(name).alias(name) for name in ("found", "received", "dead", "left_home", "expired_home")),
            F.sum("redelivered").alias("redelivered"),
            *(F.min(name).alias(name) for name in ("received_at", "by_receivers_at")),
            F.collect_list("kept").alias("copies"),
            F.min(F.expr("case when min_seq is not null then struct(path_no, min_seq) end")).alias("first_copy"),
        )
    )


def _backlog(normal: DataFrame, copies: DataFrame, tasks: int) -> DataFrame:
    """Return what the secondary's broker confirmed, and what was seen there, by primary and id."""
    from pyspark.sql import functions as F

    sends = normal.where(f"by_broker and in_backlog and kind = 'send' and {_TAKEN} and mid is not null").select(
        "home_no", F.col("mid").alias("id"), "entity_no", "full_place_no", "t", "ms"
    )
    seen = copies.select(
        "home_no", "id", "entity_no", "full_place_no", "numbered", "taken", "settled", "expired", "dead", "left"
    )
    return (
        sends.unionByName(seen, allowMissingColumns=True)
        .repartition(tasks, "home_no", "id")
        .groupBy("home_no", "id")
        .agg(
            F.min(F.struct("entity_no", "full_place_no")).alias("x_path"),
            F.count("t").alias("x_send"),
            F.min("t").alias("x_sent_at"),
            F.min(F.expr("t - coalesce(ms, 0) / 1000")).alias("x_begun_at"),
            _of_copies("taken or settled > 0").alias("x_taken"),
            _of_copies("left > 0 and dead = 0").alias("x_left"),
            _of_copies("dead > 0").alias("x_dead"),
            _of_copies("expired > 0 and dead = 0").alias("x_expired"),
        )
    )


# -- in which order


def _with_order(messages: DataFrame, tasks: int) -> DataFrame:
    """Add `out_of_order`: another one of the same sender, begun after this was confirmed, has come before it.

    Two sends that overlap have no order. The ends of all sends and their beginnings lie in one line of time, latest
    first, and each end asks for the lowest sequence number that began after it. A sender with many messages is asked
    span by span of time, so that it is not one task's; what the later spans have at least is known from a small table.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    placed = messages.where("order_path is not null")
    bounds = _bounds(placed)
    create = partial(small_table, messages.sparkSession)
    of_bounds = F.broadcast(create(bounds, f"{_SENDER_COLUMNS}, bounds array<bigint>"))
    placed = placed.join(of_bounds, list(_ONE_SENDER), "left")
    firsts = (
        placed.where("bounds is not null")
        .groupBy(*_ONE_SENDER, F.expr(_SPAN.format(us="begun_us")).alias("span"))
        .agg(F.min("order_seq").alias("first"))
    )
    later_spans = create(
        _first_of_later(firsts.collect() if bounds else []), f"{_SENDER_COLUMNS}, span int, later bigint"
    )
    later = Window.partitionBy(*_ONE_SENDER, "span").orderBy(F.desc("us")).rangeBetween(Window.unboundedPreceding, -1)
    ordered = (
        placed.selectExpr("*", "explode(array(false, true)) as begins")
        .withColumn("us", F.expr("case when begins then begun_us else sent_us end"))
        .withColumn("span", F.expr(_SPAN.format(us="us")))
        .repartition(tasks, *_ONE_SENDER, "span")
        .withColumn("first_begun", F.min(F.expr("case when begins then order_seq end")).over(later))
        .where("not begins")
        .join(F.broadcast(later_spans), [*_ONE_SENDER, "span"], "left")
        .withColumn("out_of_order", F.expr("case when least(first_begun, later) < order_seq then 1L else 0L end"))
    )
    elsewhere = messages.where("order_path is null").withColumn("out_of_order", F.lit(0).cast("bigint"))
    return ordered.unionByName(elsewhere, allowMissingColumns=True)


def _bounds(placed: DataFrame) -> list[tuple[int, int, int, list[int]]]:
    """Return for each sender with many messages the times that part them into spans with about as many each."""
    from pyspark.sql import functions as F

    counted = placed.groupBy(*_ONE_SENDER).count().where(F.col("count") > SPAN_MESSAGES).collect()
    if not counted:
        return []
    spans = -(-max(row["count"] for row in counted) // SPAN_MESSAGES)
    crowded = small_table(
        placed.sparkSession, [tuple(row[name] for name in _ONE_SENDER) for row in counted], _SENDER_COLUMNS
    )
    shares = ", ".join(f"{number / spans!r}D" for number in range(1, spans))
    rows = (
        placed.join(F.broadcast(crowded), list(_ONE_SENDER))
        .groupBy(*_ONE_SENDER)
        .agg(F.expr(f"percentile_approx(begun_us, array({shares}), 1000)").alias("bounds"))
        .collect()
    )
    return [tuple(row[name] for name in (*_ONE_SENDER, "bounds")) for row in rows]


def _first_of_later(firsts: Iterable[Any]) -> list[tuple[int, int, int, int, int]]:
    """Return for each span the lowest sequence number of those after it, from the lowest of each."""
    by_sender: dict[tuple[int, int, int], dict[int, int]] = {}
    for row in firsts:
        by_sender.setdefault(tuple(row[name] for name in _ONE_SENDER), {})[row["span"]] = row["first"]
    found = []
    for sender, spans in by_sender.items():
        lowest: int | None = None
        for span in range(max(spans), -1, -1):
            if lowest is not None:
                found.append((*sender, span, lowest))
            if span in spans:
                lowest = spans[span] if lowest is None else min(lowest, spans[span])
    return found


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
    """Add for both brokers (`p`, `s`) whether, since and until when they watched, and the blind spells; for receivers
    (`r`) whether."""
    from pyspark.sql import functions as F

    by_ns: dict[tuple[str, ...], set[str]] = {}
    receivers: set[tuple[str, str]] = set()
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
            receivers.add((fact.home, fact.place))
    by_home = {home: set().union(*(by_ns[ns,] for ns in names)) for home, names in hosts.items()}

    def rows(by: dict[tuple[str, ...], set[str]]) -> dict[tuple[str, ...], tuple[Any, ...]]:
        return {key: _as_row(coverage(watches(names), missing(names))) for key, names in by.items()}

    def watches(names: Iterable[str]) -> list[Watch]:
        files = [ledgers.file_facts[name] for name in sorted(names)]
        return [Watch(f.started, f.last, f.ended, asked.get(f.file), f.gap, f.bad_lines) for f in files]

    def missing(names: set[str]) -> list[tuple[float, float]]:
        return [(each.since, each.until) for each in ledgers.missing_files if {each.after, each.before} & names]

    primaries, backlogs = rows(by_ns), rows(by_home)
    nobody = (False, None, None, None)
    homes, places = ledgers.numbers.homes.numbers, ledgers.numbers.places.numbers
    of_homes = {k: (*primaries.get(k, nobody), *backlogs.get(k, nobody)) for k in {**primaries, **backlogs}}
    by_home_no = [(homes[home], *each) for (home,), each in of_homes.items() if home in homes]
    by_place_no = [(homes[home], places[place], True) for home, place in sorted(receivers) if place in places]
    result = messages
    for keys, table, columns in (
        (["home_no"], by_home_no, ", ".join(["home_no int", *(_COVERAGE.format(who=who) for who in ("p", "s"))])),
        (["home_no", "place_no"], by_place_no, "home_no int, place_no int, r_known boolean"),
    ):
        result = result.join(F.broadcast(small_table(ledgers.spark, table, columns)), keys, "left")
    return result.withColumns({f"{who}_known": F.expr(f"coalesce({who}_known, false)") for who in ("p", "r", "s")})


def _as_row(each: Coverage) -> tuple[Any, ...]:
    return True, each.since, each.until, list(each.blind)


# -- the report


def _by_finding(ledgers: Ledgers, messages: DataFrame) -> DataFrame:
    """Return a row for each finding of each message."""
    from pyspark.sql import functions as F

    for column, names in (
        ("home", ledgers.numbers.homes), ("name", ledgers.numbers.shown), ("x_path", ledgers.numbers.shown),
    ):  # fmt: skip
        table = small_table(ledgers.spark, list(enumerate(names.ordered)), f"{column}_no int, {column} string")
        messages = messages.join(F.broadcast(table), f"{column}_no", "left")

    details = {
        "lost": rules.words_case(),
        "unknown": rules.words_case(),
        "doubled": "concat('received as ', most_copies, ' messages, sent as ', wanted)",
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

    by_place, names, why = _by_place(ledgers, messages)
    plain = event_location.shown(names)
    notes = [rules.note(reason, count, plain[key]) for (key, reason), count in sorted(why.items())]
    notes += [*clock_notes(ledgers, messages), *ledgers.notes]
    notes += filter(None, (rules.file_note(*facts.note) for facts in ledgers.file_facts.values()))
    rank = Window.partitionBy("finding").orderBy("sent_at", "mid", "ns", "entity")
    first = (
        _by_finding(ledgers, messages)
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
        "missing_files": [_as_json(each) for each in ledgers.missing_files],
        "notes": notes,
    }
    return cast(AuditSummary, summary)


def _as_json(missing: MissingFiles) -> Missing:
    """JSON has no infinity: null says that nobody knows."""
    times = [None if isinf(t) else t for t in (missing.since, missing.until)]
    return {
        "writer": missing.writer, "files": missing.files, "after": missing.after, "before": missing.before,
        "since": times[0], "until": times[1],
    }  # fmt: skip


#: By home and place: the counts, the names, and how many are unknown for each reason.
_Place = tuple[str, str]
_Counted = tuple[dict[_Place, dict[str, int]], dict[_Place, str], dict[tuple[_Place, str], int]]


def _by_place(ledgers: Ledgers, messages: DataFrame) -> _Counted:
    from pyspark.sql import functions as F

    summed = [name for name in rules.COUNTS if name != "no_id"]
    rows = (
        messages.groupBy("home_no", "place_no", "reason")
        .agg(F.min("name_no").alias("name_no"), *(F.sum(name).alias(name) for name in summed))
        .collect()
    )
    by_place, names, why = cast(_Counted, ({}, {}, {}))
    numbers = ledgers.numbers
    for row in rows:
        key = numbers.homes.name(row["home_no"]), numbers.places.name(row["place_no"])
        name = numbers.shown.name(row["name_no"])
        names[key] = min(name, names.get(key, name))
        counts = by_place.setdefault(key, dict.fromkeys(rules.COUNTS, 0))
        for each in summed:
            counts[each] += row[each]
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
    return by_place, names, why


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
