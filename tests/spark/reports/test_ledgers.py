"""What is no ledger is said before Spark starts; the reading itself is in test_reports_proof."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pairbus.errors import PairbusError
from pairbus.spark.reports.ledgers import BadLedger, check_first_line, check_ledgers, file_name, size_of

from ..ledger_file import LedgerFile


def test_a_folder_a_file_and_a_remote_one_pass(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "deep" / "er", "client") as book:
        pass
    check_ledgers(tmp_path, book.path, "s3a://bucket/ledger")
    (tmp_path / "events").mkdir()
    (tmp_path / "files").mkdir()
    check_ledgers(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"what?", "the first line, which names its schema and its writer, is missing"),
        (b"\xff\xfe\n", "is missing"),
        (b"[1]\n", "is missing"),
        (b'{"schema": "1", "writer": "x"}\n', "is missing"),
        (b'{"schema": 7, "writer": "x"}\n', "schema 7, and this pairbus reads schema 1; update pairbus"),
        (b'{"schema": 0, "writer": "x"}\n', "read it with the pairbus that wrote it"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "odd.jsonl").write_bytes(content)
    with pytest.raises(BadLedger, match=r"odd\.jsonl") as raised:
        check_ledgers(tmp_path)
    assert said in str(raised.value) and isinstance(raised.value, PairbusError)


@pytest.mark.parametrize("content", [b"", b'{"schema": 1, "wri', b"\n"])
def test_an_empty_file_beside_a_ledger_is_passed_over_and_told(tmp_path: Path, content: bytes) -> None:
    with LedgerFile(tmp_path, "client") as book:
        pass
    (tmp_path / "client-7-000001.jsonl").write_bytes(content)
    assert check_ledgers(tmp_path) == [
        f"{tmp_path / 'client-7-000001.jsonl'} is empty and left out: what its writer did is unknown"
    ]
    assert check_ledgers(book.path) == []


def test_nothing_but_empty_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "client-7-000001.jsonl").touch()
    (tmp_path / "client-8-000001.jsonl").touch()
    with pytest.raises(BadLedger, match=r"client-7-000001\.jsonl and 1 more are empty: there is nothing to report"):
        check_ledgers(tmp_path)


def test_a_compressed_ledger_is_one(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "plain", "client") as book:
        pass
    packed = tmp_path / "packed" / "client-1-000001.jsonl.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(book.path.read_bytes()))
    assert check_ledgers(tmp_path / "packed", packed) == []
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(BadLedger, match=r"client-1-000001\.jsonl\.gz can't be unpacked"):
        check_ledgers(packed)


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "with space", "client") as book:
        pass
    check_ledgers((tmp_path / "with space").as_uri())
    assert size_of(book.path.as_uri()) == book.path.stat().st_size
    with pytest.raises(BadLedger, match="does not exist"):
        check_ledgers((tmp_path / "nowhere").as_uri())


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(BadLedger, match="does not exist; name a folder"):
        check_ledgers(tmp_path / "nowhere")
    with pytest.raises(BadLedger, match=r"holds no ledger: no \*\.jsonl file"):
        check_ledgers(tmp_path)


def test_a_good_first_line() -> None:
    check_first_line("x", 1, "client")


@pytest.mark.parametrize(
    ("uri", "file"),
    [
        ("file:///data/client-1-000001.jsonl", "/data/client-1-000001.jsonl"),
        ("file:/led%20%7Bg%7D+ers/%C3%A4.jsonl", "/led {g}+ers/ä.jsonl"),
        ("s3a://bucket/a%2Bb.jsonl", "s3a://bucket/a+b.jsonl"),
    ],
)
def test_a_file_is_called_as_people_do(uri: str, file: str) -> None:
    assert file_name(uri) == file


def test_how_much_there_is_to_read(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    with LedgerFile(lines / "deep", "client") as book:
        pass
    size = book.path.stat().st_size
    assert size_of(lines) == size_of(book.path) == size and size_of(lines, book.path) == 2 * size
    tables = tmp_path / "tables"
    for name in ("events", "files", "audit_messages"):
        (tables / name).mkdir(parents=True)
        (tables / name / "part.parquet").write_bytes(b"x" * 7)
    assert size_of(tables) == 70, "only events, and Parquet is denser"
    assert size_of(lines, "s3a://bucket/ledger") is None
