from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.broker.server import Broker, NamespaceServer
from pairbus.pairing import fork
from pairbus.pairing.decisions import DecisionLog
from pairbus.pairing.errors import NotTriedError
from pairbus.pairing.routing.dispatch import Diversion
from pairbus.sync.guarded_sender import GuardedSender
from pairbus.sync.receiver import PairedReceiver
from pairbus.sync.watchdog import WATCHDOG

from ..pairing.sdk_rig import TRANSPORTS, sdk_client
from ..pairing.silent_proxy import SilentProxy
from .background import wait_until


def in_child(work: Callable[[], object], limit_s: float = 20.0) -> None:
    """Runs `work` in a forked child; fails with the child's traceback."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks in a process with threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            work()
            code = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(code)
    os.close(writing)
    until = time.monotonic() + limit_s
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(reading)
            pytest.fail("the child hangs")
        time.sleep(0.02)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitstatus_to_exitcode(ended[1]) == 0, said


@pytest.fixture
def queue(pairbus_queue: Callable[..., str], pairbus_namespace: NamespaceServer) -> str:
    return pairbus_queue("fork")


@pytest.fixture
def proxy(pairbus_namespace: NamespaceServer) -> Iterator[SilentProxy]:
    with SilentProxy(pairbus_namespace.port) as proxy:
        yield proxy


def drain(server: NamespaceServer, queue: str) -> list[str]:
    bodies: list[str] = []
    client: ServiceBusClient = sdk_client(ServiceBusClient, "plain", server)
    with client, client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
        while got := receiver.receive_messages(200, max_wait_time=1):
            bodies += [str(each) for each in got]
    return sorted(bodies)


@contextlib.contextmanager
def inner(client: ServiceBusClient, queue: str) -> Iterator[GuardedSender]:
    sender = GuardedSender(lambda: client.get_queue_sender(queue), queue)
    try:
        yield sender
    finally:
        sender.close()


@contextlib.contextmanager
def through(
    proxy: SilentProxy, server: NamespaceServer, queue: str, transport: str = "plain"
) -> Iterator[GuardedSender]:
    client = sdk_client(ServiceBusClient, transport, server, proxy.port)
    with client, inner(client, queue) as sender:
        yield sender


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_child_opens_its_own_link_and_the_parents_goes_on(
    pairbus_namespace: NamespaceServer, proxy: SilentProxy, queue: str, transport: str
) -> None:
    with through(proxy, pairbus_namespace, queue, transport) as sender:
        sender.send(ServiceBusMessage("parent 1"), 5)
        sdk_sender = sender._sdk_sender

        def work() -> None:
            assert repr(sender).endswith("not open>")
            for number in range(3):
                sender.send(ServiceBusMessage(f"child {number}"), 5)
            sender.close()

        in_child(work)
        assert proxy.closed_by_client == 1, "the child's own link, and not the parent's"
        for number in range(2, 5):
            sender.send(ServiceBusMessage(f"parent {number}"), 5)
        assert sender._sdk_sender is sdk_sender, "the parent's link was not touched"
        assert proxy.accepted == 2
    expected = [f"child {each}" for each in range(3)] + [f"parent {each}" for each in range(1, 5)]
    assert drain(pairbus_namespace, queue) == expected


def test_multiprocessing_by_fork(pairbus_namespace: NamespaceServer, queue: str) -> None:
    client = sdk_client(ServiceBusClient, "tls", pairbus_namespace)
    with client, inner(client, queue) as sender:
        sender.send(ServiceBusMessage("parent"), 5)
        context = multiprocessing.get_context("fork")
        # The broker is in this process: whoever is forked while it shakes hands with another child inherits the locks
        # of OpenSSL as they are.
        all_forked = context.Event()

        def work(number: int) -> None:
            assert all_forked.wait(10)
            sender.send(ServiceBusMessage(f"child {number}"), 10)

        workers = [context.Process(target=work, args=(each,)) for each in range(3)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for worker in workers:
                worker.start()
        all_forked.set()
        for worker in workers:
            worker.join(20)
            assert worker.exitcode == 0
        sender.send(ServiceBusMessage("parent"), 5)
    assert drain(pairbus_namespace, queue) == ["child 0", "child 1", "child 2", "parent", "parent"]


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="only Linux shows the threads of a process")
def test_a_fork_waits_for_a_thread_that_has_done_its_work_and_is_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL holds a lock while it clears up after a thread; a child that inherits it hangs in every handshake."""
    noted, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        fork.note_ending()
        noted.set()
        goes_on.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    assert noted.wait(30)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: goes_on.set())
    monkeypatch.setattr(fork, "time", clock)
    monkeypatch.setattr(fork, "_ENDING_S", 30.0)
    try:
        in_child(lambda: None)
        assert goes_on.is_set(), "the fork has waited"
        assert not os.path.exists(f"/proc/self/task/{thread.native_id}")
    finally:
        goes_on.set()
        thread.join()


def test_locks_held_by_the_parents_threads_do_not_stop_the_child(
    pairbus_namespace: NamespaceServer, proxy: SilentProxy, queue: str
) -> None:
    with through(proxy, pairbus_namespace, queue) as sender:
        sender.send(ServiceBusMessage("parent"), 5)
        sdk_sender = sender._sdk_sender
        assert sdk_sender is not None
        with sender._lock, sdk_sender._lock, WATCHDOG._lock:
            in_child(lambda: sender.send(ServiceBusMessage("child"), 5))
        sender.send(ServiceBusMessage("parent"), 5)
    assert drain(pairbus_namespace, queue) == ["child", "parent", "parent"]


def test_a_fork_during_a_hung_send_leaves_both_processes_able_to_send(
    pairbus_namespace: NamespaceServer, proxy: SilentProxy, queue: str
) -> None:
    with through(proxy, pairbus_namespace, queue, "tls") as sender:
        sender.send(ServiceBusMessage("parent"), 5)
        proxy.fall_silent()
        outcome: list[BaseException] = []

        def hang() -> None:
            try:
                sender.send(ServiceBusMessage("lost"), 1.0)
            except Exception as error:
                outcome.append(error)

        hung = threading.Thread(target=hang)
        hung.start()
        assert wait_until(lambda: proxy.withheld)
        proxy.speak_again()
        in_child(lambda: sender.send(ServiceBusMessage("child"), 5))
        hung.join()
        assert len(outcome) == 1
        sender.send(ServiceBusMessage("parent"), 5)
    assert set(drain(pairbus_namespace, queue)) - {"lost"} == {"child", "parent"}


def test_the_watchdog_watches_in_the_child_too(
    pairbus_namespace: NamespaceServer, proxy: SilentProxy, queue: str
) -> None:
    with through(proxy, pairbus_namespace, queue) as sender:
        sender.send(ServiceBusMessage("parent"), 5)

        def work() -> None:
            from azure.servicebus.exceptions import OperationTimeoutError

            sender.send(ServiceBusMessage("child"), 5)
            child_has_sent.set()
            assert proxy_is_silent.wait(10)
            with pytest.raises(OperationTimeoutError):  # without a watchdog it would hang
                sender.send(ServiceBusMessage("lost"), 0.3)
            assert "pairbus-watchdog" in [each.name for each in threading.enumerate()]

        context = multiprocessing.get_context("fork")
        child_has_sent, proxy_is_silent = context.Event(), context.Event()

        def silence() -> None:
            child_has_sent.wait(10)
            proxy.fall_silent()
            proxy_is_silent.set()

        helper = threading.Thread(target=silence)
        helper.start()
        in_child(work)
        helper.join()


def test_a_receiver_opens_its_own_link_in_the_child(
    pairbus_namespace: NamespaceServer, proxy: SilentProxy, queue: str
) -> None:
    client = sdk_client(ServiceBusClient, "tls", pairbus_namespace, proxy.port)
    with client, inner(client, queue) as sender:
        sender.send([ServiceBusMessage(str(each)) for each in range(2)], 5)
        receiver = PairedReceiver.adopt(
            client.get_queue_receiver(queue), queue, on_busy=lambda: None, halted_until=lambda: 0.0
        )
        [first] = receiver.receive_messages(1, max_wait_time=5)

        def work() -> None:
            [message] = receiver.receive_messages(1, max_wait_time=5)
            assert str(message) == "1"
            receiver.complete_message(message)
            receiver.close()

        in_child(work)
        receiver.complete_message(first)
        assert receiver.receive_messages(1, max_wait_time=0.5) == []
        receiver.close()
        closed: list[PairedReceiver] = [receiver]

        def after_closing() -> None:
            with pytest.raises(ValueError, match="shutdown"):
                closed[0].receive_messages(1, max_wait_time=1)

        in_child(after_closing)


class Heir:
    def __init__(self, fails: bool = False) -> None:
        self.told = 0
        self.fails = fails

    def forked(self) -> None:
        self.told += 1
        if self.fails:
            raise RuntimeError("not today")


def test_whoever_is_registered_and_alive_is_told_once_and_only_in_the_child(caplog: pytest.LogCaptureFixture) -> None:
    first, broken, last = Heir(), Heir(fails=True), Heir()
    for each in (first, broken, last):
        fork.register(each)
    before = len(fork._inheritable)
    gone = Heir()
    fork.register(gone)
    del gone
    gc.collect()
    assert len(fork._inheritable) <= before

    def work() -> None:
        assert (first.told, broken.told, last.told) == (1, 1, 1)
        assert "could not be made ready" in caplog.text

    in_child(work)
    assert (first.told, broken.told, last.told) == (0, 0, 0)


def test_a_client_that_was_never_opened_works_in_the_child(pairbus_broker: Broker, queue: str) -> None:
    server = pairbus_broker.namespaces["contoso"]
    client: Any = sdk_client(ServiceBusClient, "plain", server)
    with client, inner(client, queue) as sender:
        in_child(lambda: sender.send(ServiceBusMessage("child"), 5))
        sender.send(ServiceBusMessage("parent"), 5)
    assert drain(server, queue) == ["child", "parent"]


def test_a_fork_while_a_link_is_being_opened_leaves_the_opening_to_the_parent(
    pairbus_namespace: NamespaceServer, proxy: SilentProxy, queue: str
) -> None:
    proxy.point, proxy.count = "delay", 0.1
    with through(proxy, pairbus_namespace, queue) as sender:
        with pytest.raises(NotTriedError):
            sender.open(0.2, 30)
        in_child(lambda: sender.send(ServiceBusMessage("child"), 10))
        sender.send(ServiceBusMessage("parent"), 10)
        assert proxy.accepted == 2
    assert drain(pairbus_namespace, queue) == ["child", "parent"]


def test_p23_a_child_may_ask_why_although_a_thread_of_the_parent_was_just_noting_it() -> None:
    log = DecisionLog()
    reason = Diversion("failed over", "failed over: send failed", 0.0)

    def work() -> None:
        log.sent_to_backlog("orders", 0, ["m"], "ok", 1.0, reason)
        assert len(log.explain("orders")) == 1

    with log._lock:
        in_child(work, 5.0)
