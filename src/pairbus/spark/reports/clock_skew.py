"""Measures by how much clocks disagree, if the ledgers of two hosts recorded the same message.

A broker stores a message after its sender has begun to send it, and before the sender gets the answer; a receiver gets
it after that. If the ledgers say otherwise, the clocks of their hosts differ. Only messages that were sent and stored
exactly once are used. For a broker's clock the result is the median, for a receiver's the difference that is certain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from . import audit_rules as rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from .ledgers import Ledgers

#: Smaller differences are not reported.
SKEW_S: Final = 1.0


def clock_notes(ledgers: Ledgers, messages: DataFrame) -> list[str]:
    """Return a line for each broker, and for the receivers at each, whose clock and a sender's disagree. `messages` has
    the columns of `audit_rules.SKEWS`."""
    from pyspark.sql import functions as F

    rows = (
        messages.groupBy("home_no", "sender_no")
        .agg(
            F.percentile_approx("broker_ahead", 0.5, 1000).alias("broker"),
            F.min("receiver_ahead").alias("receivers"),
        )
        .collect()
    )
    by_home: dict[str, list[Any]] = {}
    for row in rows:
        by_home.setdefault(ledgers.numbers.homes.name(row["home_no"]), []).append(row)
    names = {of_file[3]: of_file[1].rpartition("/")[2] for of_file in ledgers.numbers.files.values()}
    said = []
    for home, senders in sorted(by_home.items()):
        for who in ("broker", "receivers"):
            ahead, sender_no = max(
                ((row[who] or 0.0, row["sender_no"]) for row in senders), key=lambda each: abs(each[0])
            )
            if abs(ahead) >= SKEW_S:
                said.append(rules.clock_note(who, home, names.get(sender_no, "the broker"), ahead))
    return said
