"""Reads the requests to `$cbs` and `$management` from bytes, and writes the responses. Pure.

See docs/reference/protocol.md#tokens-over-cbs and docs/reference/protocol.md#requests-over-management.

`$cbs` answers in kebab-case, `$management` in camelCase; the correlation-id repeats the request's message-id in the
same type (docs/reference/protocol.md#a-response-repeats-the-id-of-its-request). The operations themselves are
elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pairbus.amqp.errors import OUTCOME_UNKNOWN, DecodeError
from pairbus.amqp.message import (
    Properties,
    encode_message,
    read_application_properties,
    read_body,
    read_properties,
    split,
)
from pairbus.amqp.types import Int, Symbol


@dataclass(frozen=True, slots=True)
class Request:
    message_id: Any
    reply_to: str | None
    #: Application properties: operation, type, name, associated-link-name …
    properties: dict[str, Any]
    body: Any

    @property
    def operation(self) -> str:
        return str(self.properties.get("operation", ""))


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    description: str
    condition: str | None = None
    body: dict[str, Any] = field(default_factory=dict)
    is_unknown: bool = False


def read_request(payload: bytes) -> Request:
    """Return the request in an encoded message, or raise DecodeError."""
    sections = split(payload)
    properties = read_properties(payload, sections)
    body = read_body(payload, sections)
    if not body or body[0][0] != "value":
        raise DecodeError("a request carries its arguments as one amqp-value section")
    reply_to = properties.reply_to
    return Request(
        properties.message_id,
        reply_to if isinstance(reply_to, str) else None,
        {str(key): value for key, value in read_application_properties(payload, sections).items()},
        body[0][1],
    )


def cbs_response(request: Request, response: Response) -> bytes:
    """Return the encoded answer of `$cbs`."""
    # no error-condition here: Python takes its presence for a failure
    return encode_message(
        properties=Properties(correlation_id=request.message_id),
        application_properties={"status-code": Int(response.status), "status-description": response.description},
        body=("value", None),
    )


def management_response(request: Request, response: Response) -> bytes:
    """Return the encoded answer of `$management`."""
    properties: dict[str, Any] = {"statusCode": Int(response.status), "statusDescription": response.description}
    if response.condition is not None:
        properties["errorCondition"] = Symbol(response.condition)
    if response.is_unknown:
        properties[OUTCOME_UNKNOWN] = True
    tracking_id = request.properties.get("com.microsoft:tracking-id")
    if tracking_id is not None:
        properties["com.microsoft:tracking-id"] = tracking_id
    return encode_message(
        properties=Properties(correlation_id=request.message_id),
        application_properties=properties,
        body=("value", response.body),
    )
