"""What only the sync clients have to prove: of locks and threads, and of a forked child."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from azure.servicebus import exceptions

from pairbus.pairing.events import BacklogQueueReturned, Event
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Dispatch
from pairbus.pairing.routing.states import EntityState
from pairbus.sync import sdk_sender

from ..pairing.sdk_rig import takes
from .background import wait_until
from .stage import FakeGuardedSender
from .test_guarded_sender import Rig, hello
from .test_guarded_sender import rig as rig
from .test_health_monitor import MakeStage, fail_over, running


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_p23_what_a_callback_lets_pass_is_not_the_end_of_all_events(stage: MakeStage, raised: BaseException) -> None:
    given = stage()
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise raised

    given.monitor._subscribers.subscribe(broken)
    given.monitor._subscribers.subscribe(heard.append)
    with pytest.raises(type(raised)):  # on the main thread: it may be Ctrl-C
        given.monitor.announce(BacklogQueueReturned(1), BacklogQueueReturned(2))
    assert heard == [BacklogQueueReturned(1), BacklogQueueReturned(2)]
    thread = threading.Thread(target=given.monitor.announce, args=(BacklogQueueReturned(3),))
    thread.start()  # elsewhere nobody is to be interrupted, and it is logged
    thread.join()
    assert heard[-1] == BacklogQueueReturned(3)


def test_p23_callbacks_run_outside_the_lock(stage: MakeStage) -> None:
    given = stage()
    free: list[bool] = []
    given.monitor._subscribers.subscribe(lambda event: free.append(not cast(Any, given.monitor.lock)._is_owned()))
    fail_over(given)
    assert free and all(free)


@pytest.mark.timeout(20)
def test_p44_a_signal_handler_may_close_what_it_interrupts(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the main thread holds the lock of the client, for which closing has to wait."""
    given = stage()
    sender = given.sender()
    begin = Coordinator.begin
    closed: list[bool] = []

    def interrupted(*arguments: Any) -> Dispatch:
        assert cast(Any, given.monitor.lock)._is_owned()
        signal.raise_signal(signal.SIGUSR1)
        return begin(*arguments)

    def handler(*_: object) -> None:
        sender.close()
        given.monitor.close()
        closed.append(given.monitor.closed)

    monkeypatch.setattr(Coordinator, "begin", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        sender.send_messages(hello())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert closed == [True]
    with pytest.raises(ValueError, match="shutdown"):
        sender.send_messages(hello())


def test_p44_closing_ends_an_opening_whose_thread_is_not_running_yet(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    network = rig.proxy("accept")
    sender = rig.sender(port=network.port)
    real = sdk_sender.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "pairbus-open":
            elsewhere(sender.close, 0.0)
        real(thread)

    monkeypatch.setattr(sdk_sender, "start", start)
    with takes(0, 2), pytest.raises((exceptions.ServiceBusError, ValueError)):
        sender.open(30)
    assert network.withheld == 0


def test_p44_closing_ends_an_opening_that_has_no_sender_yet(rig: Rig) -> None:
    network = rig.proxy("accept")
    sender = rig.sender(port=network.port)
    make = sender._make

    def closed_meanwhile() -> Any:
        made = make()
        elsewhere(sender.close, 0.0)
        return made

    sender._make = closed_meanwhile
    with takes(0, 2), pytest.raises(ValueError, match="closed"):
        sender.open(30)
    assert network.accepted == 0


def elsewhere(call: Callable[..., object], *arguments: object) -> None:
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join()


def test_a_timer_that_breaks_is_not_the_end_of_all_timers(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    given = running(stage)
    broken = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: broken.set())
    real = given.monitor.attend

    def attend() -> None:
        if threading.current_thread().name == "pairbus-timers" and not broken.is_set():
            raise RuntimeError("broken")
        real()

    monkeypatch.setattr(given.monitor, "attend", attend)
    fail_over(given)
    assert broken.wait(5)
    assert wait_until(lambda: given.monitor._thread is None)
    given.monitor.attend()
    assert wait_until(lambda: given.monitor.coordinator.state("orders") is EntityState.HEALTHY)


def test_in_a_forked_child_nobody_waits_for_the_answer_to_the_parents_ping(stage: MakeStage) -> None:
    given = running(stage)
    release = threading.Event()
    given.pinger.answers.append(lambda: release.wait(5))
    fail_over(given)
    assert wait_until(lambda: given.pinged == ["orders"])
    given.monitor._open_pinger = lambda entity: cast(Any, FakeGuardedSender())
    given.monitor.forked()
    given.monitor.attend()
    assert wait_until(lambda: given.monitor.coordinator.state("orders") is EntityState.HEALTHY)
    release.set()


def test_p44_closing_shuts_the_connection_that_a_ping_hangs_on(stage: MakeStage) -> None:
    given = running(stage)
    release = threading.Event()
    given.pinger.answers.append(release.wait)
    fail_over(given)
    assert wait_until(lambda: given.pinged == ["orders"])
    given.monitor.close()
    assert given.pinger.is_closed
    release.set()
    assert wait_until(lambda: given.monitor._pings_under_way() == 0)


def test_a_token_that_runs_out_is_fetched_off_the_callers_thread(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = rig.used()
    asked: list[str] = []
    sdk_sender = sender._sdk_sender
    assert sdk_sender is not None
    authenticator = sdk_sender.sender._handler._cbs_authenticator
    get_token = authenticator._auth.get_token

    def watched() -> Any:
        asked.append(threading.current_thread().name)
        return get_token()

    monkeypatch.setattr(authenticator._auth, "get_token", watched)
    sender.send(hello(), 5)
    assert asked == []
    authenticator._expires_on = int(time.time()) + authenticator._refresh_window
    sender.send(hello(), 5)
    assert asked == ["pairbus-open"]
    sender.send(hello(), 5)
    assert sender._sdk_sender is sdk_sender, "the link stays open"


def test_a_sender_that_was_shut_in_the_moment_of_its_answer_is_not_used_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = rig.used()
    sdk_sender = sender._sdk_sender
    assert sdk_sender is not None
    real = sdk_sender.sender.send_messages

    def send_messages(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        sdk_sender.abort()

    monkeypatch.setattr(sdk_sender.sender, "send_messages", send_messages)
    sender.send(hello(), 5)
    assert sender._sdk_sender is None
    sender.send(hello(), 5)
    assert rig.arrived() == ["hello"] * 3


def test_an_interrupted_wait_throws_the_sender_away(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = rig.sender(port=rig.proxy("open").port)

    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("pairbus.sync.sdk_sender.Opening.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sender.send(hello(), 5)
    assert sender._sdk_sender is None


@pytest.mark.parametrize("comes", ["before it begins", "at once", "when it is open"])
def test_p7_a_signal_while_an_opening_begins_leaves_a_sender_that_works(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    proxy = rig.proxy()
    sender = rig.sender(port=proxy.port)
    begun: list[threading.Thread] = []

    def interrupted_start(thread: threading.Thread) -> None:
        begun.append(thread)
        if comes != "before it begins":
            thread.start()
        if comes == "when it is open":
            thread.join(5)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sdk_sender, "start", interrupted_start)
        if comes == "when it is open":  # what is open already is closed in the background, by another thread
            patched.setattr(sdk_sender.SdkSender, "throw_away", sdk_sender.SdkSender.close)
        with pytest.raises(KeyboardInterrupt):
            sender.begin_opening(5.0)
    assert sender.awaits_link and not sender._lock.locked()
    if comes == "before it begins":  # the thread that starts others on behalf of the main thread comes to it later
        begun[0].start()
    begun[0].join(5)
    assert wait_until(lambda: proxy.closed_by_client == proxy.accepted), "nothing stays open that nobody knows"
    if comes != "at once":  # then it may have been given up before it connected
        assert (comes == "when it is open") == (proxy.accepted == 1)
    sender.send(hello(), 5)
    assert rig.arrived() == ["hello"]
