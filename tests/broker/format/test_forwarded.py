"""A forwarded message as bytes."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from pairbus.amqp.message import Header, Properties, encode_message
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.broker.format import records
from pairbus.broker.format.content import SCHEDULED_TIME, Content, delivery, pack_changes, take_in
from pairbus.broker.format.forwarded import forwarded, pack_forward, read_forward, travelled
from pairbus.broker.format.records import RecordError
from tests.message_view import View


def stored(annotations: dict[str, Any] | None = None, **fields: Any) -> Content:
    pairs = None if annotations is None else {Symbol(key): value for key, value in annotations.items()}
    properties = Properties(message_id="m", group_id="s")
    content = take_in(encode_message(Header(ttl=9000), pairs, properties, body=b"body", **fields), lambda: "new", True)
    assert content is not None
    return content


def hop(
    content: Content, number: int, *, changes: bytes | None = None, dead: str | None = None, left: float = inf
) -> Content:
    header, count, nbytes, body, _ = content
    return forwarded(header, travelled(body, count), body[nbytes:], changes, number, dead, left)


def seen(content: Content) -> View:
    header, count, nbytes, body, _ = content
    return View(delivery(header, 0, 77, 5.0, None, count, nbytes, body))


def test_each_hop_counts_and_the_first_number_stays() -> None:
    content = stored({"mine": 1})
    for number in (3, 8, 9):
        content = hop(content, number)
    said = seen(content).message_annotations
    assert said["mine"] == 1 and said["x-opt-enqueue-sequence-number"] == 3 and said["x-opt-transfer-hop-count"] == 3
    assert travelled(content[3], content[1]).hops == 3 and said["x-opt-sequence-number"] == 77


def test_a_dead_letter_names_its_last_source_and_keeps_the_reason() -> None:
    changes = pack_changes(None, {"DeadLetterReason": "why"})
    content = hop(stored(), 1, changes=changes, dead="first")
    content = hop(hop(content, 1), 1, dead="second")
    view = seen(content)
    assert view.message_annotations["x-opt-deadletter-source"] == "second"
    assert view.application_properties == {"DeadLetterReason": "why"} and view.body == [("data", b"body")]


@pytest.mark.parametrize(("left", "ttl", "header_ms"), [(inf, None, 9000), (2.5, 2.5, 2500)])
def test_what_is_left_of_its_life(left: float, ttl: float | None, header_ms: int) -> None:
    content = hop(stored(), 1, left=left)
    traits = content[4]
    assert traits is not None and (traits.ttl, seen(content).header.ttl) == (ttl, header_ms)


def test_it_is_known_for_whom_and_when_it_is() -> None:
    traits = hop(stored({SCHEDULED_TIME: Timestamp(12_500)}), 1)[4]
    assert traits is not None and (traits.message_id, traits.session_id, traits.scheduled_at) == ("m", "s", 12.5)


def test_delivery_annotations_of_the_sender_go_along() -> None:
    content = hop(stored(delivery_annotations={Symbol("hop"): 1}), 1, changes=pack_changes(None, {"a": 1}))
    assert seen(content).delivery_annotations == {"hop": 1} and seen(content).application_properties == {"a": 1}


def test_a_forward_record_says_what_it_is_about() -> None:
    payload = pack_forward(3, records.PUBLISH, (5, 6)) + b"within"
    source_id, numbers, kind, at = read_forward(payload)
    assert (source_id, numbers, kind, payload[at:]) == (3, (5, 6), records.PUBLISH, b"within")
    with pytest.raises(RecordError):
        read_forward(payload[:20])
