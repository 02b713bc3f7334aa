"""The half of a paired client that waits for nothing: what it says of its pairing, how its senders and receivers are
made, and what a pairing consists of (P1–P8, P24)."""

from __future__ import annotations

import inspect
import logging
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Generic, TypeVar

from pairbus.paired.heart import HeartHalf, Subscribers
from pairbus.paired.sender import Surroundings
from pairbus.pairing import backlog, terms
from pairbus.pairing.coordinator import Coordinator
from pairbus.pairing.errors import PairingError
from pairbus.pairing.events import PairingCompleted
from pairbus.pairing.observers import LedgerObserver, LoggingObserver, Observer
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.provision import Provision
from pairbus.pairing.sending import Limits
from pairbus.pairing.states import EntityState

_log: Final = logging.getLogger("pairbus.pairing")
#: Secondary clients, ours and the SDK's own, with the primary that they serve: one each, for good (P6).
_SERVING: Final[weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()
_CLAIMING: Final = threading.Lock()
HeartT = TypeVar("HeartT", bound=HeartHalf[Any])
SenderT = TypeVar("SenderT")
ReceiverT = TypeVar("ReceiverT")


class ClientHalf(Generic[HeartT, SenderT, ReceiverT]):
    """Private parts of the SDK's client that it uses: _handlers, those that it made and closes."""

    #: What adopts the SDK's senders and receivers.
    _paired_sender: ClassVar[Any]
    _paired_receiver: ClassVar[Any]
    _pairing: PairingHalf[HeartT, SenderT] | None = None
    _fault: BaseException | None = None
    _is_closed = False
    _is_pairing = False
    #: As the primary's or as the secondary's. Then it can't be used again once it was closed, unlike the SDK's.
    _is_in_pair = False
    _subscribers: Subscribers | None = None
    #: What else `paired` made, and what therefore closes with this one.
    _owned: tuple[Any, ...] = ()
    # the SDK's
    fully_qualified_namespace: str
    _handlers: Any

    def __repr__(self) -> str:
        pairing = self._pairing
        how = "not paired"
        if pairing is not None:
            how = f"paired with {pairing.secondary_name}, {pairing.heart.coordinator!r}"
        return f"<ServiceBusClient {self.fully_qualified_namespace}: {how}>"

    @property
    def is_paired(self) -> bool:
        return self._pairing is not None

    @property
    def primary_name(self) -> str:
        """The first part of the backlog queues' names (P8)."""
        return self._paired().primary_name

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Adds an observer; the returned function takes it off again."""
        return self._paired().heart.observe(observer)

    def state(self, entity: str) -> EntityState:
        return self._paired().heart.coordinator.state(entity)

    def states(self) -> dict[str, EntityState]:
        """Of every entity that this client has made a sender for."""
        heart = self._paired().heart
        with heart.lock:
            return heart.coordinator.states()

    def force_failover(self, entity: str, hold: bool = False) -> None:
        """For drills: messages go to the backlog from now on. Pings bring the entity back, unless it is held: then
        `mark_healthy` does (P23)."""
        heart = self._paired().heart
        heart.check_place()
        with heart.lock:
            heart.coordinator.force_failover(entity, heart.clock(), hold=hold)
        heart.attend()

    def mark_healthy(self, entity: str) -> None:
        heart = self._paired().heart
        heart.check_place()
        with heart.lock:
            heart.coordinator.mark_healthy(entity, heart.clock())
        heart.attend()

    def _heard_by(self) -> Subscribers:
        # Made when first needed, before the pairing where someone wants to hear how that goes.
        if self._subscribers is None:
            self._subscribers = Subscribers()
        return self._subscribers

    def _paired(self) -> PairingHalf[HeartT, SenderT]:
        if self._pairing is None:
            raise PairingError(
                f"the client of {self.fully_qualified_namespace} is not paired; call pair_namespace(options) first"
            )
        return self._pairing

    def _check_usable(self) -> None:
        if self._pairing is not None:
            self._pairing.heart.check_place()
        if self._fault is not None:
            raise self._fault.with_traceback(None)  # it is raised again and again, and would grow
        if self._is_closed and self._is_in_pair:
            raise ValueError(f"The client of {self.fully_qualified_namespace} has been closed, and its pair with it.")

    # What the SDK's client makes

    def _sender(self, make: Callable[..., SenderT], entity: str, kwargs: dict[str, Any]) -> SenderT:
        self._check_usable()
        made: Any = make(entity, **kwargs)
        if self._pairing is not None:
            named = {**kwargs, "client_identifier": made.client_identifier}
            made = self._paired_sender.adopt(
                made, self._pairing.surroundings, lambda: self._unlisted(make(entity, **named))
            )
        sender: SenderT = made
        return sender

    def _receiver(self, made: ReceiverT, entity: str) -> ReceiverT:
        if self._pairing is None:
            return made
        halts, heart = self._pairing.halts, self._pairing.heart
        receiver: ReceiverT = self._paired_receiver.adopt(
            made,
            entity,
            on_busy=lambda: halts.busy(entity),
            halted_until=lambda: halts.halted_until(entity),
            check_client=self._check_usable,
            watchers=lambda: heart.receive_observers,
        )
        return receiver

    def _unlisted(self, sender: SenderT) -> SenderT:
        # Who made it closes it: the SDK's close() would wait for a connection that hangs.
        self._handlers.discard(sender)
        return sender


class PairingHalf(Generic[HeartT, SenderT]):
    """What a client has while it is paired."""

    #: What makes its heart.
    _heart: ClassVar[Any]

    def __init__(
        self, client: Any, options: SendAvailabilityPairedNamespaceOptions, observers: tuple[Observer, ...] = ()
    ) -> None:
        settings = options.settings
        self.client = client
        self.options = options
        self.settings = settings
        self.secondary: Any = options.messaging_factory
        self.primary_name = backlog.primary_name(client.fully_qualified_namespace, settings.primary_name)
        self.secondary_name = str(namespace_of(self.secondary))
        watchers: list[Observer] = [LoggingObserver(self.primary_name), *observers]
        if settings.ledger is not None:
            watchers.append(LedgerObserver(settings.ledger, self.primary_name, self.secondary_name))
        self.heart: HeartT = self._heart(
            Coordinator(settings, choose=random.choice),
            self._open_pinger,
            ping_timeout_s=min(settings.ping_primary_interval, settings.send_timeout / 2),
            observers=tuple(watchers),
            subscribers=client._heard_by(),
        )
        self.surroundings: Surroundings[HeartT, SenderT] = Surroundings(
            self.heart, settings, self._make_backlog_sender, client._check_usable, Limits()
        )
        self.halts = Halts(self.heart)
        self._host: Any = None

    def _provision(self) -> Provision:
        return Provision(
            self.primary_name,
            self.secondary_name,
            self.settings.backlog_queue_count,
            now=time.monotonic(),
            give_up_after_s=self.settings.send_timeout,
            is_managed=self.options.secondary_namespace_manager is not None,
        )

    def _warn(self, provision: Provision) -> None:
        for warning in provision.warnings:
            _log.warning("%s: %s", self.primary_name, warning)

    def _completed(self, provision: Provision) -> None:
        self.options.found(len(provision.queues))
        with self.heart.lock:
            self.heart.coordinator.set_queues(provision.queues)
        self.heart.announce(*provision.left_out, PairingCompleted(len(provision.queues)))

    def _still_not(self, error: Exception) -> None:
        _log.info("%s: still not paired: %s", self.primary_name, error)

    def _make_backlog_sender(self, index: int) -> SenderT:
        sender: SenderT = self.secondary.get_queue_sender(backlog.path(self.primary_name, index))
        self.secondary._handlers.discard(sender)
        return sender

    def _hosted(
        self, make: Callable[..., Any], provision: Provision, list_queues: Callable[[], Awaitable[Sequence[str]]]
    ) -> Any:
        """The syphon's host."""
        return make(
            self.client,
            self.secondary,
            self.options,
            primary_name=self.primary_name,
            secondary_name=self.secondary_name,
            indexes=provision.to_read,
            list_queues=list_queues if provision.is_managed else None,
            announce=self.heart.announce,
            coordinator_access=self.halts,
        )

    def _open_pinger(self, entity: str) -> Any:
        """The other half's."""
        raise NotImplementedError


class Halts:
    """The throttle halts of the client's entities, for whoever talks to them besides its senders (P24)."""

    def __init__(self, heart: HeartHalf[Any]) -> None:
        self._heart = heart

    def busy(self, entity: str) -> None:
        heart = self._heart
        with heart.lock:
            heart.coordinator.busy(entity, heart.clock())
        heart.attend()

    def halted_until(self, entity: str) -> float:
        return self._heart.coordinator.halted_until(entity)


def namespace_of(client: Any) -> terms.Namespace:
    return terms.namespace_at(client.fully_qualified_namespace, tls=client._config.use_tls)


def agreed(client: Any, options: Any) -> SendAvailabilityPairedNamespaceOptions:
    """The options, if the two clients and the administration client may be paired with each other (P6)."""
    me, manager = party(client), getattr(options, "secondary_namespace_manager", None)
    # As the SDK's differ: one's `create_queue` is a coroutine function.
    manager_is_async = None if manager is None else inspect.iscoroutinefunction(manager.create_queue)
    other = party(getattr(options, "messaging_factory", None))
    return terms.check(me, other, options, managed(options, me), manager_is_async)


def party(client: Any) -> terms.Party:
    if not hasattr(client, "_custom_endpoint_address"):
        return terms.Party(terms.Namespace("?", 0), None, False, is_async=None)
    return terms.Party(
        namespace_of(client),
        client._entity_name,
        getattr(client, "_pairing", None) is not None,
        is_async=hasattr(client, "__aenter__"),
        endpoint=client._custom_endpoint_address,
        is_closed=getattr(client, "_is_closed", False),
        serves=_SERVING.get(client),
    )


@contextmanager
def claimed(options: SendAvailabilityPairedNamespaceOptions, primary: Any) -> Iterator[None]:
    """Takes the options and the secondary client for one pairing; where that fails they can be used again (P3, P6)."""
    secondary = options.messaging_factory
    options.claim()
    try:
        with _CLAIMING:
            terms.check_secondary(party(secondary))  # again: another thread may have been faster
            _SERVING[secondary] = str(namespace_of(primary))
        try:
            yield
        except BaseException:
            _SERVING.pop(secondary, None)
            raise
    except BaseException:
        options.release()
        raise


def managed(options: Any, primary: terms.Party) -> terms.Namespace | None:
    address = getattr(getattr(options, "secondary_namespace_manager", None), "fully_qualified_namespace", None)
    if not isinstance(address, str):
        return None
    return terms.namespace_at(address, tls=primary.namespace.port == terms.PORT_TLS)


def made(
    kind: Any, namespace: str, credential: Any, ca_file: str | None, options: Mapping[str, Any] | None = None
) -> Any:
    """A client of the SDK's, or one like it, by connection string or by host name and credential."""
    found = dict(options or {})
    if ca_file is not None:
        found = {"connection_verify": ca_file, **found}
    if terms.is_connection_string(namespace):
        return kind.from_connection_string(namespace, **found)
    return kind(namespace, credential, **found)
