"""The half of a paired sender that waits for nothing: how it is made of the SDK's, what its dispatch hears of answers,
whom it tells. Where a message goes is decided in `pairing/dispatch.py`; the other half does it, and waits."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar, cast

from azure.servicebus.exceptions import ServiceBusServerBusyError

from pairbus.paired.heart import HeartHalf, guarded
from pairbus.pairing import budget, sending
from pairbus.pairing.dispatch import Dispatch, Step, TryBacklog
from pairbus.pairing.diversion import message_ids
from pairbus.pairing.errors import NotTriedError
from pairbus.pairing.events import MessageDiverted
from pairbus.pairing.observers import outcome_of
from pairbus.pairing.options import Settings
from pairbus.pairing.sending import Shipment
from pairbus.pairing.sizes import Part
from pairbus.pairing.states import EntityState, Route


class Limited(Protocol):
    """As much of an inner sender as this half looks at."""

    max_message_size: int
    max_batch_size: int
    opening_s: float


HeartT = TypeVar("HeartT", bound=HeartHalf[Any])
SenderT = TypeVar("SenderT")
InnerT = TypeVar("InnerT", bound=Limited)


class Surroundings(NamedTuple, Generic[HeartT, SenderT]):
    """What the senders of one paired client share."""

    heart: HeartT
    settings: Settings
    #: A new SDK sender to the backlog queue with that index.
    make_backlog_sender: Callable[[int], SenderT]
    #: Raises if the client has been closed, faulted or forked.
    check_client: Callable[[], None]
    #: What links have said of their limits, for senders whose own link was never open.
    limits: sending.Limits


class SenderHalf(Generic[HeartT, SenderT, InnerT]):
    """Private parts of the SDK's sender that it uses: _shutdown (an Event), _amqp_transport, and the two limits that
    its `create_message_batch` goes by."""

    #: What makes an inner sender.
    _inner: ClassVar[Any]
    _surroundings: Surroundings[HeartT, SenderT]
    _primary: InnerT
    _backlog: dict[int, InnerT]
    #: Stands for this sender in the rotation, which must not keep a dropped one alive.
    _token: object
    #: What its entity is called in events and ledgers: its other senders may spell it otherwise (P15).
    _entity: str
    # the SDK's
    entity_name: str
    _shutdown: Any
    _amqp_transport: Any
    _max_message_size_on_link: int
    _max_batch_size_on_link: int

    @classmethod
    def adopt(cls, sender: SenderT, surroundings: Surroundings[HeartT, SenderT], make: Callable[[], SenderT]) -> Self:
        """Makes a paired sender of one that the SDK's client has just made and that was never open.

        So it has every attribute that the SDK gives its senders, by the SDK's own hand, whatever the version. `make`
        gives further senders like it, which do the work.
        """
        adopted = cast(Self, sender)
        adopted.__class__ = cls
        adopted._surroundings = surroundings
        adopted._primary = cls._inner(make, adopted.entity_name)
        adopted._backlog = {}
        adopted._token = object()
        with surroundings.heart.lock:
            adopted._entity = surroundings.heart.coordinator.know(adopted.entity_name)
        return adopted

    def __repr__(self) -> str:
        coordinator = self._surroundings.heart.coordinator
        state = coordinator.state(self.entity_name)
        place = "closed" if self._shutdown.is_set() else state.value
        if self._backlog and state not in (EntityState.HEALTHY, EntityState.SUSPECT):
            place += f", backlog queues {sorted(self._backlog)} of {len(coordinator.rotation)}"
        return f"<PairedSender {self.entity_name}: {place}>"

    @property
    def links(self) -> list[InnerT]:
        return [self._primary, *self._backlog.values()]

    def stop(self) -> None:
        """Nothing more is begun, and what waits is woken."""
        self._shutdown.set()

    # Before a call

    def _check_live(self) -> None:
        # The SDK's own goes on to look for a session, which a sender never has: by an exception, a microsecond a send.
        if self._shutdown.is_set():
            raise ValueError(
                "The handler has already been shutdown. Please use ServiceBusClient to create a new instance."
            )
        self._surroundings.check_client()

    def _check_call(self, timeout: float | None, unknown: dict[str, Any]) -> None:
        if unknown:
            warnings.warn(f"Unsupported keyword args: {unknown}", stacklevel=3)
        self._check_live()
        if timeout is not None and timeout <= 0:
            raise ValueError("The timeout must be greater than 0.")

    def _packed(self, messages: Any) -> Shipment | None:
        return sending.pack(messages, self._surroundings.settings, _new_id)

    def _begin(self, now: float, timeout: float | None) -> Dispatch:
        heart = self._surroundings.heart
        with heart.lock:
            return heart.coordinator.begin(self.entity_name, self._token, now, timeout)

    def _stepped_first(self, dispatch: Dispatch, now: float) -> Step:
        with self._surroundings.heart.lock:
            return dispatch.step(now)

    def _check_schedulable(self) -> None:
        heart = self._surroundings.heart
        with heart.lock:
            route = heart.coordinator.route(self.entity_name)
        if route is not Route.PRIMARY:
            raise sending.no_schedule(self.entity_name)

    def _may_be_asked(self) -> bool:
        """The primary, before there is a send: not where it is sick or halted."""
        heart = self._surroundings.heart
        with heart.lock:
            state = heart.coordinator.state(self.entity_name)
            halted = heart.coordinator.halted_until(self.entity_name) > heart.clock()
        return state is EntityState.HEALTHY and not halted

    # What an answer means to the dispatch

    def _stepped(self, dispatch: Dispatch, now: float) -> Step:
        heart = self._surroundings.heart
        with heart.lock:
            step = dispatch.step(now)
        heart.attend()
        return step

    def _abandoned(self, dispatch: Dispatch) -> None:
        heart = self._surroundings.heart
        with heart.lock:
            dispatch.abandon(heart.clock())

    def _primary_failed(self, dispatch: Dispatch, shipment: Shipment, error: Exception, began: float) -> Step:
        heart = self._surroundings.heart
        if heart.send_observers:
            self._tell_sent("primary", None, shipment.rest, error, began)
        with heart.lock:
            now = heart.clock()
            shipment.primary_failed(error)
            dispatch.primary_failed(now, error, shipment.sent_so_far())
            step = dispatch.step(now)
        heart.attend()
        return step

    def _primary_sent(self, dispatch: Dispatch, shipment: Shipment, began: float) -> Step:
        surroundings = self._surroundings
        heart = surroundings.heart
        if heart.send_observers:
            self._tell_sent("primary", None, shipment.rest, None, began)
        with heart.lock:
            dispatch.primary_sent(heart.clock())
        if heart.coordinator.commands:
            heart.attend()
        if surroundings.settings.check_size:  # now that the link has said what it takes
            limit = surroundings.limits.of_backlog(self._primary.max_message_size)
            warning = shipment.size_warning(self._entity, limit)
            if warning is not None:
                heart.announce(warning)
        return sending.SENT

    def _backlog_answered(
        self, dispatch: Dispatch, action: TryBacklog, shipment: Shipment, failure: Exception | None
    ) -> Step:
        heart = self._surroundings.heart
        with heart.lock:
            now = heart.clock()
            if failure is None:
                dispatch.backlog_sent(now)
            else:
                dispatch.backlog_failed(now, failure, shipment.sent_so_far())
            step = dispatch.step(now)
        heart.attend()
        if heart.has_subscribers and (confirmed := shipment.newly_confirmed()):
            ids = message_ids(confirmed)
            heart.announce(MessageDiverted(self._entity, action.queue, len(confirmed), ids))
        return step

    def _turns(self, timeout: float | None) -> sending.Turns:
        surroundings = self._surroundings
        return sending.Turns(
            self.entity_name, surroundings.heart.clock(), timeout or surroundings.settings.send_timeout
        )

    def _wait_s(self, turns: sending.Turns) -> float:
        heart = self._surroundings.heart
        with heart.lock:
            halted_until = heart.coordinator.halted_until(self.entity_name)
        return turns.wait_s(heart.clock(), halted_until)

    def _forgotten(self) -> None:
        heart = self._surroundings.heart
        with heart.lock:
            heart.coordinator.forget_sender(self._token)

    def _busy(self, turns: sending.Turns, error: ServiceBusServerBusyError) -> None:
        turns.busy(error)
        heart = self._surroundings.heart
        with heart.lock:
            heart.coordinator.busy(self.entity_name, heart.clock())
        heart.attend()

    # The backlog

    def _backlog_sender(self, queue: int) -> InnerT:
        inner = self._backlog.get(queue)
        if inner is None:
            make = self._surroundings.make_backlog_sender
            made: InnerT = self._inner(lambda: make(queue), f"backlog queue {queue}")
            inner = self._backlog.setdefault(queue, made)
        return inner

    def _address(self, shipment: Shipment) -> None:
        surroundings = self._surroundings
        shipment.address(
            self.entity_name,
            surroundings.limits,
            primary_batch=self._primary.max_batch_size,
            now_unix=time.time(),
            mark=surroundings.settings.mark_diverted,
            transport=self._amqp_transport,
        )

    def _check_send_fits(self, inner: InnerT, deadline: float) -> None:
        """Now that its link is open."""
        if not budget.send_fits(deadline - self._surroundings.heart.clock(), inner.opening_s):
            error = NotTriedError(
                f"{self.entity_name}: the message was not tried: opening its link took {inner.opening_s:.1f} s, and "
                "what is left is too short for a send; the next one finds the link open"
            )
            error.link_is_open = True
            raise error

    def _left_s(self, shipment: Shipment, deadline: float) -> float:
        """For the next parcel."""
        now = self._surroundings.heart.clock()
        if now >= deadline:
            raise NotTriedError(
                f"{self.entity_name}: {len(shipment.parcels)} batches of this send were left when its time was over"
            )
        return deadline - now

    # Limits

    @property
    def _open_s(self) -> float:
        return min(sending.OPEN_S, self._surroundings.settings.send_timeout / 2)

    def _is_away(self, error: Exception) -> bool:
        """Else it is the caller's own."""
        return sending.is_away(error, self._surroundings.settings)

    def _learn_primary(self) -> None:
        primary = self._primary
        self._surroundings.limits.learn_primary(self.entity_name, primary.max_message_size, primary.max_batch_size)

    def _learn_backlog(self, inner: InnerT) -> None:
        self._surroundings.limits.learn_backlog(inner.max_message_size, inner.max_batch_size)

    def _wants_limits(self) -> bool:
        """Nobody has said yet how large a batch may be, and the primary can be asked."""
        surroundings = self._surroundings
        if self._primary.max_batch_size or surroundings.limits.knows(self.entity_name):
            return False
        with surroundings.heart.lock:
            return surroundings.heart.coordinator.state(self.entity_name) is EntityState.HEALTHY

    def _take_limits(self) -> None:
        primary = self._primary
        self._max_message_size_on_link, self._max_batch_size_on_link = self._surroundings.limits.for_batch(
            self.entity_name, primary.max_message_size, primary.max_batch_size
        )

    # Telling

    def _tell_parcel(self, queue: int, parcel: Part, error: Exception | None, began: float) -> None:
        if self._surroundings.heart.send_observers:
            self._tell_sent("backlog", queue, parcel.messages, error, began)

    def _tell_sent(
        self, route: Any, queue: int | None, messages: list[Any], error: Exception | None, began: float
    ) -> None:
        heart = self._surroundings.heart
        ms = (heart.clock() - began) * 1000.0
        for observer in heart.send_observers:
            guarded(observer.sent, self._entity, route, queue, messages, outcome_of(error), ms)


def _new_id() -> str:
    return uuid.uuid4().hex
