from __future__ import annotations

import pytest

from pairbus.spark.connector.listing import Entities, EntityDiscovery, depth
from pairbus.spark.connector.options import Address, InvalidOption
from tests.spark.conftest import MakeQueue, Pair, admin_of, wire


class Found:
    """A namespace whose entities change."""

    def __init__(self, *names: str, may_change: bool = True) -> None:
        self.names = list(names)
        self.may_change = may_change
        self.asked = 0

    def __call__(self) -> list[str]:
        self.asked += 1
        if not self.names:
            raise InvalidOption("no queue fits")
        return list(self.names)


def test_a_glob_is_listed_again_at_a_bounded_pace() -> None:
    now = 0.0
    found = Found("a", "b")
    discovery = EntityDiscovery(found, every_s=30, clock=lambda: now)
    assert discovery.names() == ["a", "b"]
    found.names.append("c")
    now = 29.0
    assert [discovery.names() for _ in range(100)][-1] == ["a", "b"] and found.asked == 1
    now = 30.0
    assert discovery.names(fresh=False) == ["a", "b"]
    assert discovery.names() == ["a", "b", "c"] and found.asked == 2
    assert repr(discovery) == "<EntityDiscovery 3 entities>"


def test_what_is_gone_stays_and_a_listing_that_fails_changes_nothing() -> None:
    now = 0.0
    found = Found("a", "b")
    discovery = EntityDiscovery(found, every_s=30, clock=lambda: now)
    discovery.names()
    found.names = ["b"]
    now = 31.0
    assert discovery.names() == ["a", "b"]
    found.names = []
    now = 62.0
    assert discovery.names() == ["a", "b"] and found.asked == 3
    with pytest.raises(InvalidOption):
        EntityDiscovery(found).names()


def test_plain_names_are_never_listed_again() -> None:
    now = 0.0
    found = Found("a", may_change=False)
    discovery = EntityDiscovery(found, clock=lambda: now)
    discovery.names()
    now = 1e9
    assert discovery.names() == ["a"] and found.asked == 1
    assert not Entities(Address("x"), ["orders"]).may_change
    assert Entities(Address("x"), ["orders", "bill*"]).may_change


def test_the_depth_is_the_administration_s(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "orders")
    with wire(pair.primary) as client:
        client.sender("orders").send_many([b"\x00Su\xa0\x01x"] * 3)
        receiver = client.receiver("orders")
        receiver.dead_letter(receiver.receive(1, max_wait=5))
    address = Address(pair.primary.connection_string, ca_file=str(pair.primary.ca_file))
    with admin_of(pair.primary) as admin:
        admin.create_topic("news")
        admin.create_subscription("news", "all")
        assert depth(address, "orders") == 2
        assert depth(address, "orders/$DeadLetterQueue") == 1
        assert depth(address, "news/Subscriptions/all") == 0
        admin.delete_topic("news")
    assert depth(address, "nowhere") is None
    assert depth(pair.primary_address, "orders") is None, "its certificate is not trusted: nobody could count"
