"""Decides which host name or address of this machine clients are told, and whether others may reach the broker.

A shell: it asks the system for its addresses. That sends no packet and looks up no name in a network.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from pairbus.errors import BrokerError

_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]{0,62})(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62}))*\Z")
# Documentation addresses (RFC 5737, RFC 3849): nobody has them, and the default route leads there.
_ELSEWHERE = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def check_reach(host: str, advertise: str | None, emulator: bool) -> None:
    """Raise BrokerError for a host name that can't be told to clients, and for an emulator that others could reach."""
    if emulator and not is_loopback(host):
        raise BrokerError(
            f"the emulator is not served on {host}: everybody knows its key, so it is for this machine only; "
            "leave out --host, or leave out --emulator"
        )
    if advertise is None:
        return
    address = _address(advertise)
    if (address is None and not _HOST_NAME.match(advertise)) or (address is not None and address.is_unspecified):
        raise BrokerError(
            f"{advertise!r} can't be advertised; give the host name or address that clients reach this machine by, "
            "without a scheme and without a port"
        )


def own_address(host: str) -> str:
    """Return the host itself or, where that means all addresses, the one that others most likely reach."""
    address = _address(host)
    if address is None or not address.is_unspecified:
        return host
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        # connecting a datagram socket only chooses the route
        with socket.socket(family, socket.SOCK_DGRAM) as route:
            route.connect(_ELSEWHERE[family])
            return str(route.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
