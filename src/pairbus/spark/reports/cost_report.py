"""Reports from ledgers what pairing has cost: operations, units, bytes and money.

It has two parts (`book`): the brokers' ledgers, which are what is billed, and the clients' ledgers (senders, receivers,
syphons), each by namespace, entity, cause and operation; `reconciliation` explains why they differ. Every billed
operation has a term of the calculator (`pairbus.cost.estimate`), so that estimate and report can be compared. The
events stay in Spark; only sums come to the driver.

What a ledger can't tell is None, never 0: nothing is claimed about a place (the primary's entities, the backlog) that
no ledger covers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pairbus.billing import BILLED_OUTCOMES, CLIENT_OPERATIONS, OPERATIONS
from pairbus.cost.prices import EXAMPLE, PriceBook
from pairbus.spark.runtime import cached_tables
from pairbus.spark.runtime.locations import below, write_text

from .ledgers import in_sql
from .reconciliation import Reconciliation, reconcile
from .report_text import cost_lines
from .results import BothBooks, CauseFigures, CostFigures, CostSummary, Detour

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .ledgers import Ledgers

#: Lines of both books that JSON and table show, and that come to the driver at all; Parquet has every one.
LINES_MAX: Final = 200
COLLECTED_MAX: Final = 10_000
#: Messages that were carried home, up to which each task has them all in memory.
BROADCAST_MAX: Final = 300_000
DETOUR: Final = ("backlog-sends", "backlog-receives", "home-sends", "home-receives")
_TRANSFER: Final = "x-servicebus-transfer/"


def _words(words: tuple[str, ...]) -> str:
    return ", ".join(f"'{word}'" for word in words)


# Every attempt at something billable. `spot` is the entity by a name that clients and brokers share: a client's ledger
# calls namespaces by their hosts, and a diverted message by its destination and the number of its backlog queue.
_ATTEMPTS: Final = rf"""
SELECT
  book, t, coalesce(ns, '') AS ns, place, coalesce(cause, 'app') AS cause, mid,
  -- the syphon's ledger has the sequence number of the backlog, not of the primary
  CASE WHEN kind = 'move' THEN NULL ELSE seq END AS seq,
  CASE WHEN kind = 'divert' THEN concat('…/{_TRANSFER}', coalesce(queue, '?')) ELSE coalesce(entity, '') END AS entity,
  CASE WHEN kind = 'divert' THEN concat('{_TRANSFER}', coalesce(queue, '?'))
       WHEN place = 'backlog' THEN regexp_extract(lower(entity), '{_TRANSFER}.*$', 0)
       ELSE lower(coalesce(entity, '')) END AS spot,
  CASE WHEN kind IN ('divert', 'move') THEN 'send' ELSE kind END AS operation,
  coalesce(outcome, 'ok') IN ({_words(BILLED_OUTCOMES)}) AS billed,
  coalesce(units, 1) AS units,
  CASE WHEN kind IN ('receive', 'manage', 'poll') THEN 0 ELSE coalesce(bytes, 0) END AS bytes_in,
  CASE WHEN kind IN ('receive', 'manage') THEN coalesce(bytes, 0) ELSE 0 END AS bytes_out
FROM (
  SELECT *,
    CASE WHEN writer = 'broker' THEN 'broker' ELSE 'clients' END AS book,
    -- a pattern is asked only where it can be found: it takes ten times as long as a look for the words
    CASE WHEN kind = 'divert' OR (contains(lower(entity), '/{_TRANSFER}')
           AND lower(entity) RLIKE '/{_TRANSFER}[0-9]+(/|$)') THEN 'backlog'
         ELSE 'primary' END AS place
  FROM {{events}}
)
WHERE kind IN ({_words(OPERATIONS)}) OR (book = 'clients' AND kind IN ({_words(CLIENT_OPERATIONS)}))
"""

_ROOTED: Final = """
SELECT *, CASE WHEN contains(spot, '/subscriptions/') OR contains(spot, '/$deadletterqueue')
               THEN regexp_replace(spot, '/(subscriptions/.*|[$]deadletterqueue)$', '') ELSE spot END AS root,
  mid IS NOT NULL AND billed AND place = 'primary' AND operation = 'send' AS came
FROM {attempts}
"""

# A message was carried home if the syphon sent it there. A receive of that id is the detour's, unless the sequence
# number is that of a send which came the straight way, for the broker may have stored both. Few messages are
# carried home, beside all that there are: they are looked for first, and all others are not sorted for it.
_HOMEWARD: Final = "SELECT DISTINCT mid, root FROM {rooted} WHERE came AND cause = 'syphon'"
_STRAIGHT: Final = """
SELECT DISTINCT sent.mid, sent.root, sent.seq FROM {rooted} AS sent LEFT SEMI JOIN {homeward} AS carried
  ON sent.mid = carried.mid AND sent.root = carried.root
WHERE came AND book = 'broker' AND cause <> 'syphon' AND seq IS NOT NULL
"""
_CARRIED: Final = """
SELECT mid AS carried_mid, collect_set(CASE WHEN seq IS NULL THEN root END) AS roots,
  collect_set(CASE WHEN seq IS NOT NULL THEN struct(root, seq) END) AS straight
FROM (SELECT mid, root, CAST(NULL AS BIGINT) AS seq FROM {homeward} UNION ALL SELECT mid, root, seq FROM {straight})
GROUP BY mid
"""
_WITH_TERMS: Final = """
SELECT book, t, ns, place, cause, mid, entity, spot, operation, billed, units, bytes_in, bytes_out, is_carried,
  CASE WHEN operation = 'ping' THEN 'pings'
       WHEN operation = 'poll' AND place = 'backlog' THEN 'idle-polls'
       WHEN operation = 'send' AND place = 'backlog' THEN 'backlog-sends'
       WHEN operation = 'receive' AND place = 'backlog' THEN 'backlog-receives'
       WHEN operation = 'send' AND cause = 'syphon' THEN 'home-sends'
       WHEN operation = 'receive' AND is_carried THEN 'home-receives'
       WHEN operation = 'send' THEN 'healthy-sends'
       WHEN operation = 'receive' THEN 'healthy-receives'
       ELSE 'other' END AS term
FROM (
  SELECT rooted.*,
    CASE WHEN carried_mid IS NULL THEN false WHEN place = 'backlog' THEN true
         ELSE array_contains(roots, root) AND NOT (seq IS NOT NULL AND array_contains(straight, struct(root, seq)))
         END AS is_carried
  FROM {rooted} AS rooted LEFT JOIN {carried} AS carried ON rooted.mid = carried.carried_mid
)
"""

_LINES: Final = """
SELECT book, ns AS namespace, entity, place, spot, cause, operation, term,
  min(t) AS begin, max(t) AS end,
  count_if(billed) AS operations, count_if(NOT billed) AS refused,
  sum(CASE WHEN billed THEN units ELSE 0 END) AS units,
  sum(CASE WHEN billed THEN bytes_in ELSE 0 END) AS bytes_in,
  sum(CASE WHEN billed THEN bytes_out ELSE 0 END) AS bytes_out,
  count_if(billed AND is_carried) AS carried_operations,
  sum(CASE WHEN billed AND is_carried THEN units ELSE 0 END) AS carried_units,
  sum(CASE WHEN billed AND is_carried THEN bytes_in ELSE 0 END) AS carried_bytes_in,
  sum(CASE WHEN billed AND is_carried THEN bytes_out ELSE 0 END) AS carried_bytes_out,
  count_if(billed AND mid IS NULL AND operation IN ('send', 'receive')) AS without_id
FROM {attempts} GROUP BY ALL
"""

# Where there are too many lines for the driver: without the entities.
_SUMS: Final = """
SELECT book, '' AS namespace, '(many)' AS entity, place, cause, operation, term, min(begin) AS begin, max(end) AS end,
  sum(operations) AS operations, sum(refused) AS refused, sum(units) AS units, sum(bytes_in) AS bytes_in,
  sum(bytes_out) AS bytes_out, sum(carried_operations) AS carried_operations, sum(carried_units) AS carried_units,
  sum(carried_bytes_in) AS carried_bytes_in, sum(carried_bytes_out) AS carried_bytes_out,
  sum(without_id) AS without_id
FROM {lines} GROUP BY ALL
"""

# How many operations each message took that came home, by each book and place: two at each place is right.
_EACH: Final = """
SELECT broker_backlog, broker_primary, clients_backlog, clients_primary, count(*) AS messages FROM (
  SELECT mid,
    count_if(book = 'broker' AND place = 'backlog') AS broker_backlog,
    count_if(book = 'broker' AND place = 'primary') AS broker_primary,
    count_if(book = 'clients' AND place = 'backlog') AS clients_backlog,
    count_if(book = 'clients' AND place = 'primary') AS clients_primary
  FROM {attempts}
  WHERE billed AND is_carried AND term IN ('backlog-sends', 'backlog-receives', 'home-sends', 'home-receives')
  GROUP BY mid
) GROUP BY ALL
"""


class CostReport:
    """The cost that ledgers show. `summary` is the whole in figures, `lines` and `differences` are tables of
    Spark's."""

    def __init__(
        self, summary: CostSummary, lines: DataFrame, reconciliation: Reconciliation, shown: list[dict[str, Any]]
    ) -> None:
        self.summary = summary
        self.lines = lines
        self.reconciliation = reconciliation
        self._shown = shown

    def __repr__(self) -> str:
        billed = self.summary["broker"] or self.summary["clients"] or {"operations": 0, "money": 0.0}
        return f"<CostReport {billed['operations']} operations, {billed['money']:.4f} {self.summary['currency']}>"

    @property
    def differences(self) -> DataFrame:
        return self.reconciliation.differences

    def close(self) -> None:
        """Free the memory of the tables; the end of the ledgers does so, too."""
        cached_tables.release(self)

    def to_json(self) -> str:
        return json.dumps({**self.summary, "lines": self._shown}, ensure_ascii=False)

    def to_parquet(self, folder: Path | str) -> None:
        """Write the tables `lines` and `differences`, and the summary as `summary.json`."""
        self.lines.write.mode("overwrite").parquet(below(folder, "lines"))
        self.differences.write.mode("overwrite").parquet(below(folder, "differences"))
        text = json.dumps(self.summary, ensure_ascii=False) + "\n"
        write_text(self.lines.sparkSession, below(folder, "summary.json"), text)

    def table(self) -> str:
        return "\n".join(cost_lines(self.summary, self._shown, LINES_MAX))


def cost_report(ledgers: Ledgers, prices: PriceBook | None = None) -> CostReport:
    """Add up what the ledgers' operations cost; without `prices` by the example prices."""
    book = prices or EXAMPLE
    events = ledgers.events
    spark = events.sparkSession
    rooted = spark.sql(_ROOTED, attempts=spark.sql(_ATTEMPTS, events=events))
    carried = _carried(spark, rooted)
    attempts = spark.sql(_WITH_TERMS, rooted=rooted, carried=_as_right_side(carried))
    lines = spark.sql(_LINES, attempts=attempts).persist()
    sums = [row.asDict() for row in lines.limit(COLLECTED_MAX + 1).collect()]
    if len(sums) > COLLECTED_MAX:
        sums = [row.asDict() for row in spark.sql(_SUMS, lines=in_sql(lines)).collect()]
    begin, end = min((row["begin"] for row in sums), default=None), max((row["end"] for row in sums), default=None)
    hours = 0.0 if begin is None or end is None else (end - begin) / 3600
    each = {name: book.per_unit(sum(row["units"] for row in sums if row["book"] == name), hours) for name in _BOOKS}
    for row in sums:
        row["money"] = _money_of(row, book, each)
    priced = spark.sql(f"SELECT *, {_money(book, each)} AS money FROM {{lines}}", lines=in_sql(lines)).drop(*_INNER)
    books = {place: _book_of(sums, place) for place in ("primary", "backlog")}
    counted = _counted(spark.sql(_EACH, attempts=attempts).collect(), books)
    reconciliation = reconcile(attempts, lines, ledgers.files, ledgers.tasks)
    sums.sort(key=lambda row: tuple(row[key] for key in _KEYS))
    shown = [{key: row[key] for key in (*_KEYS, *_FIGURES)} for row in sums[:LINES_MAX]]
    summary: CostSummary = {
        "currency": book.currency,
        "prices": book.name,
        "period": {"start": begin, "end": end, "seconds": round(hours * 3600, 3)},
        "base_money": book.base(hours),
        "broker": _total(sums, "broker"),
        "clients": _total(sums, "clients"),
        "by_cause": _by_cause(sums),
        "terms": _terms(sums),
        "detour": _detour(sums, books, counted, book, each),
        "pings": _count(sums, "pings"),
        "idle_polls": _count(sums, "idle-polls"),
        "differences": reconciliation.to_list(),
        "notes": [*_notes(sums, books), *reconciliation.notes, *ledgers.notes],
    }
    carried.unpersist()
    found = CostReport(summary, priced, reconciliation, shown)
    cached_tables.keep(found, lines, reconciliation.differences, within=ledgers)
    return found


def _carried(spark: SparkSession, rooted: DataFrame) -> DataFrame:
    """Return the messages that a syphon carried home, cached: where to, and the numbers of those that came straight."""
    homeward = spark.sql(_HOMEWARD, rooted=rooted).persist()
    straight = spark.sql(_STRAIGHT, rooted=rooted, homeward=_as_right_side(homeward))
    carried = spark.sql(_CARRIED, homeward=in_sql(homeward), straight=straight).persist()
    carried.count()
    homeward.unpersist()
    return carried


def _as_right_side(table: DataFrame) -> DataFrame:
    """Return a cached table with a hint for the joins that it is the right side of: nothing is sorted for them."""
    return in_sql(table).hint("broadcast" if table.count() <= BROADCAST_MAX else "shuffle_hash")


_BOOKS: Final = ("broker", "clients")
_KEYS: Final = ("book", "namespace", "entity", "place", "cause", "operation", "term")
_INNER: Final = (
    "spot",
    "begin",
    "end",
    "carried_operations",
    "carried_units",
    "carried_bytes_in",
    "carried_bytes_out",
    "without_id",
)
#: `refused` are attempts that failed, which nobody bills.
_FIGURES: Final = ("operations", "refused", "units", "bytes_in", "bytes_out", "money")


def _money(book: PriceBook, each: dict[str, float]) -> str:
    """Return the SQL of `_money_of`."""
    (home_in, home_out), (away_in, away_out) = book.per_byte(backlog=False), book.per_byte(backlog=True)
    return (
        f"units * CASE WHEN book = 'broker' THEN {each['broker']!r}D ELSE {each['clients']!r}D END"
        f" + CASE WHEN place = 'backlog' THEN bytes_in * {away_in!r}D + bytes_out * {away_out!r}D"
        f" ELSE bytes_in * {home_in!r}D + bytes_out * {home_out!r}D END"
    )


def _money_of(row: dict[str, Any], book: PriceBook, each: dict[str, float], prefix: str = "") -> float:
    traffic = book.traffic(row[f"{prefix}bytes_in"], row[f"{prefix}bytes_out"], backlog=row["place"] == "backlog")
    return float(row[f"{prefix}units"] * each[row["book"]] + traffic)


def _book_of(sums: list[dict[str, Any]], place: str) -> str | None:
    """Return the broker's book, where one of that place was kept, else the clients', or None."""
    there = {row["book"] for row in sums if row["place"] == place}
    return next((name for name in _BOOKS if name in there), None)


def _counted(rows: Iterable[Any], books: dict[str, str | None]) -> dict[int, int]:
    """Return how many messages took how many operations, by the book that counts for each place."""
    counted: dict[int, int] = {}
    for row in rows:
        number = sum(row[f"{name}_{place}"] for place, name in books.items() if name is not None)
        counted[number] = counted.get(number, 0) + row["messages"]
    return dict(sorted(counted.items()))


def _total(rows: list[dict[str, Any]], name: str) -> CostFigures | None:
    """Return the sum of a book, or None where there is no such ledger."""
    mine = [row for row in rows if row["book"] == name]
    return _summed(mine) if mine else None


def _summed(rows: list[dict[str, Any]]) -> CostFigures:
    return cast(CostFigures, {figure: sum(row[figure] for row in rows) for figure in _FIGURES})


def _by_cause(sums: list[dict[str, Any]]) -> list[CauseFigures]:
    by_key: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in sums:
        by_key.setdefault((row["book"], row["cause"], row["operation"]), []).append(row)
    return [
        CauseFigures(book=book, cause=cause, operation=operation, **_summed(rows))
        for (book, cause, operation), rows in sorted(by_key.items())
        if any(row["operations"] for row in rows)
    ]


def _terms(sums: list[dict[str, Any]]) -> dict[str, CostFigures]:
    """Return the figures by the calculator's names; of each place the broker's word counts, where there is one."""
    chosen = [row for row in sums if row["book"] == _book_of(sums, row["place"])]
    return {
        name: _summed([row for row in chosen if row["term"] == name]) for name in sorted({r["term"] for r in chosen})
    }


def _count(sums: list[dict[str, Any]], term: str) -> BothBooks:
    def of(name: str) -> CostFigures | None:
        mine = [row for row in sums if row["book"] == name]
        return _summed([row for row in mine if row["term"] == term]) if mine else None

    return {"broker": of("broker"), "clients": of("clients")}


def _detour(
    sums: list[dict[str, Any]],
    books: dict[str, str | None],
    counted: dict[int, int],
    book: PriceBook,
    each: dict[str, float],
) -> Detour:
    rows = [row for row in sums if row["term"] in DETOUR and row["book"] == books[row["place"]]]
    legs = {leg: sum(row["carried_operations"] for row in rows if row["term"] == leg) for leg in DETOUR}
    carried = sum(counted.values())
    operations = sum(legs.values())
    diverted = None if books["backlog"] is None else sum(r["operations"] for r in rows if r["term"] == "backlog-sends")
    return {
        "diverted": diverted,
        "carried": carried,
        "operations": operations,
        "operations_per_message": operations / carried if carried else None,
        "messages_by_operations": {str(number): messages for number, messages in counted.items()},
        "legs": legs,
        "units": sum(row["carried_units"] for row in rows),
        "bytes_in": sum(row["carried_bytes_in"] for row in rows),
        "bytes_out": sum(row["carried_bytes_out"] for row in rows),
        "money": sum(_money_of(row, book, each, "carried_") for row in rows),
        "books": books,
    }


def _notes(sums: list[dict[str, Any]], books: dict[str, str | None]) -> list[str]:
    notes = []
    for place, name in (("primary", "the primary's entities"), ("backlog", "the backlog queues")):
        if books[place] is None:
            notes.append(f"no ledger speaks of {name}: what was done there is unknown")
        elif books[place] == "clients":
            notes.append(
                f"no broker's ledger speaks of {name}: figures there are the clients' own, their bytes a bound"
            )
    nameless = sum(row["without_id"] for row in sums if row["book"] == books[row["place"]])
    if nameless:
        notes.append(f"{nameless} sends and receives without a message id: whether they took the detour is unknown")
    return notes
