"""What the tests of both clients need of threads, under the names of `tests/aio/background.py`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pairbus.aio

from ..pairing.managers import AsyncFakeManager
from ..pairing.sdk_rig import Leftovers as Leftovers

#: The other API's, which can't be mixed with this one.
OtherClient = pairbus.aio.ServiceBusClient
OtherFakeManager = AsyncFakeManager
Event = threading.Event
#: What ends a call from outside.
Interruption = KeyboardInterrupt
sleep = time.sleep


class Background:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._result: Any = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._result = call(*arguments)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def result(self) -> Any:
        """Wait for the end of the call; raises what it raised."""
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._result

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()


def wait_until(condition: Callable[[], Any], within: float = 5.0) -> bool:
    """For what another thread is about to do."""
    for _ in range(int(within / 0.005)):
        if condition():
            return True
        time.sleep(0.005)
    return bool(condition())


def names_of_all() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def called(call: Callable[[], Any]) -> Any:
    return call()


def on_a_thread(call: Callable[[], Any]) -> Any:
    return call()
