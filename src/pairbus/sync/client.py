"""The SDK's ServiceBusClient with `pair_namespace` brought back: unpaired it is the SDK's, paired it sends through an
outage (P1–P7, P23, P44).

This module joins the parts: the checks (`pairing/terms.py`), the backlog queues (`provisioning.py`), the heart, the
senders and receivers, the syphon. It decides nothing of what happens to a message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Self, Unpack

from azure.servicebus import ServiceBusClient as SdkClient
from azure.servicebus import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.paired.client import ClientHalf, PairingHalf, agreed, claimed, made
from pairbus.paired.heart import guarded
from pairbus.pairing import backlog, terms
from pairbus.pairing.errors import AlreadyPaired, PairingFailed
from pairbus.pairing.events import Event, PairingDegraded
from pairbus.pairing.observers import Observer
from pairbus.pairing.options import PairingOptions, SendAvailabilityPairedNamespaceOptions, refuse_unknown
from pairbus.pairing.provision import is_unavailable
from pairbus.sync import fork, provisioning
from pairbus.sync.heart import Heart
from pairbus.sync.inner import InnerSender
from pairbus.sync.receiver import PairedReceiver
from pairbus.sync.sender import PairedSender, close_links

_PAIRING: Final = threading.Lock()


class ServiceBusClient(ClientHalf[Heart, ServiceBusSender, ServiceBusReceiver], SdkClient):
    """A drop-in for `azure.servicebus.ServiceBusClient`."""

    _paired_sender = PairedSender
    _paired_receiver = PairedReceiver
    _pairing: Pairing | None = None

    def __enter__(self) -> Self:
        super().__enter__()  # for type checkers, it is the SDK's client that this returns
        return self

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
        **options: Unpack[PairingOptions],
    ) -> Self:
        """Both clients and their pairing in one call; closing the client closes everything that this made.

        `primary` and `secondary` are connection strings, or host names with a `credential`. `client_options` go to both
        SDK clients (`retry_total` …), `options` are those of `SendAvailabilityPairedNamespaceOptions`.
        `manage=False`: the backlog queues are ready-made, and the Manage right is not needed (P4).
        """
        refuse_unknown(options, terms.PAIRED_KEYWORDS)
        terms.check_access(primary, secondary, credential)
        secondary_ca_file = secondary_ca_file or ca_file
        to_close: list[Any] = []
        try:
            client: Self = made(cls, primary, credential, primary_ca_file or ca_file, client_options)
            to_close.append(client)
            partner = made(SdkClient, secondary, credential, secondary_ca_file, client_options)
            to_close.append(partner)
            manager = made(_manager(), secondary, credential, secondary_ca_file) if manage else None
            if manager is not None:
                to_close.append(manager)
            client.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, partner, **options), observers)
        except BaseException:
            for each in to_close:
                guarded(each.close)
            raise
        client._owned = tuple(each for each in (manager,) if each is not None)
        return client

    def pair_namespace(
        self, options: SendAvailabilityPairedNamespaceOptions, observers: tuple[Observer, ...] = ()
    ) -> None:
        """Pairs this client, the primary's, with the secondary that the options name (P1).

        Returns when everything is set up; raises, and leaves the client unpaired and the options free, when that fails
        (P3). The primary is not contacted. Senders and receivers made before stay as they are.
        """
        self._check_usable()
        partner = getattr(options, "messaging_factory", None)
        options = agreed(self, options)
        is_mine = False
        try:
            with _PAIRING:
                if self._is_pairing:
                    raise AlreadyPaired(
                        f"this client of {self.fully_qualified_namespace} is being paired just now, by another thread"
                    )
                self._is_pairing = is_mine = True
            with claimed(options, self):
                self._pairing = self._paired_by(options, observers)
        finally:
            if is_mine:
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

    def subscribe(self, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Calls `callback` with each event, in order, on whatever thread it comes up; it must not block. What it raises
        is logged. The returned function ends it."""
        return self._heard_by().subscribe(callback)

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> ServiceBusSender:
        return self._sender(super().get_queue_sender, queue_name, kwargs)

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> ServiceBusSender:
        return self._sender(super().get_topic_sender, topic_name, kwargs)

    def get_queue_receiver(self, queue_name: str, **kwargs: Any) -> ServiceBusReceiver:
        self._check_usable()
        return self._receiver(super().get_queue_receiver(queue_name, **kwargs), queue_name)

    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **kwargs: Any) -> ServiceBusReceiver:
        self._check_usable()
        made = super().get_subscription_receiver(topic_name, subscription_name, **kwargs)
        return self._receiver(made, f"{topic_name}/Subscriptions/{subscription_name}")

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


class Pairing(PairingHalf[Heart, ServiceBusSender]):
    _heart = Heart

    def set_up(self) -> None:
        self._stop = threading.Event()
        self._is_degraded = False
        if self.settings.enable_syphon:
            from pairbus.sync.syphon import check_engine

            check_engine(True, self.settings.syphon_engine)
        try:
            self._provide()
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

    def _provide(self) -> None:
        provision, manager = self._provision(), self.options.secondary_namespace_manager
        if manager is None:
            provisioning.look(provision, self._look)
        else:
            provisioning.manage(provision, manager, self.settings.send_timeout)
        self._warn(provision)
        if self._stop.is_set():
            return  # closed meanwhile
        if self.settings.enable_syphon:
            from pairbus.sync.syphon import SyphonHost

            self._host = self._hosted(SyphonHost, provision, self._list_queues)
            try:
                self._host.start()
            except BaseException:
                self._host.stop()
                self._host = None
                raise
            if self._stop.is_set():  # just now, by who could not see it yet
                self._host.stop()
                return
        self._completed(provision)

    async def _list_queues(self) -> list[str]:
        """For the syphon, on its loop."""
        from pairbus.syphon.daemon_thread import on_a_thread

        limits = provisioning.request_limits(self.settings.send_timeout)
        manager = self.options.secondary_namespace_manager
        return await on_a_thread(lambda: [queue.name for queue in manager.list_queues(**limits)])

    def _go_on(self) -> None:
        self._is_degraded = True
        threading.Thread(target=self._go_on_trying, name="pairbus-pairing", daemon=True).start()

    def _go_on_trying(self) -> None:
        while not self._stop.wait(self.settings.backlog_retry_interval):
            try:
                self._provide()
            except PairingFailed as error:
                self._still_not(error)
            else:
                self._is_degraded = False
                return

    def _look(self, index: int) -> None:
        inner = InnerSender(lambda: self._make_backlog_sender(index), backlog.path(self.primary_name, index))
        try:
            inner.open(self.settings.send_timeout / 2)
        finally:
            inner.close()

    def _open_pinger(self, entity: str) -> InnerSender:
        client = self.client
        return InnerSender(lambda: client._unlisted(SdkClient.get_queue_sender(client, entity)), entity)


def _manager() -> Any:
    return ServiceBusAdministrationClient
