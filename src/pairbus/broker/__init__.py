"""The embedded broker: namespaces that the official SDKs talk to, in this process.

The names are looked up when they are first asked for: who needs only a part of this room, such as the fault kinds for
`pairbus fault --help`, doesn't pay for the server.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .server import Broker, NamespaceServer, serve, serve_sync

__all__ = ["Broker", "NamespaceServer", "serve", "serve_sync"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
