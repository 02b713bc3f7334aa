"""`pairbus cost` as a user runs it; the report itself is proved in tests/spark/test_cost_proof.py."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pairbus.cost.prices import EXAMPLE_TOML

from .calls import Result, call


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    return partial(call, capsys, "cost")


def test_p53_every_term_is_explained(run: Callable[..., Result]) -> None:
    done = run("estimate")
    assert done.code == 0 and done.err == ""
    assert re.search(r"^idle-polls +28,800 ", done.out, re.MULTILINE)
    assert "idle-polls: 10 backlog queues × 1 syphon × 4 empty receives an hour" in done.out
    assert "the first of its 4 operations" in done.out
    assert "1 entity × 1 client × 59 pings, one every 60 s while failed over" in done.out
    assert "need 1 backlog queue of 5 GB; there are 10" in done.out
    assert "example prices, replace by your own" in done.out.splitlines()[0]


@pytest.mark.parametrize(("days", "polls"), [("1", "960"), ("30", "28,800")])
def test_p37_what_an_idle_syphon_costs(run: Callable[..., Result], days: str, polls: str) -> None:
    done = run("estimate", "--rate", "0", "--outage", "0", "--days", days)
    assert re.search(rf"^total +{polls} ", done.out, re.MULTILINE)


def test_every_option_does_something(run: Callable[..., Result], tmp_path: Path) -> None:
    base = run("estimate", "--json").out
    prices = tmp_path / "mine.toml"
    prices.write_text(EXAMPLE_TOML.replace("USD", "EUR"))
    for option, value in (
        ("--queues", "20"), ("--syphons", "2"), ("--entities", "2"), ("--clients", "2"), ("--rate", "20"),
        ("--size", "64KB"), ("--outage", "2h"), ("--ping-interval", "30"), ("--failover-interval", "0"),
        ("--days", "10"), ("--prices", str(prices)),
    ):  # fmt: skip
        done = run("estimate", "--json", option, value)
        assert done.code == 0
        told = json.loads(done.out)
        told.pop("scenario")
        before = json.loads(base)
        before.pop("scenario")
        assert told != before, option


def test_times_and_sizes_may_have_units(run: Callable[..., Result]) -> None:
    told = json.loads(run("estimate", "--json", "--outage", "1.5h", "--size", "2kb", "--ping-interval", "2m").out)
    assert (told["scenario"]["outage_s"], told["scenario"]["size"]) == (5400.0, 2048)
    assert told["scenario"]["ping_interval_s"] == 120.0


def test_a_backlog_that_is_too_small_is_warned_of(run: Callable[..., Result]) -> None:
    done = run("estimate", "--rate", "1000", "--size", "64KB", "--outage", "4h", "--tier", "premium")
    assert done.code == 0
    assert done.err == "warning: 10 backlog queues of 5 GB do not hold it; 177 are needed\n"


def test_without_spark_the_extra_is_named(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pairbus.spark.reports.ledgers", None)
    done = run("report", str(tmp_path))
    assert done.code == 1
    assert done.err == "pairbus: the report runs on Spark, which is not installed: install pairbus[spark]\n"
