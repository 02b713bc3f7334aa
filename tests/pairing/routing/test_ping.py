"""P31, P32: what a ping looks like on the wire, and who knows one."""

from __future__ import annotations

from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.broker.format import content
from pairbus.pairing.backlog import diversion
from pairbus.pairing.routing.ping import CONTENT_TYPE, is_ping, ping, ping_timeout_s
from tests.message_view import View


def received(message: ServiceBusMessage) -> ServiceBusMessage:
    """As the SDK gives it to a receiver: decoded, text as bytes."""
    raw = AmqpAnnotatedMessage(message=decode_payload(memoryview(diversion.encoded(message))))
    return ServiceBusMessage(None, message=raw, raw_amqp_message=raw)


def test_p31_a_ping_is_an_empty_message_of_its_own_content_type_that_lives_for_a_second() -> None:
    payload = diversion.encoded(ping("a-random-session"))
    view = View(payload)
    properties = view.properties
    assert properties.content_type == "application/vnd.ms-servicebus-ping" == CONTENT_TYPE
    assert view.header.ttl == 1000
    assert view.body == [("data", b"")]
    assert properties.group_id == "a-random-session"


def test_p31_each_ping_has_an_id_of_its_own() -> None:
    """Or duplicate detection would swallow every ping but the first, and answer for the entity."""
    assert ping("a").message_id != ping("a").message_id


def test_p32_our_broker_knows_it() -> None:
    assert content.PING_CONTENT_TYPE == CONTENT_TYPE
    assert content.take_in(diversion.encoded(ping("a")), lambda: "id") is None


def test_p32_receivers_know_it_by_its_content_type() -> None:
    assert is_ping(received(ping("a")))
    assert is_ping(ping("a"))
    assert not is_ping(received(ServiceBusMessage(b"")))
    assert not is_ping(received(ServiceBusMessage(b"", content_type="application/json")))
    assert not is_ping(AmqpHolder(AmqpAnnotatedMessage(data_body=b"")))


def test_p31_a_ping_has_time_to_open_a_connection_however_short_its_interval() -> None:
    assert ping_timeout_s(60, 60) == 30, "half of what a send may take"
    assert ping_timeout_s(10, 60) == 10
    assert ping_timeout_s(0.1, 60) == 5
    assert ping_timeout_s(1, 8) == 5
    assert ping_timeout_s(60, 4) == 10, "a link is opened over several sends, however short each of them is"


class AmqpHolder:
    """A message without properties, as no ServiceBusMessage of the SDK is."""

    def __init__(self, raw: AmqpAnnotatedMessage) -> None:
        self.raw_amqp_message = raw
