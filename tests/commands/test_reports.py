"""The commands without Spark: what is said before it starts. With it: tests/spark/test_reports_proof.py."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pairbus.commands import reports

from .calls import call


@pytest.mark.parametrize("command", ["audit", "availability"])
def test_wrong_calls_are_told_before_spark_starts(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, command)[0] == 2
    code, _, said = call(capsys, command, str(tmp_path))
    assert (code, said.count("\n")) == (1, 1) and "holds no ledger" in said
    (tmp_path / "x.jsonl").write_text("what?\n")
    code, _, said = call(capsys, command, str(tmp_path / "x.jsonl"))
    assert (code, said.count("\n")) == (1, 1) and "x.jsonl is no ledger" in said
    code, _, said = call(capsys, command, str(tmp_path), "--parquet", str(tmp_path))
    assert code == 2 and "name another folder to write to" in said


def test_late_and_ids_have_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "audit", "x", "--late", "-1")[0] == call(capsys, "audit", "x", "--ids", "-1")[0] == 2


@pytest.mark.parametrize("command", [reports.audit, reports.availability])
def test_without_spark_the_extra_is_named(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.startswith("pairbus.spark"):
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    result = CliRunner().invoke(command, ["somewhere"])
    assert result.exit_code == 1
    assert "install pairbus[spark]" in result.stderr


@pytest.mark.parametrize("command", [reports.audit, reports.availability])
def test_the_help_ends_with_examples(command: Any) -> None:
    assert command.help is not None and "Examples:" in command.help
