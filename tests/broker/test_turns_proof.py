"""Whatever becomes due at once, is deleted or looked through is done a few milliseconds a turn of the loop.

Time is counted, not measured: each look at the clock is a millisecond later than the one before. So the three
milliseconds of a turn are three units of work, and a unit is at most so many messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from pairbus.broker.model.message import Message
from pairbus.broker.model.queue import AT_ONCE_MAX, MessageQueue
from pairbus.broker.slices import SLICE_S, Slices, finish
from pairbus.broker.telemetry.metrics import Metrics, Sample
from pairbus.journal import Options

from .namespace_rig import DEAD, Rig, body_of, make_special

MANY = 4000
UNIT_S = 0.001
#: In a turn: what is left of the slice when a unit begins may be less than it takes.
TURN_MAX = int(SLICE_S / UNIT_S + 2) * AT_ONCE_MAX


class Turns:
    """The turns of a loop, one after the other as the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.slices = Slices(self._clock, self.soon.append)

    def _clock(self) -> float:
        self.now += UNIT_S
        return self.now

    def turn(self) -> None:
        soon = list(self.soon)
        self.soon.clear()
        for callback in soon:
            callback()

    def finish(self) -> None:
        while self.soon:
            self.turn()


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def rig(turns: Turns) -> Iterator[Rig]:
    with Rig(options=Options(segment_bytes=1 << 22, reserve_bytes=1 << 20), slices=turns.slices) as rig:
        yield rig


def fill(rig: Rig, turns: Turns, count: int = MANY, path: str = "orders", **fields: float) -> None:
    payloads = [make_special(b"x", id=str(n), **fields) for n in range(count)]  # type: ignore[arg-type]
    for at in range(0, count, 200):
        assert rig.send_payloads(*payloads[at : at + 200], path=path) is None
        turns.finish()


def at_most_some_a_turn(turns: Turns, left: Callable[[], int], begin: Callable[[], object]) -> None:
    """Begin, and assert that each turn takes a bounded share of what is left until nothing is."""
    before = left()
    begin()
    counts = [before, left()]
    for _ in range(10 * MANY // AT_ONCE_MAX):
        if not counts[-1]:
            break
        turns.turn()
        counts.append(left())
        if not turns.soon:
            begin()
            counts.append(left())
    shares = [one - other for one, other in itertools.pairwise(counts)]
    assert counts[-1] == 0 and max(shares) <= TURN_MAX, counts


@pytest.mark.parametrize("goes_to_dead_letters", [False, True])
def test_messages_that_expire_together(rig: Rig, turns: Turns, goes_to_dead_letters: bool) -> None:
    queue = rig.create(dead_letter_on_expiration=goes_to_dead_letters)
    fill(rig, turns, ttl=10.0)
    rig.now += 10.0
    at_most_some_a_turn(turns, lambda: queue.available, lambda: rig.namespace.tick(rig.now))
    rig.run()
    assert (len(queue), len(rig.queue(DEAD))) == (0, MANY if goes_to_dead_letters else 0)


def test_others_are_served_while_they_expire(rig: Rig, turns: Turns) -> None:
    queue, other = rig.create(), rig.create("other")
    fill(rig, turns, ttl=10.0)
    rig.schedule(make_special(b"due", at=rig.now + 10.0), path="other")
    rig.now += 10.0
    rig.namespace.tick(rig.now)
    for _ in range(5):
        turns.turn()
    rig.turn()
    rig.answer()
    assert queue.available > MANY // 2 and rig.received(path="other") == [b"due"]
    assert other.scheduled_count == 0


@pytest.mark.parametrize("max_delivery_count", [10, 1])
def test_locks_that_run_out_together(rig: Rig, turns: Turns, max_delivery_count: int) -> None:
    queue = rig.create(lock_duration=30.0, max_delivery_count=max_delivery_count)
    fill(rig, turns)
    assert len(rig.acquire(MANY)) == MANY
    rig.now += 30.0
    at_most_some_a_turn(turns, lambda: queue.locked, lambda: rig.namespace.tick(rig.now))
    turns.finish()
    rig.run()
    assert (queue.available, len(rig.queue(DEAD))) == ((0, MANY) if max_delivery_count == 1 else (MANY, 0))


def test_messages_that_become_due_together(rig: Rig, turns: Turns) -> None:
    queue = rig.create()
    fill(rig, turns, at=rig.now + 60.0)
    rig.now += 60.0
    at_most_some_a_turn(turns, lambda: len(queue.schedule), lambda: rig.namespace.tick(rig.now))
    rig.run()
    assert queue.available == MANY


def test_a_receiver_waits_until_what_has_expired_is_out_and_is_told(rig: Rig, turns: Turns) -> None:
    queue = rig.create()
    fill(rig, turns, ttl=10.0)
    rig.send(b"good")
    rig.now += 10.0
    told: list[int] = []
    queue.on_available = lambda: told.append(queue.available)
    before = queue.available
    assert rig.acquire() == [] and rig.acquire() == [], "what has expired is never received"
    assert queue.available > before - TURN_MAX and not told
    turns.finish()
    assert told == [1] and rig.received() == [b"good"]


def test_session_locks_that_run_out_together(rig: Rig, turns: Turns) -> None:
    rig.create(requires_session=True, lock_duration=30.0)
    count = MANY // 4
    for n in range(count):
        assert rig.send_payloads(make_special(b"x", id=str(n), session_id=str(n))) is None
    locks = [rig.accept() for _ in range(count)]
    rig.now += 30.0
    at_most_some_a_turn(turns, lambda: sum(not lock.is_over for lock in locks), lambda: rig.namespace.tick(rig.now))


def test_a_session_with_many_messages_is_released_before_it_is_another_ones(rig: Rig, turns: Turns) -> None:
    queue = rig.create(requires_session=True)
    for at in range(0, MANY, 200):
        assert rig.send_payloads(*(make_special(b"%d" % n, session_id="s") for n in range(at, at + 200))) is None
    lock = rig.accept()
    assert len(rig.acquire(MANY, session=lock)) == MANY
    at_most_some_a_turn(turns, lambda: queue.locked, lambda: rig.namespace.sessions.release(lock, rig.now))
    turns.finish()
    again = rig.accept("s")
    assert rig.received(3, session=again) == [b"0", b"1", b"2"]


def test_nobody_gets_a_session_that_is_being_released(rig: Rig, turns: Turns) -> None:
    rig.create(requires_session=True)
    for at in range(0, MANY, 200):
        assert rig.send_payloads(*(make_special(b"%d" % n, session_id="s") for n in range(at, at + 200))) is None
    lock = rig.accept()
    rig.acquire(MANY, session=lock)
    rig.namespace.sessions.release(lock, rig.now)
    assert rig.namespace.sessions.accept(rig.queue(), None, rig.now) is None
    rig.now += 1000.0  # its time is over too: no delivery is counted
    rig.namespace.tick(rig.now)
    turns.finish()
    assert {message.delivery_count for message in rig.queue().scan(0)} == {0}


def test_ids_that_are_forgotten_together(rig: Rig, turns: Turns) -> None:
    queue = rig.create(requires_duplicate_detection=True, duplicate_window=20.0)
    for n in range(MANY):
        assert rig.send_payloads(make_special(b"x", id=str(n))) is None
    history = queue.entity.duplicates
    assert history is not None and len(history) == MANY
    rig.now += 30.0
    at_most_some_a_turn(turns, lambda: len(history), lambda: rig.namespace.tick(rig.now))


def test_queues_that_nobody_uses(rig: Rig, turns: Turns) -> None:
    for n in range(50):
        rig.create(f"q{n}", auto_delete_on_idle=300.0)
    rig.now += 301.0
    rig.namespace.tick(rig.now)
    assert 0 < sum(entity.deleting for entity in rig.namespace.queues.values()) <= TURN_MAX / AT_ONCE_MAX
    turns.finish()
    assert all(entity.deleting for entity in rig.namespace.queues.values())


def test_a_deleted_topic_lets_go_of_its_subscriptions_one_by_one(rig: Rig, turns: Turns) -> None:
    rig.create_topic()
    for n in range(50):
        rig.subscribe(f"s{n}")
    answers: list[object] = []
    rig.namespace.registry.delete_topic("news", rig.now, answers.append)
    rig.turn()
    rig.answer()
    assert not answers and len(rig.namespace.store.by_id) > 40
    turns.finish()
    assert answers == [None] and not rig.namespace.store.by_id


def test_a_deleted_queue_is_taken_apart_in_steps(rig: Rig, turns: Turns) -> None:
    rig.create()
    fill(rig, turns, ttl=1000.0)
    rig.acquire(MANY // 2)
    rig.namespace.registry.delete_queue("orders", rig.now, lambda refusal: None)
    rig.turn()
    rig.answer()
    held = [sum(segment.live for segment in rig.journal.segments())]
    while rig.namespace.maintenance.take_some_apart():
        held.append(sum(segment.live for segment in rig.journal.segments()))
    assert held[-1] < 100, "all its messages are released"
    assert max(one - other for one, other in itertools.pairwise(held)) <= held[0] / (MANY / AT_ONCE_MAX) * 2


class Looked:
    """Counts the messages that are looked at."""

    def __init__(self, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        scan = MessageQueue.scan

        def counted(scanned: MessageQueue, start: int) -> Iterator[Message]:
            for message in scan(scanned, start):
                self.count += scanned is queue
                yield message

        monkeypatch.setattr(MessageQueue, "scan", counted)


@pytest.mark.parametrize("what", ["peek", "delete"])
def test_a_search_through_a_queue_for_a_session(
    rig: Rig, turns: Turns, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    queue = rig.create(requires_session=True)
    for at in range(0, MANY, 200):
        assert rig.send_payloads(*(make_special(b"x", session_id="a") for _ in range(at, at + 200))) is None
    rig.send_payloads(make_special(b"wanted", session_id="b"))
    looked = Looked(queue, monkeypatch)
    answers: list[object] = []
    namespace = rig.namespace
    if what == "peek":
        work = namespace.receive.peek(queue, 0, 10, rig.now, "b")
        namespace.slices.start(work, lambda job: answers.append([body_of(each) for each in job.result()]))
    else:
        namespace.settlement.delete_messages(queue, 10, rig.now, rig.now, lambda *each: answers.append(each), "b")
    turn_max = 500 * int(SLICE_S / UNIT_S + 1)
    assert 0 < looked.count <= turn_max and not answers
    while turns.soon and not answers:
        before = looked.count
        turns.turn()
        rig.turn()
        rig.answer()
        assert looked.count - before <= turn_max
    assert answers == [[b"wanted"] if what == "peek" else (1, None)]


def test_a_deletion_of_many_messages(rig: Rig, turns: Turns) -> None:
    queue = rig.create()
    fill(rig, turns)
    answers: list[object] = []

    def delete() -> None:
        rig.namespace.settlement.delete_messages(queue, MANY, rig.now, rig.now, lambda *each: answers.append(each))

    at_most_some_a_turn(turns, lambda: queue.available, delete)
    turns.finish()
    rig.run()
    assert answers == [(MANY, None)] and not len(queue)


def test_a_deletion_of_which_the_disk_takes_a_part_tells_how_many_went(rig: Rig, turns: Turns) -> None:
    queue = rig.create()
    fill(rig, turns, count=AT_ONCE_MAX)
    answers: list[tuple[int, object]] = []
    rig.namespace.settlement.delete_messages(queue, MANY, rig.now, rig.now, lambda *each: answers.append(each))
    rig.files.is_read_only_now = True
    turns.finish()
    rig.run()
    rig.files.is_read_only_now = False
    ((deleted, refusal),) = answers
    assert len(queue) == AT_ONCE_MAX - deleted and (refusal is None) == bool(deleted)


def test_a_list_of_many_sessions(rig: Rig, turns: Turns) -> None:
    queue = rig.create(requires_session=True)
    for at in range(0, MANY, 200):
        assert rig.send_payloads(*(make_special(b"x", session_id=str(n)) for n in range(at, at + 200))) is None
    answers: list[list[str]] = []
    work = rig.namespace.sessions.list_ids(queue, None, MANY - 2, 10)
    rig.namespace.slices.start(work, lambda job: answers.append(job.result()))
    assert not answers
    turns.finish()
    assert answers == [[str(MANY - 2), str(MANY - 1)]]


def test_the_metrics_of_many_entities(turns: Turns) -> None:
    metrics = Metrics()
    written: list[int] = []

    def read(name: str) -> Iterator[Sample]:
        for n in range(MANY):
            written.append(n)
            yield {"entity": str(n)}, n

    metrics.gauge("queue_bytes", "Bytes.", read)
    answers: list[str] = []
    turns.slices.start(metrics.exposition("contoso"), lambda job: answers.append(job.result()))
    turn_max = 100 * int(SLICE_S / UNIT_S + 1)
    before = 0
    while not answers:
        assert len(written) - before <= turn_max
        before = len(written)
        turns.turn()
    assert answers == [finish(metrics.exposition("contoso"))]
