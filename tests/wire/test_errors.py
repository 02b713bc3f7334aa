from __future__ import annotations

import pickle

import pytest

from pairbus.errors import PairbusError
from pairbus.wire import ConnectionStringError, errors
from pairbus.wire import errors as wire


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("com.microsoft:server-busy", wire.Busy),
        ("amqp:unauthorized-access", wire.Unauthorized),
        ("com.microsoft:auth-failed", wire.Unauthorized),
        ("amqp:not-found", wire.NotFound),
        ("com.microsoft:message-lock-lost", wire.LockLost),
        ("com.microsoft:session-lock-lost", wire.LockLost),
        ("amqp:link:message-size-exceeded", wire.TooLarge),
        ("amqp:resource-limit-exceeded", wire.QuotaExceeded),
        ("amqp:internal-error", wire.Refused),
        ("something:else", wire.Refused),
    ],
)
def test_a_condition_becomes_the_error_that_callers_decide_by(condition: str, kind: type[wire.Refused]) -> None:
    error = wire.refusal(condition, "why")
    assert type(error) is kind
    assert (error.condition, error.description, error.outcome_unknown) == (condition, "why", False)


def test_no_condition_is_an_unknown_error() -> None:
    assert wire.refusal(None).condition == "amqp:unknown-error"


@pytest.mark.parametrize(
    ("status", "condition", "kind", "named"),
    [
        (401, None, wire.Unauthorized, "amqp:unauthorized-access"),
        (404, None, wire.NotFound, "amqp:not-found"),
        (410, None, wire.LockLost, "com.microsoft:message-lock-lost"),
        (503, None, wire.Busy, "com.microsoft:server-busy"),
        (500, None, wire.Refused, "amqp:unknown-error"),
        (410, "com.microsoft:session-lock-lost", wire.LockLost, "com.microsoft:session-lock-lost"),
        (404, "amqp:internal-error", wire.Refused, "amqp:internal-error"),
    ],
)
def test_a_status_stands_in_for_a_missing_condition(
    status: int, condition: str | None, kind: type[wire.Refused], named: str
) -> None:
    error = wire.refusal_by_status(status, condition, None)
    assert (type(error), error.condition) == (kind, named)


def test_the_text_says_when_the_outcome_is_unknown() -> None:
    assert str(wire.TimedOut("pairbus:timed-out", "no answer")) == "no answer (pairbus:timed-out)"
    unknown = wire.TimedOut("pairbus:timed-out", "no answer", outcome_unknown=True)
    assert str(unknown) == "no answer (pairbus:timed-out); outcome unknown"


def test_a_peer_cannot_flood_a_log() -> None:
    assert len(wire.refusal("x", "y" * 1_000_000).description) == errors.DESCRIPTION_CHARS_MAX


def test_hierarchy() -> None:
    assert issubclass(wire.WireError, PairbusError)
    assert issubclass(wire.LinkLost, wire.Unreachable)
    assert issubclass(ConnectionStringError, ValueError)
    assert issubclass(ConnectionStringError, PairbusError)


def test_errors_cross_process_borders() -> None:
    error = wire.LockLost("com.microsoft:message-lock-lost", "late", outcome_unknown=True)
    error.delivery_ids = (3, 4)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is wire.LockLost
    assert (copy.condition, copy.description, copy.outcome_unknown, copy.delivery_ids) == (
        error.condition,
        error.description,
        True,
        (3, 4),
    )
