"""What earlier versions wrote opens today, and holds what it held. A new folder in data/ needs no new code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.frozen.scenario import examine, examine_with_spark
from tests.frozen.subjects import HERE, leaves
from tests.frozen.write_fixtures import opened

FIXTURES = sorted(each for each in (HERE / "data").iterdir() if each.is_dir())
pytestmark = pytest.mark.parametrize("fixture", FIXTURES, ids=[each.name for each in FIXTURES])


def expected(fixture: Path) -> Any:
    return json.loads((fixture / "expected.json").read_text())


def assert_holds(found: Any, before: Any) -> None:
    """Everything that was there is there with the same value; there may be more."""
    now = leaves(found)
    assert [f"{at}: {was} → {now.get(at)}" for at, was in leaves(before).items() if now.get(at) != was] == []


def test_a_data_folder_opens_with_all_that_was_in_it(fixture: Path, tmp_path: Path) -> None:
    before = expected(fixture)
    assert_holds(examine(opened(fixture, tmp_path) / "broker", before["now"]), before["broker"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ledgers_checkpoints_and_archives_go_on_from_where_they_were(fixture: Path, tmp_path: Path) -> None:
    from pairbus.spark import session

    before = expected(fixture)
    try:
        found = examine_with_spark(opened(fixture, tmp_path), tmp_path / "out", before["now"])
    finally:
        session().stop()  # other tests of this process start one with a master of their own
    assert_holds(found, before["spark"])
