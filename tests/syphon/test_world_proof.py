"""Two syphons, a backlog and a primary in all weathers, step by step: nothing is ever lost (P39, P40).

Every answer is split from its request: it may come late, never, or after the fact that it tells has happened. Locks run
out whenever they like. A syphon may be stopped or killed between any two steps. Checked after each: a message leaves
the backlog only when the primary holds it; only poison and what is refused for good is dead-lettered; no message is
sent again without an excuse; and what waits for a destination that is well can be sent, whatever others suffer. At the
end, in fine weather, everything comes home.
"""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pairbus.syphon.core.transfer import (
    Command,
    Complete,
    DeadLetter,
    Leave,
    PendingTransfer,
    Rejection,
    Release,
    Renew,
    State,
)
from pairbus.syphon.core.transfer_state import TransferState
from pairbus.wire.errors import LinkLost, WireError, refusal

LOCK_S = 60.0
PATHS = ("orders", "news", "audit")
UNKNOWN = LinkLost("pairbus:link-lost", "gone", outcome_unknown=True)
WEATHERS: dict[str, WireError | None] = {
    "fine": None,
    "picky": None,
    "away": refusal("amqp:internal-error", "unable"),
    "busy": refusal("com.microsoft:server-busy", "busy"),
    "full": refusal("amqp:resource-limit-exceeded", "full"),
    "gone": refusal("amqp:not-found", "gone"),
}
NOT_ALLOWED = refusal("amqp:not-allowed", "odd ones are not taken here")

queues = st.sampled_from(("q0", "q1"))
syphons = st.sampled_from((0, 1))
seconds = st.sampled_from((0.5, 1.0, 10.0, 30.0, 45.0, LOCK_S, LOCK_S + 1))


class Message:
    def __init__(self, number: int, queue: str, path: str) -> None:
        self.number = number
        self.queue = queue
        self.path = path
        self.token = self.excused = b""
        self.locked_until = -1.0
        self.place = "backlog"
        self.stored = 0
        #: How often something happened that allows one more copy at the primary.
        self.excuses = 0
        self.may_die = path == ""
        #: Copies that each syphon has stored, and answers to sends that none of them heard.
        self.stored_by: dict[int, int] = {}
        self.unheard = 0

    @property
    def is_odd(self) -> bool:
        return self.number % 2 == 1


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tokens = itertools.count()
        self.messages: dict[tuple[str, int], Message] = {}
        self.weather = dict.fromkeys(PATHS, "fine")
        self.syphons = [TransferState(), TransferState()]
        self.ended: list[TransferState] = []  # kept, so that no other gets its id
        #: (syphon, transfers): on the wire to the primary, or stored there and not answered.
        self.sends: list[tuple[TransferState, list[PendingTransfer]]] = []
        self.settlements: list[tuple[TransferState, Command]] = []

    @initialize(count=st.integers(1, 12), data=st.data())
    def fill(self, count: int, data: st.DataObject) -> None:
        for number in range(count):
            queue = data.draw(queues)
            self.messages[queue, number] = Message(number, queue, data.draw(st.sampled_from((*PATHS, *PATHS, ""))))

    # -- what the syphons do

    def carry_out(self, syphon: TransferState, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Leave):
                assert all(transfer.state is State.LEFT for transfer in command.transfers)
            else:
                self.settlements.append((syphon, command))

    @rule(which=syphons, queue=queues, count=st.integers(1, 6))
    def receive(self, which: int, queue: str, count: int) -> None:
        self.deliver(self.syphons[which], queue, count)

    def deliver(self, syphon: TransferState, queue: str, count: int) -> int:
        ready = [m for m in self.messages.values() if m.queue == queue and m.place == "backlog" and not self.locked(m)]
        arrivals: list[PendingTransfer | Rejection] = []
        for message in ready[:count]:
            message.token = b"%d" % next(self.tokens)
            message.locked_until = self.now + LOCK_S
            transfer = PendingTransfer(
                queue, (queue, message.number, 0), message.token, message.path, b"x", now=self.now, lock_s=LOCK_S
            )
            arrivals.append(Rejection(transfer, "MissingPath", "none") if message.path == "" else transfer)
        commands, wanted = syphon.received(arrivals, self.now)
        assert all(syphon.waiting(path) for path in wanted)
        self.carry_out(syphon, commands)
        return len(arrivals)

    def locked(self, message: Message) -> bool:
        return message.locked_until > self.now

    @rule(which=syphons, path=st.sampled_from(PATHS), count=st.integers(1, 4))
    def send(self, which: int, path: str, count: int) -> None:
        self.put(self.syphons[which], path, count)

    def put(self, syphon: TransferState, path: str, count: int) -> bool:
        waited = syphon.waiting(path)
        obstacle = syphon.destinations.obstacle(path, self.now)
        send, commands = syphon.send(path, self.now, count, 1000)
        self.carry_out(syphon, commands)
        if send is None:
            assert not waited or obstacle is not None or commands, "what can be sent is sent"
            return False
        assert obstacle is None
        assert len(send.transfers) == 1 or not syphon.destinations.is_trial(path)
        self.sends.append((syphon, send.transfers))
        return True

    @rule(which=syphons, span=seconds)
    def work(self, which: int, span: float) -> None:
        """What an engine does in a moment, so that runs get further than step by step; then some time goes by."""
        syphon = self.syphons[which]
        for queue in ("q0", "q1"):
            self.deliver(syphon, queue, 100)
        for path in PATHS:
            while self.put(syphon, path, 3):
                pass
        self.run_answers(syphon)
        self.wait(span)

    # -- what the primary answers

    @precondition(lambda self: self.sends)
    @rule(data=st.data(), outcome=st.sampled_from(("answered", "answered", "lost before", "lost after")))
    def answer_send(self, data: st.DataObject, outcome: str) -> None:
        self.answer(data.draw(st.integers(0, len(self.sends) - 1)), outcome)

    def answer(self, index: int, outcome: str) -> None:
        syphon, transfers = self.sends.pop(index)
        error = self.store(syphon, transfers) if outcome != "lost before" else UNKNOWN
        if outcome == "lost after":
            error = UNKNOWN
        if error is UNKNOWN:
            for transfer in transfers:
                self.of(transfer).excuses += 1
                self.of(transfer).unheard += 1
        if error is None:
            self.carry_out(syphon, syphon.confirmed(transfers))
        else:
            self.carry_out(syphon, syphon.failed(transfers, error, self.now))

    def store(self, syphon: TransferState, transfers: list[PendingTransfer]) -> WireError | None:
        path = transfers[0].path
        messages = [self.of(transfer) for transfer in transfers]
        if self.weather[path] == "picky" and any(message.is_odd for message in messages):
            if len(messages) == 1:
                messages[0].may_die = True
            return NOT_ALLOWED
        error = WEATHERS[self.weather[path]]
        if error is None:
            for message in messages:
                message.stored += 1
                assert message.stored <= 1 + message.excuses, "sent again, and nothing had happened to it"
                mine = message.stored_by[id(syphon)] = message.stored_by.get(id(syphon), 0) + 1
                assert mine <= 1 + message.unheard, "by one that has heard that it is home, or that it is under way"
        elif self.weather[path] == "gone":
            for message in self.messages.values():
                message.may_die |= message.path == path
        return error

    def of(self, transfer: PendingTransfer) -> Message:
        return self.messages[transfer.queue, transfer.key[1]]  # type: ignore[index]

    # -- what the backlog answers

    @precondition(lambda self: self.settlements)
    @rule(data=st.data(), outcome=st.sampled_from(("answered", "answered", "lost before", "lost after")))
    def answer_settlement(self, data: st.DataObject, outcome: str) -> None:
        self.settle(data.draw(st.integers(0, len(self.settlements) - 1)), outcome)

    def settle(self, index: int, outcome: str) -> None:
        syphon, command = self.settlements.pop(index)
        assert not isinstance(command, Leave)
        tokens = {id(transfer): transfer.token for transfer in command.transfers}
        for transfer in command.transfers:
            message = self.of(transfer)
            is_held = self.locked(message) and message.token == tokens[id(transfer)] and message.place == "backlog"
            if is_held and outcome != "lost before":
                self.apply(message, command)
            if isinstance(command, Release):
                continue
            if isinstance(command, Renew):
                if is_held and outcome == "answered":
                    syphon.renewed([transfer], self.now)
                continue
            if outcome != "answered":
                self.carry_out(syphon, syphon.unsettled([transfer], self.now, lock_lost=False))
            elif is_held:
                syphon.settled([transfer])
            else:
                self.carry_out(syphon, syphon.unsettled([transfer], self.now, lock_lost=True))

    def apply(self, message: Message, command: Any) -> None:
        if isinstance(command, Complete):
            assert message.stored, "it left the backlog, and the primary does not have it"
            message.place = "home"
        elif isinstance(command, DeadLetter):
            assert message.may_die, "only what no destination takes for good"
            assert command.reason and command.description
            message.place = "dead"
        elif isinstance(command, Release):
            message.locked_until = self.now
        else:
            message.locked_until = self.now + LOCK_S

    # -- what happens by itself

    @rule(span=seconds)
    def wait(self, span: float) -> None:
        self.now += span
        in_flight = {id(self.of(transfer)) for _, transfers in self.sends for transfer in transfers}
        for message in self.messages.values():
            is_over = message.place == "backlog" and message.token != message.excused and not self.locked(message)
            # while it is on the wire, or not yet completed: another syphon may send it once more
            if is_over and (message.stored or id(message) in in_flight):
                message.excuses += 1
                message.excused = message.token
        for syphon in self.syphons:
            if syphon.deadline is not None and syphon.deadline <= self.now:
                self.carry_out(syphon, syphon.tick(self.now))

    @rule(path=st.sampled_from(PATHS), kind=st.sampled_from(sorted(WEATHERS)))
    def change_weather(self, path: str, kind: str) -> None:
        self.weather[path] = kind

    @rule(which=syphons, arrives=st.booleans(), settles=st.booleans())
    def kill(self, which: int, arrives: bool, settles: bool) -> None:
        """kill -9: nobody hears the answers of what was under way."""
        self.cut_off(self.syphons[which], arrives, settles)
        self.replace(which)

    def replace(self, which: int) -> None:
        self.ended.append(self.syphons[which])
        self.syphons[which] = TransferState()

    def cut_off(self, syphon: TransferState, arrives: bool, settles: bool) -> None:
        for _, transfers in [send for send in self.sends if send[0] is syphon]:
            for transfer in transfers:
                self.of(transfer).excuses += 1
            if arrives:
                self.store(syphon, transfers)
        self.sends = [send for send in self.sends if send[0] is not syphon]
        for _, command in [settlement for settlement in self.settlements if settlement[0] is syphon]:
            for transfer in command.transfers:
                message = self.of(transfer)
                message.excuses += 1
                if settles and self.locked(message) and message.token == transfer.token and message.place == "backlog":
                    self.apply(message, command)
        self.settlements = [settlement for settlement in self.settlements if settlement[0] is not syphon]

    @rule(which=syphons, waits=st.booleans(), arrives=st.booleans())
    def stop(self, which: int, waits: bool, arrives: bool) -> None:
        syphon = self.syphons[which]
        self.carry_out(syphon, syphon.stop())
        for path in PATHS:
            assert syphon.send(path, self.now, 10, 1000) == (None, [])
        if waits:
            self.run_answers(syphon)
        for owner, transfers in self.sends:
            for transfer in transfers if owner is syphon else ():
                self.of(transfer).excuses += 1
        self.carry_out(syphon, syphon.give_up())
        assert (syphon.in_hand, syphon.left) == (0, 0)
        for index in reversed(range(len(self.settlements))):
            if self.settlements[index][0] is syphon:
                self.settle(index, "answered")
        self.cut_off(syphon, arrives, settles=False)
        self.replace(which)

    def run_answers(self, syphon: TransferState) -> None:
        while pending := [index for index, (owner, _) in enumerate(self.sends) if owner is syphon]:
            self.answer(pending[-1], "answered")
        while pending := [index for index, (owner, _) in enumerate(self.settlements) if owner is syphon]:
            self.settle(pending[-1], "answered")

    # -- always

    @invariant()
    def nothing_is_lost(self) -> None:
        for message in self.messages.values():
            if message.place == "home":
                assert message.stored
            elif message.place == "dead":
                assert message.may_die

    @invariant()
    def the_books_are_right(self) -> None:
        for syphon in self.syphons:
            transfers = list(syphon._transfers.values())
            assert syphon.in_hand_bytes == sum(transfer.size for transfer in transfers)
            assert sum(syphon._in_hand.values()) == len(transfers)
            waiting = [transfer for given in syphon._waiting.values() for transfer in given]
            assert {id(transfer) for transfer in waiting} == {
                id(transfer) for transfer in transfers if transfer.state is State.WAITING
            }
            assert all(transfer.state is State.LEFT for transfer in syphon._left.values())

    def teardown(self) -> None:
        """In fine weather everything comes home, or lies with the dead letters for a reason."""
        self.weather = dict.fromkeys(PATHS, "fine")
        for _ in range(60):
            for which in (0, 1):
                self.work(which, 15.5)
            if all(message.place != "backlog" for message in self.messages.values()):
                break
        assert [message.number for message in self.messages.values() if message.place == "backlog"] == []


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=150, stateful_step_count=60)
