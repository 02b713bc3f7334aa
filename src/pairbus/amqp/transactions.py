"""Reads and writes the messages to a transaction coordinator (AMQP 4.3, 4.4).

The body of such a message is one amqp-value section with a declare or a discharge. Their effect is decided elsewhere.
"""

from __future__ import annotations

from typing import Final

from pairbus.amqp.composite import decode_composite, read_descriptor
from pairbus.amqp.encoding import encode_list_body
from pairbus.amqp.errors import DecodeError, EncodeError
from pairbus.amqp.message import split, value_at
from pairbus.amqp.performative_types import Declare, Discharge

#: AMQP 4.5.2: no transaction id is longer.
TXN_ID_BYTES_MAX: Final = 32
_VALUE: Final = b"\x00\x53\x77"
_REQUESTS: Final = {cls.DESCRIPTOR: cls for cls in (Declare, Discharge)} | {
    "amqp:declare:list": Declare,
    "amqp:discharge:list": Discharge,
}


def read_coordination(payload: bytes) -> Declare | Discharge:
    """Return the declare or discharge in an encoded message. Raises DecodeError for any other message."""
    body = split(payload).body
    start = None if body is None else value_at(payload, body[0])
    try:
        if start is None or payload[start] != 0x00:
            raise DecodeError("a message to a coordinator has a declare or a discharge as its amqp-value")
        descriptor, at = read_descriptor(payload, start + 1)
        cls = _REQUESTS.get(descriptor)
        if cls is None:
            raise DecodeError(f"a coordinator takes a declare or a discharge, not {descriptor!r:.60}")
        request: Declare | Discharge = decode_composite(cls, payload, at)[0]
    except IndexError:
        raise DecodeError("a message to a coordinator that ends too early") from None
    if isinstance(request, Discharge) and len(request.txn_id) > TXN_ID_BYTES_MAX:
        raise DecodeError(f"a transaction id has up to {TXN_ID_BYTES_MAX} bytes, not {len(request.txn_id)}")
    return request


def encode_coordination(request: Declare | Discharge) -> bytes:
    """Return the message that carries a declare or a discharge."""
    return _VALUE + request.encode()


def in_transaction(txn_id: bytes, outcome: bytes = b"") -> bytes:
    """Return the encoded transactional-state of a delivery, with its encoded outcome if it has one."""
    if len(txn_id) > TXN_ID_BYTES_MAX:
        raise EncodeError(f"a transaction id has up to {TXN_ID_BYTES_MAX} bytes, not {len(txn_id)}")
    out = bytearray(b"\x00\x53\x34")
    encode_list_body(out, bytearray((0xA0, len(txn_id))) + txn_id + outcome, 2 if outcome else 1)
    return bytes(out)
