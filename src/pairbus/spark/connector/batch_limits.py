"""Decides how many messages the next request asks for, by the size of the last ones. Pure."""

from __future__ import annotations

from typing import Final

#: Asked for at once while nobody knows how large they are.
COUNT_FIRST: Final = 32
REQUEST_BYTES: Final = 4 * 1024 * 1024


class RequestSize:
    """Keeps `count`, how many messages to ask for at once: about as many as have REQUEST_BYTES."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.count = min(COUNT_FIRST, count_max)

    def __repr__(self) -> str:
        return f"<RequestSize {self.count}>"

    def received(self, sizes: list[int]) -> None:
        """Adapt to the sizes, in bytes, of the messages that came."""
        if sizes:
            mean = max(1, sum(sizes) // len(sizes))
            self.count = max(1, min(self._count_max, REQUEST_BYTES // mean))
