"""The offset of a stream by sequence number: the next number of each entity, and of each partition. Pure.

As JSON it is `{"orders": 17}` for a plain entity, and for one of whose partitions only the first was ever seen. For a
partitioned entity, with numbers that count within the partition, it is `{"orders": {"0": 17, "3": 5}}`; a partition
that is missing has not been begun. A stream that did not begin at the start keeps its start under `$from`, in the same
form: Spark remembers only the ends of batches, and asks again where the stream begins if its first batch fails.

`$enqueued` has, for each partition, when the last message before the offset was enqueued, in milliseconds since 1970.
Numbers and times grow together, so a message with a smaller number and a later time shows that the entity was deleted
and recreated. A batch that begins such an entity anew has its start under `$anew`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from pairbus.spark.connector.options import InvalidOption
from pairbus.wire.partitions import NUMBER_MAX, Range, Search, ask, count_of, number_of, partition_of, search_range

#: As Spark writes it down.
Offset = dict[str, Any]
#: An entity, and one of its partitions.
Lane = tuple[str, int]
#: Where each lane continues.
Places = dict[Lane, int]
ORIGIN: Final = "$from"
LAG: Final = "$lag"
ENQUEUED: Final = "$enqueued"
ANEW: Final = "$anew"
K = TypeVar("K")
T = TypeVar("T")


def read_offset(offset: Mapping[str, Any]) -> Places:
    """Return the places of an offset. Raises InvalidOption if it isn't one of this source."""
    places: Places = {}
    for entity, value in offset.items():
        if entity.startswith("$"):
            continue
        if isinstance(value, int):
            places[entity, partition_of(value)] = value
        elif isinstance(value, dict) and all(str(p).isdigit() and isinstance(n, int) for p, n in value.items()):
            places |= {(entity, int(p)): number_of(int(p), n) for p, n in value.items()}
        else:
            raise InvalidOption(
                f"the checkpoint holds the offset {value!r} for {entity!r}, which this version can't read; it was "
                "written by another source, or by a later version"
            )
    return places


def read_times(offset: Mapping[str, Any]) -> dict[Lane, int]:
    """Return when the last message before each place was enqueued; offsets of earlier versions say nothing of it."""
    found = offset.get(ENQUEUED, {})
    return {(entity, int(p)): time for entity, times in found.items() for p, time in times.items()}


def is_made_again(stop: int, time: int, oldest: tuple[int, int] | None) -> bool:
    """Return whether an entity was deleted and made again since it was read up to `stop`, the last message before which
    was enqueued at `time`. `oldest`: number and time of the first message that is there now."""
    return oldest is not None and oldest[0] < stop and oldest[1] > time


def write_offset(
    places: Mapping[Lane, int],
    origin: Mapping[str, Any] | None = None,
    times: Mapping[Lane, int] | None = None,
    anew: Mapping[Lane, int] | None = None,
) -> Offset:
    """Return places as an offset: always the same text for the same places, since Spark compares the text."""
    offset: Offset = {}
    for entity in dict.fromkeys(entity for entity, _ in places):
        own = {partition: number for (name, partition), number in places.items() if name == entity}
        plain = set(own) == {0}
        offset[entity] = own[0] if plain else {str(p): count_of(own[p]) for p in sorted(own)}
    if origin is not None:
        offset[ORIGIN] = dict(origin)
    if times is not None:
        offset[ENQUEUED] = {}
        for entity, partition in sorted(times):
            offset[ENQUEUED].setdefault(entity, {})[str(partition)] = times[entity, partition]
    if anew:
        offset[ANEW] = write_offset(anew)
    return offset


def of_entity(places: Mapping[Lane, int], entity: str) -> dict[int, int]:
    return {partition: number for (name, partition), number in places.items() if name == entity}


def admit(
    start: Mapping[K, int],
    rows_max: int | None,
    first_from: Callable[[K, int], int | None],
    until: Callable[[K], int] = lambda lane: NUMBER_MAX,
) -> dict[K, int]:
    """Return the end of the next batch: at most `rows_max` messages in all, shared fairly, none from `until` on.

    Counted in sequence numbers, so gaps make a batch smaller, never larger.
    """
    end = dict(start)
    hungry = list(start)
    left = rows_max
    while hungry and (left is None or left > 0):
        share = NUMBER_MAX if left is None else max(1, left // len(hungry))
        still: list[K] = []
        for lane in hungry:
            if left is not None and left <= 0:
                break
            last = until(lane) - 1
            first = first_from(lane, end[lane])
            if first is None or first > last:
                continue
            goal = min(last, first + min(share, NUMBER_MAX - first) - 1)
            found = ask(search_range(first, goal), partial(first_from, lane))
            if found is None:  # taken away meanwhile
                continue
            end[lane] = found.last + 1
            if left is not None:
                left -= found.span
            if found.last == goal and goal < last:
                still.append(lane)
        hungry = still if left is not None else []
    return end


def lag(unread: Mapping[Lane, Range], ages: Mapping[Lane, float]) -> dict[str, Any]:
    """Return the report on unread messages: how many at most, and how old the oldest is."""

    def of(lanes: Iterable[Lane]) -> dict[str, Any]:
        lanes = list(lanes)
        oldest = max((ages[lane] for lane in lanes if lane in ages), default=0.0)
        return {"messages": sum(unread[lane].span for lane in lanes), "oldestAgeSeconds": round(max(0.0, oldest), 3)}

    entities = dict.fromkeys(entity for entity, _ in unread)
    return {**of(unread), "entities": {name: of(lane for lane in unread if lane[0] == name) for name in entities}}


def search_all(
    entities: Iterable[str],
    search: Callable[[str], Search[dict[int, T]]],
    first_from: Callable[[str, int], int | None],
) -> dict[Lane, T]:
    """Run a search over the partitions of each entity; return what was found by lane."""
    found: dict[Lane, T] = {}
    for entity in entities:
        own = ask(search(entity), partial(first_from, entity))
        found |= {(entity, partition): each for partition, each in own.items()}
    return found
