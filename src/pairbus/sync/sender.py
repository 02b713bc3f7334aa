"""The paired sender: the SDK's sender to look at, with the backlog behind it.

`send_messages` asks its Dispatch what to do, does it, and reports how it went, until the message is confirmed or an
error is due; where a message goes and what a failure means is decided there (`pairing/dispatch.py`). The SDK's own
senders work inside, one for the primary entity and one for each backlog queue that was used (`inner.py`): they are
opened when they are first needed and replaced when they fail, so one paired sender serves many threads for years (P7).
"""

from __future__ import annotations

import datetime
import time
import uuid
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Self, TypeVar, cast

from azure.servicebus import ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusServerBusyError

from pairbus.pairing import sending
from pairbus.pairing.dispatch import Dispatch, Sent, Step, TryBacklog, TryPrimary, Wait
from pairbus.pairing.errors import NotTriedError
from pairbus.pairing.events import MessageDiverted
from pairbus.pairing.observers import outcome_of
from pairbus.pairing.options import Settings
from pairbus.pairing.sending import Shipment
from pairbus.pairing.sizes import Part
from pairbus.pairing.states import EntityState, Route
from pairbus.sync.heart import Heart, guarded
from pairbus.sync.inner import InnerSender

T = TypeVar("T")
CLOSES_AT_ONCE_MAX: Final = 32


class Surroundings(NamedTuple):
    """What the senders of one paired client share."""

    heart: Heart
    settings: Settings
    #: A new SDK sender to the backlog queue with that index.
    make_backlog_sender: Callable[[int], ServiceBusSender]
    #: Raises if the client has been closed, faulted or forked.
    check_client: Callable[[], None]
    #: What links have said of their limits, for senders whose own link was never open.
    limits: sending.Limits


class PairedSender(ServiceBusSender):
    """Made by `get_queue_sender` and `get_topic_sender` of a paired client."""

    _surroundings: Surroundings
    _primary: InnerSender
    _backlog: dict[int, InnerSender]
    #: Stands for this sender in the rotation, which must not keep a dropped one alive.
    _token: object

    @classmethod
    def adopt(
        cls, sender: ServiceBusSender, surroundings: Surroundings, make: Callable[[], ServiceBusSender]
    ) -> PairedSender:
        """Makes a paired sender of one that the SDK's client has just made and that was never open.

        So it has every attribute that the SDK gives its senders, by the SDK's own hand, whatever the version. `make`
        gives further senders like it, which do the work.
        """
        adopted = cast(PairedSender, sender)
        adopted.__class__ = cls
        adopted._surroundings = surroundings
        adopted._primary = InnerSender(make, sender.entity_name)
        adopted._backlog = {}
        adopted._token = object()
        with surroundings.heart.lock:
            surroundings.heart.coordinator.know(sender.entity_name)
        return adopted

    def __repr__(self) -> str:
        coordinator = self._surroundings.heart.coordinator
        state = coordinator.state(self.entity_name)
        place = "closed" if self._shutdown.is_set() else state.value
        if self._backlog and state not in (EntityState.HEALTHY, EntityState.SUSPECT):
            place += f", backlog queues {sorted(self._backlog)} of {len(coordinator.rotation)}"
        return f"<PairedSender {self.entity_name}: {place}>"

    def __enter__(self) -> Self:
        """Opens the link as the SDK does, and raises as it does what is the caller's own: a wrong key, no such entity.

        But an application that starts during an outage must come as far as its first send (P3): a primary that is away
        is no error here, and is waited for a short while only. It counts for nothing either: entering is not sending.
        """
        self._check_live()
        heart = self._surroundings.heart
        with heart.lock:
            state = heart.coordinator.state(self.entity_name)
            halted = heart.coordinator.halted_until(self.entity_name) > heart.clock()
        if state is EntityState.HEALTHY and not halted:
            self._try_opening()
        return self

    def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        self._check_live()
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")
        surroundings = self._surroundings
        shipment = sending.pack(message, surroundings.settings, _new_id)
        if shipment is None:
            return
        heart = surroundings.heart
        lock = heart.lock
        clock = heart.clock
        coordinator = heart.coordinator
        now = clock()
        with lock:
            dispatch = coordinator.begin(self.entity_name, self._token, now, timeout)
            action = dispatch.step(now)
        try:
            while True:
                if isinstance(action, TryPrimary):
                    action = self._try_primary(dispatch, action, shipment, now)
                elif isinstance(action, TryBacklog):
                    action = self._try_backlog(dispatch, action, shipment)
                elif isinstance(action, Wait):
                    self._shutdown.wait(max(0.0, action.until - clock()))
                    self._check_live()
                    now = clock()
                    with lock:
                        action = dispatch.step(now)
                    heart.attend()
                elif isinstance(action, Sent):
                    return
                else:
                    heart.attend()
                    raise action.error
        except BaseException:
            with lock:
                dispatch.abandon(clock())
            raise

    def _try_primary(self, dispatch: Dispatch, action: TryPrimary, shipment: Shipment, began: float) -> Step:
        surroundings = self._surroundings
        heart = surroundings.heart
        try:
            self._primary.send(shipment.argument, action.timeout_s)
        except Exception as error:
            if heart.send_observers:
                self._tell_sent("primary", None, shipment.messages, error, began)
            with heart.lock:
                now = heart.clock()
                dispatch.primary_failed(now, error)
                step = dispatch.step(now)
            heart.attend()
            return step
        if heart.send_observers:
            self._tell_sent("primary", None, shipment.messages, None, began)
        with heart.lock:
            dispatch.primary_sent(heart.clock())
        if heart.coordinator.commands:
            heart.attend()
        if surroundings.settings.check_size:  # now that the link has said what it takes
            limit = surroundings.limits.of_backlog(self._primary.max_message_size)
            warning = shipment.size_warning(self.entity_name, limit)
            if warning is not None:
                heart.announce(warning)
        return sending.SENT

    def _try_backlog(self, dispatch: Dispatch, action: TryBacklog, shipment: Shipment) -> Step:
        heart = self._surroundings.heart
        self._check_live()  # or a link would be opened that nobody closes
        failure: Exception | None = None
        try:
            self._divert(action, shipment, heart.clock() + action.timeout_s)
        except Exception as error:
            failure = error
        with heart.lock:
            now = heart.clock()
            if failure is None:
                dispatch.backlog_sent(now)
            else:
                dispatch.backlog_failed(now, failure)
            step = dispatch.step(now)
        heart.attend()
        if failure is None and heart.has_subscribers:
            ids = shipment.message_ids
            heart.announce(MessageDiverted(self.entity_name, action.queue, len(ids), ids))
        return step

    def _divert(self, action: TryBacklog, shipment: Shipment, deadline: float) -> None:
        """Sends what of the shipment no backlog queue has confirmed yet."""
        surroundings = self._surroundings
        clock = surroundings.heart.clock
        # Opening the link is part of the first attempt: the ledger shows no pause between two attempts of one call.
        began = clock()
        inner = self._backlog_sender(action.queue)
        if not inner.max_message_size:
            inner.open(action.timeout_s)
            surroundings.limits.learn_backlog(inner.max_message_size, inner.max_batch_size)
        shipment.address(
            self.entity_name,
            surroundings.limits,
            now_unix=time.time(),
            mark=surroundings.settings.mark_diverted,
            transport=self._amqp_transport,
        )
        while shipment.parcels:
            parcel = shipment.parcels[0]
            now = clock()
            if now >= deadline:
                raise NotTriedError(
                    f"{self.entity_name}: {len(shipment.parcels)} batches of this send were left when its time was over"
                )
            try:
                inner.send(parcel.argument, deadline - now)
            except Exception as error:
                self._tell_parcel(action.queue, parcel, error, began)
                raise
            shipment.parcels.popleft()
            self._tell_parcel(action.queue, parcel, None, began)
            began = clock()

    def _backlog_sender(self, queue: int) -> InnerSender:
        inner = self._backlog.get(queue)
        if inner is None:
            make = self._surroundings.make_backlog_sender
            inner = self._backlog.setdefault(queue, InnerSender(lambda: make(queue), f"backlog queue {queue}"))
        return inner

    def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime.datetime, *, timeout: float | None = None, **kwargs: Any
    ) -> list[int]:
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        self._check_live()
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")
        surroundings = self._surroundings
        shipment = sending.pack(messages, surroundings.settings, _new_id)
        if shipment is None:
            return []
        with surroundings.heart.lock:
            route = surroundings.heart.coordinator.route(self.entity_name)
        if route is not Route.PRIMARY:
            raise sending.no_schedule(self.entity_name)
        argument = shipment.argument
        return self._manage(lambda left_s: self._primary.schedule(argument, schedule_time_utc, left_s), timeout)

    def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        self._check_live()
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")
        if not isinstance(sequence_numbers, int) and not sequence_numbers:
            return
        self._manage(lambda left_s: self._primary.cancel(sequence_numbers, left_s), timeout)

    def _manage(self, call: Callable[[float], T], timeout: float | None) -> T:
        """A management call: the primary's business only, and it keeps the entity's halts (P24)."""
        heart = self._surroundings.heart
        turns = sending.Turns(self.entity_name, heart.clock(), timeout or self._surroundings.settings.send_timeout)
        while True:
            with heart.lock:
                halted_until = heart.coordinator.halted_until(self.entity_name)
            wait_s = turns.wait_s(heart.clock(), halted_until)
            if wait_s > 0:
                self._shutdown.wait(wait_s)
                self._check_live()
                continue
            try:
                return call(turns.left_s(heart.clock()))
            except ServiceBusServerBusyError as error:
                turns.busy(error)
                with heart.lock:
                    heart.coordinator.busy(self.entity_name, heart.clock())
                heart.attend()

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """As the SDK's, but it needs no primary: where none can be asked for its limit, the backlog's or the last known
        limit holds, with room left for what the backlog adds."""
        self._check_live()
        surroundings = self._surroundings
        if not self._primary.max_batch_size and not surroundings.limits.knows(self.entity_name):
            with surroundings.heart.lock:
                state = surroundings.heart.coordinator.state(self.entity_name)
            if state is EntityState.HEALTHY:
                self._try_opening()
        self._max_message_size_on_link, self._max_batch_size_on_link = surroundings.limits.for_batch(
            self.entity_name, self._primary.max_message_size, self._primary.max_batch_size
        )
        return super().create_message_batch(max_size_in_bytes)

    def close(self) -> None:
        """Closes the links. Sends that wait for a halt to end are woken and raise."""
        self.stop()
        close_links(self.links)
        heart = self._surroundings.heart
        with heart.lock:
            heart.coordinator.forget_sender(self._token)
        super().close()

    def stop(self) -> None:
        """Nothing more is begun, and what waits is woken."""
        self._shutdown.set()

    @property
    def links(self) -> list[InnerSender]:
        return [self._primary, *self._backlog.values()]

    def _check_live(self) -> None:
        # The SDK's own goes on to look for a session, which a sender never has: by an exception, a microsecond a send.
        if self._shutdown.is_set():
            raise ValueError(
                "The handler has already been shutdown. Please use ServiceBusClient to create a new instance."
            )
        self._surroundings.check_client()

    def _try_opening(self) -> None:
        """Raises what is the caller's own; that the primary is away is not."""
        surroundings = self._surroundings
        try:
            self._primary.open(min(sending.OPEN_S, surroundings.settings.send_timeout / 2))
        except Exception as error:
            if not sending.is_away(error, surroundings.settings):
                raise
        else:
            surroundings.limits.learn_primary(
                self.entity_name, self._primary.max_message_size, self._primary.max_batch_size
            )

    def _tell_parcel(self, queue: int, parcel: Part, error: Exception | None, began: float) -> None:
        if self._surroundings.heart.send_observers:
            self._tell_sent("backlog", queue, parcel.messages, error, began)

    def _tell_sent(
        self, route: Any, queue: int | None, messages: list[Any], error: Exception | None, began: float
    ) -> None:
        heart = self._surroundings.heart
        ms = (heart.clock() - began) * 1000.0
        for observer in heart.send_observers:
            guarded(observer.sent, self.entity_name, route, queue, messages, outcome_of(error), ms)


def close_links(links: list[InnerSender]) -> None:
    """All at once: the SDK takes up to a second for each, in which it waits for a thread of its own."""
    with ThreadPoolExecutor(max(1, min(CLOSES_AT_ONCE_MAX, len(links))), "pairbus-close") as pool:
        list(pool.map(lambda link: link.close(), links))


def _new_id() -> str:
    return uuid.uuid4().hex
