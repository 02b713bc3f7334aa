"""Alarms at random microseconds: whatever a signal handler interrupts, the sender can be used afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pairbus.broker import serve_sync
from pairbus.sync.interrupts import Latch

# In a process of its own: signal handlers run on the main thread, and the test runner has an alarm of its own.
PROGRAM = """
import random, signal, sys, threading, time
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient
from pairbus import ServiceBusClient

primary, secondary, ca_file, mode, kind, count = sys.argv[1:]
dice = random.Random(f"{mode} {kind}")

class Alarm({"exception": Exception, "interrupt": KeyboardInterrupt}[kind]):
    pass

def ring(*_):
    raise Alarm

def rings_once(call, within_s):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, within_s))
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        return True
    return False

with ServiceBusAdministrationClient.from_connection_string(primary, connection_verify=ca_file) as admin:
    admin.create_queue(mode + kind)
signal.signal(signal.SIGALRM, ring)
client = ServiceBusClient.paired(primary, secondary, ca_file=ca_file, primary_name=mode + kind, backlog_queue_count=2,
                                 send_timeout=10, failover_interval=0, ping_primary_interval=1)
sender = client.get_queue_sender(mode + kind)
heard = []
client.subscribe(heard.append)
monitor = client._pairing.monitor
if mode != "healthy":
    client.force_failover(mode + kind, hold=True)
if mode == "trial":
    monitor.coordinator.rotation._retry_interval = 0.0
interrupted = 0
for number in range(int(count)):
    if mode == "trial":
        with monitor.lock:
            rotation = monitor.coordinator.rotation
            pick = rotation.pick("test", 0, time.monotonic(), may_try=False)
            if pick is not None:
                monitor.coordinator.commands.extend(rotation.failed(pick, time.monotonic(), OSError()))
        monitor.attend()
    interrupted += rings_once(lambda: sender.send_messages(ServiceBusMessage(str(number))), 0.004)
assert interrupted > int(count) / 10, interrupted

began = time.monotonic()
for _ in range(3):
    sender.send_messages(ServiceBusMessage("plain"), timeout=5)
assert time.monotonic() - began < 5, "it waited for something"
for link in sender.links:
    assert not link._lock.locked(), link
assert not monitor.lock._is_owned() and not monitor._turn.locked()
assert all(out.trying is None for out in monitor.coordinator.rotation._out.values())
before = len(heard)
client.mark_healthy(mode + kind)
client.force_failover(mode + kind)
assert len(heard) >= before + 2 - (mode == "healthy"), "events end"
until = time.monotonic() + 10
while monitor.coordinator.state(mode + kind).value != "healthy" and time.monotonic() < until:
    time.sleep(0.02)
assert monitor.coordinator.state(mode + kind).value == "healthy", "no ping comes any more"
client.close()
def left():
    names = [each.name for each in threading.enumerate()]
    return [name for name in names if name.startswith("pairbus") and name != "pairbus-watchdog"]
until = time.monotonic() + 15  # an opening link ends with its send, after ten seconds at most
while left() and time.monotonic() < until:
    time.sleep(0.05)
assert not left(), left()
print("interrupted", interrupted)
"""


def test_a_latch_is_waited_for_until_it_is_set() -> None:
    latch = Latch()
    assert not latch.wait(0.0) and not latch.wait(0.001) and not latch.is_set()
    threading.Timer(0.01, latch.set).start()
    assert latch.wait() and latch.wait(0.0) and latch.is_set()


def test_an_alarm_comes_out_of_a_latch_as_it_is() -> None:
    program = """
import random, signal, threading
from pairbus.sync.interrupts import Latch

class Alarm(BaseException):
    pass

def ring(*_):
    raise Alarm

signal.signal(signal.SIGALRM, ring)
for _ in range(3000):
    latch = Latch()
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-5))
            while not latch.wait(1e-5):
                pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        pass
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["exception", "interrupt"])
@pytest.mark.parametrize("mode", ["healthy", "diverted", "trial"])
def test_p7_a_sender_can_be_used_after_alarms_at_random_microseconds(tmp_path: Path, mode: str, kind: str) -> None:
    with serve_sync("contoso", "backup", data=tmp_path) as broker:
        primary, secondary = broker.namespaces["contoso"], broker.namespaces["backup"]
        run = subprocess.run(
            [
                sys.executable, "-W", "error::RuntimeWarning", "-c", PROGRAM, primary.connection_string,
                secondary.connection_string, str(primary.ca_file), mode, kind, os.environ.get("ALARMS", "150"),
            ],
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert "interrupted" in run.stdout
