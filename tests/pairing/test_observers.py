from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, ServiceBusServerBusyError

from pairbus.pairing import events
from pairbus.pairing.observers import LedgerObserver, LoggingObserver, Observer, message_id_of, outcome_of
from pairbus.pairing.routing.dispatch import Diversion
from pairbus.pairing.routing.states import EntityState
from pairbus.wire.errors import WireError

from .ledger_lines import told

FAILED_OVER = events.StateChanged("orders", EntityState.SUSPECT, EntityState.FAILED_OVER, "interval over")
RETURNED = events.StateChanged("orders", EntityState.FAILED_OVER, EntityState.HEALTHY, "ping succeeded")


def await_lines(folder: Path, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 10
    while len(told(folder)) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return told(folder)


def test_p23_an_observer_of_sends_that_knows_no_reasons_hears_of_diversions_too() -> None:
    heard: list[Any] = []

    class Old(Observer):
        wants_sends = True

        def sent(self, *what: Any) -> None:
            heard.append(what)

    Old().sent_to_backlog("orders", 3, ["m"], "ok", 1.0, Diversion("failed over", "failed over: forced", 0.0))
    Observer().sent_to_backlog("orders", 3, ["m"], "ok", 1.0, Diversion("failed over", "failed over: forced", 0.0))
    assert heard == [("orders", "backlog", 3, ["m"], "ok", 1.0)]


def test_the_plain_observer_hears_everything_and_does_nothing() -> None:
    observer = Observer()
    assert observer.wants_sends is False
    observer.sent("orders", "primary", None, [], "ok", 1.0)
    observer.pinged("orders", "ok", 1.0)
    observer.announced(FAILED_OVER)
    observer.close()


class _Condition:
    value = b"amqp:link:detach-forced"


class _Refused(ServiceBusError):
    def __init__(self, condition: object) -> None:
        super().__init__(message="no")
        self._condition = condition


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (ServiceBusServerBusyError(condition=b"com.microsoft:server-busy"), "com.microsoft:server-busy"),
        (ServiceBusServerBusyError(message="busy"), "ServiceBusServerBusyError"),
        (_Refused(_Condition), "amqp:link:detach-forced"),
        (_Refused("com.microsoft:timeout"), "com.microsoft:timeout"),
        (_Refused(None), "_Refused"),
        (TimeoutError(), "TimeoutError"),
        (ConnectionRefusedError(111, "refused"), "ConnectionRefusedError"),
        (WireError("amqp:not-found"), "amqp:not-found"),
    ],
)
def test_an_outcome_is_the_condition_or_the_class(error: BaseException | None, outcome: str) -> None:
    assert outcome_of(error) == outcome


@pytest.mark.parametrize(
    ("message", "mid"),
    [
        (ServiceBusMessage("x", message_id="a"), "a"),
        (AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": "b"}), "b"),
        (AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": b"\xff"}), "\ufffd"),
        (AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": 7}), "7"),
        (AmqpAnnotatedMessage(data_body=b"x"), None),
        (object(), None),
    ],
)
def test_message_ids_as_text(message: object, mid: str | None) -> None:
    assert message_id_of(message) == mid


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (FAILED_OVER, logging.WARNING, "contoso: orders is failed over, was suspect: interval over"),
        (RETURNED, logging.WARNING, "contoso: orders is healthy, was failed over: ping succeeded"),
        (
            dataclasses.replace(FAILED_OVER, error=OperationTimeoutError(message="no answer\nin 30 s")),
            logging.WARNING,
            "was suspect: interval over; last error: OperationTimeoutError: no answer",
        ),
        (
            events.StateChanged("orders", EntityState.HEALTHY, EntityState.SUSPECT, "send failed"),
            logging.WARNING,
            "contoso: orders is suspect, was healthy: send failed",
        ),
        (events.BacklogQueueEjected(3, TimeoutError()), logging.WARNING, "queue 3 is out of the rotation: Timeout"),
        (events.BacklogQueueReturned(3), logging.INFO, "queue 3 is back"),
        (events.BacklogQueueLeftOut(4, ValueError("a\nb")), logging.WARNING, "left out: ValueError: a"),
        (events.SizeWarning("orders", 10, 20, 15), logging.WARNING, "10 bytes would have 20 in the backlog"),
        (events.EntityThrottled("orders", 10.0), logging.WARNING, "throttled: its sends wait for 10.0 s"),
        (
            events.EntityThrottled("orders", 10.0, diverted=True),
            logging.WARNING,
            "orders is throttled: its messages go to the backlog for 10.0 s",
        ),
        (events.PairingDegraded(OSError("down")), logging.WARNING, "not paired yet"),
        (events.PairingCompleted(10), logging.INFO, "paired, 10 backlog queues"),
        (events.SyphonStarted(), logging.INFO, "syphon runs"),
        (events.SyphonStopped(None), logging.WARNING, "syphon stopped: no reason given"),
        (events.ClientFaulted("contoso2", OSError("x")), logging.ERROR, "client of contoso2 is faulted"),
        (events.PingFailed("orders", True, OSError("x")), logging.DEBUG, "ping failed"),
    ],
)
def test_p23_one_log_line_per_event(
    event: events.Event, level: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "pairbus.pairing"):
        LoggingObserver("contoso").announced(event)
    (record,) = caplog.records
    assert record.levelno == level
    assert record.name == "pairbus.pairing"
    assert text in record.getMessage()
    assert "\n" not in record.getMessage()


def test_p30_a_size_warning_is_logged_once_per_entity(caplog: pytest.LogCaptureFixture) -> None:
    observer = LoggingObserver("contoso")
    for entity in ("orders", "orders", "news"):
        observer.announced(events.SizeWarning(entity, 10, 20, 15))
    assert len(caplog.records) == 2


def test_diverted_messages_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "pairbus.pairing"):
        LoggingObserver("contoso").announced(events.MessageDiverted("orders", 1, 1, ("a",)))
    assert caplog.records == []


def test_p23_the_ledger_tells_sends_diversions_pings_and_states(tmp_path: Path) -> None:
    ledger = LedgerObserver(tmp_path, "contoso", "contoso2", clock=lambda: 1_700_000_000.25)
    assert ledger.wants_sends
    ledger.sent("orders", "primary", None, [ServiceBusMessage("x" * 10, message_id="a")], "ok", 1.5)
    ledger.sent("orders", "primary", None, [ServiceBusMessage("x", message_id="b")], "TimeoutError", 2000)
    two = [ServiceBusMessage("x", message_id="b"), ServiceBusMessage("x", message_id="c")]
    ledger.sent_to_backlog("orders", 3, two, "ok", 12, Diversion("while suspect", 'TimeoutError: "no" answer', 1.5))
    ledger.pinged("orders", "ok", 3)
    ledger.announced(FAILED_OVER)
    ledger.announced(events.BacklogQueueReturned(1))
    ledger.close()
    size = {"bytes": told(tmp_path)[0]["bytes"], "units": 1}
    assert 10 < size["bytes"] < 200
    t = 1_700_000_000.25
    found = told(tmp_path)
    assert found[0] == {
        "t": t,
        "kind": "send",
        "ns": "contoso",
        "entity": "orders",
        "mid": "a",
        "outcome": "ok",
        "ms": 1.5,
        "cause": "app",
        **size,
    }
    assert [(line["kind"], line["ns"], line.get("mid"), line.get("outcome"), line.get("queue")) for line in found] == [
        ("send", "contoso", "a", "ok", None),
        ("send", "contoso", "b", "TimeoutError", None),
        ("divert", "contoso2", "b", "ok", 3),
        ("divert", "contoso2", "c", "ok", 3),
        ("ping", "contoso", None, "ok", None),
        ("state", "contoso", None, None, None),
    ]
    assert [(line.get("rule"), line.get("why"), line.get("given_ms")) for line in found] == [
        *[(None, None, None)] * 2,
        *[("while suspect", 'TimeoutError: "no" answer', 1500.0)] * 2,
        (None, None, None),
        (None, "interval over", None),
    ]
    assert (found[4]["cause"], found[4]["units"]) == ("ping", 1)
    assert (found[5]["from"], found[5]["to"]) == ("suspect", "failed over")


def test_the_ledger_is_written_without_being_asked(tmp_path: Path) -> None:
    ledger = LedgerObserver(tmp_path, "contoso", "contoso2")
    ledger.pinged("orders", "ok", 3)
    assert [line["kind"] for line in await_lines(tmp_path, 1)] == ["ping"]
    ledger.close()


def test_its_thread_ends_with_it(tmp_path: Path) -> None:
    def threads() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "pairbus-ledger"]

    before = set(threads())
    ledger = LedgerObserver(tmp_path / "closed", "contoso", "contoso2")
    (thread,) = set(threads()) - before
    ledger.close()
    thread.join(5)
    assert not thread.is_alive()
    ledger.pinged("orders", "ok", 3)  # too late: neither an error nor a new thread
    ledger.close()
    assert set(threads()) <= before

    ledger = LedgerObserver(tmp_path / "dropped", "contoso", "contoso2")
    (thread,) = set(threads()) - before
    ledger.pinged("orders", "ok", 3)
    del ledger
    thread.join(5)
    assert not thread.is_alive()
    assert len(told(tmp_path / "dropped")) == 1


def test_what_is_buffered_at_exit_is_written(tmp_path: Path) -> None:
    program = (
        "from pairbus.pairing.observers import LedgerObserver\n"
        f"ledger = LedgerObserver({str(tmp_path)!r}, 'contoso', 'contoso2')\n"
        "ledger.pinged('orders', 'ok', 3)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
    (path,) = tmp_path.glob("*.jsonl")
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()[1:]] == ["ping", "end"]


def test_a_forked_child_goes_on_in_a_file_of_its_own(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, time, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"  # fork with threads: that is the point
        "from pairbus.pairing.observers import LedgerObserver\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "ledger = LedgerObserver(folder, 'contoso', 'contoso2')\n"
        "ledger.pinged('parent', 'ok', 3)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    ledger.pinged('child', 'ok', 3)\n"
        "    while not any('child' in each.read_text() for each in folder.glob('*.jsonl')): time.sleep(0.01)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "ledger.close()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert sorted(line["entity"] for line in told(tmp_path)) == ["child", "parent"]
    assert len({path.name.split("-")[1] for path in tmp_path.glob("*.jsonl")}) == 2


def test_they_say_what_they_are(tmp_path: Path) -> None:
    assert repr(LoggingObserver("contoso")) == "<LoggingObserver contoso to pairbus.pairing>"
    ledger = LedgerObserver(tmp_path, "contoso", "contoso2")
    assert repr(ledger) == f"<LedgerObserver contoso and contoso2 to {tmp_path}/client-{os.getpid()}-000001.jsonl>"
    ledger.close()
