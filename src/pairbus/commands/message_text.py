"""Shows an encoded message as text on the command line, and creates one from a command's options.

It decides the columns of a table's row and the keys of a JSON object, how a body that isn't text is written (base64),
and what `--property`, `--schedule` and `--ttl` mean. Reading never fails: a part that can't be read is left out. It
sends nothing.

Pure.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

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
)
from pairbus.amqp.types import Symbol, Timestamp

#: A message whose ttl is past this many milliseconds says so by its absolute expiry time (AMQP 3.2.1: a uint).
_TTL_MS_MAX: Final = 0xFFFFFFFF
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
#: 9999-12-31, the last that clients of the service can read.
_MS_MAX: Final = 253402243199000
_STATES: Final = {0: "active", 1: "deferred", 2: "scheduled"}
_SPAN: Final = re.compile(r"\+(\d+(?:\.\d+)?)(s|m|h|d)?")
_SECONDS: Final = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_KEY: Final = re.compile(r"[^=:]+")


# -- shown


def shown(payload: bytes) -> dict[str, Any]:
    """Return a peeked message for JSON, by the names of the SDK; fields that it does not have are left out."""
    found: dict[str, Any] = {}
    try:
        sections = split(payload)
    except AmqpError as error:
        return {"unreadable": str(error), "body": base64.b64encode(payload).decode(), "body_encoding": "base64"}
    for part in (_annotations, _header, _properties, _application_properties, _body):
        try:
            part(payload, sections, found)
        except (AmqpError, ValueError, OverflowError, TypeError):
            continue
    return {name: value for name, value in found.items() if value is not None}


def sequence_number(payload: bytes) -> int | None:
    try:
        found = read_message_annotations(payload, split(payload)).get("x-opt-sequence-number")
    except AmqpError:
        return None
    return found if isinstance(found, int) else None


def _annotations(payload: bytes, sections: Any, found: dict[str, Any]) -> None:
    get = read_message_annotations(payload, sections).get
    found["sequence_number"] = get("x-opt-sequence-number")
    found["state"] = _STATES.get(get("x-opt-message-state", 0), "active")
    found["enqueued_time"] = _time(get("x-opt-enqueued-time"))
    found["scheduled_enqueue_time_utc"] = _time(get("x-opt-scheduled-enqueue-time"))
    found["locked_until"] = _time(get("x-opt-locked-until"))
    found["partition_key"] = _text(get("x-opt-partition-key"))
    found["dead_letter_source"] = _text(get("x-opt-deadletter-source"))


def _header(payload: bytes, sections: Any, found: dict[str, Any]) -> None:
    header = read_header(payload, sections)
    found["delivery_count"] = header.delivery_count or 0
    found["time_to_live_s"] = None if header.ttl is None else header.ttl / 1000


def _properties(payload: bytes, sections: Any, found: dict[str, Any]) -> None:
    properties = read_properties(payload, sections)
    found["message_id"] = _text(properties.message_id)
    found["session_id"] = properties.group_id
    found["correlation_id"] = _text(properties.correlation_id)
    for name in ("subject", "to", "reply_to", "content_type"):
        found[name] = _text(getattr(properties, name))


def _application_properties(payload: bytes, sections: Any, found: dict[str, Any]) -> None:
    read = read_application_properties(payload, sections)
    found["dead_letter_reason"] = _text(read.get("DeadLetterReason"))
    found["dead_letter_error_description"] = _text(read.get("DeadLetterErrorDescription"))
    found["application_properties"] = {str(name): _plain(value) for name, value in read.items()}


def _body(payload: bytes, sections: Any, found: dict[str, Any]) -> None:
    parts = read_body(payload, sections)
    kind = parts[0][0] if parts else "data"
    if kind == "data":
        _text_or_base64(b"".join(value for _, value in parts), found)
        return
    value = parts[0][1] if kind == "value" else [item for _, each in parts for item in each]
    if isinstance(value, bytes):
        _text_or_base64(bytes(value), found)
    elif isinstance(value, str):
        found["body"], found["body_encoding"] = value, "text"
    else:
        found["body"], found["body_encoding"] = _plain(value), "json"
    found["body_type"] = kind


def _text_or_base64(body: bytes, found: dict[str, Any]) -> None:
    try:
        found["body"], found["body_encoding"] = body.decode(), "text"
    except UnicodeDecodeError:
        found["body"], found["body_encoding"] = base64.b64encode(body).decode(), "base64"


def _text(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _plain(value: Any) -> Any:
    """Return a value of AMQP as one that JSON can hold."""
    if isinstance(value, Timestamp):
        return _time(value) or int(value)
    if value is None or isinstance(value, bool | float | int):
        return value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _time(value: Any) -> str | None:
    if not isinstance(value, int) or not 0 <= value <= _MS_MAX:
        return None
    return iso(value / 1000)


def iso(now: float) -> str:
    """Return unix seconds as ISO 8601, UTC, to the millisecond."""
    time = _EPOCH + dt.timedelta(milliseconds=round(now * 1000))
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


HEADINGS: Final = ("SEQUENCE", "ENQUEUED", "STATE", "ID", "SESSION", "BYTES", "BODY")
#: Values that every message has; a column with only these can be dropped if space is short.
_USUAL: Final = {"STATE": "active", "SESSION": "-"}
_NUMBERS: Final = ("SEQUENCE", "BYTES")
#: So much a terminal's line keeps for the body, and of an id that has to be cut.
_BODY_CHARS: Final = 24
_ID_CHARS_MIN: Final = 8


def table(rows: Sequence[tuple[str, ...]], room: int | None) -> list[str]:
    """Return a line for the headings and one for each row, at most `room` columns wide (None: unlimited).

    Where they don't fit, columns that tell nothing go first, then ids are cut, and the body last.
    """
    columns = [[heading, *cells] for heading, *cells in zip(HEADINGS, *rows, strict=True)]
    if room is not None and _missing(columns, room) > 0:
        columns = [each for each in columns if set(each[1:]) != {_USUAL.get(each[0])}]
        # the longer of the two gives first
        for column in sorted((each for each in columns if each[0] in ("ID", "SESSION")), key=_width, reverse=True):
            width = max(_ID_CHARS_MIN, _width(column) - max(0, _missing(columns, room)))
            column[:] = [cut(cell, width) for cell in column]
    *others, body = columns
    padded = [
        [f"{cell:>{_width(column)}}" if column[0] in _NUMBERS else f"{cell:<{_width(column)}}" for cell in column]
        for column in others
    ]
    return [cut("  ".join(cells).rstrip(), room) for cells in zip(*padded, body, strict=True)]


def cut(line: str, room: int | None) -> str:
    return line if room is None or len(line) <= room else line[: room - 1] + "…"


def _width(column: list[str]) -> int:
    return max(map(len, column))


def _missing(columns: list[list[str]], room: int) -> int:
    """Return how many columns the terminal lacks for the table with some of each body."""
    *others, body = columns
    return sum(_width(column) + 2 for column in others) + min(_width(body), _BODY_CHARS) - room


def row(payload: bytes) -> tuple[str, ...]:
    """Return the cells under HEADINGS, without control characters."""
    found = shown(payload)
    body = found.get("body", "")
    if found.get("body_encoding") == "base64":
        body = f"(no text: base64) {body}"
    number = found.get("sequence_number")
    return (
        "-" if number is None else str(number),
        str(found.get("enqueued_time", "-")).replace("T", " ").partition(".")[0],
        str(found.get("state", "-")),
        one_line(str(found.get("message_id", "-"))),
        one_line(str(found.get("session_id", "-"))),
        f"{len(payload):,}",
        one_line(body if isinstance(body, str) else json.dumps(body)),
    )


def one_line(text: str) -> str:
    """Return the text on one line, with control characters replaced."""
    return "".join(each if each.isprintable() else " " for each in " ".join(text.split()))


def notes(payload: bytes) -> list[str]:
    """Return what a row has no room for: properties, subject, why it was dead-lettered."""
    found = shown(payload)
    lines = []
    if reason := found.get("dead_letter_reason"):
        description = found.get("dead_letter_error_description")
        lines.append(f"dead-lettered: {one_line(reason)}" + (f": {one_line(description)}" if description else ""))
    for name in ("subject", "content_type", "correlation_id", "scheduled_enqueue_time_utc"):
        if name in found:
            lines.append(f"{name}: {one_line(found[name])}")
    if properties := found.get("application_properties"):
        pairs = [f"{one_line(name)}={one_line(str(value))}" for name, value in properties.items()]
        lines.append("properties: " + ", ".join(pairs))
    return lines


# -- typed


def parse_property(text: str) -> tuple[str, Any]:
    """Read `name=text`, or `name:=JSON` for a number, true or false; raise ValueError with what would be right."""
    key = _KEY.match(text)
    rest = text[key.end() :] if key else ""
    if key is None or not rest.startswith(("=", ":=")):
        raise ValueError(f"{text!r} is no property: NAME=TEXT, or NAME:=JSON for a number, true or false, is wanted")
    if rest.startswith("="):
        return key[0], rest[1:]
    try:
        value = json.loads(rest[2:])
    except ValueError:
        value = None
    if not isinstance(value, bool | int | float) or (type(value) is int and not -(2**63) <= value < 2**63):
        raise ValueError(f"{text!r}: after := stands a number of up to 64 bits, true or false; a text stands after =")
    return key[0], value


def parse_time(text: str, now: float) -> float:
    """Return a time in unix seconds from ISO 8601 with a zone, or `+90s`, `+5m`, `+2h`, `+1d`; raise ValueError."""
    wanted = "2026-12-31T08:00:00Z (with its zone), or +90s, +5m, +2h, +1d from now, is wanted"
    if span := _SPAN.fullmatch(text):
        return _within(now + float(span[1]) * _SECONDS[span[2]], text)
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time: {wanted}") from None
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no zone: {wanted}")
    return _within(time.timestamp(), text)


def _within(time: float, text: str) -> float:
    if not 0 <= time * 1000 <= _MS_MAX:
        raise ValueError(f"{text!r} is out of bounds: from 1970 to 9999")
    return time


def encode(
    body: bytes,
    *,
    message_id: str,
    now: float,
    session_id: str | None = None,
    subject: str | None = None,
    content_type: str | None = None,
    properties: Mapping[str, Any] | None = None,
    ttl_s: float | None = None,
    scheduled_at: float | None = None,
) -> bytes:
    """Encode a message as the official SDK does: data, the time to live in the header and as an absolute time."""
    ttl_ms = None if ttl_s is None else max(1, round(ttl_s * 1000))
    created = None if ttl_ms is None else round((scheduled_at or now) * 1000)
    expires = None if ttl_ms is None or created is None else min(created + ttl_ms, _MS_MAX)
    annotations = None
    if scheduled_at is not None:
        annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(round(scheduled_at * 1000))}
    return encode_message(
        header=None if ttl_ms is None else Header(durable=True, ttl=min(ttl_ms, _TTL_MS_MAX)),
        message_annotations=annotations,
        properties=Properties(
            message_id=message_id,
            subject=subject,
            content_type=content_type,
            group_id=session_id,
            creation_time=created,
            absolute_expiry_time=expires,
        ),
        application_properties=dict(properties) if properties else None,
        body=body,
    )
