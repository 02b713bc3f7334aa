"""Adds `pair_namespace` to the SDK's ServiceBusClient, so that a paired client sends through an outage.

Without a pairing it behaves like the SDK's.

This module connects the parts: the checks (`pairing/clients.py`), the backlog queues (`provisioning.py`), the health
monitor, the senders and receivers, the syphon. It does not decide what happens to a message.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Self, Unpack

from azure.servicebus.aio import ServiceBusClient as SdkClient
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender

from pairbus.aio import provisioning
from pairbus.aio.concurrency import RepeatedAttempt, administration_client, closes_session_with, run_safely
from pairbus.aio.guarded_sender import GuardedSender
from pairbus.aio.health_monitor import HealthMonitor
from pairbus.aio.receiver import PairedReceiver
from pairbus.aio.sender import PairedSender, SenderContext, close_senders, dropped_links
from pairbus.aio.warm_link import OPENINGS_AT_ONCE_MAX, WarmLink
from pairbus.pairing import pair_validation, sdk
from pairbus.pairing.backlog import backlog_queues
from pairbus.pairing.backlog.provision import Provision, is_unavailable
from pairbus.pairing.clients import claimed, make_client, namespace_of, validated_options
from pairbus.pairing.control_file import ControlFileReader
from pairbus.pairing.decisions import Decision, DecisionLog
from pairbus.pairing.errors import AlreadyPaired, PairingError, PairingFailed
from pairbus.pairing.events import Event, PairingCompleted, PairingDegraded
from pairbus.pairing.health_monitor import Subscribers
from pairbus.pairing.observers import LedgerObserver, LoggingObserver, Observer
from pairbus.pairing.options import PairingOptions, SendAvailabilityPairedNamespaceOptions, refuse_unknown
from pairbus.pairing.pending_send import Limits
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.ping import ping_timeout_s
from pairbus.pairing.routing.states import EntityState

_log: Final = logging.getLogger("pairbus.pairing")
_PAIRING: Final = threading.Lock()


class ServiceBusClient(SdkClient):
    """A drop-in for `azure.servicebus.aio.ServiceBusClient`.

    Private parts of the SDK's client that it uses: _handlers, those that it made and closes.
    """

    _pairing: Pairing | None = None
    _fault: BaseException | None = None
    _is_closed = False
    _is_pairing = False
    #: Whether it is a pair's primary or secondary client. Then it can't be used again once it is closed, unlike the
    #: SDK's.
    _is_in_pair = False
    _subscribers: Subscribers | None = None
    #: Other clients that `paired` made, which therefore close with this one.
    _owned: tuple[Any, ...] = ()
    # the SDK's
    _handlers: Any

    async def __aenter__(self) -> Self:
        await super().__aenter__()  # for type checkers, it is the SDK's client that this returns
        return self

    def __repr__(self) -> str:
        pairing = self._pairing
        how = "not paired"
        if pairing is not None:
            how = f"paired with {pairing.secondary_name}, {pairing.monitor.coordinator!r}"
        return f"<ServiceBusClient {self.fully_qualified_namespace}: {how}>"

    @classmethod
    def from_connection_string(cls, conn_str: str, **kwargs: Any) -> Self:
        return super().from_connection_string(conn_str, **kwargs)  # type: ignore[return-value]

    @classmethod
    async def paired(
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
        **options: Unpack[PairingOptions],
    ) -> Self:
        """Create both clients and pair them; closing the returned client closes everything that this created.

        `primary` and `secondary` are connection strings, or host names with a `credential`. `client_options` go to both
        SDK clients (`retry_total` …), `options` are those of `SendAvailabilityPairedNamespaceOptions`.
        `manage=False`: the backlog queues are ready-made, and the Manage right is not needed.
        """
        refuse_unknown(options, pair_validation.PAIRED_KEYWORDS)
        pair_validation.check_access(primary, secondary, credential)
        secondary_ca_file = secondary_ca_file or ca_file
        to_close: list[Any] = []
        try:
            client: Self = make_client(cls, primary, credential, primary_ca_file or ca_file, client_options)
            to_close.append(client)
            partner = make_client(SdkClient, secondary, credential, secondary_ca_file, client_options)
            to_close.append(partner)
            manager = make_client(administration_client(), secondary, credential, secondary_ca_file) if manage else None
            if manager is not None:
                to_close.append(manager)
                closes_session_with(client, manager)
            await client.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, partner, **options), observers)
        except BaseException:
            for each in to_close:
                await run_safely(each.close)
            raise
        client._owned = tuple(each for each in (manager,) if each is not None)
        return client

    async def pair_namespace(
        self, options: SendAvailabilityPairedNamespaceOptions, observers: tuple[Observer, ...] = ()
    ) -> None:
        """Pairs this client, the primary's, with the secondary that the options name.

        Returns when everything is set up; raises, and leaves the client unpaired and the options free, when that fails.
        The primary is not contacted. Senders and receivers made before stay as they are.
        """
        self._check_usable()
        partner = getattr(options, "messaging_factory", None)
        options = validated_options(self, options)
        is_mine = False
        try:
            with _PAIRING:
                if self._is_pairing:
                    raise AlreadyPaired(
                        f"this client of {self.fully_qualified_namespace} is being paired just now, by another task"
                    )
                self._is_pairing = is_mine = True
            with claimed(options, self):
                await self._paired_by(options, observers)
        finally:
            if is_mine:
                self._is_pairing = False
        self._is_in_pair = True
        if isinstance(partner, ServiceBusClient):
            partner._is_in_pair = True

    async def _paired_by(
        self, options: SendAvailabilityPairedNamespaceOptions, observers: tuple[Observer, ...]
    ) -> None:
        pairing = Pairing(self, options, observers)
        try:
            await pairing.set_up()
            self._pairing = pairing  # first: who closes the client says so, and then looks for the pairing
            if self._is_closed:
                raise PairingFailed(
                    f"the client of {self.fully_qualified_namespace} was closed while it was being paired"
                )
        except BaseException:
            self._pairing = None
            await pairing.stop()
            pairing.monitor.close_observers()
            raise

    # The pairing

    @property
    def is_paired(self) -> bool:
        return self._pairing is not None

    @property
    def primary_name(self) -> str:
        """Return the name that the paths of the backlog queues begin with."""
        return self._paired().primary_name

    def subscribe(self, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Calls `callback` with each event, in order, on the loop; it may be a coroutine function.

        Its exceptions are logged. There is no event for diverted messages that it sends itself. The returned function
        ends the subscription."""
        return self._heard_by().subscribe(callback)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Adds an observer; the returned function removes it."""
        return self._paired().monitor.observe(observer)

    def state(self, entity: str) -> EntityState:
        return self._paired().monitor.coordinator.state(entity)

    def states(self) -> dict[str, EntityState]:
        """Return the state of every entity that this client has made a sender for."""
        monitor = self._paired().monitor
        with monitor.lock:
            return monitor.coordinator.states()

    def explain(self, entity: str) -> list[Decision]:
        """Return the last decisions about this entity in words, oldest first: why it failed over, the results of pings,
        what operators and the control file said, and which rule sent messages to the backlog."""
        return self._paired().decisions.explain(entity)

    def force_failover(self, entity: str, hold: bool = False) -> None:
        """Send the messages of this entity to the backlog from now on, for a drill. Pings bring the entity back, unless
        it is held: then `mark_healthy` does. Raises PinnedEntityError where the control file pins the entity."""
        self._tell_coordinator(lambda coordinator, now: coordinator.force_failover(entity, now, hold=hold))

    def mark_healthy(self, entity: str) -> None:
        """Send the messages of this entity to the primary again, at once, whatever pings say. Raises PinnedEntityError
        where the control file pins the entity."""
        self._tell_coordinator(lambda coordinator, now: coordinator.mark_healthy(entity, now))

    def _tell_coordinator(self, tell: Callable[[Coordinator, float], None]) -> None:
        monitor = self._paired().monitor
        if monitor.check_loop is not None:
            monitor.check_loop()
        with monitor.lock:
            tell(monitor.coordinator, monitor.clock())
        monitor.attend()

    def _heard_by(self) -> Subscribers:
        # Created when first needed, which is before the pairing if someone wants to hear how that goes.
        if self._subscribers is None:
            self._subscribers = Subscribers()
        return self._subscribers

    def _paired(self) -> Pairing:
        if self._pairing is None:
            raise PairingError(
                f"the client of {self.fully_qualified_namespace} is not paired; call pair_namespace(options) first"
            )
        return self._pairing

    def _check_usable(self) -> None:
        if self._pairing is not None and self._pairing.monitor.check_loop is not None:
            self._pairing.monitor.check_loop()
        if self._fault is not None:
            raise self._fault.with_traceback(None)  # it is raised again and again, and would grow
        if self._is_closed and self._is_in_pair:
            raise ValueError(f"The client of {self.fully_qualified_namespace} has been closed, and its pair with it.")

    # Senders and receivers

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> ServiceBusSender:
        return self._sender(super().get_queue_sender, queue_name, kwargs)

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> ServiceBusSender:
        return self._sender(super().get_topic_sender, topic_name, kwargs)

    def get_queue_receiver(self, queue_name: str, **kwargs: Any) -> ServiceBusReceiver:
        self._check_usable()
        return self._receiver(super().get_queue_receiver(queue_name, **kwargs), queue_name)

    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **kwargs: Any) -> ServiceBusReceiver:
        self._check_usable()
        receiver = super().get_subscription_receiver(topic_name, subscription_name, **kwargs)
        return self._receiver(receiver, f"{topic_name}/Subscriptions/{subscription_name}")

    def _sender(self, make: Callable[..., ServiceBusSender], entity: str, kwargs: dict[str, Any]) -> ServiceBusSender:
        self._check_usable()
        sender = make(entity, **kwargs)
        if self._pairing is None:
            return sender
        named = {**kwargs, "client_identifier": sender.client_identifier}
        return PairedSender.adopt(sender, self._pairing.context, lambda: self._unlisted(make(entity, **named)))

    def _receiver(self, receiver: ServiceBusReceiver, entity: str) -> ServiceBusReceiver:
        if self._pairing is None:
            return receiver
        halts, monitor = self._pairing.halts, self._pairing.monitor
        return PairedReceiver.adopt(
            receiver,
            entity,
            on_busy=lambda: halts.busy(entity),
            halted_until=lambda: halts.halted_until(entity),
            check_client=self._check_usable,
            watchers=lambda: monitor.receive_observers,
        )

    def _unlisted(self, sender: ServiceBusSender) -> ServiceBusSender:
        # Its creator closes it: the SDK's close() would wait for a connection that hangs.
        self._handlers.discard(sender)
        return sender

    def _made(self) -> list[Any]:
        """Return the senders and receivers that are in use."""
        return [each for found in tuple(self._handlers.data) if (each := found()) is not None]

    def _paired_senders(self) -> list[PairedSender]:
        return [each for each in self._made() if isinstance(each, PairedSender)]

    async def close(self) -> None:
        """Closes everything made from this client; when paired, ends pings, timers and the syphon, and closes the
        secondary's client too."""
        self._is_closed = True
        pairing = self._pairing
        if pairing is not None:
            await pairing.stop()
            # The SDK's own loop fails where another call closes the client, or makes a sender, meanwhile.
            await close_senders(self._paired_senders(), dropped_links(pairing.context))
            for each in self._made():
                await run_safely(each.close)
                self._handlers.discard(each)
        await super().close()
        if pairing is not None:
            await pairing.secondary.close()
            pairing.monitor.close_observers()
        for each in self._owned:
            await run_safely(each.close)


class Pairing:
    """Holds a client's parts while it is paired: the health monitor, the senders' context, the syphon."""

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
        self.secondary: Any = options.messaging_factory
        self.primary_name = backlog_queues.primary_name(client.fully_qualified_namespace, settings.primary_name)
        self.secondary_name = str(namespace_of(self.secondary))
        self.decisions = DecisionLog()
        watchers: list[Observer] = [LoggingObserver(self.primary_name), self.decisions, *observers]
        if settings.ledger is not None:
            watchers.append(LedgerObserver(settings.ledger, self.primary_name, self.secondary_name))
        self.monitor = HealthMonitor(
            Coordinator(settings, choose=random.choice, draw=random.random, retries=sdk.retries_of(client)),
            self._open_pinger,
            ping_timeout_s=ping_timeout_s(settings.ping_primary_interval, settings.send_timeout),
            observers=tuple(watchers),
            subscribers=client._heard_by(),
            control_file=None if settings.control_file is None else ControlFileReader(settings.control_file),
            open_links=self._open_links,
        )
        limits = Limits()
        self._warm = WarmLink(self.monitor, self._make_backlog_sender, limits) if settings.warm_backlog else None
        self.context = SenderContext(
            client, self.monitor, settings, self._make_backlog_sender, limits, self._warm, dropped=deque()
        )
        self.halts = Halts(self.monitor)
        self._host: Any = None
        self._repeated: RepeatedAttempt | None = None
        # Links that are being tried: where the attempt is not ended, as on threads, closing ends them.
        self._looking: set[GuardedSender] = set()
        self._is_stopped = False

    async def set_up(self) -> None:
        await self.monitor.watch_control_file()
        if self.settings.enable_syphon:
            from pairbus.aio.syphon import check_engine

            check_engine(self.settings.syphon_engine)
        try:
            await self._provide()
        except PairingFailed as error:
            if self.settings.on_secondary_unavailable != "degrade" or not is_unavailable(error):
                raise
            self.monitor.announce(PairingDegraded(error))
            self._repeated = RepeatedAttempt(self._try_again, self.settings.backlog_retry_interval, "pairbus-pairing")

    async def stop(self) -> None:
        """End the background work: repeated attempts to pair, the syphon, timers and pings."""
        self._is_stopped = True
        if self._repeated is not None:
            await self._repeated.stop()
        for each in tuple(self._looking):
            await each.close(0.0)
        if self._host is not None:
            await run_safely(self._host.stop)
        if self._warm is not None:
            await run_safely(self._warm.close)
        await self.monitor.close()

    async def _try_again(self) -> bool:
        if self._is_stopped:  # before this attempt was known to `stop`
            return True
        try:
            await self._provide()
        except PairingFailed as error:
            _log.info("%s: still not paired: %s", self.primary_name, error)
            return False
        except Exception:
            if not self._is_stopped:  # else it met what `stop` had closed
                raise
        return True

    async def _provide(self) -> None:
        manager = self.options.secondary_namespace_manager
        provision = Provision(
            self.primary_name,
            self.secondary_name,
            self.settings.backlog_queue_count,
            give_up_after_s=self.settings.send_timeout,
            is_managed=manager is not None,
        )
        if manager is None:
            await provisioning.look(provision, self._look)
        else:
            await provisioning.manage(provision, manager, self.settings.send_timeout)
        for warning in provision.warnings:
            _log.warning("%s: %s", self.primary_name, warning)
        if self.settings.enable_syphon and not self._is_stopped:
            await self._start_syphon(provision)
        if self._is_stopped:  # meanwhile, by a caller who could not see what runs here
            if self._host is not None:
                await self._host.stop()
            return
        self.options.found(len(provision.queues))
        with self.monitor.lock:
            self.monitor.coordinator.set_queues(provision.queues)
        self.monitor.announce(*provision.left_out, PairingCompleted(len(provision.queues)))
        if self._warm is not None:
            self._warm.start()

    async def _start_syphon(self, provision: Provision) -> None:
        from pairbus.aio.engine_loop import queue_names
        from pairbus.aio.syphon import SyphonHost

        manager, limits = (
            self.options.secondary_namespace_manager,
            provisioning.request_limits(self.settings.send_timeout),
        )
        self._host = SyphonHost(
            self.client,
            self.secondary,
            self.options,
            primary_name=self.primary_name,
            secondary_name=self.secondary_name,
            indexes=provision.to_read,
            list_queues=(lambda: queue_names(manager, limits)) if provision.is_managed else None,
            announce=self.monitor.announce,
            coordinator_access=self.halts,
        )
        try:
            await self._host.start()
        except BaseException:
            await self._host.stop()
            self._host = None
            raise

    async def _look(self, index: int) -> None:
        sender = GuardedSender(lambda: self._make_backlog_sender(index), backlog_queues.path(self.primary_name, index))
        self._looking.add(sender)
        try:
            if not self._is_stopped:  # else nobody would close it
                await sender.open(self.settings.send_timeout / 2)
        finally:
            self._looking.discard(sender)
            await sender.close()

    def _make_backlog_sender(self, index: int) -> ServiceBusSender:
        sender: ServiceBusSender = self.secondary.get_queue_sender(backlog_queues.path(self.primary_name, index))
        self.secondary._handlers.discard(sender)
        return sender

    def _open_pinger(self, entity: str) -> GuardedSender:
        client = self.client
        return GuardedSender(
            lambda: client._unlisted(SdkClient.get_queue_sender(client, entity)), entity, self.monitor.link_opened
        )

    async def _open_links(self, entity: str) -> None:
        """Open the links of this entity's senders again, a few at a time."""
        used = [each for each in self.client._paired_senders() if each.is_used]
        senders = [each for each in used if each.entity_name.lower() == entity.lower()]
        while senders:
            some, senders = senders[:OPENINGS_AT_ONCE_MAX], senders[OPENINGS_AT_ONCE_MAX:]
            for each in some:
                each.open_meanwhile()
            for each in some:
                await each.await_opening()


class Halts:
    """Lets receivers and the syphon read and report that an entity is halted because its server is busy."""

    def __init__(self, monitor: HealthMonitor) -> None:
        self._monitor = monitor

    def busy(self, entity: str) -> None:
        monitor = self._monitor
        with monitor.lock:
            monitor.coordinator.busy(entity, monitor.clock())
        monitor.attend()

    def halted_until(self, entity: str) -> float:
        return self._monitor.coordinator.halted_until(entity)
