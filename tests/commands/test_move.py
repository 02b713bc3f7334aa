"""The commands `move`, `archive` and `restore` as a user runs them, as far as they go without a JVM."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.testing import fault

from ..spark.conftest import MakeQueue, Pair, wire
from ..spark.conftest import make_queue as make_queue
from ..spark.conftest import pair as pair
from .calls import Result, call


@pytest.fixture
def run(
    pair: Pair,
    make_queue: MakeQueue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Result]:
    import pairbus.spark.pipelines.archive
    import pairbus.spark.pipelines.move  # noqa: F401 (so that they can be patched)

    make_queue(pair.primary, "orders", "bills")
    make_queue(pair.secondary, "copies")
    (tmp_path / "contoso").write_text(pair.primary.connection_string)
    (tmp_path / "backup").write_text(pair.secondary.connection_string)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pairbus.spark.pipelines.transfer_loop.PAUSE_S_FIRST", 0.05)
    return partial(call, capsys)


HERE = ("--engine", "in-process")


def send(pair: Pair, entity: str, count: int) -> None:
    with wire(pair.primary) as client:
        messages = [encode_message(properties=Properties(message_id=f"m{n}"), body=b"x" * 100) for n in range(count)]
        assert client.sender(entity).send_many(messages) == [None] * count


def test_a_move_says_how_many_and_how_much(pair: Pair, run: Callable[..., Result]) -> None:
    send(pair, "orders", 20)
    result = run("move", "--from", "@contoso", "--to", "@backup", "orders", "copies", "--count", "19", *HERE)
    assert result.code == 0, result.err
    assert result.out.startswith("19 messages moved (2.") and result.out.endswith(" s\n")
    assert run("move", "--from", "@contoso", "orders", "bills", *HERE).out.startswith("1 message moved (")
    assert run("move", "--from", "@contoso", "orders", "bills", *HERE).out.startswith("0 messages moved (0 bytes)")


def test_as_json_the_last_line_is_the_result(pair: Pair, run: Callable[..., Result]) -> None:
    send(pair, "orders", 5)
    more = ("--json", "--ledger", "ledger", "--max-rate", "1000")
    result = run("move", "--from", "@contoso", "orders", "bills", *more, *HERE)
    found = json.loads(result.out.splitlines()[-1])
    assert result.code == 0 and found["kind"] == "result" and found["outcome"] == "done"
    assert (found["moved"], found["remaining"], found["gone"], found["not_moved"]) == (5, 0, 0, [])
    lines = [json.loads(line) for file in Path("ledger").iterdir() for line in file.read_text().splitlines()]
    assert sum(line.get("kind") == "move" for line in lines) == 5


def test_exit_code_3_and_the_reasons(pair: Pair, run: Callable[..., Result]) -> None:
    send(pair, "orders", 5)
    with fault(pair.data, "no-send", namespace="contoso", entity="bills"):
        result = run("move", "--from", "@contoso", "orders", "bills", *HERE)
        assert result.code == 3
        assert "orders: 5 messages remain: unreachable: " in result.out
        found = json.loads(run("move", "--from", "@contoso", "orders", "bills", "--json", *HERE).out.splitlines()[-1])
    assert found["outcome"] == "remaining" and found["not_moved"][0]["messages"] == 5


def test_auto_does_few_messages_in_this_process(pair: Pair, run: Callable[..., Result], tmp_path: Path) -> None:
    send(pair, "orders", 20)
    more = ("--engine", "auto", "--json")
    calls = [
        ("move", "--from", "@contoso", "orders", "bills", "--count", "19"),
        ("archive", "@contoso", "bills", "there", "--remove"),
        ("restore", "there", "@contoso", "orders"),
    ]
    for command in calls:
        result = run(*command, *more)
        assert result.err == "pairbus: runs in this process: there are 19 messages, and up to 5,000 need no Spark\n"
        found = json.loads(result.out.splitlines()[-1])
        assert (result.code, found["outcome"], found["moved"], found["remaining"]) == (0, "done", 19, 0)
    assert run("restore", f"file:{tmp_path}/there", "@contoso", "bills", *HERE).out.startswith("19 messages restored (")


@pytest.mark.parametrize(
    "arguments",
    [
        ("move", "--from", "@contoso", "orders", "bills", "--where", "n = 1"),
        ("archive", "@contoso", "orders", "there", "--where", "n = 1"),
        ("restore", "there", "@contoso", "--where", "n = 1"),
    ],
)
def test_auto_leaves_a_filter_to_spark(run: Callable[..., Result], arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--engine", "auto")
    assert result.err.startswith("pairbus: runs on Spark: --where is Spark SQL\n") and result.code == 1


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (("move", "--from", "@contoso", "orders", "bills"), "move"),
        (("archive", "@contoso", "orders", "there"), "archive"),
        (("restore", "there", "@contoso"), "archive"),
    ],
)
def test_without_spark_it_says_what_to_install(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], module: str
) -> None:
    module = f"pairbus.spark.pipelines.{module}"

    class NoSpark:
        """Comes first, and the import fails as it would on its own import of pyspark."""

        def find_spec(self, name: str, *_: Any) -> None:
            if name == module:
                raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [NoSpark(), *sys.meta_path])
    for more, what in (((), "on Spark"), (HERE, "with the package pyspark")):
        result = run(*arguments, *more)
        assert (result.code, result.out) == (1, "")
        assert result.err == f"pairbus: this runs {what}, which is not installed: install pairbus[spark]\n"
