"""Python values that remember their AMQP type (AMQP 1.6).

A type without a Python equivalent gets a subclass, so that a decoded value is encoded again as the same type:

    null None · boolean bool · ubyte UByte · ushort UShort · uint UInt · ulong ULong · byte Byte · short Short
    int Int · long int · float Float · double float · decimalN DecimalN (raw bytes) · char Char
    timestamp Timestamp (ms since 1970) · uuid UUID · binary bytes · string str · symbol Symbol
    list list · map dict · array Array · described Described

Ranges are checked by the encoder, not here. The subclasses compare and hash as their base (UInt(1) == 1, Symbol("a") ==
"a"): look-ups by plain values work, and a dict can't have two map keys that differ only in type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970-01-01T00:00Z."""

    __slots__ = ()


class Float(float):
    __slots__ = ()


class Decimal32(bytes):
    __slots__ = ()


class Decimal64(bytes):
    __slots__ = ()


class Decimal128(bytes):
    __slots__ = ()


class Char(str):
    __slots__ = ()


class Symbol(str):
    __slots__ = ()


class Array(list[Any]):
    """A list of one type; `code` is the elements' constructor, `descriptor` what they are described by, if they are.

    Without a code the encoder takes the widest form of the first item's type. Items of a described array are
    `Described`. An empty array without code is written without a constructor, as pyamqp does and reads it.
    """

    __slots__ = ("code", "descriptor")

    def __init__(self, items: Iterable[Any] = (), code: int | None = None, descriptor: Any = None) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor

    @classmethod
    def of(cls, code: int, items: Iterable[Any]) -> Self:
        return cls(items, code)

    def __repr__(self) -> str:
        code = "" if self.code is None else f", code={self.code:#04x}"
        descriptor = "" if self.descriptor is None else f", descriptor={self.descriptor!r}"
        return f"Array({super().__repr__()}{code}{descriptor})"


@dataclass(slots=True, repr=False, unsafe_hash=True)
class Described:
    descriptor: Any
    value: Any

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"
