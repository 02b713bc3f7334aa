"""The start of the command `broker`; what it serves is tested in `tests/broker`."""

from __future__ import annotations

import threading

import pytest

from pairbus.commands import broker
from tests.waiting import until


class TestLongStart:
    def test_a_start_that_takes_long_is_told_after_two_seconds_and_then_every_ten(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        waits: list[float] = []

        class Ready(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waits.append(timeout or 0.0)
                return len(waits) > 3

        broker._tell(Ready())
        assert waits == [2.0, 10.0, 10.0, 10.0]
        assert capsys.readouterr().err.splitlines() == [f"reading the journals, {seconds} s" for seconds in (2, 12, 22)]

    def test_nothing_is_told_once_the_broker_is_ready_or_has_failed(self) -> None:
        with pytest.raises(OSError, match="no such folder"), broker._telling_of_a_long_start() as is_ready:
            raise OSError("no such folder")
        assert is_ready.is_set()
        until(lambda: all(thread.name != "pairbus-start" for thread in threading.enumerate()))
