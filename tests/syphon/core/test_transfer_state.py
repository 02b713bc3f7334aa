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
from tests.syphon.rig import QUEUE, parcel

AWAY = Unreachable("pairbus:unreachable", "connection refused")
UNKNOWN = LinkLost("pairbus:link-lost", "the link is gone", outcome_unknown=True)
BUSY = refusal("com.microsoft:server-busy", "50009")
FULL = refusal("amqp:resource-limit-exceeded", "full")
GONE = refusal("amqp:not-found", "it could not be found")
NOT_ALLOWED = refusal("amqp:not-allowed", "it requires sessions")
OTHER = "contoso/x-servicebus-transfer/1"


def take(
    underway: TransferState, path: str = "orders", now: float = 0.0, count: int = 100, size: int = 10**6
) -> list[PendingTransfer]:
    send, commands = underway.send(path, now, count, size)
    assert commands == []
    return [] if send is None else send.parcels


def received(underway: TransferState, *parcels: PendingTransfer | Rejection, now: float = 0.0) -> list[Command]:
    commands, _ = underway.received(parcels, now)
    return commands


def sent(underway: TransferState, *parcels: PendingTransfer, now: float = 0.0) -> list[PendingTransfer]:
    assert received(underway, *parcels, now=now) == []
    return take(underway, parcels[0].path, now)


class TestTheWayHome:
    def test_p39_completed_only_after_the_primary_confirmed(self) -> None:
        underway = TransferState()
        commands, wanted = underway.received([parcel(1), parcel(2)], 0.0)
        assert (commands, wanted) == ([], {"orders"})
        assert underway.waiting("orders") == 2
        send, _ = underway.send("orders", 0.0, 100, 10**6)
        assert isinstance(send, Send)
        assert [each.state for each in send.parcels] == [State.SENT] * 2
        assert underway.in_hand == 2
        assert underway.confirmed(send.parcels) == [Complete(QUEUE, send.parcels)]
        assert underway.in_hand == 2, "until the backlog has answered"
        underway.settled(send.parcels)
        assert (underway.in_hand, underway.in_hand_bytes, underway.deadline) == (0, 0, None)
        assert repr(underway) == "<Underway 0 in hand, 0 of them waiting, 0 left, 0 remembered>"

    def test_messages_of_several_queues_are_completed_each_in_its_own(self) -> None:
        underway = TransferState()
        parcels = sent(underway, parcel(1), parcel(1, queue=OTHER), parcel(2))
        assert underway.confirmed(parcels) == [
            Complete(QUEUE, [parcels[0], parcels[2]]),
            Complete(OTHER, [parcels[1]]),
        ]

    def test_nothing_to_send(self) -> None:
        assert TransferState().send("orders", 0.0, 10, 10) == (None, [])

    def test_a_transfer_holds_as_many_as_fit(self) -> None:
        underway = TransferState()
        received(underway, *(parcel(number, size=40) for number in range(5)))
        assert len(take(underway, size=100)) == 2
        assert len(take(underway, count=1)) == 1
        assert len(take(underway, size=1)) == 1, "one always goes, whatever its size"
        assert len(take(underway)) == 1
        assert take(underway) == []

    def test_one_with_a_session_goes_alone(self) -> None:
        underway = TransferState()
        received(underway, parcel(1), parcel(2, alone=True), parcel(3), parcel(4))
        assert [[each.key[1] for each in take(underway)] for _ in range(3)] == [[1], [2], [3, 4]]

    def test_payloads_are_let_go_when_they_are_home(self) -> None:
        underway = TransferState()
        (one,) = sent(underway, parcel(1))
        underway.confirmed([one])
        assert one.payload == b""
        assert underway.in_hand_bytes == one.size == 10


class TestPoison:
    def test_p40_what_has_no_destination_is_dead_lettered_with_reason(self) -> None:
        underway = TransferState()
        bad = parcel(1, "")
        commands, wanted = underway.received([Rejection(bad, "MissingPath", "there is no x-ms-path")], 0.0)
        assert commands == [DeadLetter(QUEUE, [bad], "MissingPath", "there is no x-ms-path")]
        assert wanted == set()
        underway.settled([bad])
        assert underway.in_hand == 0

    def test_p40_a_destination_that_is_gone_dead_letters_its_messages(self) -> None:
        underway = TransferState()
        received(underway, parcel(1), parcel(2), parcel(3))
        parcels = take(underway, count=2)
        (command,) = underway.failed(parcels, GONE, 0.0)
        assert isinstance(command, DeadLetter)
        assert [each.key[1] for each in command.parcels] == [1, 2, 3], "those that wait for it, too"
        assert command.reason == "DestinationNotFound"
        assert "'orders'" in command.description and "amqp:not-found" in command.description
        (command,) = received(underway, parcel(4), now=5.0)
        assert isinstance(command, DeadLetter), "for a while without asking again"
        assert sent(underway, parcel(5), now=10.0), "then it may have been made"

    def test_p40_one_that_could_not_be_opened_because_it_is_gone(self) -> None:
        underway = TransferState()
        received(underway, parcel(1), parcel(2))
        (command,) = underway.unsendable("orders", GONE, 0.0)
        assert isinstance(command, DeadLetter) and len(command.parcels) == 2

    def test_p40_a_refused_batch_is_sent_again_one_by_one(self) -> None:
        """One message without a session id must not take the others with it."""
        underway = TransferState()
        parcels = sent(underway, parcel(1), parcel(2), parcel(3))
        assert underway.failed(parcels, NOT_ALLOWED, 0.0) == []
        assert underway.waiting("orders") == 3
        one, two, three = (take(underway) for _ in range(3))
        assert [len(one), len(two), len(three)] == [1, 1, 1]
        assert [one[0].key[1], two[0].key[1], three[0].key[1]] == [1, 2, 3]
        (command,) = underway.failed(two, NOT_ALLOWED, 0.0)
        assert isinstance(command, DeadLetter)
        assert command.reason == "DestinationRefused"
        assert underway.confirmed(one) and underway.confirmed(three)
        assert underway.destinations.trouble("orders") is None, "nothing is wrong with the destination"

    def test_p40_lists_of_dead_letters_are_settled_together(self) -> None:
        underway = TransferState()
        received(underway, parcel(1), parcel(2), parcel(3, queue=OTHER), parcel(4))
        commands = underway.unsendable("orders", GONE, 0.0)
        assert [(command[0], len(command[1])) for command in commands] == [(QUEUE, 2), (OTHER, 1), (QUEUE, 1)]

    def test_p41_a_replay_leaves_what_is_refused_where_it_is(self) -> None:
        underway = TransferState(buries=False)
        bad = parcel(1, "")
        commands, _ = underway.received([Rejection(bad, "MissingPath", "none")], 0.0)
        (leave,) = commands
        assert isinstance(leave, Leave)
        assert (leave.parcels, leave.trouble.verdict, leave.trouble.text) == ([bad], RefusalVerdict.REFUSED, "none")
        parcels = sent(underway, parcel(2))
        (leave,) = underway.failed(parcels, GONE, 0.0)
        assert isinstance(leave, Leave) and leave.parcels == parcels


class TestAway:
    @pytest.mark.parametrize("error", [AWAY, UNKNOWN, BUSY, FULL, refusal("amqp:internal-error")])
    def test_p40_left_to_the_lock_and_readers_pass_on(self, error: WireError) -> None:
        underway = TransferState()
        received(underway, parcel(1), parcel(2), parcel(3))
        parcels = take(underway, count=2)
        first, second = underway.failed(parcels, error, 0.0)
        assert isinstance(first, Leave) and isinstance(second, Leave)
        assert (first.parcels, [each.key[1] for each in second.parcels]) == (parcels, [3])
        assert (underway.in_hand, underway.left) == (0, 3), "they take no room"
        commands, wanted = underway.received([parcel(4), parcel(5, "news")], 0.1)
        assert wanted == {"news"}
        (leave,) = commands
        assert isinstance(leave, Leave) and leave.path == "orders"
        assert len(take(underway, "news", 0.1)) == 1

    def test_p40_tried_again_with_one_message_when_its_time_has_come(self) -> None:
        underway = TransferState()
        underway.failed(sent(underway, parcel(1)), AWAY, 0.0)
        commands, wanted = underway.received([parcel(2), parcel(3)], 1.0)
        assert (commands, wanted) == ([], {"orders"})
        trial = take(underway, now=1.0)
        assert len(trial) == 1
        assert take(underway, now=1.0) == [], "the other one waits for its answer"
        assert received(underway, parcel(4, now=1.0), now=1.0) == []
        assert underway.confirmed(trial)
        assert len(take(underway, now=1.1)) == 2

    def test_p40_a_trial_that_fails_leaves_those_that_waited_for_it(self) -> None:
        underway = TransferState()
        underway.failed(sent(underway, parcel(1)), AWAY, 0.0)
        received(underway, parcel(2), parcel(3), now=1.0)
        trial = take(underway, now=1.0)
        first, second = underway.failed(trial, AWAY, 1.5)
        assert isinstance(first, Leave) and isinstance(second, Leave)
        assert (first.trouble.strikes, len(second.parcels)) == (2, 1)
        assert received(underway, parcel(4), now=3.4), "two seconds now"
        assert sent(underway, parcel(5), now=3.5)

    def test_p40_only_so_many_wait_for_a_trial(self) -> None:
        underway = TransferState()
        underway.failed(sent(underway, parcel(0)), AWAY, 0.0)
        assert len(sent(underway, parcel(1), now=1.0)) == 1
        (leave,) = received(underway, *(parcel(number) for number in range(2, 2 + AT_TRIAL_MAX)), now=1.0)
        assert isinstance(leave, Leave) and len(leave.parcels) == 1

    def test_a_slow_destination_does_not_take_all_the_room(self) -> None:
        underway = TransferState()
        many = [parcel(number) for number in range(PER_DESTINATION_MAX)]
        assert received(underway, *many) == []
        assert received(underway, parcel(-1, now=SLOW_S), now=SLOW_S) == [], "it may yet take them"
        (leave,) = received(underway, parcel(-2), parcel(-3), now=SLOW_S + 0.1)
        assert isinstance(leave, Leave) and len(leave.parcels) == 2
        assert underway.in_hand == PER_DESTINATION_MAX + 1
        _, wanted = underway.received([parcel(1, "news", queue=OTHER)], SLOW_S + 0.1)
        assert wanted == {"news"}

    def test_readers_wait_for_a_destination_that_takes_what_it_gets(self) -> None:
        underway = TransferState()
        assert not underway.is_crowded(0.0)
        received(underway, *(parcel(number) for number in range(CROWD + 1)))
        assert underway.is_crowded(0.0)
        assert not underway.is_crowded(SLOW_S + 0.1), "for one that does not nobody waits"
        take(underway, count=1)
        assert not underway.is_crowded(0.0)

    def test_a_lock_that_has_run_short_is_not_sent_under(self) -> None:
        underway = TransferState()
        received(underway, parcel(1), parcel(2, now=0.0, lock_s=100.0))
        send, (leave,) = underway.send("orders", 50.5, 10, 10**6)
        assert isinstance(leave, Leave) and [each.key[1] for each in leave.parcels] == [1]
        assert send is not None and [each.key[1] for each in send.parcels] == [2]

    def test_short_locks_are_sent_under_nevertheless(self) -> None:
        underway = TransferState()
        received(underway, parcel(1, lock_s=5.0))
        assert take(underway, now=3.0)

    def test_left_messages_that_a_stop_could_release_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transfer_index, "LEFT_MAX", 3)
        underway = TransferState()
        underway.failed(sent(underway, *(parcel(number) for number in range(5))), AWAY, 0.0)
        assert underway.left == 3
        (release,) = underway.stop()
        assert [each.key[1] for each in release.parcels] == [2, 3, 4]


class TestSettling:
    def test_p39_a_completion_that_failed_is_asked_for_again(self) -> None:
        underway = TransferState()
        parcels = sent(underway, parcel(1), parcel(2))
        underway.confirmed(parcels)
        assert underway.unsettled(parcels, 1.0, lock_lost=False) == [Complete(QUEUE, parcels)]
        underway.settled(parcels)
        assert underway.in_hand == 0

    def test_p39_completed_without_sending_again_when_it_comes_again(self) -> None:
        underway = TransferState()
        parcels = sent(underway, parcel(1))
        underway.confirmed(parcels)
        assert underway.unsettled(parcels, 1.0, lock_lost=True) == []
        assert underway.in_hand == 0
        again = parcel(1, now=61.0)
        commands, wanted = underway.received([again], 61.0)
        assert (commands, wanted) == ([Complete(QUEUE, [again])], set())
        underway.settled([again])
        assert repr(underway) == "<Underway 0 in hand, 0 of them waiting, 0 left, 0 remembered>"

    def test_p39_a_queue_made_anew_has_the_same_numbers_and_other_messages(self) -> None:
        underway = TransferState()
        parcels = sent(underway, parcel(1, enqueued=1_000))
        underway.confirmed(parcels)
        underway.unsettled(parcels, 1.0, lock_lost=True)
        assert sent(underway, parcel(1, enqueued=2_000), now=2.0)

    def test_settling_is_given_up_after_a_while(self) -> None:
        underway = TransferState()
        parcels = sent(underway, parcel(1))
        underway.confirmed(parcels)
        for _ in range(SETTLE_TRIES - 1):
            assert underway.unsettled(parcels, 1.0, lock_lost=False)
        assert underway.unsettled(parcels, 1.0, lock_lost=False) == []
        assert underway.in_hand == 0

    def test_settling_is_given_up_when_the_lock_is_over(self) -> None:
        underway = TransferState()
        parcels = sent(underway, parcel(1))
        underway.confirmed(parcels)
        assert underway.unsettled(parcels, 60.0, lock_lost=False) == []

    def test_p40_dead_lettering_that_failed_is_asked_for_again(self) -> None:
        underway = TransferState()
        bad = parcel(1, "")
        underway.received([Rejection(bad, "MissingPath", "none")], 0.0)
        assert underway.unsettled([bad], 1.0, lock_lost=False) == [DeadLetter(QUEUE, [bad], "MissingPath", "none")]
        assert underway.unsettled([bad], 1.0, lock_lost=True) == []
        assert underway.in_hand == 0

    def test_what_is_remembered_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transfer_index, "REMEMBERED_MAX", 2)
        underway = TransferState()
        for number in range(4):
            parcels = sent(underway, parcel(number))
            underway.confirmed(parcels)
            underway.unsettled(parcels, 1.0, lock_lost=True)
        assert "2 remembered" in repr(underway)


class TestLocks:
    def test_only_locks_of_sends_under_way_are_renewed(self) -> None:
        underway = TransferState()
        received(underway, parcel(1), parcel(2), parcel(3))
        under_way = take(underway, count=1)
        home = take(underway, count=1)
        underway.confirmed(home)
        assert underway.tick(30.0) == []
        assert underway.tick(39.5) == [Renew(QUEUE, under_way)]
        assert underway.tick(40.6) == [], "not every second"
        underway.renewed(under_way, 41.0)
        assert under_way[0].locked_until == 101.0
        assert underway.tick(61.0) == []

    def test_short_locks_are_renewed_in_time(self) -> None:
        underway = TransferState()
        under_way = sent(underway, parcel(1, lock_s=5.0))
        assert underway.tick(1.0) == []
        assert underway.tick(2.5) == [Renew(QUEUE, under_way)]
        underway.renewed(under_way, 2.5)
        assert underway.tick(4.0) == []
        assert underway.tick(5.0) == [Renew(QUEUE, under_way)]

    def test_what_waits_past_its_lock_is_dropped_and_comes_again(self) -> None:
        underway = TransferState()
        received(underway, parcel(1), parcel(2, lock_s=90.0))
        underway.tick(60.0)
        assert underway.waiting("orders") == 1
        assert [each.key[1] for each in take(underway, now=60.0)] == [2]

    def test_left_locks_end_by_themselves(self) -> None:
        underway = TransferState()
        underway.failed(sent(underway, parcel(1)), AWAY, 0.0)
        assert underway.deadline is not None
        underway.tick(59.0)
        assert underway.left == 1
        underway.tick(60.0)
        assert (underway.left, underway.deadline) == (0, None)

    def test_the_time_of_the_next_look(self) -> None:
        underway = TransferState()
        assert underway.deadline is None
        received(underway, parcel(1, now=7.0), now=7.0)
        assert underway.deadline == 7.0 + TICK_S
        underway.tick(7.5)
        assert underway.deadline == 7.0 + TICK_S, "too early is no look"
        underway.tick(8.5)
        assert underway.deadline == 8.5 + TICK_S

    def test_one_that_comes_again_while_it_is_under_way_lends_its_lock(self) -> None:
        """Its lock ran out during a slow send: it must not be sent twice for that."""
        underway = TransferState()
        (one,) = sent(underway, parcel(1))
        again = parcel(1, now=61.0)
        commands, wanted = underway.received([again], 61.0)
        assert (commands, wanted) == ([], set())
        assert (one.token, one.locked_until) == (again.token, again.locked_until)
        (complete,) = underway.confirmed([one])
        assert complete == Complete(QUEUE, [one])

    def test_one_that_comes_again_while_its_completion_is_asked_for(self) -> None:
        underway = TransferState()
        (one,) = sent(underway, parcel(1))
        underway.confirmed([one])
        again = parcel(1, now=61.0)
        assert received(underway, again, now=61.0) == [Complete(QUEUE, [again])]
        underway.unsettled([one], 61.0, lock_lost=True)
        underway.settled([again])
        assert underway.in_hand == 0

    def test_one_that_comes_again_while_it_waits_or_is_refused_begins_anew(self) -> None:
        underway = TransferState()
        received(underway, parcel(1))
        received(underway, parcel(1, now=61.0), now=61.0)
        assert (underway.in_hand, underway.waiting("orders")) == (1, 1)
        bad = parcel(2, "")
        underway.received([Rejection(bad, "MissingPath", "none")], 0.0)
        commands, _ = underway.received([Rejection(parcel(2, "", now=61.0), "MissingPath", "none")], 61.0)
        assert [type(command) for command in commands] == [DeadLetter]
        underway.settled([bad])
        assert underway.in_hand == 2, "a late answer says nothing of the new delivery"

    def test_left_ones_that_come_again_are_no_longer_left(self) -> None:
        underway = TransferState()
        underway.failed(sent(underway, parcel(1)), AWAY, 0.0)
        assert sent(underway, parcel(1, now=61.0), now=61.0)
        assert underway.left == 0


class TestEnding:
    def test_p44_a_stop_releases_what_waits_and_what_was_left(self) -> None:
        underway = TransferState()
        underway.failed(sent(underway, parcel(1, "news")), AWAY, 0.0)
        received(underway, parcel(2), parcel(3, queue=OTHER))
        under_way = take(underway, count=1)
        commands = underway.stop()
        assert sorted((command[0], [each.key[1] for each in command[1]]) for command in commands) == [
            (QUEUE, [1]),
            (OTHER, [3]),
        ]
        assert all(isinstance(command, Release) for command in commands)
        assert underway.in_hand == 1, "what is on the wire is waited for"
        (release,) = received(underway, parcel(4))
        assert isinstance(release, Release), "what comes late goes back"
        assert underway.confirmed(under_way) == [Complete(QUEUE, under_way)]
        underway.settled(under_way)
        assert underway.give_up() == []

    def test_p44_what_the_primary_did_not_answer_is_released_at_last(self) -> None:
        underway = TransferState()
        received(underway, parcel(1), parcel(2))
        (one,) = take(underway, count=1)
        (two,) = take(underway, count=1)
        underway.confirmed([two])
        underway.stop()
        assert underway.give_up() == [Release(QUEUE, [one])], "what it confirmed must not go back"
        assert underway.in_hand == 0
        assert underway.confirmed([one]) == []
        assert received(underway, parcel(1, now=1.0), now=1.0)[0][0] == QUEUE
        assert "1 remembered" in repr(underway)

    @pytest.mark.parametrize("error", [AWAY, NOT_ALLOWED])
    def test_p44_what_fails_during_the_stop_goes_back_too(self, error: WireError) -> None:
        underway = TransferState()
        parcels = sent(underway, parcel(1), parcel(2))
        underway.stop()
        underway.failed(parcels, error, 0.0)
        (release,) = underway.give_up()
        assert isinstance(release, Release) and len(release.parcels) == 2
        assert (underway.in_hand, underway.left) == (0, 0)

    def test_p41_left_ones_can_be_wanted_back(self) -> None:
        underway = TransferState()
        underway.failed(sent(underway, parcel(1), parcel(2), parcel(3)), AWAY, 0.0)
        assert underway.left_paths() == {"orders"}
        (release,) = underway.retry("orders", 1)
        assert isinstance(release, Release) and len(release.parcels) == 1
        assert underway.left == 2
        assert underway.retry("news", 1) == []
        (release,) = underway.retry("orders", 10)
        assert isinstance(release, Release) and len(release.parcels) == 2

    def test_p40_what_was_left_comes_back_with_its_destination(self) -> None:
        """One message tries it when its time has come; the others follow when it is back, not when their locks end."""
        underway = TransferState()
        underway.failed(sent(underway, parcel(1), parcel(2), parcel(3)), AWAY, 0.0)
        assert underway.revive(0.5) == [], "it was tried just now"
        (release,) = underway.revive(1.0)
        assert isinstance(release, Release) and len(release.parcels) == 1
        (trial,) = sent(underway, parcel(1, now=1.0), now=1.0)
        assert underway.revive(2.0) == [], "the trial is under way"
        underway.confirmed([trial])
        (release,) = underway.revive(2.0)
        assert isinstance(release, Release) and len(release.parcels) == 2
        assert (underway.left, underway.revive(3.0)) == (0, [])

    def test_p40_what_stays_away_is_tried_with_one_message_and_ever_longer_pauses(self) -> None:
        underway = TransferState()
        underway.failed(sent(underway, parcel(1), parcel(2)), AWAY, 0.0)
        for now, pause in ((1.0, 2.0), (3.0, 4.0), (7.0, 8.0)):
            (release,) = underway.revive(now)
            assert isinstance(release, Release) and len(release.parcels) == 1
            underway.failed(sent(underway, parcel(1, now=now), now=now), AWAY, now)
            assert underway.revive(now + pause - 0.1) == []

    @pytest.mark.parametrize("late", [False, True])
    def test_p41_what_a_replay_can_never_deliver_is_not_asked_back(self, late: bool) -> None:
        """It would be received and refused again each time, for ever: its lock's end is soon enough."""
        underway = TransferState(buries=False)
        if late:  # the primary says so
            underway.failed(sent(underway, parcel(1)), NOT_ALLOWED, 0.0)
        else:  # it names no destination
            received(underway, Rejection(parcel(1, path=""), "MissingPath", "it has no x-ms-path"))
        assert underway.left == 1
        assert underway.revive(5.0) == []
        (release,) = underway.stop()
        assert isinstance(release, Release), "a clean stop gives it back all the same"

    def test_p24_a_halt_keeps_what_was_left(self) -> None:
        underway = TransferState(Destinations(lambda path: 30.0))
        received(underway, parcel(1))
        assert underway.left == 1
        assert underway.revive(29.0) == []
        assert len(underway.revive(30.0)) == 1

    def test_nothing_is_reported_for_nothing(self) -> None:
        underway = TransferState()
        assert underway.failed([], AWAY, 0.0) == []
        assert underway.confirmed([]) == []
        assert underway.tick(0.0) == []
