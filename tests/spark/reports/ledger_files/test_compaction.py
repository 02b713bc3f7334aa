"""Compaction without Spark: every line and field is in the Parquet, whatever is not as we write it stays as it is, and
a kill at any step loses and doubles nothing. That the reports say the same of both is in test_reports_proof."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from pairbus.ledger import LedgerWriter
from pairbus.spark.reports.ledger_files import compaction, line_blocks
from pairbus.spark.reports.ledger_files.compaction import compact
from pairbus.spark.reports.ledgers import BadLedger

from ...ledger_file import LedgerFile

LINES = 50


def written(folder: Path, *, lines: int = LINES, pid: int = 1, number: int = 1) -> Path:
    with LedgerFile(folder, "broker", "contoso", pid=pid, number=number) as book:
        for n in range(lines):
            book("send", 10.0 + n, "orders", f"m{n}", seq=n + 1, bytes=900, units=1, ms=0.25, cause="app")
    return book.path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in parquet.ParquetFile(path).read().to_pylist()
    ]


def test_every_line_and_every_field_is_in_the_parquet_and_the_file_is_gone(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, "client", file_bytes_max=2_000)
    for n in range(60):
        writer.event("send", 1_700_000_000.123456 + n, "contoso", "orders", mid=f"é\U0001f600{n}", size=n * 9000, ms=n)
        writer.event("divert", 2.5, "backup", "orders", queue=3, rule="while suspect", why='a "reason"', given_ms=1.5)
        writer.event("state", 3.5, "contoso", "Orders", outcome=None, old="healthy", new="failed over")
        writer.flush()
    writer.skip(7)
    writer.close()
    before = {path.name: lines_of(path) for path in tmp_path.iterdir()}
    assert len(before) > 3, "it has rotated"
    found = compact(tmp_path)
    assert {path.name: rows_of(path) for path in tmp_path.iterdir()} == {
        f"{name}.parquet": lines for name, lines in before.items()
    }
    assert found.exit_code == 0 and found.left == []
    told = found.summary()
    assert (told["files"], told["lines"]) == (len(before), sum(map(len, before.values())))
    assert told["parquet_bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert compact(tmp_path).summary()["files"] == 0, "once is enough"


@given(
    st.lists(
        st.fixed_dictionaries(
            {"kind": st.sampled_from(["send", "receive", "settle"]), "t": st.floats(0, 4e9), "ns": st.text(max_size=5)},
            optional={
                "entity": st.text(max_size=9), "mid": st.text(max_size=40), "seq": st.integers(0, 2**63 - 1),
                "size": st.integers(0, 2**40), "ms": st.floats(0, 1e9), "queue": st.integers(0, 2**31 - 1),
                "why": st.text(max_size=300),
            },
        ),
        max_size=30,
    )
)  # fmt: skip
def test_what_the_writer_writes_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    writer = LedgerWriter(folder, "client")
    for event in events:
        writer.event(**event)
    writer.close()
    (path,) = folder.iterdir()
    before = lines_of(path)
    (found,) = compact(path).compacted
    assert rows_of(found.parquet) == before


def test_memory_is_by_the_block_and_lines_lie_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    before = lines_of(path)
    monkeypatch.setattr(line_blocks, "BLOCK_BYTES", 1000)
    (found,) = compact(path).compacted
    assert parquet.ParquetFile(found.parquet).num_row_groups > 5
    assert rows_of(found.parquet) == before


def test_the_parquet_is_as_private_as_its_file(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.chmod(0o640)
    (found,) = compact(path).compacted
    assert stat.S_IMODE(found.parquet.stat().st_mode) == 0o640


HEAD = '{"schema":1,"writer":"broker","pid":1,"t":1.0,"pairbus":"0.1.0"}\n'
END = '{"t":9.0,"kind":"end","reason":"closed","events":1}\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it has no line, or only a part of the first"),
        (HEAD[:20], "it has no line, or only a part of the first"),
        (HEAD, "it has no last line: it is still being written, or a kill cut it"),
        (HEAD + '{"t":2.0,"kind":"send"}\n', "it has no last line"),
        (HEAD + END[:-1], "it has no last line"),
        (HEAD + END + '{"t":', "it has no last line"),
        ('{"t":1.0,"kind":"send"}\n' + END, "is no ledger: the first line"),
        (HEAD.replace("1", "2", 1) + END, "schema 2, and this pairbus reads schema 1"),
        (HEAD + '{"t":2.0,"kind":"send","colour":"red"}\n' + END, "not as this pairbus writes them: unexpected field"),
        (HEAD + '{"t":2.0,"kind":"send","seq":"7"}\n' + END, "not as this pairbus writes them"),
        (HEAD + '{"t":2.0,"kind":"send","seq":1.5}\n' + END, "not as this pairbus writes them"),
        (HEAD + '{"t":2.0,"kind":"send","seq":9223372036854775808}\n' + END, "not as this pairbus writes them"),
        (HEAD + '{"t":2.0,"kind":"send","mid":"a","mid":"b"}\n' + END, "not as this pairbus writes them"),
        (HEAD + '{"t":2.0,"ki\n' + END, "not as this pairbus writes them"),
        (HEAD + "\0\0\0\n" + END, "not as this pairbus writes them"),
        (HEAD + "\n" + END, "it has an empty line"),
        (HEAD + '{"t":2.0}{"t":3.0}\n' + END, "it has an empty line, or one that is no JSON object"),
        (HEAD + '{"t":2.0,"kind":"send"}\r\n' + END, "a carriage return, or no UTF-8"),
        (HEAD + '{"t":2.0,"kind":"send","mid":"\udcff"}\n' + END, "a carriage return, or no UTF-8"),
    ],
)  # fmt: skip
def test_what_would_not_come_back_exactly_is_left_as_it_is(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "broker-1-000001.jsonl"
    data = text.encode(errors="surrogateescape")
    path.write_bytes(data)
    found = compact(tmp_path)
    assert found.compacted == [] and found.exit_code == 0
    (left,) = found.left
    assert left.file == path and why in left.why and not left.failed
    assert [each.name for each in tmp_path.iterdir()] == [path.name] and path.read_bytes() == data
    assert f"left: {path}: {left.why}" in found.text()


def test_links_and_compressed_files_are_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "real")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / path.name).symlink_to(path)
    packed = linked / "broker-2-000001.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    found = compact(linked)
    assert [each.why for each in found.left] == ["it is a symbolic link; name the file itself"]
    assert path.exists() and packed.exists() and (linked / path.name).is_symlink()


def test_nothing_there_and_another_machine_are_errors(tmp_path: Path) -> None:
    with pytest.raises(BadLedger, match=r"holds no ledger: no \*\.jsonl file"):
        compact(tmp_path)
    with pytest.raises(BadLedger, match="is not on this machine"):
        compact("s3a://bucket/ledger")


def test_two_at_once_do_not_meet(tmp_path: Path) -> None:
    path = written(tmp_path)
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert [each.why for each in compact(tmp_path).left] == ["another process is compacting it"]
    assert len(compact(tmp_path).compacted) == 1


def test_what_another_process_compacts_meanwhile_is_no_failure(tmp_path: Path) -> None:
    paths = [written(tmp_path, number=number) for number in (1, 2, 3)]

    def the_other_is_faster(done: int, total: int, file: Path) -> None:
        if not done:
            assert len(compact(paths[1]).compacted) == 1
            paths[2].unlink()

    found = compact(tmp_path, on_file=the_other_is_faster)
    assert [each.file for each in found.compacted] == paths[:1]
    assert [(each.file, each.why, each.failed) for each in found.left[:1]] == [
        (paths[1], "another process has just compacted it", False)
    ]
    assert found.left[1].failed and "No such file" in found.left[1].why, "a file that is lost is a failure"
    assert found.exit_code == 1


def test_the_parquet_of_another_file_is_not_overwritten(tmp_path: Path) -> None:
    first = written(tmp_path)
    (done,) = compact(tmp_path).compacted
    before = done.parquet.read_bytes()
    again = written(tmp_path, lines=3)  # by a writer that does not look for Parquet
    assert again == first
    (left,) = compact(tmp_path).left
    assert "was made of another file; rename one of the two" in left.why
    assert done.parquet.read_bytes() == before and again.exists()
    done.parquet.write_bytes(b"what?")
    assert "is no Parquet file; move that away" in compact(tmp_path).left[0].why


def test_a_full_disk_leaves_the_file_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = written(tmp_path), written(tmp_path, number=2)
    real = os.fsync
    calls = iter(range(100))

    def full_at_first(descriptor: int) -> None:
        if next(calls) == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full_at_first)
    found = compact(tmp_path)
    assert [(each.file, each.failed) for each in found.left] == [(path, True)] and found.exit_code == 1
    assert "No space left" in found.left[0].why
    assert [each.file for each in found.compacted] == [other]
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, f"{other.name}.parquet"]


#: Runs compaction in a child for each step, and kills it with SIGKILL there. One import for all of them.
KILLER = """
import os, signal, sys
import pyarrow.json, pyarrow.parquet
from pairbus.spark.reports.ledger_files import compaction, line_blocks

line_blocks.BLOCK_BYTES = 1000

def compact_until(owner, name, nth, when, folder):
    real, calls = getattr(owner, name), 0
    def step(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(*arguments, **options)
        if calls == nth and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    setattr(owner, name, step)
    compaction.compact(folder)

for line in sys.stdin:
    name, nth, when, folder = line.rstrip("\\n").split("\\t")
    owner = pyarrow.parquet.ParquetWriter if name == "write_table" else os
    child = os.fork()
    if not child:
        compact_until(owner, name, int(nth), when, folder)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
STEPS = [
    ("open", 1), ("fchmod", 1), ("write_table", 1), ("write_table", 3), ("fsync", 1), ("rename", 1), ("fsync", 2),
    ("unlink", 1), ("fsync", 3),
]  # fmt: skip


@pytest.fixture(scope="module")
def killer() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", KILLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("name", "nth"), STEPS)
def test_p51_killed_at_any_step_each_line_is_there_and_the_next_run_ends_the_work(
    killer: subprocess.Popen[str], tmp_path: Path, name: str, nth: int, when: str
) -> None:
    path = written(tmp_path)
    compacted = path.with_name(f"{path.name}.parquet")
    data, before = path.read_bytes(), lines_of(path)
    assert killer.stdin is not None and killer.stdout is not None
    killer.stdin.write(f"{name}\t{nth}\t{when}\t{tmp_path}\n")
    killer.stdin.flush()
    assert killer.stdout.readline() == "-9\n"
    if path.exists():
        assert path.read_bytes() == data
    # What bears the name that reports read is whole; where both are there, one is told to be the other's copy.
    assert path.exists() or compacted.exists()
    if compacted.exists():
        assert rows_of(compacted) == before
    found = compact(tmp_path)
    assert found.left == [] and [each.name for each in tmp_path.iterdir()] == [compacted.name]
    assert rows_of(compacted) == before


def test_an_empty_summary_has_the_same_keys() -> None:
    assert compaction.Compaction().summary() == {
        "files": 0, "lines": 0, "bytes": 0, "parquet_bytes": 0, "compacted": [], "left": [],
    }  # fmt: skip
