"""Reads the options `startingPosition` and `endingPosition`, and finds times in an entity's numbers. Pure.

A position is a word (`earliest`, `latest`), a time, a sequence number, or JSON with one of these for each entity, and
for each partition of a partitioned one: `{"orders": 17, "bills": {"0": 5, "3": "latest"}}`. Such JSON has the form of a
stream's offset. A start is the first message that is read, an end the first that is not.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pairbus.wire.partitions import PARTITION_SHIFT, Range

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
#: A number counts within its partition.
Spot = Literal["earliest", "latest"] | dt.datetime | int
PARTITION_MAX: Final = 2**15 - 1
COUNT_MAX: Final = (1 << PARTITION_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Position:
    """Where each partition of each entity is begun, or ended. Names of entities are in lower case."""

    default: Spot
    entities: Mapping[str, Spot | Mapping[int, Spot]] = field(default_factory=dict)

    def spot(self, entity: str, partition: int) -> Spot:
        found = self.entities.get(entity.lower(), self.default)
        return found.get(partition, self.default) if isinstance(found, Mapping) else _alone(found, partition, self)

    def partitions(self, entity: str) -> Iterable[int]:
        """Return the partitions of an entity that are named."""
        found = self.entities.get(entity.lower(), self.default)
        return found if isinstance(found, Mapping) else (0,)

    def check(self, name: str, entities: Iterable[str]) -> None:
        """Raise ValueError where it names an entity that is not read."""
        read = {entity.lower() for entity in entities}
        for entity in self.entities:
            if entity not in read:
                raise ValueError(f"{name} names {entity!r}, which is not read; read are {', '.join(sorted(read))}")


def _alone(spot: Spot, partition: int, position: Position) -> Spot:
    # A number without a partition is one of a plain entity, which has partition 0 alone.
    return position.default if isinstance(spot, int) and partition else spot


def parse_position(name: str, text: str, default: Literal["earliest", "latest"], words: tuple[str, ...]) -> Position:
    """Return what the option `name` says. `words` are those it may use. Raises ValueError."""
    if not text.strip().startswith("{"):
        spot = _spot(name, text.strip(), words)
        return Position(spot)
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} begins like JSON and is none: {error}") from None
    entities: dict[str, Spot | Mapping[int, Spot]] = {}
    for entity, value in given.items():
        if entity.startswith("$"):  # an offset's own entries: a position may be copied from a query's progress
            continue
        if entity.lower() in entities:
            raise ValueError(f"{name} names {entity!r} twice: entities are known regardless of letter case")
        if isinstance(value, dict):
            entities[entity.lower()] = {
                _partition(name, entity, key): _spot(f"{name} of {entity!r}, partition {key},", each, words)
                for key, each in value.items()
            }
        else:
            entities[entity.lower()] = _spot(f"{name} of {entity!r}", value, words)
    return Position(default, entities)


def _partition(name: str, entity: str, key: str) -> int:
    if not key.isascii() or not key.isdigit() or int(key) > PARTITION_MAX:
        raise ValueError(f"{name} of {entity!r} has the partition {key!r}; partitions are whole numbers from 0")
    return int(key)


def _spot(name: str, value: Any, words: tuple[str, ...]) -> Spot:
    if isinstance(value, str):
        if value.lower() in words:
            return value.lower()  # type: ignore[return-value]
        try:
            time = dt.datetime.fromisoformat(value)
        except ValueError:
            time = None
        if time is not None and not value.isdigit():  # fromisoformat takes 20260101 for a day
            return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
    elif isinstance(value, int) and not isinstance(value, bool):
        if 1 <= value <= COUNT_MAX:
            return value
        if value > COUNT_MAX:
            raise ValueError(
                f"{name} is {value}, a number of partition {value >> PARTITION_SHIFT}; write it as "
                f'{{"{value >> PARTITION_SHIFT}": {value & COUNT_MAX}}}'
            )
    raise ValueError(
        f"{name} is {' or '.join(words)}, a time such as 2026-01-31T08:00:00Z, or JSON with one of these or a sequence "
        f'number for each entity, {{"orders": 17, "bills": {{"0": 5, "3": "{words[0]}"}}}}; not {value!r}'
    )


def search_time(inside: Range, time: dt.datetime) -> Generator[int, tuple[int, dt.datetime] | None, int]:
    """Find the first number of a partition with a message that was enqueued at `time` or later, by bisection.

    Yields a number, and is sent the number and the time of the first active message from there on, or None. Where there
    is none, the number after the last.
    """
    low, high = inside.first, inside.last + 1
    while low < high:
        middle = (low + high) // 2
        found = yield middle
        if found is None or found[1] >= time:
            high = middle
        else:
            low = found[0] + 1
    return low
