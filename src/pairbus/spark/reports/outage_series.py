"""How an outage went, second by second, for charts: sends by route, the backlog's depth, the delay, the states, pings.

Counts on Spark; `strips` turns the counts into rows of even length. Bounded, whatever the ledgers hold.
"""

from __future__ import annotations

from typing import Any, Final

from . import chart_series
from .availability import attempts
from .event_location import shown
from .ledgers import Ledgers

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


def series(ledgers: Ledgers, *, step_s: float = 1.0) -> dict[str, Any]:
    """Times are unix seconds; every list of numbers has one for each step from `start` on. A long span makes steps
    longer, so that there are at most `strips.STEPS_MAX`; `step` says how long they are."""
    from pyspark.sql import functions as F

    first, last = ledgers.span
    if first is None or last is None:
        return chart_series.empty(step_s)
    start, step, count = chart_series.frame(first, last, step_s)
    at = f"cast(floor((t - {start!r}) / {step!r}) as int)"
    normal = ledgers.normal
    counted = (
        normal.where("kind in ('send', 'divert', 'move', 'dead-letter')")
        .groupBy(F.expr(at).alias("at"))
        .agg(*(F.expr(f"count_if({condition})").alias(name) for name, condition in _STEPS.items()))
        .collect()
    )
    refused = attempts(ledgers).where("raised").groupBy(F.expr(at).alias("at")).count().collect()
    sent = f"kind in ('send', 'divert') and {_TAKEN} and coalesce(cause, 'app') <> 'syphon'"
    delays = (
        normal.where(f"mid is not null and not in_backlog and ((kind = 'receive' and not is_dead) or ({sent}))")
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
    changes = (
        normal.where("kind in ('state', 'ping') and not by_broker")
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
    columns = {name: chart_series.strip(((row["at"], row[name]) for row in counted), count) for name in _STEPS}
    return {
        "start": start,
        "step": step,
        "sends": {
            # A client's books and a broker's tell of the same sends: the clients' where there are any.
            "primary": chart_series.either(columns["c_primary"], columns["b_primary"]),
            "backlog": chart_series.either(columns["c_backlog"], columns["b_backlog"]),
            "refused": chart_series.strip(((row["at"], row["count"]) for row in refused), count),
        },
        "backlog_depth": chart_series.depth(
            chart_series.either(columns["b_backlog"], columns["c_backlog"]),
            chart_series.either(columns["c_home"], columns["b_home"]),
            chart_series.either(columns["c_dead"], columns["b_dead"]),
        ),
        "delay": [{"t": start + row["at"] * step, "p50": row["delay"][0], "p99": row["delay"][1]} for row in delays],
        "states": chart_series.states(states, start),
        "pings": [
            {"t": row["t"], "entity": names[row["home"], row["place"]], "outcome": row["outcome"]}
            for row in changes
            if row["kind"] == "ping"
        ],
    }
