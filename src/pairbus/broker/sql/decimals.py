"""Reads and writes decimals as AMQP carries them: IEEE 754-2008, the coefficient as a binary integer. Pure."""

from __future__ import annotations

from decimal import Context, Decimal, InvalidOperation, Overflow
from typing import Final

from pairbus.amqp.types import Decimal32, Decimal64, Decimal128

#: What C#'s decimal holds: 96 bits, and up to 28 places.
DECIMAL_MAX: Final = Decimal((1 << 96) - 1)
PLACES_MAX: Final = 28
#: Enough for the exact product of two of them.
CONTEXT: Final = Context(prec=60, Emax=999999, Emin=-999999)

# Bytes → bits of the exponent, and what it is counted from.
_FORMS: Final = {4: (8, 101), 8: (10, 398), 16: (14, 6176)}


def read_decimal(raw: Decimal32 | Decimal64 | Decimal128) -> Decimal | None:
    """Return the number, or None for an infinity or a NaN, which C#'s decimal does not know."""
    exponent_bits, bias = _FORMS[len(raw)]
    bits = int.from_bytes(raw)
    width = len(raw) * 8
    sign = bits >> (width - 1)
    combination = bits >> (width - 6) & 0x1F
    if combination >> 1 == 0b1111:
        return None
    shift = width - 1 - exponent_bits
    coefficient = bits & ((1 << shift) - 1)
    if combination >> 3 == 0b11:
        # The exponent stands two bits further down, and the coefficient has 100 in front.
        shift -= 2
        coefficient = bits & ((1 << shift) - 1) | 0b100 << shift
    exponent = (bits >> shift & ((1 << exponent_bits) - 1)) - bias
    return Decimal((sign, tuple(map(int, str(coefficient))), exponent))


def write_decimal(value: Decimal) -> Decimal128:
    """Return a number within C#'s bounds as a decimal128."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    coefficient = int("".join(map(str, digits)))
    return Decimal128((sign << 127 | exponent + 6176 << 113 | coefficient).to_bytes(16))


def bounded(value: Decimal) -> Decimal:
    """Return the value with as many places as C#'s decimal can hold. Raise OverflowError for one that it can't."""
    try:
        digits = max(value.adjusted(), 0) + 1
        places = max(0, min(-int(value.as_tuple().exponent), PLACES_MAX, 29 - digits))
        rounded = value.quantize(Decimal(1).scaleb(-places), context=CONTEXT)
        if places and CONTEXT.scaleb(rounded.copy_abs(), places) > DECIMAL_MAX:
            rounded = value.quantize(Decimal(1).scaleb(1 - places), context=CONTEXT)
    except (InvalidOperation, Overflow, ValueError):
        raise OverflowError("too large for a decimal") from None
    if rounded.copy_abs() > DECIMAL_MAX:
        raise OverflowError("too large for a decimal")
    return rounded
