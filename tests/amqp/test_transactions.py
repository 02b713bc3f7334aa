from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec import encode
from pairbus.amqp.errors import AmqpError, DecodeError, EncodeError
from pairbus.amqp.events import Delivered, TransactionalDelivered
from pairbus.amqp.message import encode_message
from pairbus.amqp.performative_types import (
    Accepted,
    Declare,
    Declared,
    Discharge,
    Disposition,
    Error,
    Modified,
    Rejected,
    Released,
    TransactionalState,
    Transfer,
)
from pairbus.amqp.performatives import decode_performative, encode_disposition, encode_transfer
from pairbus.amqp.transactions import encode_coordination, in_transaction, read_coordination
from pairbus.amqp.types import Described, Symbol, ULong

from .pair import SMALL, ConnectionPair
from .values import damaged

ids = st.binary(max_size=32)
requests = st.one_of(st.builds(Declare, st.none() | st.binary(max_size=8)), st.builds(Discharge, ids, st.booleans()))
OUTCOMES = [
    Accepted(),
    Released(),
    Rejected(Error("com.microsoft:dead-letter", "bad", {Symbol("DeadLetterReason"): "bad"})),
    Modified(True, False, {Symbol("tries"): 3}),
    None,
]


@given(requests)
def test_a_request_to_a_coordinator_comes_back_as_it_was(request_: Declare | Discharge) -> None:
    assert read_coordination(encode_coordination(request_)) == request_


@pytest.mark.parametrize(
    ("descriptor", "fields", "expected"),
    [
        (Symbol("amqp:declare:list"), [], Declare()),
        (Symbol("amqp:discharge:list"), [b"id"], Discharge(b"id", False)),
        (ULong(0x32), [b"id", True], Discharge(b"id", True)),
    ],
)
def test_descriptors_may_be_symbols(descriptor: object, fields: list[object], expected: object) -> None:
    payload = encode_message(body=("value", Described(descriptor, fields)))
    assert read_coordination(payload) == expected


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "has a declare or a discharge"),
        (encode_message(body=b"data"), "has a declare or a discharge"),
        (encode_message(body=("value", "text")), "has a declare or a discharge"),
        (encode_message(body=("value", Described(ULong(0x24), []))), "a declare or a discharge, not"),
        (encode_message(body=("value", Described(ULong(0x32), []))), "Discharge lacks txn_id"),
        (encode_message(body=("value", Described(ULong(0x32), [b"x" * 33]))), "up to 32 bytes, not 33"),
    ],
)
def test_what_is_no_request_is_refused_in_words(payload: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        read_coordination(payload)


@given(damaged(requests.map(encode_coordination)))
def test_damaged_requests_raise_only_our_errors(payload: bytes) -> None:
    try:
        read_coordination(payload)
    except AmqpError:
        pass


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_dispositions_carry_the_outcome_within_the_transaction(outcome: Accepted | None) -> None:
    wire = encode_disposition(True, 1, 2, False, in_transaction(b"id", b"" if outcome is None else outcome.encode()))
    found, end = decode_performative(wire)
    assert (found, end) == (
        Disposition(role=True, first=1, last=2, settled=False, state=TransactionalState(b"id", outcome)),
        len(wire),
    )


def test_a_state_within_a_state_is_refused() -> None:
    nested = encode_disposition(True, 1, 1, False, in_transaction(b"id", encode(Described(ULong(0x24), []))))
    assert isinstance(decode_performative(nested)[0].state.outcome, Accepted)
    twice = encode_disposition(True, 1, 1, False, in_transaction(b"id", encode(Described(ULong(0x34), [b"id"]))))
    with pytest.raises(DecodeError, match="TransactionalState can't stand where"):
        decode_performative(twice)


@given(st.integers(0, 300), st.integers(0, 2**32 - 1), st.binary(max_size=32), ids, st.booleans(), st.booleans())
def test_transfers_carry_the_transaction(
    handle: int, delivery_id: int, tag: bytes, txn_id: bytes, settled: bool, more: bool
) -> None:
    wire = encode_transfer(handle, delivery_id, tag, 0, settled, more, in_transaction(txn_id))
    found, end = decode_performative(wire + b"payload")
    assert end == len(wire)
    assert found == Transfer(
        handle=handle, delivery_id=delivery_id, delivery_tag=tag, message_format=0, settled=settled, more=more,
        state=TransactionalState(txn_id),
    )  # fmt: skip


def test_states_and_ids_that_are_too_long_are_refused() -> None:
    with pytest.raises(EncodeError, match="a state of 240 bytes is too long"):
        encode_transfer(0, 0, b"tag", 0, False, False, b"s" * 240)
    with pytest.raises(EncodeError, match="up to 32 bytes, not 33"):
        in_transaction(b"i" * 33)


def test_declared_is_an_outcome() -> None:
    wire = encode_disposition(True, 0, 0, True, Declared(b"id").encode())
    assert decode_performative(wire)[0].state == Declared(b"id")


@pytest.mark.parametrize("size", [10, 3000])
def test_a_message_of_a_transaction_arrives_as_an_event_of_its_own_whatever_the_frame_size(size: int) -> None:
    pair = ConnectionPair(server={"limits": SMALL})
    sender, _ = pair.sender(credit=10)
    sender.send(b"x" * size, b"t", state=in_transaction(b"id"))
    sender.send(b"plain", b"t")
    pair.pump()
    transactional, plain = pair.take("server", Delivered)
    assert isinstance(transactional, TransactionalDelivered) and type(plain) is Delivered
    assert (transactional.payload, transactional.txn_id) == (b"x" * size, b"id")
