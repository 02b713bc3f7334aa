"""Keeps the connections of a Python worker or of the driver for the life of the process, for all of its tasks.

A worker serves many micro-batches; opening a connection for each would cost more than the work. The wire client opens
and reopens links itself, so nothing here watches them.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pairbus.errors import PairbusError
from pairbus.spark.connector.options import CREDENTIALS, Address, InvalidOption
from pairbus.syphon.endpoint import Endpoint
from pairbus.wire.sync import Receiver, Sender, WireClient

#: Brokers bound what one link may have delivered without a settlement on it; here it is settled by token.
UNSETTLED_MAX: Final = 1000

_lock = threading.Lock()
_clients: dict[Address, WireClient] = {}
_senders: dict[tuple[Address, str], Sender] = {}
_receivers: dict[tuple[Address, str], Receiver] = {}
_pid = os.getpid()


def client(address: Address) -> WireClient:
    """Return this process's client for a namespace."""
    with _lock:
        _forget_parents()
        found = _clients.get(address)
        if found is None:
            found = _clients[address] = WireClient.of(endpoint(address).client())
        return found


def sender(address: Address, entity: str) -> Sender:
    """Return this process's sender for an entity."""
    key = (address, entity)
    found = _senders.get(key) if _pid == os.getpid() else None
    if found is None:
        opened = client(address).sender(entity)
        with _lock:
            found = _senders.setdefault(key, opened)
    return found


@contextmanager
def receiver(address: Address, entity: str) -> Iterator[Receiver]:
    """Lend one of this process's receivers for an entity, and keep it where the loan ends without an error: to attach
    and detach a link costs more than to receive a message. One that holds messages, or has delivered many, is
    closed."""
    key = (address, entity)
    with _lock:
        _forget_parents()
        found = _receivers.pop(key, None)
    if found is None:
        found = client(address).receiver(entity)
    try:
        yield found
    except BaseException:
        found.close()
        raise
    with _lock:
        is_sound = found.is_open and found.at_hand == 0 and found.unsettled < UNSETTLED_MAX
        is_kept = is_sound and key not in _receivers
        if is_kept:
            _receivers[key] = found
    if not is_kept:
        found.close()


def close_all() -> None:
    """Close all connections before the process ends, so that the broker sees its links closed rather than cut."""
    with _lock:
        _forget_parents()
        found = list(_clients.values())
        _clients.clear()
        _senders.clear()
        _receivers.clear()
    for each in found:
        try:
            each.close()
        except PairbusError:
            pass


def _forget_parents() -> None:
    """Drop what the parent opened and keeps: Spark forks its workers."""
    global _pid
    if _pid != os.getpid():
        _clients.clear()
        _senders.clear()
        _receivers.clear()
        _pid = os.getpid()


def endpoint(address: Address) -> Endpoint:
    """Return the endpoint that an address describes, with its credential."""
    if address.connection_string is not None:
        found = Endpoint.from_connection_string(address.connection_string, ca_file=address.ca_file)
        return found._replace(cause=address.cause)
    assert address.host is not None
    host, _, port = address.host.partition(":")
    credential = named_credential(address.credential)
    return Endpoint(
        host, int(port) if port else None, credential=credential, ca_file=address.ca_file, cause=address.cause
    )


def named_credential(name: str) -> Any:
    """Return a credential of azure-identity. Raises InvalidOption where that is not installed."""
    try:
        import azure.identity
    except ImportError:
        raise InvalidOption(
            f"credential {name!r} needs azure-identity: `pip install 'pairbus[identity]'` on the driver and the workers"
        ) from None
    return getattr(azure.identity, CREDENTIALS[name])()


atexit.register(close_all)
