from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import parquet

from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.connector.refused_rows import RefusedRows


@pytest.mark.parametrize("is_url", [False, True])
def test_a_task_that_is_run_again_replaces_its_file(tmp_path: Path, is_url: bool) -> None:
    place = tmp_path / "deep" / "er"
    folder = place.as_uri() if is_url else str(place)
    for reason in ("first", "second"):
        rows = RefusedRows(folder, "task-1")
        rows.add([{"destination": "a", "reason": reason, "amqp": b"x"}])
        rows.add([{"destination": "b", "reason": reason, "columns": "{}"}])
        assert not (place / "task-1.parquet").exists() or reason == "second", "its name only when it is done"
        rows.finish()
    assert [path.name for path in place.iterdir()] == ["task-1.parquet"]
    table = parquet.read_table(place / "task-1.parquet").to_pylist()
    assert [(row["destination"], row["reason"], row["amqp"], row["columns"]) for row in table] == [
        ("a", "second", b"x", None),
        ("b", "second", None, "{}"),
    ]


def test_a_task_that_fails_leaves_nothing_and_one_without_refused_rows_no_file(tmp_path: Path) -> None:
    rows = RefusedRows(str(tmp_path), "task-1")
    rows.add([{"destination": "a"}])
    rows.discard()
    idle = RefusedRows(str(tmp_path), "task-2")
    idle.add([])
    idle.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_nobody_knows_is_named() -> None:
    with pytest.raises(InvalidOption, match="refusedPath 'nowhere://x' can't be written to"):
        RefusedRows("nowhere://x", "task-1")
