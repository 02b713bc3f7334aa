from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.control.control_commands import Commands, Granted, Listed, RuleWanted
from pairbus.broker.control.faults import Fault, Faults
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.refusal import Refusal
from pairbus.sas import AuthorizationRule

NOW = 1_700_000_000.0


@pytest.fixture
def faults() -> dict[str, Faults]:
    return {"contoso": Faults(), "fabrikam": Faults()}


@pytest.fixture
def commands(faults: dict[str, Faults]) -> Commands:
    return Commands(faults, lambda: {"pid": 42})


def test_fault_sets_it_on_the_named_namespace_alone(commands: Commands, faults: dict[str, Faults]) -> None:
    answer = commands.answer(
        {"command": "fault", "namespace": "contoso", "kind": "throttle", "entity": "orders", "rate": 2, "for": 30}, NOW
    )
    expected = Fault("throttle", entity="orders", rate=2, until=NOW + 30)
    assert answer == {"ok": True, "faults": [expected.as_json() | {"left_s": 30.0}]}
    assert faults["contoso"].active(NOW) == [expected]
    assert faults["fabrikam"].active(NOW) == []


def test_clear_tells_how_many_and_what_is_left(commands: Commands, faults: dict[str, Faults]) -> None:
    for each in (Fault("no-send"), Fault("no-send", entity="orders"), Fault("unreachable")):
        faults["contoso"].set(each)
    answer = commands.answer({"command": "clear", "namespace": "contoso", "kind": "no-send", "exact": True}, NOW)
    assert answer["cleared"] == 1
    assert [f["kind"] for f in answer["faults"]] == ["no-send", "unreachable"]
    assert commands.answer({"command": "clear", "namespace": "contoso"}, NOW) == {
        "ok": True,
        "cleared": 2,
        "faults": [],
    }


def test_list_and_status(commands: Commands, faults: dict[str, Faults]) -> None:
    faults["contoso"].set(Fault("no-send", until=NOW + 1))
    listed = {"contoso": [{"kind": "no-send", "until": NOW + 1, "left_s": 1.0}], "fabrikam": []}
    assert commands.answer({"command": "list"}, NOW) == {"ok": True, "namespaces": listed}
    assert commands.answer({"command": "list", "namespace": "fabrikam"}, NOW) == {
        "ok": True,
        "namespaces": {"fabrikam": []},
    }
    assert commands.answer({"command": "status"}, NOW) == {"ok": True, "pid": 42, "namespaces": listed}
    assert commands.answer({"command": "list"}, NOW + 1)["namespaces"] == {"contoso": [], "fabrikam": []}


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({}, "there is no command None; the commands are fault, clear, list, status, rule, left"),
        ({"command": "stop"}, "the commands are"),
        ({"command": ["fault"]}, "the commands are"),
        ({"command": "fault", "namespace": "contoso"}, "there is no fault ''; the kinds are"),
        ({"command": "fault", "kind": "no-send"}, "no namespace '' is served here; there is contoso, fabrikam"),
        ({"command": "clear", "namespace": "Contoso2"}, "there is contoso, fabrikam"),
        ({"command": "fault", "namespace": "contoso", "kind": "no-send", "partition": 16}, "0 to 15"),
        ({"command": "fault", "namespace": "contoso", "kind": "no-send", "node": 1}, "crash-node does"),
        ({"command": "fault", "namespace": "contoso", "kind": "no-send", "machine": 1}, "fault knows no machine"),
        ({"command": "status", "x": 1}, "it takes nothing"),
        ({"command": "fault", "namespace": 7, "kind": "no-send"}, "namespace of fault must be a string, not 7"),
        ({"command": "fault", "namespace": "contoso", "kind": "no-send", "for": 0}, "for 0 is out of bounds"),
        ({"command": "fault", "namespace": "contoso", "kind": "no-send", "for": "9"}, "for '9' is out of bounds"),
        ({"command": "fault", "namespace": "contoso", "kind": "throttle", "rate": "x"}, "rate 'x'"),
    ],
)
def test_a_wrong_command_changes_nothing_and_is_told_what_is_right(
    commands: Commands, faults: dict[str, Faults], message: dict[str, Any], says: str
) -> None:
    answer = commands.answer(message, NOW)
    assert answer["ok"] is False
    assert says in answer["error"]
    assert "\n" not in answer["error"]
    assert not faults["contoso"]


RULE = AuthorizationRule(key_name="k", rights=("Send",), primary_key="secret-1", secondary_key="secret-2")


def told(commands: Commands, message: dict[str, Any]) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    commands.begin(message, NOW, answers.append)
    (answer,) = answers
    return answer


def test_rule_is_made_where_it_is_wanted_and_answered_with_its_keys(faults: dict[str, Faults]) -> None:
    asked = []

    def grant(wanted: RuleWanted, now: float, done: Granted) -> None:
        asked.append(wanted)
        done(RULE)

    commands = Commands(faults, grant=grant)
    message = {"command": "rule", "namespace": "contoso", "name": "k", "rights": ["Send"]}
    assert told(commands, message) == {
        "ok": True, "name": "k", "rights": ["Send"], "primary_key": "secret-1", "secondary_key": "secret-2",
    }  # fmt: skip
    told(commands, message | {"entity": "orders"})
    assert asked == [RuleWanted("contoso", "k", ("Send",), None), RuleWanted("contoso", "k", ("Send",), "orders")]
    assert told(commands, {"command": "list"})["ok"] and not told(commands, {"command": "stop"})["ok"]


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (InvalidDescription("rights", "Fly", "one or more of Manage"), "rights may not be 'Fly'"),
        (Refusal("amqp:not-found", "there is no such queue"), "there is no such queue"),
        (OSError("/a/path"), "could not be written"),
    ],
)
def test_a_rule_that_was_not_made(faults: dict[str, Faults], result: Any, says: str) -> None:
    commands = Commands(faults, grant=lambda wanted, now, done: done(result))
    answer = told(commands, {"command": "rule", "namespace": "contoso", "name": "k", "rights": ["Send"]})
    assert not answer["ok"] and says in answer["error"] and "/a/path" not in answer["error"]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({}, "no namespace '' is served here"),
        ({"namespace": "other"}, "there is contoso, fabrikam"),
        ({"namespace": "contoso", "name": "k"}, "rights of rule must be a list"),
        ({"namespace": "contoso", "name": "k", "rights": "Send"}, "rights of rule must be a list"),
        ({"namespace": "contoso", "name": "k", "rights": [1]}, "rights of rule must be a list"),
        ({"namespace": "contoso", "name": 1, "rights": []}, "name of rule must be a string"),
        ({"namespace": "contoso", "name": "k", "rights": [], "entity": None}, "entity of rule must be a string"),
        ({"namespace": "contoso", "key": "k"}, "rule knows no key; it takes entity, name, namespace, rights"),
    ],
)
def test_a_rule_that_is_wrongly_asked_for(faults: dict[str, Faults], message: dict[str, Any], says: str) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    answer = told(Commands(faults, grant=never), {"command": "rule"} | message)
    assert answer["ok"] is False and says in answer["error"]


@pytest.mark.parametrize(
    ("found", "answer"), [(7, {"ok": True, "left": 7}), ("no ledger", {"ok": False, "error": "no ledger"})]
)
def test_left_is_answered_when_it_is_written(
    faults: dict[str, Faults], found: int | str, answer: dict[str, Any]
) -> None:
    asked: list[str] = []

    def left(name: str, done: Listed) -> None:
        asked.append(name)
        done(found)

    assert told(Commands(faults, left=left), {"command": "left", "namespace": "contoso"}) == answer
    assert asked == ["contoso"]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({}, "no namespace '' is served here"),
        ({"namespace": "nowhere"}, "no namespace 'nowhere' is served here"),
        ({"namespace": "contoso", "entity": "q"}, "left knows no entity; it takes namespace"),
    ],
)
def test_left_wrongly_asked_for(faults: dict[str, Faults], message: dict[str, Any], says: str) -> None:
    def never(name: str, done: Listed) -> None:
        raise AssertionError("asked")

    assert says in told(Commands(faults, left=never), {"command": "left"} | message)["error"]


def test_without_a_broker_there_is_nobody_to_make_a_rule(commands: Commands) -> None:
    message = {"command": "rule", "namespace": "contoso", "name": "k", "rights": ["Send"]}
    assert "rule" in told(commands, message)["error"]
    assert "left is not for here" in told(commands, {"command": "left", "namespace": "contoso"})["error"]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(
    ["command", "namespace", "kind", "entity", "rate", "delay", "for", "exact", "name", "rights", "x"]
)
likely = st.sampled_from(
    ["fault", "rule", "left", "clear", "list", "status", "contoso", "no-send", "throttle", "latency", 1, 0.5]
)


@given(st.dictionaries(names, anything | likely, max_size=8))
def test_no_message_whatever_raises(message: dict[str, Any]) -> None:
    commands = Commands({"contoso": Faults()}, grant=lambda wanted, now, done: done(RULE))
    for answer in (commands.answer(message, NOW), told(commands, message)):
        assert answer["ok"] or answer["error"]


@pytest.mark.parametrize(
    ("entity", "says"),
    [
        (
            "ordres",
            "contoso has no 'ordres'; did you mean 'Orders'? the fault is in force for an entity of that name once",
        ),
        ("invoices", "contoso has no 'invoices'; the fault is in force for an entity of that name once it is made"),
        ("orders", None),
        ("ORDERS/$DeadLetterQueue", None),
        ("news/Subscriptions/all", None),
        (None, None),
    ],
)
def test_an_entity_that_is_not_there_is_told(faults: dict[str, Faults], entity: str | None, says: str | None) -> None:
    commands = Commands(faults, entities=lambda name: ["Orders", "news"] if name == "contoso" else [])
    message = {"command": "fault", "namespace": "contoso", "kind": "no-send"} | ({"entity": entity} if entity else {})
    answer = commands.answer(message, NOW)
    assert answer["ok"] and len(answer["faults"]) == 1
    assert (says is None) == ("note" not in answer)
    assert says is None or answer["note"].startswith(says)
