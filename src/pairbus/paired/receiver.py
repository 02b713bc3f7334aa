"""The half of a paired receiver that waits for nothing: how it is made of the SDK's, and its books (P51)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self, cast

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus._common.constants import MESSAGE_DEAD_LETTER

from pairbus.paired.heart import guarded
from pairbus.pairing.observers import Observer, booked_as, outcome_of


class ReceiverHalf:
    """Private parts of the SDK's receiver that it reads: _max_wait_time, _receive_mode."""

    _halting_entity: str
    _on_busy: Callable[[], object]
    _halted_until: Callable[[], float]
    _check_client: Callable[[], None]
    _watchers: Callable[[], tuple[Observer, ...]]
    _booked_as: str
    # the SDK's
    _max_wait_time: float | None
    _receive_mode: Any

    @classmethod
    def adopt(
        cls,
        receiver: Any,
        entity: str,
        *,
        on_busy: Callable[[], object],
        halted_until: Callable[[], float],
        check_client: Callable[[], None] = lambda: None,
        watchers: Callable[[], tuple[Observer, ...]] = tuple,
    ) -> Self:
        """Turns a receiver that the SDK's client made into ours; it is the same object, with all that was given to it.

        `on_busy` is called when the broker says that it is busy; `halted_until` says until when (monotonic seconds) the
        entity is not to be asked, 0.0 if it may be; `check_client` raises if its client was faulted (P43); `watchers`
        gives those who want to hear of receives.
        """
        receiver.__class__ = cls
        adopted = cast(Self, receiver)
        adopted._halting_entity = entity
        adopted._on_busy = on_busy
        adopted._halted_until = halted_until
        adopted._check_client = check_client
        adopted._watchers = watchers
        adopted._booked_as = booked_as(entity, receiver.entity_path)
        adopted._prepare()
        return adopted

    def _granted(self, wait_time: float | None) -> float | None:
        return wait_time if wait_time is not None else self._max_wait_time

    def _tell_received(self, messages: list[ServiceBusReceivedMessage]) -> None:
        for each in self._watchers():
            guarded(each.received, self._booked_as, messages, self._receive_mode != ServiceBusReceiveMode.PEEK_LOCK)

    def _tell_settled(self, message: Any, operation: str, failure: BaseException | None, began: float) -> None:
        is_dead_letter = operation == MESSAGE_DEAD_LETTER
        ms = (time.monotonic() - began) * 1000.0
        for each in self._watchers():
            guarded(each.settled, self._booked_as, message, is_dead_letter, outcome_of(failure), ms)

    def _prepare(self) -> None:
        """The other half's."""
        raise NotImplementedError
