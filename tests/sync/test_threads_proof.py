"""What only the sync clients have to prove: of locks and threads, and of a forked child."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from pairbus.pairing.events import BacklogQueueReturned, Event
from pairbus.pairing.routing.states import EntityState
from pairbus.sync import guarded_sender

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
    given.monitor._subscribers.subscribe(lambda event: free.append(not given.monitor.lock.locked()))
    fail_over(given)
    assert free and all(free)


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
    guarded = sender._guarded
    assert guarded is not None
    authenticator = guarded.sender._handler._cbs_authenticator
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
    assert sender._guarded is guarded, "the link stays open"


def test_a_sender_that_was_shut_in_the_moment_of_its_answer_is_not_used_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = rig.used()
    guarded = sender._guarded
    assert guarded is not None
    real = guarded.sender.send_messages

    def send_messages(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        guarded.guard.abort()

    monkeypatch.setattr(guarded.sender, "send_messages", send_messages)
    sender.send(hello(), 5)
    assert sender._guarded is None
    sender.send(hello(), 5)
    assert rig.drain() == ["hello"] * 3


def test_an_interrupted_wait_throws_the_sender_away(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = rig.sender(port=rig.proxy("open").port)

    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("pairbus.sync.guarded_sender._Errand.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sender.send(hello(), 5)
    assert sender._guarded is None


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
        patched.setattr(guarded_sender, "start", interrupted_start)
        if comes == "when it is open":  # what is open already is closed in the background, by another thread
            patched.setattr(guarded_sender._SdkSender, "throw_away", guarded_sender._SdkSender.close)
        with pytest.raises(KeyboardInterrupt):
            sender.begin_opening(5.0)
    assert sender.awaits_link and not sender._lock.locked()
    if comes == "before it begins":  # the thread that starts others on behalf of the main thread comes to it later
        begun[0].start()
    begun[0].join(5)
    assert wait_until(lambda: proxy.closed_by_client == proxy.accepted), "nothing stays open that nobody knows"
    assert (comes == "before it begins") == (proxy.accepted == 0)
    sender.send(hello(), 5)
    assert rig.drain() == ["hello"]
