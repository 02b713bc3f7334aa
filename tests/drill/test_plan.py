from __future__ import annotations

from typing import Any

import pytest

from pairbus.broker.control.faults import KINDS, Fault
from pairbus.drill.plan import DRILL_FAULTS, ENTITIES, MESSAGES_MAX, NOT_SENDS, QUEUES, DrillPlan, InvalidDrill, listed


def test_the_default_has_queues_and_a_topic() -> None:
    plan = DrillPlan()
    assert [each.name for each in plan.entities] == ["orders", "invoices", "shipments", "news"]
    assert [each.name for each in plan.entities if each.is_topic] == ["news"]
    assert plan.entities[-1].source == "news/Subscriptions/all"
    assert len(plan.entities) == ENTITIES


@pytest.mark.parametrize("count", [1, 2, 4, len(QUEUES) + 1])
def test_as_many_entities_as_were_asked_for(count: int) -> None:
    names = [each.name for each in DrillPlan(entity_count=count).entities]
    assert len(names) == len(set(names)) == count


@pytest.mark.parametrize(("messages", "entities"), [(4, 4), (7, 4), (2_400, 4), (101, 10)])
def test_the_shares_are_all_there_is(messages: int, entities: int) -> None:
    plan = DrillPlan(messages, entity_count=entities)
    shares = [plan.share(index) for index in range(entities)]
    assert sum(shares) == messages
    assert max(shares) - min(shares) <= 1


def test_many_messages_go_in_lists() -> None:
    assert DrillPlan(2_400).list_size == 1
    assert DrillPlan(100_000).list_size > 10


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"messages": 0}, "0 messages are out of bounds: at least one for each of the 4 entities"),
        ({"messages": MESSAGES_MAX + 1}, "at most 1,000,000"),
        ({"outage_s": 0.5}, "an outage of 0.5 s is out of bounds: 1 to 3600 seconds"),
        ({"outage_s": float("nan")}, "an outage of nan s is out of bounds"),
        ({"entity_count": 0}, "0 entities are out of bounds: 1 to 10"),
        ({"entity_count": 11}, "11 entities are out of bounds: 1 to 10"),
        ({"fault": "no-receive"}, "the fault no-receive leaves sends alone, so nothing would fail over; take one of"),
        ({"fault": "crash-node", "outage_s": 301}, "crash-node lasts 300 seconds at most, not 301"),
        ({"fault": "flood"}, "there is no fault 'flood' for a drill; the kinds are unreachable, black-hole"),
    ],
)
def test_what_can_t_be_held_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDrill) as raised:
        DrillPlan(**given)
    assert said in str(raised.value)


def test_every_fault_of_the_broker_s_is_offered_or_ruled_out() -> None:
    assert set(KINDS) | {"kill"} == {fault.kind or name for name, fault in DRILL_FAULTS.items()} | set(NOT_SENDS)


def test_p47_p49_p50_what_the_broker_is_asked_for_makes_a_fault() -> None:
    for name, fault in DRILL_FAULTS.items():
        if name != "kill":
            Fault(fault.kind or name, **fault.settings)  # type: ignore[arg-type]


def test_p49_a_crash_sends_only_what_it_hits_on_the_detour() -> None:
    assert DrillPlan(outage_s=20).detour_s == 20
    assert DrillPlan(outage_s=20, fault="crash-entity").detour_s == 2.5  # one of four, for half of the time
    assert DrillPlan(outage_s=20, fault="crash-node").detour_s == 5  # orders and shipments
    assert DrillPlan(outage_s=20, fault="crash-node", entity_count=1).detour_s == 10


def test_p24_busy_counts_only_where_the_drill_is_about_it() -> None:
    assert "busy_failover_after" in DrillPlan(fault="throttle").pairing
    assert "busy_failover_after" in DrillPlan(fault="dependency").pairing
    assert "busy_failover_after" not in DrillPlan().pairing


def test_names_are_listed_as_a_person_does() -> None:
    assert listed(["orders"]) == "orders"
    assert listed(["orders", "invoices", "news"]) == "orders, invoices and news"
