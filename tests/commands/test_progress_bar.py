from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.commands.progress_bar import bar


@pytest.mark.parametrize(
    ("done", "total", "text"),
    [
        (0, 10, "[                    ]   0% "),
        (4, 10, "[########            ]  40% "),
        (9_999, 10_000, "[################### ]  99% "),
        (10, 10, "[####################] 100% "),
        (11, 10, "[####################] 100% "),
        (-1, 10, "[                    ]   0% "),
        (5, None, ""),
        (0, 0, ""),
    ],
)
def test_bars(done: int, total: int | None, text: str) -> None:
    assert bar(done, total) == text


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_every_bar_is_as_wide_as_the_others(done: int, total: int) -> None:
    assert len(bar(done, total)) == 28
