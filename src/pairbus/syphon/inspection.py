"""Looks into a backlog queue by peeking: how many messages, how old, for which destinations.

Whether that is too many or too old is its callers' decision.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.amqp.errors import AmqpError
from pairbus.amqp.message import read_header, read_message_annotations, split
from pairbus.syphon.core.arrival import key_of, path_of
from pairbus.syphon.core.draining import Seen
from pairbus.wire import WireClient
from pairbus.wire.errors import NotFound

#: Asked for at once.
PEEK_COUNT: Final = 250


@dataclass(slots=True)
class Depth:
    """What a queue holds. `is_complete` is False if only the first messages were looked at."""

    queue: str
    exists: bool = True
    messages: int = 0
    dead_letters: int | None = None
    #: Unix seconds.
    oldest: float | None = None
    oldest_number: int | None = None
    #: Deliveries of the oldest that came to nothing: somebody has tried.
    oldest_deliveries: int = 0
    destinations: dict[str, int] = field(default_factory=dict)
    is_complete: bool = True


async def scan(
    client: WireClient, queue: str, path: str, count_max: int | None = None
) -> AsyncIterator[tuple[Seen, bytes]]:
    """Yield every active message, oldest first. `path` is what is peeked at, `queue` what keys are made of."""
    number, found = 1, 0
    while True:
        messages = await client.peek(path, number, PEEK_COUNT)
        if not messages:
            return
        for payload in messages:
            annotations = _annotations(payload)
            sequence = annotations.get("x-opt-sequence-number")
            number = max(number, int(sequence) + 1 if isinstance(sequence, int) else number + 1)
            if annotations.get("x-opt-message-state", 0):
                continue  # deferred or scheduled: no receiver gets it
            yield Seen(key_of(queue, annotations, b""), path_of(payload)), payload
            found += 1
            if count_max is not None and found >= count_max:
                return


async def look(client: WireClient, path: str, number: int) -> AsyncIterator[tuple[int, str]]:
    """Return sequence number and destination of the messages from `number` on."""
    while messages := await client.peek(path, number, PEEK_COUNT):
        for payload in messages:
            sequence = _annotations(payload).get("x-opt-sequence-number")
            number = max(number, int(sequence)) if isinstance(sequence, int) else number + 1
            yield number, path_of(payload)
        number += 1


async def measure(client: WireClient, queue: str, count_max: int | None = None) -> Depth:
    depth = Depth(queue)
    try:
        async for seen, payload in scan(client, queue, queue, count_max):
            depth.messages += 1
            depth.destinations[seen.path] = depth.destinations.get(seen.path, 0) + 1
            if depth.oldest_number is None:
                depth.oldest_number = seen.key[1]
                depth.oldest = None if seen.key[2] is None else seen.key[2] / 1000
                depth.oldest_deliveries = read_header(payload, split(payload)).delivery_count or 0
    except NotFound:
        depth.exists = False
    depth.is_complete = count_max is None or depth.messages < count_max
    return depth


def _annotations(payload: bytes) -> dict[Any, Any]:
    try:
        return read_message_annotations(payload, split(payload))
    except AmqpError:
        return {}
