from __future__ import annotations

from pairbus.spark.connector.batch_limits import COUNT_FIRST, REQUEST_BYTES, Allowance, Portions


def test_a_rate_saves_up_one_second_at_most() -> None:
    allowance = Allowance(10.0)
    assert allowance.take(0.0, 1000) == 10
    allowance.spend(10)
    assert allowance.take(0.5, 1000) == 5
    allowance.spend(5)
    assert allowance.take(100.0, 1000) == 10
    assert allowance.take(100.0, 3) == 3


def test_without_a_rate_the_limit_is_sparks() -> None:
    assert Allowance(None).take(0.0, 7) == 7
    assert Allowance(None).take(0.0, None) is None


def test_portions_are_by_the_size_of_the_last_ones() -> None:
    portions = Portions(250)
    assert portions.count == COUNT_FIRST
    portions.came([])
    assert portions.count == COUNT_FIRST
    portions.came([100] * 32)
    assert portions.count == 250
    portions.came([250_000, 250_000])
    assert portions.count == REQUEST_BYTES // 250_000
    portions.came([100_000_000])
    assert portions.count == 1
    assert Portions(5).count == 5
