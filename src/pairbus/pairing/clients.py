"""Reads two clients before they are paired, and reserves the secondary one for a single pairing.

The clients are the SDK's or ours, sync or async; `pair_validation.py` decides what may be paired with what.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pairbus.pairing import pair_validation
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions

#: Secondary clients, ours and the SDK's own, with the primary that they serve: one each, once and for all.
_SERVING: Final[weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()
_CLAIMING: Final = threading.Lock()


def namespace_of(client: Any) -> pair_validation.NamespaceIdentity:
    return pair_validation.namespace_at(client.fully_qualified_namespace, tls=client._config.use_tls)


def validated_options(client: Any, options: Any) -> SendAvailabilityPairedNamespaceOptions:
    """Return the options if the clients and the administration client may be paired, else raise."""
    me, manager = pair_member(client), getattr(options, "secondary_namespace_manager", None)
    # The SDK's two classes differ: one's `create_queue` is a coroutine function.
    manager_is_async = None if manager is None else inspect.iscoroutinefunction(manager.create_queue)
    other = pair_member(getattr(options, "messaging_factory", None))
    return pair_validation.check(me, other, options, managed_namespace(options, me), manager_is_async)


def pair_member(client: Any) -> pair_validation.PairMember:
    if not hasattr(client, "_custom_endpoint_address"):
        return pair_validation.PairMember(pair_validation.NamespaceIdentity("?", 0), None, False, is_async=None)
    return pair_validation.PairMember(
        namespace_of(client),
        client._entity_name,
        getattr(client, "_pairing", None) is not None,
        is_async=hasattr(client, "__aenter__"),
        endpoint=client._custom_endpoint_address,
        is_closed=getattr(client, "_is_closed", False),
        serves=_SERVING.get(client),
    )


@contextmanager
def claimed(options: SendAvailabilityPairedNamespaceOptions, primary: Any) -> Iterator[None]:
    """Reserve the options and the secondary client for one pairing; release them if the block raises."""
    secondary = options.messaging_factory
    options.claim()
    try:
        with _CLAIMING:
            pair_validation.check_secondary(pair_member(secondary))  # again: another thread may have been faster
            _SERVING[secondary] = str(namespace_of(primary))
        try:
            yield
        except BaseException:
            _SERVING.pop(secondary, None)
            raise
    except BaseException:
        options.release()
        raise


def managed_namespace(options: Any, primary: pair_validation.PairMember) -> pair_validation.NamespaceIdentity | None:
    address = getattr(getattr(options, "secondary_namespace_manager", None), "fully_qualified_namespace", None)
    if not isinstance(address, str):
        return None
    return pair_validation.namespace_at(address, tls=primary.namespace.port == pair_validation.PORT_TLS)


def make_client(
    kind: Any, namespace: str, credential: Any, ca_file: str | None, options: Mapping[str, Any] | None = None
) -> Any:
    """Make a client of class `kind` by connection string, or by host name and credential."""
    found = dict(options or {})
    if ca_file is not None:
        found = {"connection_verify": ca_file, **found}
    if pair_validation.is_connection_string(namespace):
        return kind.from_connection_string(namespace, **found)
    return kind(namespace, credential, **found)
