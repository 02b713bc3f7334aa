from __future__ import annotations

import pytest

from pairbus.spark.connector.batch_limits import COUNT_FIRST, REQUEST_BYTES, RequestSize, shares


def test_requests_are_by_the_size_of_the_last_ones() -> None:
    request = RequestSize(250)
    assert request.count == COUNT_FIRST
    request.received([])
    assert request.count == COUNT_FIRST
    request.received([100] * 32)
    assert request.count == 250
    request.received([250_000, 250_000])
    assert request.count == REQUEST_BYTES // 250_000
    request.received([100_000_000])
    assert request.count == 1
    assert RequestSize(5).count == 5


@pytest.mark.parametrize(
    ("count", "tasks_min", "task_max", "found"),
    [
        (10, 1, None, (10,)),
        (10, 3, None, (4, 3, 3)),
        (2, 5, None, (1, 1)),
        (0, 5, None, (0,)),
        (12_000, 1, 5_000, (4_000, 4_000, 4_000)),
        (12_000, 4, 5_000, (3_000,) * 4),
    ],
)
def test_a_count_is_shared_by_tasks(count: int, tasks_min: int, task_max: int | None, found: tuple[int, ...]) -> None:
    assert shares(count, tasks_min, task_max) == found and sum(found) == count
