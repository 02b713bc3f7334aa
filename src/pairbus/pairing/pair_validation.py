"""Checks which two namespaces may be paired, and reads the addresses that `paired()` is given. Pure.

`options.py` decides which values options may have, and `provision.py` whether the secondary can be used.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Final, NamedTuple

from pairbus.pairing.errors import AlreadyPaired, InvalidOptions
from pairbus.pairing.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions

PORT_TLS: Final = 5671
PORT_PLAIN: Final = 5672
#: What `paired()` takes besides the options.
PAIRED_KEYWORDS: Final = (
    "credential", "ca_file", "primary_ca_file", "secondary_ca_file", "manage", "client_options", "observers",
)  # fmt: skip
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class NamespaceIdentity(NamedTuple):
    """Identifies a namespace by its address: equal for two clients of the same namespace."""

    host: str
    port: int

    def __str__(self) -> str:
        return self.host if self.port in (PORT_TLS, PORT_PLAIN) else f"{self.host}:{self.port}"


def namespace_at(address: str, *, tls: bool) -> NamespaceIdentity:
    """Return the identity of the namespace at `address`, an SDK client's `fully_qualified_namespace`.

    It has a port only where there is no TLS.
    """
    bare = address.split("://", 1)[-1].split("/", 1)[0].strip().lower()
    host, port = bare, ""
    if bare.startswith("["):
        host, _, port = bare[1:].partition("]")
        port = port.removeprefix(":")
    elif bare.count(":") == 1:
        host, _, port = bare.partition(":")
    default = PORT_TLS if tls else PORT_PLAIN
    return NamespaceIdentity(
        "localhost" if host in _HERE else host.rstrip("."), int(port) if port.isdigit() else default
    )


class PairMember(NamedTuple):
    """The facts about one client of a pair that validation needs."""

    namespace: NamespaceIdentity
    entity: str | None
    is_paired: bool
    #: None if it isn't a client of the SDK.
    is_async: bool | None
    #: The address where it is really reached, if not its name: behind a gateway or a private link.
    endpoint: str | None = None
    is_closed: bool = False
    #: The primary whose secondary it is, or was until that pair was closed.
    serves: str | None = None


def check(
    primary: PairMember,
    secondary: PairMember,
    options: object,
    managed: NamespaceIdentity | None = None,
    manager_is_async: bool | None = None,
) -> SendAvailabilityPairedNamespaceOptions:
    """Return the options if they can be used, else raise. `managed` is the namespace of the administration client."""
    if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
        kind = "the base class" if type(options) is PairedNamespaceOptions else f"a {type(options).__name__}"
        kind = "None" if options is None else kind
        raise InvalidOptions(f"options may not be {kind}; allowed: SendAvailabilityPairedNamespaceOptions")
    _check_primary(primary)
    options.check_free()
    if primary.serves is not None:
        raise AlreadyPaired(
            f"this client of {primary.namespace} serves the pair of {primary.serves} as its secondary; make another"
            " client for another pair"
        )
    package = "azure.servicebus.aio" if primary.is_async else "azure.servicebus"
    if secondary.is_async is None:
        raise InvalidOptions(f"messaging_factory is no ServiceBusClient of {package}")
    if primary.is_async is not secondary.is_async:
        one, other = ("is not", "is") if primary.is_async else ("is", "is not")
        ours = "pairbus.ServiceBusClient" if primary.is_async else "pairbus.aio.ServiceBusClient"
        raise InvalidOptions(
            f"the client of the secondary {secondary.namespace} {one} asynchronous, and this client {other}; give a"
            f" ServiceBusClient of {package}, or pair a {ours}"
        )
    if manager_is_async is not None and primary.is_async is not manager_is_async:
        one, other = ("is not", "is") if primary.is_async else ("is", "is not")
        raise InvalidOptions(
            f"secondary_namespace_manager {one} asynchronous, and this client {other}; give a"
            f" ServiceBusAdministrationClient of {package}.management"
        )
    check_secondary(secondary)
    if secondary.is_closed:
        raise InvalidOptions(f"the client of the secondary {secondary.namespace} has been closed; make a new one")
    if secondary.is_paired:
        raise AlreadyPaired(f"the client of the secondary {secondary.namespace} is itself paired; give one that is not")
    if (primary.namespace, primary.endpoint) == (secondary.namespace, secondary.endpoint):
        raise InvalidOptions(
            f"primary and secondary are the same namespace, {primary.namespace}: an outage would take both;"
            " give the client of another namespace as messaging_factory"
        )
    if managed == primary.namespace:
        raise InvalidOptions(
            f"secondary_namespace_manager manages the primary, {primary.namespace}, and the backlog queues belong into"
            f" the secondary; give the administration client of {secondary.namespace}"
        )
    if secondary.entity:
        raise InvalidOptions(
            f"the client of the secondary {secondary.namespace} may use {secondary.entity!r} only (EntityPath in its"
            " connection string), and the backlog queues are others; give a connection string of the namespace"
        )
    return options


def _check_primary(primary: PairMember) -> None:
    if primary.is_paired:
        raise AlreadyPaired(
            f"this client of {primary.namespace} is paired already; make another client for another pair"
        )
    if primary.is_closed:
        raise InvalidOptions(f"this client of {primary.namespace} has been closed; pair a new one")


def check_secondary(secondary: PairMember) -> None:
    """Raise AlreadyPaired if the client serves another pair as its secondary."""
    if secondary.serves is not None:
        raise AlreadyPaired(
            f"the client of the secondary {secondary.namespace} serves the pair of {secondary.serves}, or did until"
            " that was closed; make a secondary client of its own for each pair"
        )


_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)
_HOST_CHARS_MAX: Final = 253
#: A name without a dot that is longer is more likely a key: one of 32 bytes has 43 characters.
_BARE_NAME_CHARS_MAX: Final = 39


def _is_host(text: str) -> bool:
    bare = text.strip().split("://", 1)[-1].rstrip("/")
    if bare.startswith("["):
        host, _, rest = bare[1:].partition("]")
        port, colon = rest.removeprefix(":"), rest[:1]
    else:
        host, colon, port = bare.partition(":")
    if colon and not (port.isascii() and port.isdigit()):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        labels = host.removesuffix(".").split(".")
        longest = _BARE_NAME_CHARS_MAX if len(labels) == 1 else _HOST_CHARS_MAX
        return len(host) <= longest and all(_LABEL.fullmatch(label) for label in labels)
    return True


def is_connection_string(text: str) -> bool:
    """Return whether the text is a connection string; otherwise it is a host name, which has no `=`."""
    return "=" in text


def check_access(primary: str, secondary: str, credential: Any) -> None:
    """Raise InvalidOptions unless both arguments of `paired()` are usable; a host name needs a credential.

    A text that isn't a host name is not shown, since it may be a key.
    """
    for word, text in (("primary", primary), ("secondary", secondary)):
        if not isinstance(text, str) or not text.strip():
            kind = "empty" if isinstance(text, str) else f"a {type(text).__name__}"
            raise InvalidOptions(f"the {word} may not be {kind}; allowed: a connection string or a host name")
        if is_connection_string(text):
            continue
        if not _is_host(text):
            raise InvalidOptions(
                f"the {word} is neither a connection string (Endpoint=sb://…) nor a host name such as"
                " contoso.servicebus.windows.net; what it is isn't shown here, since it may be a key"
            )
        if credential is None:
            raise InvalidOptions(
                f"the {word} is a host name, which needs credential=: one of azure-identity's, or give a"
                " connection string"
            )
