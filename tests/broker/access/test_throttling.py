"""Thresholds past which requests are denied as server busy: rates, bytes, links, receives, credits and the node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.errors import SERVER_BUSY
from pairbus.broker.access.throttling import FILTERS, MEASURES, RECEIVES_MAX, Target, Throttling
from pairbus.broker.refusal import Refusal

NOW = 1_700_000_000.0
ORDERS = (None, "orders")
ALL_OF_NEWS = (None, "news/subscriptions/all", "news")


def at(limits: dict[Target, dict[str, float]], **levels: float) -> Throttling:
    """Thresholds of the configuration; `levels` are what is read of the node and the entities."""
    return Throttling(limits, lambda measure, target: levels.get(measure, 0.0))


def admitted(ask: Callable[[], Refusal | None], times: int) -> int:
    return sum(ask() is None for _ in range(times))


def test_p47_the_refusal_has_the_services_words_and_says_which_threshold() -> None:
    refusal = at({"orders": {"messages": 0}}).refusal("send", ORDERS, NOW)
    assert refusal is not None
    assert refusal.condition == SERVER_BUSY
    assert "Error code : 50009. Please wait 2 seconds and try again." in refusal.description
    assert refusal.description.endswith("('orders' takes up to 0 messages a second.)")


def test_p47_bytes_of_sends_and_of_what_was_received_count() -> None:
    throttling = at({"orders": {"bytes": 1000}})
    assert throttling.refusal("send", ORDERS, NOW, 1, 600) is None
    assert throttling.refusal("send", ORDERS, NOW, 1, 600) is not None
    assert throttling.receive(ORDERS, NOW, 10) == 10
    throttling.spend(ORDERS, NOW, size=1400)
    assert throttling.receive(ORDERS, NOW + 0.9, 10) == 0, "the next ones wait for it"
    assert throttling.receive(ORDERS, NOW + 1.1, 10) == 10
    assert throttling.refusal("manage", ORDERS, NOW + 0.9) is None


def test_p47_credits_of_a_namespace() -> None:
    """A message sent, received or peeked is one, an evaluation of a filter one, a management call ten."""
    throttling = at({None: {"credits": 100}}, **{FILTERS: 4})
    assert throttling.refusal("send", (None, "news"), NOW, 10) is None  # 50
    assert throttling.receive(ALL_OF_NEWS, NOW, 10) == 10  # 60
    throttling.spend(ALL_OF_NEWS, NOW, count=10, credits=10)  # 70
    assert admitted(lambda: throttling.refusal("manage", (None,), NOW), 5) == 3
    assert throttling.receive(ORDERS, NOW, 5) == 0
    assert throttling.receive(ORDERS, NOW + 0.02, 5) == 2


@pytest.mark.parametrize(
    ("measure", "denied"),
    [("cpu", ["send", "receive", "manage"]), ("memory", ["send", "manage"]), ("storage", ["send", "manage"])],
)
def test_p47_the_nodes_cpu_memory_and_storage(measure: str, denied: list[str]) -> None:
    throttling = at({None: {measure: 80}}, **{measure: 80.0})
    calm = at({None: {measure: 80}}, **{measure: 79.9})
    for operation in ("send", "receive", "manage"):
        refusal = throttling.refusal(operation, ORDERS, NOW)  # type: ignore[arg-type]
        assert (refusal is not None) == (operation in denied)
        assert calm.refusal(operation, ORDERS, NOW) is None  # type: ignore[arg-type]
    assert isinstance(throttling.receive(ORDERS, NOW, 3), Refusal) == ("receive" in denied)


def test_p47_a_dependency_that_throttles_leaves_receives_alone() -> None:
    throttling = at({None: {"dependency": 2}})
    assert admitted(lambda: throttling.refusal("send", ORDERS, NOW), 5) == 2
    assert throttling.refusal("manage", ORDERS, NOW) is not None
    assert throttling.receive(ORDERS, NOW, 100) == 100


def test_p47_links_and_concurrent_receives() -> None:
    full = at({"orders": {"links": 3, "receives": 2}}, links=3)
    assert full.link_refusal(ORDERS, NOW, None) is not None
    assert full.link_refusal((None, "invoices"), NOW, 0) is None
    receiving = at({"orders": {"links": 3, "receives": 2}}, links=2, receives=2)
    assert receiving.link_refusal(ORDERS, NOW, None) is None
    refusal = receiving.link_refusal(ORDERS, NOW, 2)
    assert refusal is not None and "2 concurrent receives" in refusal.description


def test_p47_five_thousand_concurrent_receives_unless_another_limit_is_set() -> None:
    assert RECEIVES_MAX == 5000
    plain = Throttling()
    assert plain.link_refusal(ALL_OF_NEWS, NOW, 4999) is None
    refusal = plain.link_refusal(ALL_OF_NEWS, NOW, 5000)
    assert refusal is not None and "'news' takes up to 5000 concurrent receives" in refusal.description
    assert plain.link_refusal(ALL_OF_NEWS, NOW, None) is None, "it does not receive"
    assert at({None: {"receives": 9000}}, receives=5000).link_refusal(ALL_OF_NEWS, NOW, 5000) is None


def test_what_is_on_its_way_to_a_receiver_is_only_delayed_unless_nothing_may_pass() -> None:
    throttling = at({"orders": {"messages": 4}, "closed": {"messages": 0}})
    assert throttling.receive(ORDERS, NOW, 10) == 4
    assert throttling.receive(ORDERS, NOW, 10) == 0
    assert throttling.receive(ORDERS, NOW + 0.5, 10) == 2
    assert isinstance(throttling.receive((None, "closed"), NOW, 1), Refusal)
    assert throttling.refusal("receive", ORDERS, NOW + 0.5, 0) is None, "a new receiver may wait for its share"


def test_a_refused_send_costs_no_threshold_anything() -> None:
    throttling = at({None: {"messages": 10, "bytes": 1000}, "orders": {"messages": 0}})
    for _ in range(100):
        assert throttling.refusal("send", ORDERS, NOW, 1, 500) is not None
    assert throttling.refusal("send", (None, "invoices"), NOW, 10, 1000) is None


def test_a_threshold_that_is_set_takes_the_place_of_the_standing_one_while_it_lasts() -> None:
    throttling = at({"orders": {"messages": 2}})
    throttling.set("messages", "orders", 5, NOW + 10)
    assert admitted(lambda: throttling.refusal("send", ORDERS, NOW), 9) == 5
    assert admitted(lambda: throttling.refusal("send", ORDERS, NOW + 10), 9) == 2
    throttling.drop("messages", "orders")
    assert admitted(lambda: throttling.refusal("send", ORDERS, NOW + 20), 9) == 2
    assert repr(throttling) == "<Throttling: 1 standing thresholds, 0 set by faults>"


def test_nothing_set_is_false() -> None:
    throttling = Throttling({None: {}, "orders": {}})
    assert not throttling
    throttling.set("links", None, 3, None)
    assert throttling
    throttling.drop("links", None)
    assert not throttling


def test_a_clock_that_is_set_gives_no_permits_and_leaves_what_was_left() -> None:
    throttling = at({"orders": {"messages": 1}})
    throttling.set("bytes", "orders", 0, NOW + 10)
    assert throttling.refusal("receive", ORDERS, NOW, 1) is not None
    throttling.shift(3600)
    assert throttling.refusal("send", ORDERS, NOW + 3609, 1, 1) is not None
    assert throttling.refusal("send", ORDERS, NOW + 3610, 1, 1) is None
    assert throttling.refusal("send", ORDERS, NOW + 3610, 1, 1) is not None


@given(
    limit=st.floats(0.5, 100),
    steps=st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.3, 2.0]), st.integers(0, 40)), max_size=100),
)
def test_receivers_never_get_more_than_the_rate_and_one_bucket(limit: float, steps: list[tuple[float, int]]) -> None:
    throttling = at({"orders": {"messages": limit}})
    now, passed = NOW, 0
    for wait, count in steps:
        now += wait
        allowed = throttling.receive(ORDERS, now, count)
        assert isinstance(allowed, int) and 0 <= allowed <= count
        passed += allowed
    assert passed <= max(1.0, limit) + limit * (now - NOW) + 1e-3


def test_every_measure_has_a_key_of_its_own() -> None:
    assert len({measure.key for measure in MEASURES.values()}) == len(MEASURES)


def test_p47_partitions_of_an_entity_count_apart_and_the_namespace_as_a_whole() -> None:
    throttling = Throttling({"orders": {"messages": 2.0}, None: {"messages": 5.0}})
    targets = (None, "orders")

    def is_taken(partition: int | None) -> bool:
        return throttling.refusal("send", targets, NOW, partition=partition) is None

    assert [is_taken(partition) for partition in (0, 0, 0, 3, 3, 3)] == [True, True, False, True, True, False]
    assert is_taken(7), "the fifth of the namespace"
    assert not is_taken(8), "the namespace's rate is spent"
    throttling.shift(3600.0)
    assert not is_taken(0), "the clock was set; no time has passed"
    assert throttling.refusal("send", targets, NOW + 3601.0, partition=0) is None


def test_p47_what_the_partitions_of_an_entity_may_deliver() -> None:
    throttling = Throttling({"orders": {"messages": 3.0, "bytes": 100.0}})
    targets = (None, "orders")
    assert throttling.receive_from(targets, NOW, 10, range(4)) == (3, frozenset())
    for _ in range(3):
        throttling.spend_of(targets, NOW, 1, 1, 10)
    throttling.spend_of(targets, NOW, 2, 1, 500)  # past its bytes
    assert throttling.receive_from(targets, NOW, 10, range(4)) == (2, frozenset({1, 2}))
    assert throttling.receive(targets, NOW, 10, is_partitioned=True) == 10, "no rate of the namespace"
    assert throttling.receive_from(targets, NOW + 10.0, 10, range(4)) == (3, frozenset())
    nothing = Throttling({"orders": {"messages": 0.0}})
    assert isinstance(nothing.receive(targets, NOW, 10, is_partitioned=True), Refusal)
