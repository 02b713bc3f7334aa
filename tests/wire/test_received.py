from __future__ import annotations

from uuid import uuid4

import pytest

from pairbus.amqp.errors import DecodeError
from pairbus.wire.received import ReceivedMessage

from .peer import message, stored


def test_what_the_service_adds_is_read_when_asked_for() -> None:
    token = uuid4()
    received = ReceivedMessage(stored(42, delivery_count=3), 7, token.bytes_le, None, settled=False)
    assert received.sequence_number == 42
    assert received.enqueued_at == 1_700_000_000.042
    assert received.locked_until == 1_700_000_060.5
    assert received.delivery_count == 3
    assert received.lock_token == token
    assert repr(received) == f"<ReceivedMessage 7: {len(received.payload)} bytes>"


def test_a_message_that_has_none_of_it() -> None:
    received = ReceivedMessage(message("x"), 0, b"\x00\x00\x00\x01", None, settled=False)
    assert received.sequence_number is None
    assert received.enqueued_at is None
    assert received.locked_until is None
    assert received.delivery_count == 0
    assert received.lock_token is None


def test_nothing_is_locked_where_it_came_settled() -> None:
    assert ReceivedMessage(message("x"), 0, uuid4().bytes_le, None, settled=True).lock_token is None


def test_garbage_is_told_when_it_is_looked_into() -> None:
    received = ReceivedMessage(b"\xff\xff", 0, b"", None, settled=False)
    with pytest.raises(DecodeError):
        _ = received.sequence_number
