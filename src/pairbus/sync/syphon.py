# Generated from src/pairbus/aio/syphon.py by scripts/generate_sync.py; do not edit.
"""The syphon in an application: what `enable_syphon=True` starts, and how it ends.

The paired client creates a `SyphonHost` when pairing is done, calls `start`, and in its `close` calls `stop` before it
closes anything else. It watches the secondary's `close()`; `client_closed` is for a client that ends in another way.
When only one client of the pair ends, the other is faulted: its calls raise ClientFaultedError. A shell: it decides
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from pairbus.ledger import LedgerWriter
from pairbus.pairing.backlog import backlog_queues
from pairbus.pairing.errors import ClientFaultedError
from pairbus.pairing.events import Event
from pairbus.pairing.sdk import endpoint_of
from pairbus.sync.engine_loop import EngineLoop
from pairbus.syphon.core.pair_lifecycle import Which
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.hosting import Halts, HostedSyphon, check_engine, fault_client, maker_of
from pairbus.syphon.settings import SyphonSettings

__all__ = ["SyphonHost", "check_engine"]


class SyphonHost:
    """`indexes`: the backlog queues that there are; `list_queues` finds those that are made later. `fault(which,
    error)` is called instead of the usual faulting where it is given. `announce` and `fault` are called where the
    engine runs and must not block."""

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
        list_queues: Callable[[], Coroutine[Any, Any, Sequence[str]]] | None = None,
    ) -> None:
        settings = options.settings
        self._clients: dict[Which, Any] = {"primary": primary_client, "secondary": secondary_client}
        self._own_ledger: LedgerWriter | None = None
        if ledger is None and settings.ledger is not None:
            ledger = self._own_ledger = LedgerWriter(Path(settings.ledger), "syphon")
        secondary_name = secondary_name or secondary_client.fully_qualified_namespace
        todo = SyphonSettings(
            Endpoint(**endpoint_of(primary_client), name=primary_name),
            Endpoint(**endpoint_of(secondary_client), name=secondary_name),
            [(backlog_queues.path(primary_name, index), index) for index in indexes],
            count_backlog_time=settings.count_backlog_time,
            ledger=ledger,
            spark=settings.syphon_spark,
            master=settings.syphon_master,
            checkpoint=settings.syphon_checkpoint,
        )
        self._syphon = HostedSyphon(
            todo,
            maker_of(settings.syphon_engine),
            primary_name=primary_name,
            announce=announce,
            fault=fault or self._faulted,
            fault_partner=settings.fault_partner,
            halts=coordinator_access,
            list_queues=list_queues,
            waits=settings.syphon_engine == "spark",
        )
        self._is_stopped = False
        self._pid = os.getpid()
        self._loop = EngineLoop()  # created at once, so that a `stop` on another thread always finds it

    def __repr__(self) -> str:
        return f"<SyphonHost {self._syphon!r}>"

    @property
    def is_over(self) -> bool:
        """Return whether it was stopped, or belongs to the parent of this forked process."""
        return self._is_stopped or os.getpid() != self._pid

    def start(self) -> None:
        """Start the syphon unless it was stopped already; raises PairingFailed where the secondary may not be read.

        Whether it starts or raises, it needs a `stop`.
        """
        if self._is_stopped:
            return
        secondary = self._clients["secondary"]
        close = secondary.close

        def closing() -> None:
            self.client_closed("secondary")
            close()

        secondary.close = closing  # the SDK tells nobody that a client was closed
        self._loop.run(self._syphon.check_listen())
        self._loop.run(self._syphon.start())

    def stop(self) -> None:
        """Releases what is locked and ends, in a few seconds at most. Idempotent; nothing to do in a forked child."""
        if self.is_over:
            return
        self._is_stopped = True
        self._clients["secondary"].__dict__.pop("close", None)
        self._loop.stop(self._syphon.stop())
        if self._own_ledger is not None:
            self._own_ledger.close()

    def client_closed(self, which: Which) -> None:
        if not self.is_over:
            self._syphon.client_closed(which)

    def _faulted(self, which: Which, error: ClientFaultedError) -> None:
        fault_client(self._clients[which], error)
