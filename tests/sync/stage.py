"""A paired sender without brokers: its inner senders answer as they are told, and its clock stands until moved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient

from pairbus.sync.heart import Heart
from pairbus.sync.sender import PairedSender

from ..paired.stage import FakeHalf, StageHalf


class FakeInner(FakeHalf):
    def _answer(self, call: str, argument: Any, timeout_s: float) -> None:
        answer = self._called(call, argument, timeout_s)
        if answer is not None:
            answer()
        self._succeeded()

    def open(self, timeout_s: float, goes_on_s: float = 0.0) -> None:
        self._answer("open", None, timeout_s)

    def send(self, message: Any, timeout_s: float) -> None:
        self._answer("send", message, timeout_s)

    def schedule(self, messages: Any, schedule_time_utc: Any, timeout_s: float) -> list[int]:
        self._answer("schedule", messages, timeout_s)
        return [1]

    def cancel(self, sequence_numbers: Any, timeout_s: float) -> None:
        self._answer("cancel", sequence_numbers, timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        self.is_closed = True


class Stage(StageHalf):
    kinds = (ServiceBusClient, Heart, PairedSender, FakeInner)

    def close(self) -> None:
        self.heart.close()
        assert wait_until(lambda: self.heart._thread is None)


def wait_until(condition: Callable[[], bool], within: float = 5.0) -> bool:
    """For what another thread is about to do."""
    slept = threading.Event()
    for _ in range(int(within / 0.005)):
        if condition():
            return True
        slept.wait(0.005)
    return condition()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    monkeypatch.setattr(PairedSender, "_inner", FakeInner)
    made: list[Stage] = []

    def make(**settings: Any) -> Stage:
        made.append(Stage(**settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
