from __future__ import annotations

import pytest

from pairbus.syphon.core import transfer_index
from pairbus.syphon.core.destinations import Destinations, RefusalVerdict
from pairbus.syphon.core.transfer import (
    Command,
    Complete,
    DeadLetter,
    Leave,
    PendingTransfer,
    Rejection,
    Release,
    Renew,
    Send,
    State,
)
from pairbus.syphon.core.transfer_index import CROWD, SLOW_S
from pairbus.syphon.core.transfer_state import AT_TRIAL_MAX, PER_DESTINATION_MAX, SETTLE_TRIES, TICK_S, TransferState
from pairbus.wire.errors import LinkLost, Unreachable, WireError, refusal
from tests.syphon.rig import QUEUE, transfer

AWAY = Unreachable("pairbus:unreachable", "connection refused")
UNKNOWN = LinkLost("pairbus:link-lost", "the link is gone", outcome_unknown=True)
BUSY = refusal("com.microsoft:server-busy", "50009")
FULL = refusal("amqp:resource-limit-exceeded", "full")
GONE = refusal("amqp:not-found", "it could not be found")
NOT_ALLOWED = refusal("amqp:not-allowed", "it requires sessions")
OTHER = "contoso/x-servicebus-transfer/1"


def take(
    transfer_state: TransferState, path: str = "orders", now: float = 0.0, count: int = 100, size: int = 10**6
) -> list[PendingTransfer]:
    send, commands = transfer_state.send(path, now, count, size)
    assert commands == []
    return [] if send is None else send.transfers


def received(transfer_state: TransferState, *transfers: PendingTransfer | Rejection, now: float = 0.0) -> list[Command]:
    commands, _ = transfer_state.received(transfers, now)
    return commands


def sent(transfer_state: TransferState, *transfers: PendingTransfer, now: float = 0.0) -> list[PendingTransfer]:
    assert received(transfer_state, *transfers, now=now) == []
    return take(transfer_state, transfers[0].path, now)


@pytest.fixture
def transfer_state() -> TransferState:
    return TransferState()


class TestTheWayHome:
    def test_p39_completed_only_after_the_primary_confirmed(self, transfer_state: TransferState) -> None:
        commands, wanted = transfer_state.received([transfer(1), transfer(2)], 0.0)
        assert (commands, wanted) == ([], {"orders"})
        assert transfer_state.waiting("orders") == 2
        send, _ = transfer_state.send("orders", 0.0, 100, 10**6)
        assert isinstance(send, Send)
        assert [each.state for each in send.transfers] == [State.SENT] * 2
        assert transfer_state.in_hand == 2
        assert transfer_state.confirmed(send.transfers) == [Complete(QUEUE, send.transfers)]
        assert transfer_state.in_hand == 2, "until the backlog has answered"
        transfer_state.settled(send.transfers)
        assert (transfer_state.in_hand, transfer_state.in_hand_bytes, transfer_state.deadline) == (0, 0, None)
        assert repr(transfer_state) == "<TransferState 0 in hand, 0 of them waiting, 0 left, 0 remembered>"

    def test_messages_of_several_queues_are_completed_each_in_its_own(self, transfer_state: TransferState) -> None:
        transfers = sent(transfer_state, transfer(1), transfer(1, queue=OTHER), transfer(2))
        assert transfer_state.confirmed(transfers) == [
            Complete(QUEUE, [transfers[0], transfers[2]]),
            Complete(OTHER, [transfers[1]]),
        ]

    def test_nothing_to_send(self) -> None:
        assert TransferState().send("orders", 0.0, 10, 10) == (None, [])

    def test_a_transfer_holds_as_many_as_fit(self, transfer_state: TransferState) -> None:
        received(transfer_state, *(transfer(number, size=40) for number in range(5)))
        assert len(take(transfer_state, size=100)) == 2
        assert len(take(transfer_state, count=1)) == 1
        assert len(take(transfer_state, size=1)) == 1, "one always goes, whatever its size"
        assert len(take(transfer_state)) == 1
        assert take(transfer_state) == []

    def test_one_with_a_session_goes_alone(self, transfer_state: TransferState) -> None:
        received(transfer_state, transfer(1), transfer(2, alone=True), transfer(3), transfer(4))
        assert [[each.key[1] for each in take(transfer_state)] for _ in range(3)] == [[1], [2], [3, 4]]

    def test_payloads_are_let_go_when_they_are_home(self, transfer_state: TransferState) -> None:
        (one,) = sent(transfer_state, transfer(1))
        transfer_state.confirmed([one])
        assert one.payload == b""
        assert transfer_state.in_hand_bytes == one.size == 10


class TestPoison:
    def test_p40_what_has_no_destination_is_dead_lettered_with_reason(self, transfer_state: TransferState) -> None:
        bad = transfer(1, "")
        commands, wanted = transfer_state.received([Rejection(bad, "MissingPath", "there is no x-ms-path")], 0.0)
        assert commands == [DeadLetter(QUEUE, [bad], "MissingPath", "there is no x-ms-path")]
        assert wanted == set()
        transfer_state.settled([bad])
        assert transfer_state.in_hand == 0

    def test_p40_a_destination_that_is_gone_dead_letters_its_messages(self, transfer_state: TransferState) -> None:
        received(transfer_state, transfer(1), transfer(2), transfer(3))
        transfers = take(transfer_state, count=2)
        (command,) = transfer_state.failed(transfers, GONE, 0.0)
        assert isinstance(command, DeadLetter)
        assert [each.key[1] for each in command.transfers] == [1, 2, 3], "those that wait for it, too"
        assert command.reason == "DestinationNotFound"
        assert "'orders'" in command.description and "amqp:not-found" in command.description
        (command,) = received(transfer_state, transfer(4), now=5.0)
        assert isinstance(command, DeadLetter), "for a while without asking again"
        assert sent(transfer_state, transfer(5), now=10.0), "then it may have been made"

    def test_p40_one_that_could_not_be_opened_because_it_is_gone(self, transfer_state: TransferState) -> None:
        received(transfer_state, transfer(1), transfer(2))
        (command,) = transfer_state.unsendable("orders", GONE, 0.0)
        assert isinstance(command, DeadLetter) and len(command.transfers) == 2

    def test_p40_a_refused_batch_is_sent_again_one_by_one(self, transfer_state: TransferState) -> None:
        """One message without a session id must not take the others with it."""
        transfers = sent(transfer_state, transfer(1), transfer(2), transfer(3))
        assert transfer_state.failed(transfers, NOT_ALLOWED, 0.0) == []
        assert transfer_state.waiting("orders") == 3
        one, two, three = (take(transfer_state) for _ in range(3))
        assert [len(one), len(two), len(three)] == [1, 1, 1]
        assert [one[0].key[1], two[0].key[1], three[0].key[1]] == [1, 2, 3]
        (command,) = transfer_state.failed(two, NOT_ALLOWED, 0.0)
        assert isinstance(command, DeadLetter)
        assert command.reason == "DestinationRefused"
        assert transfer_state.confirmed(one) and transfer_state.confirmed(three)
        assert transfer_state.destinations.trouble("orders") is None, "nothing is wrong with the destination"

    def test_p40_lists_of_dead_letters_are_settled_together(self, transfer_state: TransferState) -> None:
        received(transfer_state, transfer(1), transfer(2), transfer(3, queue=OTHER), transfer(4))
        commands = transfer_state.unsendable("orders", GONE, 0.0)
        assert [(command[0], len(command[1])) for command in commands] == [(QUEUE, 2), (OTHER, 1), (QUEUE, 1)]

    def test_p41_a_replay_leaves_what_is_refused_where_it_is(self) -> None:
        transfer_state = TransferState(can_dead_letter=False)
        bad = transfer(1, "")
        commands, _ = transfer_state.received([Rejection(bad, "MissingPath", "none")], 0.0)
        (leave,) = commands
        assert isinstance(leave, Leave)
        assert (leave.transfers, leave.trouble.verdict, leave.trouble.text) == ([bad], RefusalVerdict.REFUSED, "none")
        transfers = sent(transfer_state, transfer(2))
        (leave,) = transfer_state.failed(transfers, GONE, 0.0)
        assert isinstance(leave, Leave) and leave.transfers == transfers


class TestAway:
    @pytest.mark.parametrize("error", [AWAY, UNKNOWN, BUSY, FULL, refusal("amqp:internal-error")])
    def test_p40_left_to_the_lock_and_readers_pass_on(self, error: WireError, transfer_state: TransferState) -> None:
        received(transfer_state, transfer(1), transfer(2), transfer(3))
        transfers = take(transfer_state, count=2)
        first, second = transfer_state.failed(transfers, error, 0.0)
        assert isinstance(first, Leave) and isinstance(second, Leave)
        assert (first.transfers, [each.key[1] for each in second.transfers]) == (transfers, [3])
        assert (transfer_state.in_hand, transfer_state.left) == (0, 3), "they take no room"
        commands, wanted = transfer_state.received([transfer(4), transfer(5, "news")], 0.1)
        assert wanted == {"news"}
        (leave,) = commands
        assert isinstance(leave, Leave) and leave.path == "orders"
        assert len(take(transfer_state, "news", 0.1)) == 1

    def test_p40_tried_again_with_one_message_when_its_time_has_come(self, transfer_state: TransferState) -> None:
        transfer_state.failed(sent(transfer_state, transfer(1)), AWAY, 0.0)
        commands, wanted = transfer_state.received([transfer(2), transfer(3)], 1.0)
        assert (commands, wanted) == ([], {"orders"})
        trial = take(transfer_state, now=1.0)
        assert len(trial) == 1
        assert take(transfer_state, now=1.0) == [], "the other one waits for its answer"
        assert received(transfer_state, transfer(4, now=1.0), now=1.0) == []
        assert transfer_state.confirmed(trial)
        assert len(take(transfer_state, now=1.1)) == 2

    def test_p40_a_trial_that_fails_leaves_those_that_waited_for_it(self, transfer_state: TransferState) -> None:
        transfer_state.failed(sent(transfer_state, transfer(1)), AWAY, 0.0)
        received(transfer_state, transfer(2), transfer(3), now=1.0)
        trial = take(transfer_state, now=1.0)
        first, second = transfer_state.failed(trial, AWAY, 1.5)
        assert isinstance(first, Leave) and isinstance(second, Leave)
        assert (first.trouble.strikes, len(second.transfers)) == (2, 1)
        assert received(transfer_state, transfer(4), now=3.4), "two seconds now"
        assert sent(transfer_state, transfer(5), now=3.5)

    def test_p40_only_so_many_wait_for_a_trial(self, transfer_state: TransferState) -> None:
        transfer_state.failed(sent(transfer_state, transfer(0)), AWAY, 0.0)
        assert len(sent(transfer_state, transfer(1), now=1.0)) == 1
        (leave,) = received(transfer_state, *(transfer(number) for number in range(2, 2 + AT_TRIAL_MAX)), now=1.0)
        assert isinstance(leave, Leave) and len(leave.transfers) == 1

    def test_a_slow_destination_does_not_take_all_the_room(self, transfer_state: TransferState) -> None:
        many = [transfer(number) for number in range(PER_DESTINATION_MAX)]
        assert received(transfer_state, *many) == []
        assert received(transfer_state, transfer(-1, now=SLOW_S), now=SLOW_S) == [], "it may yet take them"
        (leave,) = received(transfer_state, transfer(-2), transfer(-3), now=SLOW_S + 0.1)
        assert isinstance(leave, Leave) and len(leave.transfers) == 2
        assert transfer_state.in_hand == PER_DESTINATION_MAX + 1
        _, wanted = transfer_state.received([transfer(1, "news", queue=OTHER)], SLOW_S + 0.1)
        assert wanted == {"news"}

    def test_readers_wait_for_a_destination_that_takes_what_it_gets(self, transfer_state: TransferState) -> None:
        assert not transfer_state.is_crowded(0.0)
        received(transfer_state, *(transfer(number) for number in range(CROWD + 1)))
        assert transfer_state.is_crowded(0.0)
        assert not transfer_state.is_crowded(SLOW_S + 0.1), "for one that does not nobody waits"
        take(transfer_state, count=1)
        assert not transfer_state.is_crowded(0.0)

    def test_a_lock_that_has_run_short_is_not_sent_under(self, transfer_state: TransferState) -> None:
        received(transfer_state, transfer(1), transfer(2, now=0.0, lock_s=100.0))
        send, (leave,) = transfer_state.send("orders", 50.5, 10, 10**6)
        assert isinstance(leave, Leave) and [each.key[1] for each in leave.transfers] == [1]
        assert send is not None and [each.key[1] for each in send.transfers] == [2]

    def test_short_locks_are_sent_under_nevertheless(self, transfer_state: TransferState) -> None:
        received(transfer_state, transfer(1, lock_s=5.0))
        assert take(transfer_state, now=3.0)

    def test_left_messages_that_a_stop_could_release_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transfer_index, "LEFT_MAX", 3)
        transfer_state = TransferState()
        transfer_state.failed(sent(transfer_state, *(transfer(number) for number in range(5))), AWAY, 0.0)
        assert transfer_state.left == 3
        (release,) = transfer_state.stop()
        assert [each.key[1] for each in release.transfers] == [2, 3, 4]


class TestSettling:
    def test_p39_a_completion_that_failed_is_asked_for_again(self, transfer_state: TransferState) -> None:
        transfers = sent(transfer_state, transfer(1), transfer(2))
        transfer_state.confirmed(transfers)
        assert transfer_state.unsettled(transfers, 1.0, lock_lost=False) == [Complete(QUEUE, transfers)]
        transfer_state.settled(transfers)
        assert transfer_state.in_hand == 0

    def test_p39_completed_without_sending_again_when_it_comes_again(self, transfer_state: TransferState) -> None:
        transfers = sent(transfer_state, transfer(1))
        transfer_state.confirmed(transfers)
        assert transfer_state.unsettled(transfers, 1.0, lock_lost=True) == []
        assert transfer_state.in_hand == 0
        again = transfer(1, now=61.0)
        commands, wanted = transfer_state.received([again], 61.0)
        assert (commands, wanted) == ([Complete(QUEUE, [again])], set())
        transfer_state.settled([again])
        assert repr(transfer_state) == "<TransferState 0 in hand, 0 of them waiting, 0 left, 0 remembered>"

    def test_p39_a_queue_made_anew_has_the_same_numbers_and_other_messages(self, transfer_state: TransferState) -> None:
        transfers = sent(transfer_state, transfer(1, enqueued=1_000))
        transfer_state.confirmed(transfers)
        transfer_state.unsettled(transfers, 1.0, lock_lost=True)
        assert sent(transfer_state, transfer(1, enqueued=2_000), now=2.0)

    def test_settling_is_given_up_after_a_while(self, transfer_state: TransferState) -> None:
        transfers = sent(transfer_state, transfer(1))
        transfer_state.confirmed(transfers)
        for _ in range(SETTLE_TRIES - 1):
            assert transfer_state.unsettled(transfers, 1.0, lock_lost=False)
        assert transfer_state.unsettled(transfers, 1.0, lock_lost=False) == []
        assert transfer_state.in_hand == 0

    def test_settling_is_given_up_when_the_lock_is_over(self, transfer_state: TransferState) -> None:
        transfers = sent(transfer_state, transfer(1))
        transfer_state.confirmed(transfers)
        assert transfer_state.unsettled(transfers, 60.0, lock_lost=False) == []

    def test_p40_dead_lettering_that_failed_is_asked_for_again(self, transfer_state: TransferState) -> None:
        bad = transfer(1, "")
        transfer_state.received([Rejection(bad, "MissingPath", "none")], 0.0)
        assert transfer_state.unsettled([bad], 1.0, lock_lost=False) == [
            DeadLetter(QUEUE, [bad], "MissingPath", "none")
        ]
        assert transfer_state.unsettled([bad], 1.0, lock_lost=True) == []
        assert transfer_state.in_hand == 0

    def test_what_is_remembered_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transfer_index, "REMEMBERED_MAX", 2)
        transfer_state = TransferState()
        for number in range(4):
            transfers = sent(transfer_state, transfer(number))
            transfer_state.confirmed(transfers)
            transfer_state.unsettled(transfers, 1.0, lock_lost=True)
        assert "2 remembered" in repr(transfer_state)


class TestLocks:
    def test_only_locks_of_sends_under_way_are_renewed(self, transfer_state: TransferState) -> None:
        received(transfer_state, transfer(1), transfer(2), transfer(3))
        under_way = take(transfer_state, count=1)
        home = take(transfer_state, count=1)
        transfer_state.confirmed(home)
        assert transfer_state.tick(30.0) == []
        assert transfer_state.tick(39.5) == [Renew(QUEUE, under_way)]
        assert transfer_state.tick(40.6) == [], "not every second"
        transfer_state.renewed(under_way, 41.0)
        assert under_way[0].locked_until == 101.0
        assert transfer_state.tick(61.0) == []

    def test_short_locks_are_renewed_in_time(self, transfer_state: TransferState) -> None:
        under_way = sent(transfer_state, transfer(1, lock_s=5.0))
        assert transfer_state.tick(1.0) == []
        assert transfer_state.tick(2.5) == [Renew(QUEUE, under_way)]
        transfer_state.renewed(under_way, 2.5)
        assert transfer_state.tick(4.0) == []
        assert transfer_state.tick(5.0) == [Renew(QUEUE, under_way)]

    def test_what_waits_past_its_lock_is_dropped_and_comes_again(self, transfer_state: TransferState) -> None:
        received(transfer_state, transfer(1), transfer(2, lock_s=90.0))
        transfer_state.tick(60.0)
        assert transfer_state.waiting("orders") == 1
        assert [each.key[1] for each in take(transfer_state, now=60.0)] == [2]

    def test_left_locks_end_by_themselves(self, transfer_state: TransferState) -> None:
        transfer_state.failed(sent(transfer_state, transfer(1)), AWAY, 0.0)
        assert transfer_state.deadline is not None
        transfer_state.tick(59.0)
        assert transfer_state.left == 1
        transfer_state.tick(60.0)
        assert (transfer_state.left, transfer_state.deadline) == (0, None)

    def test_the_time_of_the_next_look(self, transfer_state: TransferState) -> None:
        assert transfer_state.deadline is None
        received(transfer_state, transfer(1, now=7.0), now=7.0)
        assert transfer_state.deadline == 7.0 + TICK_S
        transfer_state.tick(7.5)
        assert transfer_state.deadline == 7.0 + TICK_S, "too early is no look"
        transfer_state.tick(8.5)
        assert transfer_state.deadline == 8.5 + TICK_S

    def test_one_that_comes_again_while_it_is_under_way_lends_its_lock(self, transfer_state: TransferState) -> None:
        """Its lock ran out during a slow send: it must not be sent twice for that."""
        (one,) = sent(transfer_state, transfer(1))
        again = transfer(1, now=61.0)
        commands, wanted = transfer_state.received([again], 61.0)
        assert (commands, wanted) == ([], set())
        assert (one.token, one.locked_until) == (again.token, again.locked_until)
        (complete,) = transfer_state.confirmed([one])
        assert complete == Complete(QUEUE, [one])

    def test_one_that_comes_again_while_its_completion_is_asked_for(self, transfer_state: TransferState) -> None:
        (one,) = sent(transfer_state, transfer(1))
        transfer_state.confirmed([one])
        again = transfer(1, now=61.0)
        assert received(transfer_state, again, now=61.0) == [Complete(QUEUE, [again])]
        transfer_state.unsettled([one], 61.0, lock_lost=True)
        transfer_state.settled([again])
        assert transfer_state.in_hand == 0

    def test_one_that_comes_again_while_it_waits_or_is_refused_begins_anew(self, transfer_state: TransferState) -> None:
        received(transfer_state, transfer(1))
        received(transfer_state, transfer(1, now=61.0), now=61.0)
        assert (transfer_state.in_hand, transfer_state.waiting("orders")) == (1, 1)
        bad = transfer(2, "")
        transfer_state.received([Rejection(bad, "MissingPath", "none")], 0.0)
        commands, _ = transfer_state.received([Rejection(transfer(2, "", now=61.0), "MissingPath", "none")], 61.0)
        assert [type(command) for command in commands] == [DeadLetter]
        transfer_state.settled([bad])
        assert transfer_state.in_hand == 2, "a late answer says nothing of the new delivery"

    def test_left_ones_that_come_again_are_no_longer_left(self, transfer_state: TransferState) -> None:
        transfer_state.failed(sent(transfer_state, transfer(1)), AWAY, 0.0)
        assert sent(transfer_state, transfer(1, now=61.0), now=61.0)
        assert transfer_state.left == 0


class TestEnding:
    def test_p44_a_stop_releases_what_waits_and_what_was_left(self, transfer_state: TransferState) -> None:
        transfer_state.failed(sent(transfer_state, transfer(1, "news")), AWAY, 0.0)
        received(transfer_state, transfer(2), transfer(3, queue=OTHER))
        under_way = take(transfer_state, count=1)
        commands = transfer_state.stop()
        assert sorted((command[0], [each.key[1] for each in command[1]]) for command in commands) == [
            (QUEUE, [1]),
            (OTHER, [3]),
        ]
        assert all(isinstance(command, Release) for command in commands)
        assert transfer_state.in_hand == 1, "what is on the wire is waited for"
        (release,) = received(transfer_state, transfer(4))
        assert isinstance(release, Release), "what comes late goes back"
        assert transfer_state.confirmed(under_way) == [Complete(QUEUE, under_way)]
        transfer_state.settled(under_way)
        assert transfer_state.give_up() == []

    def test_p44_what_the_primary_did_not_answer_is_released_at_last(self, transfer_state: TransferState) -> None:
        received(transfer_state, transfer(1), transfer(2))
        (one,) = take(transfer_state, count=1)
        (two,) = take(transfer_state, count=1)
        transfer_state.confirmed([two])
        transfer_state.stop()
        assert transfer_state.give_up() == [Release(QUEUE, [one])], "what it confirmed must not go back"
        assert transfer_state.in_hand == 0
        assert transfer_state.confirmed([one]) == []
        assert received(transfer_state, transfer(1, now=1.0), now=1.0)[0][0] == QUEUE
        assert "1 remembered" in repr(transfer_state)

    @pytest.mark.parametrize("error", [AWAY, NOT_ALLOWED])
    def test_p44_what_fails_during_the_stop_goes_back_too(self, error: WireError) -> None:
        transfer_state = TransferState()
        transfers = sent(transfer_state, transfer(1), transfer(2))
        transfer_state.stop()
        transfer_state.failed(transfers, error, 0.0)
        (release,) = transfer_state.give_up()
        assert isinstance(release, Release) and len(release.transfers) == 2
        assert (transfer_state.in_hand, transfer_state.left) == (0, 0)

    def test_p41_left_ones_can_be_wanted_back(self, transfer_state: TransferState) -> None:
        transfer_state.failed(sent(transfer_state, transfer(1), transfer(2), transfer(3)), AWAY, 0.0)
        assert transfer_state.left_paths() == {"orders"}
        (release,) = transfer_state.retry("orders", 1)
        assert isinstance(release, Release) and len(release.transfers) == 1
        assert transfer_state.left == 2
        assert transfer_state.retry("news", 1) == []
        (release,) = transfer_state.retry("orders", 10)
        assert isinstance(release, Release) and len(release.transfers) == 2

    def test_p40_what_was_left_comes_back_with_its_destination(self, transfer_state: TransferState) -> None:
        """One message tries it when its time has come; the others follow when it is back, not when their locks end."""
        transfer_state.failed(sent(transfer_state, transfer(1), transfer(2), transfer(3)), AWAY, 0.0)
        assert transfer_state.revive(0.5) == [], "it was tried just now"
        (release,) = transfer_state.revive(1.0)
        assert isinstance(release, Release) and len(release.transfers) == 1
        (trial,) = sent(transfer_state, transfer(1, now=1.0), now=1.0)
        assert transfer_state.revive(2.0) == [], "the trial is under way"
        transfer_state.confirmed([trial])
        (release,) = transfer_state.revive(2.0)
        assert isinstance(release, Release) and len(release.transfers) == 2
        assert (transfer_state.left, transfer_state.revive(3.0)) == (0, [])

    def test_p40_what_stays_away_is_tried_with_one_message_and_ever_longer_pauses(self) -> None:
        transfer_state = TransferState()
        transfer_state.failed(sent(transfer_state, transfer(1), transfer(2)), AWAY, 0.0)
        for now, pause in ((1.0, 2.0), (3.0, 4.0), (7.0, 8.0)):
            (release,) = transfer_state.revive(now)
            assert isinstance(release, Release) and len(release.transfers) == 1
            transfer_state.failed(sent(transfer_state, transfer(1, now=now), now=now), AWAY, now)
            assert transfer_state.revive(now + pause - 0.1) == []

    @pytest.mark.parametrize("late", [False, True])
    def test_p41_what_a_replay_can_never_deliver_is_not_asked_back(self, late: bool) -> None:
        """It would be received and refused again each time, for ever: its lock's end is soon enough."""
        transfer_state = TransferState(can_dead_letter=False)
        if late:  # the primary says so
            transfer_state.failed(sent(transfer_state, transfer(1)), NOT_ALLOWED, 0.0)
        else:  # it names no destination
            received(transfer_state, Rejection(transfer(1, path=""), "MissingPath", "it has no x-ms-path"))
        assert transfer_state.left == 1
        assert transfer_state.revive(5.0) == []
        (release,) = transfer_state.stop()
        assert isinstance(release, Release), "a clean stop gives it back all the same"

    def test_p24_a_halt_keeps_what_was_left(self) -> None:
        transfer_state = TransferState(Destinations(lambda path: 30.0))
        received(transfer_state, transfer(1))
        assert transfer_state.left == 1
        assert transfer_state.revive(29.0) == []
        assert len(transfer_state.revive(30.0)) == 1

    def test_nothing_is_reported_for_nothing(self, transfer_state: TransferState) -> None:
        assert transfer_state.failed([], AWAY, 0.0) == []
        assert transfer_state.confirmed([]) == []
        assert transfer_state.tick(0.0) == []


def test_a_destination_that_takes_no_batches_gets_one_message_at_a_time(transfer_state: TransferState) -> None:
    """A partitioned queue that detects duplicates: it refuses a batch of different ids, and takes each of them."""
    batch = sent(transfer_state, *(transfer(number) for number in range(1, 4)))
    assert len(batch) == 3
    assert transfer_state.failed(batch, NOT_ALLOWED, 0.0) == []
    for number in (1, 2, 3):
        (alone,) = take(transfer_state)
        assert alone.key[1] == number
        transfer_state.confirmed([alone])
    assert [each.key[1] for each in sent(transfer_state, *(transfer(n) for n in range(4, 7)))] == [4]
    assert len(sent(transfer_state, *(transfer(n, path="other") for n in range(7, 9)))) == 2


def test_a_bad_message_in_a_batch_does_not_end_batches(transfer_state: TransferState) -> None:
    batch = sent(transfer_state, *(transfer(number) for number in range(1, 4)))
    transfer_state.failed(batch, NOT_ALLOWED, 0.0)
    transfer_state.confirmed(take(transfer_state))
    transfer_state.failed(take(transfer_state), NOT_ALLOWED, 0.0)
    transfer_state.confirmed(take(transfer_state))
    assert len(sent(transfer_state, *(transfer(n) for n in range(4, 7)))) == 3
