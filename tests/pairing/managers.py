"""An administration client that is told how to answer."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from azure.core.exceptions import HttpResponseError


class Queue(NamedTuple):
    name: str
    max_delivery_count: int = 2147483647


def http(status: int) -> HttpResponseError:
    error = HttpResponseError(message=f"status {status}")
    error.status_code = status
    return error


class FakeManager:
    """`refusals`: index → the errors that making that queue meets, one after the other."""

    def __init__(self, *names: str, refusals: dict[int, list[Exception]] | None = None) -> None:
        self.queues = {name: Queue(name) for name in names}
        self.refusals = refusals or {}
        self.listing_error: Exception | None = None
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.tries: Counter[int] = Counter()
        self.is_closed = False
        self.fully_qualified_namespace: str | None = None

    def list_queues(self, **limits: Any) -> list[Queue]:
        if self.listing_error is not None:
            raise self.listing_error
        return list(self.queues.values())

    def get_queue(self, name: str, **limits: Any) -> Queue:
        if name not in self.queues:
            raise http(404)
        return self.queues[name]

    def create_queue(self, name: str, **properties: Any) -> None:
        index = int(name.rsplit("/", 1)[-1])
        self.tries[index] += 1
        refusals = self.refusals.get(index)
        if refusals:
            raise refusals.pop(0)
        self.made.append((name, properties))
        self.queues[name] = Queue(name)

    def close(self) -> None:
        self.is_closed = True


class AsyncFakeManager(FakeManager):
    """The same for the async API."""

    async def list_queues(self, **limits: Any) -> Any:  # type: ignore[override]
        for queue in super().list_queues(**limits):
            yield queue

    async def get_queue(self, name: str, **limits: Any) -> Queue:  # type: ignore[override]
        return super().get_queue(name, **limits)

    async def create_queue(self, name: str, **properties: Any) -> None:  # type: ignore[override]
        super().create_queue(name, **properties)

    async def close(self) -> None:  # type: ignore[override]
        super().close()


def path(index: int) -> str:
    return f"contoso/x-servicebus-transfer/{index}"
