"""The SDK's ServiceBusClient with `pair_namespace` brought back: unpaired it is the SDK's, paired it sends through an
outage (P1–P7, P23, P44).

This module joins the parts: the checks (`pairing/terms.py`), the backlog queues (`provisioning.py`), the heart, the
senders and receivers, the syphon. It decides nothing of what happens to a message.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from azure.servicebus import ServiceBusClient as SdkClient
from azure.servicebus import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.pairing import backlog, terms
from pairbus.pairing.coordinator import Coordinator
from pairbus.pairing.errors import AlreadyPaired, PairingError, PairingFailed
from pairbus.pairing.events import Event, PairingCompleted, PairingDegraded
from pairbus.pairing.observers import LedgerObserver, LoggingObserver, Observer
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, refuse_unknown
from pairbus.pairing.provision import Provision, is_unavailable
from pairbus.pairing.sending import Limits
from pairbus.pairing.states import EntityState
from pairbus.sync import fork, provisioning
from pairbus.sync.heart import Heart, Subscribers, guarded
from pairbus.sync.inner import InnerSender
from pairbus.sync.receiver import paired_receiver
from pairbus.sync.sender import PairedSender, Surroundings, close_links

_PAIRING: Final = threading.Lock()
_log: Final = logging.getLogger("pairbus.pairing")


class ServiceBusClient(SdkClient):
    """A drop-in for `azure.servicebus.ServiceBusClient`."""

    _pairing: Pairing | None = None
    _fault: BaseException | None = None
    _is_closed = False
    _is_pairing = False
    #: As the primary's or as the secondary's. Then it can't be used again once it was closed, unlike the SDK's.
    _is_in_pair = False
    _subscribers: Subscribers | None = None
    #: What else `paired` made, and what therefore closes with this one.
    _owned: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        pairing = self._pairing
        how = "not paired"
        if pairing is not None:
            how = f"paired with {pairing.secondary_name}, {pairing.heart.coordinator!r}"
        return f"<ServiceBusClient {self.fully_qualified_namespace}: {how}>"

    @classmethod
    def from_connection_string(cls, conn_str: str, **kwargs: Any) -> Self:
        return super().from_connection_string(conn_str, **kwargs)  # type: ignore[return-value]

    @classmethod
    def paired(
        cls,
        primary: str,
        secondary: str,
        *,
        credential: Any = None,
        ca_file: str | None = None,
        primary_ca_file: str | None = None,
        secondary_ca_file: str | None = None,
        manage: bool = True,
        client_options: Mapping[str, Any] | None = None,
        observers: tuple[Observer, ...] = (),
        **options: Any,
    ) -> Self:
        """Both clients and their pairing in one call; closing the client closes everything that this made.

        `primary` and `secondary` are connection strings, or host names with a `credential`. `client_options` go to both
        SDK clients (`retry_total` …), `options` are those of `SendAvailabilityPairedNamespaceOptions`.
        `manage=False`: the backlog queues are ready-made, and the Manage right is not needed (P4).
        """
        refuse_unknown(options, terms.PAIRED_KEYWORDS)
        terms.check_access(primary, secondary, credential)
        extra = dict(client_options or {})
        made: list[Any] = []
        try:
            client: Self = _client(cls, primary, credential, primary_ca_file or ca_file, extra)
            made.append(client)
            partner = _client(SdkClient, secondary, credential, secondary_ca_file or ca_file, extra)
            made.append(partner)
            manager = _manager(secondary, credential, secondary_ca_file or ca_file) if manage else None
            if manager is not None:
                made.append(manager)
            client.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, partner, **options), observers)
        except BaseException:
            for each in made:
                guarded(each.close)
            raise
        client._owned = tuple(each for each in (manager,) if each is not None)
        return client

    # Pairing

    def pair_namespace(
        self, options: SendAvailabilityPairedNamespaceOptions, observers: tuple[Observer, ...] = ()
    ) -> None:
        """Pairs this client, the primary's, with the secondary that the options name (P1).

        Returns when everything is set up; raises, and leaves the client unpaired and the options free, when that fails
        (P3). The primary is not contacted. Senders and receivers made before stay as they are.
        """
        self._check_usable()
        partner = getattr(options, "messaging_factory", None)
        me = _party(self)
        options = terms.check(me, _party(partner), options, _managed(options, me))
        with _PAIRING:
            if self._is_pairing:
                raise AlreadyPaired(f"this client of {me.namespace} is being paired just now, by another thread")
            self._is_pairing = True
        try:
            options.claim()
            try:
                self._pairing = self._paired_by(options, observers)
            except BaseException:
                options.release()
                raise
        finally:
            self._is_pairing = False
        self._is_in_pair = True
        if isinstance(partner, ServiceBusClient):
            partner._is_in_pair = True

    def _paired_by(self, options: SendAvailabilityPairedNamespaceOptions, observers: tuple[Observer, ...]) -> Pairing:
        pairing = Pairing(self, options, observers)
        try:
            pairing.set_up()
        except BaseException:
            pairing.stop()
            pairing.heart.close_observers()
            raise
        return pairing

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

    def subscribe(self, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Calls `callback` with each event, in order, on whatever thread it comes up; it must not block. What it raises
        is logged. The returned function ends it."""
        return self._heard_by().subscribe(callback)

    def force_failover(self, entity: str, hold: bool = False) -> None:
        """For drills: messages go to the backlog from now on. Pings bring the entity back, unless it is held: then
        `mark_healthy` does (P23)."""
        heart = self._paired().heart
        with heart.lock:
            heart.coordinator.force_failover(entity, heart.clock(), hold=hold)
        heart.attend()

    def mark_healthy(self, entity: str) -> None:
        heart = self._paired().heart
        with heart.lock:
            heart.coordinator.mark_healthy(entity, heart.clock())
        heart.attend()

    def _heard_by(self) -> Subscribers:
        # Made when first needed, before the pairing where someone wants to hear how that goes.
        if self._subscribers is None:
            self._subscribers = Subscribers()
        return self._subscribers

    def _paired(self) -> Pairing:
        if self._pairing is None:
            raise PairingError(
                f"the client of {self.fully_qualified_namespace} is not paired; call pair_namespace(options) first"
            )
        return self._pairing

    # What the SDK's client makes

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> ServiceBusSender:
        return self._sender(super().get_queue_sender, queue_name, kwargs)

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> ServiceBusSender:
        return self._sender(super().get_topic_sender, topic_name, kwargs)

    def _sender(self, make: Callable[..., ServiceBusSender], entity: str, kwargs: dict[str, Any]) -> ServiceBusSender:
        self._check_usable()
        made = make(entity, **kwargs)
        if self._pairing is None:
            return made
        named = {**kwargs, "client_identifier": made.client_identifier}
        return PairedSender.adopt(made, self._pairing.surroundings, lambda: self._unlisted(make(entity, **named)))

    def get_queue_receiver(self, queue_name: str, **kwargs: Any) -> ServiceBusReceiver:
        self._check_usable()
        return self._receiver(super().get_queue_receiver(queue_name, **kwargs), queue_name)

    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **kwargs: Any) -> ServiceBusReceiver:
        self._check_usable()
        made = super().get_subscription_receiver(topic_name, subscription_name, **kwargs)
        return self._receiver(made, f"{topic_name}/Subscriptions/{subscription_name}")

    def _receiver(self, made: ServiceBusReceiver, entity: str) -> ServiceBusReceiver:
        if self._pairing is None:
            return made
        halts, heart = self._pairing.halts, self._pairing.heart
        return paired_receiver(
            made,
            entity,
            on_busy=lambda: halts.busy(entity),
            halted_until=lambda: halts.halted_until(entity),
            check_client=self._check_usable,
            watchers=lambda: heart.receive_observers,
        )

    def _unlisted(self, sender: ServiceBusSender) -> ServiceBusSender:
        # Who made it closes it: the SDK's close() would wait for a connection that hangs.
        self._handlers.discard(sender)
        return sender

    def close(self) -> None:
        """Closes everything made from this client; when paired, ends pings, timers and the syphon, and closes the
        secondary's client too (P44)."""
        self._is_closed = True
        pairing = self._pairing
        if pairing is not None:
            pairing.stop()
            senders = [each for each in self._handlers if isinstance(each, PairedSender)]
            for sender in senders:
                sender.stop()
            close_links([link for sender in senders for link in sender.links])
        super().close()
        if pairing is not None:
            pairing.secondary.close()
            pairing.heart.close_observers()
        for each in self._owned:
            guarded(each.close)

    def _check_usable(self) -> None:
        if self._fault is not None:
            raise self._fault.with_traceback(None)  # it is raised again and again, and would grow
        if self._is_closed and self._is_in_pair:
            raise ValueError(f"The client of {self.fully_qualified_namespace} has been closed, and its pair with it.")


class Pairing:
    """What a client has while it is paired."""

    def __init__(
        self,
        client: ServiceBusClient,
        options: SendAvailabilityPairedNamespaceOptions,
        observers: tuple[Observer, ...] = (),
    ) -> None:
        settings = options.settings
        self.client = client
        self.options = options
        self.settings = settings
        self.secondary: SdkClient = options.messaging_factory
        self.primary_name = backlog.primary_name(client.fully_qualified_namespace, settings.primary_name)
        self.secondary_name = str(_party(self.secondary).namespace)
        watchers: list[Observer] = [LoggingObserver(self.primary_name), *observers]
        if settings.ledger is not None:
            watchers.append(LedgerObserver(settings.ledger, self.primary_name, self.secondary_name))
        self.heart = Heart(
            Coordinator(settings, choose=random.choice),
            self._open_pinger,
            ping_timeout_s=min(settings.ping_primary_interval, settings.send_timeout / 2),
            observers=tuple(watchers),
            subscribers=client._heard_by(),
        )
        self.surroundings = Surroundings(
            self.heart, settings, self._make_backlog_sender, client._check_usable, Limits()
        )
        self.halts = Halts(self.heart)
        self._host: Any = None
        self._stop = threading.Event()
        self._is_degraded = False

    def set_up(self) -> None:
        if self.settings.enable_syphon:
            from pairbus.sync.syphon import check_engine

            check_engine(True, self.settings.syphon_engine)
        try:
            self._provision()
        except PairingFailed as error:
            if self.settings.on_secondary_unavailable != "degrade" or not is_unavailable(error):
                raise
            self.heart.announce(PairingDegraded(error))
            self._go_on()
            fork.register(self)

    def forked(self) -> None:
        """In a child process: the thread that goes on trying is the parent's."""
        self._stop = threading.Event()
        if self._is_degraded:
            self._go_on()

    def stop(self) -> None:
        """Ends what runs by itself: the syphon first, timers, pings, the trying."""
        self._stop.set()
        if self._host is not None:
            guarded(self._host.stop)
        self.heart.close()

    def _provision(self) -> None:
        manager = self.options.secondary_namespace_manager
        provision = Provision(
            self.primary_name,
            self.secondary_name,
            self.settings.backlog_queue_count,
            now=time.monotonic(),
            give_up_after_s=self.settings.send_timeout,
            is_managed=manager is not None,
        )
        if manager is None:
            provisioning.look(provision, self._look)
        else:
            provisioning.manage(provision, manager, self.settings.send_timeout)
        for warning in provision.warnings:
            _log.warning("%s: %s", self.primary_name, warning)
        if self._stop.is_set():
            return  # closed meanwhile
        self._start_syphon(provision.queues)
        self.options.backlog_queue_count = len(provision.queues)
        with self.heart.lock:
            self.heart.coordinator.set_queues(provision.queues)
        self.heart.announce(*provision.left_out, PairingCompleted(len(provision.queues)))

    def _go_on(self) -> None:
        self._is_degraded = True
        threading.Thread(target=self._go_on_trying, name="pairbus-pairing", daemon=True).start()

    def _go_on_trying(self) -> None:
        while not self._stop.wait(self.settings.backlog_retry_interval):
            try:
                self._provision()
            except PairingFailed as error:
                _log.info("%s: still not paired: %s", self.primary_name, error)
            else:
                self._is_degraded = False
                return

    def _look(self, index: int) -> None:
        inner = InnerSender(lambda: self._make_backlog_sender(index), backlog.path(self.primary_name, index))
        try:
            inner.open(self.settings.send_timeout / 2)
        finally:
            inner.close()

    def _make_backlog_sender(self, index: int) -> ServiceBusSender:
        sender = self.secondary.get_queue_sender(backlog.path(self.primary_name, index))
        self.secondary._handlers.discard(sender)
        return sender

    def _open_pinger(self, entity: str) -> InnerSender:
        client = self.client
        return InnerSender(lambda: client._unlisted(SdkClient.get_queue_sender(client, entity)), entity)

    def _start_syphon(self, queues: tuple[int, ...]) -> None:
        if not self.settings.enable_syphon:
            return
        from pairbus.sync.syphon import SyphonHost

        self._host = SyphonHost(
            self.client,
            self.secondary,
            self.options,
            primary_name=self.primary_name,
            secondary_name=self.secondary_name,
            indexes=queues,
            announce=self.heart.announce,
            coordinator_access=self.halts,
        )
        self._host.start()


class Halts:
    """The throttle halts of the client's entities, for whoever talks to them besides its senders (P24)."""

    def __init__(self, heart: Heart) -> None:
        self._heart = heart

    def busy(self, entity: str) -> None:
        heart = self._heart
        with heart.lock:
            heart.coordinator.busy(entity, heart.clock())
        heart.attend()

    def halted_until(self, entity: str) -> float:
        return self._heart.coordinator.halted_until(entity)


def _party(client: Any) -> terms.Party:
    if not isinstance(client, SdkClient):
        return terms.Party(terms.Namespace("?", 0), None, False, is_async=True)
    return terms.Party(
        terms.namespace_at(client.fully_qualified_namespace, tls=client._config.use_tls),
        client._entity_name,
        getattr(client, "_pairing", None) is not None,
        is_async=False,
        endpoint=client._custom_endpoint_address,
    )


def _managed(options: Any, primary: terms.Party) -> terms.Namespace | None:
    address = getattr(getattr(options, "secondary_namespace_manager", None), "fully_qualified_namespace", None)
    if not isinstance(address, str):
        return None
    return terms.namespace_at(address, tls=primary.namespace.port == terms.PORT_TLS)


def _client(kind: Any, namespace: str, credential: Any, ca_file: str | None, options: dict[str, Any]) -> Any:
    if ca_file is not None:
        options = {"connection_verify": ca_file, **options}
    if terms.is_connection_string(namespace):
        return kind.from_connection_string(namespace, **options)
    return kind(namespace, credential, **options)


def _manager(namespace: str, credential: Any, ca_file: str | None) -> ServiceBusAdministrationClient:
    options = {} if ca_file is None else {"connection_verify": ca_file}
    if terms.is_connection_string(namespace):
        return ServiceBusAdministrationClient.from_connection_string(namespace, **options)
    return ServiceBusAdministrationClient(namespace, credential, **options)
