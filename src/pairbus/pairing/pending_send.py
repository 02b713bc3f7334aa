"""One call of `send_messages`, apart from its I/O: the messages in it, made ready once and sent as often as it takes.

`pack` does before the first attempt what must be done before it: ids (P20), aliases (P29). A `PendingSend` then knows
what to hand to the primary's sender, and, once it is to be diverted, the parcels for the backlog (P26, P30). Decided
here: the order of these checks, and what is left to send after half of it was confirmed. How a message is rewritten is
`diversion.py`, what fits `sizes.py`, where it goes `dispatch.py`.

Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError, ServiceBusServerBusyError

from pairbus.pairing.backlog import diversion, sizes
from pairbus.pairing.errors import NotTriedError, ScheduleDuringFailoverError, SentSoFar
from pairbus.pairing.events import SizeWarning
from pairbus.pairing.options import Settings
from pairbus.pairing.routing import budget
from pairbus.pairing.routing.dispatch import SENT as SENT
from pairbus.pairing.routing.verdicts import DEFAULT, Verdict

#: How long entering a sender may wait for a primary that may be away (P3).
OPEN_S: Final = 5.0
STANDARD_MESSAGE: Final = 256 * 1024
STANDARD_BATCH: Final = 256 * 1024
BATCH_ROOM: Final = 1024
#: The service takes no more than 64 KB of properties; and the aliases.
PROPERTIES_BYTES_MAX: Final = 66_000


class Limits:
    """What the links have said of their limits: bytes of a message, bytes of a batch."""

    def __init__(self) -> None:
        self._primary: dict[str, tuple[int, int]] = {}
        self._backlog = (0, 0)

    def learn_primary(self, entity: str, message: int, batch: int) -> None:
        self._primary[entity] = (message, batch)

    def learn_backlog(self, message: int, batch: int) -> None:
        if message:
            self._backlog = (message, batch)

    def knows(self, entity: str) -> bool:
        return entity in self._primary

    def of_backlog(self, primary_message: int) -> int:
        """Bytes of a message that the backlog takes, as far as known: before its first use, what the primary takes."""
        return self._backlog[0] or primary_message

    @property
    def backlog(self) -> tuple[int, int]:
        return self._backlog if self._backlog[0] else (STANDARD_MESSAGE, STANDARD_BATCH)

    def of_batch(self, entity: str) -> int:
        """Bytes of a batch that the entity takes, as far as known."""
        return self._primary.get(entity, self.backlog)[1]

    def for_batch(self, entity: str, message: int, batch: int) -> tuple[int, int]:
        """Of a batch for this entity: its link's own limits, or the last known, or the backlog's with room left."""
        if batch:
            self._primary[entity] = (message, batch)
            return message, batch
        known = self._primary.get(entity)
        if known is not None:
            return known
        message, batch = self.backlog
        return message, batch - BATCH_ROOM


class PendingSend:
    """`argument` is what `send_messages` was given, `messages` what is in it, `parcels` what is left to divert.

    Parcels are confirmed in order, so the messages that a backlog queue has confirmed are always the first ones.
    """

    __slots__ = ("_parcels", "_told", "_unknown_end", "argument", "confirmed", "messages")

    def __init__(self, argument: Any, messages: list[Any]) -> None:
        self.argument = argument
        self.messages = messages
        #: How many messages backlog queues have confirmed.
        self.confirmed = 0
        # Messages before this one may have arrived: sent, and nobody told what became of them.
        self._unknown_end = 0
        self._told = 0
        self._parcels: deque[sizes.Part] | None = None

    def __repr__(self) -> str:
        to_divert = "" if self._parcels is None else f", {len(self._parcels)} parcels to divert"
        return f"<Shipment of {len(self.messages)}{to_divert}>"

    @property
    def parcels(self) -> deque[sizes.Part]:
        """Once it is addressed."""
        assert self._parcels is not None
        return self._parcels

    @property
    def message_ids(self) -> tuple[str, ...]:
        return diversion.message_ids(self.messages)

    def parcel_confirmed(self) -> None:
        self.confirmed += len(self.parcels.popleft().messages)

    def parcel_failed(self, error: BaseException) -> None:
        if may_have_arrived(error):
            self._unknown_end = max(self._unknown_end, self.confirmed + len(self.parcels[0].messages))

    def primary_failed(self, error: BaseException) -> None:
        if may_have_arrived(error):
            self._unknown_end = len(self.messages)

    def sent_so_far(self) -> SentSoFar:
        unknown = self.messages[self.confirmed : self._unknown_end]
        return SentSoFar(
            len(self.messages),
            self.confirmed,
            diversion.message_ids(self.messages[: self.confirmed]),
            len(unknown),
            diversion.message_ids(unknown),
        )

    def newly_confirmed(self) -> list[Any]:
        """The messages that backlog queues have confirmed since this was last asked."""
        begin, self._told = self._told, self.confirmed
        return self.messages[begin : self.confirmed]

    @property
    def rest(self) -> list[Any]:
        """The messages that no backlog queue has confirmed."""
        return self.messages[self.confirmed :] if self.confirmed else self.messages

    def for_primary(self, transport: Any) -> Any:
        """What the primary's sender is given: what no backlog queue has confirmed. `transport` as for `address`."""
        if not self.confirmed:
            return self.argument
        if isinstance(self.argument, ServiceBusMessageBatch):
            return diversion.rest_of_batch(self.argument, self.confirmed, transport)
        return self.rest

    def size_warning(self, entity: str, limit: int) -> SizeWarning | None:
        """Asked at every healthy send: bodies that leave room for all the properties that a message may have are not
        looked at closely."""
        room = limit - PROPERTIES_BYTES_MAX
        for message in self.messages:
            if not _is_small(message, room):
                return sizes.warning(entity, self.argument, self.messages, limit)
        return None

    def address(
        self, entity: str, limits: Limits, *, primary_batch: int, now_unix: float, mark: bool, transport: Any
    ) -> None:
        """Makes the parcels, once: what one backlog queue has confirmed is not sent to another. `transport` is the SDK
        sender's: it would take a batch of another one apart and build it anew. `primary_batch`: bytes of a batch that
        the primary's link takes, 0 where that is not known."""
        if self._parcels is not None:
            return
        message, batch = limits.backlog
        parcels = deque(
            sizes.parts(
                self.argument,
                self.messages,
                entity,
                max_message_size=message,
                max_batch_size=batch,
                now_unix=now_unix,
                mark=mark,
            )
        )
        diversion.check_as_sent(self.argument, primary_batch or limits.of_batch(entity))
        for parcel in parcels:
            if isinstance(parcel.argument, ServiceBusMessageBatch):
                parcel.argument._amqp_transport = transport
        self._parcels = parcels


def pack(argument: Any, settings: Settings, new_id: Callable[[], str]) -> PendingSend | None:
    """Takes what `send_messages` takes; None: there is nothing to send."""
    if type(argument) is ServiceBusMessage:  # as below, only that nothing is called where nothing is to be done
        raw = argument.raw_amqp_message
        if raw.application_properties and settings.check_aliases:
            diversion.check_aliases((argument,))
        if settings.assign_message_id and (raw.properties is None or raw.properties.message_id is None):
            diversion.assign_ids((argument,), new_id)
        return PendingSend(argument, [argument])
    messages = diversion.messages_of(argument)
    if not messages:
        return None
    argument = diversion.argument_of(argument, messages)
    if settings.check_aliases:
        diversion.check_aliases(messages)
    if settings.assign_message_id:
        if isinstance(argument, ServiceBusMessageBatch):
            diversion.assign_ids_in_batch(argument, new_id)
        else:
            diversion.assign_ids(messages, new_id)
    return PendingSend(argument, messages)


def _is_small(message: Any, room: int) -> bool:
    if type(message) is not ServiceBusMessage:
        return False
    body = message.raw_amqp_message._data_body
    return type(body) is list and len(body) == 1 and type(body[0]) is bytes and len(body[0]) < room


class Turns:
    """The time of a management call, with the halts of its entity in it (P24)."""

    def __init__(self, entity: str, now: float, timeout_s: float) -> None:
        self._entity = entity
        self._ends = now + timeout_s
        self._error: ServiceBusServerBusyError | None = None

    def busy(self, error: ServiceBusServerBusyError) -> None:
        self._error = error

    def wait_s(self, now: float, halted_until: float) -> float:
        """How long to wait before the next try; raises where the halt doesn't fit into the caller's time."""
        if halted_until <= now:
            return 0.0
        if not budget.halt_fits(halted_until, self._ends):
            raise self._error or ServiceBusServerBusyError(
                message=f"{self._entity}: throttled; calls halt for another {halted_until - now:.1f} s, which does not"
                f" fit into the {max(0.0, self._ends - now):.1f} s left to this one. Try again then, or give it more."
            )
        return halted_until - now

    def left_s(self, now: float) -> float:
        return max(budget.LEAST_S, self._ends - now)


def no_schedule(entity: str) -> ScheduleDuringFailoverError:
    return ScheduleDuringFailoverError(
        f"{entity} has failed over, and without the primary there is no sequence number to hand back. Send the message"
        " with scheduled_enqueue_time_utc set instead: it waits in the backlog, and is scheduled when it comes home."
    )


def may_have_arrived(error: BaseException) -> bool:
    """Whether a send that failed so may have been stored all the same. Not where a broker refused it, nor where it was
    not tried; a lost connection and silence tell nothing."""
    if isinstance(error, NotTriedError | ServiceBusQuotaExceededError):
        return False
    is_answer = isinstance(error, ServiceBusError | TypeError | ValueError)
    return not is_answer or DEFAULT(error) is Verdict.QUALIFIES


def is_away(error: BaseException, settings: Settings) -> bool:
    """Whether an opening that failed says that the primary is away or busy, rather than that the caller is wrong."""
    return isinstance(error, NotTriedError) or settings.classifier(error) is not Verdict.REFUSED
