"""Inspects a backlog queue by peeking: how many messages it holds, how old they are, and for which destinations.

The callers decide whether that is too many or too old.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pairbus.amqp.message import read_header, split
from pairbus.syphon.core.arrival import annotations_of, key_of, path_of
from pairbus.syphon.core.draining import Seen
from pairbus.wire import WireClient
from pairbus.wire.errors import NotFound
from pairbus.wire.partitions import number_of, partition_of

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
    client: WireClient, queue: str, path: str, count_max: int | None = None, number: int = 1
) -> AsyncIterator[tuple[Seen, bytes]]:
    """Yield every active message from a number on, in the order of each partition. `path` is what is peeked at, `queue`
    what keys are made of."""
    found = 0
    while True:
        messages = await client.peek(path, number, PEEK_COUNT)
        if not messages:
            return
        for payload in messages:
            annotations = annotations_of(payload)
            sequence = annotations.get("x-opt-sequence-number")
            number = max(number, int(sequence) + 1 if isinstance(sequence, int) else number + 1)
            if annotations.get("x-opt-message-state", 0):
                continue  # deferred or scheduled: no receiver gets it
            yield Seen(key_of(queue, annotations, b""), path_of(payload)), payload
            found += 1
            if count_max is not None and found >= count_max:
                return


async def look(
    client: WireClient, path: str, places: Mapping[int, int], end: Callable[[int], int]
) -> AsyncIterator[tuple[int, str]]:
    """Yield sequence number and destination of the messages of each partition, from its place up to its end."""
    number = places.get(0, 1)
    while messages := await client.peek(path, number, PEEK_COUNT):
        for payload in messages:
            sequence = annotations_of(payload).get("x-opt-sequence-number")
            if not isinstance(sequence, int):
                number += 1
                continue
            partition = partition_of(sequence)
            if sequence < places.get(partition, 0):
                number = places[partition]
                break
            if sequence > end(partition):
                number = number_of(partition + 1, 1)
                break
            number = max(number, sequence + 1)
            yield sequence, path_of(payload)


async def measure(client: WireClient, queue: str, count_max: int | None = None) -> Depth:
    depth = Depth(queue)
    oldest: Seen | None = None
    partition = 0
    try:
        async for seen, payload in scan(client, queue, queue, count_max):
            depth.messages += 1
            depth.destinations[seen.path] = depth.destinations.get(seen.path, 0) + 1
            oldest = _older(depth, oldest, seen, payload)
            partition = partition_of(seen.key[1] or 0)
        depth.is_complete = count_max is None or depth.messages < count_max
        is_sought = not depth.is_complete
        while is_sought:  # the oldest may be in a partition that was not looked at
            is_sought = False
            async for seen, payload in scan(client, queue, queue, 1, number_of(partition + 1, 1)):
                oldest = _older(depth, oldest, seen, payload)
                partition, is_sought = partition_of(seen.key[1] or 0), True
    except NotFound:
        depth.exists = False
    return depth


def _older(depth: Depth, oldest: Seen | None, seen: Seen, payload: bytes) -> Seen:
    """Return the older of two messages, and note it where that is the second."""
    if oldest is not None and (oldest.key[2] or 0) <= (seen.key[2] or 0):
        return oldest
    depth.oldest_number = seen.key[1]
    depth.oldest = None if seen.key[2] is None else seen.key[2] / 1000
    depth.oldest_deliveries = read_header(payload, split(payload)).delivery_count or 0
    return seen
