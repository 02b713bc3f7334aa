"""A clock that a test may move forward."""

from __future__ import annotations

import time


class Clock:
    """The time of day, plus what tests have added: locks run out without anybody waiting for them."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def advance(self, seconds: float) -> None:
        self.ahead += seconds
