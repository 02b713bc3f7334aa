from __future__ import annotations

import pytest

from pairbus.broker.format import records
from pairbus.broker.model.message import DEFERRED, HOMES, READY, SCHEDULED, Message, message_bytes, place_of


@pytest.mark.parametrize(
    ("home", "is_dead", "place"),
    [
        (READY, False, records.ACTIVE),
        (READY, True, records.DEAD),
        (DEFERRED, False, records.ACTIVE_DEFERRED),
        (DEFERRED, True, records.DEAD_DEFERRED),
        (SCHEDULED, False, records.SCHEDULED),
    ],
)
def test_records_say_where_a_message_is(home: int, is_dead: bool, place: int) -> None:
    message = Message(1, 1.0, b"@@@@", 0, 0, b"", 0)
    message.home = home
    assert place_of(message, is_dead) == place
    assert HOMES[place] == home


@pytest.mark.parametrize("session_id", [None, "", "a", "ä"])
def test_what_a_message_takes_in_its_record(session_id: str | None) -> None:
    message = Message(1, 1.0, b"@@@@", 0, 0, b"abc", 3, session_id=session_id)
    entry = records.pack_entry(1, 1.0, 2.0, 0, records.ACTIVE, b"@@@@", session_id, 0, 0, b"", 3)
    assert message_bytes(message) == len(entry) + 3
