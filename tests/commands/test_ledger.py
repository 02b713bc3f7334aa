from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from pairbus.cli import main

from ..spark.ledger_file import LedgerFile


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["ledger", "compact", *arguments])
    told = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, told.out, told.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in (1, 2, 3):
        with LedgerFile(tmp_path / "client-ledger", "client", "contoso", pid=4711, number=number) as book:
            for n in range(40):
                book("send", 10.0 + n, "orders", f"m{n}")
    book.path.write_text(book.path.read_text()[:-20])
    return tmp_path / "client-ledger"


def test_the_command_says_what_became_of_each_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, str(folder))
    assert (code, err) == (0, ""), "done before anybody asks how far it is"
    assert out.splitlines() == [
        "2 files compacted: 84 lines, 0.0 MB became 0.0 MB",
        f"left: {folder}/client-4711-000003.jsonl: it has no last line: it is still being written, or a kill cut it",
    ]


def test_json_for_scripts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    code, out, _ = run(capsys, str(folder), "--json")
    found = json.loads(out)
    assert code == 0 and (found["files"], found["lines"]) == (2, 84)
    assert [each["bytes"] for each in found["compacted"]] == [sizes[f"client-4711-00000{n}.jsonl"] for n in (1, 2)]
    assert [Path(each["parquet"]).exists() for each in found["compacted"]] == [True, True]
    (left,) = found["left"]
    assert left["file"].endswith("000003.jsonl") and not left["failed"]


def test_a_terminal_sees_how_far_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, _, err = run(capsys, str(folder))
    assert "[#############       ]  66% 2 of 3 files, client-4711-000003.jsonl" in err


def test_a_folder_that_cannot_be_written_is_a_failure(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    code, out, _ = run(capsys, str(folder))
    assert code == 1 and "Permission denied" in out
    assert not [path for path in folder.iterdir() if path.suffix != ".jsonl"], "no drafts are left behind"


def test_without_pyarrow_it_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pairbus.spark.reports.ledger_files.compaction", None)
    code, _, err = run(capsys, str(folder))
    assert (code, err) == (1, "pairbus: compaction needs pyarrow, which is not installed: install pairbus[spark]\n")
