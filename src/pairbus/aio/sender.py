"""The paired sender: the SDK's sender to look at, with the backlog behind it.

`send_messages` asks its Dispatch what to do, does it, and reports how it went, until the message is confirmed or an
error is due; where a message goes and what a failure means is decided there (`pairing/dispatch.py`). The SDK's own
senders work inside, one for the primary entity and one for each backlog queue that was used (`inner.py`): they are
opened when they are first needed and replaced when they fail, so one paired sender serves many tasks for years (P7).
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import ServiceBusServerBusyError

from pairbus.aio.heart import Heart
from pairbus.aio.inner import InnerSender
from pairbus.paired.sender import SenderHalf
from pairbus.pairing import budget
from pairbus.pairing.dispatch import Dispatch, Sent, Step, TryBacklog, TryPrimary, Wait
from pairbus.pairing.sending import Shipment

T = TypeVar("T")


class PairedSender(ServiceBusSender, SenderHalf[Heart, ServiceBusSender, InnerSender]):  # type: ignore[misc]
    """Made by `get_queue_sender` and `get_topic_sender` of a paired client."""

    _inner = InnerSender
    _check_live = SenderHalf._check_live

    async def __aenter__(self) -> Self:
        """Opens the link as the SDK does, and raises as it does what is the caller's own: a wrong key, no such entity.

        But an application that starts during an outage must come as far as its first send (P3): a primary that is away
        is no error here, and is waited for a short while only. It counts for nothing either: entering is not sending.
        """
        self._check_live()
        if self._may_be_asked():
            await self._try_opening()
        return self

    async def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        self._check_call(timeout, kwargs)
        shipment = self._packed(message)
        if shipment is None:
            return
        heart = self._surroundings.heart
        clock = heart.clock
        now = clock()
        dispatch = self._begin(now, timeout)
        try:
            action = self._stepped_first(dispatch, now)
            while True:
                if isinstance(action, TryPrimary):
                    action = await self._try_primary(dispatch, action, shipment, now)
                elif isinstance(action, TryBacklog):
                    action = await self._try_backlog(dispatch, action, shipment)
                    now = clock()
                elif isinstance(action, Wait):
                    await self._pause(action.until - clock())
                    self._check_live()
                    now = clock()
                    action = self._stepped(dispatch, now)
                elif isinstance(action, Sent):
                    return
                else:
                    heart.attend()
                    raise action.error
        except BaseException:
            self._abandoned(dispatch)
            raise

    async def _try_primary(self, dispatch: Dispatch, action: TryPrimary, shipment: Shipment, began: float) -> Step:
        try:
            argument = shipment.argument if not shipment.confirmed else shipment.for_primary(self._amqp_transport)
            await self._primary.send(argument, action.timeout_s)
        except Exception as error:
            return self._primary_failed(dispatch, shipment, error, began)
        return self._primary_sent(dispatch, shipment, began)

    async def _try_backlog(self, dispatch: Dispatch, action: TryBacklog, shipment: Shipment) -> Step:
        self._check_live()  # or a link would be opened that nobody closes
        failure: Exception | None = None
        try:
            await self._divert(action, shipment, self._surroundings.heart.clock() + action.timeout_s)
        except Exception as error:
            failure = error
        return self._backlog_answered(dispatch, action, shipment, failure)

    async def _divert(self, action: TryBacklog, shipment: Shipment, deadline: float) -> None:
        """Sends what of the shipment no backlog queue has confirmed yet."""
        clock = self._surroundings.heart.clock
        # Opening the link is part of the first attempt: the ledger shows no pause between two attempts of one call.
        began = clock()
        inner = self._backlog_sender(action.queue)
        if not inner.is_open:
            await inner.open(action.timeout_s, budget.opening_goes_on(action.timeout_s))
            self._learn_backlog(inner)
            self._check_send_fits(inner, deadline)
        self._address(shipment)
        while shipment.parcels:
            parcel = shipment.parcels[0]
            left_s = self._left_s(shipment, deadline)
            try:
                await inner.send(parcel.argument, left_s)
            except Exception as error:
                shipment.parcel_failed(error)
                self._tell_parcel(action.queue, parcel, error, began)
                raise
            shipment.parcel_confirmed()
            self._tell_parcel(action.queue, parcel, None, began)
            began = clock()

    async def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime.datetime, *, timeout: float | None = None, **kwargs: Any
    ) -> list[int]:
        self._check_call(timeout, kwargs)
        shipment = self._packed(messages)
        if shipment is None:
            return []
        self._check_schedulable()
        argument = shipment.argument
        return await self._manage(lambda left_s: self._primary.schedule(argument, schedule_time_utc, left_s), timeout)

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        self._check_call(timeout, kwargs)
        if not isinstance(sequence_numbers, int) and not sequence_numbers:
            return
        await self._manage(lambda left_s: self._primary.cancel(sequence_numbers, left_s), timeout)

    async def _manage(self, call: Callable[[float], Awaitable[T]], timeout: float | None) -> T:
        """A management call: the primary's business only, and it keeps the entity's halts (P24)."""
        turns = self._turns(timeout)
        while True:
            if (wait_s := self._wait_s(turns)) > 0:
                await self._pause(wait_s)
                self._check_live()
                continue
            try:
                return await call(turns.left_s(self._surroundings.heart.clock()))
            except ServiceBusServerBusyError as error:
                self._busy(turns, error)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """As the SDK's, but it needs no primary: where none can be asked for its limit, the backlog's or the last known
        limit holds, with room left for what the backlog adds."""
        self._check_live()
        if self._wants_limits():
            await self._try_opening()
        self._take_limits()
        return await super().create_message_batch(max_size_in_bytes)

    async def close(self) -> None:
        """Closes the links. Sends that wait for a halt to end are woken and raise."""
        self.stop()
        await close_links(self.links)
        self._forgotten()
        await super().close()

    async def _try_opening(self) -> None:
        """Raises what is the caller's own; that the primary is away is not."""
        try:
            await self._primary.open(self._open_s)
        except Exception as error:
            if not self._is_away(error):
                raise
        else:
            self._learn_primary()

    async def _pause(self, seconds: float) -> None:
        """Until then, or until the sender is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._shutdown.wait()
        except TimeoutError:
            pass


async def close_links(links: list[InnerSender]) -> None:
    """All at once: the SDK takes up to a second for each, in which it waits for a task of its own."""
    await asyncio.gather(*(link.close() for link in links))
