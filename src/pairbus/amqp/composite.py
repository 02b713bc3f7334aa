"""Encodes and decodes composite types: described lists with named, typed fields (AMQP 1.4).

A class declares its descriptor and the kinds of its fields in wire order with `schema`; from that follow `encode`,
`decode_composite` and every check: a field of the wrong type or a missing mandatory field is a `DecodeError`, and
callers never see it. Integers in fields are plain ints: the schema knows their width. The composites themselves are in
`performative_types` and `message`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID

from pairbus.amqp import encoding
from pairbus.amqp.decoding import DECODERS, DEPTH_MAX, Decoder, compound_bounds, fixed, truncated
from pairbus.amqp.encoding import encode_to
from pairbus.amqp.errors import DecodeError, EncodeError
from pairbus.amqp.types import Array, Described, Symbol, Timestamp, ULong

Fields = dict[Any, Any]


class Composite:
    """Base of the composite types: a descriptor, and encoding by the schema."""

    __slots__ = ()
    DESCRIPTOR: ClassVar[int]
    SCHEMA: ClassVar[tuple[Field, ...]]
    PLAN: ClassVar[tuple[tuple[str, Mapping[int, Decoder], bool, Any], ...]]  # what reading needs of the schema

    def encode(self) -> bytes:
        out = bytearray()
        self.encode_to(out)
        return bytes(out)

    def encode_to(self, out: bytearray) -> None:
        body = bytearray()
        count = written = end = 0
        for field in self.SCHEMA:
            value = getattr(self, field.name)
            count += 1
            if value is None or (value is False and field.default is False):
                body.append(0x40)
                continue
            field.encode(body, value)
            written, end = count, len(body)
        if self.DESCRIPTOR not in _WHOLE:
            del body[end:]
            count = written
        out += b"\x00\x53"
        out.append(self.DESCRIPTOR)
        encoding.encode_list_body(out, body, count)


@dataclass(frozen=True, slots=True)
class CompositeType:
    name: str
    decoders: Mapping[int, Decoder]
    encode: Callable[[bytearray, Any, int], None]


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: CompositeType
    mandatory: bool
    default: Any

    def encode(self, out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0x40)
            return
        try:
            self.kind.encode(out, value, 2)
        except (struct.error, OverflowError, TypeError, ValueError, AttributeError):
            raise EncodeError(f"{self.name} must be {self.kind.name}, not {value!r:.60}") from None


def _pick(*codes: int) -> dict[int, Decoder]:
    return {code: DECODERS[code] for code in codes}


def _plain_small(buf: bytes, o: int, depth: int) -> tuple[int, int]:
    return buf[o], o + 1


def _zero(buf: bytes, o: int, depth: int) -> tuple[int, int]:
    return 0, o


def _encode_boolean(out: bytearray, value: Any, depth: int) -> None:
    out.append(0x41 if value else 0x42)


def _keyed(decoder: Decoder) -> Decoder:
    """Return a decoder of a map whose keys are symbols; strings pass too, since some clients aren't strict."""

    def decode_keyed(buf: bytes, o: int, depth: int) -> tuple[Any, int]:
        value, end = decoder(buf, o, depth)
        for key in value:
            if not isinstance(key, str):
                raise DecodeError(f"a key in a map of fields must be a symbol, not {type(key).__name__} (byte {o})")
        return value, end

    return decode_keyed


def _encode_fields(out: bytearray, value: Fields, depth: int) -> None:
    body = bytearray()
    for key, item in value.items():
        if type(key) is str:
            encoding.encode_symbol(body, key)
        else:
            encode_to(body, key, depth + 1)
        encode_to(body, item, depth + 1)
    encoding.encode_map_body(out, body, len(value))


def _one_symbol(decoder: Decoder) -> Decoder:
    def decode_one(buf: bytes, o: int, depth: int) -> tuple[list[Any], int]:
        value, end = decoder(buf, o, depth)
        return [value], end

    return decode_one


def _many_symbols(decoder: Decoder) -> Decoder:
    def decode_many(buf: bytes, o: int, depth: int) -> tuple[list[Any], int]:
        value, end = decoder(buf, o, depth)
        if value and value.code not in (0xA3, 0xB3):
            raise DecodeError(f"an array of symbols is needed, not one of type {value.code:#04x} (byte {o})")
        return list(value), end

    return decode_many


def _encode_symbols(out: bytearray, value: Sequence[str], depth: int) -> None:
    if not value:
        out.append(0x40)  # an empty array is read differently by everyone
        return
    code = 0xB3 if any(len(item) > 255 for item in value) else 0xA3
    encode_to(out, Array.of(code, [Symbol(item) for item in value]), depth)


def _composite(buf: bytes, o: int, depth: int) -> tuple[Any, int]:
    """Decode a described value: as a composite if it is known, else as `Described`."""
    if depth >= DEPTH_MAX:
        raise DecodeError(f"values nested deeper than {DEPTH_MAX} at byte {o - 1}")
    descriptor, after = read_descriptor(buf, o)
    found = COMPOSITES.get(descriptor)
    if found is None or found.DESCRIPTOR in PERFORMATIVES:
        return DECODERS[0](buf, o, depth)
    return decode_fields(found, buf, after, depth + 1)


def _only(*allowed: str) -> Decoder:
    def decode_one_of(buf: bytes, o: int, depth: int) -> tuple[Any, int]:
        value, end = _composite(buf, o, depth)
        if type(value).__name__ not in allowed and not isinstance(value, Described):
            raise DecodeError(f"{type(value).__name__} can't stand where {' or '.join(allowed)} belongs (byte {o})")
        return value, end

    return decode_one_of


def _error(buf: bytes, o: int, depth: int) -> tuple[Any, int]:
    value, end = _composite(buf, o, depth)
    if type(value).__name__ != "Error":
        raise DecodeError(f"an error is needed, not {value!r:.60} (byte {o})")
    return value, end


def _encode_composite(out: bytearray, value: Any, depth: int) -> None:
    if isinstance(value, Composite):
        value.encode_to(out)
    elif isinstance(value, Described):
        encode_to(out, value, depth)
    else:
        raise TypeError


def _encode_id(out: bytearray, value: Any, depth: int) -> None:
    if not isinstance(value, int | UUID | bytes | str) or isinstance(value, bool):
        raise TypeError
    encode_to(out, ULong(value) if type(value) is int else value, depth)


_UINT = {0x43: _zero, 0x52: _plain_small, 0x70: fixed(">I")}
_OUTCOMES = ("Accepted", "Rejected", "Released", "Modified")
_TEXT = (0xA1, 0xB1, 0xA3, 0xB3)  # a string where a symbol belongs, or the reverse, does no harm
_KINDS: Final = {
    kind.name: kind
    for kind in (
        CompositeType("boolean", _pick(0x41, 0x42, 0x56), _encode_boolean),
        CompositeType("ubyte", {0x50: _plain_small}, encoding.encode_ubyte),
        CompositeType("ushort", {0x60: fixed(">H")}, encoding.encode_ushort),
        CompositeType("uint", _UINT, encoding.encode_uint),
        CompositeType("ulong", {0x44: _zero, 0x53: _plain_small, 0x80: fixed(">Q")}, encoding.encode_ulong),
        CompositeType("binary", _pick(0xA0, 0xB0), encoding.encode_binary),
        CompositeType("string", _pick(*_TEXT), encoding.encode_string),
        CompositeType("symbol", _pick(*_TEXT), encoding.encode_symbol),
        CompositeType(
            "symbols",
            {0xA3: _one_symbol(DECODERS[0xA3]), 0xB3: _one_symbol(DECODERS[0xB3])}
            | {0xE0: _many_symbols(DECODERS[0xE0]), 0xF0: _many_symbols(DECODERS[0xF0])},
            _encode_symbols,
        ),
        CompositeType("fields", {0xC1: _keyed(DECODERS[0xC1]), 0xD1: _keyed(DECODERS[0xD1])}, _encode_fields),
        CompositeType("map", _pick(0xC1, 0xD1), _encode_fields),
        CompositeType("timestamp", _pick(0x83), lambda out, value, depth: encode_to(out, Timestamp(value), depth)),
        CompositeType("id", _pick(0x44, 0x53, 0x80, 0x98, 0xA0, 0xB0, 0xA1, 0xB1), _encode_id),
        CompositeType("error", {0x00: _error}, _encode_composite),
        CompositeType("source", {0x00: _only("Source")}, _encode_composite),
        CompositeType("target", {0x00: _only("Target", "Coordinator")}, _encode_composite),
        CompositeType("outcome", {0x00: _only(*_OUTCOMES)}, _encode_composite),
        CompositeType(
            "state", {0x00: _only(*_OUTCOMES, "Received", "Declared", "TransactionalState")}, _encode_composite
        ),
    )
}
COMPOSITES: Final[dict[Any, type[Composite]]] = {}  # by descriptor, as number and as symbol
PERFORMATIVES: Final = frozenset((*range(0x10, 0x19), *range(0x40, 0x45)))
#: Written with all their fields, trailing nulls too: azure-servicebus 7.11 to 7.14 index what comes (`open[9]`,
#: `begin[7]`, `transfer[11]`), and all of them index an error
#: (docs/reference/protocol.md#an-error-has-all-three-fields).
_WHOLE: Final = frozenset((*range(0x10, 0x19), 0x1D))
_C = TypeVar("_C", bound=type[Composite])


def schema(descriptor: int, symbol: str, kinds: str = "") -> Callable[[_C], _C]:
    """Declare a class's descriptor and the kinds of its fields in wire order; `!` marks a mandatory field."""

    def declare(cls: _C) -> _C:
        cls.DESCRIPTOR = descriptor
        declared = []
        for field, name in zip(fields(cls), kinds.split(), strict=True):  # type: ignore[arg-type]
            kind = _KINDS[name.rstrip("!")]
            default = None if field.default is MISSING else field.default
            declared.append(Field(field.name, kind, name.endswith("!"), default))
        cls.SCHEMA = tuple(declared)
        cls.PLAN = tuple((field.name, field.kind.decoders, field.mandatory, field.default) for field in declared)
        COMPOSITES[descriptor] = COMPOSITES[symbol] = cls
        return cls

    return declare


def decode_composite(cls: type[Composite], buf: bytes, offset: int) -> tuple[Any, int]:
    """Decode a composite whose descriptor was read already, from its list at `offset`. Return it and the offset
    behind."""
    try:
        return decode_fields(cls, buf, offset, 1)
    except (IndexError, struct.error):
        raise truncated(buf, offset) from None
    except ValueError as error:
        raise DecodeError(f"text that can't be read in {cls.__name__} at byte {offset}: {error}") from None


def read_descriptor(buf: bytes, o: int) -> tuple[Any, int]:
    code = buf[o]
    if code == 0x53:
        return buf[o + 1], o + 2
    if code in (0x80, 0xA3, 0xB3, 0x44):
        return DECODERS[code](buf, o + 1, 0)
    raise DecodeError(f"a descriptor is a ulong or a symbol, not {code:#04x} (byte {o})")


def decode_fields(cls: type[Composite], buf: bytes, o: int, depth: int) -> tuple[Any, int]:
    code = buf[o]
    if code == 0x45:
        count, end = 0, o + 1
        o += 1
    elif code in (0xC0, 0xD0):
        count, o, end = compound_bounds(buf, o + 1, code == 0xD0)
    else:
        raise DecodeError(f"{cls.__name__} is a list, not {code:#04x} (byte {o})")
    plan = cls.PLAN
    if count > len(plan):
        raise DecodeError(f"{cls.__name__} has {len(plan)} fields, not {count} (byte {o})")
    composite = cls.__new__(cls)
    for name, decoders, mandatory, default in plan[:count]:
        code = buf[o]
        o += 1
        if code == 0x40 and not mandatory:
            setattr(composite, name, default)
        else:
            decoder = decoders.get(code)
            if decoder is None:
                raise _misfit(cls, name, code, o - 1)
            value, o = decoder(buf, o, depth)
            setattr(composite, name, value)
    if o != end:
        raise DecodeError(f"the fields of {cls.__name__} end at byte {o}, their list at byte {end}")
    for name, _, mandatory, default in plan[count:]:
        if mandatory:
            raise _misfit(cls, name, 0x40, o)
        setattr(composite, name, default)
    return composite, o


def _misfit(cls: type[Composite], name: str, code: int, o: int) -> DecodeError:
    if code == 0x40:
        return DecodeError(f"{cls.__name__} lacks {name} (byte {o})")
    kind = next(field.kind for field in cls.SCHEMA if field.name == name)
    return DecodeError(f"{cls.__name__}.{name} must be {kind.name}, not {code:#04x} (byte {o})")
