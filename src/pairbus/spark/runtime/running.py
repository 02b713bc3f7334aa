"""Runs a pipeline on its own thread, for a notebook or a program that continues meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, Self

from pairbus.syphon.core.draining import Unavailable
from pairbus.syphon.core.progress import Progress, Report


class Runnable(Protocol):
    """A pipeline that runs on the thread that calls it."""

    progress: Progress

    def report(self) -> Report: ...
    def run(self) -> list[Unavailable]: ...
    def stop(self) -> None: ...


class Running:
    """A pipeline that runs: `report()` at any time; `stop()` ends it cleanly; `wait()` for its end. `name`: what it is
    called in errors; `on_end` is called when it has ended."""

    def __init__(self, inner: Runnable, name: str, on_end: Callable[[], None] | None = None) -> None:
        self._inner = inner
        self._name = name
        self._on_end = on_end
        self._unavailable: list[Unavailable] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"pairbus-{name.split()[-1]}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._inner!r}: {self.report().line()}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def report(self) -> Report:
        return self._inner.report()

    def wait(self, timeout: float | None = None) -> list[Unavailable]:
        """Wait for the end; return what a drain had to leave behind, by destination.

        Raises what ended it, or TimeoutError.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"{self._name} is still at work after {timeout} s: {self.report().line()}")
        if self._error is not None:
            raise self._error
        return self._unavailable

    def stop(self) -> None:
        self._inner.stop()
        self.wait()

    def _run(self) -> None:
        try:
            self._unavailable = self._inner.run()
        except BaseException as error:
            self._error = error
        finally:
            if self._on_end is not None:
                self._on_end()
