"""What a namespace has, asked with the administration client: only where an `entity` option holds a glob."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from azure.core.exceptions import AzureError

from . import entities
from .connections import named_credential
from .options import Address, InvalidOption


@dataclass(frozen=True)
class Entities:
    """The paths that the patterns mean, found when called: in the driver, at planning time."""

    address: Address
    patterns: list[str]

    def __call__(self) -> list[str]:
        if not any(map(entities.is_glob, self.patterns)):
            return list(self.patterns)
        try:
            with _admin(self.address) as admin:
                queues = [queue.name for queue in admin.list_queues()]
                subscriptions = [
                    f"{topic.name}/Subscriptions/{subscription.name}"
                    for topic in admin.list_topics()
                    for subscription in admin.list_subscriptions(topic.name)
                ]
        except AzureError as error:
            raise InvalidOption(
                f"entity {','.join(self.patterns)!r} holds a glob, and listing the namespace failed: {error}; listing "
                "needs the Manage right, so name the entities one by one if there is none"
            ) from error
        return entities.resolved(self.patterns, queues, subscriptions)


def _admin(address: Address) -> Any:
    from azure.servicebus.management import ServiceBusAdministrationClient

    extra: dict[str, Any] = {} if address.ca_file is None else {"connection_verify": address.ca_file}
    if address.connection_string is not None:
        return ServiceBusAdministrationClient.from_connection_string(address.connection_string, **extra)
    assert address.host is not None
    return ServiceBusAdministrationClient(address.host, named_credential(address.credential), **extra)
