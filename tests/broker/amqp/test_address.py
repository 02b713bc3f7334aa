from __future__ import annotations

import pytest

from pairbus.broker.amqp.address import Address, NodeKind, parse_address


@pytest.mark.parametrize(
    ("text", "node", "path"),
    [
        ("orders", NodeKind.ENTITY, "orders"),
        ("/orders/", NodeKind.ENTITY, "orders"),
        ("amqps://localhost:5672/orders", NodeKind.ENTITY, "orders"),
        ("amqp://contoso.servicebus.windows.net/a/b/c", NodeKind.ENTITY, "a/b/c"),
        ("sb://host/Orders/$DeadLetterQueue", NodeKind.ENTITY, "Orders/$DeadLetterQueue"),
        ("orders/$management", NodeKind.MANAGEMENT, "orders"),
        ("orders/$DeadLetterQueue/$MANAGEMENT", NodeKind.MANAGEMENT, "orders/$DeadLetterQueue"),
        ("amqps://host:1/news/Subscriptions/all/$management", NodeKind.MANAGEMENT, "news/Subscriptions/all"),
        ("$management", NodeKind.MANAGEMENT, ""),
        ("$cbs", NodeKind.CBS, ""),
        ("$CBS", NodeKind.CBS, ""),
        ("amqps://host:1/$cbs", NodeKind.CBS, ""),
        ("amqps://host", NodeKind.ENTITY, ""),
        ("", NodeKind.ENTITY, ""),
    ],
)
def test_addresses_as_the_sdks_write_them(text: str, node: NodeKind, path: str) -> None:
    assert parse_address(text) == Address(node, path)
