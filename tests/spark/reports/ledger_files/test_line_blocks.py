from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from pairbus.spark.reports.ledger_files import line_blocks
from pairbus.spark.reports.ledger_files.line_blocks import (
    NotAsIs,
    blocks,
    first_line_of,
    line_schema,
    opened,
    parsed,
    rows_of,
    rows_of_last,
)


def test_blocks_hold_whole_lines_but_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "BLOCK_BYTES", 10)
    assert list(blocks(io.BytesIO(b"aaa\nbbb\ncccc\ndd"))) == [b"aaa\nbbb\n", b"cccc\n", b"dd"]
    assert list(blocks(io.BytesIO(b""))) == []
    with pytest.raises(NotAsIs, match="longer than 10 bytes"):
        list(blocks(io.BytesIO(b"a" * 30)))


def test_a_half_last_line_is_a_bad_one_and_a_whole_one_is_read() -> None:
    schema = line_schema()
    (row,) = rows_of_last(b'{"t":1.5,"kind":"se', schema).to_pylist()
    assert row["_bad"] == '{"t":1.5,"kind":"se' and row["t"] is None
    (row,) = rows_of_last(b'{"t":1.5,"kind":"send"}', schema).to_pylist()
    assert (row["_bad"], row["t"], row["kind"]) == (None, 1.5, "send")


def test_whole_numbers_of_seconds_are_read_as_seconds() -> None:
    (row,) = rows_of(b'{"t":3,"ms":null}\n', line_schema()).to_pylist()
    assert (row["t"], row["ms"]) == (3.0, None)


def test_compressed_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x\n"))
    with opened(tmp_path / "a.jsonl.gz") as file:
        assert file.read() == b"x\n"


@pytest.mark.parametrize("line", [b"", b"[1]", b"{", b"\xff"])
def test_what_is_no_object_is_none(line: bytes) -> None:
    assert parsed(line) is None


def test_parquet_of_others_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.parquet").write_bytes(b"PAR1")
    with pytest.raises(NotAsIs, match="did not write it"):
        first_line_of(tmp_path / "a.jsonl.parquet")
