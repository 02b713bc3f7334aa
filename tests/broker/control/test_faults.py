from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.errors import SERVER_BUSY
from pairbus.broker.access.throttling import Throttling
from pairbus.broker.control.faults import CRASHES, FAULTS_MAX, INTERNAL_ERROR, KINDS, Fault, Faults, mark_of
from pairbus.errors import InvalidFault

NOW = 1_700_000_000.0


def fault(kind: str, entity: str | None = None, until: float | None = None) -> Fault:
    needs = {"throttle": {"rate": 0.0}, "latency": {"delay": 0.5}}
    return Fault(kind, entity=entity, until=until, **needs.get(kind, {}))


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.mark.parametrize("operation", ["send", "receive", "manage"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in CRASHES])
@pytest.mark.parametrize("entity", [None, "orders"])
def test_p46_each_kind_refuses_just_its_own_operations(
    faults: Faults, kind: str, operation: str, entity: str | None
) -> None:
    faults.set(fault(kind, None if kind == "storage-stall" else entity))
    refusal = faults.refusal(operation, "orders", NOW)  # type: ignore[arg-type]
    if kind == "throttle":
        assert refusal is not None
        assert refusal.condition == SERVER_BUSY
        assert "Error code : 50009. Please wait 2 seconds and try again." in refusal.description
    elif kind == f"no-{operation}":
        assert refusal is not None
        assert refusal.condition == INTERNAL_ERROR
        assert kind in refusal.description
        assert ("'orders'" if entity else "the namespace") in refusal.description
    else:
        assert refusal is None
    assert faults.unreachable("orders", NOW) is (kind == "unreachable")
    assert faults.black_hole("orders", NOW) is (kind == "black-hole")
    assert faults.latency("orders", NOW) == (0.5 if kind == "latency" else 0.0)
    assert faults.hangs("orders", NOW) is (kind == "hang")
    assert faults.lost_answer("orders", NOW) == (0.0 if kind == "lost-answer" else None)


@pytest.mark.parametrize(
    ("kind", "options", "problem"),
    [
        ("crash-entity", {}, "needs an entity"),
        ("crash-entity", {"entity": "orders", "node": 1}, "takes no node; crash-node does"),
        ("crash-entity", {"entity": "orders", "rate": 1}, "takes no rate"),
        ("crash-node", {}, "needs a node, or an entity"),
        ("crash-node", {"entity": "orders", "node": 1}, "not both"),
        ("crash-node", {"node": -1}, "they count from 0"),
        ("crash-node", {"node": True}, "they count from 0"),
        ("no-send", {"node": 1}, "takes no node"),
    ],
)
def test_p49_what_a_crash_needs(kind: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidFault, match=problem):
        Fault(kind, **options)


def test_p49_a_crash_is_carried_out_by_the_broker_and_slows_its_entities_down(faults: Faults) -> None:
    crash = Fault("crash-node", node=2)
    with pytest.raises(InvalidFault, match="needs a broker that runs"):
        faults.set(crash)
    begun: list[Fault] = []

    def begin(fault: Fault) -> Fault:
        begun.append(fault)
        return Fault("crash-node", node=2, until=NOW + 4, delay=0.5, diagnostics="d.json")

    faults.on_crash = begin
    faults.set(crash)
    faults.slow_down(["Orders", "news"], 0.5)
    assert begun == [crash]
    assert [each.as_json() for each in faults.active(NOW)] == [
        {"kind": "crash-node", "node": 2, "delay": 0.5, "until": NOW + 4, "diagnostics": "d.json"}
    ]
    assert faults.active(NOW)[0].target == "node 2"
    assert faults.latency("orders/$DeadLetterQueue", NOW) == faults.latency("news/Subscriptions/all", NOW) == 0.5
    assert faults.latency("invoices", NOW) == faults.latency(None, NOW) == 0.0
    faults.slow_down(["Orders", "news"], 0.0)
    assert faults.latency("orders", NOW) == 0.0
    assert faults.clear("crash-node", which=mark_of(node=1)) == 0
    assert faults.clear("crash-node", which=mark_of(node=2)) == 1
    assert not faults


def test_no_fault_no_effect(faults: Faults) -> None:
    assert faults.refusal("send", "orders", NOW) is None
    assert not faults.unreachable(None, NOW)
    assert not faults.black_hole(None, NOW)
    assert faults.latency("orders", NOW) == 0.0
    assert not faults.hangs("orders", NOW)
    assert faults.lost_answer("orders", NOW) is None
    assert faults.deadline(NOW) is None
    assert not faults
    assert repr(faults) == "<Faults none>"


@pytest.mark.parametrize(
    ("asked", "covered"),
    [
        ("orders", True),
        ("ORDERS", True),
        ("/orders/", True),
        ("orders/$DeadLetterQueue", True),
        ("Orders/$management", True),
        ("orders/$DeadLetterQueue/$management", True),
        ("orders/$Transfer/$DeadLetterQueue", True),
        ("orders/Subscriptions/all", True),
        ("orders/subscriptions/all/$DeadLetterQueue", True),
        ("orders2", False),
        ("orders/x-servicebus-transfer/0", False),
        ("my/orders", False),
        (None, False),
    ],
)
def test_a_fault_on_an_entity_covers_its_sub_queues_and_no_other_entity(
    faults: Faults, asked: str | None, covered: bool
) -> None:
    faults.set(Fault("unreachable", entity="Orders"))
    assert faults.unreachable(asked, NOW) is covered


def test_a_fault_on_a_dead_letter_queue_leaves_its_queue_alone(faults: Faults) -> None:
    faults.set(Fault("no-receive", entity="orders/$DeadLetterQueue"))
    assert faults.refusal("receive", "orders", NOW) is None
    assert faults.refusal("receive", "orders/$deadletterqueue", NOW) is not None


def test_p47_throttle_lets_a_second_s_worth_through_and_then_the_rate(faults: Faults) -> None:
    faults.set(Fault("throttle", entity="orders", rate=4))
    allowed = [faults.refusal("send", "orders", NOW) is None for _ in range(6)]
    assert allowed == [True] * 4 + [False] * 2
    assert faults.refusal("send", "orders", NOW + 0.2) is not None
    assert faults.refusal("send", "orders", NOW + 0.25) is None
    assert faults.refusal("send", "orders", NOW + 0.25) is not None
    assert [faults.refusal("send", "orders", NOW + 60) is None for _ in range(5)] == [True] * 4 + [False]
    assert faults.refusal("send", "invoices", NOW) is None


def test_throttle_below_one_a_second_lets_one_through_now_and_then(faults: Faults) -> None:
    faults.set(Fault("throttle", rate=0.5))
    times = [0.0, 1.0, 1.9, 2.0, 3.9, 4.0]
    assert [faults.refusal("send", "q", NOW + t) is None for t in times] == [True, False, False, True, False, True]


def test_throttle_counts_the_messages_of_a_batch_and_never_starves_a_large_one(faults: Faults) -> None:
    faults.set(Fault("throttle", rate=10))
    assert faults.refusal("send", "q", NOW, count=25) is None
    assert faults.refusal("send", "q", NOW + 1.4) is not None
    assert faults.refusal("send", "q", NOW + 1.6) is None


def test_a_refused_operation_takes_no_permit_of_another_throttle(faults: Faults) -> None:
    faults.set(Fault("throttle", rate=1))
    faults.set(Fault("throttle", entity="orders", rate=0))
    for _ in range(10):
        assert faults.refusal("send", "orders", NOW) is not None
    assert faults.refusal("send", "invoices", NOW) is None


def test_a_clock_that_goes_back_gives_no_permits(faults: Faults) -> None:
    faults.set(Fault("throttle", rate=1))
    assert faults.refusal("send", "q", NOW) is None
    assert faults.refusal("send", "q", NOW - 100) is not None
    assert faults.refusal("send", "q", NOW) is not None


def test_p47_throttles_that_count_different_things_stand_beside_each_other(faults: Faults) -> None:
    faults.set(Fault("throttle", entity="orders", rate=100))
    faults.set(Fault("throttle", entity="orders", rate=1000, by="bytes"))
    faults.set(Fault("throttle", entity="orders", rate=500, by="bytes"))
    assert [each.by for each in faults.active(NOW)] == [None, "bytes"]
    assert faults.refusal("send", "orders", NOW, 1, 400) is None
    assert faults.refusal("send", "orders", NOW, 1, 400) is not None
    assert faults.clear("throttle", "orders", which="bytes") == 1
    assert faults.refusal("send", "orders", NOW, 1, 400) is None
    assert faults.clear("throttle", "orders") == 1
    assert not faults


def test_p47_a_threshold_of_the_configuration_is_no_fault_and_is_there_again_after_one() -> None:
    faults = Faults(throttling=Throttling({"orders": {"messages": 1}}))
    assert faults and faults.active(NOW) == []
    faults.set(Fault("throttle", entity="Orders", rate=0))
    assert faults.refusal("send", "orders", NOW) is not None
    assert faults.clear() == 1
    assert [faults.refusal("send", "orders", NOW) is None for _ in range(3)] == [True, False, False]
    assert faults.refusal("send", "invoices", NOW) is None


def test_p50_one_client_is_cut_off_and_another_is_not(faults: Faults) -> None:
    faults.set(Fault("unreachable", client="Web", until=NOW + 5))
    faults.set(Fault("black-hole", client="10.0.0.7"))
    assert faults.cuts_off({"10.0.0.1", "web"}, NOW)
    assert not faults.cuts_off({"10.0.0.7", "other"}, NOW)
    assert faults.silences({"10.0.0.7", "other"}, NOW)
    assert not faults.cuts_off({"web"}, NOW + 5)
    assert not faults.unreachable(None, NOW) and not faults.black_hole("orders", NOW)
    assert faults.clear("unreachable", exact=True) == 0
    assert faults.clear("unreachable", which="web", exact=True) == 1
    assert not faults.cuts_off({"web"}, NOW)


def test_latencies_of_namespace_and_entity_add_up(faults: Faults) -> None:
    faults.set(Fault("latency", delay=0.25))
    faults.set(Fault("latency", entity="orders", delay=0.5))
    assert faults.latency(None, NOW) == 0.25
    assert faults.latency("orders", NOW) == 0.75
    assert faults.latency("invoices", NOW) == 0.25


def test_of_two_lost_answers_the_earlier_cut_is_the_cut(faults: Faults) -> None:
    faults.set(Fault("lost-answer", delay=0.5))
    faults.set(Fault("lost-answer", entity="orders", delay=2, until=NOW + 5))
    faults.set(Fault("lost-answer", entity="invoices"))
    assert faults.lost_answer("orders", NOW) == 0.5
    assert faults.lost_answer("orders/$management", NOW) == 0.5
    assert faults.lost_answer("invoices", NOW) == 0.0
    faults.clear("lost-answer", exact=True)
    assert faults.lost_answer("orders", NOW) == 2
    assert faults.lost_answer("orders", NOW + 5) is None
    assert faults.lost_answer("others", NOW) is None


def test_a_hang_covers_its_entity_until_its_time(faults: Faults) -> None:
    faults.set(Fault("hang", entity="Orders", until=NOW + 5))
    assert [faults.hangs(path, NOW) for path in ("orders", "orders/$management", "invoices")] == [True, True, False]
    assert not faults.hangs("orders", NOW + 5)


def test_p48_a_storage_stall_is_the_whole_namespaces_and_refuses_nothing_by_itself(faults: Faults) -> None:
    assert not faults.stalls_storage(0.0)
    faults.set(Fault("storage-stall", until=10.0))
    assert faults.stalls_storage(9.0) and not faults.stalls_storage(10.0)
    assert faults.refusal("send", "orders", 0.0) is None
    with pytest.raises(InvalidFault, match="whole namespace's; leave out the entity"):
        Fault("storage-stall", entity="orders")


@pytest.fixture
def stalled() -> Faults:
    faults = Faults()
    faults.has_standby = True
    faults.set(Fault("storage-stall", late=60.0, until=NOW + 10))
    return faults


def test_p48_what_comes_in_a_stall_is_late_until_the_store_was_back_for_so_long(stalled: Faults) -> None:
    assert (stalled.stalls_storage(NOW), stalled.late(NOW)) == (True, (True, True))
    # Whether or not somebody has looked at the clock just then.
    assert (stalled.stalls_storage(NOW + 10), stalled.late(NOW + 10)) == (False, (True, False))
    assert stalled.tick(NOW + 12) == NOW + 70
    assert (stalled.stalls_storage(NOW + 12), stalled.late(NOW + 12)) == (False, (True, False))
    assert [each.as_json() for each in stalled.active(NOW + 12)] == [
        {"kind": "storage-stall", "late": 60.0, "until": NOW + 70, "is_back": True}
    ]
    assert stalled.tick(NOW + 70) is None
    assert stalled.late(NOW + 70) == (False, False) and not stalled


def test_p48_clearing_a_stall_ends_it_and_clearing_it_again_the_lateness(stalled: Faults) -> None:
    assert stalled.clear("storage-stall", now=NOW + 3) == 1
    assert (stalled.stalls_storage(NOW + 3), stalled.late(NOW + 62)) == (False, (True, False))
    assert stalled.clear(now=NOW + 4) == 1
    assert stalled.late(NOW + 4) == (False, False) and not stalled


@pytest.mark.parametrize("late", [0, 900.1, True, "60"])
def test_p48_lateness_has_bounds(late: Any) -> None:
    with pytest.raises(
        InvalidFault, match=r"late .* of storage-stall is out of bounds: seconds, more than 0 and at mo"
    ):
        Fault("storage-stall", late=late)


def test_p48_only_a_stall_with_a_standby_folder_can_make_late(faults: Faults) -> None:
    with pytest.raises(InvalidFault, match="hang takes no late; storage-stall may"):
        Fault("hang", late=1.0)
    with pytest.raises(InvalidFault, match=r"only where the broker has a standby folder \(--standby\)"):
        faults.set(Fault("storage-stall", late=1.0))
    assert not faults


def test_a_fault_ends_at_its_time_with_or_without_a_tick() -> None:
    changes: list[str] = []
    faults = Faults(lambda: changes.append("changed"))
    faults.set(Fault("no-send", until=NOW + 5))
    faults.set(Fault("no-receive", until=NOW + 9))
    faults.set(Fault("no-manage"))
    assert faults.deadline(NOW) == NOW + 5
    assert faults.refusal("send", "q", NOW + 4.999) is not None
    assert faults.refusal("send", "q", NOW + 5) is None
    assert [f.kind for f in faults.active(NOW + 5)] == ["no-receive", "no-manage"]
    changes.clear()
    assert faults.tick(NOW + 4) == NOW + 5
    assert changes == []
    assert faults.tick(NOW + 5) == NOW + 9
    assert changes == ["changed"]
    assert faults.tick(NOW + 10) is None
    assert [f.kind for f in faults.active(NOW)] == ["no-manage"]


def test_a_deadline_that_has_passed_is_due_now(faults: Faults) -> None:
    faults.set(Fault("no-send", until=NOW - 5))
    assert faults.deadline(NOW) == NOW


def test_the_same_kind_on_the_same_target_is_replaced(faults: Faults) -> None:
    faults.set(Fault("throttle", entity="orders", rate=0))
    faults.set(Fault("throttle", entity="ORDERS", rate=5, until=NOW + 1))
    assert faults.active(NOW) == [Fault("throttle", entity="ORDERS", rate=5, until=NOW + 1)]
    assert faults.refusal("send", "orders", NOW) is None


@pytest.mark.parametrize(
    ("kind", "entity", "exact", "left"),
    [
        (None, None, False, []),
        ("no-send", None, False, ["no-receive on 'orders'"]),
        ("no-send", None, True, ["no-send on 'orders'", "no-receive on 'orders'"]),
        ("no-send", "Orders", False, ["no-send on the namespace", "no-receive on 'orders'"]),
        (None, "orders", False, ["no-send on the namespace"]),
        ("latency", None, False, ["no-send on the namespace", "no-send on 'orders'", "no-receive on 'orders'"]),
    ],
)
def test_clear(kind: str | None, entity: str | None, exact: bool, left: list[str]) -> None:
    changes: list[int] = []
    faults = Faults()
    for each in (Fault("no-send"), Fault("no-send", entity="orders"), Fault("no-receive", entity="orders")):
        faults.set(each)
    faults.on_change = lambda: changes.append(1)
    assert faults.clear(kind, entity, exact=exact) == 3 - len(left)
    assert [f"{f.kind} on {f.target}" for f in faults.active(NOW)] == left
    assert len(changes) == (1 if len(left) < 3 else 0)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "no-snd"}, "the kinds are unreachable, black-hole, no-send"),
        ({"kind": "throttle"}, "throttle needs a rate: operations a second"),
        ({"kind": "latency"}, "latency needs a delay: seconds"),
        ({"kind": "no-send", "rate": 1.0}, "no-send takes no rate; throttle does"),
        ({"kind": "throttle", "rate": 1.0, "delay": 1.0}, "throttle takes no delay; latency does"),
        ({"kind": "hang", "delay": 1.0}, "hang takes no delay; latency does, and lost-answer and crashes may"),
        ({"kind": "lost-answer", "delay": -1}, "delay -1 of lost-answer is out of bounds: seconds, 0 to 3600"),
        ({"kind": "lost-answer", "rate": 1}, "lost-answer takes no rate; throttle does"),
        ({"kind": "throttle", "rate": -1}, "rate -1 of throttle is out of bounds"),
        ({"kind": "throttle", "rate": math.nan}, "rate nan"),
        ({"kind": "throttle", "rate": True}, "rate True"),
        ({"kind": "throttle", "rate": "9"}, "rate '9'"),
        ({"kind": "latency", "delay": 3601}, "delay 3601 of latency is out of bounds: seconds, 0 to 3600"),
        ({"kind": "no-send", "entity": ""}, "leave it out for the whole namespace"),
        ({"kind": "no-send", "entity": "//"}, "leave it out for the whole namespace"),
        ({"kind": "no-send", "until": math.nan}, "until nan"),
        ({"kind": "no-send", "by": "bytes"}, "no-send takes no by; throttle does"),
        ({"kind": "throttle", "rate": 1, "by": "weight"}, "it counts messages, bytes, credits"),
        ({"kind": "throttle", "rate": 1, "by": "credits", "entity": "orders"}, "leave out the entity"),
        ({"kind": "latency", "delay": 1, "client": "web"}, "takes no client; unreachable and black-hole do"),
        ({"kind": "unreachable", "client": ""}, "neither an address nor the name of a key"),
        ({"kind": "unreachable", "client": "web", "entity": "orders"}, "leave out the entity"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_with_what_would(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidFault, match=r"\A[^\n]+\Z") as caught:
        Fault(**fields)  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_clear_of_an_unknown_kind_names_the_kinds() -> None:
    with pytest.raises(InvalidFault, match="the kinds are"):
        Faults().clear("no-such")


def test_their_number_is_bounded(faults: Faults) -> None:
    for i in range(FAULTS_MAX):
        faults.set(Fault("no-send", entity=f"q{i}"))
    with pytest.raises(InvalidFault, match="clear some first"):
        faults.set(Fault("no-send", entity="one more"))
    faults.set(Fault("no-send", entity="q0", until=NOW))


def test_as_json_leaves_out_what_is_not_set() -> None:
    assert Fault("throttle", "orders", rate=0, until=5.0).as_json() == {
        "kind": "throttle",
        "entity": "orders",
        "rate": 0,
        "until": 5.0,
    }


@given(
    rate=st.floats(0.1, 50),
    steps=st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0, 5.0]), st.integers(1, 3)), max_size=200),
)
def test_throttle_never_lets_more_through_than_its_rate_and_one_bucket(
    rate: float, steps: list[tuple[float, int]]
) -> None:
    faults = Faults()
    faults.set(Fault("throttle", rate=rate))
    now, passed = NOW, 0
    for wait, count in steps:
        now += wait
        if faults.refusal("send", "q", now, count=count) is None:
            passed += count
    # A batch beyond the bucket may overdraw it once, by what it is larger.
    assert passed <= max(1.0, rate) + rate * (now - NOW) + 2 + 1e-3


def test_a_fault_on_a_partition_leaves_the_entity_alone(faults: Faults) -> None:
    faults.set(Fault("unreachable", entity="orders", partition=3))
    faults.set(Fault("no-send", partition=5, until=NOW + 10))
    faults.set(Fault("no-receive", entity="orders", partition=7))
    assert not faults.unreachable("orders", NOW)
    assert faults.refusal("send", "orders", NOW) is None
    assert faults.partitions_down("Orders", NOW) == ({3, 5}, {3, 7})
    assert faults.partitions_down("orders/$DeadLetterQueue", NOW + 11) == ({3}, {3, 7})
    assert faults.partitions_down("others", NOW) == ({5}, set())
    assert faults.active(NOW)[0].as_json() == {"kind": "unreachable", "entity": "orders", "partition": 3}
    assert faults.clear("unreachable", "orders", which=mark_of(partition=4)) == 0
    assert faults.clear("unreachable", "orders", which=mark_of(partition=3)) == 1
    assert faults.partitions_down("orders", NOW) == ({5}, {7})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "latency", "delay": 1, "partition": 1}, "latency takes no partition"),
        ({"kind": "unreachable", "client": "web", "partition": 1}, "leave out the partition"),
        ({"kind": "no-send", "partition": -1}, "0 to 15"),
        ({"kind": "no-send", "partition": 16}, "0 to 15"),
        ({"kind": "no-send", "partition": True}, "0 to 15"),
    ],
)
def test_a_partition_that_can_not_be_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidFault, match=says):
        Fault(**fields)
