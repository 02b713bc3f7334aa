from __future__ import annotations

from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
)

from pairbus.pairing.backlog.provision import Provision, is_conflict, is_no_access, is_unavailable
from pairbus.pairing.errors import PairingFailed
from tests.pairing.managers import Queue, http, path


@pytest.fixture
def given() -> Provision:
    return Provision("contoso", "backup", 3, give_up_after_s=60.0)


def test_p4_what_is_missing_is_to_be_made(given: Provision) -> None:
    assert given.listed([Queue("orders"), Queue(path(1)), Queue(path(7))]) == (0, 2)
    assert given.queues == (1,)
    given.there(2)
    assert given.queues == (1, 2)
    assert given.to_read == (1, 2, 7), "a syphon reads what other applications have made, too (P5)"
    given.check()


def test_p5_without_a_listing_a_syphon_reads_as_many_as_were_asked_for() -> None:
    given = Provision("contoso", "backup", 3, give_up_after_s=60.0, is_managed=False)
    given.there(1)
    assert given.to_read == (0, 1, 2), "one that could not be sent to just now may hold messages"


def test_p10_a_low_delivery_count_is_warned_of_where_the_queue_is_used(given: Provision) -> None:
    given.listed([Queue(path(1), 10), Queue(path(7), 10), Queue("orders", 10)])
    (warning,) = given.warnings
    assert path(1) in warning
    assert "10" in warning


def test_p5_three_tries(given: Provision) -> None:
    assert [given.try_again(http(500), tries) for tries in (1, 2, 3)] == [True, True, False]


def test_p5_a_right_that_is_lacking_does_not_come_by_asking(given: Provision) -> None:
    assert not given.try_again(http(401), 1)
    assert given.is_hopeless(http(403))


def test_p5_tries_that_fail_have_an_end(given: Provision) -> None:
    given.failed_for(59.0)
    assert not given.is_hopeless(http(500))
    given.failed_for(1.0)
    assert given.is_hopeless(http(500))
    assert not given.try_again(http(500), 1)


def test_p5_partial_start(given: Provision) -> None:
    given.there(2)
    error = http(500)
    given.leave_out(0, error)
    given.check()
    assert given.queues == (2,)
    assert [(event.queue, event.error) for event in given.left_out] == [(0, error)]
    assert repr(given) == "<Provision contoso: 1 of 3 queues, 1 left out>"


def test_p5_none_at_all_is_an_error_that_says_where(given: Provision) -> None:
    given.leave_out(0, http(500))
    with pytest.raises(
        PairingFailed, match=r"none of the 3 backlog queues contoso/x-servicebus-transfer/0 … of backup"
    ):
        given.check()


@pytest.mark.parametrize(
    ("errors", "unavailable"),
    [
        ([OperationTimeoutError()], True),
        ([MessagingEntityNotFoundError()], False),
        ([OperationTimeoutError(), MessagingEntityNotFoundError()], True),
        ([ServiceBusAuthenticationError()], False),
        ([http(500)], True),
        ([http(401)], False),
        ([ServiceRequestError("refused")], True),
        ([], False),
    ],
)
def test_p3_degrade_is_for_what_time_may_mend(errors: list[Exception], unavailable: bool, given: Provision) -> None:
    for index, error in enumerate(errors):
        given.leave_out(index, error)
    with pytest.raises(PairingFailed) as caught:
        given.check()
    assert is_unavailable(caught.value) is unavailable


def test_p4_lack_of_the_manage_right_says_what_to_do(given: Provision) -> None:
    error = given.failed("the queues of backup can't be listed", http(401))
    assert "pass None instead" in str(error)
    assert isinstance(error.__cause__, HttpResponseError)


@pytest.mark.parametrize(
    ("status", "conflict", "access"), [(409, True, False), (401, False, True), (500, False, False)]
)
def test_http_errors_by_their_status(status: int, conflict: bool, access: bool) -> None:
    error: Any = http(status)
    assert is_conflict(error) is conflict
    assert is_no_access(error) is access


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (MessagingEntityNotFoundError(), "`pairbus provision` makes them"),
        (ServiceBusAuthenticationError(), "Send right"),
    ],
)
def test_p4_without_a_manager_the_hint_is_another(error: Exception, hint: str) -> None:
    given = Provision("contoso", "backup", 3, give_up_after_s=1.0, is_managed=False)
    given.leave_out(0, error)
    with pytest.raises(PairingFailed, match=hint):
        given.check()
