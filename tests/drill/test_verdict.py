from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pairbus.drill.findings import Findings
from pairbus.drill.page import page
from pairbus.drill.plan import DrillPlan
from pairbus.drill.verdict import MEANINGS, Comparison, compared, foreseen, judge
from pairbus.spark.reports.audit_rules import COUNTS
from tests.drill import sample

PLAN = DrillPlan()


def found(raised: int = 0, **counts: Any) -> Findings:
    told = sample.timeline(PLAN)
    told.tally.raised = raised
    return judge(PLAN, told, sample.reports(PLAN, **counts), sample.BEGAN + 81, 3.9)


@pytest.mark.parametrize(
    ("raised", "counts", "is_good", "headline"),
    [
        (0, {}, True, "PASSED: lost 0 of 2,400 messages"),
        (0, {"doubled": 3}, True, "PASSED: lost 0 of 2,400 messages"),
        (0, {"lost": 2, "ids": {"lost": ["orders-7", "news-9"]}}, False, "FAILED: lost 2 of 2,400 messages"),
        (0, {"unknown": 5}, False, "NOT PROVED: lost 0, but of 5 messages the ledgers can't tell"),
        (4, {}, False, "FAILED: lost 0, but 4 sends failed for their callers"),
        (1, {}, False, "FAILED: lost 0, but 1 send failed for its caller"),
        (4, {"lost": 1, "unknown": 1}, False, "FAILED: lost 1 of 2,400 messages"),
    ],
)
def test_the_verdict(raised: int, counts: dict[str, Any], is_good: bool, headline: str) -> None:
    findings = found(raised, **counts)
    assert (findings.is_good, findings.headline) == (is_good, headline)
    assert findings.as_json["ok"] is is_good
    assert findings.as_json["lost"] == counts.get("lost", 0)


def test_what_was_lost_is_named() -> None:
    ids = [f"orders-{number}" for number in range(100)]
    findings = found(lost=120, ids={"lost": ids})
    assert "Lost: orders-0, orders-1," in findings.remarks[1]
    assert findings.remarks[1].endswith("orders-19 and 100 more.")
    assert findings.as_json["lost_ids"] == ids


def test_the_times_that_matter() -> None:
    shown = found().as_json
    assert (shown["fail_over_s"], shown["return_s"], shown["drain_s"]) == (1.5, 1.25, 3.9)
    assert (shown["seconds"], shown["longest_wait_s"]) == (81.0, 1.5)


def test_charts_count_from_the_drill_s_beginning() -> None:
    findings = found()
    assert findings.frame.outage == (14.0, 34.0)
    assert findings.sends["primary"] == [0.0, 0.0, 0.0, 50.0, 60.0], "three seconds before the first event"
    assert findings.states["orders"] == [(15.0, "failed over"), (35.0, "healthy")]
    assert findings.states["news"] == []
    assert findings.pings == {"orders": [(16.0, False), (35.0, True)]}
    assert [each.t for each in findings.delays] == [4.0], "a step without a receive has no delay"
    assert [each.t for each in findings.moments] == [36.0]


def test_the_bill_is_the_brokers() -> None:
    bars = found().cost
    assert [(bar.label, bar.value) for bar in bars] == [("app", 4803), ("syphon", 1140)]


def test_p53_the_calculator_is_asked_about_the_plan() -> None:
    before = foreseen(PLAN)
    assert before.term("backlog-sends").operations == round(PLAN.rate_per_s * PLAN.outage_s)
    assert before.term("healthy-sends").operations + before.term("backlog-sends").operations == PLAN.messages
    assert before.term("pings").operations == PLAN.entity_count * round(PLAN.outage_s / PLAN.ping_s)


def test_p53_estimate_and_report_agree_and_are_seen_not_to() -> None:
    good = sample.reports(PLAN)
    assert all(each.agrees for each in compared(PLAN, foreseen(PLAN), good.cost))
    doubled = {name: {"operations": 2 * each["operations"]} for name, each in good.cost["terms"].items()}
    bad = replace(good, cost={**good.cost, "terms": doubled})
    terms = {each.term: each.agrees for each in compared(PLAN, foreseen(PLAN), bad.cost)}
    assert not terms["backlog-sends"] and not terms["healthy-sends"]
    findings = judge(PLAN, sample.timeline(PLAN), bad, sample.BEGAN + 81, 3.9)
    assert "They do NOT agree" in findings.estimate_remark


@pytest.mark.parametrize(
    ("term", "before", "after", "agrees"),
    [
        ("backlog-sends", 100, 110, True),
        ("backlog-sends", 100, 111, False),
        ("backlog-sends", 100, 89, False),
        ("pings", 80, 4, True),
        ("pings", 80, 91, False),
    ],
)
def test_a_bound_binds_on_one_side(term: str, before: int, after: int, agrees: bool) -> None:
    assert Comparison(term, before, after, 10).agrees is agrees


def test_every_count_of_the_audit_is_in_the_report() -> None:
    assert tuple(MEANINGS) == COUNTS


def test_the_findings_make_a_page_and_json() -> None:
    findings = found()
    text = page(findings)
    for key in MEANINGS:
        assert f'data-figure="{key}"' in text
    json.dumps(findings.as_json)
