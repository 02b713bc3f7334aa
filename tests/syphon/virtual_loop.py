"""An event loop whose clock jumps: sockets are real, waiting is not.

While anything is ready it runs as any loop does. When nothing is, it looks at its sockets without waiting, and if they
are still, moves its clock to the next timer. Whoever talks over it must be on it too, the broker included: for those on
other threads no time goes by.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class _Selector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    jump: Callable[[float], None]
    is_real = True

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.is_real or timeout is None or timeout <= 0:
            return super().select(timeout)  # type: ignore[no-any-return]
        # a real millisecond: what was written to a socket a moment ago is readable at its other end only now
        found = super().select(0.001)
        if not found:
            self.jump(timeout)
        return found  # type: ignore[no-any-return]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Real until `is_virtual` is set."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self.jumps = 0
        selector = _Selector()
        selector.jump = self._jump
        super().__init__(selector)
        self._the_selector = selector

    def _jump(self, seconds: float) -> None:
        self._ahead += seconds
        self.jumps += 1

    @property
    def is_virtual(self) -> bool:
        return not self._the_selector.is_real

    @is_virtual.setter
    def is_virtual(self, value: bool) -> None:
        self._the_selector.is_real = not value

    @property
    def ahead(self) -> float:
        return self._ahead

    def time(self) -> float:
        return super().time() + self._ahead
