"""Declares the columns of the `servicebus` source, and converts between encoded messages and rows. Pure.

It decides the content of each column. `amqp` is the message as the broker gave it, byte for byte; the other columns are
for people. Reading never fails on a message: a value that a column can't show is null there and complete in `amqp`.
Writing uses `amqp` if a row has it, without the broker's additions, or else makes the message from the typed columns.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pairbus.amqp.errors import AmqpError
from pairbus.amqp.message import (
    Header,
    Properties,
    encode_message,
    read_application_properties,
    read_body,
    read_header,
    read_message_annotations,
    read_properties,
    split,
    with_properties,
)
from pairbus.amqp.types import Byte, Float, Int, Short, Symbol, Timestamp
from pairbus.pairing.backlog.aliases import sent_anew
from pairbus.syphon.core.arrival import annotations_of

from .entities import without_dead_letters
from .options import JSON, TEXT, ConnectorOptions, InvalidOption
from .values.property_json import from_json, to_json
from .values.row_ids import RowIds

_US: Final = pa.timestamp("us", tz="UTC")
_TEXT: Final = (StringType(), pa.string())
_TIME: Final = (TimestampType(), _US)
_BINARY: Final = (BinaryType(), pa.binary())
_MAP: Final = (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string()))

#: Columns of the message's own properties; these can also be written.
_OF_THE_MESSAGE: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "message_id": _TEXT,
    "correlation_id": _TEXT,
    "session_id": _TEXT,
    "reply_to_session_id": _TEXT,
    "partition_key": _TEXT,
    "subject": _TEXT,
    "content_type": _TEXT,
    "to": _TEXT,
    "reply_to": _TEXT,
    "time_to_live": (DayTimeIntervalType(), pa.duration("us")),
    "scheduled_enqueue_time_utc": _TIME,
    "application_properties": _MAP,
    "body": _BINARY,
    "amqp": _BINARY,
}
#: Columns of the broker's data.
_OF_THE_BROKER: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "body_type": _TEXT,
    "dead_letter_reason": _TEXT,
    "dead_letter_error_description": _TEXT,
    "dead_letter_source": _TEXT,
    "entity": _TEXT,
    "sequence_number": (LongType(), pa.int64()),
    "enqueued_time": _TIME,
    "lock_token": _TEXT,
    "locked_until": _TIME,
    "delivery_count": (IntegerType(), pa.int32()),
    "state": _TEXT,
}
Columns = Mapping[str, tuple[DataType, pa.DataType]]
COLUMNS: Final = {**_OF_THE_MESSAGE, **_OF_THE_BROKER}


def columns_of(options: ConnectorOptions) -> Columns:
    """Return the columns that a read or a stream produces. Raises InvalidOption for names that there are not."""
    is_text = {"application_properties": options.application_properties == JSON, "body": options.body == TEXT}
    kinds = {name: _TEXT if is_text.get(name) else kind for name, kind in COLUMNS.items()}
    names = [_BY_LOWER.get(name.lower(), name) for name in options.columns or kinds]
    for name in names:
        if name not in kinds:
            raise InvalidOption(f"columns names {name!r}, and there is none; right are {', '.join(kinds)}")
        if names.count(name) > 1:
            raise InvalidOption(f"columns names {name!r} twice")
    return {name: kinds[name] for name in names}


def spark_schema(columns: Columns) -> StructType:
    return StructType([StructField(name, kind[0], True) for name, kind in columns.items()])


SCHEMA: Final = spark_schema(COLUMNS)
#: For a row that is written: its destination, if not the option `entity`.
DESTINATION: Final = "destination"
WRITABLE: Final = (*_OF_THE_MESSAGE, DESTINATION)
#: The columns that are used of a row that is written: these, and those of its lock.
_READ_BACK: Final = (*WRITABLE, "entity", "lock_token", "locked_until")
#: The longest message id, session id or partition key, by the service's rules.
ID_CHARS_MAX: Final = 128
#: Spark ignores letter case in the names of columns, and so does the sink.
_BY_LOWER: Final = {name.lower(): name for name in (*COLUMNS, DESTINATION)}
#: What the values of application properties may be, each with the AMQP type of the same width.
_PROPERTY_TYPES: Final = (
    StringType, BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, BinaryType,
    TimestampType, TimestampNTZType,
)  # fmt: skip
_AMQP_TYPES: Final[dict[pa.DataType, Callable[[Any], Any]]] = {
    pa.int8(): Byte,
    pa.int16(): Short,
    pa.int32(): Int,
    pa.float32(): Float,
}

#: An Arrow batch is passed on when it has this many rows, or about this many bytes.
ROWS_A_BATCH: Final = 1000
BATCH_BYTES: Final = 16 * 1024 * 1024

_STATES: Final = {0: "active", 1: "deferred", 2: "scheduled"}
_PARTITION_KEY: Final = "x-opt-partition-key"
_SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
#: Spark's timestamps end with the year 9999.
_MS_MAX: Final = 253402300799999
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Rows:
    """Collects encoded messages, and returns them as Arrow batches with these columns. What no column needs is not
    decoded."""

    __slots__ = ("_bytes", "_columns", "_count", "_has_amqp", "_schema", "parts")

    def __init__(self, columns: Columns = COLUMNS) -> None:
        self._schema = pa.schema([pa.field(name, kind[1]) for name, kind in columns.items()])
        self._bytes = self._count = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in columns}
        self._has_amqp = "amqp" in columns
        self.parts = parts_of(columns)

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._bytes >= BATCH_BYTES or self._count >= ROWS_A_BATCH

    def add(self, entity: str, payload: bytes, *, lock_token: UUID | None = None) -> None:
        self.take(read(payload, self.parts), entity, payload, lock_token)

    def take(self, row: dict[str, Any], entity: str, payload: bytes, lock_token: UUID | None = None) -> None:
        """Add a row that `read` made of these `parts`, or of more; it is the table's afterwards."""
        row["entity"] = entity
        row["amqp"] = payload
        row["lock_token"] = None if lock_token is None else str(lock_token)
        if lock_token is not None and row.get("state") == "scheduled":
            row["state"] = "active"  # a delivery says so of what had been scheduled
        get = row.get
        self._count += 1
        self._bytes += (len(payload) if self._has_amqp else 0) + len(get("body") or b"")
        for name, column in self._columns.items():
            column.append(get(name))

    def batch(self) -> pa.RecordBatch:
        """Return the rows that were added since the last batch."""
        arrays = []
        for field in self._schema:  # each is given up as soon as it is copied
            column = self._columns[field.name]
            arrays.append(pa.array(column, field.type))
            column.clear()
        self._bytes = self._count = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


Part = Callable[[bytes, Any, dict[str, Any]], None]


def read(payload: bytes, parts: Iterable[Part] | None = None) -> dict[str, Any]:
    """Return the typed columns of a message as a peek or a delivery gives it: all, or those that these parts of it
    have."""
    row: dict[str, Any] = {}
    if parts == ():
        return row
    try:
        sections = split(payload)
    except AmqpError:
        return row
    for part in _PARTS if parts is None else parts:
        try:
            part(payload, sections, row)
        except (AmqpError, ValueError, OverflowError, TypeError):
            continue  # the column stays null; `amqp` has it all
    return row


def parts_of(columns: Columns) -> tuple[Part, ...]:
    """Return which parts of a message have to be decoded for these columns."""
    parts = tuple(part for part, names in _PARTS.items() if not names.isdisjoint(columns))
    if columns.get("application_properties") == _TEXT:
        parts = tuple(_of_typed_properties if part is _of_application_properties else part for part in parts)
    if columns.get("body") == _TEXT:
        parts = tuple(_of_text_body if part is _of_body else part for part in parts)
    return parts


def _of_properties(payload: bytes, sections: Any, row: dict[str, Any]) -> None:
    found = read_properties(payload, sections)
    row["message_id"] = _text(found.message_id)
    row["correlation_id"] = _text(found.correlation_id)
    row["session_id"] = found.group_id
    row["reply_to_session_id"] = found.reply_to_group_id
    row["subject"] = found.subject
    row["content_type"] = _text(found.content_type)
    row["to"] = found.to
    row["reply_to"] = found.reply_to


def of_annotations(payload: bytes, sections: Any, row: dict[str, Any]) -> None:
    found = read_message_annotations(payload, sections)
    get = found.get
    row["sequence_number"] = get("x-opt-sequence-number")
    row["enqueued_time"] = _time(get("x-opt-enqueued-time"))
    row["locked_until"] = _time(get("x-opt-locked-until"))
    row["scheduled_enqueue_time_utc"] = _time(get(_SCHEDULED))
    row["partition_key"] = _text(get(_PARTITION_KEY))
    row["dead_letter_source"] = _text(get("x-opt-deadletter-source"))
    row["state"] = _STATES.get(get("x-opt-message-state", 0), "active")


def _of_application_properties(payload: bytes, sections: Any, row: dict[str, Any]) -> None:
    if sections.application_properties is None:
        return
    found = _with_reasons(payload, sections, row)
    row["application_properties"] = [(str(name), _text(value)) for name, value in found.items()]


def _of_typed_properties(payload: bytes, sections: Any, row: dict[str, Any]) -> None:
    if sections.application_properties is not None:
        row["application_properties"] = to_json(_with_reasons(payload, sections, row))


def _with_reasons(payload: bytes, sections: Any, row: dict[str, Any]) -> dict[Any, Any]:
    """Return the application properties; the row gets the reasons of a dead letter among them."""
    found = read_application_properties(payload, sections)
    row["dead_letter_reason"] = _text(found.get("DeadLetterReason"))
    row["dead_letter_error_description"] = _text(found.get("DeadLetterErrorDescription"))
    return found


def _of_header(payload: bytes, sections: Any, row: dict[str, Any]) -> None:
    if sections.header is None:
        return
    found = read_header(payload, sections)
    row["delivery_count"] = found.delivery_count
    if found.ttl is not None:
        row["time_to_live"] = dt.timedelta(milliseconds=found.ttl)


def _of_body(payload: bytes, sections: Any, row: dict[str, Any]) -> None:
    parts = read_body(payload, sections)
    if not parts:
        return
    kind = row["body_type"] = parts[0][0]
    if kind == "data":
        row["body"] = parts[0][1] if len(parts) == 1 else b"".join(value for _, value in parts)
    elif kind == "value" and isinstance(parts[0][1], bytes):
        row["body"] = bytes(parts[0][1])
    elif kind == "value" and isinstance(parts[0][1], str):
        row["body"] = parts[0][1].encode()
    else:
        value = parts[0][1] if kind == "value" else [item for _, value in parts for item in value]
        row["body"] = json.dumps(_plain(value)).encode()


def _of_text_body(payload: bytes, sections: Any, row: dict[str, Any]) -> None:
    _of_body(payload, sections, row)
    if "body" in row:
        row["body"] = row["body"].decode(errors="replace")


#: What is decoded of a message, and the columns that each part of it fills.
_PARTS: Final[dict[Part, frozenset[str]]] = {
    _of_properties: frozenset(
        ("message_id", "correlation_id", "session_id", "reply_to_session_id", "subject", "content_type", "to",
         "reply_to")
    ),
    of_annotations: frozenset(
        ("sequence_number", "enqueued_time", "locked_until", "scheduled_enqueue_time_utc", "partition_key", "state",
         "dead_letter_source")
    ),
    _of_application_properties: frozenset(
        ("application_properties", "dead_letter_reason", "dead_letter_error_description")
    ),
    _of_header: frozenset(("delivery_count", "time_to_live")),
    _of_body: frozenset(("body", "body_type")),
}  # fmt: skip


def _text(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp):
        time = _time(value)
        return str(int(value)) if time is None else time.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | dict):
        return json.dumps(_plain(value))
    return str(value)


def _plain(value: Any) -> Any:
    """Return a value in JSON's types for one in AMQP's."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_text(key) or "null": _plain(item) for key, item in value.items()}
    if (
        value is None
        or isinstance(value, bool | float)
        or (isinstance(value, int) and not isinstance(value, Timestamp))
    ):
        return value
    return _text(value)


def _time(value: Any) -> dt.datetime | None:
    if not isinstance(value, int) or not 0 <= value <= _MS_MAX:
        return None
    return _EPOCH + dt.timedelta(milliseconds=value)


# -- from rows to messages


class Lock(NamedTuple):
    """Of a row of a lock stream. `until`: unix time at which it ends; `number`: the sequence number of the message.
    None where the row does not say."""

    entity: str
    token: UUID
    until: float | None
    number: int | None


class Outgoing(NamedTuple):
    destination: str | None
    payload: bytes
    #: Session and partition key: messages that differ in them must not share a batch.
    company: tuple[Any, Any]
    lock: Lock | None = None


class Unsendable(NamedTuple):
    """A row that no destination accepts. `columns`: the row as JSON."""

    destination: str | None
    reason: str
    columns: str
    lock: Lock | None


def check_writable(columns: StructType, entity: str | None) -> None:
    """Raise InvalidOption for columns that can't be sent, before anything is; it lists the right ones."""
    names: list[str] = []
    for field in columns:
        name = _BY_LOWER.get(field.name.lower())
        if name is None:
            raise InvalidOption(f"the servicebus sink has no column {field.name!r}; right are {', '.join(WRITABLE)}")
        if name in names:
            raise InvalidOption(f"the column {name!r} is there twice, in different letter case")
        names.append(name)
        if name in WRITABLE and not _fits(name, field.dataType):
            right = _TEXT[0] if name == DESTINATION else COLUMNS[name][0]
            more = " or string" if name == "body" else ""
            if isinstance(right, MapType):
                others = ", ".join(kind.typeName() for kind in _PROPERTY_TYPES[1:])
                more = f" (or JSON as string, or a map to one of {others})"
            raise InvalidOption(
                f"column {field.name!r} is {field.dataType.simpleString()}, but must be {right.simpleString()}{more}"
            )
    if "body" not in names and "amqp" not in names:
        raise InvalidOption("a row to be sent needs a column body (string or binary) or amqp (an encoded message)")
    if DESTINATION not in names and entity is None:
        raise InvalidOption("where to? Give the option entity, or each row a column destination")


def check_settleable(columns: StructType) -> None:
    """Raise InvalidOption where rows lack the columns by which their locks are settled."""
    names = {field.name.lower() for field in columns}
    if not {"entity", "lock_token"} <= names or not names & {"locked_until", "amqp"}:
        raise InvalidOption(
            "rows to be settled need the columns entity and lock_token of the lock stream, and locked_until or amqp, "
            "which say when the lock ends"
        )


def _fits(name: str, kind: DataType) -> bool:
    if name == "body":
        return isinstance(kind, StringType | BinaryType)
    if name == "application_properties":
        return isinstance(kind, StringType) or (
            isinstance(kind, MapType)
            and isinstance(kind.keyType, StringType)
            and isinstance(kind.valueType, _PROPERTY_TYPES)
        )
    wanted = _TEXT[0] if name == DESTINATION else COLUMNS[name][0]
    return isinstance(kind, type(wanted)) or (isinstance(wanted, TimestampType) and isinstance(kind, TimestampNTZType))


def canonical(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with its columns named as the schema names them."""
    return batch.rename_columns([_BY_LOWER.get(name.lower(), name) for name in batch.schema.names])


def outgoing(batch: pa.RecordBatch, ids: RowIds | None = None) -> Iterator[Outgoing | Unsendable]:
    """Yield the messages of a batch, in its order. `ids` names those that have no message id."""
    batch = canonical(batch)
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name in _READ_BACK}
    typed = _typed(batch)
    for index in range(batch.num_rows):
        row = {name: column[index] for name, column in columns.items()}
        lock = _lock(row)
        try:
            message = _message(row, typed, lock, ids)
        except (AmqpError, ValueError, TypeError, OverflowError, struct.error) as error:
            text = json.dumps({name: _plain(_shown(value)) for name, value in row.items() if value is not None})
            yield Unsendable(row.get(DESTINATION), str(error), text, lock)
        else:
            yield message


def _message(
    row: Mapping[str, Any], typed: Callable[[Any], Any] | None, lock: Lock | None, ids: RowIds | None
) -> Outgoing:
    exact, destination = row.get("amqp"), row.get(DESTINATION)
    if exact is None:
        payload = encode(row, typed)
        properties = row.get("message_id"), row.get("session_id"), row.get("partition_key")
    else:
        payload, properties = _anew(exact, row.get("entity"))
    message_id, session_id, key = properties
    for name, value in (("message_id", message_id), ("session_id", session_id), ("partition_key", key)):
        if isinstance(value, str) and len(value) > ID_CHARS_MAX:
            raise InvalidOption(f"{name} has {len(value)} characters; at most {ID_CHARS_MAX} can be sent")
    if message_id is None and ids is not None:
        # a task that reads its locked rows again gets others, which may be equal to the first
        token = b"" if lock is None else lock.token.bytes
        found = ids.take((destination or "").encode(), payload, token)
        payload = with_properties(payload, split(payload), message_id=found)
    return Outgoing(destination, payload, (session_id, key), lock)


def _anew(payload: bytes, entity: str | None) -> tuple[bytes, tuple[Any, Any, Any]]:
    """The message without what the broker added; its message id, session id and partition key.

    Outside of dead-letter queues the marks of one are the application's own."""
    try:
        sections = split(payload)
        properties = read_properties(payload, sections)
        key = read_message_annotations(payload, sections).get(_PARTITION_KEY)
        anew = sent_anew(payload, is_dead_letter=entity is None or without_dead_letters(entity)[1])
    except AmqpError as error:
        raise InvalidOption(f"a row's column amqp holds no encoded message: {error}") from None
    return anew, (properties.message_id, properties.group_id, key)


def _lock(row: Mapping[str, Any]) -> Lock | None:
    entity, token, until = row.get("entity"), row.get("lock_token"), row.get("locked_until")
    if entity is None or token is None:
        return None
    number = row.get("sequence_number")
    if (until is None or number is None) and row.get("amqp") is not None:
        annotations = annotations_of(row["amqp"])
        number = annotations.get("x-opt-sequence-number") if number is None else number
        until = _time(annotations.get("x-opt-locked-until")) if until is None else until
    try:
        end = None if until is None else _milliseconds(until) / 1000
        return Lock(entity, UUID(token), end, number if isinstance(number, int) else None)
    except (ValueError, AttributeError, TypeError):
        raise InvalidOption(f"a row's lock_token or locked_until is not as a lock stream gives it: {token!r}") from None


def _shown(value: Any) -> Any:
    """Return the part of a column's value that JSON can hold."""
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    return {str(name): each for name, each in value} if isinstance(value, list) else value


def _typed(batch: pa.RecordBatch) -> Callable[[Any], Any] | None:
    """What makes an AMQP value of the value of an application property, if it is not one as it is."""
    if "application_properties" not in batch.schema.names:
        return None
    kind = batch.schema.field("application_properties").type
    if not pa.types.is_map(kind):  # of rows without a type (Spark 4.0), where all of them are null
        return None
    if pa.types.is_timestamp(kind.item_type):
        return lambda time: Timestamp(_milliseconds(time))
    return _AMQP_TYPES.get(kind.item_type)


def encode(row: Mapping[str, Any], typed: Callable[[Any], Any] | None = None) -> bytes:
    """Return the encoded message of a row's typed columns. `typed` converts the values of application properties."""
    get = row.get
    annotations: dict[Any, Any] = {}
    if get("scheduled_enqueue_time_utc") is not None:
        annotations[Symbol(_SCHEDULED)] = Timestamp(_milliseconds(row["scheduled_enqueue_time_utc"]))
    if get("partition_key") is not None:
        annotations[Symbol(_PARTITION_KEY)] = row["partition_key"]
    ttl = get("time_to_live")
    body = get("body")
    return encode_message(
        header=None if ttl is None else Header(durable=True, ttl=_ttl(ttl)),
        message_annotations=annotations or None,
        properties=Properties(
            message_id=get("message_id"),
            to=get("to"),
            subject=get("subject"),
            reply_to=get("reply_to"),
            correlation_id=get("correlation_id"),
            content_type=get("content_type"),
            group_id=get("session_id"),
            reply_to_group_id=get("reply_to_session_id"),
        ),
        application_properties=_properties(get("application_properties"), typed),
        body=body.encode() if isinstance(body, str) else bytes(body or b""),
    )


def _properties(
    pairs: Iterable[tuple[str, Any]] | Mapping[str, Any] | str | None, typed: Callable[[Any], Any] | None
) -> dict[str, Any] | None:
    if isinstance(pairs, str):
        return from_json(pairs)
    if not pairs:
        return None
    if typed is None:
        return dict(pairs)
    return {name: None if value is None else typed(value) for name, value in dict(pairs).items()}


def _ttl(span: dt.timedelta) -> int:
    milliseconds = span // dt.timedelta(milliseconds=1)
    if milliseconds < 1:
        raise InvalidOption(f"time_to_live is at least a millisecond, not {span}")
    return min(milliseconds, 0xFFFFFFFF)


def _milliseconds(time: dt.datetime) -> int:
    """Arrow gives UTC; a time without a zone is taken for it."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
    return (aware - _EPOCH) // dt.timedelta(milliseconds=1)
