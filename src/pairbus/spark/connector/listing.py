"""Lists a namespace's entities with the administration client if an `entity` option has a glob, or to count messages.

A stream with a glob lists again from time to time, so that it finds entities that are created while it runs. The SDK is
imported on first use: every Python process that Spark starts imports this module, and few of them list.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pairbus.errors import for_data_source
from pairbus.spark.connector.connections import named_credential

from . import entities
from .options import Address, InvalidOption

#: A listing takes several management calls, which are billed.
RELIST_S: Final = 30.0


@dataclass(frozen=True)
class Entities:
    """Finds the paths that the patterns mean when it is called: in the driver, at planning time."""

    address: Address
    patterns: list[str]

    @property
    def may_change(self) -> bool:
        return any(map(entities.is_glob, self.patterns))

    def __call__(self) -> list[str]:
        if not self.may_change:
            return list(self.patterns)
        from azure.core.exceptions import AzureError

        from pairbus.syphon.listing import reason

        try:
            with administration(self.address) as admin:
                queues = [queue.name for queue in admin.list_queues()]
                subscriptions = [
                    f"{topic.name}/Subscriptions/{subscription.name}"
                    for topic in admin.list_topics()
                    for subscription in admin.list_subscriptions(topic.name)
                ]
        except AzureError as error:
            raise InvalidOption(
                f"entity {','.join(self.patterns)!r} holds a glob, and listing the namespace failed: "
                f"{for_data_source(reason(error))}; listing needs the Manage right, so name the entities one by one if "
                "there is none"
            ) from error
        return entities.resolved(self.patterns, queues, subscriptions)


class EntityDiscovery:
    """Keeps the entities of a stream. With globs they are listed again, at most once in `every_s`; a listing that fails
    later than the first changes nothing, and neither does an entity that is gone."""

    def __init__(
        self, find: Callable[[], list[str]], *, every_s: float = RELIST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._find = find
        self._every_s = every_s if getattr(find, "may_change", False) else float("inf")
        self._clock = clock
        self._names: list[str] | None = None
        self._asked_at = 0.0

    def __repr__(self) -> str:
        return f"<EntityDiscovery {'not asked yet' if self._names is None else f'{len(self._names)} entities'}>"

    @property
    def may_change(self) -> bool:
        return self._every_s != float("inf")

    def names(self, *, fresh: bool = True) -> list[str]:
        """Return the entities that are known; with `fresh` it may ask again."""
        now = self._clock()
        if self._names is None:
            self._names, self._asked_at = self._find(), now
        elif fresh and now - self._asked_at >= self._every_s:
            self._asked_at = now
            try:
                found = self._find()
            except InvalidOption:
                found = []
            self._names = [*self._names, *(name for name in found if name not in self._names)]
        return self._names


def depth(address: Address, entity: str) -> int | None:
    """Return how many messages a receiver of `entity` would find, or None if the count can't be found out."""
    found = _runtime_properties(address, entity)
    if found is None:
        return None
    _, is_dead = entities.without_dead_letters(entity)
    count = found.dead_letter_message_count if is_dead else found.active_message_count
    return None if count is None else int(count)


def created_at(address: Address, entity: str) -> dt.datetime | None:
    """Return when `entity` was created, or None if that can't be found out, since it needs the Manage right."""
    found = _runtime_properties(address, entity)
    return None if found is None else found.created_at_utc


def _runtime_properties(address: Address, entity: str) -> Any:
    from azure.core.exceptions import AzureError

    from pairbus.syphon.listing import OPTIONS

    head, _ = entities.without_dead_letters(entity)
    try:
        with administration(address, **OPTIONS) as admin:
            topic, _, subscription = entities.subscription_of(head)
            if subscription:
                return admin.get_subscription_runtime_properties(topic, subscription)
            return admin.get_queue_runtime_properties(head)
    except (AzureError, OSError):
        return None


def administration(address: Address, **options: Any) -> Any:
    """Return an administration client of the SDK for this namespace."""
    from azure.servicebus.management import ServiceBusAdministrationClient

    extra = options if address.ca_file is None else {**options, "connection_verify": address.ca_file}
    if address.connection_string is not None:
        return ServiceBusAdministrationClient.from_connection_string(address.connection_string, **extra)
    assert address.host is not None
    return ServiceBusAdministrationClient(address.host, named_credential(address.credential), **extra)
