"""Parses link addresses, as the SDKs write them (docs/reference/protocol.md#addresses). Pure.

Python sends URIs (`amqps://host:port/orders`), JS and .NET bare names; management nodes are bare everywhere. It decides
only which node an address means; whether the entity exists and who may use it are checked elsewhere.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

_CBS = "$cbs"
_MANAGEMENT = "/$management"


class NodeKind(enum.Enum):
    """The kinds of nodes that an address can name."""

    CBS = enum.auto()
    MANAGEMENT = enum.auto()
    ENTITY = enum.auto()


@dataclass(frozen=True, slots=True)
class Address:
    node: NodeKind
    #: The entity's path in the case given, `orders` or `orders/$DeadLetterQueue`; empty for `$cbs`.
    path: str


def parse_address(text: str) -> Address:
    """Return the node that an address names; every text names one."""
    _, separator, rest = text.partition("://")
    if separator:
        _, _, text = rest.partition("/")
    path = text.strip("/")
    lowered = path.lower()
    if lowered == _CBS:
        return Address(NodeKind.CBS, "")
    if lowered == _MANAGEMENT[1:]:
        return Address(NodeKind.MANAGEMENT, "")
    if lowered.endswith(_MANAGEMENT):
        return Address(NodeKind.MANAGEMENT, path[: -len(_MANAGEMENT)])
    return Address(NodeKind.ENTITY, path)
