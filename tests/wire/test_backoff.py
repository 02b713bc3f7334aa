from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.wire.backoff import exponential


def test_doubles_up_to_the_limit() -> None:
    delays = exponential(lambda: 0.0, first_s=0.5, delay_s_max=3.0)
    assert list(islice(delays, 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 60))
def test_jitter_only_shortens_and_never_to_nothing(drawn: float, steps: int) -> None:
    plain = list(islice(exponential(lambda: 0.0), steps))
    jittered = list(islice(exponential(lambda: drawn), steps))
    assert all(0.8 * full <= short <= full for short, full in zip(jittered, plain, strict=True))
    assert max(plain) <= 10.0


@pytest.mark.parametrize("wrong", [{"first_s": 0}, {"factor": 0.5}, {"delay_s_max": 0.01}, {"jitter": 1.0}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="back-off wants"):
        next(exponential(lambda: 0.0, **wrong))
