"""Decides from the ledgers' reports whether a drill has passed, and what its findings are.

It also decides the wording and which figures go where. The reports are those of `pairbus.spark.reports.results`, the
times are unix seconds. What can't be known is reported as unknown, and a drill with unknown messages has not passed.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pairbus.cost.estimate import Estimate, estimate
from pairbus.spark.reports.results import (
    AuditSummary,
    AvailabilitySummary,
    CauseFigures,
    CostFigures,
    CostSummary,
    OutageSeries,
    counts_of,
    in_words,
)

from .chart import Bar, Delay, Frame, TimeMark, seconds
from .findings import Figure, Findings, Table, Tile
from .plan import BODY_BYTES, PRIMARY, DrillPlan
from .timeline import Timeline

IDS_SHOWN: Final = 20
#: What a message of the drill's weighs beside its body, encoded.
ENVELOPE_BYTES: Final = 120
#: The audit's counts, in the order of the report, and what they mean.
MEANINGS: Final[Mapping[str, str]] = {
    "sent": "messages that a sender handed over",
    "confirmed": "of these, confirmed to their sender by the primary or by the backlog",
    "diverted": "of these, confirmed by a backlog queue",
    "carried_home": "of these, sent to the primary by the syphon and confirmed there",
    "received": "messages that a receiver got",
    "still_there": "in a queue at the end",
    "expired": "past their time to live",
    "dead_lettered": "in a dead-letter queue",
    "lost": "confirmed, and nowhere to be found",
    "doubled": "received as a second copy",
    "late": "received more than a minute after they were sent",
    "out_of_order": "received after a message that was sent later",
    "unknown": "messages of which the ledgers can't tell",
    "no_id": "messages without an id",
    "redelivered": "delivered again before they were settled: the outage caught them in a receiver's hands",
}
#: Terms of estimate and report that are laid side by side: those that a plan foresees.
SIDE_BY_SIDE: Final = (
    "healthy-sends", "healthy-receives", "backlog-sends", "backlog-receives", "home-sends", "home-receives", "pings",
    "idle-polls",
)  # fmt: skip
#: Of these the calculator gives a bound.
AT_MOST: Final = ("pings",)
_STYLES: Final = ("app", "ping", "syphon", "manage")


@dataclass(frozen=True, slots=True)
class Reports:
    """What Spark made of the ledgers."""

    audit: AuditSummary
    availability: AvailabilitySummary
    cost: CostSummary
    series: OutageSeries


@dataclass(frozen=True, slots=True)
class Comparison:
    """One term, before and after the fact."""

    term: str
    before: int
    after: int
    #: How far apart they may be: what nobody knows before the fact, such as how soon a ping finds the primary.
    allowed: int

    @property
    def agrees(self) -> bool:
        if self.term in AT_MOST:
            return self.after <= self.before + self.allowed
        return abs(self.after - self.before) <= self.allowed


def foreseen(plan: DrillPlan) -> Estimate:
    """What the calculator says of the plan, as if `pairbus cost estimate` had been asked before."""
    return estimate(
        queues=plan.backlog_queues,
        syphons=1,
        entities=plan.entity_count,
        clients=1,
        rate=plan.rate_per_s,
        size=sum(BODY_BYTES) // 2 + ENVELOPE_BYTES,
        outage_s=plan.detour_s,
        ping_interval_s=plan.pairing["ping_primary_interval"],
        failover_interval_s=plan.pairing["failover_interval"],
        hours=plan.traffic_s / 3600,
    )


def compared(plan: DrillPlan, before: Estimate, cost: CostSummary) -> list[Comparison]:
    """How soon a ping finds the primary again nobody knows before: so many messages more may take the detour."""
    slack = round(plan.rate_per_s * (plan.ping_s + plan.drill_fault.notice_s)) + plan.entity_count
    allowed = {
        "pings": 3 * plan.entity_count,
        # A link that ends while it waits is an empty receive, and every drain ends its links.
        "idle-polls": 4 * plan.backlog_queues,
    }
    terms = cost["terms"]
    return [
        Comparison(name, before.term(name).operations, _operations(terms.get(name)), allowed.get(name, slack))
        for name in SIDE_BY_SIDE
    ]


def _operations(figures: CostFigures | None) -> int:
    return figures["operations"] if figures else 0


def judge(plan: DrillPlan, timeline: Timeline, reports: Reports, ended: float, drain_s: float | None) -> Findings:
    audit = reports.audit
    lost, unknown = audit["lost"], audit["unknown"]
    raised = timeline.tally.raised
    is_good = lost == 0 and not unknown and not raised
    terms = compared(plan, foreseen(plan), reports.cost)
    agree = all(each.agrees for each in terms)
    counts = counts_of(audit)
    outage = _outage(timeline)
    shown = _as_json(
        plan, timeline, reports, terms, is_good=is_good, seconds_taken=ended - timeline.began, drain_s=drain_s
    )
    return Findings(
        is_good=is_good,
        headline=_headline(audit, raised),
        remarks=_remarks(plan, timeline, audit),
        tiles=_tiles(timeline, audit, ended - timeline.began, drain_s),
        frame=Frame(_end(timeline, reports.series), outage),
        states={
            name: [(each["t"] - timeline.began, each["state"]) for each in reports.series["states"].get(name, ())]
            for name in [entity.name for entity in plan.entities]
        },
        pings=_pings(timeline, reports.series),
        step_s=reports.series["step"],
        sends=_shifted(timeline, reports.series, reports.series["sends"]),
        depths=_shifted(timeline, reports.series, {"depth": reports.series["backlog_depth"]})["depth"],
        moments=[TimeMark(at, "syphon") for at in _times(timeline, "syphon", "drains")],
        delays=[
            Delay(each["t"] - timeline.began, each["p50"], each["p99"])
            for each in reports.series["delay"]
            if each["p50"] is not None and each["p99"] is not None
        ],
        cost=_cost_bars(reports.cost),
        cost_table=_cost_table(reports.cost),
        estimate=_estimate_table(terms),
        estimate_remark=_estimate_remark(reports.cost, agree=agree),
        audit=[Figure(key, in_words(key), counts[key], text) for key, text in MEANINGS.items()],
        audit_by_entity=_audit_by_entity(audit),
        availability=_availability(plan, timeline, reports.availability),
        timeline=[str(line) for line in timeline.lines],
        settings=_settings(plan),
        notes=[*audit["notes"], *reports.cost["notes"]],
        held=f"{datetime.fromtimestamp(timeline.began, UTC):%Y-%m-%d %H:%M} UTC · {plan.fault} for {plan.outage_s:g} s",
        as_json=shown,
    )


def _as_json(
    plan: DrillPlan, timeline: Timeline, reports: Reports, terms: Sequence[Comparison], *, is_good: bool,
    seconds_taken: float, drain_s: float | None,
) -> dict[str, Any]:  # fmt: skip
    audit = reports.audit
    return {
        "kind": "result",
        "ok": is_good,
        "lost": audit["lost"],
        "lost_ids": audit["ids"].get("lost", []),
        "doubled": audit["doubled"],
        "unknown": audit["unknown"],
        "raised": timeline.tally.raised,
        "seconds": round(seconds_taken, 1),
        "fail_over_s": _worst(timeline.diverted_after),
        "return_s": _worst(timeline.returned_after),
        "drain_s": None if drain_s is None else round(drain_s, 1),
        "longest_wait_s": round(timeline.longest_wait_s, 3),
        "plan": plan.as_json(),
        "audit": dict(audit),
        "availability": dict(reports.availability),
        "cost": dict(reports.cost),
        "estimate": [
            {"term": each.term, "estimate": each.before, "report": each.after, "agrees": each.agrees} for each in terms
        ],
    }


def _worst(times: Mapping[str, float]) -> float | None:
    return round(max(times.values()), 3) if times else None


# -- words


def _headline(audit: AuditSummary, raised: int) -> str:
    if audit["lost"]:
        return f"FAILED: lost {audit['lost']:,} of {audit['confirmed']:,} messages"
    if audit["unknown"]:
        return f"NOT PROVED: lost 0, but of {audit['unknown']:,} messages the ledgers can't tell"
    if raised:
        return f"FAILED: lost 0, but {_failed(raised)}"
    return f"PASSED: lost 0 of {audit['confirmed']:,} messages"


def _remarks(plan: DrillPlan, timeline: Timeline, audit: AuditSummary) -> list[str]:
    assert timeline.outage is not None
    began, ended = timeline.outage
    away = (ended or began) - began
    found = [
        f"{PRIMARY} {plan.drill_fault.begins}: {away:.1f} s. {audit['diverted']:,} messages took the detour over the "
        f"backlog, {audit['carried_home']:,} came home; {_failed(timeline.tally.raised)}; "
        f"duplicated {audit['doubled']:,}."
    ]
    for finding, count in (("lost", audit["lost"]), ("unknown", audit["unknown"])):
        ids = audit["ids"].get(finding, [])
        if count and ids:
            more = f" and {count - IDS_SHOWN:,} more" if count > IDS_SHOWN else ""
            found.append(f"{finding.capitalize()}: {', '.join(ids[:IDS_SHOWN])}{more}.")
    return found


def _failed(count: int) -> str:
    if count == 1:
        return "1 send failed for its caller"
    return f"{count:,} sends failed for their callers" if count else "no send failed for its caller"


def _tiles(timeline: Timeline, audit: AuditSummary, taken_s: float, drain_s: float | None) -> list[Tile]:
    over, back = _worst(timeline.diverted_after), _worst(timeline.returned_after)
    drained = "-" if drain_s is None else seconds(drain_s)
    return [
        Tile("lost", f"{audit['lost']:,}", "messages lost", is_good=not audit["lost"]),
        Tile("doubled", f"{audit['doubled']:,}", "messages duplicated", is_good=not audit["doubled"]),
        Tile(
            "raised", f"{timeline.tally.raised:,}", "sends that failed for their callers",
            is_good=not timeline.tally.raised,
        ),
        Tile("confirmed", f"{audit['confirmed']:,}", "messages sent and confirmed"),
        Tile("fail-over", _seconds(over), "from the outage until every entity had a message in the backlog"),
        Tile("return", _seconds(back), "from the primary's return until every entity had sent to it"),
        Tile("drain", drained, f"for the syphon to carry home {timeline.tally.moved:,} messages"),
        Tile("duration", seconds(taken_s), "from start to verdict"),
    ]  # fmt: skip


# -- over time


def _outage(timeline: Timeline) -> tuple[float, float] | None:
    if timeline.outage is None or timeline.outage[1] is None:
        return None
    return timeline.outage[0] - timeline.began, timeline.outage[1] - timeline.began


def _end(timeline: Timeline, series: OutageSeries) -> float:
    """Of the charts: where the last thing happened."""
    lengths = [len(values) for values in (*series["sends"].values(), series["backlog_depth"])]
    last = _start(series) - timeline.began + max(lengths, default=0) * series["step"]
    return max([last, *(line.t for line in timeline.lines if line.kind in ("RETURN", "state"))])


def _shifted(timeline: Timeline, series: OutageSeries, values: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """From the first event of the ledgers to the drill's beginning: whole steps of nothing in front."""
    lead = max(0, round((_start(series) - timeline.began) / series["step"]))
    return {name: [0.0] * lead + [float(each) for each in known] for name, known in values.items()}


def _start(series: OutageSeries) -> float:
    assert series["start"] is not None, "a drill's ledgers hold events"
    return series["start"]


def _pings(timeline: Timeline, series: OutageSeries) -> dict[str, list[tuple[float, bool]]]:
    found: dict[str, list[tuple[float, bool]]] = {}
    for each in series["pings"]:
        found.setdefault(each["entity"], []).append((each["t"] - timeline.began, each["outcome"] == "ok"))
    return found


def _times(timeline: Timeline, kind: str, word: str) -> list[float]:
    return [line.t for line in timeline.lines if line.kind == kind and word in line.text][:1]


# -- cost


def _billed(cost: CostSummary) -> list[CauseFigures]:
    """Return the figures of the brokers' ledgers, which is what is billed."""
    return [row for row in cost["by_cause"] if row["book"] == "broker"]


def _cost_bars(cost: CostSummary) -> list[Bar]:
    sums: dict[str, list[float]] = {}
    for row in _billed(cost):
        entry = sums.setdefault(row["cause"], [0.0, 0.0])
        entry[0] += row["operations"]
        entry[1] += row["money"]
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    return [
        Bar(
            cause,
            count,
            f"{count:,.0f} operations, {money:.6f} {cost['currency']}",
            cause if cause in _STYLES else "other",
        )
        for cause, (count, money) in ordered
    ]


def _cost_table(cost: CostSummary) -> Table:
    rows = [
        (
            row["cause"], row["operation"], f"{row['operations']:,}", f"{row['units']:,}", f"{row['bytes_in']:,}",
            f"{row['bytes_out']:,}", f"{row['money']:.6f}",
        )
        for row in _billed(cost)
    ]  # fmt: skip
    heads = ("cause", "operation", "operations", "units of 64 KB", "bytes in", "bytes out", cost["currency"])
    return Table(heads, rows, 2)


def _estimate_table(terms: Sequence[Comparison]) -> Table:
    rows = [
        (
            each.term.replace("-", " "),
            f"{'at most ' if each.term in AT_MOST else ''}{each.before:,}",
            f"{each.after:,}",
            f"{each.after - each.before:+,}",
            f"{each.allowed:,}",
            "yes" if each.agrees else "NO",
        )
        for each in terms
    ]
    return Table(("operations", "estimate", "report", "difference", "allowed", "agree"), rows)


def _estimate_remark(cost: CostSummary, *, agree: bool) -> str:
    each = cost["detour"]["operations_per_message"]
    took = f" A message on the detour took {each:.2f} operations." if each is not None else ""
    verdict = "They agree" if agree else "They do NOT agree"
    return (
        f"What the calculator said of the plan, and what the brokers metered. {verdict}, within what nobody can know "
        f"before: how soon a failure is met and a ping succeeds.{took} Prices: {cost['prices']}."
    )


# -- tables


def _audit_by_entity(audit: AuditSummary) -> Table:
    keys = ("confirmed", "diverted", "carried_home", "received", "lost", "doubled", "late", "out_of_order", "unknown")
    rows = [(name, *(f"{counts_of(counts)[key]:,}" for key in keys)) for name, counts in audit["entities"].items()]
    return Table(("entity", *map(in_words, keys)), rows)


def _availability(plan: DrillPlan, timeline: Timeline, availability: AvailabilitySummary) -> Table:
    rows = []
    for entity in plan.entities:
        known = availability["entities"].get(entity.name)
        rows.append(
            (
                entity.name,
                _percent(known["availability"] if known else None),
                _percent(known["primary_availability"] if known else None),
                f"{known['refused']:,}" if known else "unknown",
                _seconds(known["outage_s"] if known else None),
                _seconds(timeline.diverted_after.get(entity.name)),
                _seconds(timeline.returned_after.get(entity.name)),
            )
        )
    heads = ("entity", "could send", "could send to the primary", "failed for callers", "away from the primary",
             "first in the backlog after", "first at the primary again after")  # fmt: skip
    return Table(heads, rows)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} %"


def _seconds(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _settings(plan: DrillPlan) -> list[tuple[str, str]]:
    shown = plan.as_json()
    pairing = shown.pop("pairing")
    flat = {**shown, **pairing}
    return [(name, ", ".join(value) if isinstance(value, list) else str(value)) for name, value in flat.items()]
