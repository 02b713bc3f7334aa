from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.types import Decimal32, Decimal64, Decimal128
from pairbus.broker.sql.decimals import DECIMAL_MAX, bounded, read_decimal, write_decimal


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (Decimal32.fromhex("32800001"), "1"),
        (Decimal32.fromhex("b2000019"), "-2.5"),
        (Decimal64.fromhex("31c0000000000001"), "1"),
        (Decimal64.fromhex("3180000000000019"), "0.25"),
        (Decimal64.fromhex("6c7386f26fc0ffff"), "9999999999999999"),
        (Decimal128.fromhex("3040000000000000000000000000007b"), "123"),
        (Decimal128.fromhex("b03c0000000000000000000000000001"), "-0.01"),
        (Decimal32.fromhex("78000000"), None),
        (Decimal128.fromhex("7c000000000000000000000000000000"), None),
    ],
)
def test_all_three_widths_are_read(raw: Decimal32 | Decimal64 | Decimal128, value: str | None) -> None:
    assert read_decimal(raw) == (None if value is None else Decimal(value))


@given(st.decimals(-(10**28), 10**28, places=4) | st.decimals(-1, 1, places=28))
def test_what_is_written_is_read_again(value: Decimal) -> None:
    value = bounded(value)
    assert read_decimal(write_decimal(value)) == value


def test_bounds_are_those_of_c_sharp() -> None:
    assert bounded(DECIMAL_MAX) == DECIMAL_MAX
    assert bounded(Decimal(1) / 3) == Decimal("0.3333333333333333333333333333")
    assert bounded(Decimal("9" * 28 + ".99")) == Decimal("1" + "0" * 28)
    for large in (DECIMAL_MAX + 1, Decimal("1e40"), Decimal("Infinity")):
        with pytest.raises(OverflowError):
            bounded(large)
