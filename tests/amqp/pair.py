"""Two engines joined by a function call: what one writes the other reads, with a clock that the test moves."""

from __future__ import annotations

from typing import Any, TypeVar

from pairbus.amqp.connection import Connection
from pairbus.amqp.events import Event, LinkAttached
from pairbus.amqp.limits import Limits
from pairbus.amqp.link import Link, ReceiverLink, SenderLink
from pairbus.amqp.performative_types import Source, Target
from pairbus.amqp.sasl import SaslClient, SaslServer

E = TypeVar("E")


class ConnectionPair:
    def __init__(
        self,
        *,
        client: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
        auto_accept: bool = True,
        step: int | None = None,
    ) -> None:
        self.now = 1000.0
        self.step = step
        self.auto_accept = auto_accept
        self.client = Connection(
            server=False, **{"container_id": "client", "hostname": "here", "sasl": SaslClient(), **(client or {})}
        )
        self.server = Connection(server=True, **{"container_id": "server", "sasl": SaslServer(), **(server or {})})
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []

    def pump(self) -> None:
        """Carries bytes until nobody has anything to say; `step` bytes at a time where given."""
        while True:
            to_server = self.client.output()
            to_client = self.server.output()
            if not to_server and not to_client:
                return
            for data, peer, events in (
                (to_server, self.server, self.server_events),
                (to_client, self.client, self.client_events),
            ):
                size = self.step or max(1, len(data))
                for start in range(0, len(data), size):
                    new = peer.receive(data[start : start + size], self.now)
                    events.extend(new)
                    if peer is self.server and self.auto_accept:
                        for event in new:
                            if isinstance(event, LinkAttached):
                                event.link.accept()

    def take(self, side: str, kind: type[E]) -> list[E]:
        events: list[Any] = self.client_events if side == "client" else self.server_events
        found = [event for event in events if isinstance(event, kind)]
        events[:] = [event for event in events if not isinstance(event, kind)]
        return found

    def sender(self, name: str = "s", credit: int = 0, **options: Any) -> tuple[SenderLink, ReceiverLink]:
        """The client sends: its link, and the server's end of it, which grants the credit."""
        sender, receiver = self._attach(name, False, Source(address="here"), Target(address="queue"), **options)
        assert isinstance(sender, SenderLink) and isinstance(receiver, ReceiverLink)
        self._grant(receiver, credit)
        return sender, receiver

    def receiver(self, name: str = "r", credit: int = 0, **options: Any) -> tuple[ReceiverLink, SenderLink]:
        receiver, sender = self._attach(name, True, Source(address="queue"), Target(address="here"), **options)
        assert isinstance(receiver, ReceiverLink) and isinstance(sender, SenderLink)
        self._grant(receiver, credit)
        return receiver, sender

    def _attach(self, *arguments: Any, **options: Any) -> tuple[Link, Link]:
        link = self.client.begin().attach(*arguments, **options)
        self.pump()
        (attached,) = self.take("server", LinkAttached)
        return link, attached.link

    def _grant(self, receiver: ReceiverLink, credit: int) -> None:
        if credit:
            receiver.flow(credit)
            self.pump()


SMALL = Limits(frame_bytes_max=512, channel_max=3, handle_max=3, links_max=5, message_bytes_max=4096, incoming_window=8)
