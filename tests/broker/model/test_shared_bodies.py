from __future__ import annotations

from math import inf

import pytest

from pairbus.amqp.codec import decode, skip
from pairbus.broker.format.content import NO_HEADER, with_ttl
from pairbus.broker.format.publication import COPY_BYTES
from pairbus.broker.model.message import Message, message_bytes
from pairbus.broker.model.shared_bodies import Account, Copy, Shared, header_of, let_go, load, unload


def message(kind: type[Message] = Message) -> Message:
    return kind(1, 1.5, NO_HEADER, 0, 0, b"x" * 100, 100)


def test_a_message_of_a_queue_has_everything_to_itself() -> None:
    single = message()
    assert single.shared is None
    assert let_go(single) == message_bytes(single)
    assert load(single) == unload(single) == 100


def test_a_shared_body_counts_once() -> None:
    account = Account()
    shared = Shared(account, 130)
    copies = []
    for _ in range(3):
        copy = message(Copy)
        assert isinstance(copy, Copy)
        copy.join(shared)
        copies.append(copy)
    assert (shared.copies, account.stored_bytes) == (3, 100)
    assert [load(copy) for copy in copies] == [100, 0, 0]
    assert [unload(copy) for copy in copies] == [0, 0, 100]
    assert [let_go(copy) for copy in copies] == [COPY_BYTES, COPY_BYTES, COPY_BYTES + 130]
    assert (shared.copies, account.stored_bytes) == (0, 0)
    assert repr(shared) == "<Shared by 0 copies, 0 in memory>"
    assert repr(account) == "<Account: 0 bytes>"


@pytest.mark.parametrize(
    ("sent_s", "lifetime", "told_ms"),
    [
        (None, inf, None),
        (None, 5.0, 5_000),
        (10.0, inf, 10_000),
        (10.0, 10.0, 10_000),
        (10.0, 10.0000001, 10_000),
        (10.0, 5.0, 5_000),
        (10.0, 20.0, 10_000),
        (None, 5_000_000.0, None),  # beyond what the header can hold: it is told by creation and expiry
    ],
)
def test_the_header_tells_the_shorter_life(sent_s: float | None, lifetime: float, told_ms: int | None) -> None:
    header = NO_HEADER if sent_s is None else with_ttl(NO_HEADER, sent_s)
    told = header_of(header, lifetime)
    assert decode(told, skip(told, skip(told, 0)))[0] == told_ms
