"""The paired receiver: a subclass of the SDK's receiver that drops pings and pauses on server busy, and nothing else.

Messages come from the primary only, and during an outage a receive behaves as the SDK's own. The coordinator decides
how long an entity pauses; here the pause is looked up, waited for if the caller's time allows, and reported. A
settlement on the receiver's own link does not wait for a pause: its lock would expire meanwhile.

Private parts of the SDK's receiver that it overrides or reads:

    _do_retryable_operation      the loop of attempts round receives and management calls
    _handle_exception            what is called with each failed attempt
    _mgmt_request_response       one management call: peek, renew, deferred messages, session state, settle by token
    _inner_anext                  one step of an iteration
    _settle_message, _open       attempts that do not wait for a halt
    _settle_message_with_retry   one settlement, whatever it is
    _receive_mode, _config.retry_total, _shutdown (an Event), _max_wait_time, _check_live
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Self, cast

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus._common.constants import DEFAULT_RECEIVE_WAIT_TIME_SECS, MESSAGE_DEAD_LETTER
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusServerBusyError

from pairbus.aio.concurrency import ReceiverAfterFork, pause
from pairbus.pairing.health_monitor import call_safely
from pairbus.pairing.observers import Observer, ledger_entity, outcome_of
from pairbus.pairing.routing.ping import is_ping
from pairbus.pairing.sdk import EntityHalted

_log = logging.getLogger("pairbus.pairing")


class PairedReceiver(ServiceBusReceiver, ReceiverAfterFork):  # type: ignore[misc]  # the SDK's own bases disagree
    """Made by `get_queue_receiver` and `get_subscription_receiver` of a paired client."""

    _halting_entity: str
    _on_busy: Callable[[], object]
    _halted_until: Callable[[], float]
    _check_client: Callable[[], None]
    _watchers: Callable[[], tuple[Observer, ...]]
    _booked_as: str

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
        """Turns a receiver that the SDK's client created into ours; it is the same object, with all of its arguments.

        `on_busy` is called when the broker says that it is busy; `halted_until` says until when (monotonic seconds) the
        entity must not be asked, 0.0 if it may be; `check_client` raises if its client was faulted; `watchers` returns
        the observers of receives.
        """
        receiver.__class__ = cls
        adopted = cast(Self, receiver)
        adopted._halting_entity = entity
        adopted._on_busy = on_busy
        adopted._halted_until = halted_until
        adopted._check_client = check_client
        adopted._watchers = watchers
        adopted._booked_as = ledger_entity(entity, receiver.entity_path)
        adopted._made_in_this_process()
        return adopted

    async def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        granted = self._granted(max_wait_time)
        deadline = time.monotonic() + (DEFAULT_RECEIVE_WAIT_TIME_SECS if granted is None else granted)
        while True:
            messages = await super().receive_messages(max_message_count, max_wait_time)
            self._tell_received(messages)
            kept = await self._without_pings(messages)
            # Only pings: they don't count, so the call goes on for the rest of its time.
            max_wait_time = deadline - time.monotonic()
            if kept or not messages or max_wait_time <= 0:
                return kept

    async def receive_deferred_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> list[ServiceBusReceivedMessage]:
        messages = await super().receive_deferred_messages(sequence_numbers, timeout=timeout, **kwargs)
        if messages:
            self._tell_received(messages)
        return await self._without_pings(messages)

    async def peek_messages(
        self, max_message_count: int = 1, *, sequence_number: int = 0, timeout: float | None = None, **kwargs: Any
    ) -> list[ServiceBusReceivedMessage]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            messages = await super().peek_messages(
                max_message_count, sequence_number=sequence_number, timeout=timeout, **kwargs
            )
            kept = [message for message in messages if not is_ping(message)]
            if kept or not messages:
                return kept
            # Only pings, and an empty list would mean that nothing is left: look behind them.
            sequence_number = (messages[-1].sequence_number or 0) + 1
            if deadline is not None and (timeout := deadline - time.monotonic()) <= 0:
                return kept

    async def _inner_anext(self, wait_time: float | None = None) -> ServiceBusReceivedMessage:
        while True:
            message = await super()._inner_anext(wait_time)
            self._tell_received([message])
            if await self._without_pings([message]):
                return message

    async def _without_pings(self, messages: list[ServiceBusReceivedMessage]) -> list[ServiceBusReceivedMessage]:
        pings = [message for message in messages if is_ping(message)]
        if not pings:
            return messages
        if self._receive_mode == ServiceBusReceiveMode.PEEK_LOCK:
            for message in pings:
                try:
                    await self.complete_message(message)
                except Exception as error:
                    # Nobody waits for it, and its second is over: the broker drops it by itself.
                    _log.debug("A ping from %s could not be completed: %r", self._halting_entity, error)
        return [message for message in messages if message not in pings]

    # What is counted for observers

    def _tell_received(self, messages: list[ServiceBusReceivedMessage]) -> None:
        for each in self._watchers():
            call_safely(each.received, self._booked_as, messages, self._receive_mode != ServiceBusReceiveMode.PEEK_LOCK)

    def _tell_settled(self, message: Any, operation: str, failure: BaseException | None, began: float) -> None:
        is_dead_letter = operation == MESSAGE_DEAD_LETTER
        ms = (time.monotonic() - began) * 1000.0
        for each in self._watchers():
            call_safely(each.settled, self._booked_as, message, is_dead_letter, outcome_of(failure), ms)

    async def _settle_message_with_retry(
        self,
        message: Any,
        settle_operation: str,
        dead_letter_reason: str | None = None,
        dead_letter_error_description: str | None = None,
    ) -> None:
        arguments = (message, settle_operation, dead_letter_reason, dead_letter_error_description)
        if not self._watchers():
            await super()._settle_message_with_retry(*arguments)  # type: ignore[no-untyped-call]
            return
        began = time.monotonic()
        failure: BaseException | None = None
        try:
            await super()._settle_message_with_retry(*arguments)  # type: ignore[no-untyped-call]
        except BaseException as error:
            failure = error
            raise
        finally:
            self._tell_settled(message, settle_operation, failure, began)

    # Halts

    async def _do_retryable_operation(
        self, operation: Callable[..., Any], timeout: float | None = None, **kwargs: Any
    ) -> Any:
        granted = self._granted(kwargs["wait_time"]) if "wait_time" in kwargs else timeout  # a step of an iteration
        deadline = None if granted is None else time.monotonic() + granted
        busy: ServiceBusServerBusyError | None = None
        # A call without a time-out ends like the SDK's, by its number of retries.
        retries = self._config.retry_total
        wait = operation not in (self._settle_message, self._open)
        while True:
            if wait:
                try:
                    await self._wait_out_halt(deadline)
                except EntityHalted:
                    if busy is not None:
                        raise busy from None
                    raise
            if timeout is not None and deadline is not None:
                timeout = max(deadline - time.monotonic(), 0.001)
            try:
                return await super()._do_retryable_operation(operation, timeout=timeout, **kwargs)
            except EntityHalted:
                raise
            except ServiceBusServerBusyError as error:
                self._on_busy()
                retries -= 1
                if retries < 0:
                    raise
                busy, wait = error, True

    async def _mgmt_request_response(
        self,
        mgmt_operation: bytes,
        message: Any,
        callback: Callable[..., Any],
        keep_alive_associated_link: bool = True,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        await self._wait_out_halt(None if timeout is None else time.monotonic() + timeout)
        return await super()._mgmt_request_response(
            mgmt_operation, message, callback, keep_alive_associated_link, timeout, **kwargs
        )

    async def _handle_exception(self, exception: BaseException) -> Any:
        sdk: Any = super()  # half of it is typed
        error = await sdk._handle_exception(exception)
        if isinstance(error, ServiceBusServerBusyError):
            raise error
        return error

    def _granted(self, wait_time: float | None) -> float | None:
        return wait_time if wait_time is not None else self._max_wait_time

    async def _wait_out_halt(self, deadline: float | None) -> None:
        """Waits until the entity is no longer halted; raises at once if that would be too late."""
        while (until := self._halted_until()) > (now := time.monotonic()):
            if deadline is not None and until >= deadline:
                raise EntityHalted(self._halting_entity, until - now)
            if await pause(self._shutdown, until - now):
                self._check_live()  # raises: the receiver was closed

    def _check_live(self) -> None:
        self._check_process()
        super()._check_live()  # type: ignore[no-untyped-call]
        self._check_client()
