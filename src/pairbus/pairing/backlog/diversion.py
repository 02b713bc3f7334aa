"""Copies messages of the SDK for the backlog, with what the backlog must not act on in aliases.

It also does what must precede the first send anywhere: assigns ids, and refuses messages that carry an alias
already. The SDK encodes the copy as it would have encoded the message, so every body and every AMQP type
that it can send arrives as it would have arrived. A ServiceBusMessageBatch holds its messages encoded; those are
rewritten as bytes (aliases.py).

Private parts of the SDK that it reads, since there is no public way:

    ServiceBusMessageBatch._message[5]      the encoded messages; the objects may have been changed since
    ServiceBusMessageBatch._messages        the objects, each with ._message, what it was when it was last encoded
    ServiceBusMessageBatch._count, ._size   to make a batch of encoded messages
    AmqpAnnotatedMessage._data_body, ._sequence_body   can they be read twice? `body` hands out generators
    PyamqpTransport.to_outgoing_amqp_message, .set_batch_envelope_properties; encode_payload; trace_message
"""

from __future__ import annotations

import struct
from calendar import timegm
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._common.tracing import trace_message
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.errors import AmqpError
from pairbus.amqp.message import split, with_properties
from pairbus.pairing.backlog import aliases
from pairbus.pairing.errors import AliasConflictError, BodyNotCopyableError

_ALIAS_KEYS: Final = frozenset({*aliases.ALIASES, *(name.encode() for name in aliases.ALIASES)})
_SCHEDULED_KEYS: Final = (aliases.SCHEDULED_ANNOTATION.encode(), aliases.SCHEDULED_ANNOTATION)


def messages_of(argument: Any) -> list[Any]:
    """Return the messages in what `send_messages` takes: a message, a mapping, an iterable of those, or a batch.

    Mappings become messages here, once, and a generator is read here, once: so ids stay with them, and a second try
    sends the same.
    """
    if isinstance(argument, ServiceBusMessage | AmqpAnnotatedMessage):
        return [argument]
    if isinstance(argument, ServiceBusMessageBatch):
        return list(argument._messages)
    if isinstance(argument, Iterable) and not isinstance(argument, Mapping):
        return [_message(each) for each in argument]
    return [_message(argument)]


def _message(each: Any) -> Any:
    if isinstance(each, ServiceBusMessage | AmqpAnnotatedMessage):
        return each
    try:
        return ServiceBusMessage(**each)
    except TypeError as error:
        raise TypeError(
            "Only AmqpAnnotatedMessage, ServiceBusMessage instances or Mappings representing messages are supported."
            f" Received instead: {type(each).__name__} ({error})"
        ) from None


def argument_of(argument: Any, messages: list[Any]) -> Any:
    """Return what to give to the SDK in place of `argument`, whose messages have been read."""
    if isinstance(argument, ServiceBusMessageBatch):
        return argument
    if isinstance(argument, Iterable) and not isinstance(argument, Mapping):
        return messages
    return messages[0]


def check_aliases(messages: Iterable[Any]) -> None:
    """Raise AliasConflictError for a message that carries an alias; on the path of every healthy send."""
    for message in messages:
        properties = message.application_properties
        if properties and not _ALIAS_KEYS.isdisjoint(properties):
            names = sorted(_text(key) for key in properties if key in _ALIAS_KEYS)
            raise AliasConflictError(
                f"the message has the application propert{'y' if len(names) == 1 else 'ies'} {', '.join(names)}, which"
                " pairbus needs for its way through the backlog (P26, P29); take it off, or rename it"
            )


def assign_ids(messages: Iterable[Any], new_id: Callable[[], str]) -> None:
    """Give each message without an id one, in place, so that the caller's next try keeps it.

    The SDK's own constructor already does so for a ServiceBusMessage; an AmqpAnnotatedMessage has none.
    """
    for message in messages:
        raw = _raw(message)
        properties = raw.properties
        if properties is None:
            raw.properties = AmqpMessageProperties(message_id=new_id())
        elif properties.message_id is None:
            properties.message_id = new_id()


def assign_ids_in_batch(batch: ServiceBusMessageBatch, new_id: Callable[[], str]) -> None:
    """Do the same for messages that are encoded already, as far as the batch has room for ids."""
    encoded: list[Any] = batch._message[5]
    for index, message in enumerate(batch._messages):
        properties = message._message.properties
        if properties is not None and properties.message_id is not None:
            continue
        before = bytes(encoded[index])
        try:
            after = with_properties(before, split(before), message_id=new_id())
        except AmqpError:  # the SDK has encoded a value wrongly, and the broker says so
            continue
        growth = _section_size(len(after)) - _section_size(len(before))
        if batch._size + growth <= batch.max_size_in_bytes:
            encoded[index] = bytearray(after)
            batch._size += growth


def message_ids(messages: Iterable[Any]) -> tuple[str, ...]:
    """Return the ids of the messages, for events and errors; a message without an id is left out."""
    found = (properties.message_id for message in messages if (properties := _raw(message).properties) is not None)
    return tuple(_text(each) for each in found if each is not None)


def divert(message: Any, path: str, *, now_unix: float, mark: bool = False) -> AmqpAnnotatedMessage:
    """Return a copy of the message for the backlog; the caller's own may still go to the primary."""
    raw = _raw(message)
    if isinstance(raw._data_body, Iterator) or isinstance(raw._sequence_body, Iterator):
        raise BodyNotCopyableError(
            f"the message for {path} has a body that can be read only once, and the first try may have read it;"
            " make the body a list (P22)"
        )
    diverted = copy(raw)
    properties = {key: value for key, value in (raw.application_properties or {}).items() if key not in _ALIAS_KEYS}
    properties[aliases.PATH] = {"TYPE": "STRING", "VALUE": path}
    _divert_session(raw, diverted, properties)
    _divert_life(raw, diverted, properties)
    _divert_schedule(raw, diverted, properties)
    if mark:
        properties.pop(aliases.DIVERTED_AT.encode(), None)
        properties[aliases.DIVERTED_AT] = {"TYPE": "TIMESTAMP", "VALUE": int(now_unix * 1000)}
    diverted.application_properties = properties
    return diverted


def _divert_session(raw: AmqpAnnotatedMessage, diverted: AmqpAnnotatedMessage, properties: dict[Any, Any]) -> None:
    if raw.properties is None:
        return
    diverted.properties = mine = copy(raw.properties)
    session_id: Any = raw.properties.group_id
    if session_id is None:
        return
    if not isinstance(session_id, str | bytes):
        raise _refused(f"a session id is a string, not {type(session_id).__name__}", "amqp:decode-error")
    properties[aliases.SESSION_ID] = {"TYPE": "STRING", "VALUE": session_id}
    mine.group_id = None


def _divert_life(raw: AmqpAnnotatedMessage, diverted: AmqpAnnotatedMessage, properties: dict[Any, Any]) -> None:
    ttl_ms = None if raw.header is None else raw.header.time_to_live
    created = expires = None
    if raw.properties is not None:
        created, expires = raw.properties.creation_time, raw.properties.absolute_expiry_time
    ttl_ms = aliases.life_ms(ttl_ms, created, expires)
    if ttl_ms is None:
        return
    properties[aliases.TIME_TO_LIVE] = {"TYPE": "LONG", "VALUE": int(ttl_ms)}
    if raw.header is not None:
        diverted.header = mine = copy(raw.header)
        mine.time_to_live = None
    if ttl_ms and diverted.properties is not None:
        diverted.properties.creation_time = diverted.properties.absolute_expiry_time = None


def _divert_schedule(raw: AmqpAnnotatedMessage, diverted: AmqpAnnotatedMessage, properties: dict[Any, Any]) -> None:
    annotations = raw.annotations
    if not annotations:
        return
    for key in _SCHEDULED_KEYS:
        at_ms = _milliseconds(annotations.get(key))
        if at_ms is not None:
            properties[aliases.SCHEDULED_TIME] = {"TYPE": "TIMESTAMP", "VALUE": at_ms}
            diverted.annotations = {name: value for name, value in annotations.items() if name not in _SCHEDULED_KEYS}


def _milliseconds(at: Any) -> int | None:
    """Return a scheduled time in milliseconds.

    Applications give a datetime, the SDK's typed value, or the milliseconds of a message that was received.
    """
    if isinstance(at, Mapping):
        at = at.get("VALUE")
    if isinstance(at, datetime):
        # as the SDK's encoder does: without a zone it is UTC, and less than a millisecond is cut off
        at = int(timegm(at.utctimetuple()) * 1000 + at.microsecond / 1000)
    if at is None:
        return None
    if isinstance(at, bool) or not isinstance(at, int):
        raise _refused(f"{aliases.SCHEDULED_ANNOTATION} is a time, not {type(at).__name__}", "amqp:invalid-field")
    return int(at)


def _refused(text: str, condition: str) -> ServiceBusError:
    """Return the error with which the primary's broker refuses such a message."""
    return ServiceBusError(text, condition=condition)


def encoded(message: Any) -> bytes:
    """Return the bytes that the SDK would send."""
    outgoing: Any = PyamqpTransport.to_outgoing_amqp_message(_raw(message))
    transport: Any = PyamqpTransport
    return bytes(encode_payload(bytearray(), trace_message(outgoing, transport)))


# What the SDK raises for values that it can't encode. Not every exception: a signal handler's may come up here, too.
_NOT_ENCODED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error)


def check_as_sent(argument: Any, max_batch_size: int) -> None:
    """Raise what the SDK would raise if this were sent to the primary: a diverted send has the same result.

    The backlog would take some of it: a time to live beyond 32 bits becomes an alias, and a list that is too large for
    one batch could be split. `max_batch_size` is the primary's. A batch was checked when it was filled.
    """
    if isinstance(argument, ServiceBusMessageBatch):
        return
    if isinstance(argument, list):
        batch = ServiceBusMessageBatch(max_size_in_bytes=max_batch_size)
        for message in argument:
            batch.add_message(message)
        return
    outgoing: Any = PyamqpTransport.to_outgoing_amqp_message(_raw(argument))
    transport: Any = PyamqpTransport
    try:
        encode_payload(bytearray(), trace_message(outgoing, transport))
    except _NOT_ENCODED as error:  # in the SDK's own words
        raise ServiceBusError(message=f"Handler failed: {error}.", error=error) from error


def divert_batch(batch: ServiceBusMessageBatch, path: str, *, now_unix: float, mark: bool = False) -> list[bytes]:
    """Return the messages of a batch, encoded for the backlog. Raises what the primary's broker would refuse one with
    that no AMQP decoder can read: the SDK encodes some values wrongly."""
    diverted_at = now_unix if mark else None
    try:
        return [aliases.divert_encoded(bytes(each), path, diverted_at=diverted_at) for each in batch._message[5]]
    except AmqpError as error:
        raise _refused(error.description, error.condition) from error


class _EncodedOnly:
    """Stands for a message of which only the bytes are known.

    A sender of the SDK rebuilds a batch of another transport from its message objects. With this one it raises
    TypeError; with none it would send an empty batch and have it confirmed.
    """

    __slots__ = ()
    _message = Message()


_ENCODED_ONLY: Any = _EncodedOnly()


def batch_of(payloads: Sequence[bytes], first: Any, max_size: int, transport: Any) -> ServiceBusMessageBatch:
    """Make a batch of encoded messages; the envelope repeats the id and partition key of `first`, the first of them.

    `transport` must be that of the SDK sender that is to send it: sync and async senders have different ones.
    """
    batch = ServiceBusMessageBatch(max_size_in_bytes=max_size, amqp_transport=transport)
    batch._message[5].extend(payloads)
    batch._messages = [_ENCODED_ONLY] * len(payloads)
    batch._count = len(payloads)
    batch._size += sum(_section_size(len(each)) for each in payloads)
    message = (
        first
        if isinstance(first, ServiceBusMessage)
        else ServiceBusMessage(None, message=first, raw_amqp_message=first)
    )
    PyamqpTransport.set_batch_envelope_properties(batch._message, message.message_id, None, message.partition_key)
    return batch


def rest_of_batch(batch: ServiceBusMessageBatch, begin: int, transport: Any) -> ServiceBusMessageBatch:
    """Make a batch of the messages of a batch from index `begin` on, as they were added."""
    payloads = [bytes(each) for each in batch._message[5][begin:]]
    return batch_of(payloads, batch._messages[begin], batch.max_size_in_bytes, transport)


def _section_size(size: int) -> int:
    """Return the size of a message inside a batch, with the data section round it."""
    return size + (5 if size < 256 else 8)


def _raw(message: Any) -> AmqpAnnotatedMessage:
    return message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
