"""The report on ledgers written by hand: each rule with the smallest books that show it. On a JVM, hence slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pairbus.cost import EXAMPLE, parse
from pairbus.cost.prices import EXAMPLE_TOML
from pairbus.spark.reports.cost_report import CostReport, cost_report

from ..ledger_rows import event, ledgers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BACKLOG = "contoso/x-servicebus-transfer/3"


def detour(mid: str, size: int = 1000) -> list[dict[str, Any]]:
    """A message that took the detour, by the brokers' ledgers and by those of sender, syphon and receiver."""
    away = size + 50
    return [
        event("client", "send", "orders", mid=mid, bytes=size + 150, outcome="ServiceBusConnectionError"),
        event("client", "divert", "orders", ns="localhost:5672", mid=mid, bytes=away + 150, queue=3),
        event("broker", "send", BACKLOG, ns="backup", mid=mid, bytes=away),
        event("broker", "receive", BACKLOG, ns="backup", mid=mid, seq=7, bytes=away + 90, cause="syphon"),
        event(
            "syphon", "receive", BACKLOG, ns="localhost:5672", mid=mid, seq=7, bytes=away + 90, cause="syphon", queue=3
        ),
        event("broker", "send", "orders", mid=mid, seq=41, bytes=size, cause="syphon"),
        event("syphon", "move", "orders", mid=mid, seq=7, bytes=size, cause="syphon", queue=3),
        event("broker", "settle", BACKLOG, ns="backup", mid=mid, seq=7, cause="syphon"),
        event("broker", "receive", "orders", mid=mid, seq=41, bytes=size + 90),
        event("client", "receive", "orders", mid=mid, seq=41, bytes=size + 240),
        event("broker", "settle", "orders", mid=mid, seq=41),
    ]


def healthy(mid: str, seq: int) -> list[dict[str, Any]]:
    return [
        event("client", "send", "orders", mid=mid, bytes=1150),
        event("broker", "send", "orders", mid=mid, seq=seq, bytes=1000),
        event("broker", "receive", "orders", mid=mid, seq=seq, bytes=1090),
        event("client", "receive", "orders", mid=mid, seq=seq, bytes=1240),
    ]


def pings(count: int) -> list[dict[str, Any]]:
    failed = [event("client", "ping", "orders", cause="ping", outcome="ServiceBusConnectionError")] * (count - 1)
    return [
        *failed,
        event("client", "ping", "orders", cause="ping", t=60.0),
        event("broker", "ping", "orders", mid="p", bytes=180, cause="ping", t=60.0),
    ]


def polls(count: int) -> list[dict[str, Any]]:
    both = [event(writer, "poll", BACKLOG, ns="backup", cause="syphon", bytes=0) for writer in ("broker", "syphon")]
    return both * count


def report(spark: Any, *events: dict[str, Any], **options: Any) -> CostReport:
    prices = options.pop("prices", None)
    return cost_report(ledgers(spark, list(events), **options), prices)


@pytest.fixture(scope="module")
def whole(spark: Any) -> CostReport:
    manage = event("broker", "manage", "orders", cause="manage", bytes=70_000)
    refused = event("broker", "send", "orders", mid="r", bytes=10, outcome="com.microsoft:server-busy")
    return report(spark, *detour("a"), *detour("b"), *healthy("c", 42), *pings(3), *polls(4), manage, refused)


def test_p51_the_brokers_book_by_namespace_entity_cause_and_operation(whole: CostReport) -> None:
    found = {
        (row["namespace"], row["entity"], row["cause"], row["operation"]): (
            row["operations"], row["units"], row["bytes_in"], row["bytes_out"],
        )
        for row in json.loads(whole.to_json())["lines"]
        if row["book"] == "broker" and row["term"] != "healthy-receives" and row["operations"]
    }  # fmt: skip
    assert found == {
        ("backup", BACKLOG, "app", "send"): (2, 2, 2100, 0),
        ("backup", BACKLOG, "syphon", "receive"): (2, 2, 0, 2280),
        ("backup", BACKLOG, "syphon", "poll"): (4, 4, 0, 0),
        ("contoso", "orders", "syphon", "send"): (2, 2, 2000, 0),
        ("contoso", "orders", "app", "send"): (1, 1, 1000, 0),
        ("contoso", "orders", "app", "receive"): (2, 2, 0, 2180),
        ("contoso", "orders", "ping", "ping"): (1, 1, 180, 0),
        ("contoso", "orders", "manage", "manage"): (1, 2, 0, 70_000),
    }
    assert whole.summary["broker"]["operations"] == 16
    assert whole.summary["broker"]["units"] == 17, "what was refused is not billed; 70,000 bytes are two units"


def test_what_was_summed_up_once_is_kept(whole: CostReport) -> None:
    """Spark drops what is cached of a table that a query in SQL was given, unless it is given another one."""
    plan = whole.lines._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    assert "InMemoryTableScan" in plan and "Exchange" not in plan.partition("InMemoryRelation")[0], plan


def test_p52_a_message_that_takes_the_detour_costs_four_operations(whole: CostReport) -> None:
    detour = whole.summary["detour"]
    assert detour["operations_per_message"] == 4
    assert detour["messages_by_operations"] == {"4": 2}
    assert detour["legs"] == {"backlog-sends": 2, "backlog-receives": 2, "home-sends": 2, "home-receives": 2}
    assert (detour["diverted"], detour["carried"], detour["operations"]) == (2, 2, 8)
    assert (detour["bytes_in"], detour["bytes_out"]) == (2100 + 2000, 2280 + 2180)


def test_p53_terms_carry_the_calculators_names(whole: CostReport) -> None:
    operations = {name: figures["operations"] for name, figures in whole.summary["terms"].items()}
    assert operations == {
        "backlog-sends": 2, "backlog-receives": 2, "home-sends": 2, "home-receives": 2, "healthy-sends": 1,
        "healthy-receives": 1, "pings": 1, "idle-polls": 4, "other": 1,
    }  # fmt: skip


def test_p52_each_ping_is_a_send_and_only_one_that_was_taken_is_billed(whole: CostReport) -> None:
    assert whole.summary["pings"]["broker"]["operations"] == 1
    assert (whole.summary["pings"]["clients"]["operations"], whole.summary["pings"]["clients"]["refused"]) == (1, 2)
    assert whole.summary["idle_polls"]["broker"]["operations"] == 4


def test_money_is_units_times_their_price_and_traffic_by_place(whole: CostReport) -> None:
    each = 0.80 / 1e6
    assert whole.summary["broker"]["money"] == pytest.approx(17 * each + (2100 + 2280) * 0.02 / 1e9)
    lines = whole.lines.where("book = 'broker'").agg({"money": "sum"}).collect()[0][0]
    assert lines == pytest.approx(whole.summary["broker"]["money"])
    assert whole.summary["detour"]["money"] == pytest.approx(8 * each + (2100 + 2280) * 0.02 / 1e9)
    assert whole.summary["base_money"] == pytest.approx(10 * 60 / 3600 / 730)
    assert whole.summary["currency"] == EXAMPLE.currency


def test_p51_client_bytes_are_a_bound_and_that_is_all_that_differs(whole: CostReport) -> None:
    differing = [row for row in whole.summary["differences"] if row["operations"]]
    assert [(row["cause"], row["operation"], row["reason"]) for row in differing] == [
        ("manage", "manage", "management")
    ]
    bounds = {(row["cause"], row["operation"], row["place"]): row["bytes"] for row in whole.summary["differences"]
              if row["reason"] == "bytes-bound"}  # fmt: skip
    assert bounds == {
        ("app", "send", "backlog"): -300, ("app", "send", "primary"): -150, ("app", "receive", "primary"): -450,
        ("ping", "ping", "primary"): 180,
    }  # fmt: skip


def test_the_four_forms(whole: CostReport, tmp_path: Path) -> None:
    assert json.loads(whole.to_json())["detour"]["operations_per_message"] == 4
    text = whole.table()
    assert "2 messages came home, 4.00 operations each" in text
    assert "Pings: 1 billed, 1 by the clients (2 more failed)" in text
    assert "management calls, which only brokers write" in text
    whole.to_parquet(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == whole.summary
    read = whole.lines.sparkSession.read.parquet
    assert read(str(tmp_path / "out" / "lines")).count() == whole.lines.count()
    assert read(str(tmp_path / "out" / "differences")).count() == len(whole.summary["differences"])
    assert repr(whole).startswith("<CostReport 16 operations, 0.0000 USD")


@pytest.fixture(scope="module")
def messy(spark: Any) -> CostReport:
    """What happens to messages: a is as it should be."""
    return report(
        spark,
        *detour("a"),
        # b is delivered twice
        *detour("b"),
        event("broker", "receive", "orders", mid="b", seq=41, bytes=1090),
        # c: the answer to its first send was lost, so it came the straight way as well (P20)
        *detour("c"),
        event("broker", "send", "orders", mid="c", seq=40, bytes=1000),
        event("broker", "receive", "orders", mid="c", seq=40, bytes=1090),
        # w still waits in the backlog
        event("broker", "send", BACKLOG, ns="backup", mid="w", bytes=10),
        # n has no id, and nobody who keeps a ledger sent or received it
        event("broker", "send", "news", bytes=10),
        event("broker", "receive", "news/Subscriptions/all", seq=1, bytes=10),
        # the SDK sent r twice within one attempt
        event("client", "send", "orders", mid="r", bytes=10),
        *[event("broker", "send", "orders", mid="r", seq=seq, bytes=10) for seq in (50, 51)],
        # an application's own empty receives
        *[event("broker", "poll", "orders")] * 2,
        # the broker's ledger lacks a send that was confirmed
        event("client", "send", "orders", mid="gone", bytes=10),
        cut=("broker", "client"),
        gap=5,
    )


def test_p52_more_than_four_operations_show(messy: CostReport) -> None:
    found = messy.summary["detour"]
    assert found["messages_by_operations"] == {"4": 2, "5": 1}, "b alone; what came the straight way is no detour"
    assert found["operations_per_message"] == pytest.approx(13 / 3)
    assert (found["diverted"], found["carried"]) == (4, 3)
    assert messy.summary["terms"]["healthy-receives"]["operations"] == 2


def test_p51_every_difference_has_its_reason(messy: CostReport) -> None:
    found = {
        (row["operation"], row["place"], row["reason"]): row["operations"]
        for row in messy.summary["differences"]
        if row["operations"]
    }
    assert found == {
        ("send", "primary", "answer-lost"): 1,
        ("send", "primary", "repeated"): 1,
        ("send", "primary", "sender-without-ledger"): 1,
        ("send", "primary", "broker-cut"): -1,
        ("send", "backlog", "sender-without-ledger"): 1,
        ("receive", "primary", "receiver-without-ledger"): 1,
        ("receive", "primary", "not-handed-over"): 2,
        ("poll", "primary", "polls"): 2,
    }
    for key in ("operations", "bytes"):
        books = [sum(row[key] if key in row else row["bytes_in"] + row["bytes_out"]
                     for row in [messy.summary[name]]) for name in ("broker", "clients")]  # fmt: skip
        assert sum(row[key] for row in messy.summary["differences"]) == books[0] - books[1], "the sum is the whole"


def test_what_the_ledgers_can_not_tell_is_said(messy: CostReport) -> None:
    notes = "\n".join(messy.summary["notes"])
    assert "2 sends and receives without a message id" in notes
    assert "1 broker's ledger files end without their last line" in notes
    assert "1 client's ledger files end without their last line" in notes
    assert "disk refused 5 events" in notes


def test_p51_a_book_that_nobody_kept_is_none_and_said(spark: Any) -> None:
    mine = parse(EXAMPLE_TOML.replace('"USD"', '"EUR"').replace("per_million = 0.80", "per_million = 1000000.0"))
    clients_only = [each for each in detour("a") if each["writer"] != "broker"]
    found = report(spark, *clients_only, prices=mine)
    assert found.summary["clients"]["money"] == pytest.approx(4.0)
    assert "EUR" in found.table()
    assert found.summary["broker"] is None
    assert found.summary["detour"]["operations_per_message"] == 4, "by the clients' own ledgers"
    assert sum("no broker's ledger" in note for note in found.summary["notes"]) == 2
    assert "Billed, by the brokers' ledgers: there is none" in found.table()
    primary_only = [each for each in detour("a") if each["writer"] == "broker" and each["ns"] == "contoso"]
    found = report(spark, *primary_only)
    assert found.summary["detour"]["diverted"] is None
    assert any("backlog" in note and "unknown" in note for note in found.summary["notes"])


def test_no_events_at_all(spark: Any) -> None:
    found = report(spark)
    assert found.summary["broker"] is None and found.summary["detour"]["operations_per_message"] is None
    assert "The ledgers have no events" in found.table()
