"""What a table refuses before Spark is started, and how a file gets into it. Other file systems are in
test_ingest_proof."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pairbus.spark.pipelines.ingest import Ingester
from pairbus.spark.pipelines.preflight import TransferFailed
from pairbus.spark.pipelines.table_files import LocalFiles, check_table, owned
from pairbus.spark.runtime.locations import BadLocation

from ..conftest import MakeQueue, Pair


def test_a_file_is_in_the_table_as_a_whole_or_not(tmp_path: Path) -> None:
    staged = tmp_path / "_staging" / "run 1" / "part.parquet"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"rows")
    files = LocalFiles(tmp_path)
    assert files.names("2026-11-17") == []
    files.commit(f"file://{str(staged).replace(' ', '%20')}", "2026-11-17", "x.parquet")
    assert files.names("2026-11-17") == ["x.parquet"] and not staged.exists()
    assert (tmp_path / "enqueued_date=2026-11-17" / "x.parquet").read_bytes() == b"rows"
    files.clear("run 1")
    files.clear()
    files.clear()
    assert os.listdir(tmp_path) == ["enqueued_date=2026-11-17"]


def test_one_ingest_at_a_time(tmp_path: Path) -> None:
    with owned(tmp_path, "there"), pytest.raises(TransferFailed, match="another ingest writes to there; stop it first"):
        owned(tmp_path, "there").__enter__()
    with owned(tmp_path, "there"):
        pass


def test_a_table_is_checked_before_spark_starts(
    pair: Pair, make_queue: MakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(pair.primary, "orders")

    def refused(entity: str, table: Path | str) -> str:
        with pytest.raises(TransferFailed) as found:
            Ingester(pair.primary_address, entity, table).run()
        return str(found.value)

    file = tmp_path / "file"
    file.write_text("x")
    assert "can't be written to: File exists; name another folder" in refused("orders", file)
    assert "can't be written to: Not a directory" in refused("orders", file / "below")
    (tmp_path / "archive" / "batch=1").mkdir(parents=True)
    assert "holds an archive and is no table of `ingest`" in refused("orders", tmp_path / "archive")
    assert "holds something else (archive)" in refused("orders", tmp_path)
    with pytest.raises(BadLocation, match="names a file of the machine elsewhere"):
        Ingester(pair.primary_address, "orders", "file://elsewhere/table")
    assert "has no queue or subscription 'nowhere'" in refused("nowhere", tmp_path / "table")
    assert "is not the name of one entity" in refused("orders,bills", tmp_path / "table")
    assert not (tmp_path / "table").exists(), "the entity is checked first"
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * 2**20))
        assert "has only 3 MB left, and an ingest wants at least 64; make room" in refused("orders", tmp_path / "t")
    assert check_table("abfss://lake@account/table") is None, "that Spark has to say"


def test_an_empty_entity_is_drained_without_spark(pair: Pair, make_queue: MakeQueue, tmp_path: Path) -> None:
    make_queue(pair.primary, "orders")
    ingester = Ingester(pair.primary_address, "orders", tmp_path / "table", drain=True)
    assert ingester.run() == [] and ingester.report().remaining == 0
    assert repr(ingester) == f"<Ingester orders to {tmp_path / 'table'}: 0 ingested>"
