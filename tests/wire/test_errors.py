from __future__ import annotations

import pickle

import pytest

from pairbus.errors import PairbusError
from pairbus.wire import ConnectionStringError, errors
from pairbus.wire.errors import (
    Busy,
    LinkLost,
    LockLost,
    NotFound,
    QuotaExceeded,
    Refused,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unreachable,
    WireError,
    refusal,
    refusal_by_status,
)


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("com.microsoft:server-busy", Busy),
        ("amqp:unauthorized-access", Unauthorized),
        ("com.microsoft:auth-failed", Unauthorized),
        ("amqp:not-found", NotFound),
        ("com.microsoft:message-lock-lost", LockLost),
        ("com.microsoft:session-lock-lost", LockLost),
        ("amqp:link:message-size-exceeded", TooLarge),
        ("amqp:resource-limit-exceeded", QuotaExceeded),
        ("amqp:internal-error", Refused),
        ("something:else", Refused),
    ],
)
def test_a_condition_becomes_the_error_that_callers_decide_by(condition: str, kind: type[Refused]) -> None:
    error = refusal(condition, "why")
    assert type(error) is kind
    assert (error.condition, error.description, error.outcome_unknown) == (condition, "why", False)


def test_no_condition_is_an_unknown_error() -> None:
    assert refusal(None).condition == "amqp:unknown-error"


@pytest.mark.parametrize(
    ("status", "condition", "kind", "named"),
    [
        (401, None, Unauthorized, "amqp:unauthorized-access"),
        (404, None, NotFound, "amqp:not-found"),
        (410, None, LockLost, "com.microsoft:message-lock-lost"),
        (503, None, Busy, "com.microsoft:server-busy"),
        (500, None, Refused, "amqp:unknown-error"),
        (410, "com.microsoft:session-lock-lost", LockLost, "com.microsoft:session-lock-lost"),
        (404, "amqp:internal-error", Refused, "amqp:internal-error"),
    ],
)
def test_a_status_stands_in_for_a_missing_condition(
    status: int, condition: str | None, kind: type[Refused], named: str
) -> None:
    error = refusal_by_status(status, condition, None)
    assert (type(error), error.condition) == (kind, named)


def test_the_text_says_when_the_outcome_is_unknown() -> None:
    assert str(TimedOut("pairbus:timed-out", "no answer")) == "no answer (pairbus:timed-out)"
    unknown = TimedOut("pairbus:timed-out", "no answer", outcome_unknown=True)
    assert str(unknown) == "no answer (pairbus:timed-out); outcome unknown"


def test_a_peer_cannot_flood_a_log() -> None:
    assert len(refusal("x", "y" * 1_000_000).description) == errors.DESCRIPTION_CHARS_MAX


def test_hierarchy() -> None:
    assert issubclass(WireError, PairbusError)
    assert issubclass(LinkLost, Unreachable)
    assert issubclass(ConnectionStringError, ValueError)
    assert issubclass(ConnectionStringError, PairbusError)


def test_errors_cross_process_borders() -> None:
    error = LockLost("com.microsoft:message-lock-lost", "late", outcome_unknown=True)
    error.delivery_ids = (3, 4)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is LockLost
    assert (copy.condition, copy.description, copy.outcome_unknown, copy.delivery_ids) == (
        error.condition,
        error.description,
        True,
        (3, 4),
    )
