"""What `explain` says: in words, in order, bounded, and still there after hours of an outage."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pairbus.pairing import events
from pairbus.pairing.decisions import CAUSES, CHARS_MAX, ENTITIES_MAX, ENTRIES_MAX, DecisionLog
from pairbus.pairing.routing.dispatch import Diversion
from pairbus.pairing.routing.failover import Input
from pairbus.pairing.routing.states import EntityState

H, S, F, U = EntityState
DOWN = ConnectionRefusedError(111, "refused")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def log() -> DecisionLog:
    return DecisionLog(Clock())


def texts(log: DecisionLog, entity: str = "orders") -> list[str]:
    return [each.text for each in log.explain(entity)]


def divert(log: DecisionLog, rule: str = "failed over", why: str = "failed over: send failed", **more: Any) -> None:
    reason = Diversion(rule, why, more.pop("given_s", 0.0))
    log.sent_to_backlog("orders", 3, more.pop("messages", ["m"]), more.pop("outcome", "ok"), 1.0, reason)


def test_p23_every_cause_has_words() -> None:
    assert set(CAUSES) == {heading.cause for heading in Input}


def test_p23_an_outage_in_words(log: DecisionLog) -> None:
    log.announced(events.StateChanged("Orders", H, F, "send failed", DOWN))
    divert(log, "interval zero", "ConnectionRefusedError: refused", given_s=1.25)
    divert(log, messages=["m"] * 5)
    log.announced(events.PingFailed("Orders", False, DOWN))
    log.announced(events.PingSucceeded("Orders", 1, 2))
    log.announced(events.PingSucceeded("Orders", 2, 2, 12.5))
    log.announced(events.StateChanged("Orders", F, H, "return ramp over"))
    log.announced(events.OperatorActed("orders", "force failover and hold"))
    log.announced(events.ControlFileChanged((("orders", "failed-over"),)))
    log.announced(events.ControlFileUnusable(ValueError("no TOML")))
    log.announced(events.EntityThrottled("orders", 10.0))
    log.announced(events.EntityThrottled("Orders", 10.0, diverted=True))
    divert(log, "throttled", "ServiceBusServerBusyError: busy", given_s=0.5)
    assert texts(log, "ORDERS") == [
        "healthy → failed over: a send to the primary failed (ConnectionRefusedError: [Errno 111] refused)",
        "messages went to the backlog by the rule 'interval zero': ConnectionRefusedError: refused; the primary was"
        " given 1.2 s",
        "messages went to the backlog by the rule 'failed over': failed over: send failed",
        "ping not answered: ConnectionRefusedError: [Errno 111] refused",
        "ping succeeded, 1 of 2 in a row",
        "ping succeeded, 2 of 2 in a row; returns in 12.5 s by return_ramp",
        "failed over → healthy: its turn in return_ramp has come",
        "the operator says: force failover and hold",
        "the control file says: orders = failed-over",
        "the control file can't be followed, what it said last goes on to hold: ValueError: no TOML",
        "throttled: messages go to the backlog, all else waits for 10.0 s",
        "messages went to the backlog by the rule 'throttled': ServiceBusServerBusyError: busy; the primary was given"
        " 0.5 s",
    ]
    assert log.explain("orders")[2].count == 5
    assert len(log.explain("news")) == 2, "what concerns the whole client"
    first = log.explain("orders")[0]
    assert (first.at, first.kind) == (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "state")
    assert str(first).startswith("1970-01-01 00:00:01Z healthy → failed over")


def test_p23_how_it_began_is_still_there_after_hours(log: DecisionLog) -> None:
    log.announced(events.StateChanged("orders", H, F, "send failed", DOWN))
    for minute in range(5000):
        divert(log, why=f"attempt {minute}")
        log.announced(events.PingFailed("orders", False, ConnectionResetError(f"port {minute}")))
    found = log.explain("orders")
    assert [each.count for each in found] == [1, 5000, 5000]
    assert found[0].kind == "state" and found[1].text.endswith("attempt 4999")
    assert "(5,000 times, last at 02:46:40)" in str(found[1])
    log.announced(events.StateChanged("orders", F, H, "ping succeeded"))
    divert(log)
    assert [each.count for each in log.explain("orders")] == [1, 5000, 5000, 1, 1], "a new story begins"


def test_p23_memory_is_bounded(log: DecisionLog) -> None:
    log.announced(events.ControlFileChanged(()))
    for number in range(ENTITIES_MAX + 10):
        log.announced(events.StateChanged(f"e{number}", H, F, "forced", ValueError("x" * 5000)))
    for _ in range(ENTRIES_MAX + 10):
        log.announced(events.StateChanged("last", H, F, "forced"))
    assert len(log._kept) == ENTITIES_MAX
    assert len(log.explain("e0")) == 1, "forgotten, but for what concerns all"
    assert len(log.explain("last")) == ENTRIES_MAX + 1
    assert len(log.explain(f"e{ENTITIES_MAX}")[1].text) == CHARS_MAX + 1


def test_p23_what_no_backlog_queue_took_was_not_diverted(log: DecisionLog) -> None:
    divert(log, outcome="TimeoutError")
    log.announced(events.SizeWarning("orders", 1, 2, 3))
    log.announced(events.MessageDiverted("orders", 1, 1, ("a",)))
    assert log.explain("orders") == []
