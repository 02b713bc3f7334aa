from __future__ import annotations

import json

from pairbus.broker.model.description import QueueDescription
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import Message, Stored
from pairbus.broker.storage.diagnostics import (
    ALL_DIFFERENCES_MAX,
    DIFFERENCES_MAX,
    ENTITIES_MAX,
    differences,
    report,
)

from ..namespace_rig import Rig


def entity(id: int, *numbers: int, name: str = "orders") -> QueueEntity:
    made = QueueEntity(id, QueueDescription(name=name))
    for number in numbers:
        made.active.insert(Message(number, 1.0, b"", 0, 0, None, 10))
        made.note_number(number)
    return made


def test_p49_equal_entities_have_no_differences() -> None:
    assert list(differences(entity(1, 1, 2), entity(1, 1, 2))) == []


def test_p49_each_difference_is_named() -> None:
    memory, journal = entity(1, 1, 2, 3), entity(1, 1, 2, 4)
    message = memory.active.get(2)
    assert message is not None
    message.delivery_count = 3
    memory.revision = 2
    assert list(differences(memory, journal)) == [
        "its description: revision 2 in memory, 0 in the journal",
        "its last sequence number: 3 in memory, 4 in the journal",
        "message 2 of orders: delivery count 3 in memory, 0 in the journal",
        "message 3 of orders: in memory, and not in the journal",
        "message 4 of orders: in the journal, and not in memory",
    ]


def test_p49_states_of_sessions_and_ids_are_compared(bare: Rig) -> None:
    queue = bare.create("jobs", requires_session=True, requires_duplicate_detection=True)
    other = QueueEntity(queue.entity.id, queue.entity.description)
    assert queue.sessions is not None
    session = queue.sessions.open("s")
    session.state, session.updated_at = Stored(1, 1, 1), 5.0
    queue.entity.watch_duplicates(lambda *_: None).restore(1.0, (b"k" * 16,), 1, 10)
    assert list(differences(queue.entity, other)) == [
        "the state of session 's': in memory, and not in the journal",
        "the message ids that it remembers: 1 in memory, 0 in the journal",
    ]


def test_p49_a_report_is_bounded() -> None:
    broken = [entity(id, *range(1, 200), name=f"q{id}") for id in range(1, ENTITIES_MAX + 3)]
    found = {each.id: entity(each.id, name=each.name) for each in broken}
    data = report({"node": 1}, broken, found)
    said = json.loads(data)
    assert len(data) < 4 << 20
    assert (said["node"], len(said["entities"]), said["entities_left_out"]) == (1, ENTITIES_MAX, 2)
    assert [len(each["differences"]) for each in said["entities"][:2]] == [DIFFERENCES_MAX] * 2
    assert said["entities"][0]["differences_left_out"] == 200 - DIFFERENCES_MAX
    assert sum(len(each["differences"]) for each in said["entities"]) <= ALL_DIFFERENCES_MAX
    assert said["summary"] == f"memory and journal differ in {200 * ENTITIES_MAX} points"
    (missing,) = json.loads(report({}, [entity(7)], {}))["entities"]
    assert (missing["journal"], missing["differences"]) == (None, ["it is not in the journal"])
