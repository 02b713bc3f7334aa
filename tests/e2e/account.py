"""The account of every message: what its sender was told, and where it lies now, as exact bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pairbus.wire import NotFound, WireClient
from tests.message_view import View


@dataclass(frozen=True, slots=True)
class Found:
    """A message as it lies in a queue: `place` is the entity's path, for the backlog the queue's."""

    place: str
    payload: bytes

    @property
    def message_id(self) -> str:
        return str(View(self.payload).properties.message_id)

    @property
    def properties(self) -> Any:
        return View(self.payload).properties

    @property
    def application_properties(self) -> dict[str, Any]:
        return View(self.payload).application_properties

    @property
    def annotations(self) -> dict[Any, Any]:
        return View(self.payload).message_annotations

    @property
    def body(self) -> bytes:
        """Of a message with data sections."""
        return b"".join(value for _, value in View(self.payload).body)

    @property
    def path(self) -> str | None:
        """Where a message in the backlog wants to go."""
        return self.application_properties.get("x-ms-path")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the caller of one send saw."""

    entity: str
    ids: tuple[str, ...]
    elapsed_s: float
    error: BaseException | None

    @property
    def is_sent(self) -> bool:
        return self.error is None


@dataclass(slots=True)
class Account:
    """Every message by its id: where it was to go, its body, and what its sender was told."""

    entities: dict[str, str] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)
    raised: dict[str, BaseException] = field(default_factory=dict)

    def forget(self, *gone: str) -> None:
        """What a test has destroyed on purpose."""
        self.confirmed -= set(gone)

    @property
    def summary(self) -> str:
        return f"{len(self.confirmed)} confirmed, {len(self.raised)} raised"

    def enter(self, outcome: Outcome) -> None:
        for message_id in outcome.ids:
            self.entities[message_id] = outcome.entity
            if outcome.error is None:
                self.confirmed.add(message_id)
            else:
                self.raised[message_id] = outcome.error


@dataclass(frozen=True, slots=True)
class Tally:
    """Where the messages are now."""

    home: tuple[Found, ...]
    waiting: tuple[Found, ...]

    @property
    def home_ids(self) -> list[str]:
        return [found.message_id for found in self.home]

    @property
    def waiting_ids(self) -> list[str]:
        return [found.message_id for found in self.waiting]

    @property
    def doubled(self) -> set[str]:
        counted = Counter(self.home_ids + self.waiting_ids)
        return {message_id for message_id, count in counted.items() if count > 1}


async def peek(client: WireClient, place: str) -> list[Found]:
    found: list[Found] = []
    sequence = 1
    while True:
        try:
            payloads = await client.peek(place, sequence, 250)
        except NotFound:
            return found
        if not payloads:
            return found
        found += [Found(place, payload) for payload in payloads]
        sequence = int(found[-1].annotations["x-opt-sequence-number"]) + 1


def ids(messages: Iterable[Any]) -> list[str]:
    return [str(message.message_id) for message in messages]
