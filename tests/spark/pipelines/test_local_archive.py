"""Archives and restores in this process. That Spark reads the files, and these read Spark's, is in test_move_proof."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pairbus.amqp.message import Properties, encode_message
from pairbus.spark.connector.options import Address
from pairbus.spark.connector.schema import Rows, read
from pairbus.spark.pipelines import archive as archive_module
from pairbus.spark.pipelines import local_archive, restore_sink, table_files
from pairbus.spark.pipelines.archive import Archiver, Restorer
from pairbus.spark.pipelines.folder_namespace import NAMESPACE_FILE
from pairbus.spark.pipelines.preflight import TransferFailed, count_at_most

from ..conftest import MakeQueue, Pair, peeked, wire


@pytest.fixture
def orders(pair: Pair, make_queue: MakeQueue) -> Address:
    make_queue(pair.primary, "orders", "bills")
    send(pair, 0, 30)
    return pair.primary_address


def send(pair: Pair, first: int, stop: int) -> None:
    with wire(pair.primary) as client:
        messages = [
            encode_message(properties=Properties(message_id=f"m{n}"), body=b"x" * 9) for n in range(first, stop)
        ]
        assert client.sender("orders").send_many(messages) == [None] * len(messages)


def ids(pair: Pair, entity: str) -> list[int]:
    return sorted(int(read(payload)["message_id"][1:]) for payload in peeked(pair.primary, entity))


def files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.rglob("*") if each.is_file() and NAMESPACE_FILE not in each.name)


def test_what_is_archived_comes_back_once(pair: Pair, orders: Address, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "archive"
    copy = Archiver(orders, "orders", folder, in_process=True)
    assert copy.run() == [] and (copy.archived, copy.report().moved) == (30, 30)
    assert ids(pair, "orders") == list(range(30)), "nothing is taken away"
    taken = Archiver(orders, "orders", folder, remove=True, in_process=True)
    assert taken.run() == [] and (taken.archived, taken.report().remaining) == (30, 0)
    assert ids(pair, "orders") == []
    assert local_archive.count(folder) == 60
    restorer = Restorer(folder, orders, "bills", in_process=True)
    assert restorer.run() == [] and restorer.report().moved == 30
    assert ids(pair, "bills") == list(range(30))
    back = Restorer(folder, orders, max_rate=1e6, in_process=True)
    assert back.run() == [] and ids(pair, "orders") == list(range(30)), "to where they came from"
    assert {path: each.moved for path, each in back.report().destinations.items()} == {"orders": 30}


def test_files_are_readable_by_their_owner_alone(pair: Pair, orders: Address, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert Archiver(orders, "orders", tmp_path / "archive", in_process=True).run() == []
    finally:
        os.umask(before)
    modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*.parquet")}
    assert modes == {".parquet": 0o600}


def test_an_empty_entity_makes_no_file(pair: Pair, make_queue: MakeQueue, tmp_path: Path) -> None:
    make_queue(pair.primary, "empty")
    for remove in (False, True):
        archiver = Archiver(pair.primary_address, "empty", tmp_path / "x", remove=remove, in_process=True)
        assert archiver.run() == [] and archiver.archived == 0
    local_archive.Batch(tmp_path / "batch=1").write([])
    assert files(tmp_path) == [] and local_archive.count(tmp_path) is None


def test_a_message_is_taken_away_only_when_its_file_and_the_name_are_on_the_disk(
    pair: Pair, orders: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def sync(path: Path) -> None:
        steps.append(f"sync {'file' if path.is_file() else 'folder with ' + str(len(files(path)))}")

    def settle(address: Address, entity: str, locked: dict[Any, int]) -> Any:
        steps.append(f"settle {len(locked)}")
        return settled(address, entity, locked)

    settled = archive_module.settle
    # the mark of the namespace is synced by table_files itself
    monkeypatch.setattr(local_archive, "sync", sync)
    monkeypatch.setattr(archive_module, "settle", settle)
    assert Archiver(orders, "orders", tmp_path, remove=True, in_process=True).run() == []
    assert steps == ["sync file", "sync folder with 1", "settle 30"]


@pytest.mark.parametrize("dies", ["writing", "settling"])
def test_a_run_that_dies_loses_nothing(
    dies: str, pair: Pair, orders: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        if dies == "writing":
            patch.setattr(local_archive, "sync", kill)
        else:
            patch.setattr(archive_module, "settle", kill)
        with pytest.raises(Killed):
            Archiver(orders, "orders", tmp_path, remove=True, in_process=True).run()
    assert ids(pair, "orders") == list(range(30)), "they come back when their locks end"
    assert len(files(tmp_path)) == (0 if dies == "writing" else 1)
    assert Archiver(orders, "orders", tmp_path, in_process=True).run() == []
    assert Restorer(tmp_path, orders, "bills", in_process=True).run() == []
    assert ids(pair, "bills") == list(range(30))


def test_a_full_disk_is_one_line(pair: Pair, orders: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(local_archive, "sync", full)
    monkeypatch.setattr("pairbus.spark.pipelines.transfer_loop.PAUSE_S_FIRST", 0.01)
    for remove in (False, True):
        archiver = Archiver(orders, "orders", tmp_path, remove=remove, in_process=True)
        with pytest.raises(TransferFailed, match=r"orders can't be archived to .*No space left on device"):
            archiver.run()
    assert ids(pair, "orders") == list(range(30)) and files(tmp_path) == []


def test_a_stop_ends_a_restore(pair: Pair, orders: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Archiver(orders, "orders", tmp_path, in_process=True).run() == []
    restorer = Restorer(tmp_path, orders, "bills", max_rate=10, in_process=True)
    confirmed = restore_sink.RestoreWriter.confirmed

    def stop(self: Any, target: str, messages: Any) -> None:
        confirmed(self, target, messages)
        restorer.stop()

    monkeypatch.setattr(restore_sink.RestoreWriter, "confirmed", stop)
    with pytest.raises(TransferFailed, match=r"was not restored as a whole: it was stopped; .* a rerun sends all"):
        restorer.run()
    assert 0 < len(ids(pair, "bills")) < 30


def test_messages_of_two_namespaces_are_not_restored(pair: Pair, orders: Address, tmp_path: Path) -> None:
    """Those of one would be taken for those of the other."""
    assert Archiver(orders, "orders", tmp_path, in_process=True).run() == []
    (tmp_path / f"{NAMESPACE_FILE}backup").touch()
    with pytest.raises(TransferFailed, match="holds messages of the namespaces backup and contoso"):
        Restorer(tmp_path, orders, "bills", in_process=True).run()
    assert ids(pair, "bills") == []


def test_the_rows_of_a_table_of_ingest_are_read(pair: Pair, orders: Address, tmp_path: Path) -> None:
    rows = Rows()
    for payload in peeked(pair.primary, "orders"):
        rows.add("orders", payload)
    table = local_archive._as_parquet(pa.Table.from_batches([rows.batch()]))
    day = tmp_path / "enqueued_date=2026-11-17"
    day.mkdir()
    parquet.write_table(table, day / "3fa29c01-1-30-0b5e.parquet")  # its times are in microseconds
    (tmp_path / "_staging" / day.name).mkdir(parents=True)
    parquet.write_table(table, tmp_path / "_staging" / day.name / "part-0.parquet")
    parquet.write_table(table, day / "_part-0.parquet")
    (tmp_path / "hour=2").mkdir()
    send(pair, 30, 31)
    rows.add("orders", peeked(pair.primary, "orders")[-1])
    more = local_archive._as_parquet(pa.Table.from_batches([rows.batch()]))
    parquet.write_table(more, tmp_path / "hour=2" / "compacted")  # Spark reads it, whoever wrote it
    with wire(pair.primary) as client:
        receiver = client.receiver("orders")
        receiver.complete(receiver.receive(1, max_wait=5))
    assert Archiver(orders, "orders", tmp_path, same_namespace=True, in_process=True).run() == []
    found = pa.Table.from_batches(local_archive.read(tmp_path, "bills"))
    assert found.num_rows == 31, "each once, the archive and the table have most of them both"
    assert set(found.column("destination").to_pylist()) == {"bills"}


def test_a_folder_of_an_earlier_version_that_holds_what_is_there_is_refused(
    pair: Pair, orders: Address, tmp_path: Path
) -> None:
    assert Archiver(orders, "orders", tmp_path, in_process=True).run() == []
    (mark,) = tmp_path.glob(f"{NAMESPACE_FILE}*")
    mark.unlink()
    with pytest.raises(TransferFailed, match="was written by an earlier version"):
        Archiver(orders, "orders", tmp_path, remove=True, in_process=True).run()
    with wire(pair.primary) as client:
        receiver = client.receiver("orders")
        receiver.complete(receiver.receive(30, max_wait=5))
    send(pair, 30, 31)
    assert Archiver(orders, "orders", tmp_path, in_process=True).run() == [], "what is there is not in the folder"


def test_what_is_no_archive_or_not_on_this_machine_is_told(orders: Address, tmp_path: Path) -> None:
    (tmp_path / "batch=1").mkdir()
    (tmp_path / "batch=1" / "x.parquet").write_text("no Parquet")
    with pytest.raises(TransferFailed, match=r"holds no archive: .*[Pp]arquet"):
        Restorer(tmp_path, orders, "bills", in_process=True).run()
    assert local_archive.count(tmp_path) is None
    parquet.write_table(pa.table({"amqp": [b"x"], "entity": ["orders"]}), tmp_path / "batch=1" / "x.parquet")
    with pytest.raises(TransferFailed, match=r"holds no archive: x\.parquet has no column enqueued_time"):
        Restorer(tmp_path, orders, "bills", in_process=True).run()
    for folder in ("s3a://bucket/archive", "abfss://lake@host/x"):
        with pytest.raises(TransferFailed, match="is not on this machine, and only Spark reaches it: run it with"):
            Archiver(orders, "orders", folder, in_process=True).run()
        with pytest.raises(TransferFailed, match="is not on this machine, and only Spark reaches it: run it with"):
            Restorer(folder, orders, "bills", in_process=True).run()


def test_without_the_manage_right_the_numbers_say_how_many_there_are_at_most(
    pair: Pair, orders: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wire(pair.primary) as client:
        receiver = client.receiver("orders")
        receiver.complete(receiver.receive(10, max_wait=5))
    assert count_at_most(Address(orders.connection_string, ca_file=pair.primary.ca_file), "orders") == 20
    assert count_at_most(orders, "orders") == 20, "the CA is not known, and nothing can be asked"
    assert count_at_most(orders, "nowhere") is None


def test_a_new_folder_outlasts_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(table_files, "sync", synced.append)
    local_archive.Batch(tmp_path / "a" / "batch=1").write([])
    assert synced == [tmp_path, tmp_path / "a"]
