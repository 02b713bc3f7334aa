"""Keeps the connections of a Python worker or of the driver for the life of the process, for all that runs in it.

A worker serves many micro-batches; opening a connection for each would cost more than the work. The wire client opens
and reopens links by itself, so nothing here watches them.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from pairbus.errors import PairbusError
from pairbus.spark.connector.options import CREDENTIALS, Address, InvalidOption
from pairbus.syphon.endpoint import Endpoint
from pairbus.wire.sync import Sender, WireClient

_lock = threading.Lock()
_clients: dict[Address, WireClient] = {}
_senders: dict[tuple[Address, str], Sender] = {}
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


def close_all() -> None:
    """Close all connections before the process ends, so that the broker sees its links closed rather than cut."""
    with _lock:
        _forget_parents()
        found = list(_clients.values())
        _clients.clear()
        _senders.clear()
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
