"""What an archive refuses before Spark starts, and how it removes. The round trip is in test_move_proof."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.connector.process_mailbox import ProcessMailbox
from pairbus.spark.pipelines import archive as archive_module
from pairbus.spark.pipelines.archive import Archiver, Restorer, _check_way_back, archived
from pairbus.spark.pipelines.preflight import TransferFailed
from pairbus.spark.pipelines.restore_sink import SENT
from pairbus.spark.pipelines.transfer import Job

from ..conftest import Pair


def test_a_folder_that_is_no_archive_is_told_without_spark(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no archive")
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(TransferFailed, match=r"holds no messages: it has neither batch=.* FOLDER of `archive`"):
            Restorer(folder, pair.primary_address).run()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("orders/$DeadLetterQueue", "dead letters can't be put back there; name the ENTITY .* such as orders$"),
        ("news/Subscriptions/all", "what a subscription got can't be put back there; .* such as news$"),
    ],
)
def test_what_has_no_way_back_wants_a_destination(path: str, words: str) -> None:
    _check_way_back("orders")
    with pytest.raises(TransferFailed, match=words):
        _check_way_back(path)


def test_the_source_is_checked_before_spark_starts(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(TransferFailed, match="has no queue or subscription 'nowhere'"):
        Archiver(pair.primary_address, "nowhere", tmp_path).run()
    assert repr(Archiver(pair.primary_address, "orders", "x")) == "<Archiver orders to x: 0 archived>"


class Read(Exception):
    """Stands for what Spark would read."""


def read(path: str) -> Any:
    raise Read(path)


def test_paths_are_read_as_they_are_and_not_as_patterns(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = SimpleNamespace(read=SimpleNamespace(parquet=read))
    folder = tmp_path / "t[1]"
    shown = f"file:{tmp_path}/t\\[1\\]"
    with pytest.raises(Read) as found:
        archived(spark, folder)
    assert str(found.value) == shown
    archiver = Archiver(pair.primary_address, "orders", folder)
    rows: Any = SimpleNamespace(write=SimpleNamespace(parquet=lambda path: None))
    with pytest.raises(Read) as found:
        archiver._write(spark, rows, 1)
    assert str(found.value) == f"{shown}/batch={archiver._name}-0001"
    monkeypatch.setattr(archiver, "_write", lambda *given: (1, 1))
    batch: Any = SimpleNamespace(load=lambda spark: None)
    with pytest.raises(Read) as found:
        archiver._round(spark, None, batch, 2)  # type: ignore[arg-type]
    assert str(found.value) == f"{shown}/batch={archiver._name}-0002"


def test_a_wrong_patience_is_told(pair: Pair) -> None:
    for wrong in (-1, "x", float("nan")):
        with pytest.raises(InvalidOption, match="patience_s is a number of seconds of at least 0, not "):
            Archiver(pair.primary_address, "orders", "x", patience_s=wrong)  # type: ignore[arg-type]


def test_a_restore_s_progress_is_what_its_tasks_say_and_never_more_than_there_is(pair: Pair, tmp_path: Path) -> None:
    restorer = Restorer(tmp_path, pair.primary_address)
    restorer.progress.counted(30)
    restorer._to_go = {"orders": (20, 2000), "bills": (10, 500)}
    restorer._mailbox = mailbox = ProcessMailbox(tmp_path)
    assert restorer.report().moved == 0
    mailbox.append(SENT, {"to": "orders", "messages": 15, "bytes": 1400})
    mailbox.append(SENT, {"to": "bills", "messages": 4, "bytes": 200})
    found = restorer.report()
    assert (found.moved, found.moved_bytes, found.remaining) == (19, 1600, 11)
    mailbox.append(SENT, {"to": "orders", "messages": 15, "bytes": 1400})  # a task that was run again
    found = restorer.report()
    assert (found.moved, found.moved_bytes, found.remaining) == (24, 2200, 6)
    assert {path: tally.moved for path, tally in found.destinations.items()} == {"orders": 20, "bills": 4}


def test_a_stop_cancels_until_the_job_has_ended(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cancel is lost on a job that Spark is still planning."""
    monkeypatch.setattr(archive_module, "CANCEL_S", 0.0)
    restorer = Restorer(tmp_path, pair.primary_address)
    cancelled: list[str] = []

    class Context:
        def cancelJobsWithTag(self, tag: str) -> None:
            cancelled.append(tag)
            if len(cancelled) == 3:
                restorer._job = None

    restorer._job = Job(SimpleNamespace(sparkContext=Context()), "mark")  # type: ignore[arg-type]
    restorer._break_off()
    assert cancelled == ["mark"] * 3
