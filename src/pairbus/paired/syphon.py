"""The half of a hosted syphon that waits for nothing: what it is made of, what becomes of its clients (P36, P43)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from pairbus.ledger import LedgerWriter
from pairbus.pairing.errors import ClientFaultedError
from pairbus.pairing.events import Event
from pairbus.pairing.sdk import endpoint_of
from pairbus.syphon.hosting import Halts, endpoint, fault_client, hosted
from pairbus.syphon.partnership import Which


class SyphonHalf:
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
        list_queues: Callable[[], Awaitable[Sequence[str]]] | None = None,
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
            list_queues=list_queues,
            count_backlog_time=settings.count_backlog_time,
        )
        self._is_stopped = False
        self._pid = os.getpid()
        self._unwatch: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<SyphonHost {self._syphon!r}>"

    @property
    def is_over(self) -> bool:
        """Stopped; or this is a forked child, and it is the parent's."""
        return self._is_stopped or os.getpid() != self._pid

    def client_closed(self, which: Which) -> None:
        if not self.is_over:
            self._syphon.client_closed(which)

    def _faulted(self, which: Which, error: ClientFaultedError) -> None:
        fault_client(self._clients[which], error)

    def _watch(self, closing: Callable[[], Any]) -> None:
        """The SDK tells nobody that a client was closed: from now on the secondary's `close` is this one."""
        client = self._clients["secondary"]
        client.close = closing
        self._unwatch = lambda: client.__dict__.pop("close", None)

    def _ending(self) -> None:
        self._is_stopped = True
        if self._unwatch is not None:
            self._unwatch()

    def _ended(self) -> None:
        if self._own_ledger is not None:
            self._own_ledger.close()
