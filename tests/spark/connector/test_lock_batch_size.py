from __future__ import annotations

import pytest

from pairbus.spark.connector.lock_batch_size import ROWS_FIRST, LockBatchSize


def run(pace: LockBatchSize, row_s: float, lock_s: float, batches: int, fixed_s: float = 0.3) -> list[tuple[int, bool]]:
    """Batches of a pipeline that takes so long for a row: their sizes, and whether they were in time."""
    now, late, found = 0.0, False, []
    for _ in range(batches):
        pace.found(lock_s, 1 if late else 0)
        count = pace.batch(0.0)
        pace.began(count, now)
        now += fixed_s + count * row_s
        pace.ended(now)
        pace.ended(now + 100)  # nothing to do for a while
        late = fixed_s + count * row_s > lock_s
        found.append((count, not late))
    return found


@pytest.mark.parametrize("row_s", [0.001, 0.05, 1.0])
@pytest.mark.parametrize("lock_s", [5.0, 30.0, 60.0, 300.0])
def test_a_slow_pipeline_is_in_time_after_two_batches_at_most_and_stays_so(row_s: float, lock_s: float) -> None:
    found = run(LockBatchSize(), row_s, lock_s, 30)
    assert all(in_time for _, in_time in found[2:]), found
    assert all(count >= 1 for count, _ in found)


def test_a_fast_one_has_all_that_its_lock_allows() -> None:
    assert {count for count, _ in run(LockBatchSize(), 0.0001, 60.0, 5)} == {ROWS_FIRST}
    assert {count for count, _ in run(LockBatchSize(), 0.0001, 6.0, 5)} == {ROWS_FIRST // 10}


def test_a_known_rate_makes_batches_of_a_third_of_the_lock() -> None:
    pace = LockBatchSize()
    assert pace.batch(3000.0) == 60_000
    pace.found(30.0, 0)
    assert pace.batch(3000.0) == 30_000


def test_a_trigger_that_waits_is_no_slow_batch() -> None:
    pace = LockBatchSize()
    for start in range(0, 6000, 600):
        pace.found(60.0, 0)
        assert pace.batch(0.0) == ROWS_FIRST
        pace.began(ROWS_FIRST, float(start))
        pace.ended(float(start + 600))


def test_a_pipeline_that_becomes_fast_again_gets_larger_batches() -> None:
    pace = LockBatchSize()
    run(pace, 1.0, 60.0, 5)
    assert run(pace, 0.0001, 60.0, 12)[-1][0] == ROWS_FIRST
    assert repr(pace) == "<LockBatchSize locks of 60 s, no bound>"
