from __future__ import annotations

import pytest

from pairbus.syphon.core.meter import Meter


def test_what_was_counted_lately() -> None:
    meter = Meter(5.0)
    assert meter.per_s(0.0) == 0.0
    meter.count(100, 0.0)
    meter.count(100, 0.01)
    assert repr(meter) == "<Meter 200 in the last 5 s>"
    assert meter.per_s(0.1) == 200, "over a second at least"
    assert meter.per_s(1.0) == pytest.approx(200)
    assert meter.per_s(4.0) == pytest.approx(50)
    assert meter.per_s(100.0) == 0.0


def test_a_steady_flow() -> None:
    meter = Meter(5.0)
    for step in range(10_000):
        meter.count(1, step / 1000)
    assert meter.per_s(10.0) == pytest.approx(1000, rel=0.05)
