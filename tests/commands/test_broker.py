"""The start of the command `broker`; what it serves is tested in `tests/broker`."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

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


class Cycle:
    """An object that only the cycle collector frees."""

    def __init__(self) -> None:
        self.itself = self


class TestGarbage:
    async def _is_freed(self, held: int) -> bool:
        """Return whether a cycle that is old is gone after a minute in which so many objects were made and kept."""
        minutes: list[float] = []
        kept: list[list[int]] = []
        was_enabled = gc.isenabled()
        gc.disable()
        cycles: list[weakref.ref[Cycle]] = []

        async def wait(seconds: float) -> None:
            if minutes:
                raise asyncio.CancelledError
            minutes.append(seconds)
            cycles.append(weakref.ref(Cycle()))
            kept.extend([n] for n in range(held))

        try:
            with pytest.raises(asyncio.CancelledError):
                await broker.collect_garbage(wait)
            assert minutes == [60.0]
            return cycles[0]() is None
        finally:
            gc.unfreeze()
            if was_enabled:
                gc.enable()

    async def test_a_full_collection_runs_every_minute(self) -> None:
        assert await self._is_freed(held=100)

    async def test_it_is_left_out_while_so_much_is_held_that_it_would_take_long(self) -> None:
        assert not await self._is_freed(held=100_000)

    async def test_cycles_that_come_after_much_did_are_found_again(self) -> None:
        kept: list[list[int]] = []
        cycles: list[weakref.ref[Cycle]] = []

        async def wait(seconds: float) -> None:
            if cycles:
                raise asyncio.CancelledError
            if kept:
                cycles.append(weakref.ref(Cycle()))
            else:
                kept.extend([n] for n in range(100_000))

        try:
            with pytest.raises(asyncio.CancelledError):
                await broker.collect_garbage(wait)
            assert cycles[0]() is None
        finally:
            gc.unfreeze()

    async def test_what_the_start_has_made_is_not_gone_through(self) -> None:
        kept = [[n] for n in range(100_000)]
        frozen: list[int] = []

        async def wait(seconds: float) -> None:
            if frozen:
                raise asyncio.CancelledError
            frozen.append(gc.get_freeze_count())

        gc.unfreeze()
        try:
            with pytest.raises(asyncio.CancelledError):
                await broker.collect_garbage(wait)
            assert frozen[0] >= len(kept)
        finally:
            gc.unfreeze()

    def test_python_makes_no_full_collection_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        thresholds: list[tuple[int, ...]] = []
        monkeypatch.setattr(gc, "set_threshold", lambda *given: thresholds.append(given))
        monkeypatch.setattr(broker.event_loop, "run", lambda main: main.close())
        assert broker.broker.callback is not None
        broker.broker.callback(("contoso",), None, "127.0.0.1", None, False)
        ((young, older, full),) = thresholds
        assert young * older <= 25_000 and full >= 1_000_000
