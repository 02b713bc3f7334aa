"""A namespace on the simulated disk, without a thread: the journal writes when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pairbus.amqp.message import Header, Properties, encode_message
from pairbus.amqp.types import Timestamp
from pairbus.broker.format import records
from pairbus.broker.format.content import PING_CONTENT_TYPE, SCHEDULED_TIME
from pairbus.broker.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import Message
from pairbus.broker.model.outcomes import Outcome
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.rule_description import Filter, RuleDescription
from pairbus.broker.model.sessions import SessionLock
from pairbus.broker.model.shared_bodies import Copy, Shared
from pairbus.broker.model.topic import Subscription, Topic
from pairbus.broker.operations.namespace import Namespace
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import Slices, finish
from pairbus.broker.storage.replay import parts_of
from pairbus.journal import Journal, Options, Record
from tests.message_view import View
from tests.simulation.disk import SimulatedDisk

T = TypeVar("T")
FOLDER = "j"
SMALL = Options(segment_bytes=2048, reserve_bytes=1024, allocate_bytes=256)
DEAD = "orders/$DeadLetterQueue"
PING = encode_message(properties=Properties(content_type=PING_CONTENT_TYPE), body=None)


def counting_tokens() -> Callable[[], bytes]:
    numbers = itertools.count(1)
    return lambda: next(numbers).to_bytes(16, "big")


def body_of(payload: bytes) -> bytes:
    parts = View(payload).body
    return parts[0][1] if parts else b""


def id_of(payload: bytes) -> Any:
    return View(payload).properties.message_id


def properties_of(payload: bytes) -> dict[str, object]:
    return View(payload).application_properties


def condition(answer: object) -> str | None:
    """Return the condition of a refusal, or None where the call was not refused."""
    return answer.condition if isinstance(answer, Refusal) else None


def refused(answer: object, expected: str, *words: str) -> None:
    """Assert that the call was refused with this condition, and that the description has these words."""
    assert condition(answer) == expected
    assert isinstance(answer, Refusal)
    for each in words:
        assert each in answer.description


def make(body: bytes, **properties: Any) -> bytes:
    return encode_message(properties=Properties(**{"message_id": "m", **properties}), body=body)


def make_special(
    body: bytes,
    *,
    id: str = "m",
    session_id: str | None = None,
    ttl: float | None = None,
    at: float | None = None,
) -> bytes:
    """One that may end, wait for its time, belong to a session."""
    return encode_message(
        None if ttl is None else Header(ttl=int(ttl * 1000)),
        None if at is None else {SCHEDULED_TIME: Timestamp(int(at * 1000))},
        Properties(message_id=id, group_id=session_id),
        body=body,
    )


class Rig:
    """`posted` are the journal's answers that the loop has not run yet; `run` writes and answers until all is quiet."""

    def __init__(
        self,
        files: SimulatedDisk | None = None,
        options: Options = SMALL,
        memory_budget: int = 1 << 20,
        now: float = 1000.0,
        standby: str | None = None,
        slices: Slices | None = None,
    ) -> None:
        self.files = files if files is not None else SimulatedDisk()
        self.options = options
        self.now = now
        self.posted: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.standby = standby
        self.journal = Journal.open(FOLDER, options, self.files, clock=lambda: self.now, standby=standby)
        self.namespace = Namespace.open(
            "contoso",
            Path(FOLDER),
            journal=self.journal,
            now=self.now,
            memory_budget=memory_budget,
            new_token=counting_tokens(),
            slices=slices,
        )
        self.journal.start(self.posted.append, thread=False)
        self.dead_segments: set[int] = set()
        self._is_dead = self.journal._is_dead
        self.journal._is_dead = self._checked_dead  # type: ignore[method-assign]

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        if self._loop is not None:
            self._loop.close()
        if kind is None:
            self._check_accounts()

    def _check_accounts(self) -> None:
        """In every test: what is counted of bodies in memory and of copies is what is there."""
        while self.namespace.maintenance.take_some_apart():
            pass
        resident, copies = 0, defaultdict[Shared, list[Copy]](list)
        for entity in self.namespace.store.by_id.values():
            assert entity.pending_bytes >= 0
            for queue in (entity.active, entity.dead_letter):
                messages = list(queue.scan(0))
                held = sum(message.length for message in messages if message.content is not None)
                assert queue.resident_bytes == held
                for message in messages:
                    if isinstance(message, Copy):
                        copies[message.shared].append(message)
                    elif message.content is not None:
                        resident += message.length
        for shared, sharing in copies.items():
            in_memory = sum(copy.content is not None for copy in sharing)
            assert (shared.copies, shared.resident) == (len(sharing), in_memory)
            assert len({(copy.segment, copy.offset) for copy in sharing}) == 1
            resident += sharing[0].length if in_memory else 0
        assert self.namespace.resident_bytes == resident

    def _checked_dead(self, number: int) -> bool:
        """In every test: a segment that would be dropped unread has no record that counts."""
        if not self._is_dead(number):
            return False
        if number not in self.dead_segments and not self.files.is_dead:
            self.dead_segments.add(number)
            (end,) = [segment.size for segment in self.journal.segments() if segment.number == number]
            files = self.files
            before = files.faults, files.dies_at, files.calls
            files.faults, files.dies_at = [], None
            for chunk in self.journal._chunks(number, self.journal._path(number), end):
                assert [record for record in chunk if self._counts(record)] == []
            files.faults, files.dies_at, files.calls = before
        return True

    def _counts(self, record: Record) -> bool:
        live_records = self.namespace.store.live_records
        if record.kind == records.TRANSACTION:
            return any(map(self._counts, parts_of(record, records.read_transaction(record.payload)[0])))
        kept = live_records.live(record)
        if kept is None or kept[0] != records.SEEN:
            return kept is not None
        # Ids that were seen are known by themselves, not by place: after a kill the original stands beside its copy.
        sighting = live_records._batches.pop((record.segment, record.offset)).sighting
        return sighting is not None and sighting.segment == record.segment

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop

    def turn(self) -> None:
        self.journal.turn()

    def answer(self) -> None:
        posted, self.posted[:] = list(self.posted), []
        for callback in posted:
            callback()

    def run(self) -> None:
        for _ in range(4):
            self.turn()
            self.answer()

    def wait(self, seconds: float, times: int = 1) -> None:
        """Let time pass for the disk alone."""
        for _ in range(times):
            self.now += seconds
            self.run()

    def fail_calls(self, *names: str, times: int = 1_000_000) -> None:
        """Make the disk fail these calls, or all, so many times each."""
        self.files.fail(*(names or ("",)), times=times)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """The journal takes nothing."""
        self.journal._state = "closed"
        yield
        self.journal._state = "started"

    def lives(self, fill: Callable[[], object] = lambda: None) -> Iterator[Rig]:
        """As it is, after a kill, and after all of it was copied forward and killed."""
        yield self
        with self.reopened() as again:
            again.pass_time(0.0)
            yield again
        fill()
        self.compact_all()
        with self.reopened() as again:
            again.pass_time(0.0)
            yield again

    def live_bytes(self) -> int:
        while self.namespace.maintenance.take_some_apart():
            pass
        return sum(segment.live for segment in self.journal.segments())

    def compact(self, meanwhile: Callable[[], object] = lambda: None) -> int | None:
        task = self.loop.create_task(self.journal.compact(self.namespace.store.live_records))
        meanwhile()
        while not task.done():
            self.loop.run_until_complete(asyncio.sleep(0))
            self.run()
        return task.result()

    def compact_all(self) -> None:
        """Every segment that there is now; what lives may fill several again."""
        for _ in self.journal.segments()[:-1]:
            self.compact()

    def reopened(self, files: SimulatedDisk | None = None, **options: Any) -> Rig:
        """As after kill -9, or with what `files` says is left."""
        options = {"options": self.options, "now": self.now, "standby": self.standby, **options}
        return Rig(files or self.files.kill(), **options)

    def note_deletions(self) -> list[str]:
        """Return a list that gets the paths of entities when their links are to be detached."""
        told: list[str] = []

        def detach(entities: Sequence[QueueEntity]) -> Generator[None, None, None]:
            told.extend(entity.active.path for entity in entities)
            yield from ()

        self.namespace.registry.detach_deleted = detach
        return told

    # calls, answered before they return

    def create(self, name: str = "orders", **fields: Any) -> MessageQueue:
        answers: list[Refusal | None] = []
        self.namespace.registry.create(QueueDescription(name=name, **fields), self.now, answers.append)
        self.run()
        assert answers == [None]
        return self.queue(name)

    def queue(self, path: str = "orders") -> MessageQueue:
        queue = self.namespace.resolve(path)
        assert isinstance(queue, MessageQueue)
        return queue

    def do(self, call: Callable[..., None], *arguments: Any) -> Refusal | None:
        """A call that ends with `now` and `done`."""
        answers: list[Refusal | None] = []
        call(*arguments, self.now, answers.append)
        self.run()
        assert len(answers) == 1
        return answers[0]

    def create_topic(self, name: str = "news", **fields: Any) -> Topic:
        assert self.do(self.namespace.registry.create, TopicDescription(name=name, **fields)) is None
        return self.namespace.topics[name.lower()]

    def subscribe(self, name: str, filter: Filter | None = None, topic: str = "news", **fields: Any) -> Subscription:
        rule = None if filter is None else RuleDescription(filter=filter)
        description = SubscriptionDescription(topic=topic, name=name, default_rule=rule, **fields)
        assert self.do(self.namespace.subscriptions.create, description) is None
        return self.namespace.topics[topic.lower()].subscriptions[name.lower()]

    def send(self, *bodies: bytes, path: str = "orders") -> Refusal | None:
        return self.send_payloads(*(make(body) for body in bodies), path=path)

    def send_payloads(self, *payloads: bytes, path: str = "orders") -> Refusal | None:
        target = self.namespace.resolve(path)
        assert target is not None
        return self.do(self.namespace.enqueue.send, target, payloads)

    def schedule(self, *payloads: bytes, path: str = "orders") -> tuple[list[int], Refusal | None]:
        answers: list[tuple[list[int], Refusal | None]] = []
        target = self.namespace.resolve(path)
        assert target is not None
        self.namespace.enqueue.schedule(target, payloads, self.now, lambda *each: answers.append(each))
        self.run()
        assert len(answers) == 1
        return answers[0]

    def cancel(self, *numbers: int, path: str = "orders") -> Refusal | None:
        target = self.namespace.resolve(path)
        assert target is not None
        return self.do(self.namespace.settlement.cancel_scheduled, target, numbers)

    def pass_time(self, seconds: float) -> float | None:
        self.now += seconds
        self.namespace.tick(self.now)
        self.run()
        return self.namespace.deadline

    def accept(self, session_id: str | None = None, path: str = "orders") -> SessionLock:
        lock = self.namespace.sessions.accept(self.queue(path), session_id, self.now)
        assert isinstance(lock, SessionLock), lock
        return lock

    def set_state(self, session_id: str, state: bytes | None, path: str = "orders") -> Refusal | None:
        return self.do(self.namespace.sessions.set_state, self.queue(path), session_id, state)

    def state(self, session_id: str, path: str = "orders") -> bytes | None:
        return self.namespace.sessions.get_state(self.queue(path), session_id, self.now)

    def receive_deferred(
        self, *numbers: int, delete: bool = False, path: str = "orders", session: SessionLock | None = None
    ) -> tuple[list[Message], Refusal | None]:
        answers: list[tuple[list[Message], Refusal | None]] = []
        self.namespace.receive.receive_deferred(
            self.queue(path), numbers, self.now, lambda *each: answers.append(each), delete=delete, session=session
        )
        self.run()
        assert len(answers) == 1
        return answers[0]

    def delete_messages(self, count: int, before: float, path: str = "orders", session_id: str | None = None) -> int:
        answers: list[tuple[int, Refusal | None]] = []
        self.namespace.settlement.delete_messages(
            self.queue(path), count, before, self.now, lambda *each: answers.append(each), session_id
        )
        self.run()
        assert [refusal for _, refusal in answers] == [None]
        return answers[0][0]

    def acquire(self, count: int = 1, path: str = "orders", session: SessionLock | None = None) -> list[Message]:
        return self.namespace.receive.acquire(self.queue(path), count, self.now, session)

    def received(self, count: int = 10, path: str = "orders", session: SessionLock | None = None) -> list[bytes]:
        """The bodies of what is locked by this."""
        queue = self.queue(path)
        messages = self.acquire(count, path, session)
        return [body_of(self.namespace.receive.delivery(queue, message, locked=True)) for message in messages]

    def tokens(self, count: int = 1, path: str = "orders") -> list[bytes]:
        return [message.lock_token or b"" for message in self.acquire(count, path)]

    def settle(
        self, tokens: list[bytes], outcome: Outcome, path: str = "orders", session: SessionLock | None = None
    ) -> Refusal | None:
        answers: list[Refusal | None] = []
        self.namespace.settlement.settle(self.queue(path), tokens, outcome, self.now, answers.append, session)
        self.run()
        assert len(answers) == 1
        return answers[0]

    def take(self, count: int = 1, path: str = "orders") -> tuple[list[bytes], Refusal | None]:
        answers: list[tuple[list[bytes], Refusal | None]] = []
        queue = self.queue(path)

        def done(messages: list[Message], refusal: Refusal | None) -> None:
            bodies = [body_of(self.namespace.receive.delivery(queue, message, locked=False)) for message in messages]
            answers.append((bodies, refusal))

        self.namespace.receive.take(queue, count, self.now, done)
        self.run()
        assert len(answers) == 1
        return answers[0]

    def peeked(self, path: str = "orders", start: int = 0, count: int = 10_000) -> list[bytes]:
        return finish(self.namespace.receive.peek(self.queue(path), start, count, self.now))

    def bodies(self, path: str = "orders") -> list[bytes]:
        return [body_of(payload) for payload in self.peeked(path)]

    def grow(self, segments: int = 3) -> list[bytes]:
        """Sends until the journal has so many segments."""
        bodies: list[bytes] = []
        while len(self.journal.segments()) < segments:
            bodies.append(b"body %04d" % len(bodies) * 10)
            assert self.send(bodies[-1]) is None
        return bodies
