"""Defines what counts as a billable operation, in which units and for which cause, for brokers, clients and reports.

It decides what is billed, not what it costs. docs/reference/metering.md has the table with its reasons.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

UNIT_BYTES: Final = 64 * 1024

APP: Final = "app"
PING: Final = "ping"
SYPHON: Final = "syphon"
MOVE: Final = "move"
SPARK: Final = "spark"
MANAGE: Final = "manage"
CAUSES: Final = (APP, PING, SYPHON, MOVE, SPARK, MANAGE)

#: What a broker counts; the kinds of its ledger's lines that are billed.
OPERATIONS: Final = ("send", "ping", "receive", "poll", "manage")
#: And in a client's: a `divert` is a send to a backlog queue, a `move` the syphon's send to the primary.
CLIENT_OPERATIONS: Final = (*OPERATIONS, "divert", "move")
#: An operation that was refused is not billed; a duplicate was taken, and dropped only then.
BILLED_OUTCOMES: Final = ("ok", "duplicate")

#: The property of AMQP's `open` with a client's cause. A client without it counts as an application.
CAUSE_PROPERTY: Final = "pairbus-cause"


def units(size: int) -> int:
    """Return how many units that many bytes are: a started unit is a whole one, and nothing is free."""
    return -(-size // UNIT_BYTES) or 1


def cause_in(properties: Mapping[Any, Any] | None) -> str:
    """Return the cause that a peer's `open` names in its properties; what is not one of ours is an application's."""
    said = properties.get(CAUSE_PROPERTY) if properties else None
    return said if isinstance(said, str) and said in CAUSES else APP
