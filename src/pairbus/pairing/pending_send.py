"""Holds the messages of one `send_messages` call, prepared once and sent as often as needed. Does no I/O.

`pack` runs the steps that must precede the first attempt: it assigns ids and refuses aliases. A `PendingSend` then has
the messages for the primary's sender and, once it is diverted, the batches for the backlog. This module decides the
order of these checks, and which messages are left to send after a part was confirmed. `diversion.py` rewrites messages,
`sizes.py` decides what fits, and `dispatch.py` where a message goes.

Pure.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from pairbus.pairing.backlog import diversion, sizes
from pairbus.pairing.errors import NotTriedError, ScheduleDuringFailoverError, SentSoFar, is_nothing_sent
from pairbus.pairing.events import SizeWarning
from pairbus.pairing.options import Settings
from pairbus.pairing.routing import budget
from pairbus.pairing.routing.verdicts import DEFAULT, Verdict, is_answer, is_not_allowed

#: How long entering a sender may wait for a primary that may be away, and how long its link is opened without a
#: send, after one that could not wait for it.
OPEN_S: Final = 5.0
STANDARD_MESSAGE: Final = 256 * 1024
STANDARD_BATCH: Final = 256 * 1024
BATCH_ROOM: Final = 1024
#: The service takes no more than 64 KB of properties; and the aliases.
PROPERTIES_BYTES_MAX: Final = 66_000
_ONLY_MESSAGES: Final = {ServiceBusMessage}


class Limits:
    """Remembers the limits that links have announced: the bytes of a message and of a batch."""

    def __init__(self) -> None:
        self._primary: dict[str, tuple[int, int]] = {}
        self._backlog = (0, 0)
        #: The largest message that the backlog takes; 0 before its first use.
        self.backlog_message = 0

    def learn_primary(self, entity: str, message: int, batch: int) -> None:
        self._primary[entity] = (message, batch)

    def learn_backlog(self, message: int, batch: int) -> None:
        if message:
            self._backlog = (message, batch)
            self.backlog_message = message

    def knows(self, entity: str) -> bool:
        return entity in self._primary

    @property
    def backlog(self) -> tuple[int, int]:
        return self._backlog if self._backlog[0] else (STANDARD_MESSAGE, STANDARD_BATCH)

    def of_batch(self, entity: str) -> int:
        """Return the largest batch that the entity is known to take."""
        return self._primary.get(entity, self.backlog)[1]

    def for_batch(self, entity: str, message: int, batch: int) -> tuple[int, int]:
        """Return the limits of a message and a batch for this entity.

        These are the limits of its link (`message`, `batch`), else the last known ones, else the backlog's less a
        reserve.
        """
        if batch:
            self._primary[entity] = (message, batch)
            return message, batch
        known = self._primary.get(entity)
        if known is not None:
            return known
        message, batch = self.backlog
        return message, batch - BATCH_ROOM


class PendingSend:
    """The messages of one call, and which of them are confirmed.

    `argument` is what `send_messages` was given, `messages` what is in it, `batches` what is left to divert. Batches
    are confirmed in order, so the messages that backlog queues have confirmed are always the first ones.
    """

    # Class attributes: values that a healthy send never changes.
    #: How many messages backlog queues have confirmed.
    confirmed = 0
    # Messages before this index may have arrived: they were sent, and no answer came.
    _unknown_end = 0
    _reported = 0
    _batches: deque[sizes.DivertedBatch] | None = None

    def __init__(self, argument: Any, messages: list[Any], body_bytes: float) -> None:
        self.argument = argument
        self.messages = messages
        # The largest body; infinite where that is not told without encoding it.
        self._body_bytes = body_bytes

    def __repr__(self) -> str:
        to_divert = "" if self._batches is None else f", {len(self._batches)} batches to divert"
        return f"<PendingSend of {len(self.messages)}{to_divert}>"

    @property
    def batches(self) -> deque[sizes.DivertedBatch]:
        """The batches left to divert; call `address` first."""
        assert self._batches is not None
        return self._batches

    def batch_confirmed(self) -> None:
        self.confirmed += len(self.batches.popleft().messages)

    def batch_failed(self, error: BaseException) -> None:
        if may_have_arrived(error):
            self._unknown_end = max(self._unknown_end, self.confirmed + len(self.batches[0].messages))

    def split_refused(self, error: BaseException) -> bool:
        """Put the messages of a refused batch into batches of one, where that may be why; return whether it was done.

        A partitioned backlog queue takes no batch of different partition keys, nor of ids that it compares.
        """
        batch = self.batches[0]
        if len(batch.messages) < 2 or not is_not_allowed(error):
            return False
        self.batches.popleft()
        self.batches.extendleft(reversed(sizes.singles(batch)))
        return True

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
        """Return the messages that backlog queues have confirmed since the last call."""
        begin, self._reported = self._reported, self.confirmed
        return self.messages[begin : self.confirmed]

    @property
    def rest(self) -> list[Any]:
        """The messages that no backlog queue has confirmed."""
        return self.messages[self.confirmed :] if self.confirmed else self.messages

    def for_primary(self, transport: Any) -> Any:
        """Return what to give to the primary's sender: what no backlog queue has confirmed. See `address`."""
        if not self.confirmed:
            return self.argument
        if isinstance(self.argument, ServiceBusMessageBatch):
            return diversion.rest_of_batch(self.argument, self.confirmed, transport)
        return self.rest

    def size_warning(self, entity: str, limits: Limits, primary_message: int) -> SizeWarning | None:
        """Return a warning if a message would be too large for the backlog.

        Called at every healthy send, so bodies that leave room for all possible properties are not measured.
        `primary_message`: the largest message that the primary takes, and the backlog too before its first use.
        """
        limit = limits.backlog_message or primary_message
        if self._body_bytes < limit - PROPERTIES_BYTES_MAX:
            return None
        return sizes.warning(entity, self.argument, self.messages, limit)

    def address(
        self, entity: str, limits: Limits, *, primary_batch: int, now_unix: float, mark: bool, transport: Any
    ) -> None:
        """Make the batches for the backlog; later calls do nothing, so confirmed messages are not sent again.

        `transport` is that of the SDK sender, which would rebuild a batch made for another one. `primary_batch` is the
        largest batch that the primary's link takes, 0 if unknown. Raises MessageSizeExceededError.
        """
        if self._batches is not None:
            return
        message_size, batch_size = limits.backlog
        batches = deque(
            sizes.parts(
                self.argument,
                self.messages,
                entity,
                max_message_size=message_size,
                max_batch_size=batch_size,
                now_unix=now_unix,
                mark=mark,
            )
        )
        diversion.check_as_sent(self.argument, primary_batch or limits.of_batch(entity))
        for batch in batches:
            if isinstance(batch.argument, ServiceBusMessageBatch):
                batch.argument._amqp_transport = transport
        self._batches = batches


def pack(argument: Any, settings: Settings, new_id: Callable[[], str]) -> PendingSend | None:
    """Prepare what `send_messages` was given; return None if there is nothing to send."""
    if type(argument) is ServiceBusMessage:
        return _pack_messages(argument, [argument], settings, new_id)
    if type(argument) is list and {*map(type, argument)} == _ONLY_MESSAGES:
        messages = argument.copy()
        return _pack_messages(messages, messages, settings, new_id)
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
    return PendingSend(argument, messages, math.inf)


def _pack_messages(argument: Any, messages: list[Any], settings: Settings, new_id: Callable[[], str]) -> PendingSend:
    """Do the same for the common case, with fewer calls: each message is looked at once."""
    largest = 0.0
    has_properties = lacks_id = False
    for message in messages:
        raw = message.raw_amqp_message
        if raw.application_properties:
            has_properties = True
        properties = raw.properties
        if properties is None or properties.message_id is None:
            lacks_id = True
        body = raw._data_body
        # A body that is not plain bytes must be encoded to tell its size.
        size = len(body[0]) if type(body) is list and len(body) == 1 and type(body[0]) is bytes else math.inf
        if size > largest:
            largest = size
    if has_properties and settings.check_aliases:
        diversion.check_aliases(messages)
    if lacks_id and settings.assign_message_id:
        diversion.assign_ids(messages, new_id)
    return PendingSend(argument, messages, largest)


class ManagementCallTime:
    """Divides the time of a management call between busy pauses of its entity and attempts."""

    def __init__(self, entity: str, now: float, timeout_s: float) -> None:
        self._entity = entity
        self._ends = now + timeout_s
        self._error: ServiceBusServerBusyError | None = None

    def busy(self, error: ServiceBusServerBusyError) -> None:
        self._error = error

    def wait_s(self, now: float, halted_until: float) -> float:
        """Return how long to wait before the next try; raise if the pause does not fit into the caller's time."""
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


def schedule_refused(entity: str) -> ScheduleDuringFailoverError:
    """Return the error for scheduling a message while the entity has failed over."""
    return ScheduleDuringFailoverError(
        f"{entity} has failed over, and without the primary there is no sequence number to hand back. Send the message"
        " with scheduled_enqueue_time_utc set instead: it waits in the backlog, and is scheduled when it comes home."
    )


def may_have_arrived(error: BaseException) -> bool:
    """Return whether a send that failed with this error may have been stored nevertheless.

    A message that a broker refused, that was not tried or for which no link was open was not stored; after a lost
    connection or a time-out that is unknown, even if the SDK tried again after the refusal.
    """
    if is_nothing_sent(error):
        return False
    if isinstance(error.__cause__, OperationTimeoutError) and is_answer(error):
        return True
    if isinstance(error, NotTriedError | ServiceBusQuotaExceededError):
        return False
    is_refusal = isinstance(error, ServiceBusError | TypeError | ValueError)
    return not is_refusal or DEFAULT(error) is Verdict.QUALIFIES


def is_away(error: BaseException, settings: Settings) -> bool:
    """Return whether a link failed to open because the primary is down or busy, not through the caller's mistake."""
    return isinstance(error, NotTriedError) or settings.classifier(error) is not Verdict.REFUSED
