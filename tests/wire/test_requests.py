from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from pairbus.amqp.codec import encode
from pairbus.amqp.errors import DecodeError
from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Array, Int, Symbol, Timestamp, UInt
from pairbus.credentials import Token
from pairbus.wire import requests
from pairbus.wire.errors import LockLost, NotFound, Unauthorized
from tests.message_view import View

TOKEN = UUID("00112233-4455-6677-8899-aabbccddeeff")


def test_put_token() -> None:
    payload = requests.put_token("m1", "r1", "sb://ns/q", Token("the token", "jwt", 1700000000.25))
    view = View(payload)
    assert view.body == [("value", "the token")]
    fields = view.application_properties
    assert fields == {
        "operation": "put-token",
        "type": "jwt",
        "name": "sb://ns/q",
        "expiration": Timestamp(1700000000250),
    }
    assert type(fields["expiration"]) is Timestamp
    properties = view.properties
    assert (properties.message_id, properties.to, properties.reply_to) == ("m1", "$cbs", "r1")


def test_a_token_for_ever_still_has_a_readable_expiry() -> None:
    payload = requests.put_token("m", "r", "a", Token("t", "jwt", 1e15))
    assert View(payload).application_properties["expiration"] == 253402243199000


def test_management_request() -> None:
    payload = requests.management_request("m1", "r1", "com.microsoft:x", {"a": Int(1)}, 2.5)
    view = View(payload)
    assert view.body == [("value", {"a": 1})]
    fields = view.application_properties
    assert fields == {"operation": "com.microsoft:x", "type": "entity-mgmt", "com.microsoft:server-timeout": 2500}
    assert type(fields["com.microsoft:server-timeout"]) is UInt
    assert view.properties.reply_to == "r1"


def _response(fields: dict[str, object], body: object = None) -> bytes:
    return encode_message(
        properties=Properties(correlation_id="m1"), application_properties=fields, body=("value", body)
    )


def test_a_response_of_either_spelling() -> None:
    camel = requests.read_response(_response({"statusCode": Int(200), "statusDescription": "OK"}, {"x": 1}))
    assert (camel.status, camel.description, camel.condition, camel.body) == (200, "OK", None, {"x": 1})
    assert camel.correlation_id == "m1"
    assert camel.refusal is None
    kebab = requests.read_response(_response({"status-code": Int(202), "status-description": "Accepted"}))
    assert (kebab.status, kebab.refusal) == (202, None)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"status-code": Int(401), "status-description": "no"}, Unauthorized),
        ({"statusCode": Int(410), "errorCondition": Symbol("com.microsoft:message-lock-lost")}, LockLost),
        ({"statusCode": Int(404), "errorCondition": Symbol("com.microsoft:message-not-found")}, NotFound),
    ],
)
def test_a_refusal(fields: dict[str, object], kind: type) -> None:
    assert type(requests.read_response(_response(fields)).refusal) is kind


@pytest.mark.parametrize("fields", [{}, {"statusCode": "200"}, {"other": Int(1)}])
def test_a_response_without_status_is_malformed(fields: dict[str, object]) -> None:
    with pytest.raises(DecodeError, match="no status code"):
        requests.read_response(_response(fields))


def test_lock_tokens_of_both_kinds() -> None:
    assert requests.as_uuid(TOKEN) is TOKEN
    assert requests.as_uuid(TOKEN.bytes_le) == TOKEN
    with pytest.raises(ValueError, match="not 4 bytes"):
        requests.as_uuid(b"abcd")


def test_update_disposition() -> None:
    body = requests.update_disposition(
        [TOKEN, TOKEN.bytes_le], "suspended", reason="why", description="because", properties={"a": 1}
    )
    assert body == {
        "disposition-status": "suspended",
        "lock-tokens": [TOKEN, TOKEN],
        "deadletter-reason": "why",
        "deadletter-description": "because",
        "properties-to-modify": {"a": 1},
    }
    assert type(body["lock-tokens"]) is Array
    # array8, size, count, constructor uuid
    assert encode(body["lock-tokens"])[:4] == b"\xe0\x22\x02\x98"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: requests.update_disposition([TOKEN], "complete"),
            "right are completed, abandoned, defered, suspended",
        ),
        (lambda: requests.update_disposition([TOKEN], "completed", reason="x"), "a reason is for 'suspended'"),
        (lambda: requests.update_disposition([], "completed"), "no lock tokens"),
        (lambda: requests.renew_lock([]), "no lock tokens"),
    ],
)
def test_wrong_arguments(call: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()  # type: ignore[operator]


def test_expirations() -> None:
    assert requests.read_expirations({"expirations": [Timestamp(1500), Timestamp(2000)]}) == [1.5, 2.0]
    for wrong in (None, {}, {"expirations": 3}, {"expirations": ["x"]}):
        with pytest.raises(DecodeError):
            requests.read_expirations(wrong)


def test_peek() -> None:
    body = requests.peek_message(7, 20)
    assert body == {"from-sequence-number": 7, "message-count": 20}
    assert (type(body["from-sequence-number"]), type(body["message-count"])) == (int, Int)
    assert requests.read_messages({"messages": [{"message": b"a"}, {"message": b"b"}]}) == [b"a", b"b"]
    for wrong in (None, {}, {"messages": 1}, {"messages": [1]}, {"messages": [{"message": "text"}]}):
        with pytest.raises(DecodeError):
            requests.read_messages(wrong)


def test_tokens_travel_in_network_order() -> None:
    token = uuid4()
    body = requests.renew_lock([token.bytes_le])
    assert token.bytes in encode(body)
