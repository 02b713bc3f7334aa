from __future__ import annotations

import uuid
from typing import Any

import pytest

from pairbus.amqp.errors import DecodeError
from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Int, Symbol, ULong
from pairbus.broker.amqp.requests import Request, Response, cbs_response, management_response, read_request
from tests.message_view import View


def request(message_id: Any = "m", **properties: Any) -> Request:
    return Request(message_id, "here", {"operation": "com.microsoft:peek-message", **properties}, {})


def parts(payload: bytes) -> tuple[Any, dict[str, Any], Any]:
    view = View(payload)
    properties = view.properties
    ((_, body),) = view.body
    return properties.correlation_id, view.application_properties, body


def test_a_request_is_read() -> None:
    payload = encode_message(
        properties=Properties(message_id="1", reply_to="me"),
        application_properties={"operation": "put-token", "type": "jwt"},
        body=("value", "token"),
    )
    read = read_request(payload)
    assert (read.message_id, read.reply_to, read.operation, read.body) == ("1", "me", "put-token", "token")
    assert read.properties["type"] == "jwt"


@pytest.mark.parametrize("body", [b"data", ("sequence", [[1]])])
def test_a_request_without_a_value_is_no_request(body: Any) -> None:
    with pytest.raises(DecodeError, match="amqp-value"):
        read_request(encode_message(body=body))


def test_a_request_without_anything_but_a_value_has_no_operation() -> None:
    read = read_request(encode_message(body=("value", None)))
    assert (read.message_id, read.reply_to, read.operation) == (None, None, "")


@pytest.mark.parametrize("message_id", ["text", uuid.UUID(int=5), ULong(7), b"raw"])
def test_the_answer_repeats_the_id_in_its_own_type(message_id: Any) -> None:
    for payload in (
        cbs_response(request(message_id), Response(202, "Accepted")),
        management_response(request(message_id), Response(200, "OK")),
    ):
        correlation_id, _, _ = parts(payload)
        assert correlation_id == message_id
        assert type(correlation_id) is type(message_id)


def test_cbs_answers_in_kebab_case_and_without_a_condition() -> None:
    _, properties, body = parts(cbs_response(request(), Response(401, "no", "amqp:unauthorized-access")))
    assert properties == {"status-code": 401, "status-description": "no"}
    assert type(properties["status-code"]) is Int
    assert body is None


def test_management_answers_in_camel_case() -> None:
    payload = management_response(
        request(**{"com.microsoft:tracking-id": "t"}), Response(410, "gone", "com.microsoft:message-lock-lost")
    )
    _, properties, body = parts(payload)
    assert properties == {
        "statusCode": 410,
        "statusDescription": "gone",
        "errorCondition": "com.microsoft:message-lock-lost",
        "com.microsoft:tracking-id": "t",
    }
    assert type(properties["errorCondition"]) is Symbol
    assert body == {}
    _, properties, body = parts(management_response(request(), Response(200, "OK", body={"messages": [1]})))
    assert "errorCondition" not in properties
    assert body == {"messages": [1]}
