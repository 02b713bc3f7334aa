"""Decides how many messages a request asks for, and how they are shared among tasks that compete for a queue. Pure."""

from __future__ import annotations

from typing import Final

#: How many are asked for at once while their size is unknown.
COUNT_FIRST: Final = 32
REQUEST_BYTES: Final = 4 * 1024 * 1024


def shares(count: int, tasks_min: int, task_max: int | None = None) -> tuple[int, ...]:
    """Return how many of `count` messages each task receives: at least `tasks_min` tasks, if there is one message for
    each, and none of them with more than `task_max`."""
    tasks = max(1, min(count, max(tasks_min, 1 if task_max is None else -(-count // task_max))))
    each, more = divmod(count, tasks)
    return tuple(each + (number < more) for number in range(tasks))


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
