from __future__ import annotations

from math import inf
from typing import Any

import pytest

from pairbus.amqp.message import Header, Properties, encode_message, read_properties, split
from pairbus.amqp.types import Int, Symbol, Timestamp
from pairbus.broker.format.content import Content, delivery, take_in
from pairbus.broker.format.rewriting import rewritten
from tests.message_view import View

FIELDS: dict[str, Any] = {"message_id": "m", "subject": "s", "user_id": b"u"}


def stored(**sections: Any) -> Content:
    given = {
        "properties": Properties(**FIELDS),
        "application_properties": {"a": Int(1), "b": "two"},
        "message_annotations": {"x-opt-partition-key": "old", "mine": 1},
        "body": b"body",
    }
    content = take_in(encode_message(**(given | sections)), lambda: "given")
    assert content is not None
    return content


def changed(
    content: Content,
    properties: dict[str, Any] | None = None,
    removed: set[str] | None = None,
    fields: dict[str, Any] | None = None,
    annotations: dict[str, Any] | None = None,
    lifetime: float | None = None,
) -> View:
    header, count, pairs_bytes, body, traits = rewritten(
        content, properties or {}, removed or set(), fields or {}, annotations or {}, lifetime, 100.0
    )
    assert traits is None
    return View(delivery(header, 0, 5, 1.0, None, count, pairs_bytes, body, is_peeked=True))


def test_nothing_changes_but_what_is_said() -> None:
    content = stored(header=Header(priority=7, ttl=5000))
    assert rewritten(content, {}, set(), {}, {}, None, 1.0) == (*content[:4], None)


def test_properties_and_annotations() -> None:
    view = changed(
        stored(),
        {"b": "TWO", "c": 1.5},
        {"a"},
        {"subject": None, "to": "t"},
        {"x-opt-partition-key": "new", "x-opt-scheduled-enqueue-time": Timestamp(5)},
    )
    assert view.application_properties == {"b": "TWO", "c": 1.5}
    assert view.properties == Properties(**FIELDS | {"subject": None, "to": "t"})
    annotations = view.message_annotations
    assert annotations[Symbol("x-opt-partition-key")] == "new"
    assert annotations[Symbol("x-opt-scheduled-enqueue-time")] == Timestamp(5)
    assert annotations[Symbol("mine")] == 1
    assert view.body == [("data", b"body")]


def test_an_annotation_is_taken_away() -> None:
    assert "x-opt-partition-key" not in changed(stored(), annotations={"x-opt-partition-key": None}).message_annotations


@pytest.mark.parametrize("ttl", [None, 5000, 4294967295])
def test_a_lifetime(ttl: int | None) -> None:
    given = stored(header=Header(priority=7, ttl=ttl))
    view = changed(given, lifetime=60.0)
    assert (view.header.priority, view.header.ttl) == (7, 60_000)
    assert changed(given, lifetime=inf).header.ttl is None
    long = changed(given, lifetime=1e10)
    assert long.header.ttl == 4294967295
    properties = long.properties
    assert properties.absolute_expiry_time - properties.creation_time == 10**13
    shorter = rewritten(rewritten(given, {}, set(), {}, {}, 1e10, 100.0), {}, set(), {}, {}, 60.0, 100.0)
    bare = shorter[3][shorter[2] :]
    assert read_properties(bare, split(bare)).absolute_expiry_time is None
