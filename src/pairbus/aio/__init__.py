"""Paired clients on asyncio, over the official SDK's async API. All other names are in `pairbus`, for both APIs."""

TYPE_CHECKING = False  # as in `typing`, which would be imported for nothing else
if TYPE_CHECKING:
    from pairbus.aio.client import ServiceBusClient as ServiceBusClient
    from pairbus.aio.sender import PairedSender as PairedSender
    from pairbus.pairing.options import PairedNamespaceOptions as PairedNamespaceOptions
    from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions as SendAvailabilityPairedNamespaceOptions
    from pairbus.pairing.routing.states import EntityState as EntityState

_MODULE_OF = {
    "ServiceBusClient": "pairbus.aio.client",
    "PairedSender": "pairbus.aio.sender",
    "PairedNamespaceOptions": "pairbus.pairing.options",
    "SendAvailabilityPairedNamespaceOptions": "pairbus.pairing.options",
    "EntityState": "pairbus.pairing.routing.states",
}

__all__ = sorted(_MODULE_OF)

if not TYPE_CHECKING:  # or a checker would believe in every name

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(module), name)
