# Generated from tests/aio/test_sender.py by scripts/generate_sync.py; do not edit.
from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSender, exceptions

from pairbus.pairing.errors import (
    AliasConflictError,
    BacklogUnavailableError,
    ClientFaultedError,
    NotTriedError,
    ScheduleDuringFailoverError,
    note_nothing_sent,
)
from pairbus.pairing.events import BacklogQueueEjected, EntityThrottled, MessageDiverted, SizeWarning, StateChanged
from pairbus.pairing.routing.patience import Brownout
from pairbus.pairing.routing.states import EntityState
from pairbus.sync import sender as sender_module
from pairbus.sync.sender import PairedSender
from tests.message_view import View

from .background import Background, Interruption, wait_until
from .stage import Answer, FakeGuardedSender, Reasons, Recorder, Stage

MakeStage = Callable[..., Stage]
FAR = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


def primary(sender: Any) -> FakeGuardedSender:
    return sender._primary  # type: ignore[no-any-return]


def begin(stage: MakeStage, *answers: Answer, **settings: Any) -> tuple[Stage, PairedSender]:
    """Return a stage and a sender whose primary gives these answers."""
    given = stage(**settings)
    sender = given.sender()
    primary(sender).answers.extend(answers)
    return given, sender


def no_waiting(monkeypatch: pytest.MonkeyPatch, given: Stage) -> None:
    """Let a sender's pauses pass at once, by the clock of the stage."""

    def pause(_event: object, seconds: float) -> bool:
        given.advance(seconds)
        return False

    monkeypatch.setattr(sender_module, "pause", pause)


def read_message_id(payload: Any) -> Any:
    return View(payload).properties.message_id


def path_of(message: Any) -> str:
    return str(message.application_properties["x-ms-path"]["VALUE"])


def test_p7_it_is_the_sdks_sender_to_look_at(stage: MakeStage) -> None:
    sender = stage().sender()
    assert isinstance(sender, ServiceBusSender)
    assert sender.entity_name == "orders"
    assert sender.fully_qualified_namespace == "contoso.servicebus.windows.net"
    assert sender.client_identifier in str(sender)
    assert repr(sender) == "<PairedSender orders: healthy>"


def test_p14_a_healthy_send_goes_to_the_primary_as_it_is(stage: MakeStage) -> None:
    given, sender = begin(stage)
    message = ServiceBusMessage("x")
    sender.send_messages(message)
    assert primary(sender).sent == [message]
    assert given.events == []
    assert not given.monitor._has_timer(), "no timer while healthy"


def test_p19_the_primary_gets_at_most_half(stage: MakeStage) -> None:
    sender = stage().sender()
    sender.send_messages(ServiceBusMessage("x"))
    sender.send_messages(ServiceBusMessage("x"), timeout=2)
    assert [timeout_s for _, _, timeout_s in primary(sender).calls] == [4.0, 1.0]


def test_p17_with_interval_zero_the_message_that_failed_goes_to_the_backlog(stage: MakeStage) -> None:
    given, sender = begin(stage, exceptions.ServiceBusConnectionError())
    sender.send_messages(ServiceBusMessage("x", message_id="m"))
    (diverted,) = given.backlog(sender, 0).sent
    assert path_of(diverted) == "orders"
    assert [(event.state, event.cause) for event in given.named(StateChanged)] == [
        (EntityState.FAILED_OVER, "send failed")
    ]
    assert given.named(MessageDiverted) == [MessageDiverted("orders", 0, 1, ("m",))]
    assert repr(sender) == "<PairedSender orders: failed over, backlog queues [0] of 2>"


def test_p24_throttling_that_callers_do_not_see_is_told_as_what_it_is(stage: MakeStage) -> None:
    """Its messages go to the backlog, and it does not fail over; the primary is tried when the halt is over."""
    reasons = Reasons()
    given, sender = begin(stage, exceptions.ServiceBusServerBusyError(), while_throttled="divert", observers=(reasons,))
    sender.send_messages(ServiceBusMessage("x", message_id="m"))
    given.advance(9.9)
    sender.send_messages(ServiceBusMessage("x", message_id="n"))
    assert [path_of(message) for message in given.backlog(sender, 0).sent] == ["orders", "orders"]
    assert given.monitor.coordinator.states() == {"orders": EntityState.HEALTHY}
    assert given.named(EntityThrottled) == [EntityThrottled("orders", 10.0, diverted=True)]
    assert given.named(StateChanged) == []
    assert [event.rule for event in given.named(MessageDiverted)] == ["throttled", "throttled"]
    assert reasons.rules == ["throttled", "throttled"]
    assert not given.monitor._has_timer(), "no ping is due"
    given.advance(0.2)
    sender.send_messages(ServiceBusMessage("x"))
    assert len(primary(sender).sent) == 2


def test_p16_with_an_interval_the_caller_sees_the_failure(stage: MakeStage) -> None:
    given, sender = begin(stage, failover_interval=60.0)
    error = exceptions.ServiceBusConnectionError()
    primary(sender).answers.append(error)
    with pytest.raises(exceptions.ServiceBusConnectionError) as caught:
        sender.send_messages(ServiceBusMessage("x"))
    assert caught.value is error
    assert given.monitor.coordinator.state("orders") is EntityState.SUSPECT
    sender.send_messages(ServiceBusMessage("x"))
    assert given.monitor.coordinator.state("orders") is EntityState.HEALTHY
    assert wait_until(lambda: not given.monitor._has_timer())


def test_p18_the_callers_own_errors_are_raised_and_nothing_fails_over(stage: MakeStage) -> None:
    given, sender = begin(stage, exceptions.MessagingEntityNotFoundError())
    with pytest.raises(exceptions.MessagingEntityNotFoundError):
        sender.send_messages(ServiceBusMessage("x"))
    assert given.events == []


def test_p13_a_failing_queue_is_left_for_another(stage: MakeStage) -> None:
    given, sender = begin(stage, exceptions.OperationTimeoutError())
    given.backlog(sender, 0).answers.append(exceptions.ServiceBusConnectionError())
    sender.send_messages(ServiceBusMessage("x"))
    assert len(given.backlog(sender, 1).sent) == 1
    assert [event.queue for event in given.named(BacklogQueueEjected)] == [0]


def test_p13_if_all_fail_nothing_is_reported_as_sent(stage: MakeStage) -> None:
    given, sender = begin(stage)
    last = exceptions.ServiceBusConnectionError()
    primary(sender).answers.extend([exceptions.OperationTimeoutError(), last])
    given.backlog(sender, 0).answers.append(exceptions.ServiceBusConnectionError())
    given.backlog(sender, 1).answers.append(exceptions.ServiceBusConnectionError())
    with pytest.raises(BacklogUnavailableError) as caught:
        sender.send_messages(ServiceBusMessage("x"))
    assert caught.value.__cause__ is last
    assert given.named(MessageDiverted) == []


def test_p13_a_link_that_is_open_too_late_for_a_send_serves_the_next_attempt(stage: MakeStage) -> None:
    given, sender = begin(stage, queues=(0,))
    given.monitor.coordinator.force_failover("orders", given.now)
    backlog = given.backlog(sender, 0)
    backlog.opening_s = 30.0

    def late() -> None:
        given.now += 6.0  # of the 7 s that it has

    backlog.answers.append(late)
    sender.send_messages(ServiceBusMessage("first"))
    assert [call for call, *_ in backlog.calls] == ["open", "send"]
    assert primary(sender).sent == []
    assert given.named(BacklogQueueEjected) == []


def test_p13_a_message_that_waited_in_vain_for_the_ready_link_waits_for_it_again(stage: MakeStage) -> None:
    """Where hundreds of senders fail over at once, each opening a link of its own takes the time of all."""
    given = stage()
    ready = FakeGuardedSender()
    ready.answers.append(NotTriedError("others were first"))
    ready.max_message_size = 262144

    class Warm:
        def take(self, own: Any, dispatch: Any) -> Any:
            over = dispatch.over_warm_link(1)
            return None if over is None else (over, ready)

        def give_back(self) -> None:
            pass

    given.context = given.context._replace(warm=Warm())  # type: ignore[arg-type]
    sender = given.sender()
    given.monitor.coordinator.force_failover("orders", given.now)
    sender.send_messages(ServiceBusMessage("x"))
    assert len(ready.sent) == 2
    assert given.backlog(sender, 0).calls == []


def test_p13_no_send_raises_while_the_primary_takes_messages(stage: MakeStage) -> None:
    given, sender = begin(stage, observers=(recorder := Recorder(),))
    given.monitor.coordinator.force_failover("orders", given.now)
    for queue in (0, 1):
        given.backlog(sender, queue).answers.append(exceptions.ServiceBusConnectionError())
    sender.send_messages(message := ServiceBusMessage("x"))
    assert primary(sender).sent == [message]
    assert given.named(StateChanged)[-1] == StateChanged(
        "orders", EntityState.FAILED_OVER, EntityState.HEALTHY, "message sent once more"
    )
    assert recorder.sends[-1] == ("primary", None, 1, "ok")


@pytest.mark.parametrize("as_batch", [False, True])
def test_p13_the_primary_gets_only_what_no_queue_has_confirmed(stage: MakeStage, as_batch: bool) -> None:
    given, sender = begin(stage, queues=(0,), observers=(recorder := Recorder(),))
    primary(sender).max_batch_size = 2**20  # it takes larger batches than the backlog
    messages = [ServiceBusMessage(bytes(40_000), message_id=f"{number}") for number in range(6)]
    argument: Any = messages
    if as_batch:
        sender.send_messages(messages[0])  # so that the sender knows its limits
        argument = sender.create_message_batch()
        for message in messages:
            argument.add_message(message)
    given.monitor.coordinator.force_failover("orders", given.now)
    first = given.backlog(sender, 0)
    first.max_message_size = first.max_batch_size = 100_000
    given.context.limits.learn_backlog(100_000, 100_000)
    first.answers.extend([None, exceptions.ServiceBusConnectionError()])  # a batch of two, and no more
    sender.send_messages(argument)
    rest = primary(sender).sent[-1]
    ids = [each.message_id for each in rest] if not as_batch else [read_message_id(each) for each in rest._message[5]]
    assert ids == ["2", "3", "4", "5"]
    assert recorder.sends[-3:] == [
        ("backlog", 0, 2, "ok"),
        ("backlog", 0, 2, recorder.sends[-2][3]),
        ("primary", None, 4, "ok"),
    ]


@pytest.mark.parametrize(
    ("failure", "unknown"),
    [
        (exceptions.OperationTimeoutError(), ("2", "3")),
        (exceptions.ServiceBusConnectionError(), ("2", "3")),
        (exceptions.ServiceBusQuotaExceededError(message="full"), ()),
        (NotTriedError("others were first"), ()),
    ],
)
def test_p13_an_error_tells_what_was_confirmed_and_what_may_have_arrived(
    stage: MakeStage, failure: Exception, unknown: tuple[str, ...]
) -> None:
    given, sender = begin(stage, queues=(0,))
    primary(sender).max_batch_size = 2**20  # it takes larger batches than the backlog
    given.monitor.coordinator.force_failover("orders", given.now)
    given.backlog(sender, 0).answers.extend([None, None, failure])  # opened, a batch, and no more
    primary(sender).answers.append(exceptions.ServiceBusQuotaExceededError(message="full"))
    messages = [ServiceBusMessage(bytes(100_000), message_id=f"{number}") for number in range(6)]
    with pytest.raises(BacklogUnavailableError) as caught:
        sender.send_messages(messages)
    assert caught.value.confirmed_ids == ("0", "1")
    assert caught.value.outcome_unknown_ids == unknown
    assert "2 of 6 messages were confirmed (0, 1)" in str(caught.value)
    assert ("2 of 6 may have arrived all the same (2, 3)" in str(caught.value)) == bool(unknown)
    assert given.named(MessageDiverted) == [MessageDiverted("orders", 0, 2, ("0", "1"))], "events tell it too"


@pytest.mark.parametrize(
    ("failure", "sent"), [(exceptions.OperationTimeoutError(), "1 of 1 may have arrived all the same (m)")]
)
def test_p13_where_the_primary_was_silent_nobody_says_that_nothing_was_sent(
    stage: MakeStage, failure: Exception, sent: str
) -> None:
    given, sender = begin(stage, failure, exceptions.ServiceBusConnectionError(), queues=(0,))
    given.backlog(sender, 0).answers.append(exceptions.ServiceBusConnectionError())
    with pytest.raises(BacklogUnavailableError) as caught:
        sender.send_messages(ServiceBusMessage("x", message_id="m"))
    assert sent in str(caught.value)
    assert caught.value.outcome_unknown_ids == ("m",)


def test_p13_where_no_link_was_ever_open_the_error_says_that_nothing_was_sent(stage: MakeStage) -> None:
    refused = [exceptions.ServiceBusConnectionError() for _ in range(3)]
    for each in refused:
        note_nothing_sent(each)
    given, sender = begin(stage, *refused[:2], queues=(0,))
    given.backlog(sender, 0).answers.append(refused[2])
    with pytest.raises(BacklogUnavailableError, match="Nothing was sent") as caught:
        sender.send_messages(ServiceBusMessage("x", message_id="m"))
    assert caught.value.outcome_unknown_ids == ()


@pytest.mark.parametrize(
    ("argument", "kind"),
    [
        ([ServiceBusMessage(bytes(1024)) for _ in range(1000)], exceptions.MessageSizeExceededError),
        (ServiceBusMessage("x", time_to_live=datetime.timedelta(days=60)), exceptions.ServiceBusError),
        ([ServiceBusMessage("x", time_to_live=datetime.timedelta(days=60))], ValueError),
        (ServiceBusMessage("x", time_to_live=datetime.timedelta(seconds=-5)), exceptions.ServiceBusError),
    ],
    ids=["list", "life", "life in a list", "negative life"],
)
def test_p14_what_the_sdk_refuses_healthy_is_refused_diverted_too_and_nothing_is_sent(
    stage: MakeStage, argument: Any, kind: type[Exception]
) -> None:
    given, sender = begin(stage)
    given.monitor.coordinator.force_failover("orders", given.now)
    with pytest.raises(kind) as caught:
        sender.send_messages(argument)
    assert type(caught.value) is kind
    assert given.backlog(sender, 0).sent == []
    assert given.named(BacklogQueueEjected) == []


def test_p22_an_empty_rotation_is_an_error(stage: MakeStage) -> None:
    _, sender = begin(stage, exceptions.OperationTimeoutError(), exceptions.OperationTimeoutError(), queues=())
    with pytest.raises(BacklogUnavailableError):
        sender.send_messages(ServiceBusMessage("x"))


def test_p30_what_one_queue_has_confirmed_is_not_sent_to_the_next(stage: MakeStage) -> None:
    given, sender = begin(stage)
    primary(sender).max_batch_size = 2**20  # it takes larger batches than the backlog
    given.monitor.coordinator.force_failover("orders", given.now)
    first = given.backlog(sender, 0)
    first.answers.extend([None, None, exceptions.ServiceBusConnectionError()])  # opened, a batch, and no more
    messages = [ServiceBusMessage(bytes(100_000), message_id=f"{number}") for number in range(6)]
    sender.send_messages(messages)
    second = given.backlog(sender, 1)
    assert [len(batch) for batch in first.sent] == [2, 2]
    assert [len(batch) for batch in second.sent] == [2, 2], "the one that failed, and the one behind it"


def test_p30_a_message_too_large_for_the_backlog_ejects_no_queue(stage: MakeStage) -> None:
    given, sender = begin(stage, exceptions.OperationTimeoutError())
    with pytest.raises(exceptions.MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(bytes(262_070)))
    assert given.named(BacklogQueueEjected) == []


def test_p30_the_healthy_send_warns(stage: MakeStage) -> None:
    given, sender = begin(stage)
    sender.send_messages(ServiceBusMessage(bytes(262_070)))
    assert [event.entity for event in given.named(SizeWarning)] == ["orders"]
    quiet = stage(check_size=False)
    silent = quiet.sender()
    silent.send_messages(ServiceBusMessage("x"))
    silent.send_messages(ServiceBusMessage(bytes(262_070)))
    assert quiet.events == []


def test_p29_an_alias_is_refused_before_it_is_sent_anywhere(stage: MakeStage) -> None:
    sender = stage().sender()
    with pytest.raises(AliasConflictError):
        sender.send_messages(ServiceBusMessage("x", application_properties={"x-ms-path": "a"}))
    assert primary(sender).calls == []


def test_an_empty_list_is_no_send(stage: MakeStage) -> None:
    sender = stage().sender()
    sender.send_messages([])
    assert primary(sender).calls == []


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_must_be_positive_as_with_the_sdk(stage: MakeStage, timeout: float) -> None:
    sender = stage().sender()
    calls: list[Callable[[], object]] = [
        lambda: sender.send_messages(ServiceBusMessage("x"), timeout=timeout),
        lambda: sender.schedule_messages(ServiceBusMessage("x"), FAR, timeout=timeout),
        lambda: sender.cancel_scheduled_messages(1, timeout=timeout),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="must be greater than 0"):
            call()


def test_unknown_keywords_warn_as_with_the_sdk(stage: MakeStage) -> None:
    sender = stage().sender()
    with pytest.warns(UserWarning, match="Unsupported keyword args"):
        sender.send_messages(ServiceBusMessage("x"), urgent=True)


def test_p24_a_busy_send_waits_and_is_sent_again(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    given, sender = begin(stage, exceptions.ServiceBusServerBusyError(), send_timeout=30.0)
    no_waiting(monkeypatch, given)
    began = given.now
    sender.send_messages(ServiceBusMessage("x"))
    assert len(primary(sender).sent) == 2
    assert given.now - began >= 10.0


def test_p24_where_the_halt_does_not_fit_busy_comes_at_once(stage: MakeStage) -> None:
    _, sender = begin(stage, exceptions.ServiceBusServerBusyError(), send_timeout=8.0)
    for _ in range(2):  # the second is not even tried: the halt is the entity's
        with pytest.raises(exceptions.ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("x"))
    assert len(primary(sender).sent) == 1


def test_p24_closing_wakes_a_send_that_waits(stage: MakeStage) -> None:
    _, sender = begin(stage, exceptions.ServiceBusServerBusyError(), send_timeout=30.0)
    sending = Background(sender.send_messages, ServiceBusMessage("x"))
    assert wait_until(lambda: bool(primary(sender).calls))
    sender.close()
    with pytest.raises(ValueError, match="already been shutdown"):
        sending.result()


def test_p25_schedule_in_failover_is_a_clear_error(stage: MakeStage) -> None:
    given, sender = begin(stage)
    assert sender.schedule_messages(ServiceBusMessage("x"), FAR) == [1]
    given.monitor.coordinator.force_failover("orders", given.now)
    with pytest.raises(ScheduleDuringFailoverError, match="orders has failed over"):
        sender.schedule_messages(ServiceBusMessage("x"), FAR)
    assert sender.schedule_messages([], FAR) == []


def test_p24_management_calls_keep_the_halt(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    given, sender = begin(stage, exceptions.ServiceBusServerBusyError(), send_timeout=30.0)
    no_waiting(monkeypatch, given)
    began = given.now
    sender.cancel_scheduled_messages([1, 2])
    assert [call for call, _, _ in primary(sender).calls] == ["cancel", "cancel"]
    assert given.now - began >= 10.0
    sender.cancel_scheduled_messages([])
    assert len(primary(sender).calls) == 2


def test_p3_entering_raises_what_is_the_callers_own(stage: MakeStage) -> None:
    _, sender = begin(stage, exceptions.ServiceBusAuthenticationError())
    with pytest.raises(exceptions.ServiceBusAuthenticationError):
        sender.__enter__()


def test_p3_entering_never_fails_because_the_primary_is_away(stage: MakeStage) -> None:
    given, sender = begin(stage, exceptions.OperationTimeoutError(), send_timeout=60.0)
    with sender as entered:
        assert entered is sender
    assert primary(sender).calls == [("open", None, 5.0)], "and waits for it a short while only"
    assert given.events == [], "entering is not sending, so it does not count"


def test_p3_entering_while_failed_over_asks_nobody(stage: MakeStage) -> None:
    given = stage()
    given.monitor.coordinator.force_failover("orders", given.now)
    with given.sender() as sender:
        assert primary(sender).calls == []


def test_batches_can_be_made_with_the_primary_away(stage: MakeStage) -> None:
    given, sender = begin(stage, exceptions.OperationTimeoutError())
    assert 250_000 < sender.create_message_batch().max_size_in_bytes < 262_144
    given.monitor.coordinator.force_failover("orders", given.now)
    calls = len(primary(sender).calls)
    batch = sender.create_message_batch(1000)
    assert batch.max_size_in_bytes == 1000
    assert len(primary(sender).calls) == calls, "nobody is asked in failover"
    batch.add_message(ServiceBusMessage("x"))
    sender.send_messages(batch)
    (sent,) = given.backlog(sender, 0).sent
    assert len(sent) == 1


def test_batches_have_the_primarys_size_and_the_sdks_error(stage: MakeStage) -> None:
    sender = stage().sender()
    assert sender.create_message_batch().max_size_in_bytes == 262144
    with pytest.raises(ValueError, match="is too large"):
        sender.create_message_batch(300_000)


def test_a_closed_sender_raises_as_the_sdks(stage: MakeStage) -> None:
    _, sender = begin(stage)
    sender.send_messages(ServiceBusMessage("x"))
    sender.close()
    sender.close()
    assert primary(sender).is_closed
    assert repr(sender) == "<PairedSender orders: closed>"
    calls: list[Callable[[], object]] = [
        lambda: sender.send_messages(ServiceBusMessage("x")),
        lambda: sender.create_message_batch(),
        lambda: sender.__enter__(),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="already been shutdown"):
            call()


def test_p43_a_faulted_client_faults_its_senders(stage: MakeStage) -> None:
    given, sender = begin(stage)
    given._fault = ClientFaultedError("partner gone")
    with pytest.raises(ClientFaultedError):
        sender.send_messages(ServiceBusMessage("x"))


def test_observers_hear_of_each_attempt(stage: MakeStage) -> None:
    recorder = Recorder()
    given, sender = begin(stage, observers=(recorder,))
    sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])
    primary(sender).answers.append(exceptions.OperationTimeoutError())
    given.backlog(sender, 0).answers.extend([None, exceptions.ServiceBusConnectionError()])
    sender.send_messages(ServiceBusMessage("x"))
    assert recorder.sends == [
        ("primary", None, 2, "ok"),
        ("primary", None, 1, "OperationTimeoutError"),
        ("backlog", 0, 1, "ServiceBusConnectionError"),
        ("backlog", 1, 1, "ok"),
    ]


def test_an_interrupted_attempt_frees_its_trial(stage: MakeStage) -> None:
    given, sender = begin(
        stage, exceptions.OperationTimeoutError(), Interruption(), None, probe="trial", ping_primary_interval=5.0
    )
    sender.send_messages(ServiceBusMessage("x"))
    given.advance(5.0)
    with pytest.raises(Interruption):
        sender.send_messages(ServiceBusMessage("x"))
    given.advance(5.0)
    sender.send_messages(ServiceBusMessage("x"))
    assert given.monitor.coordinator.state("orders") is EntityState.HEALTHY


def test_p18_a_classifier_that_raises_is_seen_and_frees_the_attempt(stage: MakeStage) -> None:
    def broken(error: BaseException) -> Any:
        raise LookupError("no row")

    _, sender = begin(stage, exceptions.OperationTimeoutError(), classifier=broken)
    with pytest.raises(LookupError):
        sender.send_messages(ServiceBusMessage("x"))
    sender.send_messages(ServiceBusMessage("x"))


def test_p16_a_message_that_was_not_tried_does_not_fail_over(stage: MakeStage) -> None:
    given, sender = begin(stage, NotTriedError("late"), failover_interval=60.0)
    with pytest.raises(NotTriedError):
        sender.send_messages(ServiceBusMessage("x"))
    assert given.events == []


@pytest.mark.parametrize(
    ("error", "wants_link", "begun"),
    [
        (exceptions.OperationTimeoutError(), True, [5.0]),
        (exceptions.OperationTimeoutError(), False, []),
        (exceptions.ServiceBusConnectionError(), True, []),
        (NotTriedError("late"), True, []),
    ],
)
def test_p19_a_link_that_did_not_open_in_the_time_of_a_send_is_opened_without_one(
    stage: MakeStage, error: Exception, wants_link: bool, begun: list[float]
) -> None:
    _, sender = begin(stage, error)
    primary(sender).wants_link = wants_link
    sender.send_messages(ServiceBusMessage("x"))
    assert primary(sender).begun == begun


def test_p23_a_callback_that_sends_for_each_event_comes_to_an_end(stage: MakeStage) -> None:
    given, sender = begin(stage, exceptions.ServiceBusConnectionError())
    told: list[Any] = []

    def audit(event: Any) -> None:
        told.append(event)
        if len(told) < 50:  # so that this test ends, too
            sender.send_messages(ServiceBusMessage("audit", message_id=f"{len(told)}"))

    given.monitor._subscribers.subscribe(audit)
    sender.send_messages(ServiceBusMessage("x", message_id="m"))
    backlog = given.backlog(sender, 0)
    assert wait_until(lambda: len(backlog.sent) == 3 and len(told) == 2)
    assert [type(event) for event in told] == [StateChanged, MessageDiverted]
    sender.send_messages(ServiceBusMessage("x", message_id="n"))
    assert wait_until(lambda: len(backlog.sent) == 5 and len(told) == 3)
    assert given.named(MessageDiverted) == [MessageDiverted("orders", 0, 1, (each,)) for each in ("m", "n")]


def test_p21_every_sender_of_the_client_changes_its_route_at_once(stage: MakeStage) -> None:
    given = stage()
    senders = [given.sender() for _ in range(5)]
    primary(senders[0]).answers.append(exceptions.OperationTimeoutError())
    for sender in senders:
        sender.send_messages(ServiceBusMessage("x"))
    assert [len(primary(sender).sent) for sender in senders] == [1, 0, 0, 0, 0]
    given.monitor.coordinator.mark_healthy("orders", given.now)
    for sender in senders:
        sender.send_messages(ServiceBusMessage("x"))
    assert [len(primary(sender).sent) for sender in senders] == [2, 1, 1, 1, 1]


def test_p15_senders_that_spell_an_entity_differently_share_its_state(stage: MakeStage) -> None:
    recorder = Recorder()
    given = stage(observers=(recorder,))
    first, other = given.sender("Orders"), given.sender("orders")
    primary(first).answers.append(exceptions.OperationTimeoutError())
    first.send_messages(ServiceBusMessage("x"))
    other.send_messages(ServiceBusMessage("x"))
    assert len(primary(other).sent) == 0, "it goes to the backlog, as the entity is failed over"
    assert given.monitor.coordinator.states() == {"Orders": EntityState.FAILED_OVER}
    told = [*given.named(StateChanged), *given.named(MessageDiverted)]
    assert len(told) == len(given.events) and {event.entity for event in told} == {"Orders"} == recorder.entities
    assert other.entity_name == "orders", "what the application reads of its sender stays as it asked for it"


def test_p15_one_entity_says_nothing_of_another(stage: MakeStage) -> None:
    given = stage()
    orders, news = given.sender("orders"), given.sender("news")
    primary(orders).answers.append(exceptions.OperationTimeoutError())
    orders.send_messages(ServiceBusMessage("x"))
    news.send_messages(ServiceBusMessage("x"))
    assert len(primary(news).sent) == 1
    assert given.monitor.coordinator.states() == {"orders": EntityState.FAILED_OVER, "news": EntityState.HEALTHY}


def test_p7_many_callers_may_use_one_sender(stage: MakeStage) -> None:
    given, sender = begin(stage)
    primary(sender).answers.extend([None] * 20 + [exceptions.ServiceBusConnectionError()] * 3)

    def send() -> None:
        for _ in range(25):
            sender.send_messages(ServiceBusMessage("x"))

    for each in [Background(send) for _ in range(8)]:
        each.result()
    failed = 3 - len(primary(sender).answers)
    assert len(primary(sender).sent) + len(given.backlog(sender, 0).sent) == 200 + failed


def test_p16_callers_who_give_up_fail_over_too(stage: MakeStage) -> None:
    given = stage(primary_patience=2.0)
    sender = given.sender()
    primary: Any = sender._primary

    def gives_up() -> None:
        given.advance(1.5)
        raise KeyboardInterrupt

    for expected in (EntityState.HEALTHY, EntityState.FAILED_OVER):
        primary.answers.append(gives_up)
        with pytest.raises(KeyboardInterrupt):
            sender.send_messages(ServiceBusMessage("m"))
        assert given.monitor.coordinator.state("orders") is expected
    assert [event.state for event in given.named(StateChanged)] == [EntityState.FAILED_OVER], "it was told"
    sender.send_messages(ServiceBusMessage("n"))
    assert len(given.backlog(sender, 0).sent) == 1


def test_p24_slow_sends_fail_over_although_they_succeed(stage: MakeStage) -> None:
    given = stage(brownout=Brownout(0.5, 5, 1.0))
    sender = given.sender()
    primary: Any = sender._primary
    primary.took_s = [3.0] * 5
    for number in range(5):
        sender.send_messages(ServiceBusMessage(f"m{number}"))
    assert len(primary.sent) == 5
    assert given.monitor.coordinator.state("orders") is EntityState.FAILED_OVER
    assert "more than 50% of the last 5 sends" in str(given.named(StateChanged)[0].error)
