from __future__ import annotations

from typing import Any, get_args

import click
import pytest

from pairbus.commands.engine_option import Wanted, check_engine, resolve
from pairbus.commands.move import archive, move, restore
from pairbus.commands.syphon import syphon


def test_four_commands_have_the_same_option() -> None:
    options = [each for command in (move, archive, restore, syphon) for each in command.params if each.name == "engine"]
    assert len(options) == 4
    described = [{**each.to_info_dict(), "type": list(each.type.choices)} for each in options]  # type: ignore[attr-defined]
    assert all(each == described[0] for each in described)
    assert described[0]["default"] == "spark" and described[0]["type"] == ["spark", "in-process", "auto"]


OF_SPARK = [("--where", None), ("--master", "local"), ("--conf", {})]


@pytest.mark.parametrize("engine", get_args(Wanted))
def test_what_only_spark_knows_is_not_for_this_process(engine: Wanted) -> None:
    assert check_engine(engine, [("--where", None), ("--conf", {})]) is None
    if engine == "in-process":
        with pytest.raises(click.UsageError, match="--master is for --engine spark; leave out one of the two"):
            check_engine(engine, OF_SPARK)
        with pytest.raises(click.UsageError, match="--where is Spark SQL; leave out one of the two"):
            check_engine(engine, [("--where", "n = 1")])
    else:
        assert check_engine(engine, OF_SPARK) == "--master is for --engine spark"


def test_what_was_named_is_taken_and_auto_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    def uncounted() -> Any:
        raise AssertionError("counted for nothing")

    assert resolve("spark", None, uncounted) == "spark" and resolve("in-process", None, uncounted) == "in-process"
    assert capsys.readouterr() == ("", "")
    assert resolve("auto", "--where is Spark SQL", uncounted) == "spark"
    assert capsys.readouterr() == ("", "pairbus: runs on Spark: --where is Spark SQL\n")
    assert resolve("auto", None, lambda: 7) == "in-process"
    said = capsys.readouterr()
    assert said == ("", "pairbus: runs in this process: there are 7 messages, and up to 5,000 need no Spark\n")
