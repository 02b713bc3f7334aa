"""Computes the course of an outage for charts, step by step: sends by route, backlog depth, delay, states, pings.

It counts on Spark; `chart_series` turns the counts into lists of equal length. The result is bounded, whatever the size
of the ledgers.
"""

from __future__ import annotations

from typing import Final

from . import chart_series
from .availability import attempts
from .event_location import shown
from .ledgers import Ledgers
from .results import OutageSeries

#: Lines of state and ping that reach the driver at most: charts, not archives.
LINES_MAX: Final = 20_000
_TAKEN: Final = "outcome in ('ok', 'duplicate')"
_STEPS: Final = {
    "c_primary": f"kind = 'send' and not by_broker and {_TAKEN}",
    "c_backlog": f"kind = 'divert' and {_TAKEN}",
    "b_primary": f"kind = 'send' and by_broker and not in_backlog and {_TAKEN} and coalesce(cause, 'app') <> 'syphon'",
    "b_backlog": f"kind = 'send' and by_broker and in_backlog and {_TAKEN}",
    "c_home": f"kind = 'move' and not by_broker and cause = 'syphon' and {_TAKEN}",
    "b_home": f"kind = 'send' and by_broker and not in_backlog and {_TAKEN} and cause = 'syphon'",
    "c_dead": "kind = 'dead-letter' and not by_broker and in_backlog and outcome = 'ok'",
    "b_dead": "kind = 'dead-letter' and by_broker and in_backlog and not is_dead and outcome = 'ok'",
}


def series(ledgers: Ledgers, *, step_s: float = 1.0) -> OutageSeries:
    """Return how the outages went, in steps of `step_s`; a long span makes the steps longer, so that there are at most
    `chart_series.STEPS_MAX`."""
    first, last = ledgers.span
    if first is None or last is None:
        return chart_series.empty(step_s)
    start, step, count = chart_series.frame(first, last, step_s)
    at = f"cast(floor((t - {start!r}) / {step!r}) as int)"
    sends, depth = _counts(ledgers, at, count)
    changes = (
        ledgers.normal.where("kind in ('state', 'ping') and not by_broker")
        .orderBy("t")
        .limit(LINES_MAX)
        .select("t", "kind", "series", "home", "place", "entity", "to_state", "outcome")
        .collect()
    )
    names = shown({(row["home"], row["place"]): row["entity"] for row in changes})
    states = [
        (row["t"], row["series"], names[row["home"], row["place"]], row["to_state"])
        for row in changes
        if row["kind"] == "state"
    ]
    return {
        "start": start,
        "step": step,
        "sends": sends,
        "backlog_depth": depth,
        "delay": [{"t": start + number * step, "p50": p50, "p99": p99} for number, p50, p99 in _delays(ledgers, at)],
        "states": chart_series.states(states, start),
        "pings": [
            {"t": row["t"], "entity": names[row["home"], row["place"]], "outcome": row["outcome"]}
            for row in changes
            if row["kind"] == "ping"
        ],
    }


def _counts(ledgers: Ledgers, at: str, count: int) -> tuple[dict[str, list[int]], list[int]]:
    """Return the sends of each step by route, and the depth of the backlog at its end. `at`: SQL of the step."""
    from pyspark.sql import functions as F

    counted = (
        ledgers.normal.where("kind in ('send', 'divert', 'move', 'dead-letter')")
        .groupBy(F.expr(at).alias("at"))
        .agg(*(F.expr(f"count_if({condition})").alias(name) for name, condition in _STEPS.items()))
        .collect()
    )
    refused = attempts(ledgers).where("raised").groupBy(F.expr(at).alias("at")).count().collect()
    columns = {name: chart_series.by_step(((row["at"], row[name]) for row in counted), count) for name in _STEPS}

    def either(better: str, other: str) -> list[int]:
        return chart_series.either(columns[better], columns[other])

    # A client's ledger and a broker's tell of the same sends: the clients' where there are any.
    sends = {
        "primary": either("c_primary", "b_primary"),
        "backlog": either("c_backlog", "b_backlog"),
        "refused": chart_series.by_step(((row["at"], row["count"]) for row in refused), count),
    }
    went = either("c_home", "b_home"), either("c_dead", "b_dead")
    return sends, chart_series.depth(either("b_backlog", "c_backlog"), *went)


def _delays(ledgers: Ledgers, at: str) -> list[tuple[int, float, float]]:
    """Return for each step with a receive the median and the 99th percentile of the time since the send."""
    from pyspark.sql import functions as F

    sent = f"kind in ('send', 'divert') and {_TAKEN} and coalesce(cause, 'app') <> 'syphon'"
    rows = (
        ledgers.normal.where(f"mid is not null and not in_backlog and ((kind = 'receive' and not is_dead) or ({sent}))")
        .groupBy("home", "place", "mid")
        .agg(
            F.min(F.expr(f"case when {sent} then t end")).alias("sent"),
            F.min(F.expr("case when kind = 'receive' then t end")).alias("t"),
        )
        .where("sent is not null and t is not null")
        .groupBy(F.expr(at).alias("at"))
        .agg(F.expr("percentile_approx(greatest(0d, t - sent), array(0.5, 0.99), 1000)").alias("delay"))
        .orderBy("at")
        .collect()
    )
    return [(row["at"], *row["delay"]) for row in rows]
