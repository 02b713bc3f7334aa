"""The calculator: exact figures of the paragraphs, then what holds for every scenario."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusMessage
from hypothesis import given
from hypothesis import strategies as st

from pairbus.billing import UNIT_BYTES
from pairbus.cost import EXAMPLE, Scenario, estimate
from pairbus.cost.estimate import (
    ALIAS_BYTES,
    DETOUR_OPERATIONS,
    OUTAGE_TERMS,
    PING_BYTES,
    QUEUE_BYTES,
    InvalidScenario,
)
from pairbus.pairing.backlog import diversion
from pairbus.pairing.backlog.aliases import divert_encoded
from pairbus.pairing.backlog.backlog_queues import QUEUE_PROPERTIES
from pairbus.pairing.events import SendPing
from pairbus.pairing.routing.failover import Failover
from pairbus.pairing.routing.ping import ping
from pairbus.syphon.backlog_reader import POLL_S


def operations(name: str, **scenario: Any) -> int:
    return estimate(**scenario).term(name).operations


# -- P37


@pytest.mark.parametrize(("hours", "polls"), [(1, 40), (24, 960), (30 * 24, 28_800)])
def test_p37_ten_idle_queues(hours: float, polls: int) -> None:
    assert operations("idle-polls", hours=hours, outage_s=0) == polls
    assert operations("idle-polls", hours=hours, outage_s=0, syphons=3) == 3 * polls
    assert operations("idle-polls", hours=hours, outage_s=0, queues=5) == polls / 2


def test_p37_the_rate_of_polls_is_the_syphons() -> None:
    assert operations("idle-polls", hours=1, outage_s=0, queues=1) == 3600 / POLL_S


def test_p37_an_idle_pair_costs_its_polls_and_nothing_else() -> None:
    made = estimate(rate=0, outage_s=0, hours=24)
    assert made.operations == made.units == 960
    assert made.bytes == made.backlog_bytes == 0


# -- P52


def test_p52_a_diverted_message_costs_four_operations() -> None:
    made = estimate(rate=10, outage_s=3600)
    detour = [made.term(name) for name in OUTAGE_TERMS if name != "pings"]
    assert [term.operations for term in detour] == [made.diverted] * DETOUR_OPERATIONS
    assert made.diverted == 36_000


@pytest.mark.parametrize(
    ("size", "units"),  # send to the backlog, receive from it, send to the primary, receive from there
    [
        (1, (1, 1, 1, 1)),
        (UNIT_BYTES - 260, (1, 1, 1, 1)),
        (UNIT_BYTES - 100, (1, 2, 1, 2)),  # the aliases just fit, the broker's annotations do not
        (UNIT_BYTES, (2, 2, 1, 2)),
        (UNIT_BYTES + 1, (2, 2, 2, 2)),
        (3 * UNIT_BYTES, (4, 4, 3, 4)),
    ],
)
def test_p52_each_is_billed_in_units_of_64_kb_with_what_it_carries(size: int, units: tuple[int, ...]) -> None:
    made = estimate(rate=1, size=size)
    assert tuple(made.term(name).units // made.diverted for name in OUTAGE_TERMS if name != "pings") == units


def test_p52_bandwidth_is_charged_at_each() -> None:
    free = dataclasses.replace(
        EXAMPLE, tiers=(dataclasses.replace(EXAMPLE.tiers[-1], per_million=0.0),), base_per_month=0.0,
        primary_in_per_gb=1.0, primary_out_per_gb=2.0, backlog_in_per_gb=3.0, backlog_out_per_gb=4.0,
    )  # fmt: skip
    made = estimate(prices=free, rate=100, size=10_000)
    money = [made.term(name).money * 1e9 / made.diverted for name in OUTAGE_TERMS if name != "pings"]
    assert money == pytest.approx([3 * 10_100, 4 * 10_260, 1 * 10_000, 2 * 10_160])


# -- P31, P33


@pytest.mark.parametrize(
    ("outage_s", "failover_s", "interval_s", "pings"),
    [
        (3600, 60, 60, 59),
        (3600, 0, 60, 60),
        (61, 60, 60, 1),
        (60, 60, 60, 0),  # over before the failover
        (0, 0, 60, 0),
        (1, 0, 60, 1),
        (90, 0, 60, 2),
        (120, 0, 60, 2),
    ],
)
def test_p33_one_ping_per_entity_per_client_per_interval(
    outage_s: float, failover_s: float, interval_s: float, pings: int
) -> None:
    case = {"outage_s": outage_s, "failover_interval_s": failover_s, "ping_interval_s": interval_s}
    assert operations("pings", **case) == pings
    assert operations("pings", **case, entities=3, clients=5) == 15 * pings


@given(
    st.integers(1, 4000), st.sampled_from([0, 1, 30, 60, 600]), st.sampled_from([1, 7, 30, 60, 300])
)  # fmt: skip
def test_p31_the_calculator_counts_what_the_machine_sends(outage: int, failover: int, interval: int) -> None:
    """The failover machine itself, through the outage; its pings are answered at once."""
    case = Scenario(outage_s=outage, failover_interval_s=failover, ping_interval_s=interval, hours=24)
    machine = Failover("orders", failover_interval=float(failover), ping_interval=float(interval))
    machine.primary_failed(0.0, 0)
    pings, now = 0, 0.0
    while (deadline := machine.deadline) is not None:
        if not machine.is_diverting and deadline >= outage:
            machine.primary_sent(outage, 0)  # an application that goes on sending finds it well
            break
        now = deadline
        for command in machine.tick(now):
            if isinstance(command, SendPing):
                pings += 1
                _ = machine.ping_succeeded(now) if now >= outage else machine.ping_failed(now, reachable=False)
    assert pings == case.ping_rounds
    assert now * (pings > 0) == case.diverted_s


# -- P53: the backlog


def test_p53_how_many_backlog_queues() -> None:
    assert QUEUE_PROPERTIES["max_size_in_megabytes"] * 1024 * 1024 == QUEUE_BYTES
    assert estimate(rate=10, size=1024).backlog_queues_needed == 1
    assert estimate(outage_s=0).backlog_queues_needed == 1
    size = 256 * 1024 - ALIAS_BYTES
    just = QUEUE_BYTES // (256 * 1024)
    exactly = {"size": size, "outage_s": 3600, "failover_interval_s": 0, "ping_interval_s": 3600}
    assert estimate(rate=just / 3600, **exactly).backlog_queues_needed == 1
    assert estimate(rate=(just + 1) / 3600, **exactly).backlog_queues_needed == 2, "the aliases count"
    made = estimate(rate=1000, size=64 * 1024, outage_s=4 * 3600)
    assert made.backlog_bytes == 14_400_000 * (64 * 1024 + ALIAS_BYTES)
    assert made.backlog_queues_needed == math.ceil(made.backlog_bytes / QUEUE_BYTES) == 177
    assert made.warnings[0] == "10 backlog queues of 5 GB do not hold it; 177 are needed"


def test_without_a_syphon_nothing_comes_home() -> None:
    assert estimate(syphons=0).warnings == [
        "without a syphon nothing comes home: run one in a receiving application, or pairbus syphon"
    ]


@given(
    st.text("abcdefghij/-._", min_size=1, max_size=50),
    st.one_of(st.none(), st.text("s", min_size=1, max_size=128)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 30),
)
def test_p26_what_the_aliases_add_is_bounded(path: str, session: str | None, ttl: bool, due: bool, keys: int) -> None:
    message = ServiceBusMessage(
        b"x", message_id="m", session_id=session,
        time_to_live=timedelta(days=3) if ttl else None,
        scheduled_enqueue_time_utc=datetime(2030, 1, 1, tzinfo=UTC) if due else None,
        application_properties={f"key{number}": "value" * 3 for number in range(keys)} or None,
    )  # fmt: skip
    encoded = diversion.encoded(message)
    assert len(divert_encoded(encoded, path)) - len(encoded) <= ALIAS_BYTES


def test_p31_a_ping_is_as_large_as_reckoned() -> None:
    made = ping(uuid4().hex)
    made.message_id = str(uuid4())
    assert len(diversion.encoded(made)) == PING_BYTES


# -- every scenario

SCENARIOS = st.builds(
    Scenario,
    queues=st.integers(1, 1000),
    syphons=st.integers(0, 5),
    entities=st.integers(1, 50),
    clients=st.integers(1, 50),
    rate=st.floats(0, 5000),
    size=st.integers(0, 300_000),
    outage_s=st.floats(0, 24 * 3600),
    ping_interval_s=st.floats(1, 1800),
    failover_interval_s=st.floats(0, 3600),
    hours=st.floats(24, 24 * 90),
)


@given(SCENARIOS)
def test_p53_what_holds_for_every_scenario(case: Scenario) -> None:
    made = estimate(case)
    assert [term.name for term in made.terms if term.name in OUTAGE_TERMS] == list(OUTAGE_TERMS)
    assert made.term("healthy-sends").operations + made.diverted == case.messages
    for term in made.terms:
        assert term.units >= term.operations >= 0 and term.money >= 0
        assert term.explanation.endswith(".") and "\n" not in term.explanation
        assert term.bytes == term.bytes_in + term.bytes_out
    assert made.money == pytest.approx(
        EXAMPLE.base(case.hours)
        + EXAMPLE.operations(made.units, case.hours)
        + EXAMPLE.traffic(made.term("backlog-sends").bytes_in, made.term("backlog-receives").bytes_out, backlog=True)
    )
    assert made.backlog_queues_needed * QUEUE_BYTES >= made.backlog_bytes
    assert made.backlog_queues_needed == 1 or (made.backlog_queues_needed - 1) * QUEUE_BYTES < made.backlog_bytes
    assert made.to_dict()["totals"]["operations"] == sum(term.operations for term in made.terms)


@given(SCENARIOS, st.sampled_from(["queues", "syphons", "entities", "clients", "rate", "size"]))
def test_p53_more_never_costs_less(case: Scenario, name: str) -> None:
    more = dataclasses.replace(case, **{name: getattr(case, name) * 2})
    before, after = estimate(case), estimate(more)
    assert after.money >= before.money - 1e-6
    assert after.units >= before.units
    assert after.backlog_queues_needed >= before.backlog_queues_needed


@given(SCENARIOS, st.floats(1, 3))
def test_p53_a_longer_outage_diverts_no_fewer(case: Scenario, factor: float) -> None:
    longer = dataclasses.replace(case, outage_s=min(case.hours * 3600, case.outage_s * factor))
    assert longer.diverted >= case.diverted and longer.ping_rounds >= case.ping_rounds
    assert longer.diverted_s >= (longer.outage_s if longer.fails_over else 0.0) - 1e-6


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"queues": 0}, "queues may not be 0; allowed: a whole number, 1 or more"),
        ({"rate": -1.0}, "rate may not be -1.0; allowed: a number, 0 or more"),
        ({"rate": math.inf}, "rate may not be inf"),
        ({"rate": math.nan}, "rate may not be nan"),
        ({"size": 1.5}, "size may not be 1.5; allowed: a whole number"),
        ({"clients": True}, "clients may not be True"),
        ({"ping_interval_s": 0}, "ping_interval_s may not be 0; allowed: a number above 0"),
        ({"hours": 1, "outage_s": 7200}, "an outage of 7200 s is longer than the period of 1 hours"),
    ],
)
def test_a_scenario_that_can_not_be(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidScenario, match=said):
        estimate(**wrong)


def test_the_words() -> None:
    made = estimate()
    assert made.term("idle-polls").explanation.startswith("10 backlog queues × 1 syphon × 4 empty receives an hour")
    assert "= 40 an hour" in made.term("idle-polls").explanation
    assert "the first of its 4 operations" in made.term("backlog-sends").explanation
    assert made.term("pings").explanation.startswith("1 entity × 1 client × 59 pings, one every 60 s")
    assert "65,636 bytes are 2 billed units" in estimate(size=UNIT_BYTES).term("backlog-sends").explanation
    assert repr(made).startswith("<Estimate 51940859 operations, 51.42 USD in 720 h")
