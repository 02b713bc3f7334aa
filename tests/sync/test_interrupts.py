"""Alarms at random microseconds: whatever a signal handler interrupts, the sender can be used afterwards."""

from __future__ import annotations

import itertools
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
                                 send_timeout=4, failover_interval=0, ping_primary_interval=1)
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

for _ in range(3):
    sender.send_messages(ServiceBusMessage("plain"), timeout=5)  # raises if it waits for something
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
until = time.monotonic() + 15  # an opening link ends with its send, after its time-out at most
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
dice = random.Random(118)
for _ in range(3000):
    latch = Latch()
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 3e-5))
            while not latch.wait(1e-5):
                pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        pass
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.timeout(200)
def test_p7_a_sender_can_be_used_after_alarms_at_random_microseconds(tmp_path: Path) -> None:
    """Each program waits for pings and time-outs most of the time, so all of them run at once."""
    programs: list[tuple[str, str, subprocess.Popen[str]]] = []
    with serve_sync("contoso", "backup", data=tmp_path) as broker:
        primary, secondary = broker.namespaces["contoso"], broker.namespaces["backup"]
        ends = [primary.connection_string, secondary.connection_string, str(primary.ca_file)]
        command = [sys.executable, "-W", "error::RuntimeWarning", "-c", PROGRAM, *ends]
        for mode, kind in itertools.product(("healthy", "diverted", "trial"), ("exception", "interrupt")):
            with_count = [*command, mode, kind, os.environ.get("ALARMS", "150")]
            started = subprocess.Popen(with_count, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            programs.append((mode, kind, started))
        try:
            said = {(mode, kind): program.communicate(timeout=150) for mode, kind, program in programs}
        finally:
            for _, _, program in programs:
                program.kill()
                program.communicate()
    failed = {each: err[-3000:] for each, (out, err) in said.items() if not out.startswith("interrupted")}
    assert failed == {}
    assert [program.returncode for _, _, program in programs] == [0] * 6
