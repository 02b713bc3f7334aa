"""Finds and reads the sections of an encoded message (AMQP 3.2), and rewrites one without touching the others.

`split` finds the sections by skipping, so a body is never decoded on its way through the broker. Spans include the
section's descriptor. The rewriting functions leave all other bytes identical.

Because of what the SDKs send, it is lenient in four points: a message may have no body (pyamqp leaves it out when a
value is falsy), delivery annotations may come last (also pyamqp), the footer may come before the body (rhea, in
JavaScript), and a section that should be a map or list may be null. It does not decide what properties and annotations
mean.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pairbus.amqp.composite import Composite, decode_composite, schema
from pairbus.amqp.decoding import compound_bounds, decode, skip, truncated, unpack_u32
from pairbus.amqp.encoding import encode_list_body, encode_map_body, encode_to
from pairbus.amqp.errors import DecodeError, EncodeError
from pairbus.amqp.types import Symbol

BATCH_FORMAT: Final = 0x80013700

Span = tuple[int, int]
Body = bytes | tuple[str, Any] | None


@dataclass(init=False, repr=False, eq=False, slots=True)
class Sections:
    """Where each section lies; `bare_start` to `bare_end` is what passes through unchanged (properties to footer).

    `is_plain`: every descriptor is a small ulong, the body is data or none, and there are neither delivery annotations
    nor a footer."""

    header: Span | None
    delivery_annotations: Span | None
    message_annotations: Span | None
    properties: Span | None
    application_properties: Span | None
    body: Span | None
    footer: Span | None
    bare_start: int
    bare_end: int
    is_plain: bool

    def __repr__(self) -> str:
        return f"<Sections {' '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)}>"


@schema(0x70, "amqp:header:list", "boolean ubyte uint boolean uint")
@dataclass(slots=True, kw_only=True)
class Header(Composite):
    durable: bool = False
    priority: int | None = None
    ttl: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


@schema(
    0x73,
    "amqp:properties:list",
    "id binary string string string id symbol symbol timestamp timestamp string uint string",
)
@dataclass(slots=True, kw_only=True)
class Properties(Composite):
    message_id: Any = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: Any = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


_HEADER, _DELIVERY, _ANNOTATIONS, _PROPERTIES, _APPLICATION, _DATA, _SEQUENCE, _VALUE, _FOOTER = range(0x70, 0x79)
_NAMES: Final = (
    "header", "delivery-annotations", "message-annotations", "properties", "application-properties",
    "data", "amqp-sequence", "amqp-value", "footer",
)  # fmt: skip
_SYMBOLS: Final = {
    f"amqp:{name}:{kind}": 0x70 + index
    for index, (name, kind) in enumerate(
        zip(_NAMES, ("list", "map", "map", "list", "map", "binary", "list", "*", "map"), strict=True)
    )
}
_LIST, _MAP, _BINARY = (0x45, 0xC0, 0xD0, 0x40), (0xC1, 0xD1, 0x40), (0xA0, 0xB0)
_CONSTRUCTORS: Final = {
    _HEADER: _LIST, _DELIVERY: _MAP, _ANNOTATIONS: _MAP, _PROPERTIES: _LIST, _APPLICATION: _MAP,
    _DATA: _BINARY, _SEQUENCE: _LIST[:3], _FOOTER: _MAP,
}  # fmt: skip
# How a section usually starts → how `split` goes on: its code if one byte tells the size, minus that if four do.
_STARTS: Final = {
    bytes((0x00, 0x53, section, code)): section if code < 0xB0 or 0xC0 <= code < 0xD0 else -section
    for section, codes in _CONSTRUCTORS.items()
    for code in codes
    if code >= 0xA0
}


#: Data sections of a few bytes would take long to look at; a batch of the service has 4,500 at most.
SECTIONS_MAX: Final = 10_000
_REPEATED_MAX: Final = SECTIONS_MAX - len(_NAMES)


def split(payload: bytes) -> Sections:
    """Return where the sections of a message begin and end. Raise DecodeError for what is no message."""
    size, footer_at, is_usual = len(payload), -1, True  # the footer: where it stands before the body
    spans: list[Any] = [None] * 9
    o = last = start = repeated = 0
    try:
        while o < size:
            start = o
            section = _STARTS.get(payload[o : o + 4])
            if section is None:
                section, o = _odd_section(payload, o)
                is_usual = False
            elif section > 0:
                length = payload[o + 4]
                if not length and section != _DATA:
                    raise DecodeError(f"section {_NAMES[section - 0x70]} can't even hold its count (byte {start})")
                o += 5 + length
            else:
                section = -section
                length = unpack_u32(payload, o + 4)[0]
                if length < 4 and section != _DATA:
                    raise DecodeError(f"section {_NAMES[section - 0x70]} can't even hold its count (byte {start})")
                o += 8 + length
            if section > last:
                last = section
            elif section == last and _DATA <= section <= _SEQUENCE:
                spans[section - 0x70] = (spans[section - 0x70][0], o)  # the body begins with the first of them
                repeated += 1
                if repeated > _REPEATED_MAX:
                    raise DecodeError(f"a message has {SECTIONS_MAX} sections at most")
                continue
            elif last == _FOOTER and _DATA <= section < _FOOTER and not any(spans[5:8]):
                last = section
                footer_at = spans[8][0]
            elif section != _DELIVERY or o < size or spans[1] is not None:
                raise DecodeError(f"section {_NAMES[section - 0x70]} out of order at byte {start}")
            spans[section - 0x70] = (start, o)
    except (IndexError, struct.error):
        raise truncated(payload, start) from None
    if o > size:
        raise truncated(payload, start)
    s = Sections()
    (
        s.header, s.delivery_annotations, s.message_annotations, s.properties, s.application_properties,
        data, sequence, value, s.footer,
    ) = spans  # fmt: skip
    s.body = data or sequence or value
    if (data is None) + (sequence is None) + (value is None) < 2:
        raise DecodeError("a body is made of data, of amqp-sequence or of one amqp-value section, not of a mix")
    if footer_at >= 0 and spans[8][0] != footer_at:
        raise DecodeError(f"section footer out of order at byte {spans[8][0]}")
    tail = s.delivery_annotations
    s.bare_end = size if tail is None or tail[1] < size or last == _DELIVERY else tail[0]
    first = s.properties or s.application_properties or (s.footer if footer_at >= 0 else None) or s.body or s.footer
    s.bare_start = s.bare_end if first is None else first[0]
    s.is_plain = is_usual and sequence is value is tail is s.footer is None
    return s


def _odd_section(payload: bytes, start: int) -> tuple[int, int]:
    """Return section and end of what isn't encoded the usual way: other descriptors, any value, empty sections."""
    if payload[start] != 0x00:
        raise DecodeError(f"a message section is a described value, not {payload[start]:#04x} (byte {start})")
    o = start + 1
    if payload[o] in (0x53, 0x80):
        section, o = decode(payload, o)
    elif payload[o] in (0xA3, 0xB3):
        symbol, o = decode(payload, o)
        section = _SYMBOLS.get(symbol, 0)
    else:
        raise DecodeError(f"a section's descriptor is a ulong or a symbol, not {payload[o]:#04x} (byte {o})")
    if not _HEADER <= section <= _FOOTER:
        raise DecodeError(f"no message section has the descriptor at byte {start + 1}")
    allowed = _CONSTRUCTORS.get(section)
    if allowed is not None and payload[o] not in allowed:
        raise DecodeError(f"section {_NAMES[section - 0x70]} can't be of type {payload[o]:#04x} (byte {o})")
    return int(section), skip(payload, o)


def value_at(payload: bytes, start: int) -> int:
    """Return where the value of the section that begins at `start` begins."""
    return start + 3 if payload[start + 1] == 0x53 else skip(payload, start + 1)


def read_header(payload: bytes, s: Sections) -> Header:
    header: Header = _read_list(Header, payload, s.header)
    return header


def read_properties(payload: bytes, s: Sections) -> Properties:
    properties: Properties = _read_list(Properties, payload, s.properties)
    return properties


def _read_list(cls: type[Composite], payload: bytes, span: Span | None) -> Any:
    if span is None:
        return cls()
    o = value_at(payload, span[0])
    if payload[o] == 0x40:
        return cls()
    return decode_composite(cls, payload, o)[0]


def read_application_properties(payload: bytes, s: Sections) -> dict[str, Any]:
    return _read_map(payload, s.application_properties)


def read_message_annotations(payload: bytes, s: Sections) -> dict[Any, Any]:
    return _read_map(payload, s.message_annotations)


def read_delivery_annotations(payload: bytes, s: Sections) -> dict[Any, Any]:
    return _read_map(payload, s.delivery_annotations)


def _read_map(payload: bytes, span: Span | None) -> dict[Any, Any]:
    if span is None:
        return {}
    return decode(payload, value_at(payload, span[0]))[0] or {}


def read_body(payload: bytes, s: Sections) -> list[tuple[str, Any]]:
    """Return kind and value of each body section; the kind is 'data', 'sequence' or 'value'."""
    if s.body is None:
        return []
    o, end = s.body
    parts: list[tuple[str, Any]] = []
    while o < end:
        section, o = _section_code(payload, o)
        value, o = decode(payload, o)
        parts.append((_KINDS_OF_BODY[section], value))
    return parts


def without_body(payload: bytes) -> bytes:
    """Return the message with all its sections but the body."""
    body = split(payload).body
    return payload if body is None else payload[: body[0]] + payload[body[1] :]


_KINDS_OF_BODY: Final = {_DATA: "data", _SEQUENCE: "sequence", _VALUE: "value"}


def annotation_pairs(payload: bytes, s: Sections) -> list[tuple[Any, bytes]]:
    """Return key, and raw bytes of key and value, of each message annotation, for passing them on unread."""
    return raw_pairs(payload, s.message_annotations)


def raw_pairs(payload: bytes, span: Span | None) -> list[tuple[Any, bytes]]:
    """Return the same of any section that is a map, from where it begins and ends; nothing where it is not there."""
    pairs: list[tuple[Any, bytes]] = []
    if span is None:
        return pairs
    o = value_at(payload, span[0])
    code = payload[o]
    if code == 0x40:
        return pairs
    count, o, end = _bounds(payload, o)
    if count % 2 or count > end - o:
        raise DecodeError(f"{count} keys and values can't fill the map at byte {span[0]}")
    for _ in range(count // 2):
        start = o
        if o >= end or payload[o] in _NO_KEYS:
            raise DecodeError(f"a map of {count} keys and values lacks a key, or it isn't a simple value (byte {o})")
        key, o = decode(payload, o)
        o = skip(payload, o)
        pairs.append((key, payload[start:o]))
    if o != end:
        raise DecodeError(f"the pairs of a map end at byte {o}, the map at byte {end}")
    return pairs


_NO_KEYS: Final = frozenset((0x00, 0x45, *range(0xC0, 0x100)))  # what Python can't look up, or nobody should


def _bounds(payload: bytes, o: int) -> tuple[int, int, int]:
    if payload[o] == 0x45:
        return 0, o + 1, o + 1
    try:
        return compound_bounds(payload, o + 1, payload[o] >= 0xD0)
    except (IndexError, struct.error):
        raise truncated(payload, o) from None


def encode_annotations(raw_pairs: Iterable[bytes], count: int) -> bytes:
    """Return the message-annotations section made of `count` pairs that are already encoded."""
    return _section(_ANNOTATIONS, b"".join(raw_pairs), count)


def _section(section: int, body: bytes, pairs: int) -> bytes:
    out = bytearray((0x00, 0x53, section))
    encode_map_body(out, body, pairs)
    return bytes(out)


def _map_section(section: int, pairs: Mapping[Any, Any]) -> bytes:
    return _section(section, b"".join(_pair(section, key, value) for key, value in pairs.items()), len(pairs))


def _pair(section: int, key: Any, value: Any) -> bytes:
    """Encode one pair: annotations have symbols as keys, application properties strings (AMQP 3.2.5, 3.2.10)."""
    out = bytearray()
    encode_to(out, Symbol(key) if section != _APPLICATION and type(key) is str else key)
    encode_to(out, value)
    return bytes(out)


def encode_message(
    header: Header | None = None,
    message_annotations: Mapping[Any, Any] | None = None,
    properties: Properties | None = None,
    application_properties: Mapping[str, Any] | None = None,
    body: Body = b"",
    *,
    delivery_annotations: Mapping[Any, Any] | None = None,
    footer: Mapping[Any, Any] | None = None,
) -> bytes:
    """Encode a message. Body: bytes, ('data', [bytes, …]), ('sequence', [list, …]), ('value', anything), or None for
    no body section.

    ('sequence', [1, 2]), a single sequence that isn't a list of lists, is one section too.
    """
    out = bytearray()
    if header is not None:
        header.encode_to(out)
    if delivery_annotations:
        out += _map_section(_DELIVERY, delivery_annotations)
    if message_annotations:
        out += _map_section(_ANNOTATIONS, message_annotations)
    if properties is not None:
        properties.encode_to(out)
    if application_properties:
        out += _map_section(_APPLICATION, application_properties)
    for section, value in _body_sections(body):
        out += bytes((0x00, 0x53, section))
        encode_to(out, value)
    if footer:
        out += _map_section(_FOOTER, footer)
    return bytes(out)


def _body_sections(body: Body) -> list[tuple[int, Any]]:
    if body is None:
        return []
    if isinstance(body, bytes):
        return [(_DATA, body)]
    kind, value = body
    if kind == "value":
        return [(_VALUE, value)]
    if kind == "data":
        return [(_DATA, bytes(part)) for part in ([value] if isinstance(value, bytes) else value)]
    if kind == "sequence":
        whole = value and all(type(part) is list for part in value)
        return [(_SEQUENCE, list(part)) for part in (value if whole else [value])]
    raise EncodeError(f"a body is 'data', 'sequence' or 'value', not {kind!r}")


def with_application_properties(
    payload: bytes, s: Sections, set: Mapping[str, Any], remove: Container[Any] = ()
) -> bytes:
    """Return the message with these application properties set and removed, and every other byte as it was."""
    old = raw_pairs(payload, s.application_properties)
    pairs = [raw for key, raw in old if key not in set and key not in remove]
    if not set and len(pairs) == len(old):
        return payload
    pairs += [_pair(_APPLICATION, key, value) for key, value in set.items()]
    new = _section(_APPLICATION, b"".join(pairs), len(pairs)) if pairs else b""
    return _replace(payload, s, _APPLICATION, s.application_properties, new)


def with_properties(payload: bytes, s: Sections, **fields: Any) -> bytes:
    """Return the message with new values of these properties (None clears one), and every other byte as it was."""
    start = None if s.properties is None else s.properties[0]
    new = with_fields(Properties, payload, start, fields)
    return _replace(payload, s, _PROPERTIES, s.properties, new) if fields else payload


def with_fields(cls: type[Composite], payload: bytes, start: int | None, fields: Mapping[str, Any]) -> bytes:
    """Return the section at `start` with new values of these fields; the others keep their very bytes. None: there is
    no such section yet."""
    raw: list[bytes] = []
    o = 0 if start is None else value_at(payload, start)
    if start is not None and payload[o] != 0x40:
        count, o, end = _bounds(payload, o)
        if count > len(cls.SCHEMA):
            raise DecodeError(f"{cls.__name__} has {len(cls.SCHEMA)} fields, not {count} (byte {o})")
        for _ in range(count):
            begin = o
            o = skip(payload, o)
            raw.append(payload[begin:o])
        if o != end:
            raise DecodeError(f"the fields of {cls.__name__} end at byte {o}, their list at byte {end}")
    indexes = {field.name: index for index, field in enumerate(cls.SCHEMA)}
    for name, value in fields.items():
        if name not in indexes:
            raise EncodeError(f"{cls.__name__} has no field {name}")
        index = indexes[name]
        out = bytearray()
        cls.SCHEMA[index].encode(out, value)
        raw += [b"\x40"] * (index + 1 - len(raw))
        raw[index] = bytes(out)
    out = bytearray((0x00, 0x53, cls.DESCRIPTOR))
    encode_list_body(out, b"".join(raw), len(raw))
    return bytes(out)


def _replace(payload: bytes, s: Sections, section: int, span: Span | None, new: bytes) -> bytes:
    """Return the message with the section's bytes replaced, or put where the order of sections wants them."""
    if span is None:
        at = 0
        before = (s.header, s.delivery_annotations, s.message_annotations, s.properties)[: section - _HEADER]
        for earlier in before:
            if earlier is not None and earlier[0] < s.bare_end:  # delivery annotations may stand last
                at = earlier[1]
        span = (at, at)
    return payload[: span[0]] + new + payload[span[1] :]


def split_batch(payload: bytes) -> list[bytes]:
    """Return the messages of a batch envelope; the envelope's own properties and annotations mean nothing."""
    return list(each_of_batch(payload))


def each_of_batch(payload: bytes) -> Iterator[bytes]:
    """Yield the messages of a batch envelope."""
    o, end = split(payload).body or (0, 0)
    while o < end:
        section, o = _section_code(payload, o)
        if section != _DATA:
            raise DecodeError(f"a batch is made of data sections, not of {_NAMES[section - 0x70]} (byte {o})")
        message, o = decode(payload, o)
        yield message


def _section_code(payload: bytes, start: int) -> tuple[int, int]:
    if payload[start + 1] == 0x53:
        return payload[start + 2], start + 3
    descriptor, o = decode(payload, start + 1)
    return _SYMBOLS.get(descriptor, descriptor), o


def join_batch(
    messages: Sequence[bytes],
    message_annotations: Mapping[Any, Any] | None = None,
    properties: Properties | None = None,
) -> bytes:
    return encode_message(None, message_annotations, properties, None, ("data", messages))
