"""Decides what the backlog queues are called, how they are made, and which are missing.

It also prints their definitions as text (Bicep, Terraform and the like), for people who create them by other means.

Names are compared as the service compares them, regardless of letter case. This module does not talk to the service.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pairbus.pairing.errors import InvalidOptions

INFIX: Final = "/x-servicebus-transfer/"
UNLIMITED: Final = "P10675199DT2H48M5.4775807S"  # how the service writes: forever
# A queue that can't be made is tried this often, then left out.
TRIES: Final = 3

# P9, as arguments of the SDK's `create_queue`.
QUEUE_PROPERTIES: Final[dict[str, Any]] = {
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2147483647,
    "default_message_time_to_live": UNLIMITED,
    "auto_delete_on_idle": UNLIMITED,
    "lock_duration": "PT1M",
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
}
# A message for a destination that is away costs a delivery per lock, so a week at a minute each.
DELIVERY_COUNT_LOW: Final = 10_000


def path(primary_name: str, index: int) -> str:
    return f"{primary_name}{INFIX}{index}"


def paths(primary_name: str, count: int) -> list[str]:
    return [path(primary_name, index) for index in range(count)]


_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


def index_of(name: str, primary_name: str) -> int | None:
    """The number of a backlog queue of this primary; None: the name is another's."""
    front = f"{primary_name}{INFIX}".lower()
    rest = name[len(front) :]
    return int(rest) if name.lower().startswith(front) and _INDEX.fullmatch(rest) else None


def primary_name(host: str, given: str | None = None) -> str:
    """Return the name of the primary in queue names: the option, else the first label of the primary's host.

    `host` may be an endpoint with scheme, port or path: `sb://contoso.servicebus.windows.net/`.
    """
    if given is not None:
        return given
    bare = host.split("://", 1)[-1].split("/", 1)[0]
    if bare.startswith("["):
        bare = bare[1:].split("]", 1)[0]
    elif bare.count(":") == 1:
        bare = bare.split(":", 1)[0]
    label = bare.split(".", 1)[0].lower()
    if not label or label == "localhost" or _is_address(bare):
        raise InvalidOptions(
            f"the backlog queues take their name from the primary's host, and {bare!r} has none;"
            " give the option primary_name (the embedded broker prints it as `namespace`)"
        )
    return label


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.split("%", 1)[0])
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Plan:
    """Lists by index which backlog queues exist, which are missing, and which were not asked for."""

    found: tuple[int, ...]
    missing: tuple[int, ...]
    extra: tuple[int, ...]  # there, and not asked for: left alone


def plan(primary_name: str, count: int, existing: Iterable[str]) -> Plan:
    """Compare the wanted queues with `existing`, the names of all queues of the secondary."""
    there = {index for name in existing if (index := index_of(name, primary_name)) is not None}
    wanted = range(count)
    return Plan(
        tuple(index for index in wanted if index in there),
        tuple(index for index in wanted if index not in there),
        tuple(sorted(index for index in there if index >= count)),
    )


def warning_about(name: str, max_delivery_count: int | None) -> str | None:
    """Return why a queue that exists may dead-letter good messages, or None."""
    if max_delivery_count is None or max_delivery_count >= DELIVERY_COUNT_LOW:
        return None
    return (
        f"{name} has a maximum delivery count of {max_delivery_count}: a message whose destination is away for that"
        " many locks is dead-lettered (and can be replayed: pairbus syphon --dead-letters); raise it to"
        f" {QUEUE_PROPERTIES['max_delivery_count']}"
    )


# P9 by the resource manager's names and by those of the Terraform provider azurerm (4.x).
_RESOURCE: Final[tuple[tuple[str, str, str], ...]] = (
    ("maxSizeInMegabytes", "max_size_in_megabytes", "max_size_in_megabytes"),
    ("maxDeliveryCount", "max_delivery_count", "max_delivery_count"),
    ("defaultMessageTimeToLive", "default_message_ttl", "default_message_time_to_live"),
    ("autoDeleteOnIdle", "auto_delete_on_idle", "auto_delete_on_idle"),
    ("lockDuration", "lock_duration", "lock_duration"),
    (
        "deadLetteringOnMessageExpiration",
        "dead_lettering_on_message_expiration",
        "dead_lettering_on_message_expiration",
    ),
    ("enableBatchedOperations", "batched_operations_enabled", "enable_batched_operations"),
)


def bicep(primary_name: str, count: int) -> str:
    """Return the queues as a Bicep module with the namespace as its parameter."""
    properties = "\n".join(f"    {name}: {_bicep(QUEUE_PROPERTIES[key])}" for name, _, key in _RESOURCE)
    return f"""\
// Backlog queues of {primary_name}, in the secondary namespace. The resource manager writes ~ for the / in a name.
param secondaryNamespace string

resource secondary 'Microsoft.ServiceBus/namespaces@2021-11-01' existing = {{
  name: secondaryNamespace
}}

resource backlog 'Microsoft.ServiceBus/namespaces/queues@2021-11-01' = [for i in range(0, {count}): {{
  parent: secondary
  name: '{_resource_name(primary_name)}${{i}}'
  properties: {{
{properties}
  }}
}}]
"""


def terraform(primary_name: str, count: int) -> str:
    """Return the queues as Terraform for the provider azurerm, with the namespace's id as a variable."""
    width = max(len(name) for _, name, _ in _RESOURCE)
    properties = "\n".join(f"  {name:<{width}} = {_terraform(QUEUE_PROPERTIES[key])}" for _, name, key in _RESOURCE)
    return f"""\
# Backlog queues of {primary_name}, in the secondary namespace. The resource manager writes ~ for the / in a name.
variable "secondary_namespace_id" {{
  type = string
}}

resource "azurerm_servicebus_queue" "backlog" {{
  count        = {count}
  name         = "{_resource_name(primary_name)}${{count.index}}"
  namespace_id = var.secondary_namespace_id

{properties}
}}
"""


def _resource_name(primary_name: str) -> str:
    return f"{primary_name}{INFIX}".replace("/", "~")


def _bicep(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else _terraform(value)


def _terraform(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
