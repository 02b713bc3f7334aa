"""Encodes requests to `$cbs` and `$management` and decodes the answers. Pure.

See docs/reference/protocol.md#tokens-over-cbs and docs/reference/protocol.md#requests-over-management.

It decides the form of each request and what an answer means. It sends nothing and waits for nothing. Every function
takes and returns plain values, so that the same requests can be made from another process than the one that received.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from pairbus.amqp.errors import OUTCOME_UNKNOWN, DecodeError
from pairbus.amqp.message import (
    Properties,
    encode_message,
    read_application_properties,
    read_body,
    read_properties,
    split,
)
from pairbus.amqp.types import Array, Int, Timestamp, UInt
from pairbus.credentials import Token

from .errors import Refused, refusal_by_status

CBS_NODE = "$cbs"

PEEK = "com.microsoft:peek-message"
RENEW_LOCK = "com.microsoft:renew-lock"
UPDATE_DISPOSITION = "com.microsoft:update-disposition"

#: The service's words, its spelling of the third included.
DISPOSITIONS = ("completed", "abandoned", "defered", "suspended")

_UUID_CODE = 0x98
#: 9999-12-31, the last that clients of the service can read.
_TIMESTAMP_MAX = 253402243199000

LockToken = UUID | bytes


def management_node(entity: str) -> str:
    return f"{entity}/$management"


def as_uuid(token: LockToken) -> UUID:
    """A lock token travels in .NET's order as delivery tag and in network order in a request
    (docs/reference/protocol.md#lock-tokens)."""
    if isinstance(token, UUID):
        return token
    if len(token) != 16:
        raise ValueError(f"a lock token is a UUID or 16 bytes in .NET's order, not {len(token)} bytes")
    return UUID(bytes_le=bytes(token))


def put_token(message_id: str, reply_to: str, audience: str, token: Token) -> bytes:
    return encode_message(
        properties=Properties(message_id=message_id, to=CBS_NODE, reply_to=reply_to),
        application_properties={
            "operation": "put-token",
            "type": token.kind,
            "name": audience,
            "expiration": Timestamp(min(int(token.expires_at * 1000), _TIMESTAMP_MAX)),
        },
        body=("value", token.text),
    )


def management_request(
    message_id: str, reply_to: str, operation: str, body: Mapping[str, Any], server_timeout_s: float
) -> bytes:
    properties = encode_message(properties=Properties(message_id=message_id, reply_to=reply_to), body=None)
    return properties + _operation(operation, server_timeout_s) + encode_message(body=("value", dict(body)))


@lru_cache(maxsize=100)
def _operation(operation: str, server_timeout_s: float) -> bytes:
    """Return the application properties of a request: the same again and again."""
    return encode_message(
        application_properties={
            "operation": operation,
            "type": "entity-mgmt",
            "com.microsoft:server-timeout": UInt(max(1, int(server_timeout_s * 1000))),
        },
        body=None,
    )


@dataclass(slots=True, repr=False, eq=False)
class Response:
    correlation_id: object
    status: int
    condition: str | None
    description: str | None
    body: Any
    is_unknown: bool = False

    def __repr__(self) -> str:
        return f"<Response to {self.correlation_id!r}: {self.status} {self.condition or ''}>"

    @property
    def refusal(self) -> Refused | None:
        if 200 <= self.status < 300:
            return None
        return refusal_by_status(self.status, self.condition, self.description, outcome_unknown=self.is_unknown)


def read_response(payload: bytes) -> Response:
    """Decode a response: kebab case from `$cbs`, camel case from `$management`, both from either. Raise DecodeError."""
    sections = split(payload)
    fields = read_application_properties(payload, sections)
    status = _first(fields, "statusCode", "status-code")
    if not isinstance(status, int):
        raise DecodeError("the response has no status code: neither statusCode nor status-code is an integer")
    condition = _first(fields, "errorCondition", "error-condition")
    description = _first(fields, "statusDescription", "status-description")
    body = read_body(payload, sections)
    return Response(
        read_properties(payload, sections).correlation_id,
        int(status),
        None if condition is None else str(condition),
        None if description is None else str(description),
        body[0][1] if body and body[0][0] == "value" else None,
        OUTCOME_UNKNOWN in fields,
    )


def update_disposition(
    tokens: Iterable[LockToken],
    disposition: str,
    *,
    reason: str | None = None,
    description: str | None = None,
    properties: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    if disposition not in DISPOSITIONS:
        raise ValueError(f"{disposition!r} is no disposition; right are {', '.join(DISPOSITIONS)}")
    if disposition != "suspended" and (reason is not None or description is not None):
        raise ValueError(f"a reason is for 'suspended' (dead-letter), not for {disposition!r}")
    body: dict[str, Any] = {"disposition-status": disposition, "lock-tokens": _tokens(tokens)}
    if reason is not None:
        body["deadletter-reason"] = reason
    if description is not None:
        body["deadletter-description"] = description
    if properties:
        body["properties-to-modify"] = dict(properties)
    return body


def renew_lock(tokens: Iterable[LockToken]) -> dict[str, Any]:
    return {"lock-tokens": _tokens(tokens)}


def read_expirations(body: Any) -> list[float]:
    """Return the ends of locks in unix seconds, in the order of the tokens that were asked for."""
    expirations = body.get("expirations") if isinstance(body, dict) else None
    if not isinstance(expirations, list) or not all(isinstance(stamp, int) for stamp in expirations):
        raise DecodeError("the answer to renew-lock has no list of expirations")
    return [stamp / 1000 for stamp in expirations]


def peek_message(from_sequence: int, count: int) -> dict[str, Any]:
    return {"from-sequence-number": int(from_sequence), "message-count": Int(count)}


def read_messages(body: Any) -> list[bytes]:
    """Return the encoded messages of a peek."""
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list):
        raise DecodeError("the answer to peek-message has no list of messages")
    found = [entry.get("message") if isinstance(entry, dict) else None for entry in messages]
    if not all(isinstance(message, bytes) for message in found):
        raise DecodeError("the answer to peek-message has an entry without an encoded message")
    return found  # type: ignore[return-value]


def _tokens(tokens: Iterable[LockToken]) -> Array:
    found = [as_uuid(token) for token in tokens]
    if not found:
        raise ValueError("no lock tokens were given")
    return Array.of(_UUID_CODE, found)


def _first(fields: Mapping[Any, Any], *names: str) -> Any:
    for name in names:
        value = fields.get(name)
        if value is not None:
            return value
    return None
