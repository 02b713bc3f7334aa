"""Defines the limits of one AMQP connection. Every buffer and table of the engine is bounded by a number here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    frame_bytes_max: int = 65536
    channel_max: int = 4999
    handle_max: int = 255
    #: Links of all sessions together.
    links_max: int = 5000
    #: A message of several frames is gathered up to this size, or what its link was accepted with; a larger one is
    #: discarded and reported as too large.
    message_bytes_max: int = 1024 * 1024 + 65536
    #: Of all messages together whose last frame has not come: there may be one on every link. The largest message that
    #: a link was accepted with comes on top, so that one such can always come in.
    gathered_bytes_max: int = 16 * 1024 * 1024
    #: How many transfers the peer may send in a session before it must wait for a flow from us.
    incoming_window: int = 5000
    outgoing_window: int = 5000


#: The largest frame for a peer that states no limit.
OUTGOING_FRAME_BYTES_MAX = 1024 * 1024
#: AMQP 2.7.1: no peer may ask for less.
FRAME_BYTES_MIN = 512
