"""Decides what fits into the backlog, since a message grows by its aliases and may then exceed a link's limit.

At a healthy send it computes only an upper bound, cheaply; a message that may be too large is then measured exactly,
and a warning is given. On the way to the backlog sizes are exact: a message that is too large is an error that names
both sizes, and lists and batches are split into batches that fit, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.pairing.backlog import diversion
from pairbus.pairing.backlog.aliases import divert_encoded
from pairbus.pairing.events import SizeWarning

# Names, types and values of the aliases except path and session id, and a map that needs wider sizes for them.
_ALIAS_BYTES: Final = 140
# Descriptors, list heads, the fields of fixed size.
_FRAME_BYTES: Final = 160
# 128 characters at most, by the service's rules.
_SESSION_BYTES: Final = 520
# What a batch's envelope takes besides the id and partition key of the first message.
_ENVELOPE_BYTES: Final = 64
# The data section round each message in a batch.
_IN_BATCH_BYTES: Final = 8


class DivertedBatch(NamedTuple):
    """What to send to a backlog queue in one call, and the caller's messages that are in it."""

    argument: Any
    messages: list[Any]


def warning(entity: str, argument: Any, messages: Iterable[Any], limit: int) -> SizeWarning | None:
    """Return a warning about the first message that the entity takes and whose diverted size is past `limit`.

    `limit` is the largest message that the link takes. Lists and batches are split on the way, so each message counts
    for itself. Nothing is encoded unless a message comes close.
    """
    room = limit - _ALIAS_BYTES - 4 * len(entity)
    if limit <= 0 or (isinstance(argument, ServiceBusMessageBatch) and argument.size_in_bytes + _SESSION_BYTES <= room):
        return None
    for message in messages:
        if bound(message) > room:
            size, diverted_size = _exact(message, entity)
            if size <= limit < diverted_size:
                return SizeWarning(entity, size, diverted_size, limit)
    return None


def _exact(message: Any, path: str) -> tuple[int, int]:
    """Return the size of a message, and its size when diverted; zeros if it can't be encoded, which the SDK reports."""
    try:
        return (
            len(diversion.encoded(message)),
            len(diversion.encoded(diversion.divert(message, path, now_unix=0.0))),
        )
    except Exception:
        return 0, 0


def bound(message: Any) -> int:
    """Return an upper bound of the encoded size, with the session id counted twice (once for the alias).

    On the path of every healthy send, so the usual types are handled here and the others in `_bound_of`.
    """
    raw: AmqpAnnotatedMessage = message if isinstance(message, AmqpAnnotatedMessage) else message._raw_amqp_message
    total = _FRAME_BYTES
    body = raw._data_body
    if body is not None:
        if isinstance(body, list):  # anything else may be readable only once
            for section in body:
                total += (len(section) + 8) if section.__class__ is bytes else _bound_of(section) + 3
    elif raw._value_body is not None:
        total += _bound_of(raw._value_body)
    elif raw._sequence_body is not None:
        total += _bound_of(raw._sequence_body)
    properties = raw._properties
    if properties is not None:
        for value in properties.__dict__.values():
            if value is not None:
                total += (4 * len(value) + 5) if value.__class__ is str else _bound_of(value)
        if properties.group_id is not None:
            total += _bound_of(properties.group_id)
    for section_map in (raw._application_properties, raw._annotations, raw._footer, raw._delivery_annotations):
        if section_map:
            total += 9
            for key, value in section_map.items():
                total += (4 * len(key) + 5) if key.__class__ is str else _bound_of(key)
                kind = value.__class__
                if kind is str:
                    total += 4 * len(value) + 5
                else:
                    total += 17 if kind is int or kind is float or kind is bool else _bound_of(value)
    return total


def _bound_of(value: Any) -> int:
    """Return an upper bound for any value: text at four bytes a character unless ASCII, numbers at their widest."""
    if isinstance(value, str):
        return (len(value) if value.isascii() else 4 * len(value)) + 5
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value) + 5
    if isinstance(value, dict):
        return 9 + sum(_bound_of(key) + _bound_of(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return 14 + sum(_bound_of(each) for each in value)
    return 17


def parts(
    argument: Any,
    messages: list[Any],
    path: str,
    *,
    max_message_size: int,
    max_batch_size: int,
    now_unix: float,
    mark: bool = False,
    transport: Any = PyamqpTransport,
) -> list[DivertedBatch]:
    """Return what goes to a backlog queue in place of `argument` (as `diversion.argument_of` returns it).

    A message stays a message; a list or a batch becomes as few batches as will do, in order; a message in it that no
    batch takes goes by itself. Raises MessageSizeExceededError, and then for the whole, before anything is sent.
    `transport` is that of the SDK sender which is to send it (`sender._amqp_transport`).
    """
    detour = _Diversion(path, max_message_size, max_batch_size, now_unix, mark, transport)
    if isinstance(argument, ServiceBusMessageBatch):
        payloads = diversion.divert_batch(argument, path, now_unix=now_unix, mark=mark)
        return list(detour.packed(messages, payloads, argument))
    if isinstance(argument, list):
        return list(
            detour.packed(messages, [diversion.encoded(detour.diverted(message)) for message in messages], None)
        )
    return [detour.single(argument)]


def singles(batch: DivertedBatch) -> list[DivertedBatch]:
    """Return a batch for each message of a batch."""
    made: ServiceBusMessageBatch = batch.argument
    return [
        DivertedBatch(
            diversion.batch_of([bytes(payload)], message, made.max_size_in_bytes, made._amqp_transport), [message]
        )
        for payload, message in zip(made._message[5], batch.messages, strict=True)
    ]


class _Diversion(NamedTuple):
    """Diverts messages to one entity's backlog, within the limits of the link."""

    path: str
    max_message_size: int
    max_batch_size: int
    now_unix: float
    mark: bool
    transport: Any

    def diverted(self, message: Any) -> AmqpAnnotatedMessage:
        return diversion.divert(message, self.path, now_unix=self.now_unix, mark=self.mark)

    def single(self, message: Any) -> DivertedBatch:
        diverted = self.diverted(message)
        if bound(diverted) > self.max_message_size:
            diverted_size = len(diversion.encoded(diverted))
            if diverted_size > self.max_message_size:
                raise self._too_large(len(diversion.encoded(message)), diverted_size, self.max_message_size)
        return DivertedBatch(diverted, [message])

    def packed(
        self, messages: list[Any], payloads: list[bytes], batch: ServiceBusMessageBatch | None
    ) -> Iterator[DivertedBatch]:
        """Yield batches that fit. `payloads` are the diverted messages, `batch` is the application's batch, if any."""
        begin = size = 0
        for index, payload in enumerate(payloads):
            cost = len(payload) + _IN_BATCH_BYTES
            if begin < index and size + cost > self.max_batch_size:
                yield self._batch(messages, payloads, begin, index)
                begin = index
            if begin == index:
                size = _envelope(messages[index])
                if size + cost > self.max_batch_size:
                    yield self._alone(messages[index], payload, None if batch is None else batch._message[5][index])
                    begin = index + 1
                    continue
            size += cost
        if begin < len(payloads):
            yield self._batch(messages, payloads, begin, len(payloads))

    def _batch(self, messages: list[Any], payloads: list[bytes], begin: int, end: int) -> DivertedBatch:
        made = diversion.batch_of(payloads[begin:end], messages[begin], self.max_batch_size, self.transport)
        return DivertedBatch(made, messages[begin:end])

    def _alone(self, message: Any, payload: bytes, in_batch: bytes | None) -> DivertedBatch:
        """Divert a message alone that fits no batch: single messages may be larger on some tiers."""
        sent = diversion.encoded(message)
        if len(payload) > self.max_message_size:
            raise self._too_large(len(sent if in_batch is None else in_batch), len(payload), self.max_message_size)
        diverted_at = self.now_unix if self.mark else None
        if in_batch is not None and payload != divert_encoded(sent, self.path, diverted_at=diverted_at):
            # Changed since it was added: only its bytes are right, and the SDK sends bytes in batches only.
            raise self._too_large(len(in_batch), len(payload), self.max_batch_size)
        return DivertedBatch(self.diverted(message), [message])

    def _too_large(self, size: int, diverted_size: int, limit: int) -> MessageSizeExceededError:
        return MessageSizeExceededError(
            message=f"the message for {self.path} has {size} bytes, and {diverted_size} with what it needs to come back"
            f" from the backlog; the backlog queue takes {limit} (P30). Make it smaller; nothing of this send is in the"
            " backlog."
        )


def _envelope(first: Any) -> int:
    raw: AmqpAnnotatedMessage = first if isinstance(first, AmqpAnnotatedMessage) else first.raw_amqp_message
    total = _ENVELOPE_BYTES
    if raw.properties is not None and raw.properties.message_id is not None:
        total += _bound_of(raw.properties.message_id)
    return total + sum(
        _bound_of(value)
        for key, value in (raw.annotations or {}).items()
        if key in (b"x-opt-partition-key", "x-opt-partition-key")
    )
