from __future__ import annotations

from typing import Any

from pairbus.spark.reports.event_numbers import Names, numbered


def entity(name: str, **more: Any) -> dict[str, Any]:
    path = name.lower()
    return {
        "entity": name, "path": path, "is_dead": False, "is_backlog": False, "place": path, "backlog_home": None,
        "full_place": path, "name": name, **more,
    }  # fmt: skip


def test_the_least_number_is_the_least_name_by_its_bytes() -> None:
    names = ["ä", "b", "B", "", "\U0001f600", "\uffff", "b/1"]
    found = Names.of([*names, None, "b"])
    assert [found.name(number) for number in range(len(names))] == sorted(names, key=str.encode)
    assert found.number(None) is None and found.name(-1) == ""
    assert all(found.name(found.numbers[name]) == name for name in names)


def test_every_name_of_a_place_has_its_number() -> None:
    backlog = "Contoso/x-servicebus-transfer/0"
    rows: list[dict[str, Any]] = [
        {"ns": "Fabrikam", "entities": [entity("Orders"), entity("orders")]},
        {"ns": None, "entities": [entity(backlog, is_backlog=True, backlog_home="contoso"), {"entity": None}]},
    ]
    files = {"/x/broker-1-000001.jsonl": "broker", "/x/client-7-000002.jsonl": "client"}
    found = numbered(rows, files, {"/x/client-7-000002.jsonl": "away"})
    assert found.homes.ordered == ("", "away", "contoso", "fabrikam")
    assert found.places.ordered == ("contoso/x-servicebus-transfer/0", "orders")
    assert found.shown.ordered == (backlog, "Orders", "orders")
    assert [row[0] for row in found.entities] == sorted([backlog, "Orders", "orders"])
    assert {row[6:8] for row in found.entities if row[0] in ("Orders", "orders")} == {(1, 1)}, "one path, one place"
    assert found.namespaces == [("Fabrikam", "fabrikam", 3)]
    assert found.files == {
        "/x/broker-1-000001.jsonl": (True, "/x/broker-1", None, 0, 0),
        "/x/client-7-000002.jsonl": (False, "/x/client-7", "away", 1, 1),
    }
