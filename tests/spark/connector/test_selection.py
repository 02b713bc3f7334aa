from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.connector.selection import Selection
from pairbus.spark.connector.values.option_text import as_text, of_text

NUMBERS = st.sets(st.one_of(st.integers(1, 60), st.integers(2**62, 2**62 + 5)))


@given(NUMBERS, NUMBERS)
def test_it_is_a_set_of_numbers(numbers: set[int], others: set[int]) -> None:
    found = Selection.of(numbers)
    assert len(found) == len(numbers)
    assert {n for n in numbers | others if n in found} == numbers
    assert None not in found
    if numbers:
        assert (found.first, found.last) == (min(numbers), max(numbers))
    assert found.without(others) == Selection.of(numbers - others)
    assert of_text(as_text(found)) == found


def test_ranges_that_touch_are_one() -> None:
    assert Selection([(5, 9), (1, 4), (20, 30), (25, 26), (3, 2)]) == Selection([(1, 9), (20, 30)])
    assert repr(Selection([(1, 9), (20, 30)])) == "<Selection of 20 numbers in 2 ranges, 1 to 30>"
    assert repr(Selection()) == "<Selection of nothing>"


def test_scattered_numbers_are_a_short_text() -> None:
    assert len(as_text(Selection.of(range(1, 400_000, 2)))) < 800_000
