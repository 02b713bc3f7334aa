"""A received message: its exact bytes, and properties that are decoded on demand. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pairbus.amqp.message import Sections, read_header, read_message_annotations, split


@dataclass(slots=True, repr=False, eq=False)
class ReceivedMessage:
    """`payload` is the whole encoded message. `delivery_id` and `link` are where it can be settled on the link."""

    payload: bytes
    delivery_id: int
    tag: bytes
    link: object
    settled: bool
    message_format: int = 0
    _sections: Sections | None = field(default=None, init=False)
    _annotations: dict[Any, Any] | None = field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.delivery_id}: {len(self.payload)} bytes{', settled' if self.settled else ''}>"

    @property
    def sections(self) -> Sections:
        if self._sections is None:
            self._sections = split(self.payload)
        return self._sections

    @property
    def annotations(self) -> dict[Any, Any]:
        if self._annotations is None:
            self._annotations = read_message_annotations(self.payload, self.sections)
        return self._annotations

    @property
    def lock_token(self) -> UUID | None:
        """The delivery tag, a UUID in .NET's order (docs/reference/protocol.md#lock-tokens); None where it is no UUID,
        or nothing is locked."""
        if self.settled or len(self.tag) != 16:
            return None
        return UUID(bytes_le=self.tag)

    @property
    def sequence_number(self) -> int | None:
        return self._integer("x-opt-sequence-number")

    @property
    def enqueued_at(self) -> float | None:
        """Unix seconds."""
        return self._seconds("x-opt-enqueued-time")

    @property
    def locked_until(self) -> float | None:
        """Unix seconds."""
        return self._seconds("x-opt-locked-until")

    @property
    def delivery_count(self) -> int:
        """Failed deliveries before this one."""
        return read_header(self.payload, self.sections).delivery_count or 0

    def _integer(self, key: str) -> int | None:
        value = self.annotations.get(key)
        return int(value) if isinstance(value, int) else None

    def _seconds(self, key: str) -> float | None:
        value = self.annotations.get(key)
        return value / 1000 if isinstance(value, int) else None
