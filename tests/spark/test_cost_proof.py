"""P51–P53 on a real outage: two brokers, a paired client, its receivers and a syphon, each with its ledger."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pairbus.cli import main
from pairbus.cost import Scenario, estimate
from pairbus.spark.reports.cost_report import CostReport, cost_report

from . import cost_scene
from .cost_scene import DIVERTED, ENTITIES, HEALTHY, PING_S, QUEUES, Scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HEALTHY_ALL, DIVERTED_ALL = HEALTHY * len(ENTITIES), DIVERTED * len(ENTITIES)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return cost_scene.play(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def report(spark: Any, scene: Scene) -> CostReport:
    from pairbus.spark.reports.ledgers import read_ledgers

    return cost_report(read_ledgers(spark, *scene.ledgers))


def test_p51_the_brokers_book_is_what_the_broker_counted(report: CostReport, scene: Scene) -> None:
    """To the operation, the unit and the byte, by namespace, entity, cause and operation."""
    figures = ("operations", "units", "bytes_in", "bytes_out")
    counted: dict[str, dict[tuple[str, str, str, str], int]] = {figure: {} for figure in figures}
    for row in json.loads(report.to_json())["lines"]:
        if row["book"] == "broker":
            key = row["namespace"], row["entity"], row["cause"], row["operation"]
            for figure in figures:
                counted[figure][key] = counted[figure].get(key, 0) + row[figure]
    for figure in figures:
        assert {key: value for key, value in counted[figure].items() if value} == {
            key: value for key, value in scene.metrics[figure].items() if value
        }
    assert sum(counted["operations"].values()) == report.summary["broker"]["operations"]


def test_p52_each_diverted_message_cost_four_operations(report: CostReport) -> None:
    detour = report.summary["detour"]
    assert detour["messages_by_operations"] == {"4": DIVERTED_ALL}
    assert detour["operations_per_message"] == 4
    assert detour["legs"] == dict.fromkeys(
        ("backlog-sends", "backlog-receives", "home-sends", "home-receives"), DIVERTED_ALL
    )
    large = len(ENTITIES)  # one of each entity's is past 64 KB, on each of its ways
    assert detour["units"] == 4 * (DIVERTED_ALL + large)


def test_p53_estimate_and_report_agree(report: CostReport, scene: Scene) -> None:
    """Messages exactly; pings and bytes within their bounds; polls as said below."""
    rounds = math.ceil(scene.outage_s / PING_S)
    rate = DIVERTED_ALL / (rounds * PING_S)
    size = (71_250 * len(ENTITIES)) // HEALTHY_ALL  # the mean; large ones are billed twice, which a mean can't show
    made = estimate(
        Scenario(
            queues=QUEUES, syphons=1, entities=len(ENTITIES), clients=1, rate=rate, size=size,
            outage_s=scene.outage_s, ping_interval_s=PING_S, failover_interval_s=0.0,
            hours=(HEALTHY_ALL + DIVERTED_ALL) / rate / 3600,
        )
    )  # fmt: skip
    measured = report.summary["terms"]
    for name in ("backlog-sends", "backlog-receives", "home-sends", "home-receives"):
        assert measured[name]["operations"] == made.term(name).operations == DIVERTED_ALL
    for name in ("healthy-sends", "healthy-receives"):
        assert measured[name]["operations"] == made.term(name).operations == HEALTHY_ALL
    # At most what is reckoned: an entity may fail over later than the outage begins, and what an unreachable broker
    # did not get is not billed. At least the good ping of each.
    assert len(ENTITIES) <= measured["pings"]["operations"] <= made.term("pings").operations
    assert measured["pings"]["bytes_in"] == measured["pings"]["operations"] * 160
    # A drain lasts no quarter of an hour; each of its links ends with one empty receive.
    assert measured["idle-polls"]["operations"] - made.term("idle-polls").operations <= QUEUES
    # Aliases and what a broker writes on a delivery are bounds.
    sent, away = measured["home-sends"]["bytes_in"], measured["backlog-sends"]["bytes_in"]
    assert sent < away <= sent + DIVERTED_ALL * made.scenario.alias_bytes
    for into, out in (("backlog-sends", "backlog-receives"), ("home-sends", "home-receives")):
        added = (measured[out]["bytes_out"] - measured[into]["bytes_in"]) / DIVERTED_ALL
        assert 0.9 * made.scenario.delivery_bytes <= added <= made.scenario.delivery_bytes


def test_p51_what_the_clients_wrote_differs_only_where_it_is_said(report: CostReport) -> None:
    found = {(row["cause"], row["operation"], row["place"], row["reason"]) for row in report.summary["differences"]
             if row["operations"]}  # fmt: skip
    assert found <= {
        ("manage", "manage", "primary", "management"),
        ("manage", "manage", "backlog", "management"),
        ("syphon", "manage", "backlog", "management"),
        ("syphon", "poll", "backlog", "polls"),
    }
    bounds = [row for row in report.summary["differences"] if row["reason"] == "bytes-bound" and row["cause"] == "app"]
    assert {row["operation"] for row in bounds} == {"send", "receive"}
    assert all(row["bytes"] < 0 for row in bounds), "no less than the encoded size"
    assert report.summary["notes"] == []


def test_p52_pings_and_polls_by_both_books(report: CostReport, scene: Scene) -> None:
    pings = report.summary["pings"]
    assert pings["broker"]["operations"] == pings["clients"]["operations"] == len(ENTITIES)
    tried = pings["clients"]["operations"] + pings["clients"]["refused"]
    rounds = math.ceil(scene.outage_s / PING_S) + 1
    assert tried <= len(ENTITIES) * rounds, "one more than the calculator says where the first comes early"
    assert tried >= len(ENTITIES) * 2
    assert report.summary["idle_polls"]["broker"]["operations"] <= 2 * QUEUES


def test_p53_the_command(scene: Scene, report: CostReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["cost", "report", *map(str, scene.ledgers), "--json", "--parquet", str(tmp_path / "out")])
    assert ended.value.code == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["detour"] == report.summary["detour"]
    assert "lines and differences are in" in told.err
    assert "reading the ledgers" not in told.err, "progress is for people"
    assert (tmp_path / "out" / "summary.json").exists()
    assert f"{DIVERTED_ALL} messages came home, 4.00 operations each" in report.table()
