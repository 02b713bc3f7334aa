from __future__ import annotations

from typing import Any

from pairbus.spark.reports.event_location import Fact, facts, homes, named, series, shown


def row(file: str, ns: str | None, place: str | None, **more: Any) -> dict[str, Any]:
    return {
        "file": file, "by_broker": False, "ns": ns, "in_backlog": False, "place": place, "name": place, "first": 1.0,
        "last": 2.0, "tells_home": 0, "diverts": 0, "receives": 0, "states": 0, "asked": None, "completed": [],
        "gap": None, "no_id": 0, "numbered": 0, **more,
    }  # fmt: skip


def made(*rows: dict[str, Any]) -> list[Fact]:
    return facts(rows)


def test_a_file_tells_where_its_diverted_messages_belong() -> None:
    found = made(
        row("client-1-000001.jsonl", "Contoso", "orders", tells_home=3),
        row("client-1-000001.jsonl", "backup", "orders", diverts=2),
        row("client-1-000002.jsonl", "backup", "orders", diverts=2),
        row("client-2-000001.jsonl", "fabrikam", "orders", tells_home=1),
        row("client-3-000001.jsonl", "backup", "orders", diverts=1),
    )
    assert homes(found) == {"client-1-000001.jsonl": "contoso", "client-1-000002.jsonl": "contoso"}
    assert [fact.home for fact in found] == ["contoso", "contoso", "contoso", "fabrikam", ""]


def test_the_only_primary_there_is_will_do() -> None:
    found = made(
        row("a-1-000001.jsonl", "contoso", "news", tells_home=1), row("b-2-000001.jsonl", "x", "orders", diverts=1)
    )
    assert homes(found)["b-2-000001.jsonl"] == "contoso"


def test_a_broker_does_not_tell() -> None:
    found = made(
        row("broker-1-000001.jsonl", "backup", "orders", by_broker=True, tells_home=9),
        row("b-2-000001.jsonl", "x", "orders", diverts=1),
    )
    assert homes(found) == {}


def test_a_backlog_queue_names_its_primary() -> None:
    (found,) = made(
        row("b", "backup", "contoso/x-servicebus-transfer/3", in_backlog=True, by_broker=True, completed=[2.0, 1.0])
    )
    assert (found.home, found.ns, found.completed) == ("contoso", "backup", (2.0, 1.0))


def test_a_namespace_is_named_only_where_it_must() -> None:
    names = {("contoso", "orders"): "Orders", ("fabrikam", "orders"): "orders", ("contoso", "news"): "news"}
    assert list(shown(names).values()) == ["contoso:Orders", "fabrikam:orders", "news"]


def test_expressions_by_name() -> None:
    assert named({"b": "a + 1", "c": "b * 2"}) == ["a + 1 as b", "b * 2 as c"]


def test_only_a_broker_numbers_what_has_no_id() -> None:
    found = made(row("a", "x", "q", no_id=3, numbered=2), row("b", "x", "q", by_broker=True, no_id=3, numbered=2))
    assert [(fact.no_id, fact.numbered) for fact in found] == [(3, 0), (3, 2)]


def test_the_files_of_a_process_are_a_series() -> None:
    assert series("/x/client-7-000012.jsonl") == series("/x/client-7-000001.jsonl") == "/x/client-7"
