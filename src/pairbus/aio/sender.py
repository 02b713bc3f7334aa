"""The paired sender: a subclass of the SDK's sender that sends to the backlog while the primary is away.

`send_messages` asks its Dispatch what to do, does it, and reports the result, until the message is confirmed or an
error is due; where a message goes and what a failure means are decided there (`pairing/routing/dispatch.py`). Inside it
uses the SDK's own senders, one for the primary entity and one for each backlog queue in use (`guarded_sender.py`): they
are opened when they are first needed and replaced when they fail, so one paired sender serves many callers for years.
"""

from __future__ import annotations

import datetime
import logging
import time
import uuid
import warnings
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar, cast

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import ServiceBusServerBusyError

from pairbus.aio.concurrency import CLOSES_AT_ONCE_MAX, call_all, is_interruption, pause
from pairbus.aio.guarded_sender import GuardedSender
from pairbus.aio.health_monitor import HealthMonitor
from pairbus.aio.warm_link import WarmLink
from pairbus.pairing import pending_send
from pairbus.pairing.backlog.diversion import message_ids
from pairbus.pairing.errors import NotTriedError
from pairbus.pairing.events import MessageDiverted
from pairbus.pairing.health_monitor import call_safely
from pairbus.pairing.observers import outcome_of
from pairbus.pairing.options import Settings
from pairbus.pairing.pending_send import PendingSend
from pairbus.pairing.routing import budget
from pairbus.pairing.routing.dispatch import Dispatch, Sent, Step, TryBacklog, TryPrimary, Wait
from pairbus.pairing.routing.states import EntityState, Route
from pairbus.pairing.routing.verdicts import is_definite, is_silence

T = TypeVar("T")
_log: Final = logging.getLogger("pairbus.pairing")


class SenderContext(NamedTuple):
    """Holds what the senders of one paired client share."""

    #: The paired client: its `_check_usable` raises if it has been faulted or closed.
    client: Any
    monitor: HealthMonitor
    settings: Settings
    #: Makes an SDK sender to the backlog queue with that index.
    make_backlog_sender: Callable[[int], ServiceBusSender]
    #: The limits that links have announced, for senders whose own link was never open.
    limits: pending_send.Limits
    #: The link to the backlog that stands ready; None: there is none, by option.
    warm: WarmLink | None
    #: The links of senders that were dropped without being closed, until somebody closes them.
    dropped: deque[tuple[GuardedSender, dict[int, GuardedSender]]]


class PairedSender(ServiceBusSender):
    """Made by `get_queue_sender` and `get_topic_sender` of a paired client.

    Private parts of the SDK's sender that it uses: _shutdown (an Event), _check_live, _amqp_transport, and the two
    limits that its `create_message_batch` goes by.
    """

    _guarded_sender: ClassVar[Any] = GuardedSender
    _context: SenderContext
    _primary: GuardedSender
    _backlog: dict[int, GuardedSender]
    #: Stands for this sender in the rotation, which must not keep a dropped one alive.
    _token: object
    #: Puts its links among the dropped ones when it is collected.
    _dropped: weakref.finalize[..., Any]
    #: The name of its entity in events and ledgers: its other senders may spell it differently.
    _entity: str
    # the SDK's
    _max_message_size_on_link: int
    _max_batch_size_on_link: int

    @classmethod
    def adopt(cls, sender: ServiceBusSender, context: SenderContext, make: Callable[[], ServiceBusSender]) -> Self:
        """Turn a sender that the SDK's client has just created, and that was never open, into a paired one.

        So it has every attribute that the SDK gives its senders, whatever the version. `make` creates further senders
        like it, which do the work.
        """
        sender.__class__ = cls
        adopted = cast(Self, sender)
        adopted._context = context
        adopted._primary = cls._guarded_sender(make, adopted.entity_name, context.monitor.link_opened)
        adopted._backlog = {}
        adopted._token = object()
        # The SDK's keep-alive would hold its connections forever. A collected sender can't close them itself:
        # collection may happen anywhere, under any lock.
        finalizer = weakref.finalize(adopted, context.dropped.append, (adopted._primary, adopted._backlog))
        finalizer.atexit = False
        adopted._dropped = finalizer
        for link in dropped_links(context):
            link.close_soon()
        with context.monitor.lock:
            adopted._entity = context.monitor.coordinator.know(adopted.entity_name)
        if context.monitor.coordinator.commands:  # the control file pins this entity
            context.monitor.attend()
        return adopted

    def __repr__(self) -> str:
        coordinator = self._context.monitor.coordinator
        state = coordinator.state(self.entity_name)
        place = "closed" if self._shutdown.is_set() else state.value
        if self._backlog and state not in (EntityState.HEALTHY, EntityState.SUSPECT):
            place += f", backlog queues {sorted(self._backlog)} of {len(coordinator.rotation)}"
        return f"<PairedSender {self.entity_name}: {place}>"

    async def __aenter__(self) -> Self:
        """Opens the link as the SDK does, and like it raises the caller's own mistakes: a wrong key, no such entity.

        But an application that starts during an outage must come as far as its first send: a primary that is away
        is no error here, and is waited for a short while only. It counts for nothing either: entering is not sending.
        """
        self._check_live()
        monitor = self._context.monitor
        with monitor.lock:
            state = monitor.coordinator.state(self.entity_name)
            halted = monitor.coordinator.halted_until(self.entity_name) > monitor.clock()
        if state is EntityState.HEALTHY and not halted:
            await self._try_opening()
        return self

    # Sending

    async def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        self._check_call(timeout, kwargs)
        context = self._context
        pending = pending_send.pack(message, context.settings, _new_id)
        if pending is None:
            return
        monitor = context.monitor
        clock = monitor.clock
        now = clock()
        dispatch: Dispatch | None = None
        try:
            with monitor.lock:
                dispatch = monitor.coordinator.begin(self.entity_name, self._token, now, timeout)
                action = dispatch.step(now)
            while True:
                if isinstance(action, TryPrimary):
                    try:
                        argument = (
                            pending.argument if not pending.confirmed else pending.for_primary(self._amqp_transport)
                        )
                        took_s = await self._primary.send(argument, action.timeout_s, action.terms)
                    except Exception as error:
                        if is_interruption(error):
                            raise
                        action = self._primary_failed(dispatch, pending, error, now)
                    else:
                        self._primary_sent(dispatch, pending, now, took_s)
                        return
                elif isinstance(action, TryBacklog):
                    action = await self._try_backlog(dispatch, action, pending)
                    now = clock()
                elif isinstance(action, Wait):
                    await pause(self._shutdown, action.until - clock())
                    self._check_live()
                    now = clock()
                    with monitor.lock:
                        action = dispatch.step(now)
                    monitor.attend()
                elif isinstance(action, Sent):
                    return
                else:
                    monitor.attend()
                    raise action.error
        except BaseException as error:
            if dispatch is not None:
                # Anything else than an answer means that the caller doesn't wait any longer.
                given_up = not isinstance(error, Exception) or is_interruption(error)
                with monitor.lock:
                    dispatch.abandon(clock(), given_up)
                if monitor.coordinator.commands:
                    monitor.attend()
            raise

    def _primary_failed(self, dispatch: Dispatch, pending: PendingSend, error: Exception, began: float) -> Step:
        monitor = self._context.monitor
        self._tell_sent(pending.rest, error, began)
        if self._primary.wants_link and is_silence(error) and not isinstance(error, NotTriedError):
            # A link that takes longer to open than a send has would never be opened otherwise.
            self.open_meanwhile()
        with monitor.lock:
            now = monitor.clock()
            pending.primary_failed(error)
            dispatch.primary_failed(now, error, pending.sent_so_far())
            step = dispatch.step(now)
        monitor.attend()
        return step

    def _primary_sent(self, dispatch: Dispatch, pending: PendingSend, began: float, took_s: float | None) -> None:
        context = self._context
        monitor = context.monitor
        if monitor.send_observers:
            self._tell_sent(pending.rest, None, began)
        with monitor.lock:
            dispatch.primary_sent(monitor.clock(), took_s)
        if monitor.coordinator.commands:
            monitor.attend()
        if context.settings.check_size:  # now that the link has said what it takes
            warning = pending.size_warning(self._entity, context.limits, self._primary.max_message_size)
            if warning is not None:
                monitor.announce(warning)

    async def _try_backlog(self, dispatch: Dispatch, action: TryBacklog, pending: PendingSend) -> Step:
        self._check_live()  # or a link would be opened that nobody closes
        monitor = self._context.monitor
        failure: Exception | None = None
        backlog = own = self._backlog_sender(action.queue)
        warm = self._context.warm
        shared = None
        if warm is not None:
            with monitor.lock:
                shared = warm.take(own, dispatch)
            if shared is not None:
                action, backlog = shared
        try:
            await self._divert(backlog, action, pending, monitor.clock() + action.timeout_s, dispatch)
        except Exception as error:
            if is_interruption(error):  # it says nothing of the queue, and is for the application
                raise
            failure = error
            if shared is not None and backlog.is_closed and isinstance(error, ValueError):
                failure = NotTriedError(f"{self.entity_name}: the message was not tried: the warm link was replaced")
                failure.link_is_open = True  # its own link is the next try
            elif shared is not None and isinstance(error, NotTriedError):
                error.link_is_open = True  # others were first: this link is the best place for the next try, too
        finally:
            if shared is not None and warm is not None:
                with monitor.lock:
                    warm.give_back()
        if failure is not None:
            # The primary is tried once more after the last queue, with little time: too little to open a link in.
            self.open_meanwhile()
        with monitor.lock:
            now = monitor.clock()
            if failure is None:
                dispatch.backlog_sent(now)
            else:
                dispatch.backlog_failed(now, failure, pending.sent_so_far())
            step = dispatch.step(now)
        monitor.attend()
        # If a callback sends for each event, its own messages would cause endless events.
        if monitor.has_subscribers and not monitor.is_telling_here and (confirmed := pending.newly_confirmed()):
            rule = "" if dispatch.reason is None else dispatch.reason.rule
            monitor.announce(MessageDiverted(self._entity, action.queue, len(confirmed), message_ids(confirmed), rule))
        return step

    async def _divert(
        self, backlog: GuardedSender, action: TryBacklog, pending: PendingSend, deadline: float, dispatch: Dispatch
    ) -> None:
        """Send what no backlog queue has confirmed yet."""
        context = self._context
        clock = context.monitor.clock
        # Opening the link is part of the first attempt: the ledger shows no pause between two attempts of one call.
        began = clock()
        if not backlog.is_open:
            await backlog.open(action.timeout_s, budget.opening_goes_on(action.timeout_s), is_definite)
            context.limits.learn_backlog(backlog.max_message_size, backlog.max_batch_size)
            self._check_send_fits(backlog, deadline)
        pending.address(
            self.entity_name,
            context.limits,
            primary_batch=self._primary.max_batch_size,
            now_unix=time.time(),
            mark=context.settings.mark_diverted,
            transport=self._amqp_transport,
        )
        while pending.batches:
            batch = pending.batches[0]
            left_s = self._left_s(pending, deadline)
            try:
                await backlog.send(batch.argument, left_s, ends_at=is_definite)
            except Exception as error:
                pending.batch_failed(error)
                self._tell_diverted(dispatch, action.queue, batch.messages, error, began)
                if pending.split_refused(error):
                    continue
                raise
            pending.batch_confirmed()
            self._tell_diverted(dispatch, action.queue, batch.messages, None, began)
            began = clock()

    def _backlog_sender(self, queue: int) -> GuardedSender:
        sender = self._backlog.get(queue)
        if sender is None:
            make = self._context.make_backlog_sender
            made = self._guarded_sender(lambda: make(queue), f"backlog queue {queue}")
            sender = self._backlog.setdefault(queue, made)
        return sender

    def _check_send_fits(self, backlog: GuardedSender, deadline: float) -> None:
        """Raise NotTriedError if opening the link has left too little time for a send."""
        if not budget.send_fits(deadline - self._context.monitor.clock(), backlog.opening_s):
            error = NotTriedError(
                f"{self.entity_name}: the message was not tried: opening its link took {backlog.opening_s:.1f} s, and "
                "what is left is too short for a send; the next one finds the link open"
            )
            error.link_is_open = True
            raise error

    def _left_s(self, pending: PendingSend, deadline: float) -> float:
        """Return the seconds left for the next batch; raises NotTriedError if there are none."""
        now = self._context.monitor.clock()
        if now >= deadline:
            raise NotTriedError(
                f"{self.entity_name}: {len(pending.batches)} batches of this send were left when its time was over"
            )
        return deadline - now

    # Management calls

    async def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime.datetime, *, timeout: float | None = None, **kwargs: Any
    ) -> list[int]:
        self._check_call(timeout, kwargs)
        pending = pending_send.pack(messages, self._context.settings, _new_id)
        if pending is None:
            return []
        monitor = self._context.monitor
        with monitor.lock:
            route = monitor.coordinator.route(self.entity_name)
        if route is not Route.PRIMARY:
            raise pending_send.schedule_refused(self.entity_name)
        argument = pending.argument
        return await self._manage(lambda left_s: self._primary.schedule(argument, schedule_time_utc, left_s), timeout)

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        self._check_call(timeout, kwargs)
        if not isinstance(sequence_numbers, int) and not sequence_numbers:
            return
        await self._manage(lambda left_s: self._primary.cancel(sequence_numbers, left_s), timeout)

    async def _manage(self, call: Callable[[float], Awaitable[T]], timeout: float | None) -> T:
        """Make a management call to the primary, after any halt of the entity."""
        monitor = self._context.monitor
        turns = pending_send.ManagementCallTime(
            self.entity_name, monitor.clock(), timeout or self._context.settings.send_timeout
        )
        while True:
            with monitor.lock:
                halted_until = monitor.coordinator.halted_until(self.entity_name)
            if (wait_s := turns.wait_s(monitor.clock(), halted_until)) > 0:
                await pause(self._shutdown, wait_s)
                self._check_live()
                continue
            try:
                return await call(turns.left_s(monitor.clock()))
            except ServiceBusServerBusyError as error:
                turns.busy(error)
                with monitor.lock:
                    monitor.coordinator.busy(self.entity_name, monitor.clock())
                monitor.attend()

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Return a batch as the SDK does, but without needing the primary: where it can't be asked for its limit, the
        last known limit holds or the backlog's, with room left for what the backlog adds."""
        self._check_live()
        primary, limits, monitor = self._primary, self._context.limits, self._context.monitor
        if not primary.max_batch_size and not limits.knows(self.entity_name):
            with monitor.lock:
                is_healthy = monitor.coordinator.state(self.entity_name) is EntityState.HEALTHY
            if is_healthy:
                await self._try_opening()
        self._max_message_size_on_link, self._max_batch_size_on_link = limits.for_batch(
            self.entity_name, primary.max_message_size, primary.max_batch_size
        )
        return await super().create_message_batch(max_size_in_bytes)

    # Opening and closing

    @property
    def is_used(self) -> bool:
        return bool(self._backlog) or self._primary.was_opened

    async def await_opening(self) -> None:
        """Wait for the end of an opening of the link to the primary that is under way."""
        await self._primary.await_opening()

    def open_meanwhile(self) -> None:
        """Begin to open the link to the primary, for a later attempt; whether that works is seen then."""
        try:
            self._primary.begin_opening(pending_send.OPEN_S)
        except Exception as error:  # no thread to be had, say
            if is_interruption(error):
                raise
            _log.warning("%r could not be opened beforehand: %s", self._primary, error)

    async def _try_opening(self) -> None:
        """Open the link to the primary; raises only errors of the caller's own, not that the primary is away."""
        primary, settings = self._primary, self._context.settings
        try:
            granted_s = min(pending_send.OPEN_S, settings.send_timeout / 2)
            await primary.open(granted_s, budget.opening_goes_on(granted_s))
        except Exception as error:
            if not pending_send.is_away(error, settings):
                raise
        else:
            self._context.limits.learn_primary(self.entity_name, primary.max_message_size, primary.max_batch_size)

    @property
    def links(self) -> list[GuardedSender]:
        return [self._primary, *self._backlog.values()]

    def stop(self) -> None:
        """Refuse further calls, and wake those that wait for the end of a halt."""
        self._shutdown.set()

    async def close(self) -> None:
        """Closes the links. Sends that wait for a halt to end are woken and raise."""
        await close_senders([self])
        self._dropped.detach()
        monitor = self._context.monitor
        with monitor.lock:
            monitor.coordinator.forget_sender(self._token)
        await super().close()

    def _check_live(self) -> None:
        # The SDK's own goes on to look for a session, which a sender never has: by an exception, a microsecond a send.
        if self._shutdown.is_set():
            raise ValueError(
                "The handler has already been shutdown. Please use ServiceBusClient to create a new instance."
            )
        client, check_loop = self._context.client, self._context.monitor.check_loop
        if check_loop is not None:
            check_loop()
        if client._fault is not None or client._is_closed:
            client._check_usable()

    def _check_call(self, timeout: float | None, unknown: dict[str, Any]) -> None:
        if unknown:
            warnings.warn(f"Unsupported keyword args: {unknown}", stacklevel=3)
        self._check_live()
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")

    # Telling

    def _tell_sent(self, messages: list[Any], error: Exception | None, began: float) -> None:
        monitor = self._context.monitor
        ms = (monitor.clock() - began) * 1000.0
        for observer in monitor.send_observers:
            call_safely(observer.sent, self._entity, "primary", None, messages, outcome_of(error), ms)

    def _tell_diverted(
        self, dispatch: Dispatch, queue: int, messages: list[Any], error: Exception | None, began: float
    ) -> None:
        monitor = self._context.monitor
        ms = (monitor.clock() - began) * 1000.0
        for observer in monitor.divert_observers:
            call_safely(observer.sent_to_backlog, self._entity, queue, messages, outcome_of(error), ms, dispatch.reason)


def dropped_links(context: SenderContext) -> list[GuardedSender]:
    """Remove and return the links of senders that were dropped without being closed."""
    links: list[GuardedSender] = []
    while context.dropped:
        primary, backlog = context.dropped.popleft()
        links += [primary, *backlog.values()]
    return links


async def close_senders(senders: list[PairedSender], dropped: Sequence[GuardedSender] = ()) -> None:
    """End the calls of these senders and close their links, all at once: the SDK may take a second for each."""
    for sender in senders:
        sender.stop()
    links = [link for sender in senders for link in sender.links]
    await call_all([link.close for link in (*links, *dropped)], CLOSES_AT_ONCE_MAX)


def _new_id() -> str:
    return uuid.uuid4().hex
