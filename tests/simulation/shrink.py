"""Makes a world that fails small: leaves out whatever it fails without."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeVar


class Shrinkable(Protocol):
    """A world that consists of parts."""

    @property
    def size(self) -> int: ...
    def parts(self) -> Sequence[Any]: ...
    def without(self, left_out: set[Any], /) -> Self: ...


_World = TypeVar("_World", bound=Shrinkable)


def shrink(world: _World, fails: Callable[[_World], bool], seconds: float = 60.0) -> _World:
    """Return the smallest world that still fails and could be found in the time: parts are left out in ever smaller
    groups, the big ones first."""
    end = time.perf_counter() + seconds
    size = max(1, len(world.parts()) // 2)
    while size:
        parts = world.parts()
        start, found = 0, False
        while start < len(parts):
            if time.perf_counter() > end:
                return world
            smaller = world.without(set(parts[start : start + size]))
            if smaller.size < world.size and fails(smaller):
                world, parts, found = smaller, smaller.parts(), True
            else:
                start += size
        if not found or size > 1:
            size //= 2
    return world
