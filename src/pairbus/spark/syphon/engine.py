"""The Spark syphon behind the face of the in-process engine, so that hosts and commands can run either (P38).

Owns the thread on which the query is watched.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pairbus.credentials import SharedKey, SharedSignature
from pairbus.ledger import LedgerWriter
from pairbus.pairing.errors import PairingError
from pairbus.spark.connector.options import CREDENTIALS, Address
from pairbus.syphon.core.draining import Unavailable
from pairbus.syphon.core.pair_lifecycle import Which
from pairbus.syphon.core.progress import Progress, Report
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import Access, Outcome
from pairbus.wire.errors import Unauthorized, WireError

from .query import STOP_S, SparkSyphon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.syphon.listing import Lister


class Runnable(Protocol):
    """A pipeline that runs on the thread that calls it."""

    progress: Progress

    def report(self) -> Report: ...
    def run(self) -> list[Unavailable]: ...
    def stop(self) -> None: ...


class OnAThread:
    """Such a pipeline for who has a loop: `run` is awaited, `stop` ends it cleanly."""

    def __init__(self, inner: Runnable) -> None:
        self._inner = inner
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._inner!r}>"

    @property
    def progress(self) -> Progress:
        return self._inner.progress

    def report(self) -> Report:
        return self._inner.report()

    def stop(self) -> None:
        self._inner.stop()

    async def run(self) -> Outcome:
        self._loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Unavailable]] = self._loop.create_future()
        threading.Thread(target=self._watch, args=(done,), name="pairbus-spark", daemon=True).start()
        try:
            unavailable = await done
        finally:
            self._inner.stop()
        return Outcome(self.report(), unavailable)

    def _watch(self, done: asyncio.Future[list[Unavailable]]) -> None:
        found: Any = None
        failure: BaseException | None = None
        try:
            found = self._inner.run()
        except BaseException as error:
            failure = error

        def tell() -> None:
            if done.done():
                return
            if failure is None:
                done.set_result(found)
            else:
                done.set_exception(failure)

        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(tell)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass


class SparkEngine(OnAThread):
    """Takes what `SyphonEngine` takes, and `spark`, `master`, `conf`, `checkpoint`, `stop_s` (how long a stop waits for
    the batch under way), `on_start` (hears the seconds of its start), `on_running` (called when its query runs)."""

    def __init__(
        self,
        primary: Endpoint,
        secondary: Endpoint,
        queues: Sequence[tuple[str, int | None]],
        *,
        drain: bool = False,
        max_rate: float | None = None,
        dead_letters: bool = False,
        count_backlog_time: bool = False,
        ledger: LedgerWriter | None = None,
        halted_until: Callable[[str], float] | None = None,
        on_busy: Callable[[str], None] | None = None,
        on_access: Access | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        checkpoint: Path | str | None = None,
        spark: SparkSession | None = None,
        stop_s: float = STOP_S,
        on_running: Callable[[], None] | None = None,
        on_start: Callable[[float], None] | None = None,
        lister: Lister | None = None,
    ) -> None:
        self._on_access = on_access
        inner = SparkSyphon(
            address_of(primary),
            address_of(secondary),
            queues,
            primary_label=primary.label,
            secondary_label=secondary.label,
            drain=drain,
            max_rate=max_rate,
            dead_letters=dead_letters,
            count_backlog_time=count_backlog_time,
            ledger=ledger,
            master=master,
            conf=conf,
            checkpoint=None if checkpoint is None else str(checkpoint),
            on_access=self._access,
            on_busy=on_busy,
            halted_until=halted_until,
            spark=spark,
            stop_s=stop_s,
            on_running=None if on_running is None else partial(self._running, on_running),
            on_start=on_start,
            lister=lister,
        )
        super().__init__(inner)

    def _running(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(call)

    def _access(self, which: Which, refusal: str | None) -> None:
        if self._on_access is None or self._loop is None:
            return
        error: WireError | None = None if refusal is None else Unauthorized("amqp:unauthorized-access", refusal)
        self._loop.call_soon_threadsafe(self._on_access, which, error)


def address_of(endpoint: Endpoint) -> Address:
    """What reaches Spark's workers: text. So a credential must be a key, a signature, or one that has a name."""
    credential = endpoint.credential
    bracketed = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    at = bracketed if endpoint.port is None else f"{bracketed}:{endpoint.port}"
    if isinstance(credential, SharedKey | SharedSignature):
        secret = (
            f"SharedAccessKeyName={credential.name};SharedAccessKey={credential.key}"
            if isinstance(credential, SharedKey)
            else f"SharedAccessSignature={credential.signature}"
        )
        plain = "" if endpoint.tls else ";UseDevelopmentEmulator=true"
        return Address(f"Endpoint=sb://{at};{secret}{plain}", ca_file=endpoint.ca_file)
    for name, kind in CREDENTIALS.items():
        if type(credential).__name__ == kind:
            return Address(host=at, credential=name, ca_file=endpoint.ca_file)
    raise PairingError(
        f"{endpoint.label}: Spark's workers can't be given a {type(credential).__name__}; use a connection string, "
        f'{", ".join(sorted(CREDENTIALS.values()))}, or syphon_engine="in-process"'
    )
