"""What a table refuses before Spark is started, and how a file gets into it. Other file systems are in memory here, and
Spark's own in test_ingest_proof."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.spark.pipelines import table_files
from pairbus.spark.pipelines.ingest import Ingester
from pairbus.spark.pipelines.message_table import LOCK_FILE
from pairbus.spark.pipelines.preflight import TransferFailed
from pairbus.spark.pipelines.table_files import LEASE_S, HadoopFiles, Lease, LocalFiles, check_table, leased, owned
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


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found: list[Path] = []
    sync = table_files.sync
    monkeypatch.setattr(table_files, "sync", lambda path: (found.append(path), sync(path)))
    return found


def stage(table: Path, name: str) -> str:
    file = table / "_staging" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"rows")
    return f"file://{file}"


def test_each_folder_that_is_made_outlasts_a_power_cut(tmp_path: Path, synced: list[Path]) -> None:
    table = tmp_path / "new" / "table"
    assert check_table(table) == table
    assert synced == [tmp_path, tmp_path / "new"]
    assert check_table(table) == table and len(synced) == 2, "it was there"


def test_a_day_that_a_killed_run_may_have_left_unsynced_is_synced_once(tmp_path: Path, synced: list[Path]) -> None:
    day = tmp_path / "enqueued_date=2026-11-17"
    day.mkdir()
    files = LocalFiles(tmp_path)
    for name in ("a", "b"):
        files.commit(stage(tmp_path, name), "2026-11-17", f"{name}.parquet")
    staged = tmp_path / "_staging"
    assert synced == [tmp_path, staged / "a", day, staged / "b", day]


def test_a_folder_above_that_may_not_be_read_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(table_files, "sync", refuse)
    assert check_table(tmp_path / "table") == tmp_path / "table"


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
    for log in ("_delta_log", "_spark_metadata", ".hoodie"):
        folder = tmp_path / f"with {log}"
        (folder / log).mkdir(parents=True)
        (folder / "enqueued_date=2026-11-17").mkdir()
        with pytest.raises(TransferFailed, match=re.escape(f"holds a table with a log ({log}) and is no table of")):
            check_table(folder)
        assert sorted(os.listdir(folder)) == sorted([log, "enqueued_date=2026-11-17"]), "left as it was"


def test_an_empty_entity_is_drained_without_spark(pair: Pair, make_queue: MakeQueue, tmp_path: Path) -> None:
    make_queue(pair.primary, "orders")
    ingester = Ingester(pair.primary_address, "orders", tmp_path / "table", drain=True)
    assert ingester.run() == [] and ingester.report().remaining == 0
    assert repr(ingester) == f"<Ingester orders to {tmp_path / 'table'}: 0 ingested>"


# -- elsewhere


class Store:
    """A file system elsewhere, as Spark's JVM shows it, with a clock of its own in milliseconds."""

    def __init__(self) -> None:
        self.now = 5_000_000
        #: path → text, and when it was written.
        self.files: dict[str, tuple[bytes, int]] = {}
        self.loses_answers = False
        #: What happens elsewhere just before the n-th thing that is done here, the first of which is 0.
        self.meanwhile: dict[int, Callable[[], None]] = {}
        self.done = 0

    def _step(self) -> None:
        happens = self.meanwhile.pop(self.done, None)
        self.done += 1
        if happens is not None:
            happens()

    @property
    def spark(self) -> Any:
        """What `HadoopFiles` wants of a session."""

        def path(text: str) -> Any:
            return SimpleNamespace(text=text, getName=lambda: text.rpartition("/")[2], getFileSystem=lambda conf: self)

        hadoop = SimpleNamespace(apache=SimpleNamespace(hadoop=SimpleNamespace(fs=SimpleNamespace(Path=path))))
        jvm = SimpleNamespace(org=hadoop, java=SimpleNamespace(net=SimpleNamespace(URI=str)))
        return SimpleNamespace(
            sparkContext=SimpleNamespace(_jvm=jvm, _jsc=SimpleNamespace(hadoopConfiguration=lambda: None))
        )

    def write(self, path: str, text: str, age_s: float = 0.0) -> None:
        self.files[path] = (text.encode(), self.now - int(age_s * 1000))

    # -- as Hadoop's FileSystem

    def exists(self, path: Any) -> bool:
        self._step()
        return any(f"{each}/".startswith(f"{path.text}/") for each in self.files)

    def listStatus(self, folder: Any) -> list[Any]:
        self._step()
        begin = f"{folder.text}/"
        inside = {each.removeprefix(begin).partition("/")[0] for each in self.files if each.startswith(begin)}
        return [
            SimpleNamespace(
                getPath=lambda name=name: SimpleNamespace(getName=lambda: name),
                getModificationTime=lambda name=name: self.files.get(f"{begin}{name}", (b"", 0))[1],
            )
            for name in inside
        ]

    def mkdirs(self, path: Any) -> None:
        self._step()

    def rename(self, source: Any, target: Any) -> bool:
        self._step()
        if source.text not in self.files:
            return False
        self.files[target.text] = self.files.pop(source.text)
        return not self.loses_answers

    def delete(self, path: Any, recursive: bool) -> None:
        self._step()
        self.files = {each: found for each, found in self.files.items() if not f"{each}/".startswith(f"{path.text}/")}

    def create(self, path: Any, overwrite: bool) -> Any:
        self._step()

        def write(data: bytearray) -> None:
            self.files[path.text] = (bytes(data), self.now)

        return SimpleNamespace(write=write, close=lambda: None)


TABLE = "s3a://lake/table"
LOCK = f"{TABLE}/{LOCK_FILE}.another"


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("batch=1/part.parquet", "an archive"),
        ("_delta_log/0.json", r"a table with a log \(_delta_log\)"),
        ("notes.txt", r"something else \(notes.txt\)"),
    ],
)
def test_a_folder_elsewhere_that_is_no_table_is_refused_and_left_as_it_is(store: Store, name: str, what: str) -> None:
    store.write(f"{TABLE}/{name}", "x")
    before = dict(store.files)
    with pytest.raises(TransferFailed, match=f"{TABLE} holds {what} and is no table of `ingest`"):
        leased(store.spark, TABLE).__enter__()
    assert store.files == before


def test_a_table_elsewhere_is_held_and_let_go(store: Store) -> None:
    store.write(f"{TABLE}/enqueued_date=2026-11-17/x.parquet", "rows")
    store.write(f"{TABLE}/_staging/y", "rows")
    before = dict(store.files)
    with leased(store.spark, TABLE) as files:
        assert files.lease is not None and f"{TABLE}/{files.lease.name}" in store.files
        assert files.names("2026-11-17") == ["x.parquet"]
    assert store.files == before


@pytest.mark.parametrize("driver_ahead_s", [-10_000_000.0, 0.0, 10_000_000.0])
def test_how_old_a_lock_is_the_file_system_s_clock_tells(
    store: Store, monkeypatch: pytest.MonkeyPatch, driver_ahead_s: float
) -> None:
    monkeypatch.setattr("time.time", lambda: store.now / 1000 + driver_ahead_s)
    store.write(LOCK, "somebody", age_s=LEASE_S - 1)
    with pytest.raises(TransferFailed, match=r"another ingest writes to s3a.* ends 120 s after its last renewal"):
        leased(store.spark, TABLE).__enter__()
    assert [*store.files] == [LOCK], "nothing is left of the question"
    store.write(LOCK, "somebody", age_s=LEASE_S + 1)
    with leased(store.spark, TABLE):
        assert len(store.files) == 1 and LOCK not in store.files
    assert not store.files


@pytest.mark.parametrize("abandoned", [True, False])
def test_of_two_that_want_a_lock_at_once_never_both_have_it(store: Store, abandoned: bool) -> None:
    """One stalls before anything that it does, for as long as the other needs to have the lock."""
    with contextlib.ExitStack() as others:
        for stalls_before in range(100):
            store.files, store.done = {}, 0
            if abandoned:
                store.write(LOCK, "a dead one", age_s=LEASE_S + 1)
            store.meanwhile = {stalls_before: lambda: take_or_not(others)}
            took: list[HadoopFiles] = []

            def take_or_not(stack: contextlib.ExitStack, took: list[HadoopFiles] = took) -> None:
                with contextlib.suppress(TransferFailed):
                    took.append(stack.enter_context(leased(store.spark, TABLE)))

            take_or_not(others)
            assert len(took) <= 1, stalls_before
            if store.meanwhile:
                break
        assert stalls_before > 2 and len(took) == 1, "undisturbed it has it"


def test_what_an_owner_renames_too_late_is_found_by_the_next_or_is_not_there_any_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: store.now / 1000)
    monkeypatch.setattr(table_files, "time", clock)
    staged = f"{TABLE}/_staging/run/x"
    with contextlib.ExitStack() as others:

        def another_takes_over() -> None:
            store.now += int(LEASE_S * 1000) + 1
            others.enter_context(leased(store.spark, TABLE)).clear()

        for stalls_before in range(100):
            store.files = {}
            with leased(store.spark, TABLE) as files:
                store.write(staged, "rows")
                store.done, store.meanwhile = 0, {stalls_before: another_takes_over}
                with contextlib.suppress(OSError, TransferFailed):
                    files.commit(staged, "2026-11-17", "x.parquet")
                overtaken = not store.meanwhile
                store.meanwhile = {}
                assert (files.names("2026-11-17") == []) == overtaken, stalls_before
                if overtaken:
                    store.write(f"{TABLE}/_staging/next/y", "rows of the next owner")
                    files.clear()
                    assert f"{TABLE}/_staging/next/y" in store.files
                    with pytest.raises(TransferFailed, match="another may have it; run again"):
                        files.commit(staged, "2026-11-17", "x.parquet")
            if not overtaken:
                break
        assert stalls_before > 1


def test_a_renewal_that_comes_too_late_does_not_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "RENEW_S", 0.0)
    clock = SimpleNamespace(monotonic=lambda: store.now / 1000)
    monkeypatch.setattr(table_files, "time", clock)
    lease = Lease()
    files = HadoopFiles(store.spark, TABLE, lease)

    def stalls() -> None:
        store.now += int(LEASE_S * 1000)

    store.meanwhile = {2: stalls}
    lease.renew_on(files)  # and returns
    assert store.done == 3
    with pytest.raises(TransferFailed, match="another may have it; run again"):
        files.check_owned()


def test_a_rename_whose_answer_was_lost_was_done_all_the_same(store: Store) -> None:
    files = HadoopFiles(store.spark, TABLE)
    store.write(f"{TABLE}/_staging/x", "rows")
    store.loses_answers = True
    files.commit(f"{TABLE}/_staging/x", "2026-11-17", "x.parquet")
    assert files.names("2026-11-17") == ["x.parquet"]
    with pytest.raises(OSError, match="could not be renamed"):
        files.commit(f"{TABLE}/_staging/x", "2026-11-17", "y.parquet")
