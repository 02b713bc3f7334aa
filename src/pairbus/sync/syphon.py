"""The syphon in an application without an event loop: what `enable_syphon=True` starts, and how it ends (P36, P38, P43,
P44).

The engine runs on a daemon thread with a loop of its own. The paired client makes a `SyphonHost` when pairing is done,
calls `start`, and in its `close` calls `stop` before it closes anything else. The secondary's `close()` is watched from
here; for a client that ends otherwise there is `client_closed`. A shell: it decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pairbus.ledger import LedgerWriter
from pairbus.pairing.errors import ClientFaultedError
from pairbus.pairing.events import Event
from pairbus.pairing.sdk import endpoint_of
from pairbus.syphon.hosting import Halts, check_engine, endpoint, fault_client, hosted
from pairbus.syphon.partnership import Which
from pairbus.wire.errors import ClientClosed
from pairbus.wire.sync import LoopThread

__all__ = ["SyphonHost", "check_engine"]


class SyphonHost:
    """`indexes`: the backlog queues that pairing found or made. `fault(which, error)` is called instead of the usual
    faulting where it is given. `announce` and `fault` are called on the engine's thread and must not block."""

    def __init__(
        self,
        primary_client: Any,
        secondary_client: Any,
        options: Any,
        *,
        primary_name: str,
        indexes: Sequence[int],
        announce: Callable[[Event], None],
        secondary_name: str = "",
        fault: Callable[[Which, ClientFaultedError], None] | None = None,
        coordinator_access: Halts | None = None,
        ledger: LedgerWriter | None = None,
    ) -> None:
        settings = options.settings
        self._clients: dict[Which, Any] = {"primary": primary_client, "secondary": secondary_client}
        self._own_ledger: LedgerWriter | None = None
        if ledger is None and settings.ledger is not None:
            ledger = self._own_ledger = LedgerWriter(Path(settings.ledger), "syphon")
        secondary_name = secondary_name or secondary_client.fully_qualified_namespace
        self._syphon = hosted(
            settings.syphon_engine,
            endpoint(endpoint_of(primary_client), primary_name),
            endpoint(endpoint_of(secondary_client), secondary_name),
            primary_name=primary_name,
            indexes=indexes,
            announce=announce,
            fault=fault or self._faulted,
            fault_partner=settings.fault_partner,
            halts=coordinator_access,
            ledger=ledger,
            count_backlog_time=settings.count_backlog_time,
        )
        self._thread: LoopThread | None = None
        self._pid = os.getpid()
        self._is_stopped = False
        self._unwatch: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<SyphonHost {self._syphon!r}>"

    def start(self) -> None:
        self._unwatch = self._watch_close(self._clients["secondary"])
        self._thread = LoopThread()
        self._thread.run(self._syphon.start())

    def stop(self) -> None:
        """Releases what is locked and ends, in a few seconds at most. Idempotent; nothing to do in a forked child."""
        if self._is_stopped or os.getpid() != self._pid:
            return
        self._is_stopped = True
        if self._unwatch is not None:
            self._unwatch()
        if self._thread is not None:
            try:
                self._thread.run(self._syphon.stop())
            except ClientClosed:  # its thread is gone
                pass
            self._thread.stop()
        if self._own_ledger is not None:
            self._own_ledger.close()

    def client_closed(self, which: Which) -> None:
        if not self._is_stopped and os.getpid() == self._pid:
            self._syphon.client_closed(which)

    def _faulted(self, which: Which, error: ClientFaultedError) -> None:
        fault_client(self._clients[which], error)

    def _watch_close(self, client: Any) -> Callable[[], None]:
        """The SDK tells nobody that a client was closed."""
        close = client.close

        def closing() -> None:
            self.client_closed("secondary")
            close()

        client.close = closing
        return lambda: client.__dict__.pop("close", None)
