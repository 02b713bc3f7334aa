from __future__ import annotations

from pairbus.spark.connector.batch_limits import COUNT_FIRST, REQUEST_BYTES, RequestSize


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
