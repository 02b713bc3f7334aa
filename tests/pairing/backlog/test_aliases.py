"""P26–P28, P40: the way home, case by case. That everything else stays as it was is proved in test_round_trip_proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.message import (
    Header,
    Properties,
    encode_message,
    read_application_properties,
    read_body,
    read_delivery_annotations,
    read_header,
    read_message_annotations,
    read_properties,
    split,
)
from pairbus.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong
from pairbus.pairing.backlog import aliases
from pairbus.pairing.backlog.aliases import (
    Rejected,
    RestoredMessage,
    amqp_type,
    divert_encoded,
    life_ms,
    restore_message,
)
from tests.message_view import View
from tests.pairing.reference_pages import REFERENCE

NOW = 1_800_000_000.0
DAY_MS = 86_400_000


def backlog_message(aliased: dict[str, Any] | None = None, **parts: Any) -> bytes:
    properties = {"x-ms-path": "orders", **(aliased or {}), **parts.pop("application_properties", {})}
    return encode_message(application_properties=properties, body=parts.pop("body", b"hello"), **parts)


def home(payload: bytes, **options: Any) -> RestoredMessage:
    found = restore_message(payload, **{"now": NOW, **options})
    assert isinstance(found, RestoredMessage), found
    return found


def rejected(payload: bytes, **options: Any) -> Rejected:
    found = restore_message(payload, **{"now": NOW, **options})
    assert isinstance(found, Rejected), found
    return found


def test_p26_the_names() -> None:
    assert {
        "x-ms-sessionid",
        "x-ms-timetolive",
        "x-ms-scheduledenqueuetimeutc",
        "x-ms-path",
    } == aliases.ALIASES


def test_p27_the_section_that_held_only_aliases_is_gone() -> None:
    found = home(backlog_message())
    assert found == RestoredMessage("orders", encode_message(body=b"hello"), None, None)


def test_p27_the_session_comes_back() -> None:
    found = home(backlog_message({"x-ms-sessionid": "s-1"}, properties=Properties(message_id="m", group_sequence=7)))
    assert found.session_id == "s-1"
    properties = View(found.payload).properties
    assert (properties.group_id, properties.message_id, properties.group_sequence) == ("s-1", "m", 7)
    assert home(backlog_message({"x-ms-sessionid": ""})).session_id == ""


def test_p27_the_scheduled_time_comes_back_as_an_annotation() -> None:
    at = Timestamp(1_900_000_000_123)
    found = home(
        backlog_message({"x-ms-scheduledenqueuetimeutc": at}, message_annotations={"x-opt-partition-key": "k"})
    )
    assert found.scheduled == 1_900_000_000.123
    annotations = View(found.payload).message_annotations
    assert annotations == {"x-opt-partition-key": "k", "x-opt-scheduled-enqueue-time": at}
    assert type(annotations["x-opt-scheduled-enqueue-time"]) is Timestamp


@pytest.mark.parametrize("ttl", [5000, Described(Symbol("com.microsoft:timespan"), 5000 * 10_000)])
def test_p26_p28_the_time_to_live_starts_anew_whichever_way_it_is_written(ttl: Any) -> None:
    found = home(backlog_message({"x-ms-timetolive": ttl}))
    view = View(found.payload)
    assert view.header.ttl == 5000
    properties = view.properties
    assert properties.creation_time == NOW * 1000
    assert properties.absolute_expiry_time == NOW * 1000 + 5000


def test_p27_a_life_beyond_32_bits_is_told_by_creation_and_expiry() -> None:
    found = home(backlog_message({"x-ms-timetolive": 60 * DAY_MS}))
    view = View(found.payload)
    assert view.header.ttl == 0xFFFFFFFF
    properties = view.properties
    assert properties.absolute_expiry_time - properties.creation_time == 60 * DAY_MS


def test_p27_a_life_past_the_year_9999_ends_there_and_for_ever_is_no_limit() -> None:
    properties = read_properties(*split_of(home(backlog_message({"x-ms-timetolive": 1 << 49})).payload))
    assert properties.absolute_expiry_time == 253402243199000
    for ever in (922337203685477, Described(Symbol("com.microsoft:timespan"), (1 << 63) - 1)):
        assert home(backlog_message({"x-ms-timetolive": ever})).payload == encode_message(body=b"hello")


def split_of(payload: bytes) -> tuple[bytes, Any]:
    return payload, split(payload)


def test_p27_what_the_backlogs_broker_said_stays_behind() -> None:
    delivery = backlog_message(
        header=Header(durable=True, priority=7, ttl=99, first_acquirer=True, delivery_count=3),
        delivery_annotations={"x-opt-lock-token": b"1" * 16, "x-mine": 1},
        message_annotations={
            **{name: Timestamp(1) for name in aliases.BROKER_ANNOTATIONS},
            "x-opt-scheduled-enqueue-time": Timestamp(1),
            "x-opt-via-partition-key": "v",
        },
    )
    found = home(delivery)
    view = View(found.payload)
    assert view.header == Header(durable=True, priority=7, first_acquirer=True)
    assert view.message_annotations == {"x-opt-via-partition-key": "v"}
    assert view.delivery_annotations == {"x-mine": 1}
    assert found.scheduled is None


def test_p27_a_header_and_annotations_that_only_the_broker_wrote_are_gone() -> None:
    delivery = backlog_message(
        header=Header(delivery_count=1),
        delivery_annotations={"x-opt-lock-token": b"1" * 16},
        message_annotations={"x-opt-sequence-number": 1},
    )
    assert home(delivery).payload == encode_message(body=b"hello")


def test_p27_odd_orders_of_sections_are_taken_too() -> None:
    """rhea writes the footer before the body, pyamqp the delivery annotations last."""
    footer = encode_message(body=None, footer={"x-f": 1})
    body = encode_message(body=b"hello")
    hop = encode_message(body=None, delivery_annotations={"x-mine": 1})
    found = home(backlog_message(body=None) + footer + body)
    assert found.payload == footer + body
    found = home(backlog_message() + hop)
    assert found.payload == hop + body


def test_p27_a_message_without_body_and_one_with_several_sections() -> None:
    assert home(backlog_message(body=None)).payload == b""
    several = home(backlog_message(body=("data", [b"a", b"", b"b" * 300])))
    assert read_body(*split_of(several.payload)) == [("data", b"a"), ("data", b""), ("data", b"b" * 300)]


def test_p28_the_mark_stays_for_the_receivers() -> None:
    found = home(backlog_message({"x-pairbus-diverted-at": Timestamp(1)}))
    assert read_application_properties(*split_of(found.payload)) == {"x-pairbus-diverted-at": 1}


@pytest.mark.parametrize(
    ("ttl", "scheduled", "in_backlog_s", "left"),
    [
        (60_000, None, 20.0, 40_000),
        (60_000, None, 59.999, 1),
        (60_000, None, 60.0, 1),  # used up: it expires where it belongs
        (60_000, None, 1e6, 1),
        (60_000, None, -5.0, 60_000),  # clocks differ
        (60_000, -10.0, 20.0, 50_000),  # it lived for ten seconds only: before, it was scheduled
        (60_000, 10.0, 20.0, 60_000),  # it doesn't live yet
    ],
)
def test_p28_the_time_in_the_backlog_can_be_made_to_count(
    ttl: int, scheduled: float | None, in_backlog_s: float, left: int
) -> None:
    aliased: dict[str, Any] = {"x-ms-timetolive": ttl}
    if scheduled is not None:
        aliased["x-ms-scheduledenqueuetimeutc"] = Timestamp((NOW + scheduled) * 1000)
    enqueued = NOW - in_backlog_s
    payload = backlog_message(aliased, message_annotations={"x-opt-enqueued-time": Timestamp(enqueued * 1000)})
    for options in ({}, {"enqueued_time": enqueued}):
        found = home(payload, count_backlog_time=True, **options).payload
        assert read_header(*split_of(found)).ttl == left
    assert read_header(*split_of(home(payload).payload)).ttl == ttl


def test_p28_without_a_time_to_live_there_is_nothing_to_count() -> None:
    found = home(backlog_message(), count_backlog_time=True, enqueued_time=NOW - 50)
    assert found.payload == encode_message(body=b"hello")


def test_p41_a_replayed_dead_letter_is_freed_of_what_dead_lettering_wrote() -> None:
    payload = backlog_message(
        application_properties={"DeadLetterReason": "r", "DeadLetterErrorDescription": "d", "mine": 1}
    )
    assert read_application_properties(*split_of(home(payload, is_replay=True).payload)) == {"mine": 1}
    assert read_application_properties(*split_of(home(payload).payload)) == {
        "DeadLetterReason": "r",
        "DeadLetterErrorDescription": "d",
        "mine": 1,
    }


REJECTED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "MissingPath", "x-ms-path, which names the destination, is not there"),
    ({"x-ms-path": ""}, "InvalidPath", "x-ms-path, which names the destination, is empty"),
    ({"x-ms-path": 7}, "InvalidPath", "x-ms-path is of the AMQP type long; wanted: string"),
    ({"x-ms-path": None}, "InvalidPath", "AMQP type null; wanted: string"),
    ({"x-ms-path": b"orders"}, "InvalidPath", "AMQP type binary; wanted: string"),
    ({"x-ms-path": Symbol("orders")}, "InvalidPath", "AMQP type symbol; wanted: string"),
    ({"x-ms-path": "q", "x-ms-sessionid": 7}, "InvalidAlias", "x-ms-sessionid is of the AMQP type long"),
    ({"x-ms-path": "q", "x-ms-timetolive": "7"}, "InvalidAlias", "x-ms-timetolive is of the AMQP type string; wan"),
    ({"x-ms-path": "q", "x-ms-timetolive": UInt(7)}, "InvalidAlias", "AMQP type uint; wanted: long (milliseconds) or"),
    ({"x-ms-path": "q", "x-ms-timetolive": Int(7)}, "InvalidAlias", "AMQP type int"),
    ({"x-ms-path": "q", "x-ms-timetolive": True}, "InvalidAlias", "AMQP type boolean"),
    ({"x-ms-path": "q", "x-ms-timetolive": Timestamp(7)}, "InvalidAlias", "AMQP type timestamp"),
    ({"x-ms-path": "q", "x-ms-timetolive": -1}, "InvalidAlias", "x-ms-timetolive is -1 ms"),
    ({"x-ms-path": "q", "x-ms-timetolive": Described(Symbol("x:y"), 7)}, "InvalidAlias", "AMQP type x:y (long)"),
    (
        {"x-ms-path": "q", "x-ms-timetolive": Described(Symbol("com.microsoft:timespan"), ULong(7))},
        "InvalidAlias",
        "AMQP type com.microsoft:timespan (ulong)",
    ),
    ({"x-ms-path": "q", "x-ms-scheduledenqueuetimeutc": 7}, "InvalidAlias", "of the AMQP type long; wanted: timestamp"),
    ({"x-ms-path": "q", "x-ms-scheduledenqueuetimeutc": None}, "InvalidAlias", "AMQP type null"),
]  # fmt: skip


@pytest.mark.parametrize(("properties", "reason", "description"), REJECTED)
def test_p40_what_cannot_be_brought_home_is_rejected_in_clear_words(
    properties: dict[str, Any], reason: str, description: str
) -> None:
    found = rejected(encode_message(application_properties=properties, body=b""))
    assert found.reason == reason
    assert description in found.description


def test_p40_what_cannot_be_read_and_a_path_that_is_there_twice_are_rejected() -> None:
    assert rejected(b"\xff").reason == "MessageNotReadable"
    assert rejected(encode_message(application_properties={"x-ms-path": "orders"})[:-3]).reason == "MessageNotReadable"
    pair = b"\xa1\x09x-ms-path\xa1\x01q"
    twice = b"\x00\x53\x74\xc1" + bytes((2 * len(pair) + 1, 4)) + pair + pair
    assert rejected(twice) == Rejected("InvalidAlias", "the application property x-ms-path is there twice")


@given(st.binary(max_size=80))
def test_p40_no_bytes_whatsoever_raise(payload: bytes) -> None:
    assert isinstance(restore_message(payload, now=NOW), RestoredMessage | Rejected)


@given(st.data())
def test_p40_nor_does_a_damaged_message(data: st.DataObject) -> None:
    payload = bytearray(
        backlog_message(
            {"x-ms-sessionid": "s", "x-ms-timetolive": 5000, "x-ms-scheduledenqueuetimeutc": Timestamp(5)},
            header=Header(priority=3, delivery_count=2),
            delivery_annotations={"x-opt-lock-token": b"1" * 16},
            message_annotations={"x-opt-sequence-number": 5, "x-opt-enqueued-time": Timestamp(1)},
            properties=Properties(message_id="m", group_sequence=1),
        )
    )
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    found = restore_message(bytes(payload), now=NOW, count_backlog_time=data.draw(st.booleans()))
    if isinstance(found, RestoredMessage):
        split(found.payload)


def test_p26_an_encoded_message_goes_away_and_comes_home() -> None:
    sent = encode_message(
        Header(durable=True, ttl=5000),
        {"x-opt-scheduled-enqueue-time": Timestamp(1_900_000_000_000), "x-opt-partition-key": "k"},
        Properties(message_id="m", group_id="s", creation_time=1, absolute_expiry_time=5001),
        {"mine": 1},
        b"hello",
        delivery_annotations={"x-mine": 1},
        footer={"x-f": 1},
    )
    away = divert_encoded(sent, "orders", diverted_at=NOW)
    s = split(away)
    assert read_application_properties(away, s) == {
        "mine": 1,
        "x-ms-path": "orders",
        "x-ms-sessionid": "s",
        "x-ms-timetolive": 5000,
        "x-ms-scheduledenqueuetimeutc": 1_900_000_000_000,
        "x-pairbus-diverted-at": NOW * 1000,
    }
    values = read_application_properties(away, s)
    assert [amqp_type(values[name]) for name in ("x-ms-path", "x-ms-sessionid", "x-ms-timetolive")] == [
        "string",
        "string",
        "long",
    ]
    assert (
        amqp_type(values["x-ms-scheduledenqueuetimeutc"]) == amqp_type(values["x-pairbus-diverted-at"]) == "timestamp"
    )
    assert read_header(away, s) == Header(durable=True)
    assert read_properties(away, s) == Properties(message_id="m")
    assert read_message_annotations(away, s) == {"x-opt-partition-key": "k"}
    assert read_delivery_annotations(away, s) == {"x-mine": 1}


def test_p26_only_what_is_set_becomes_an_alias() -> None:
    away = divert_encoded(encode_message(body=b"hello"), "orders")
    assert read_application_properties(*split_of(away)) == {"x-ms-path": "orders"}


@pytest.mark.parametrize(
    ("ttl", "created", "expires", "expected"),
    [
        (None, None, None, None),
        (0, None, None, 0),
        (5, 1, 9, 5),
        (None, 1, 9, None),  # what the header can hold is told by the header
        (None, 1, 1 + 0xFFFFFFFF, None),
        (None, 1, 2 + 0xFFFFFFFF, 1 + 0xFFFFFFFF),
        (0, 1, 2 + 0xFFFFFFFF, 1 + 0xFFFFFFFF),
        (None, None, 1 << 50, None),
    ],
)
def test_p26_how_long_a_message_is_to_live(
    ttl: int | None, created: int | None, expires: int | None, expected: int | None
) -> None:
    assert life_ms(ttl, created, expires) == expected


def test_the_page_names_them_all() -> None:
    page = Path(REFERENCE, "aliases.md").read_text()
    for name in (*aliases.ALIASES, aliases.DIVERTED_AT, *aliases.BROKER_ANNOTATIONS):
        assert f"`{name}`" in page, name
    for reason in ("MissingPath", "InvalidPath", "InvalidAlias", "MessageNotReadable"):
        assert f"`{reason}`" in page
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `x-")}
    assert "string" in rows["x-ms-path"]
    assert "string" in rows["x-ms-sessionid"]
    assert "long" in rows["x-ms-timetolive"]
    assert "timestamp" in rows["x-ms-scheduledenqueuetimeutc"]
    assert "timestamp" in rows["x-pairbus-diverted-at"]


def test_sent_anew_takes_off_what_the_broker_laid_on_top_and_nothing_else() -> None:
    body = b"\x00\x53\x75\xa0\x01x"
    sent = encode_message(
        Header(durable=True, ttl=5), {Symbol("mine"): 1}, Properties(message_id="m"), {"a": UInt(1)}, None
    )
    delivered = encode_message(
        Header(durable=True, ttl=5, delivery_count=3),
        {Symbol("mine"): 1, Symbol("x-opt-sequence-number"): 7, Symbol("x-opt-locked-until"): Timestamp(9)},
        Properties(message_id="m"),
        {"a": UInt(1), "DeadLetterReason": "old"},
        None,
        delivery_annotations={Symbol("x-opt-lock-token"): b"t"},
    )
    assert aliases.sent_anew(delivered + body) == aliases.sent_anew(sent + body)
    anew = aliases.sent_anew(delivered + body)
    assert View(anew).header.ttl == 5
