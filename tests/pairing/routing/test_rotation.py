from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pairbus.pairing.events import Announce, BacklogQueueEjected, BacklogQueueReturned
from pairbus.pairing.routing.rotation import Pick, Rotation

ERROR = OSError("no")


def first(queues: Sequence[int]) -> int:
    return queues[0]


def rotation(*queues: int) -> Rotation:
    return Rotation(queues, retry_interval=30.0, choose=first)


def picked(made: Rotation, sender: str, now: float = 0.0) -> Pick:
    found = made.pick(sender, 0, now)
    assert found is not None
    return found


@pytest.fixture
def made() -> Rotation:
    return rotation(0, 1)


def test_p12_a_sender_keeps_its_queue_during_a_failover_and_picks_anew_at_the_next() -> None:
    choices = iter([2, 0, 1])
    made = Rotation([0, 1, 2], retry_interval=30.0, choose=lambda queues: next(choices))
    assert [made.pick("a", 0, 0.0), made.pick("a", 0, 9.0), made.pick("b", 0, 9.0)] == [
        Pick(2, False, 0),
        Pick(2, False, 0),
        Pick(0, False, 0),
    ]
    assert made.pick("a", 1, 99.0) == Pick(1, False, 0)


def test_p12_a_closed_sender_is_forgotten(made: Rotation) -> None:
    made.pick("a", 0, 0.0)
    assert repr(made) == "<Rotation [0, 1], out [], 1 senders>"
    made.forget("a")
    made.forget("a")
    assert repr(made) == "<Rotation [0, 1], out [], 0 senders>"


def test_p13_a_failed_queue_is_out_for_everyone_and_said_once(made: Rotation) -> None:
    a, b = picked(made, "a"), picked(made, "b")
    assert made.failed(a, 1.0, ERROR) == [Announce(BacklogQueueEjected(0, ERROR))]
    assert made.failed(b, 2.0, ERROR) == []
    assert made.queues == (1,)
    assert made.ejected == {0: 31.0}
    assert made.pick("b", 0, 2.0) == Pick(1, False, 0)
    assert len(made) == 2


def test_p13_one_trial_message_brings_it_back(made: Rotation) -> None:
    made.failed(picked(made, "a"), 0.0, ERROR)
    assert made.pick("a", 0, 29.9) == Pick(1, False, 0)
    trial = made.pick("b", 0, 30.0)
    assert trial == Pick(0, True, 0)
    assert made.pick("a", 0, 30.0) == Pick(1, False, 0), "only one message tries it"
    assert made.sent(trial) == [Announce(BacklogQueueReturned(0))]
    assert made.queues == (1, 0)
    assert made.pick("b", 0, 30.0) == Pick(1, False, 0)


def test_p13_a_failed_trial_goes_on_to_its_own_queue_and_waits_the_interval_again(made: Rotation) -> None:
    made.failed(picked(made, "a"), 0.0, ERROR)
    assert made.pick("a", 0, 1.0) == Pick(1, False, 0)
    trial = picked(made, "a", 31.0)
    assert trial.trial
    assert made.has_another(trial, 31.0, ())
    assert made.failed(trial, 35.0, ERROR) == [], "it never was back"
    assert made.pick("a", 0, 35.0, (0,)) == Pick(1, False, 0)
    assert made.ejected == {0: 65.0}


def test_p13_a_trial_of_which_nobody_knows_the_end_is_put_off() -> None:
    made = rotation(0)
    pick = picked(made, "a")
    made.inconclusive(pick, 0.0)
    assert made.queues == (0,)
    made.failed(pick, 0.0, ERROR)
    trial = picked(made, "a", 30.0)
    assert made.pick("a", 0, 30.0) is None
    made.inconclusive(trial, 32.0)
    assert made.pick("a", 0, 61.9) is None
    assert made.pick("a", 0, 62.0) == Pick(0, True, 0)


def test_p13_a_failure_from_before_its_return_is_stale(made: Rotation) -> None:
    a, b = picked(made, "a"), picked(made, "b")
    made.failed(a, 0.0, ERROR)
    trial = picked(made, "c", 30.0)
    made.sent(trial)
    assert made.failed(b, 31.0, ERROR) == []
    assert made.sent(b) == []
    assert made.queues == (1, 0)


def test_p13_a_late_success_from_before_the_ejection_does_not_bring_it_back() -> None:
    made = rotation(0)
    a, b = picked(made, "a"), picked(made, "b")
    made.failed(a, 0.0, ERROR)
    assert made.sent(b) == []
    assert made.queues == ()


def test_p13_with_nothing_left_there_is_no_pick() -> None:
    assert rotation().pick("a", 0, 0.0) is None
    assert rotation(0).pick("a", 0, 0.0, (0,)) is None


def test_p13_one_message_tries_one_ejected_queue_unless_nothing_else_is_left() -> None:
    made = rotation(0, 1, 2)
    for queue in (0, 1):
        made.failed(Pick(queue, False, 0), 0.0, ERROR)
    assert made.pick("a", 0, 30.0) == Pick(0, True, 0)
    assert made.pick("a", 0, 30.0, (0,), may_try=False) == Pick(2, False, 0)
    made.failed(Pick(2, False, 0), 30.0, ERROR)
    last = made.pick("a", 0, 30.0, (0, 2), may_try=False)
    assert last == Pick(1, True, 0)
    assert not made.has_another(last, 30.0, (0, 2))


def test_p13_a_due_ejected_queue_counts_as_another(made: Rotation) -> None:
    made.failed(Pick(1, False, 0), 0.0, ERROR)
    own = Pick(0, False, 0)
    assert not made.has_another(own, 29.0, ())
    assert made.has_another(own, 30.0, ())


def test_p5_queues_that_come_later_join_and_those_that_are_out_stay_out(made: Rotation) -> None:
    made.pick("a", 0, 0.0)
    made.failed(Pick(0, False, 0), 0.0, ERROR)
    made.replace([0, 3, 3])
    assert (made.queues, made.ejected) == ((3,), {0: 30.0})
    assert made.pick("a", 0, 1.0) == Pick(3, False, 0)
    trial = picked(made, "a", 30.0)
    made.replace([3])
    assert made.sent(trial) == []
    assert made.failed(trial, 31.0, ERROR) == []
    assert made.queues == (3,)


class Spin(RuleBasedStateMachine):
    """Picks and their answers, in any order and at times that meet, against a plain account of who is out."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.made = Rotation([0, 1, 2], retry_interval=10.0, choose=max)
        self.transfer_state: list[Pick] = []
        self.out: dict[int, float] = {}
        self.trials: set[int] = set()
        self.returned: dict[int, float] = {}
        self.begun: dict[int, float] = {}

    @rule(by=st.sampled_from([0.0, 5.0, 10.0]))
    def time_passes(self, by: float) -> None:
        self.now += by

    @rule(sender=st.sampled_from("ab"), failover=st.integers(0, 1))
    def picks(self, sender: str, failover: int) -> None:
        pick = self.made.pick(sender, failover, self.now)
        due = {queue for queue, at in self.out.items() if self.now >= at} - self.trials
        if pick is None:
            assert len(self.out) == 3
            assert not due
            return
        assert pick.trial == (pick.queue in due) == bool(due), "who sends next tries it first"
        if pick.trial:
            self.trials.add(pick.queue)
        else:
            assert pick.queue not in self.out
        self.transfer_state.append(pick)

    @precondition(lambda self: self.transfer_state)
    @rule(data=st.data(), how=st.sampled_from(["sent", "failed", "spared"]))
    def answered(self, data: st.DataObject, how: str) -> None:
        pick = self.transfer_state.pop(data.draw(st.integers(0, len(self.transfer_state) - 1)))
        stale = pick.term != self.returned.get(pick.queue, 0)
        commands = []
        if how == "sent":
            commands = self.made.sent(pick)
        elif how == "failed":
            commands = self.made.failed(pick, self.now, ERROR)
        else:
            self.made.inconclusive(pick, self.now)
        if pick.trial:
            self.trials.remove(pick.queue)
            if how == "sent":
                del self.out[pick.queue]
                self.returned[pick.queue] = self.returned.get(pick.queue, 0) + 1
                assert commands == [Announce(BacklogQueueReturned(pick.queue))]
                return
            self.out[pick.queue] = self.now + 10.0
        elif how == "failed" and pick.queue not in self.out and not stale:
            self.out[pick.queue] = self.now + 10.0
            assert commands == [Announce(BacklogQueueEjected(pick.queue, ERROR))]
            return
        assert commands == []

    @invariant()
    def the_accounts_agree(self) -> None:
        assert self.made.ejected == self.out
        assert sorted(self.made.queues) == sorted({0, 1, 2} - set(self.out))
        assert len(self.made) == 3


Spin.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestSpin = pytest.mark.timeout(300)(Spin.TestCase)
