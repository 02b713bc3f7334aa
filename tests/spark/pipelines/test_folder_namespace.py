"""Which namespace a table or an archive belongs to. With Spark: test_ingest_proof and test_move_proof."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pairbus.broker import serve_sync
from pairbus.spark.connector import connections
from pairbus.spark.connector.options import Address
from pairbus.spark.pipelines.archive import Archiver, archived
from pairbus.spark.pipelines.folder_namespace import check_single, claim, name_of, namespaces_in
from pairbus.spark.pipelines.preflight import TransferFailed
from pairbus.spark.pipelines.table_files import HadoopFiles, LocalFiles
from tests.spark.conftest import MakeQueue, Pair, wire

from .test_table_files import Store

SECOND = "holds messages of the namespace contoso, and this is backup: a message is known there by entity"


def test_a_second_namespace_is_refused_and_the_same_one_goes_on(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "new")
    claim(files, "contoso", "new", False)
    assert files.root_names() == ["_pairbus.namespace.contoso"]
    claim(files, "contoso", "new", False, pytest.fail)
    with pytest.raises(TransferFailed, match=SECOND):
        claim(files, "backup", "new", False)
    assert namespaces_in(files.root_names()) == ["contoso"]


def test_a_namespace_that_has_another_name_now_is_taken_where_the_user_says_so(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    claim(files, "contoso", "t", False)
    claim(files, "bus.example.org:5673", "t", True)
    assert namespaces_in(files.root_names()) == ["bus.example.org:5673"]
    claim(files, "bus.example.org:5673", "t", False)


@pytest.mark.parametrize("kind", ["enqueued_date=2026-11-17", "batch=20261116T024500-1f3a-0001"])
def test_a_folder_of_an_earlier_version_is_taken_over_where_nothing_can_be_confused(tmp_path: Path, kind: str) -> None:
    (tmp_path / kind).mkdir()
    files = LocalFiles(tmp_path)
    with pytest.raises(TransferFailed, match=r"written by an earlier version, .* same_namespace=True"):
        claim(files, "contoso", "t", False, lambda: True)
    assert namespaces_in(files.root_names()) == []
    claim(files, "contoso", "t", False, lambda: False)
    with pytest.raises(TransferFailed, match=SECOND):
        claim(files, "backup", "t", False, lambda: False)


def test_of_two_that_begin_at_the_same_moment_elsewhere_not_both_go_on() -> None:
    store = Store()
    files = HadoopFiles(store.spark, "abfss://lake/t")
    claim(files, "contoso", "t", False)
    assert namespaces_in(files.root_names()) == ["contoso"]
    other = HadoopFiles(store.spark, "abfss://lake/u")
    store.meanwhile[store.done + 2] = lambda: store.write("abfss://lake/u/_pairbus.namespace.contoso", "")
    with pytest.raises(TransferFailed, match=SECOND):
        claim(other, "backup", "u", False)
    assert namespaces_in(other.root_names()) == ["contoso"]


def test_a_folder_with_messages_of_two_namespaces_is_not_restored(tmp_path: Path) -> None:
    check_single(["batch=1", "_pairbus.namespace.contoso"], "t")
    for name in ("contoso", "backup"):
        (tmp_path / f"_pairbus.namespace.{name}").touch()
    with pytest.raises(TransferFailed, match=r"messages of the namespaces backup and contoso, .* delete _pairbus.name"):
        archived(SimpleNamespace(), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("remove", [False, True])
def test_an_archive_refuses_a_second_namespace(
    pair: Pair, make_queue: MakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: bool
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(Archiver, "_copy", lambda self, spark: taken.append("copied"))
    monkeypatch.setattr(Archiver, "_take_away", lambda self, spark: taken.append("taken away"))
    for namespace, address in ((pair.primary, pair.primary_address), (pair.secondary, pair.secondary_address)):
        make_queue(namespace, "orders")
        with wire(namespace) as client:
            client.sender("orders").send(b"\x00Su\xa0\x01x")
        archiver = Archiver(address, "orders", tmp_path, remove=remove)
        archiver._start = lambda: SimpleNamespace()  # type: ignore[assignment,misc,return-value]
        if namespace is pair.primary:
            archiver.run()
        else:
            with pytest.raises(TransferFailed, match=SECOND):
                archiver.run()
    assert len(taken) == 1


def test_a_namespace_is_known_on_another_port_by_another_name_of_its_host(tmp_path: Path) -> None:
    names: set[str] = set()
    ports: set[int] = set()
    for _ in range(2):
        with serve_sync("contoso", data=tmp_path) as broker:
            namespace = broker.namespaces["contoso"]
            ports.add(namespace.port)
            for host in ("localhost", "127.0.0.1", "LOCALHOST"):
                text = namespace.connection_string.replace(namespace.host, host, 1)
                names.add(name_of(Address(text), "contoso"))
            connections.close_all()
    assert names == {"contoso"} and ports


def test_a_namespace_that_can_t_be_reached_is_told() -> None:
    with pytest.raises(TransferFailed, match=r"the namespace can't be reached: .*; check host and port"):
        name_of(Address("Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"), "the namespace")
    connections.close_all()
