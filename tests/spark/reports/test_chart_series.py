from __future__ import annotations

import pytest

from pairbus.spark.reports import chart_series


def test_a_frame_holds_every_event() -> None:
    assert chart_series.frame(100.4, 110.0, 1.0) == (100.0, 1.0, 11)
    assert chart_series.frame(100.4, 100.4, 0.5) == (100.0, 0.5, 1)


def test_a_long_time_has_long_steps() -> None:
    start, step, count = chart_series.frame(0.0, 86_400.0, 1.0)
    assert (start, step) == (0.0, 5.0) and count <= chart_series.STEPS_MAX
    for length in (19_998.9, 19_999.0, 20_000.0, 1e7):
        start, step, count = chart_series.frame(0.7, length + 0.7, 1.0)
        assert count <= chart_series.STEPS_MAX and start <= 0.7 and start + step * count > length + 0.7


def test_steps_are_more_than_nothing() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        chart_series.frame(0.0, 1.0, 0.0)


def test_counts_by_step() -> None:
    assert chart_series.by_step([(0, 1), (2, 5), (2, 1)], 4) == [1, 0, 6, 0]
    assert chart_series.either([0, 0], [1, 2]) == [1, 2]
    assert chart_series.either([0, 3], [1, 2]) == [0, 3]
    assert chart_series.depth([2, 3, 0, 0], [0, 1, 3, 1], [0, 0, 0, 1]) == [2, 4, 1, 0]


def test_the_client_that_is_worst_off_is_shown() -> None:
    changes = [
        (1.0, "a", "orders", "suspect"), (2.0, "b", "orders", "failed over"), (3.0, "a", "orders", "failed over"),
        (4.0, "a", "orders", "healthy"), (5.0, "b", "orders", "healthy"), (2.0, "a", "news", "unreachable"),
    ]  # fmt: skip
    found = chart_series.states(changes, 0.0)
    assert [(each["t"], each["state"]) for each in found["orders"]] == [
        (0.0, "healthy"), (1.0, "suspect"), (2.0, "failed over"), (5.0, "healthy"),
    ]  # fmt: skip
    assert [each["state"] for each in found["news"]] == ["healthy", "unreachable"]


def test_nothing_has_the_same_keys() -> None:
    assert chart_series.empty(1.0).keys() == {"start", "step", "sends", "backlog_depth", "delay", "states", "pings"}
