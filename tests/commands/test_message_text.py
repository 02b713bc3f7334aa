from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.commands.message_text import (
    HEADINGS,
    encode,
    iso,
    notes,
    one_line,
    parse_property,
    parse_time,
    row,
    sequence_number,
    shown,
    table,
)
from tests.message_view import View

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"text \xc3\xa9", {"body": "text é", "body_encoding": "text"}),
        (b"\xff", {"body": "/w==", "body_encoding": "base64"}),
        (None, {"body": "", "body_encoding": "text"}),
        (("data", [b"a", b"b"]), {"body": "ab", "body_encoding": "text"}),
        (("value", "text"), {"body": "text", "body_encoding": "text", "body_type": "value"}),
        (("value", b"\xff"), {"body": "/w==", "body_encoding": "base64", "body_type": "value"}),
        (("value", {"a": [1, True]}), {"body": {"a": [1, True]}, "body_encoding": "json", "body_type": "value"}),
        (("sequence", [[1, 2], [3]]), {"body": [1, 2, 3], "body_encoding": "json", "body_type": "sequence"}),
    ],
)
def test_bodies(body: Any, expected: dict[str, Any]) -> None:
    found = shown(encode_message(body=body))
    assert {name: value for name, value in found.items() if name.startswith("body")} == expected


def test_properties_of_every_type_are_json() -> None:
    uid = UUID(int=1)
    found = shown(
        encode_message(
            properties=Properties(message_id=uid, correlation_id=b"\xff"),
            application_properties={"id": uid, "at": Timestamp(1000), "raw": b"\xff", "none": None, "half": 0.5},
        )
    )
    assert found["message_id"] == str(uid)
    assert found["correlation_id"] == "/w=="
    assert found["application_properties"] == {
        "id": str(uid), "at": "1970-01-01T00:00:01.000Z", "raw": "/w==", "none": None, "half": 0.5,
    }  # fmt: skip


@given(st.binary(max_size=60))
def test_reading_never_fails(payload: bytes) -> None:
    shown(payload)
    assert len(row(payload)) == len(HEADINGS)
    notes(payload)
    sequence_number(payload)


@given(st.text(max_size=40))
def test_a_row_can_t_move_the_cursor(text: str) -> None:
    payload = encode_message(properties=Properties(message_id=text or "x"), body=text.encode("utf-8", "replace"))
    assert all(cell.isprintable() for cell in row(payload))
    assert one_line(text).isprintable()


def test_sequence_numbers() -> None:
    assert sequence_number(encode_message(message_annotations={Symbol("x-opt-sequence-number"): 7})) == 7
    assert sequence_number(encode_message()) is None
    assert sequence_number(b"\xff") is None


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("a=b", ("a", "b")), ("a=", ("a", "")), ("a=b=c", ("a", "b=c")), ("a=:x", ("a", ":x")), ("a:=1", ("a", 1)),
        ("a:=-1.5", ("a", -1.5)), ("a:=true", ("a", True)),
    ],
)  # fmt: skip
def test_properties_as_typed(text: str, pair: tuple[str, Any]) -> None:
    assert parse_property(text) == pair
    assert type(parse_property(text)[1]) is type(pair[1])


@pytest.mark.parametrize("text", ["", "a", "=b", ":=1", "a:b", "a:=", 'a:="x"', "a:=null", "a:=[1]", f"a:={2**63}"])
def test_what_is_no_property(text: str) -> None:
    with pytest.raises(ValueError, match=r"NAME=TEXT|stands after ="):
        parse_property(text)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("+90", NOW + 90), ("+90s", NOW + 90), ("+1.5m", NOW + 90), ("+2h", NOW + 7200), ("+1d", NOW + 86400),
        ("2023-11-14T22:13:20Z", NOW), ("2023-11-14T23:13:20+01:00", NOW),
    ],
)  # fmt: skip
def test_times_as_typed(text: str, time: float) -> None:
    assert parse_time(text, NOW) == time


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tomorrow", "is no time"), ("5m", "is no time"), ("+5w", "is no time"), ("+-5", "is no time"),
        ("2023-11-14T22:13:20", "has no zone"), ("2023-11-14", "has no zone"), ("+9999999d", "out of bounds"),
        ("1066-10-14T09:00:00Z", "out of bounds"),
    ],
)  # fmt: skip
def test_what_is_no_time(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_time(text, NOW)


@given(st.integers(0, 253402243199000))
def test_times_there_and_back(milliseconds: int) -> None:
    assert round(parse_time(iso(milliseconds / 1000), NOW) * 1000) == milliseconds


def test_a_life_longer_than_the_header_can_say() -> None:
    payload = encode(b"x", message_id="m", now=NOW, ttl_s=90 * 86400)
    view = View(payload)
    assert view.header.ttl == 0xFFFFFFFF
    found = view.properties
    assert found.absolute_expiry_time is not None and found.creation_time is not None
    assert found.absolute_expiry_time - found.creation_time == 90 * 86400 * 1000


def test_a_scheduled_message_s_life_begins_when_it_is_enqueued() -> None:
    payload = encode(b"x", message_id="m", now=NOW, ttl_s=60, scheduled_at=NOW + 100)
    assert View(payload).properties.absolute_expiry_time == (NOW + 160) * 1000


LONG_ID = "5bf9318c-5849-4cd4-b4f0-27b9ae34c160"


@pytest.mark.parametrize("room", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("session", ["-", "a-session-with-a-long-name"])
@pytest.mark.parametrize("state", ["active", "scheduled"])
def test_a_table_fits_its_terminal_and_shows_something_of_each_body(room: int, session: str, state: str) -> None:
    row = ("1234", "2026-11-16 22:47:59", state, LONG_ID, session, "135", "one book and the rest of the order")
    lines = table([row, ("9", "2026-11-16 22:48:01", "active", "m-2", "-", "9,135", "two")], room)
    assert all(len(line) <= room for line in lines)
    if room >= 80:
        assert "one book" in lines[1] and lines[2].endswith("two") and "BODY" in lines[0]
        assert "5bf9318" in lines[1] and ("scheduled" in lines[1]) == (state == "scheduled")
        assert ("a-sess" in lines[1]) == (session != "-")


def test_elsewhere_a_table_is_whole() -> None:
    (heading, line) = table([("1", "2026-11-16 22:47:59", "active", LONG_ID, "-", "135", "x" * 300)], None)
    assert heading.split() == list(HEADINGS)
    assert LONG_ID in line and line.endswith("x" * 300)
