from __future__ import annotations

import pytest

from pairbus.syphon.core.pair_lifecycle import (
    GRACE_S,
    REFUSED_S,
    RETRY_S,
    Fault,
    PairLifecycle,
    StartSyphon,
    StopSyphon,
    Which,
)

BOTH: list[tuple[Which, Which]] = [("primary", "secondary"), ("secondary", "primary")]


def pair(*, fault_partner: bool = True) -> PairLifecycle:
    return PairLifecycle("east", "west", fault_partner=fault_partner)


@pytest.fixture
def lifecycle() -> PairLifecycle:
    return pair()


@pytest.mark.parametrize(("which", "other"), BOTH)
def test_p43_one_is_closed_and_its_partner_is_faulted(which: Which, other: Which, lifecycle: PairLifecycle) -> None:
    assert lifecycle.deadline is None
    lifecycle.closed(which, 10.0)
    assert lifecycle.deadline == 10.0 + GRACE_S
    assert lifecycle.tick(14.9) == []
    (fault,) = lifecycle.tick(15.0)
    assert isinstance(fault, Fault)
    assert fault.which == other
    assert "east" in fault.text and "west" in fault.text and "was closed" in fault.text
    assert lifecycle.deadline is None
    assert lifecycle.tick(99.0) == []


@pytest.mark.parametrize(("which", "other"), BOTH)
def test_p43_both_close_in_time(which: Which, other: Which, lifecycle: PairLifecycle) -> None:
    lifecycle.closed(which, 10.0)
    lifecycle.closed(other, 14.9)
    assert lifecycle.tick(15.0) == []
    assert lifecycle.tick(99.0) == []
    assert lifecycle.deadline is None


@pytest.mark.parametrize(("which", "other"), BOTH)
def test_p43_access_refused_for_five_seconds_is_a_fault(which: Which, other: Which, lifecycle: PairLifecycle) -> None:
    lifecycle.refused(which, "wrong key", 10.0)
    lifecycle.refused(which, "wrong key", 12.0)
    assert lifecycle.deadline == 10.0 + REFUSED_S + GRACE_S
    assert lifecycle.tick(19.9) == []
    (fault,) = lifecycle.tick(20.0)
    assert isinstance(fault, Fault)
    assert fault.which == other
    assert "wrong key" in fault.text and "5 s" in fault.text


def test_p43_access_that_comes_back_in_time(lifecycle: PairLifecycle) -> None:
    lifecycle.refused("primary", "wrong key", 10.0)
    lifecycle.granted("primary")
    assert lifecycle.deadline is None
    assert lifecycle.tick(99.0) == []
    lifecycle.refused("primary", "wrong key", 100.0)
    assert lifecycle.deadline == 110.0, "the five seconds begin anew"


def test_p43_the_partner_faults_too(lifecycle: PairLifecycle) -> None:
    lifecycle.refused("primary", "wrong key", 10.0)
    lifecycle.refused("secondary", "wrong key", 14.0)
    assert lifecycle.tick(20.0) == []


def test_p43_without_fault_partner_the_syphon_stops_tells_and_tries_again() -> None:
    lifecycle = pair(fault_partner=False)
    lifecycle.refused("secondary", "wrong key", 10.0)
    (stop,) = lifecycle.tick(20.0)
    assert isinstance(stop, StopSyphon)
    assert "west" in stop.text and "wrong key" in stop.text
    assert lifecycle.deadline == 20.0 + RETRY_S
    assert lifecycle.tick(49.9) == []
    assert lifecycle.tick(50.0) == [StartSyphon()]
    assert lifecycle.deadline is None
    lifecycle.refused("secondary", "wrong key", 51.0)
    (stop,) = lifecycle.tick(61.0)
    assert isinstance(stop, StopSyphon)


def test_p43_without_fault_partner_a_closed_client_ends_the_syphon() -> None:
    lifecycle = pair(fault_partner=False)
    lifecycle.closed("secondary", 10.0)
    lifecycle.closed("secondary", 12.0)
    (stop,) = lifecycle.tick(15.0)
    assert isinstance(stop, StopSyphon)
    assert lifecycle.deadline is None, "it does not open again"


def test_closed_counts_before_refused(lifecycle: PairLifecycle) -> None:
    lifecycle.refused("secondary", "wrong key", 9.0)
    lifecycle.closed("secondary", 10.0)
    assert lifecycle.deadline == 15.0
    assert repr(lifecycle) == "<PairLifecycle primary open, secondary closed>"
    assert repr(pair()) == "<PairLifecycle primary open, secondary open>"
