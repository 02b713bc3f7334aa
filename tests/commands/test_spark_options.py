"""What every command that runs on Spark takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pairbus.cli import cli
from pairbus.commands.spark_options import spark_options

ON_SPARK = ("syphon", "move", "archive", "restore", "audit", "availability", "cost report")


def called(*arguments: str) -> Any:
    found: dict[str, Any] = {}

    @click.command()
    @spark_options
    def command(master: str | None, conf: dict[str, str]) -> None:
        found.update(master=master, conf=conf)

    result = CliRunner().invoke(command, arguments)
    return found if result.exit_code == 0 else result.output


@pytest.mark.parametrize("name", ON_SPARK)
def test_every_command_on_spark_takes_them(name: str) -> None:
    command: Any = cli
    for word in name.split():
        command = command.commands[word]
    taken = {option for parameter in command.params for option in parameter.opts}
    assert {"--master", "--conf", "--py-files", "--packages"} <= taken


def test_they_become_settings_of_the_session(tmp_path: Path) -> None:
    (one, two) = (str(tmp_path / name) for name in ("one.py", "two.zip"))
    Path(one).touch()
    Path(two).touch()
    assert called() == {"master": None, "conf": {}}
    assert called(
        "--master", "spark://host:7077", "--conf", "spark.executor.memory=2g", "--conf", "spark.x=a=b",
        "--py-files", f"{one},{two}", "--py-files", "s3a://bucket/three.py",
        "--conf", "spark.jars.packages=a:b:1", "--packages", "c:d:2",
    ) == {
        "master": "spark://host:7077",
        "conf": {
            "spark.executor.memory": "2g", "spark.x": "a=b", "spark.submit.pyFiles": f"{one},{two},s3a://bucket/three.py",
            "spark.jars.packages": "a:b:1,c:d:2",
        },
    }  # fmt: skip


def test_what_is_none_is_named() -> None:
    assert "'spark.executor.memory' is no NAME=VALUE such as" in called("--conf", "spark.executor.memory")
    assert "'x=1' is no NAME=VALUE" in called("--conf", "x=1")
    assert "nowhere.zip is no file" in called("--py-files", "nowhere.zip")
