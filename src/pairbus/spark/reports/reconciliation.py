"""Explains why brokers' and clients' ledgers differ: every difference has its reason, and the sum is the whole.

Operations are matched by entity, operation, cause and message id. Operations that the brokers have and no client does,
or the other way round, are attributed to the one reason that the ledgers support; if several are possible, the text
says so. It knows no prices, and takes the attempts as `cost_report` reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from .ledgers import in_sql
from .results import Difference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ANSWER_LOST: Final = "answer-lost"
REPEATED: Final = "repeated"
SENDER_WITHOUT_LEDGER: Final = "sender-without-ledger"
RECEIVER_WITHOUT_LEDGER: Final = "receiver-without-ledger"
NOT_HANDED_OVER: Final = "not-handed-over"
POLLS: Final = "polls"
MANAGEMENT: Final = "management"
BROKER_CUT: Final = "broker-cut"
NO_BROKER: Final = "no-broker-ledger"
UNEXPLAINED: Final = "unexplained"
BYTES_BOUND: Final = "bytes-bound"

#: What each reason means, for the reports and the documents.
REASONS: Final[dict[str, str]] = {
    ANSWER_LOST: "the client's attempt failed, and the broker had taken it: its answer was lost on the way",
    REPEATED: "the client has one line, the broker several: the SDK repeated it within one attempt",
    SENDER_WITHOUT_LEDGER: "no client's ledger has it: a client without a ledger, or the cut tail of one",
    RECEIVER_WITHOUT_LEDGER: "nobody who received there kept a ledger",
    NOT_HANDED_OVER: "delivered, and to no application that keeps a ledger: prefetched, dropped, or another's",
    POLLS: "empty receives: the broker counts grants of credit and ends of links, a client its calls that got nothing",
    MANAGEMENT: "management calls, which only brokers write",
    BROKER_CUT: "the broker's ledger was cut by a kill or has a gap",
    NO_BROKER: "no broker's ledger speaks of that entity",
    UNEXPLAINED: "the ledgers do not say why",
    BYTES_BOUND: "the same operations; a client's bytes are a bound, the broker's are exact",
}

_KEY: Final = ("place", "spot", "operation", "cause", "mid")
# A ping has no id in a client's ledger, and a poll or a management call has none at all: these match by entity.
_MID: Final = "CASE WHEN operation IN ('send', 'receive') THEN mid END"
_MATCHED: Final = """
SELECT place, spot, operation, cause, mid,
  sum(CASE WHEN book = 'broker' AND billed THEN 1 ELSE 0 END) AS broker,
  sum(CASE WHEN book = 'clients' AND billed THEN 1 ELSE 0 END) AS clients,
  sum(CASE WHEN book = 'clients' AND NOT billed THEN 1 ELSE 0 END) AS failed,
  sum(CASE WHEN NOT billed THEN 0 WHEN book = 'broker' THEN bytes_in + bytes_out
           ELSE -bytes_in - bytes_out END) AS bytes
FROM {attempts} GROUP BY place, spot, operation, cause, mid
"""

# Of each entity, from the sums: all its messages in one place would be one task's work.
_SPOTS: Final = """
SELECT matched.*, received, known
FROM {matched} AS matched JOIN {totals} AS totals ON matched.place = totals.place AND matched.spot = totals.spot
"""
_TOTALS: Final = """
SELECT place, spot,
  sum(CASE WHEN book = 'clients' AND operation = 'receive' THEN operations ELSE 0 END) AS received,
  sum(CASE WHEN book = 'broker' THEN operations ELSE 0 END) AS known
FROM {lines} GROUP BY place, spot
"""

_REASONED: Final = f"""
SELECT cause, operation, place, reason, sum(operations) AS operations, sum(bytes) AS bytes FROM (
  SELECT cause, operation, place, part.reason AS reason, part.operations AS operations, part.bytes AS bytes FROM (
    SELECT *, CASE
      WHEN broker > clients AND operation IN ('send', 'ping') THEN array(
        named_struct('reason', '{ANSWER_LOST}', 'operations', least(broker - clients, failed),
                     'bytes', CASE WHEN failed > 0 THEN bytes ELSE 0 END),
        named_struct('reason', CASE WHEN operation = 'send' AND mid IS NOT NULL AND clients + failed > 0
                                    THEN '{REPEATED}' ELSE '{SENDER_WITHOUT_LEDGER}' END,
                     'operations', broker - clients - least(broker - clients, failed),
                     'bytes', CASE WHEN failed > 0 THEN 0 ELSE bytes END))
      WHEN broker > clients THEN array(named_struct('reason',
        CASE operation WHEN 'poll' THEN '{POLLS}' WHEN 'manage' THEN '{MANAGEMENT}'
             ELSE CASE WHEN received = 0 THEN '{RECEIVER_WITHOUT_LEDGER}' ELSE '{NOT_HANDED_OVER}' END END,
        'operations', broker - clients, 'bytes', bytes))
      WHEN broker < clients THEN array(named_struct('reason',
        CASE WHEN known = 0 THEN '{NO_BROKER}' WHEN operation = 'poll' THEN '{POLLS}'
             WHEN {{is_cut}} THEN '{BROKER_CUT}' ELSE '{UNEXPLAINED}' END,
        'operations', broker - clients, 'bytes', bytes))
      ELSE array(named_struct('reason', '{BYTES_BOUND}', 'operations', 0L, 'bytes', bytes)) END AS parts
    FROM {{spots}}
  ) LATERAL VIEW explode(parts) AS part
) WHERE operations <> 0 OR bytes <> 0
GROUP BY cause, operation, place, reason ORDER BY cause, operation, place, reason
"""


class Reconciliation:
    """`differences`: cause, operation, place, reason, operations and bytes, the brokers' less the clients'."""

    def __init__(self, differences: DataFrame, rows: list[dict[str, Any]], notes: list[str]) -> None:
        self.differences = differences
        self.notes = notes
        self._rows = rows

    def __repr__(self) -> str:
        return f"<Reconciliation {len(self._rows)} differences, {len(self.notes)} notes>"

    def to_list(self) -> list[Difference]:
        return [cast(Difference, {**row, "explanation": REASONS[row["reason"]]}) for row in self._rows]


def reconcile(attempts: DataFrame, lines: DataFrame, files: DataFrame, tasks: int) -> Reconciliation:
    """Find where the two differ, by cause, operation and place, and why. `lines`: the sums of the attempts, cached.
    `tasks`: so many that each can keep its messages in memory."""
    from pyspark.sql import functions as F

    spark = attempts.sparkSession
    hurt = spark.sql(
        """
        SELECT writer = 'broker' AS is_broker, count(*) AS files, first(file) AS file,
          sum(CASE WHEN cut THEN 1 ELSE 0 END) AS cut, sum(coalesce(gap_events, 0)) AS gap
        FROM {files} WHERE cut OR coalesce(gap_events, 0) > 0 GROUP BY ALL
        """,
        files=files,
    ).collect()
    totals = spark.sql(_TOTALS, lines=in_sql(lines)).hint("broadcast")
    by_message = attempts.withColumn("mid", F.expr(_MID)).repartition(tasks, *_KEY)
    spots = spark.sql(_SPOTS, matched=spark.sql(_MATCHED, attempts=by_message), totals=totals)
    is_cut = any(row["is_broker"] for row in hurt)
    differences = spark.sql(_REASONED, spots=spots, is_cut=is_cut).persist()
    rows = [row.asDict() for row in differences.collect()]
    return Reconciliation(differences, rows, [_note(row.asDict()) for row in hurt])


def _note(hurt: dict[str, Any]) -> str:
    whose = "broker's" if hurt["is_broker"] else "client's"
    words = []
    if hurt["cut"]:
        words.append(f"{hurt['cut']} {whose} ledger files end without their last line (such as {hurt['file']}): a kill,"
                     " up to 0.2 s of events are missing")  # fmt: skip
    if hurt["gap"]:
        words.append(f"a {whose} disk refused {hurt['gap']} events")
    return "; ".join(words) + "; figures there are at least so much"
