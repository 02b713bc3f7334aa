"""A drill that never was, with figures that one could have had: for tests of the charts and the page."""

from __future__ import annotations

import math
from typing import Any

from pairbus.drill.chart import Bar, Delay, Frame, TimeMark
from pairbus.drill.findings import Figure, Findings, Table, Tile
from pairbus.drill.plan import DrillPlan
from pairbus.drill.timeline import Timeline
from pairbus.drill.verdict import MEANINGS, Reports

ENTITIES = ("orders", "invoices", "shipments", "news")
OUTAGE = (14.0, 34.2)


def findings(*, lost: int = 0) -> Findings:
    sends = {
        "primary": [55 + 6 * math.sin(i) if not 14 <= i < 36 and i < 46 else 0 for i in range(60)],
        "backlog": [57 + 5 * math.cos(i) if 16 <= i < 36 else 0 for i in range(60)],
        "refused": [3 if i == 15 else 0 for i in range(60)],
    }
    depths = [0 if i < 16 else (i - 16) * 57 if i < 36 else max(0, 1140 - (i - 37) * 500) for i in range(60)]
    delays = [Delay(i, 0.006 + 0.001 * (i % 3), 0.03 + 0.01 * (i % 4)) for i in range(3, 14)]
    delays += [Delay(i, 9.5 if i < 40 else 0.007, 21.5 if i < 40 else 0.04) for i in range(36, 47)]
    return Findings(
        is_good=not lost,
        headline="PASSED: 2,400 messages, lost 0" if not lost else f"FAILED: lost {lost}",
        remarks=["The primary refused connections for 20.2 s; 1,140 messages took the detour and came home."],
        tiles=[
            Tile("lost", str(lost), "lost", is_good=not lost),
            Tile("doubled", "0", "messages duplicated"),
            Tile("raised", "0", "sends that failed for callers"),
            Tile("fail-over", "2.1 s", "to fail over, at worst"),
            Tile("return", "1.4 s", "to return, at worst"),
            Tile("drain", "3.9 s", "to drain 1,140 messages on Spark"),
            Tile("duration", "81 s", "from start to verdict"),
        ],
        frame=Frame(60.0, OUTAGE),
        states={name: [(15.5 + i / 4, "failed over"), (35.6 + i / 5, "healthy")] for i, name in enumerate(ENTITIES)},
        pings={
            name: [*((16.5 + second + i / 4, False) for second in range(18)), (35.6 + i / 5, True)]
            for i, name in enumerate(ENTITIES)
        },
        step_s=1.0,
        sends=sends,
        depths=depths,
        moments=[TimeMark(36.4, "syphon")],
        delays=delays,
        cost=[
            Bar("app", 5940, "5,940 operations, 0.059 USD", "app"),
            Bar("syphon", 2290, "2,290 operations, 0.023 USD", "syphon"),
            Bar("ping", 4, "4 operations, 0.000 USD", "ping"),
        ],
        cost_table=Table(("cause", "operations", "money"), [("app", "5,940", "0.059")]),
        estimate=Table(("term", "estimate", "report", "difference"), [("backlog-sends", "1,143", "1,140", "-0.3 %")]),
        estimate_remark="They agree.",
        audit=[
            Figure("sent", "sent", 2400, "messages that senders handed over"),
            Figure("lost", "lost", lost, "confirmed, and nowhere to be found"),
            Figure("unknown", "unknown", None, "what no ledger can tell"),
        ],
        audit_by_entity=Table(("entity", "sent", "lost"), [(name, "600", "0") for name in ENTITIES]),
        availability=Table(("entity", "availability"), [(name, "96.5 %") for name in ENTITIES]),
        timeline=["   0.9 s  start   two brokers", "  14.0 s  OUTAGE  contoso refuses connections"],
        settings=[("fault", "unreachable")],
        notes=[],
        held="2026-11-16 02:40 UTC, 81 s",
        as_json={"lost": lost},
    )


BEGAN = 1_000.0


def timeline(plan: DrillPlan) -> Timeline:
    """An outage from second 14 to second 34, and everything as it should be."""
    told = Timeline(plan, BEGAN)
    told.outage_began(BEGAN + 14)
    for entity in plan.entities:
        told.heard({"t": BEGAN + 15.5, "fact": "route", "entity": entity.name, "route": "backlog"})
    told.outage_ended(BEGAN + 34)
    for entity in plan.entities:
        told.heard({"t": BEGAN + 35.25, "fact": "route", "entity": entity.name, "route": "primary"})
    told.say(BEGAN + 36, "syphon", "spark drains the backlog, 1,140 messages")
    told.heard({"t": BEGAN + 45, "fact": "sent", "confirmed": 2400, "diverted": 1140, "raised": 0, "waited_s": 1.5})
    told.moved(BEGAN + 46, 1140)
    return told


def reports(plan: DrillPlan, **counts: Any) -> Reports:
    """As Spark would make them; `counts` change the audit's."""
    names = [each.name for each in plan.entities]
    audit: Any = {
        **dict.fromkeys(MEANINGS, 0),
        "sent": 2400,
        "confirmed": 2400,
        "diverted": 1140,
        "carried_home": 1140,
        "received": 2400,
        "ids": {"lost": [], "unknown": []},
        "notes": [],
        **counts,
    }
    audit["entities"] = {name: {**dict.fromkeys(MEANINGS, 0), "confirmed": 600} for name in names}
    terms = {
        "healthy-sends": 1260, "healthy-receives": 1262, "backlog-sends": 1140, "backlog-receives": 1140,
        "home-sends": 1140, "home-receives": 1141, "pings": 4,
    }  # fmt: skip
    figures = {"units": 10, "bytes_in": 1000, "bytes_out": 0, "money": 0.001}
    cost: Any = {
        "currency": "USD",
        "prices": "example prices",
        "terms": {name: {"operations": count} for name, count in terms.items()},
        "by_cause": [
            {"book": "broker", "cause": "app", "operation": "send", "operations": 2400, **figures},
            {"book": "broker", "cause": "app", "operation": "receive", "operations": 2403, **figures},
            {"book": "broker", "cause": "syphon", "operation": "send", "operations": 1140, **figures},
            {"book": "clients", "cause": "app", "operation": "send", "operations": 9999, **figures},
        ],
        "detour": {"operations_per_message": 4.0},
        "notes": [],
    }
    series: Any = {
        "start": BEGAN + 3,
        "step": 1.0,
        "sends": {"primary": [50.0, 60.0], "backlog": [0.0, 1.0], "refused": [0.0, 0.0]},
        "backlog_depth": [0, 1],
        "delay": [{"t": BEGAN + 4, "p50": 0.005, "p99": 0.05}, {"t": BEGAN + 5, "p50": None, "p99": None}],
        "states": {"orders": [{"t": BEGAN + 15, "state": "failed over"}, {"t": BEGAN + 35, "state": "healthy"}]},
        "pings": [{"t": BEGAN + 16, "entity": "orders", "outcome": "amqp:socket-error"},
                  {"t": BEGAN + 35, "entity": "orders", "outcome": "ok"}],
    }  # fmt: skip
    seen = {"availability": 100.0, "primary_availability": 72.5, "refused": 0, "outage_s": 20.5}
    availability: Any = {"entities": dict.fromkeys(names, seen), "refused": 0}
    return Reports(audit, availability, cost, series)
