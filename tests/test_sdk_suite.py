"""The runner of the official SDK's tests: what it leaves out is named and reasoned, what it divides is complete."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.sdk_suite import suite
from tests.sdk_suite.__main__ import count
from tests.sdk_suite.suite import FILES, HERE, ROOT, Outcome, SuiteError, fetch, make_groups, read_deselected


def test_the_source_package_is_that_of_the_sdk_that_is_installed() -> None:
    pinned, digest = (line.rstrip(" \\") for line in (HERE / "sdist.txt").read_text().splitlines()[1:])
    installed = (ROOT / "requirements-dev.txt").read_text()
    assert pinned == f"azure-servicebus=={suite.SDK_VERSION}"
    assert f"{pinned} \\\n" in installed
    assert digest in installed.partition(pinned)[2].partition("# via")[0]


def test_every_deselected_test_is_named_once_and_has_a_reason() -> None:
    kinds = tomllib.loads((HERE / "deselected.toml").read_text())
    assert set(kinds) <= {"never", "later"}
    groups = [group for kind in kinds.values() for group in kind]
    assert all(group["reason"].endswith(".") for group in groups)
    names = [name for group in groups for name in group["tests"]]
    assert sorted(set(names)) == sorted(names)
    assert {name.partition("::")[0] for name in names} <= set(FILES)


def test_a_deselected_name_covers_its_variants_and_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(suite, "HERE", tmp_path)
    listed = tmp_path / "deselected.toml"
    listed.write_text(
        '[[later]]\nreason = "Soon."\ntests = ["tests/test_a.py::test_x", "tests/test_a.py::test_y[ws]"]\n'
    )
    collected = [f"tests/test_a.py::Class::test_{name}" for name in ("x[amqp]", "x[ws]", "y[amqp]", "y[ws]")]
    found = read_deselected(collected)
    assert list(found) == [collected[0], collected[1], collected[3]]
    assert {each.outcome for each in found.values()} == {"later"}
    with pytest.raises(SuiteError, match="test_y"):
        read_deselected(collected[:2])


def test_the_groups_hold_every_test_once() -> None:
    file = "tests/test_queues.py"
    tests = [f"{file}::Class::test_{number}" for number in range(50)] + ["tests/test_topic.py::Class::test_1"]
    groups = make_groups(tests)
    assert sorted(test for group in groups for test in group.tests) == sorted(tests)
    assert len({group.name for group in groups}) == len(groups) == FILES[file] + 1


def test_the_count_sets_apart_what_never_reached_the_broker() -> None:
    outcomes = [
        Outcome("a.py::test_1", "passed"),
        Outcome("a.py::test_2", "passed", facing=False),
        Outcome("a.py::test_3", "failed", facing=False),
        Outcome("b.py::test_4", "never"),
    ]
    assert count(outcomes) == {"a.py": {"passed": 1, "no broker": 1, "failed": 1}, "b.py": {"never": 1}}


def test_a_source_package_that_pip_cannot_fetch_is_an_error_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(suite, "HERE", tmp_path)
    monkeypatch.setattr(suite, "CACHE", tmp_path / "cache")
    (tmp_path / "sdist.txt").write_text(f"--no-index\nazure-servicebus=={suite.SDK_VERSION}\n")
    with pytest.raises(SuiteError, match="reaches a package index"):
        fetch()
    assert list((tmp_path / "cache").iterdir()) == []
