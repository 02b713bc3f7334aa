"""Gives the Spark syphon the interface of the in-process engine, so that hosts and commands can run either."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pairbus.credentials import SharedKey, SharedSignature
from pairbus.pairing.errors import PairingError
from pairbus.spark.connector.options import CREDENTIALS, Address
from pairbus.spark.runtime.running import Runnable
from pairbus.syphon.core.pair_lifecycle import Which
from pairbus.syphon.core.progress import Progress, Report
from pairbus.syphon.daemon_thread import on_a_thread
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import Access, Outcome
from pairbus.wire.errors import Unauthorized

from .query import SparkSyphon, SyphonConfig


class OnAThread:
    """Runs a pipeline on its own thread for a caller with a loop: `run` is awaited, `stop` ends it cleanly."""

    def __init__(self, inner: Runnable) -> None:
        self._inner = inner

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
        try:
            unavailable = await on_a_thread(self._inner.run)
        finally:
            self._inner.stop()
        return Outcome(self.report(), unavailable)


class SparkEngine(OnAThread):
    """The Spark syphon as an engine: takes what `SyphonEngine` takes, and the settings of `SyphonConfig` that concern
    Spark. Calls `on_access`, which gets an error or None, and `on_running` on the loop."""

    def __init__(
        self, primary: Endpoint, secondary: Endpoint, queues: Sequence[tuple[str, int | None]], **settings: Any
    ) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        on_access: Access | None = settings.pop("on_access", None)
        on_running: Callable[[], None] | None = settings.pop("on_running", None)

        def access(which: Which, refusal: str | None) -> None:
            if on_access is not None:
                error = None if refusal is None else Unauthorized("amqp:unauthorized-access", refusal)
                self._on_loop(on_access, which, error)

        config = SyphonConfig(
            primary=address_of(primary),
            secondary=address_of(secondary),
            queues=queues,
            primary_label=primary.label,
            secondary_label=secondary.label,
            on_access=access,
            on_running=None if on_running is None else partial(self._on_loop, on_running),
            **settings,
        )
        self._syphon = SparkSyphon(config)
        super().__init__(self._syphon)

    async def run(self) -> Outcome:
        self._loop = asyncio.get_running_loop()
        return await super().run()

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(call, *arguments)


def warm_up(engine: SparkEngine) -> None:
    """Run one empty batch of an engine that does not run, and end it."""
    engine._syphon.warm_up()


def _settings() -> list[inspect.Parameter]:
    taken = ("primary", "secondary", "queues", "primary_label", "secondary_label", "messages_per_trigger")
    return [each for name, each in inspect.signature(SyphonConfig).parameters.items() if name not in taken]


# Each setting is declared once, in SyphonConfig; `help` and editors show them here as well.
_signature = inspect.signature(SparkEngine)
_named = [each for each in _signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
SparkEngine.__signature__ = _signature.replace(parameters=[*_named, *_settings()])  # type: ignore[attr-defined]


def address_of(endpoint: Endpoint) -> Address:
    """Return the endpoint as text, which is all that reaches Spark's workers.

    Raises PairingError for a credential that is no key, no signature and none of those that have a name.
    """
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
