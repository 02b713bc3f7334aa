"""The runner of the official SDK's tests: what it leaves out is named and reasoned, what it deals out is complete."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.sdk_suite import __main__ as runner

DESELECTED = Path(runner.__file__).with_name("deselected.toml")


def test_every_deselected_test_is_named_once_and_has_a_reason() -> None:
    kinds = tomllib.loads(DESELECTED.read_text())
    assert set(kinds) <= {"never", "later"}
    groups = [group for kind in kinds.values() for group in kind]
    assert all(group["reason"].endswith(".") for group in groups)
    names = [name for group in groups for name in group["tests"]]
    assert sorted(set(names)) == sorted(names)
    assert {name.partition("::")[0] for name in names} <= set(runner.FILES)


def test_a_deselected_name_covers_its_variants_and_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "HERE", tmp_path)
    listed = tmp_path / "deselected.toml"
    listed.write_text(
        '[[later]]\nreason = "Soon."\ntests = ["tests/test_a.py::test_x", "tests/test_a.py::test_y[ws]"]\n'
    )
    collected = [f"tests/test_a.py::Class::test_{name}" for name in ("x[amqp]", "x[ws]", "y[amqp]", "y[ws]")]
    found = runner.read_deselected(collected)
    assert list(found) == [collected[0], collected[1], collected[3]]
    assert {each.outcome for each in found.values()} == {"later"}
    with pytest.raises(runner.SuiteError, match="test_y"):
        runner.read_deselected(collected[:2])


def test_the_groups_hold_every_test_once() -> None:
    file = "tests/test_queues.py"
    tests = [f"{file}::Class::test_{number}" for number in range(50)] + ["tests/test_topic.py::Class::test_1"]
    groups = runner.make_groups(tests)
    assert sorted(test for group in groups for test in group.tests) == sorted(tests)
    assert len({group.name for group in groups}) == len(groups) == runner.FILES[file] + 1


def test_the_count_sets_apart_what_never_reached_the_broker() -> None:
    outcomes = [
        runner.Outcome("a.py::test_1", "passed"),
        runner.Outcome("a.py::test_2", "passed", facing=False),
        runner.Outcome("a.py::test_3", "failed", facing=False),
        runner.Outcome("b.py::test_4", "never"),
    ]
    assert runner.count(outcomes) == {"a.py": {"passed": 1, "no broker": 1, "failed": 1}, "b.py": {"never": 1}}


def test_a_missing_suite_is_said_with_the_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "SUITE", tmp_path / "sdk-suite")
    with pytest.raises(runner.SuiteError, match="check this repository out beside it"):
        runner.prepare()
