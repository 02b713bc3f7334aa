"""Which namespaces are served, and what becomes of an entity that stands otherwise than planned."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from pairbus.broker.config.plan import (
    STALL_S_MAX,
    STALL_S_MIN,
    EntityPlan,
    NamespacePlan,
    as_emulator,
    authorization_rules,
    changed_description,
    choose,
    new_description,
    parse_namespace,
)
from pairbus.broker.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.errors import PairbusError
from pairbus.journal import options
from pairbus.sas import AuthorizationRule

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("contoso", ("contoso", ())),
        ("a-1:5672", ("a-1", (5672,))),
        ("x:0", ("x", (0,))),
        ("x:5672,0,0,5300", ("x", (5672, 0, 0, 5300))),
    ],
)
def test_namespaces_are_named_with_or_without_ports(text: str, expected: tuple[str, tuple[int, ...]]) -> None:
    assert parse_namespace(text) == expected


@pytest.mark.parametrize(
    "text", ["", ":1", "Contoso", "a_b", "-a", "a-", "a b", "x" * 51, "../x", "a:x", "a:65536", "a:-1", "a:", "a:1,",
             "a:,1", "a:1,2x", "a:5672,5672", "a:" + ",".join(["0"] * 17), "a:" + "9" * 5000, "a:١"]
)  # fmt: skip
def test_what_can_not_be_a_namespace_is_named(text: str) -> None:
    with pytest.raises(PairbusError, match=r"lower-case letters|not a port|twice|1 to 16"):
        parse_namespace(text)


def test_the_bounds_of_a_storage_stall_are_the_journals() -> None:
    assert (STALL_S_MIN, STALL_S_MAX) == (options.STALL_S_MIN, options.STALL_S_MAX)


PLANS = [NamespacePlan(name="a", ports=(1,), link_idle_timeout=5.0), NamespacePlan(name="b")]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], PLANS),
        (["a"], [PLANS[0]]),
        (["a:0"], [replace(PLANS[0], ports=(0,))]),
        (["b:7", "c:8", "a"], [replace(PLANS[1], ports=(7,)), NamespacePlan(name="c", ports=(8,)), PLANS[0]]),
    ],
)
def test_the_namespaces_that_are_served(names: list[str], expected: list[NamespacePlan]) -> None:
    assert choose(names, PLANS) == expected


@pytest.mark.parametrize("names", [["b:7", "c:8,7"], ["b:1", "a"]])
def test_a_port_of_two_namespaces_is_named_with_both(names: list[str]) -> None:
    with pytest.raises(PairbusError, match=r"port (7|1) is given to b and to [ac]"):
        choose(names, PLANS)


def test_the_emulator_has_one_namespace_and_its_ports_unless_others_are_given() -> None:
    assert as_emulator([]) == [NamespacePlan(name="sbemulatorns", ports=(5672, 5300))]
    assert as_emulator([PLANS[0]]) == [PLANS[0]]
    assert as_emulator([PLANS[1]]) == [replace(PLANS[1], ports=(5672, 5300))]
    with pytest.raises(PairbusError, match=r"one namespace, not 2 \(a, b\)"):
        as_emulator(PLANS)


def new_keys() -> itertools.count[int]:
    return itertools.count(1)


def rule(name: str = "web", **changes: object) -> AuthorizationRule:
    made = AuthorizationRule(
        key_name=name, rights=("Send",), primary_key="p", secondary_key="s", created_at=1.0, modified_at=1.0
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def wanted(name: str = "web", **changes: object) -> AuthorizationRule:
    """As a configuration has it that gives neither keys nor times."""
    return rule(name, **{"primary_key": "", "secondary_key": "", "created_at": 0.0, "modified_at": 0.0, **changes})


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (wanted(), rule()),
        (wanted(rights=("Listen",)), rule(rights=("Listen",), modified_at=NOW)),
        (wanted(primary_key="other"), rule(primary_key="other", modified_at=NOW)),
        (wanted(secondary_key="s"), rule()),
    ],
)
def test_a_rule_that_stands_keeps_what_is_not_spoken_of(plan: AuthorizationRule, expected: AuthorizationRule) -> None:
    other = rule("other")
    assert authorization_rules([rule(), other], [plan], lambda: "new", NOW) == (expected, other)


def test_a_new_rule_gets_the_keys_that_are_not_given() -> None:
    count = new_keys()
    plans = [
        wanted("a"),
        wanted("b", rights=("Listen",), primary_key="mine"),
    ]
    first, second = authorization_rules([], plans, lambda: f"key {next(count)}", NOW)
    assert (first.primary_key, first.secondary_key) == ("key 1", "key 2")
    assert (second.primary_key, second.secondary_key) == ("mine", "key 3")
    assert first.created_at == first.modified_at == NOW


def test_a_new_entity_is_as_described_with_its_keys() -> None:
    plan = EntityPlan(description=QueueDescription(name="q", lock_duration=5.0), keys=(wanted(),))
    made = new_description(plan, lambda: "key", NOW)
    assert made.lock_duration == 5.0
    assert [each.key_name for each in made.authorization_rules] == ["web"]


def test_only_what_is_given_is_compared() -> None:
    stands = QueueDescription(name="Orders", lock_duration=30.0, max_delivery_count=3, default_ttl=60.0, created_at=5.0)
    plan = EntityPlan(
        description=QueueDescription(name="orders", lock_duration=30.0, default_ttl=math.inf),
        given=frozenset({"lock_duration", "default_ttl"}),
    )
    assert changed_description(stands, plan, lambda: "key", NOW) == (replace(stands, default_ttl=math.inf), [])
    assert changed_description(replace(stands, default_ttl=math.inf), plan, lambda: "key", NOW) == (None, [])


@pytest.mark.parametrize(
    ("stands", "properties"),
    [
        (QueueDescription(name="q"), {"requires_session": True, "lock_duration": 5.0}),
        (SubscriptionDescription(topic="t", name="s"), {"requires_session": True, "lock_duration": 5.0}),
        (TopicDescription(name="t"), {"requires_duplicate_detection": True, "default_ttl": 5.0}),
    ],
)
def test_what_is_fixed_is_told_and_the_rest_is_changed(
    stands: QueueDescription | TopicDescription | SubscriptionDescription, properties: dict[str, object]
) -> None:
    plan = EntityPlan(description=replace(stands, **properties), given=frozenset(properties))  # type: ignore[arg-type, type-var, misc]
    new, notes = changed_description(stands, plan, lambda: "key", NOW)  # type: ignore[type-var, misc]
    fixed, changed = sorted(properties, key=lambda name: not name.startswith("requires"))
    assert new == replace(stands, **{changed: properties[changed]})  # type: ignore[arg-type]
    (note,) = notes
    assert note.startswith(f"{fixed} can't become True; it stays False; it is fixed when the")


def test_keys_alone_are_a_change() -> None:
    stands = QueueDescription(name="q", authorization_rules=(rule(),))
    plan = EntityPlan(description=QueueDescription(name="q"), keys=(wanted(),))
    assert changed_description(stands, plan, lambda: "key", NOW) == (None, [])
    plan = replace(plan, keys=(wanted("job"),))
    new, _ = changed_description(stands, plan, lambda: "key", NOW)
    assert new is not None
    assert [each.key_name for each in new.authorization_rules] == ["web", "job"]
