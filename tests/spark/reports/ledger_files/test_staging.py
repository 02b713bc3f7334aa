from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import parquet

from pairbus.spark.reports.ledger_files.staging import Stage

from ...ledger_file import LedgerFile


def test_lines_become_temporary_parquet_and_odd_ones_are_left_to_spark(tmp_path: Path) -> None:
    with LedgerFile(tmp_path, "client") as good, LedgerFile(tmp_path, "client", pid=2) as odd:
        good("send", 1.0, "orders", "a").cut()
        odd("send", 1.0, "orders", colour="red")
    with good.path.open("a") as file:
        file.write('{"t":2.0,"ki')
    stage = Stage([good.path, odd.path])
    assert stage.left == [odd.path] and list(stage.files.values()) == [good.path]
    (made,) = stage.folder.iterdir()
    assert str(made) in stage.files and stage.folder.stat().st_mode & 0o777 == 0o700
    rows = parquet.read_table(made).to_pylist()
    assert [(row["kind"], row["mid"], row["_bad"] is None) for row in rows] == [
        (None, None, True), ("send", "a", True), (None, None, False),
    ]  # fmt: skip
    stage.remove()
    assert not stage.folder.exists()


def test_without_room_on_the_disk_spark_reads_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with LedgerFile(tmp_path, "client") as book:
        pass
    monkeypatch.setattr(parquet.ParquetWriter, "write_table", full)
    stage = Stage([book.path])
    assert stage.left == [book.path] and list(stage.folder.iterdir()) == []
    stage.remove()


def test_nothing_to_stage() -> None:
    stage = Stage([])
    assert stage.files == {} and stage.left == []
    stage.remove()
