"""The commands without Spark: what is said before it starts. With it: tests/spark/test_reports_proof.py."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from click.testing import CliRunner

from pairbus.commands import reports


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
