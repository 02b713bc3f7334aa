from __future__ import annotations

import pytest

from pairbus.broker.amqp.address import Address, Node, parse_address


@pytest.mark.parametrize(
    ("text", "node", "path"),
    [
        ("orders", Node.ENTITY, "orders"),
        ("/orders/", Node.ENTITY, "orders"),
        ("amqps://localhost:5672/orders", Node.ENTITY, "orders"),
        ("amqp://contoso.servicebus.windows.net/a/b/c", Node.ENTITY, "a/b/c"),
        ("sb://host/Orders/$DeadLetterQueue", Node.ENTITY, "Orders/$DeadLetterQueue"),
        ("orders/$management", Node.MANAGEMENT, "orders"),
        ("orders/$DeadLetterQueue/$MANAGEMENT", Node.MANAGEMENT, "orders/$DeadLetterQueue"),
        ("amqps://host:1/news/Subscriptions/all/$management", Node.MANAGEMENT, "news/Subscriptions/all"),
        ("$management", Node.MANAGEMENT, ""),
        ("$cbs", Node.CBS, ""),
        ("$CBS", Node.CBS, ""),
        ("amqps://host:1/$cbs", Node.CBS, ""),
        ("amqps://host", Node.ENTITY, ""),
        ("", Node.ENTITY, ""),
    ],
)
def test_addresses_as_the_sdks_write_them(text: str, node: Node, path: str) -> None:
    assert parse_address(text) == Address(node, path)
