"""Entities that fail while the data folder stalls, or after it: with segments in two folders, what the journal says is
what was in memory, whatever was written meanwhile (P48 with P49)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from pairbus.broker.model.outcomes import Abandon, Complete, DeadLetter, Defer
from pairbus.broker.model.transaction import Send, Settle, Transaction
from pairbus.broker.refusal import Refusal
from pairbus.journal import JournalError, JournalStalled
from tests.simulation.disk import SimulatedDisk

from ..namespace_rig import FOLDER, Rig, make, make_special
from .test_restart import ALL, fill, restart, seen
from .test_transfer import disable, through

STANDBY = "s"


def state(rig: Rig) -> dict[str, list[Any]]:
    """What is everywhere, but for what has to be read from a folder that stalls."""
    found: dict[str, list[Any]] = {}
    for entity in rig.namespace._store.by_id.values():
        for queue in (entity.active, entity.dead_letter):
            messages = [
                (each.sequence_number, each.home, each.delivery_count, each.session_id, each.enqueued_at)
                for each in queue.scan(0)
            ]
            if messages:
                found[queue.path] = messages
    return found


class Story:
    """A namespace with all kinds of entities, and what is done to it by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        disk = SimulatedDisk(chance=random.Random(f"{seed} disk"))
        self.rig = Rig(disk, standby=STANDBY)
        fill(self.rig)
        self.rig.create("others")
        disable(self.rig)
        self.number = 0

    def step(self) -> None:
        steps: list[Callable[[], object]] = [
            self.send, self.send, self.settle, self.settle, self.take, self.schedule, self.wait, self.commit,
            self.transfer, self.set_state, self.stall, self.resume, self.compact, self.crash, self.kill,
        ]  # fmt: skip
        step = self.chance.choice(steps)
        step()

    def text(self) -> bytes:
        self.number += 1
        return b"%d " % self.number * self.chance.choice((1, 20, 60))

    def ok(self, refusal: Refusal | None) -> None:
        assert refusal is None, refusal

    def send(self) -> None:
        path = self.chance.choice(("orders", "jobs", "parts", "source", "news"))
        session = self.chance.choice("st") if path == "jobs" else None
        text = self.text()
        self.ok(self.rig.send_payloads(make_special(text, id=f"i{self.number % 30}", session_id=session), path=path))
        self.rig.pass_time(0.0)

    def settle(self) -> None:
        path = self.chance.choice(("orders", "parts", "target", "news/subscriptions/all"))
        outcome = self.chance.choice((Complete(), Abandon({}), Defer({}), DeadLetter("r", "x" * 700, {"a": 1})))
        if tokens := self.rig.tokens(self.chance.choice((1, 1, 3)), path):
            self.ok(self.rig.settle(tokens, outcome, path))

    def take(self) -> None:
        path = self.chance.choice(("orders", "parts", "news/subscriptions/some"))
        answers: list[Refusal | None] = []
        self.rig.namespace.receive.take(
            self.rig.queue(path), 2, self.rig.now, lambda messages, refusal: answers.append(refusal)
        )
        self.rig.run()
        assert answers == [None] or self.is_stalled, "what is stored where it stalls can't be read"

    def schedule(self) -> None:
        path = self.chance.choice(("orders", "news"))
        _, refusal = self.rig.schedule(
            make_special(self.text(), id=f"l{self.number}", at=self.rig.now + self.chance.choice((1, 3, 500))),
            path=path,
        )
        self.ok(refusal)

    def wait(self) -> None:
        self.rig.pass_time(self.chance.choice((0.3, 1.0, 4.0)))

    def commit(self) -> None:
        rig, transaction, ends = self.rig, Transaction(b"t%d" % self.number), list[Refusal | None]()
        orders = rig.queue("orders")
        if tokens := rig.tokens(2):
            self.ok(
                rig.namespace.enlist(transaction, Settle(orders, tokens, Complete(), ends.append), "orders", rig.now)
            )
        for path in ("target", "parts", "others", "news"):
            target = rig.namespace.resolve(path)
            assert target is not None
            payload = make_special(self.text(), id=f"t{self.number}", session_id="u")
            send = Send(target, [payload], ends.append, via=orders)
            self.ok(rig.namespace.enlist(transaction, send, "orders", rig.now))
        if self.chance.random() < 0.7:
            self.ok(rig.do(rig.namespace.commit, transaction))

    def transfer(self) -> None:
        self.ok(through(self.rig, make(self.text()), via=self.chance.choice(("orders", "parts", "news")))[0])

    def set_state(self) -> None:
        self.ok(self.rig.set_state(self.chance.choice("st"), self.chance.choice((None, self.text())), "jobs"))

    def stall(self) -> None:
        if self.chance.random() < 0.3:
            self.rig.journal.stall(True)
        else:
            self.rig.files.stalled.add(FOLDER)

    def resume(self) -> None:
        self.rig.journal.stall(False)
        self.rig.files.resume()
        self.rig.wait(1.0, 2)

    @property
    def is_stalled(self) -> bool:
        log = self.rig.journal._log
        assert log is not None
        return bool(self.rig.files.stalled or log.stalled or log.gate.folder)

    def compact(self) -> None:
        for _ in range(self.chance.choice((1, 3, 9))):
            try:
                if self.rig.compact() is None:
                    return
            except JournalStalled:
                assert self.is_stalled

    def crash(self) -> None:
        names = self.chance.choice((ALL, *[(each,) for each in ALL], ("others",)))
        before, nbytes = state(self.rig), self.rig.live_bytes()
        try:
            assert restart(self.rig, *names) == []
        except JournalError:
            assert self.is_stalled
            assert state(self.rig) == before
            return
        assert state(self.rig) == before
        assert self.rig.live_bytes() == nbytes

    def kill(self) -> None:
        before = state(self.rig)
        self.rig.__exit__()
        self.rig = self.rig.reopened()  # kill -9, in the middle of a stall or not
        assert state(self.rig) == before

    def end(self) -> None:
        self.resume()
        self.crash()
        before = seen(self.rig)
        self.kill()
        self.rig.compact_all()
        assert {path: found for path, found in seen(self.rig).items() if found} == {
            path: found for path, found in before.items() if found
        }


@pytest.mark.parametrize("seed", [*range(6), 285])
def test_p49_what_is_in_two_folders_is_read_again(seed: int) -> None:
    story = Story(seed)
    try:
        for _ in range(60):
            story.step()
        story.end()
    finally:
        story.rig.__exit__()
