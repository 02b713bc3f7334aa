"""Random operations, compaction at random moments, a failing disk, kills and power cuts, against a plain account of
what must, may and must not be there afterwards: messages, active, scheduled, deferred or dead; ids that are known as
duplicates; the states of sessions."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from pairbus.broker.model.message import DEFERRED, READY, SCHEDULED, Message
from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer, LocksLost, Release
from pairbus.broker.refusal import Refusal
from pairbus.journal import Options
from tests.simulation.disk import SimulatedDisk

from .machine import Machine, thorough
from .namespace_rig import Rig, body_of, make_special

DEAD = "orders/$DeadLetterQueue"
OPTIONS = Options(segment_bytes=2048, reserve_bytes=1024, allocate_bytes=256)
MAX_DELIVERIES = 3
LOCK_S = 30.0


class Fate:
    """What is known of one message. `present`: must, may or must not be there after a kill."""

    def __init__(self) -> None:
        self.present = "may"
        self.is_confirmed = False  # to a sender
        self.home = READY
        self.home_is_certain = True
        self.lazily_gone = False  # answered, but a power cut may bring it back
        self.place = "active"
        self.place_is_certain = True
        self.count = 0
        self.number: int | None = None
        self.count_is_certain = True

    def __repr__(self) -> str:
        return f"<{self.present} in {self.place} ({self.home}), {self.count} failed deliveries, number {self.number}>"


class Told:
    """What is known of the state of one session: the last that was confirmed, and those that may stand instead."""

    def __init__(self) -> None:
        self.certain: bytes | None = None
        self.possible: list[bytes | None] = []


class Durability(Machine):
    @initialize(detects=st.booleans())
    def start(self, detects: bool) -> None:
        self.detects = detects
        self.rig = Rig(options=OPTIONS, memory_budget=800)
        self.rig.create(
            lock_duration=LOCK_S,
            max_delivery_count=MAX_DELIVERIES,
            requires_duplicate_detection=detects,
            duplicate_window=1e9,
        )
        self.rig.create("talks", requires_session=True)
        self.told = {"x": Told(), "y": Told()}
        self.consumed: set[bytes] = set()  # confirmed, received and gone: a second copy must not come
        self.fates: dict[bytes, Fate] = {}
        self.locks: dict[bytes, tuple[bytes, str, float]] = {}  # token → body, path, until
        self.number_max = 0
        self.sent = 0
        for delay in (None, 30.0, None, 10.0):
            self.send([300, 40, 300, 1], delay)
            self.rig.run()

    # what clients do

    @rule(
        sizes=st.lists(st.sampled_from([1, 40, 300]), min_size=1, max_size=4),
        delay=st.sampled_from([None, None, 10.0, 30.0]),
    )
    def send(self, sizes: list[int], delay: float | None) -> None:
        bodies = []
        for size in sizes:
            self.sent += 1
            body = b"%d." % self.sent + b"x" * size
            fate = self.fates[body] = Fate()
            # Whether it has become active is seen from its number.
            fate.home_is_certain = delay is None
            bodies.append(body)
        self.offer(bodies, delay)

    @precondition(lambda self: self.detects and (self.fates or self.consumed))
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """As a sender does that has heard nothing, or has forgotten what it heard."""
        self.offer([data.draw(st.sampled_from(sorted({*self.fates, *self.consumed})))], None)

    def offer(self, bodies: list[bytes], delay: float | None) -> None:
        def done(refusal: Refusal | None) -> None:
            for body in bodies:
                fate = self.fates.get(body)
                if fate is None or fate.is_confirmed:
                    continue  # a duplicate, whatever was said
                if refusal is None:
                    fate.present, fate.is_confirmed = "must", True
                elif "nothing was stored" in refusal.description:
                    fate.present = "not"
                else:
                    fate.present = "may"

        at = None if delay is None else self.rig.now + delay
        payloads = [make_special(body, id=body.partition(b".")[0].decode(), at=at) for body in bodies]
        self.rig.namespace.send(self.rig.queue(), payloads, self.rig.now, done)

    def body(self, message: Message, path: str) -> bytes:
        body = body_of(self.rig.namespace.delivery(self.rig.queue(path), message, locked=False))
        assert body not in self.consumed, "a second copy has come"
        fate = self.fates[body]
        assert fate.present != "not"
        if message.home == SCHEDULED:
            assert fate.number is None, "it was active already"
            return body
        if fate.number is None:
            assert message.sequence_number > self.number_max, "a sequence number was given out twice"
            fate.number = message.sequence_number
        assert fate.number == message.sequence_number
        return body

    @rule(count=st.integers(1, 4), path=st.sampled_from(["orders", "orders", DEAD]))
    def acquire(self, count: int, path: str) -> None:
        for message in self.rig.acquire(count, path):
            assert message.lock_token is not None
            self.locks[message.lock_token] = (self.body(message, path), path, message.locked_until)

    @precondition(lambda self: self.locks)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(
            [
                Complete(),
                Complete(),
                Release(),
                Abandon(),
                Abandon({"a": 1}),
                Defer(),
                Defer({"b": 2}),
                DeadLetter("why"),
                DeadLetter("why", "trace " * 120),
            ]
        ),
    )
    def settle(self, data: st.DataObject, outcome: Complete | Release | Abandon | Defer | DeadLetter) -> None:
        token = data.draw(st.sampled_from(sorted(self.locks)))
        body, path, until = self.locks.pop(token)
        fate = self.fates[body]
        fate.count_is_certain = False
        if isinstance(outcome, Complete):
            fate.present = "may"
        elif isinstance(outcome, Defer):
            fate.home_is_certain = False
        elif isinstance(outcome, DeadLetter) or fate.count + 1 >= MAX_DELIVERIES:
            fate.place_is_certain = fate.home_is_certain = False

        def done(refusal: Refusal | None) -> None:
            if isinstance(refusal, LocksLost):
                assert until <= self.rig.now
                fate.present = "must"
            elif refusal is not None:
                # The lock stands; a completion that may yet come true is as good as one that does.
                self.locks[token] = (body, path, until)
                if isinstance(outcome, Complete) and "nothing was stored" in refusal.description:
                    fate.present = "must"
            elif isinstance(outcome, Complete):
                fate.present = "not"
                fate.lazily_gone = True
            elif isinstance(outcome, Abandon):
                fate.count += 1
                if fate.count >= MAX_DELIVERIES and fate.place == "active":
                    fate.place, fate.home = "dead", READY
            elif isinstance(outcome, Defer):
                fate.home = DEFERRED
                fate.count += 1
            elif isinstance(outcome, DeadLetter):
                if fate.place == "dead":
                    fate.count += 1
                else:
                    fate.home = READY
                fate.place = "dead"

        self.rig.namespace.settle(self.rig.queue(path), [token], outcome, self.rig.now, done)

    @rule(count=st.integers(1, 3), path=st.sampled_from(["orders", "orders", DEAD]))
    def take(self, count: int, path: str) -> None:
        queue = self.rig.queue(path)
        bodies: list[bytes] = []

        def done(messages: list[Message], refusal: Refusal | None) -> None:
            for message in messages:
                self.fates[self.body(message, path)].present = "not"
            if refusal is not None:
                # At most once: one whose removal may yet come true may be gone unseen.
                for body in bodies:
                    self.fates[body].present = "must" if "nothing was stored" in refusal.description else "may"

        before = {message.sequence_number for message in queue.scan(0) if message.state == READY}
        self.rig.namespace.take(queue, count, self.rig.now, done)
        for message in queue.scan(0):
            if message.sequence_number in before and message.state != READY:
                bodies.append(self.body(message, path))
                self.fates[bodies[-1]].present = "may"

    def aside(self, state: int) -> list[tuple[str, int]]:
        return [
            (path, message.sequence_number)
            for path in ("orders", DEAD)
            for message in self.rig.queue(path).scan(0)
            if message.state == state
        ]

    @precondition(lambda self: self.aside(DEFERRED))
    @rule(data=st.data(), delete=st.booleans())
    def receive_deferred(self, data: st.DataObject, delete: bool) -> None:
        path, number = data.draw(st.sampled_from(self.aside(DEFERRED)))
        queue = self.rig.queue(path)
        message = queue.get(number)
        assert message is not None
        body = self.body(message, path)
        fate = self.fates[body]
        if delete:
            fate.present = "may"

        def done(messages: list[Message], refusal: Refusal | None) -> None:
            if refusal is not None:
                fate.present = "must" if "nothing was stored" in refusal.description else "may"
            elif delete:
                fate.present = "not"
            else:
                self.locks[messages[0].lock_token or b""] = (body, path, messages[0].locked_until)

        self.rig.namespace.receive_deferred(queue, [number], self.rig.now, done, delete=delete)

    @precondition(lambda self: self.aside(SCHEDULED))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        path, number = data.draw(st.sampled_from(self.aside(SCHEDULED)))
        queue = self.rig.queue(path)
        message = queue.get(number)
        assert message is not None
        fate = self.fates[self.body(message, path)]
        fate.present = "may"

        def done(refusal: Refusal | None) -> None:
            if refusal is None:
                fate.present = "not"
            elif "nothing was stored" in refusal.description:
                fate.present = "must"

        self.rig.namespace.cancel_scheduled(queue, [number], self.rig.now, done)

    @rule(id=st.sampled_from("xy"), size=st.sampled_from([None, 0, 300]))
    def set_state(self, id: str, size: int | None) -> None:
        self.sent += 1
        state = None if size is None else b"%d." % self.sent + b"s" * size
        told = self.told[id]
        told.possible.append(state)

        def done(refusal: Refusal | None) -> None:
            if refusal is None:
                told.certain = state
                told.possible = told.possible[told.possible.index(state) + 1 :]
            elif "nothing was stored" in refusal.description:
                told.possible.remove(state)

        self.rig.namespace.set_session_state(self.rig.queue("talks"), id, state, self.rig.now, done)

    @rule(seconds=st.sampled_from([0.05, 10.0, LOCK_S]))
    def time_passes(self, seconds: float) -> None:
        self.rig.now += seconds
        for token, (body, path, until) in list(self.locks.items()):
            if until <= self.rig.now:
                del self.locks[token]
                fate = self.fates[body]
                fate.count += 1
                fate.count_is_certain = False
                if fate.count >= MAX_DELIVERIES and path == "orders":
                    fate.place_is_certain = fate.home_is_certain = False
                    fate.place, fate.home = "dead", READY
        self.rig.namespace.tick(self.rig.now)

    # what must be there

    @rule()
    def quiet(self) -> None:
        """All is written and answered: what is there is what the account says, in memory too."""
        self.rig.files.faults.clear()
        for _ in range(60):
            self.rig.now += 0.3
            if any(until <= self.rig.now for _, _, until in self.locks.values()):
                self.rig.now -= 0.3  # no lock runs out here
            self.rig.namespace.maintenance.write_again()
            self.rig.run()
            if self.compaction is not None:
                self.compact()
        if self.rig.journal.failure is not None:
            return
        self.has_failed = False
        found = self.found(self.rig)
        for body, fate in self.fates.items():
            if fate.present == "must":
                assert body in found, fate
                place, count, home = found[body]
                assert (place, count) == (fate.place, fate.count), fate
                if fate.home_is_certain or home != SCHEDULED:
                    assert home == fate.home, fate
                fate.place_is_certain = fate.count_is_certain = True
                fate.home_is_certain = home != SCHEDULED
            elif fate.present == "not":
                assert body not in found, fate
        for id, told in self.told.items():
            assert self.rig.state(id, "talks") == told.certain

    def found(self, rig: Rig) -> dict[bytes, tuple[str, int, int]]:
        found = {}
        for place, path in (("active", "orders"), ("dead", DEAD)):
            for message in rig.queue(path).scan(0):
                body = body_of(rig.namespace.delivery(rig.queue(path), message, locked=False))
                assert body not in found, "a message is there twice"
                found[body] = (place, message.delivery_count, message.home)
                assert body not in self.consumed, "a second copy has come"
                fate = self.fates[body]
                if message.home == SCHEDULED:
                    assert fate.number is None, "it was active already"
                    continue
                assert fate.number in (None, message.sequence_number)
                fate.number = message.sequence_number
        return found

    def crash(self, left: Callable[[SimulatedDisk], SimulatedDisk], power: bool) -> None:
        files = left(self.rig.files)
        # Settled, and its record has yet to be written once more behind a copy, which the disk refused.
        lingering = set(self.found(self.rig)) if self.rig.namespace.maintenance._unwritten else set()
        # Answered lazily, and not yet written again after the disk had failed: a kill undoes it as a power cut does.
        power = power or self.has_failed
        self.has_failed = False
        self.stop_compaction()
        self.rig.__exit__()
        self.number_max = max([self.number_max, *(fate.number or 0 for fate in self.fates.values())])
        now = self.rig.now
        self.rig = Rig(files, OPTIONS, 800, now=now)
        self.locks.clear()
        found = self.found(self.rig)
        for body, fate in list(self.fates.items()):
            if fate.present == "must":
                assert body in found, f"lost: {fate}"
            if fate.present == "not" and body not in lingering and not (power and fate.lazily_gone):
                assert body not in found, f"came back: {fate}"
            if body not in found:
                del self.fates[body]
                if fate.is_confirmed:
                    self.consumed.add(body)
                continue
            place, count, home = found[body]
            if body in lingering:
                fate.place_is_certain = fate.count_is_certain = fate.home_is_certain = False
            if fate.home_is_certain and fate.place_is_certain and not power:
                assert home == fate.home, fate
            if fate.place_is_certain and not power:
                assert place == fate.place, fate
            assert count <= max(fate.count, MAX_DELIVERIES) + 1, fate
            if fate.count_is_certain and not power:
                assert count == fate.count, fate
            fate.present, fate.lazily_gone = "must", False
            fate.place, fate.count, fate.place_is_certain, fate.count_is_certain = place, count, True, True
            # It is there, so its id is known.
            fate.is_confirmed = True
            fate.home, fate.home_is_certain = (READY, False) if home == SCHEDULED else (home, True)
        for id, told in self.told.items():
            state = self.rig.state(id, "talks")
            assert state in (told.certain, *told.possible)
            told.certain, told.possible = state, []
        assert self.rig.namespace.notes == []

    @invariant()
    def accounts_are_sane(self) -> None:
        if not hasattr(self, "rig"):
            return
        namespace = self.rig.namespace
        entity = namespace.queues["orders"]
        assert entity.pending_bytes >= 0
        for queue in (entity.active, entity.dead_letter):
            resident = sum(message.length for message in queue.scan(0) if message.content is not None)
            assert queue.resident_bytes == resident
        assert namespace.resident_bytes == entity.active.resident_bytes + entity.dead_letter.resident_bytes


Durability.TestCase.settings = thorough(60, 60)
TestDurability = Durability.TestCase
