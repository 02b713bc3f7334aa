"""The ping: the message that tests whether a primary entity takes messages, and how a receiver recognises it.

A ping is an empty message with a special content type that expires after a second. It has a session id, so that an
entity that requires sessions takes it, and a new message id (from the SDK), so that duplicate detection never drops it.
This module decides how long a ping may take, but not when to ping or what an answer means.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from azure.servicebus import ServiceBusMessage

from pairbus.pairing.routing import budget

CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
_CONTENT_TYPE_BYTES: Final = CONTENT_TYPE.encode()
TTL: Final = timedelta(seconds=1)
#: The time that a ping gets to open its connection, however short the interval: half a second on a quiet machine, and
#: several on a busy one or to a distant primary, where a shorter limit would throw each attempt away just before its
#: end, forever.
_OPENING_S: Final = 5.0


def ping_timeout_s(interval_s: float, send_timeout_s: float) -> float:
    """Return the seconds that opening a ping's link may take: its interval, but time enough, and at most what the
    primary gets of a send or what a link gets that is opened over several sends."""
    return min(max(interval_s, _OPENING_S), max(send_timeout_s / 2, budget.OPENING_S))


def ping(session_id: str) -> ServiceBusMessage:
    """`session_id`: a random one, from the shell."""
    return ServiceBusMessage(b"", content_type=CONTENT_TYPE, time_to_live=TTL, session_id=session_id)


def is_ping(message: Any) -> bool:
    """Return whether a received SDK message is a ping: some brokers deliver pings, and our receivers drop them.

    Looks at the field itself: the SDK's property decodes it, and this is asked of every message received.
    """
    properties = message.raw_amqp_message.properties
    return properties is not None and properties.content_type in (_CONTENT_TYPE_BYTES, CONTENT_TYPE)
