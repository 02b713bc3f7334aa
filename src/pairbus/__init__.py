"""Paired namespaces for Azure Service Bus, and the embedded broker on which they are tested.

The names are imported on first use, so that `import pairbus`, as the command line and pytest's plugin do it, does not
import the SDK. The async client is `pairbus.aio.ServiceBusClient`; everything else here is for both APIs.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in `typing`, which would be imported for nothing else
if TYPE_CHECKING:
    from pairbus.errors import PairbusError as PairbusError
    from pairbus.pairing.decisions import Decision as Decision
    from pairbus.pairing.errors import AliasConflictError as AliasConflictError
    from pairbus.pairing.errors import AlreadyPaired as AlreadyPaired
    from pairbus.pairing.errors import BacklogUnavailableError as BacklogUnavailableError
    from pairbus.pairing.errors import BodyNotCopyableError as BodyNotCopyableError
    from pairbus.pairing.errors import ClientFaultedError as ClientFaultedError
    from pairbus.pairing.errors import ControlFileError as ControlFileError
    from pairbus.pairing.errors import EntityThrottledError as EntityThrottledError
    from pairbus.pairing.errors import EntityUnreachableError as EntityUnreachableError
    from pairbus.pairing.errors import ForkedClientError as ForkedClientError
    from pairbus.pairing.errors import InvalidOptions as InvalidOptions
    from pairbus.pairing.errors import NoTimeLeftError as NoTimeLeftError
    from pairbus.pairing.errors import NotTriedError as NotTriedError
    from pairbus.pairing.errors import PairingError as PairingError
    from pairbus.pairing.errors import PairingFailed as PairingFailed
    from pairbus.pairing.errors import PinnedEntityError as PinnedEntityError
    from pairbus.pairing.errors import ScheduleDuringFailoverError as ScheduleDuringFailoverError
    from pairbus.pairing.errors import WrongLoopError as WrongLoopError
    from pairbus.pairing.events import BacklogQueueEjected as BacklogQueueEjected
    from pairbus.pairing.events import BacklogQueueLeftOut as BacklogQueueLeftOut
    from pairbus.pairing.events import BacklogQueueReturned as BacklogQueueReturned
    from pairbus.pairing.events import ClientFaulted as ClientFaulted
    from pairbus.pairing.events import ControlFileChanged as ControlFileChanged
    from pairbus.pairing.events import ControlFileUnusable as ControlFileUnusable
    from pairbus.pairing.events import EntityThrottled as EntityThrottled
    from pairbus.pairing.events import Event as Event
    from pairbus.pairing.events import MessageDiverted as MessageDiverted
    from pairbus.pairing.events import OperatorActed as OperatorActed
    from pairbus.pairing.events import PairingCompleted as PairingCompleted
    from pairbus.pairing.events import PairingDegraded as PairingDegraded
    from pairbus.pairing.events import PingFailed as PingFailed
    from pairbus.pairing.events import PingSucceeded as PingSucceeded
    from pairbus.pairing.events import SizeWarning as SizeWarning
    from pairbus.pairing.events import StateChanged as StateChanged
    from pairbus.pairing.events import SyphonStarted as SyphonStarted
    from pairbus.pairing.events import SyphonStopped as SyphonStopped
    from pairbus.pairing.events import WarmLinkFailed as WarmLinkFailed
    from pairbus.pairing.observers import LedgerObserver as LedgerObserver
    from pairbus.pairing.observers import LoggingObserver as LoggingObserver
    from pairbus.pairing.observers import Observer as Observer
    from pairbus.pairing.options import PairedNamespaceOptions as PairedNamespaceOptions
    from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions as SendAvailabilityPairedNamespaceOptions
    from pairbus.pairing.routing.dispatch import Diversion as Diversion
    from pairbus.pairing.routing.states import EntityState as EntityState
    from pairbus.pairing.routing.verdicts import AS_DESCRIBED as AS_DESCRIBED
    from pairbus.pairing.routing.verdicts import DEFAULT as DEFAULT
    from pairbus.pairing.routing.verdicts import Verdict as Verdict
    from pairbus.sync.client import ServiceBusClient as ServiceBusClient
    from pairbus.sync.sender import PairedSender as PairedSender

_MODULES = {
    "pairbus.errors": ("PairbusError",),
    "pairbus.pairing.decisions": ("Decision",),
    "pairbus.pairing.errors": (
        "AliasConflictError", "AlreadyPaired", "BacklogUnavailableError", "BodyNotCopyableError", "ClientFaultedError",
        "ControlFileError", "EntityThrottledError", "EntityUnreachableError", "ForkedClientError", "InvalidOptions",
        "NoTimeLeftError", "NotTriedError", "PairingError", "PairingFailed", "PinnedEntityError",
        "ScheduleDuringFailoverError", "WrongLoopError",
    ),
    "pairbus.pairing.events": (
        "BacklogQueueEjected", "BacklogQueueLeftOut", "BacklogQueueReturned", "ClientFaulted", "ControlFileChanged",
        "ControlFileUnusable", "EntityThrottled", "Event", "MessageDiverted", "OperatorActed", "PairingCompleted",
        "PairingDegraded", "PingFailed", "PingSucceeded", "SizeWarning", "StateChanged", "SyphonStarted",
        "SyphonStopped", "WarmLinkFailed",
    ),
    "pairbus.pairing.observers": ("LedgerObserver", "LoggingObserver", "Observer"),
    "pairbus.pairing.options": ("PairedNamespaceOptions", "SendAvailabilityPairedNamespaceOptions"),
    "pairbus.pairing.routing.dispatch": ("Diversion",),
    "pairbus.pairing.routing.states": ("EntityState",),
    "pairbus.pairing.routing.verdicts": ("AS_DESCRIBED", "DEFAULT", "Verdict"),
    "pairbus.sync.client": ("ServiceBusClient",),
    "pairbus.sync.sender": ("PairedSender",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE_OF)]

if not TYPE_CHECKING:  # or a checker would believe in every name

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = getattr(import_module(module), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
