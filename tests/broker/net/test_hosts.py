"""What clients are told of where the broker is, and who may reach an emulator."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from pairbus.broker.net.hosts import check_reach, is_loopback, own_address
from pairbus.errors import BrokerError


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("LocalHost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("bus.example", False), ("", False)],
)  # fmt: skip
def test_what_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.1.2.3", "bus.example"])
def test_a_host_that_means_one_address_is_told_as_it_is(host: str) -> None:
    assert own_address(host) == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_for_all_addresses_one_that_others_can_use_is_told(host: str) -> None:
    told = own_address(host)
    assert told not in ("", "0.0.0.0", "::")
    try:
        assert not ipaddress.ip_address(told).is_unspecified
    except ValueError:
        assert told == socket.gethostname()


def test_without_a_route_it_is_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", fail)
    assert own_address("0.0.0.0") == socket.gethostname()


@pytest.mark.parametrize("host", ["bus.example", "BUS", "10.0.0.7", "fd00::1", "a-b.c1", "127.0.0.1"])
def test_what_can_be_advertised(host: str) -> None:
    check_reach("0.0.0.0", host, False)


@pytest.mark.parametrize(
    "host",
    ["", " ", "0.0.0.0", "::", "http://bus.example", "bus.example:5671", "[::1]", "bus example", "bus;x", "-a", "büs",
     "a" * 254, "bus.example\n", "a..b"],
)  # fmt: skip
def test_what_can_not_be_advertised_is_named(host: str) -> None:
    with pytest.raises(BrokerError, match="can't be advertised; give the host name or address"):
        check_reach("0.0.0.0", host, False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "bus.example"])
def test_an_emulator_is_for_loopback_only(host: str) -> None:
    with pytest.raises(BrokerError, match="everybody knows its key"):
        check_reach(host, None, True)
    check_reach("127.0.0.1", None, True)
