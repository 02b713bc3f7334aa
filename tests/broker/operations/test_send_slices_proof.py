"""What is sent to a queue in one large batch, or as one large message, is read in slices: nobody waits for it, nothing
of it is half done, and nothing overtakes it.

Work is counted, not timed, as in test_publish_slices_proof.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pairbus.amqp import errors as conditions
from pairbus.amqp.message import encode_message
from pairbus.broker.format import content
from pairbus.broker.model.outcomes import DUPLICATE
from pairbus.broker.operations import enqueue
from pairbus.broker.refusal import Refusal
from tests.broker.namespace_rig import Rig, make, make_special, refused

from .test_publish_slices_proof import ROOMY, UNITS, Turns, begin, send

MANY = 1000


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(options=ROOMY) as rig:
        rig.create()
        yield rig


@pytest.fixture
def turns(rig: Rig) -> Turns:
    return Turns(rig)


def batch(count: int, name: str = "") -> list[bytes]:
    return [make(f"{name}{n}".encode()) for n in range(count)]


class Records:
    """Counts the records that are written."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        append = rig.journal.append

        def counted(*arguments: object, **options: object) -> int:
            self.count += 1
            return append(*arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(rig.journal, "append", counted)


def test_no_turn_reads_more_than_its_slice(rig: Rig, turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(rig, monkeypatch)
    read = 0
    new_token = rig.namespace.store.new_token

    def counted() -> bytes:
        nonlocal read
        read += 1
        return new_token()

    rig.namespace.store.new_token = counted
    answers = send(rig, *[encode_message(body=b"x")] * MANY, path="orders")  # each is given an id when it is read
    most = read
    while turns.slices:
        before = read
        turns.turn()
        most = max(most, read - before)
    rig.run()
    assert (answers, len(rig.queue()), records.count) == ([None], MANY, 1)
    assert most <= 32 * (UNITS + 1)


def test_a_small_send_is_stored_at_once(rig: Rig, turns: Turns) -> None:
    answers = send(rig, *batch(200), path="orders")
    assert len(turns.slices) == 0
    rig.run()
    assert answers == [None]


def test_what_is_sent_later_does_not_overtake(rig: Rig, turns: Turns) -> None:
    rig.create("other")
    rig.create("third")
    answers = [send(rig, *batch(MANY, "a"), path="orders"), send(rig, make(b"b"), path="orders")]
    _, committed = begin(rig, ("orders", [make(b"c")]), ("other", [make(b"c")]))
    bystander = send(rig, make(b"d"), path="third")
    answers.append(send(rig, *batch(MANY, "e"), path="orders"))
    rig.run()
    assert (bystander, answers, committed) == ([None], [[], [], []], [])
    turns.run()
    assert (answers, committed) == ([[None]] * 3, [None])
    expected = [*(b"a%d" % n for n in range(MANY)), b"b", b"c", *(b"e%d" % n for n in range(MANY))]
    assert rig.bodies() == expected
    assert rig.bodies("other") == [b"c"]


def test_one_that_can_not_be_read_refuses_all(rig: Rig, turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(rig, monkeypatch)
    answers = send(rig, *batch(MANY), b"no message", path="orders")
    turns.run()
    refused(answers[0], "amqp:decode-error")
    assert (len(rig.queue()), records.count) == (0, 0)


def test_quota_and_entity_are_those_of_the_commit(rig: Rig, turns: Turns) -> None:
    too_large, disabled = (send(rig, *batch(MANY), path="orders") for _ in range(2))
    queue = rig.queue()
    queue.entity.max_bytes = 100
    while not too_large:
        turns.turn()
    refused(too_large[0], conditions.RESOURCE_LIMIT_EXCEEDED, "is full")
    turns.do(rig.namespace.registry.update, replace(queue.entity.description, status="SendDisabled"))
    turns.run()
    refused(disabled[0], conditions.ENTITY_DISABLED)
    assert (len(queue), queue.entity.pending_bytes, rig.namespace.store.staged_bytes) == (0, 0, 0)


def test_a_queue_that_is_deleted_meanwhile_takes_nothing(rig: Rig, turns: Turns) -> None:
    answers = send(rig, *batch(MANY), path="orders")
    turns.do(rig.namespace.registry.delete_queue, "orders")
    turns.run()
    refused(answers[0], conditions.NOT_FOUND)


def test_a_duplicate_that_comes_meanwhile_on_another_way_is_found() -> None:
    with Rig(options=ROOMY) as rig:
        rig.create(requires_duplicate_detection=True)
        rig.create("first", forward_to="orders")
        turns = Turns(rig)
        turns.slow_down()
        messages = [make_special(b"x", id=str(n)) for n in range(MANY)]
        target = rig.queue()
        answers: list[Refusal | None] = []
        results: list[int] = []
        rig.namespace.enqueue.send(target, messages, rig.now, answers.append, results)
        assert send(rig, make_special(b"first", id="7"), path="first") == []
        rig.run()
        while not rig.bodies():
            rig.namespace.forwarding.forward_due(rig.now)
            turns.turn()
            rig.run()
        assert not answers
        turns.run()
        assert answers == [None]
        assert results.count(DUPLICATE) == 1 and results[7] == DUPLICATE
        assert len(target) == MANY


def test_a_large_message_is_copied_in_slices(rig: Rig, turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (enqueue, content):
        monkeypatch.setattr(module, "COPIED_AT_ONCE", 100)
    answers = [send(rig, make(bytes(5000)), path="orders"), send(rig, make(b"later"), path="orders")]
    turns.run()
    assert answers == [[None]] * 2
    assert rig.bodies() == [bytes(5000), b"later"]
    assert turns.most <= UNITS + 1 and turns.made >= 5000 / 100 / UNITS
