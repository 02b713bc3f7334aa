"""Counts what the broker does, and writes the text of `GET /metrics`; gauges.py adds values read from queues. Pure.

Counters are plain integers on slotted objects, so that counting costs one attribute addition: the front keeps the
object of its entity and adds to it. Values that the queues know (depths, sizes) are not counted but read when the page
is requested, through `gauge` and `counter`. It does not serve HTTP and does not read a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from .metering import DIRECTIONS, MERGE_MIN, OTHER, Key, Meter

ENTITIES_MAX = 100_000
CONDITIONS_MAX = 64
_LINES = 100

Labels = Mapping[str, str]
Sample = tuple[Labels, float]
Kind = Literal["counter", "gauge"]
Read = Callable[[str], Iterable[Sample]]
"""Give the samples of the namespace that is named."""


@dataclass(slots=True, eq=False)
class EntityCounters:
    """One entity's counts. `settles` is by outcome, `refusals` by condition."""

    sends: int = 0
    send_bytes: int = 0
    receives: int = 0
    receive_bytes: int = 0
    polls: int = 0
    peeks: int = 0
    renews: int = 0
    manages: int = 0
    settles: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)

    def add(self, other: EntityCounters) -> None:
        for attribute, _, _ in _ENTITY_COUNTERS:
            setattr(self, attribute, getattr(self, attribute) + getattr(other, attribute))
        for outcome, count in other.settles.items():
            self.settled(outcome, count)
        for condition, count in other.refusals.items():
            self.refused(condition, count)

    def settled(self, outcome: str, count: int = 1) -> None:
        _add(self.settles, outcome, count)

    def refused(self, condition: str, count: int = 1) -> None:
        _add(self.refusals, condition, count)


class NamespaceCounters:
    """The counts of a namespace and of its entities."""

    def __init__(self) -> None:
        self.connections_total = 0
        self.meter = Meter()
        self.http_requests: dict[str, int] = {}
        self.refusals: dict[str, int] = {}
        self.entities: dict[str, EntityCounters] = {}
        self._merge_at: float = MERGE_MIN

    def entity(self, name: str) -> EntityCounters:
        """Return the counters of an entity that exists. Names that clients make up are counted by `refused` here
        instead: nobody may grow this table by asking for queues that do not exist."""
        found = self.entities.get(name)
        if found is None:
            if len(self.entities) >= ENTITIES_MAX:
                return self._other()
            found = self.entities[name] = EntityCounters()
        return found

    def _other(self) -> EntityCounters:
        return self.entities.setdefault(OTHER, EntityCounters())

    def merge_deleted(self, exists: Callable[[str], bool]) -> Generator[None, None, None]:
        """Add the counts of entities that no longer exist to those of `(other)`, each time that a table has doubled. To
        be done in slices."""
        yield from self.meter.merge_deleted(exists)
        if len(self.entities) < self._merge_at:
            return
        self._merge_at = inf  # not again meanwhile
        for name in list(self.entities):
            if name != OTHER and not exists(name):
                self._other().add(self.entities.pop(name))
            yield
        self._merge_at = max(MERGE_MIN, 2 * len(self.entities))

    def refused(self, condition: str, count: int = 1) -> None:
        _add(self.refusals, condition, count)

    def requested(self, status: int) -> None:
        _add(self.http_requests, str(status), 1)


def _add(table: dict[str, int], key: str, count: int) -> None:
    if key not in table and len(table) >= CONDITIONS_MAX:
        key = OTHER
    table[key] = table.get(key, 0) + count


_ENTITY_COUNTERS = (
    ("sends", "messages_sent_total", "Messages that senders got confirmed, pings included."),
    ("send_bytes", "message_bytes_sent_total", "Encoded bytes of those messages."),
    ("receives", "messages_delivered_total", "Messages handed to receivers, redeliveries included."),
    ("receive_bytes", "message_bytes_delivered_total", "Encoded bytes of those deliveries."),
    ("polls", "empty_receives_total", "Receives that got no message before the next one, or before their link ended."),
    ("peeks", "messages_peeked_total", "Messages shown by peek."),
    ("renews", "locks_renewed_total", "Locks renewed."),
    ("manages", "management_requests_total", "Management requests on the entity."),
)


class Metrics:
    """All namespaces of one process. `gauge` and `counter` add a family that is read at exposition time."""

    __slots__ = ("_families", "namespaces")

    def __init__(self) -> None:
        self.namespaces: dict[str, NamespaceCounters] = {}
        self._families: dict[str, tuple[Kind, str, Read]] = {}

    def namespace(self, name: str) -> NamespaceCounters:
        return self.namespaces.setdefault(name, NamespaceCounters())

    def gauge(self, name: str, help_text: str, read: Read) -> None:
        self._families[name] = ("gauge", help_text, read)

    def counter(self, name: str, help_text: str, read: Read) -> None:
        """Add a family that only grows, and begins again at 0 when the broker does."""
        self._families[name] = ("counter", help_text, read)

    def exposition(self, namespace: str) -> Generator[None, None, str]:
        """Return the page of one namespace in Prometheus' text format 0.0.4; families and samples in a fixed order. To
        be done in slices."""
        lines: list[str] = []
        for line in _Page(namespace, self.namespace(namespace)).lines(self._families):
            lines.append(line)
            if len(lines) % _LINES == 0:
                yield
        return "\n".join(lines) + "\n"


class _Page:
    def __init__(self, name: str, counters: NamespaceCounters) -> None:
        self._name = name
        self._counters = counters

    def lines(self, families: Mapping[str, tuple[Kind, str, Read]]) -> Iterator[str]:
        for attribute, name, help_text in _ENTITY_COUNTERS:
            yield from _family(name, "counter", help_text, self._per_entity(attribute))
        for name, help_text, samples in self._metered():
            yield from _family(name, "counter", help_text, samples)
        yield from _family("settlements_total", "counter", "Settled messages by outcome.", self._settles())
        yield from _family("refusals_total", "counter", "Refused operations by condition.", self._refusals())
        yield from _family("http_requests_total", "counter", "Answers of the HTTP port by status.", self._http())
        connections = [({"namespace": self._name}, self._counters.connections_total)]
        yield from _family("connections_total", "counter", "Connections accepted.", connections)
        for name, (kind, help_text, read) in sorted(families.items()):
            yield from _family(name, kind, help_text, read(self._name))

    def _entities(self) -> Iterable[tuple[dict[str, str], EntityCounters]]:
        for entity, counters in sorted(self._counters.entities.items()):
            yield {"namespace": self._name, "entity": entity}, counters

    def _per_entity(self, attribute: str) -> Iterable[Sample]:
        for labels, counters in self._entities():
            yield labels, getattr(counters, attribute)

    def _metered(self) -> Iterable[tuple[str, str, Iterable[Sample]]]:
        """Yield the families of what is billed; docs/reference/metering.md says what counts as an operation."""
        rows = list(self._counters.meter.rows())
        help_text = "Billable operations by entity, operation and cause."
        yield "operations_total", help_text, ((_billed(self._name, key), usage.operations) for key, usage in rows)
        help_text = "The same in units of 64 KB, at least one an operation."
        yield "operation_units_total", help_text, ((_billed(self._name, key), usage.units) for key, usage in rows)
        help_text = "Encoded bytes of the same, in to the broker or out of it."
        directed = (
            ({**_billed(self._name, key), "direction": DIRECTIONS[key.operation]}, usage.nbytes) for key, usage in rows
        )
        yield "operation_bytes_total", help_text, directed

    def _settles(self) -> Iterable[Sample]:
        for labels, counters in self._entities():
            for outcome, count in sorted(counters.settles.items()):
                yield {**labels, "outcome": outcome}, count

    def _refusals(self) -> Iterable[Sample]:
        for condition, count in sorted(self._counters.refusals.items()):
            yield {"namespace": self._name, "entity": "", "condition": condition}, count
        for labels, counters in self._entities():
            for condition, count in sorted(counters.refusals.items()):
                yield {**labels, "condition": condition}, count

    def _http(self) -> Iterable[Sample]:
        for status, count in sorted(self._counters.http_requests.items()):
            yield {"namespace": self._name, "status": status}, count


def _billed(ns: str, key: Key) -> dict[str, str]:
    return {"namespace": ns, "entity": key.entity, "operation": key.operation, "cause": key.cause}


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP pairbus_{name} {help_text}"
    yield f"# TYPE pairbus_{name} {kind}"
    for labels, value in samples:
        pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"pairbus_{name}{{{pairs}}} {value}" if pairs else f"pairbus_{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
