"""Yields how long to wait before each attempt to connect; the caller may replace it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def exponential(
    random: Callable[[], float],
    *,
    first_s: float = 0.1,
    factor: float = 2.0,
    delay_s_max: float = 10.0,
    jitter: float = 0.2,
) -> Iterator[float]:
    """Yield ever longer waits without end. `random` yields 0 ≤ x < 1: clients that lost the same peer should not come
    back at once."""
    if not (first_s > 0 and factor >= 1 and delay_s_max >= first_s and 0 <= jitter < 1):
        raise ValueError(
            f"back-off wants 0 < first_s ≤ delay_s_max, factor ≥ 1 and 0 ≤ jitter < 1, not first_s={first_s}, "
            f"delay_s_max={delay_s_max}, factor={factor}, jitter={jitter}"
        )
    delay = first_s
    while True:
        yield delay * (1.0 - jitter * random())
        delay = min(delay * factor, delay_s_max)
