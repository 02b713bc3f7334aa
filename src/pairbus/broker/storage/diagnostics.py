"""Compares the state of entities in memory with the journal, and lists the differences. Pure.

The list is bounded: the first differences of each entity are named, and the others are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pairbus.broker.model.entity import QueueEntity, TransferQueue
from pairbus.broker.model.message import DEFERRED, SCHEDULED
from pairbus.broker.model.queue import MessageQueue

#: How many differences are named for one entity, and for all.
DIFFERENCES_MAX: Final = 100
ALL_DIFFERENCES_MAX: Final = 2_000
#: How many entities are described in one file.
ENTITIES_MAX: Final = 1_000

_COMPARED: Final = ("delivery_count", "home", "length", "enqueued_at", "expires_at", "session_id", "segment", "offset")


def describe(entity: QueueEntity) -> dict[str, Any]:
    """Return what an entity holds, in figures."""
    queues = (entity.active, entity.dead_letter)
    messages = [message for queue in queues for message in queue.scan(0)]
    sessions = list(entity.active.sessions or ())
    return {
        "active_messages": entity.active_count,
        "dead_letters": entity.dead_letter_count,
        "scheduled": sum(message.home == SCHEDULED for message in messages),
        "deferred": sum(message.home == DEFERRED for message in messages),
        "locked": sum(queue.locked for queue in queues),
        "bytes": sum(message.length for message in messages),
        "sessions": len(sessions),
        "session_states": sum(session.state is not None for session in sessions),
        "message_ids_remembered": 0 if entity.duplicates is None else len(entity.duplicates),
        "last_sequence_numbers": entity.last_numbers,
        "revision": entity.revision,
    }


def differences(memory: QueueEntity, journal: QueueEntity) -> Iterator[str]:
    """Yield the differences in words. Locks are no difference, since they are only in memory."""
    if memory.revision != journal.revision or memory.document() != journal.document():
        yield f"its description: revision {memory.revision} in memory, {journal.revision} in the journal"
    if memory.last_numbers != journal.last_numbers:
        yield f"its last sequence number: {memory.last_numbers} in memory, {journal.last_numbers} in the journal"
    yield from _states(memory.active, journal.active)
    known = 0 if memory.duplicates is None else len(memory.duplicates)
    found = 0 if journal.duplicates is None else len(journal.duplicates)
    if known != found:
        yield f"the message ids that it remembers: {known} in memory, {found} in the journal"
    for queue, other in ((memory.active, journal.active), (memory.dead_letter, journal.dead_letter)):
        yield from _messages(queue, other)


def _states(memory: MessageQueue, journal: MessageQueue) -> Iterator[str]:
    states = [
        {session.id: session.updated_at for session in queue.sessions or () if session.state is not None}
        for queue in (memory, journal)
    ]
    for id in sorted(states[0].keys() | states[1].keys()):
        if states[0].get(id) != states[1].get(id):
            yield f"the state of session {id!r}: {_where(id in states[0], id in states[1])}"


def _messages(memory: MessageQueue, journal: MessageQueue) -> Iterator[str]:
    for message in memory.scan(0):
        other = journal.get(message.sequence_number)
        which = f"message {message.sequence_number} of {memory.path}"
        if other is None:
            yield f"{which}: {_where(True, False)}"
            continue
        for what in _COMPARED:
            held, said = getattr(message, what), getattr(other, what)
            if held != said:
                yield f"{which}: {what.replace('_', ' ')} {held} in memory, {said} in the journal"
    for message in journal.scan(0):
        if memory.get(message.sequence_number) is None:
            yield f"message {message.sequence_number} of {memory.path}: {_where(False, True)}"


def _where(in_memory: bool, in_journal: bool) -> str:
    if in_memory and in_journal:
        return "another one in memory than in the journal"
    return "in memory, and not in the journal" if in_memory else "in the journal, and not in memory"


def report(head: dict[str, Any], memory: Sequence[QueueEntity], journal: dict[int, QueueEntity]) -> bytes:
    """Return the document of one failure: `head`, and of each entity what is in memory, what the journal says, and
    what differs."""
    entities: list[dict[str, Any]] = []
    total = 0
    for entity in memory[:ENTITIES_MAX]:
        other = journal.get(entity.id)
        found = _absence(entity) if other is None else differences(entity, other)
        named, count = _first(found, min(DIFFERENCES_MAX, max(0, ALL_DIFFERENCES_MAX - total)))
        total += count
        entities.append(
            {
                "entity": entity.active.path,
                "id": entity.id,
                "memory": describe(entity),
                "journal": None if other is None else describe(other),
                "differences": named,
                "differences_left_out": count - len(named),
            }
        )
    summary = (
        f"memory and journal differ in {total} points"
        if total
        else "memory and journal agree; the restart was brought about by a fault"
    )
    left_out = max(0, len(memory) - ENTITIES_MAX)
    document = {**head, "summary": summary, "entities": entities, "entities_left_out": left_out}
    return (json.dumps(document, indent=1) + "\n").encode()


def _absence(entity: QueueEntity) -> Iterator[str]:
    # The queue of transfer dead letters that was only looked at is not written down.
    if not isinstance(entity, TransferQueue) or entity.segment >= 0:
        yield "it is not in the journal"


def _first(found: Iterable[str], most: int) -> tuple[list[str], int]:
    named: list[str] = []
    count = 0
    for each in found:
        count += 1
        if len(named) < most:
            named.append(each[:300])
    return named, count
