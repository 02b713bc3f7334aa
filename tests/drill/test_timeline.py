from __future__ import annotations

from typing import Any

import pytest

from pairbus.drill.plan import DRILL_FAULTS, DrillPlan
from pairbus.drill.timeline import STATUS_S, Timeline, TimelineEntry, introduction


def timeline(**given: Any) -> Timeline:
    return Timeline(DrillPlan(**given), 1000.0)


def texts(lines: list[TimelineEntry]) -> list[str]:
    return [str(line) for line in lines]


def sent(t: float, **counts: float) -> dict[str, Any]:
    return {"t": t, "fact": "sent", "confirmed": 0, "diverted": 0, "raised": 0, "waited_s": 0.0, **counts}


def state(t: float, entity: str, before: str, after: str, cause: str) -> dict[str, Any]:
    return {"t": t, "fact": "state", "entity": entity, "from": before, "to": after, "cause": cause}


@pytest.fixture
def told() -> Timeline:
    return timeline()


def test_times_are_relative() -> None:
    told = timeline().heard(state(1012.34, "orders", "healthy", "failed over", "send failed"))
    assert texts(told) == ["  12.3 s  state   orders: healthy → failed over (send failed)"]


@pytest.mark.parametrize("fault", DRILL_FAULTS)
def test_every_outage_is_told_with_its_length(fault: str) -> None:
    told = timeline(fault=fault)
    assert "contoso " + DRILL_FAULTS[fault].begins in str(told.outage_began(1010.0)[0])
    assert str(told.outage_ended(1030.5)[0]).endswith("after 20.5 s")
    assert told.outage == (1010.0, 1030.5)


def test_the_backlog_is_what_was_diverted_less_what_was_moved(told: Timeline) -> None:
    told.heard(sent(1010.0, confirmed=700, diverted=300))
    assert (told.tally.depth, told.tally.deepest) == (300, 300)
    told.moved(1011.0, 250)
    told.heard(sent(1012.0, confirmed=800, diverted=310))
    assert (told.tally.depth, told.tally.deepest) == (60, 300)
    told.moved(1013.0, 320)
    assert told.tally.depth == 0, "never below nothing, whoever counts faster"


def test_a_status_comes_now_and_then(told: Timeline) -> None:
    assert told.heard(sent(1000.0 + STATUS_S / 2, confirmed=1)) == []
    (line,) = told.heard(sent(1000.0 + STATUS_S, confirmed=2, diverted=1))
    assert line.text == "sent 2 of 2,400 (1 to the backlog), failed 0, received 0, backlog 1"


def test_pings_are_told_together(told: Timeline) -> None:
    for entity in ("orders", "invoices"):
        assert told.heard({"t": 1001.0, "fact": "ping", "entity": entity, "ok": False}) == []
    told.heard({"t": 1001.5, "fact": "ping", "entity": "orders", "ok": True})
    lines = told.tick(1003.0)
    assert [line.text for line in lines if line.kind == "ping"] == ["2 unanswered, 1 answered"]
    assert [line for line in told.tick(1006.0) if line.kind == "ping"] == []


def test_the_first_message_on_each_route_is_measured(told: Timeline) -> None:
    assert told.heard({"t": 1001.0, "fact": "route", "entity": "orders", "route": "backlog"}) == []
    told.outage_began(1010.0)
    told.heard({"t": 1010.5, "fact": "route", "entity": "orders", "route": "backlog"})
    told.heard({"t": 1011.5, "fact": "route", "entity": "orders", "route": "backlog"})
    assert told.diverted_after == {"orders": 0.5}
    assert told.heard({"t": 1012.0, "fact": "route", "entity": "orders", "route": "primary"}) == []
    told.outage_ended(1030.0)
    told.heard({"t": 1031.25, "fact": "route", "entity": "orders", "route": "primary"})
    assert told.returned_after == {"orders": 1.25}


def test_healthy_is_when_all_are(told: Timeline) -> None:
    assert told.is_healthy
    told.heard(state(1001.0, "news", "healthy", "failed over", "send failed"))
    assert not told.is_healthy
    told.heard(state(1002.0, "news", "failed over", "healthy", "ping succeeded"))
    assert told.is_healthy


def test_what_failed_is_remembered_and_the_first_of_an_entity_told(told: Timeline) -> None:
    fact = {"t": 1001.0, "fact": "raised", "entity": "orders", "ids": ["orders-7"], "error": "ServiceBusError"}
    (line,) = told.heard(fact)
    assert line.text == "orders: ServiceBusError for the caller that sent orders-7"
    assert str(line).split()[2] == "failed"
    assert line.as_json()["what"] == "raised", "as in earlier versions"
    assert told.heard({**fact, "ids": ["orders-8"]}) == []
    assert told.raised == {"orders": ["orders-7", "orders-8"]}


def test_the_longest_wait_is_kept(told: Timeline) -> None:
    told.heard(sent(1001.0, waited_s=2.5))
    told.heard(sent(1001.5, waited_s=1.0))
    assert told.longest_wait_s == 2.5


def test_a_fact_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError, match="'sung' is no fact"):
        timeline().heard({"t": 1001.0, "fact": "sung"})


def test_the_introduction_says_that_intervals_are_short() -> None:
    what, how = introduction(DrillPlan())
    assert "2,400 messages" in what and "orders, invoices, shipments and news" in what
    assert "failover_interval 0 s (60), ping_primary_interval 1 s (60)" in how


def test_a_line_as_json() -> None:
    assert TimelineEntry(1.23456, "state", "x").as_json() == {
        "kind": "timeline",
        "t": 1.235,
        "what": "state",
        "text": "x",
    }
