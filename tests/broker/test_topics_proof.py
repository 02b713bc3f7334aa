"""Publishing to three subscriptions under random operations, compaction at random moments, a failing disk, kills and
power cuts, against a plain account of which copy must, may and must not be there afterwards. All copies of a message
appear together; one that is scheduled is on the topic or in the subscriptions, never in both."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.broker.model.message import Message
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer, LocksLost
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.rule_description import CorrelationFilter
from pairbus.broker.model.shared_bodies import Copy
from pairbus.broker.model.topic import Topic
from pairbus.broker.refusal import Refusal
from pairbus.journal import Options
from tests.simulation.disk import SimulatedDisk

from .machine import Machine, thorough
from .namespace_rig import Rig, body_of

OPTIONS = Options(segment_bytes=2048, reserve_bytes=1024, allocate_bytes=256)
NAMES = ("all", "few", "red")
LOCK_S = 30.0
NOTHING_STORED = "nothing was stored"


class Fate:
    """Of one copy. `present`: it must, may or must not be there; `lazily_gone`: a power cut may bring it back."""

    def __init__(self) -> None:
        self.present = "may"
        self.lazily_gone = False
        self.number: int | None = None

    def __repr__(self) -> str:
        return f"<{self.present}, number {self.number}>"


class Story:
    """Of one message. While it waits, `present` is about the topic's scheduled message."""

    def __init__(self, body: bytes, is_waiting: bool) -> None:
        self.is_waiting = is_waiting
        self.present = "may"
        self.number = 0
        self.copies = {name: Fate() for name in NAMES if name != "red" or body.startswith(b"r")}

    def __repr__(self) -> str:
        return f"<{'waits' if self.is_waiting else 'published'}, {self.present}: {self.copies}>"

    def became(self, present: str) -> None:
        self.present = present
        if not self.is_waiting:
            for fate in self.copies.values():
                fate.present = present

    def publish(self) -> None:
        """Seen in a subscription, so it is in all of them."""
        if self.is_waiting:
            self.is_waiting = False
            self.became("must")


class TopicDurability(Machine):
    @initialize()
    def start(self) -> None:
        self.rig = Rig(options=OPTIONS, memory_budget=1500)
        self.rig.create_topic()
        self.rig.subscribe("all", lock_duration=LOCK_S)
        self.rig.subscribe("few", lock_duration=LOCK_S, max_delivery_count=2)
        self.rig.subscribe("red", CorrelationFilter(properties={"color": "red"}), lock_duration=LOCK_S)
        self.stories: dict[bytes, Story] = {}
        self.locks: dict[bytes, tuple[bytes, str, bool, float]] = {}  # token → body, name, is dead letter, until
        self.numbers_max = dict.fromkeys(NAMES, 0)
        self.sent = 0
        for _ in range(3):
            self.publish([300, 40, 1], "rb", None)
            self.rig.run()

    @property
    def topic(self) -> Topic:
        return self.rig.namespace.topics["news"]

    def queues(self, rig: Rig, name: str) -> tuple[MessageQueue, MessageQueue]:
        entity = rig.namespace.topics["news"].subscriptions[name]
        return entity.active, entity.dead_letter

    # what clients do

    @rule(
        sizes=st.lists(st.sampled_from([1, 40, 300]), min_size=1, max_size=3),
        colors=st.sampled_from(["r", "b", "rb"]),
        delay=st.sampled_from([None, None, 5.0, 20.0]),
    )
    def publish(self, sizes: list[int], colors: str, delay: float | None) -> None:
        bodies = []
        payloads = []
        for size in sizes:
            self.sent += 1
            color = colors[self.sent % len(colors)]
            body = b"%c%d." % (ord(color), self.sent) + b"x" * size
            annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(int((self.rig.now + (delay or 0)) * 1000))}
            payload = encode_message(
                message_annotations=annotations if delay else None,
                properties=Properties(message_id=f"m{self.sent}"),
                application_properties={"color": "red" if color == "r" else "blue"},
                body=body,
            )
            self.stories[body] = Story(body, delay is not None)
            bodies.append(body)
            payloads.append(payload)

        def done(numbers: list[int], refusal: Refusal | None) -> None:
            for index, body in enumerate(bodies):
                story = self.stories[body]
                if refusal is None:
                    story.became("must")
                    story.number = numbers[index]
                elif NOTHING_STORED in refusal.description:
                    story.became("not")

        self.rig.namespace.schedule(self.topic, payloads, self.rig.now, done)

    @precondition(lambda self: any(s.is_waiting and s.present == "must" and s.number for s in self.stories.values()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiting = [b for b, s in self.stories.items() if s.is_waiting and s.present == "must" and s.number]
        story = self.stories[data.draw(st.sampled_from(sorted(waiting)))]
        story.present = "may"

        def done(refusal: Refusal | None) -> None:
            if refusal is None:
                story.present = "not"
            elif "no scheduled message" in refusal.description or NOTHING_STORED in refusal.description:
                story.present = "must"  # it is being published, or stays

        self.rig.namespace.cancel_scheduled(self.topic, [story.number], self.rig.now, done)

    def seen(self, queue: MessageQueue, message: Message, name: str) -> bytes:
        body = body_of(self.rig.namespace.delivery(queue, message, locked=False))
        story = self.stories[body]
        story.publish()
        fate = story.copies[name]
        assert fate.present != "not", fate
        if fate.number is None:
            assert message.sequence_number > self.numbers_max[name], "a sequence number was given out twice"
            fate.number = message.sequence_number
        assert fate.number == message.sequence_number
        return body

    @rule(count=st.integers(1, 4), name=st.sampled_from(NAMES), dead=st.sampled_from([False, False, True]))
    def acquire(self, count: int, name: str, dead: bool) -> None:
        queue = self.queues(self.rig, name)[dead]
        for message in self.rig.namespace.acquire(queue, count, self.rig.now):
            assert message.lock_token is not None
            self.locks[message.lock_token] = (self.seen(queue, message, name), name, dead, message.locked_until)

    @precondition(lambda self: self.locks)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(
            [
                Complete(),
                Complete(),
                Complete(),
                Abandon({"a": 1}),
                Defer(),
                DeadLetter("why"),
                DeadLetter("why", "trace " * 120),
            ]
        ),
    )
    def settle(self, data: st.DataObject, outcome: Complete | Abandon | Defer | DeadLetter) -> None:
        token = data.draw(st.sampled_from(sorted(self.locks)))
        body, name, dead, until = self.locks.pop(token)
        fate = self.stories[body].copies[name]
        completes = isinstance(outcome, Complete)
        if completes:
            fate.present = "may"

        def done(refusal: Refusal | None) -> None:
            if isinstance(refusal, LocksLost):
                assert until <= self.rig.now
                fate.present = "must"
            elif refusal is not None:
                self.locks[token] = (body, name, dead, until)
                if completes and NOTHING_STORED in refusal.description:
                    fate.present = "must"
            elif completes:
                fate.present = "not"
                fate.lazily_gone = True

        self.rig.namespace.settle(self.queues(self.rig, name)[dead], [token], outcome, self.rig.now, done)

    @rule(count=st.integers(1, 3), name=st.sampled_from(NAMES))
    def take(self, count: int, name: str) -> None:
        queue = self.queues(self.rig, name)[0]
        fates: list[Fate] = []

        def done(messages: list[Message], refusal: Refusal | None) -> None:
            for message in messages:
                self.stories[self.seen(queue, message, name)].copies[name].present = "not"
            if refusal is not None:
                for fate in fates:
                    fate.present = "must" if NOTHING_STORED in refusal.description else "may"

        before = {message.sequence_number for message in queue.scan(0) if message.state == 0}
        self.rig.namespace.take(queue, count, self.rig.now, done)
        for message in queue.scan(0):
            if message.sequence_number in before and message.state != 0:
                fates.append(self.stories[self.seen(queue, message, name)].copies[name])
                fates[-1].present = "may"

    @rule(seconds=st.sampled_from([0.05, 5.0, 10.0, LOCK_S]))
    def time_passes(self, seconds: float) -> None:
        self.rig.now += seconds
        for token, (_, _, _, until) in list(self.locks.items()):
            if until <= self.rig.now:
                del self.locks[token]
        self.rig.namespace.tick(self.rig.now)

    # what must be there

    @rule()
    def quiet(self) -> None:
        """All is written and answered: what is there is what the account says, in memory too."""
        self.rig.files.faults.clear()
        for _ in range(60):
            if not any(until <= self.rig.now + 0.3 for _, _, _, until in self.locks.values()):
                self.rig.now += 0.3
            self.rig.namespace.maintenance.write_again()
            self.rig.run()
            if self.compaction is not None:
                self.compact()
        if self.rig.journal.failure is not None:
            return
        found, waiting = self.found(self.rig)
        for body, story in self.stories.items():
            self.check(body, story, found, waiting, frozenset(), power=False)

    def found(self, rig: Rig) -> tuple[dict[str, dict[bytes, Message]], set[bytes]]:
        found: dict[str, dict[bytes, Message]] = {}
        for name in NAMES:
            there = found[name] = {}
            for queue in self.queues(rig, name):
                for message in queue.scan(0):
                    body = body_of(rig.namespace.delivery(queue, message, locked=False))
                    assert body not in there, f"a copy is in {name} twice"
                    there[body] = message
        scheduled = rig.namespace.topics["news"].active
        waiting = [body_of(rig.namespace.delivery(scheduled, each, locked=False)) for each in scheduled.scan(0)]
        assert len(waiting) == len(set(waiting)), "a message is scheduled twice"
        return found, set(waiting)

    def check(
        self,
        body: bytes,
        story: Story,
        found: dict[str, dict[bytes, Message]],
        waiting: set[bytes],
        lingering: frozenset[tuple[str, bytes]],
        power: bool,
    ) -> None:
        there = {name for name in NAMES if body in found[name]}
        if body in waiting:
            assert not there or any((name, body) in lingering for name in ("", *NAMES)), "published, and still waiting"
            assert story.is_waiting, story
            assert story.present != "not" or ("", body) in lingering, f"was cancelled: {story}"
            return
        if story.is_waiting and there:
            assert there == set(story.copies), f"published in part: {story}"
            assert story.present != "not" or ("", body) in lingering, f"was cancelled: {story}"
            story.publish()
        assert not story.is_waiting or story.present != "must", f"lost while it waited: {story}"
        if story.is_waiting:
            return
        if story.present == "may":
            assert not there or there == set(story.copies), f"published in part: {story}"
        assert there <= set(story.copies)
        for name, fate in story.copies.items():
            if fate.present == "must":
                assert name in there, f"lost: {story}"
            if fate.present == "not" and (name, body) not in lingering and not (power and fate.lazily_gone):
                assert name not in there, f"came back: {story}"
            if name in there:
                number = found[name][body].sequence_number
                assert fate.number in (None, number)
                fate.number = number

    def crash(self, left: Callable[[SimulatedDisk], SimulatedDisk], power: bool) -> None:
        files = left(self.rig.files)
        # Settled, and its record has yet to be written once more behind a copy, which the disk refused.
        lingering: set[tuple[str, bytes]] = set()
        if self.rig.namespace.maintenance._unwritten:
            found, waiting = self.found(self.rig)
            lingering |= {(name, body) for name in NAMES for body in found[name]} | {("", body) for body in waiting}
        self.stop_compaction()
        self.rig.__exit__()
        for name in NAMES:
            known = [story.copies[name].number or 0 for story in self.stories.values() if name in story.copies]
            self.numbers_max[name] = max([self.numbers_max[name], *known])
        now = self.rig.now
        self.rig = Rig(files, OPTIONS, 1500, now=now)
        self.locks.clear()
        found, waiting = self.found(self.rig)
        for body, story in list(self.stories.items()):
            self.check(body, story, found, waiting, frozenset(lingering), power)
            there = {name for name in NAMES if body in found[name]}
            if body in waiting:
                story.present = "must"
                story.number = next(
                    each.sequence_number
                    for each in self.topic.active.scan(0)
                    if body_of(self.rig.namespace.delivery(self.topic.active, each, locked=False)) == body
                )
            elif there:
                story.is_waiting, story.present = False, "must"
                for name, fate in story.copies.items():
                    fate.present = "must" if name in there else "not"
                    fate.lazily_gone = False
            else:
                del self.stories[body]
        assert self.rig.namespace.notes == []

    @invariant()
    def accounts_are_sane(self) -> None:
        if not hasattr(self, "rig"):
            return
        topic = self.topic
        assert topic.pending_bytes >= 0
        copies: dict[object, list[Copy]] = {}
        queues = [queue for name in NAMES for queue in self.queues(self.rig, name)] + [topic.active]
        for queue in queues:
            resident = 0
            for message in queue.scan(0):
                assert isinstance(message, Copy)
                copies.setdefault(message.shared, []).append(message)
                resident += message.length if message.content is not None else 0
            assert queue.resident_bytes == resident
        for shared, sharing in copies.items():
            assert shared.copies == len(sharing)  # type: ignore[attr-defined]
            assert shared.resident == sum(each.content is not None for each in sharing)  # type: ignore[attr-defined]
            assert len({(each.segment, each.offset) for each in sharing}) == 1
        firsts = [sharing[0] for sharing in copies.values()]
        assert topic.size_bytes == sum(first.length for first in firsts)
        held = [sharing for sharing in copies.values() if any(each.content is not None for each in sharing)]
        assert self.rig.namespace.resident_bytes == sum(sharing[0].length for sharing in held)


TopicDurability.TestCase.settings = thorough(60, 60)
TestTopicDurability = TopicDurability.TestCase
