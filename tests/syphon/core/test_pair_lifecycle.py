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


@pytest.mark.parametrize(("which", "other"), BOTH)
def test_p43_one_is_closed_and_its_partner_is_faulted(which: Which, other: Which) -> None:
    partnership = pair()
    assert partnership.deadline is None
    partnership.closed(which, 10.0)
    assert partnership.deadline == 10.0 + GRACE_S
    assert partnership.tick(14.9) == []
    (fault,) = partnership.tick(15.0)
    assert isinstance(fault, Fault)
    assert fault.which == other
    assert "east" in fault.text and "west" in fault.text and "was closed" in fault.text
    assert partnership.deadline is None
    assert partnership.tick(99.0) == []


@pytest.mark.parametrize(("which", "other"), BOTH)
def test_p43_both_close_in_time(which: Which, other: Which) -> None:
    partnership = pair()
    partnership.closed(which, 10.0)
    partnership.closed(other, 14.9)
    assert partnership.tick(15.0) == []
    assert partnership.tick(99.0) == []
    assert partnership.deadline is None


@pytest.mark.parametrize(("which", "other"), BOTH)
def test_p43_access_refused_for_five_seconds_is_a_fault(which: Which, other: Which) -> None:
    partnership = pair()
    partnership.refused(which, "wrong key", 10.0)
    partnership.refused(which, "wrong key", 12.0)
    assert partnership.deadline == 10.0 + REFUSED_S + GRACE_S
    assert partnership.tick(19.9) == []
    (fault,) = partnership.tick(20.0)
    assert isinstance(fault, Fault)
    assert fault.which == other
    assert "wrong key" in fault.text and "5 s" in fault.text


def test_p43_access_that_comes_back_in_time() -> None:
    partnership = pair()
    partnership.refused("primary", "wrong key", 10.0)
    partnership.granted("primary")
    assert partnership.deadline is None
    assert partnership.tick(99.0) == []
    partnership.refused("primary", "wrong key", 100.0)
    assert partnership.deadline == 110.0, "the five seconds begin anew"


def test_p43_the_partner_faults_too() -> None:
    partnership = pair()
    partnership.refused("primary", "wrong key", 10.0)
    partnership.refused("secondary", "wrong key", 14.0)
    assert partnership.tick(20.0) == []


def test_p43_without_fault_partner_the_syphon_stops_tells_and_tries_again() -> None:
    partnership = pair(fault_partner=False)
    partnership.refused("secondary", "wrong key", 10.0)
    (stop,) = partnership.tick(20.0)
    assert isinstance(stop, StopSyphon)
    assert "west" in stop.text and "wrong key" in stop.text
    assert partnership.deadline == 20.0 + RETRY_S
    assert partnership.tick(49.9) == []
    assert partnership.tick(50.0) == [StartSyphon()]
    assert partnership.deadline is None
    partnership.refused("secondary", "wrong key", 51.0)
    (stop,) = partnership.tick(61.0)
    assert isinstance(stop, StopSyphon)


def test_p43_without_fault_partner_a_closed_client_ends_the_syphon() -> None:
    partnership = pair(fault_partner=False)
    partnership.closed("secondary", 10.0)
    partnership.closed("secondary", 12.0)
    (stop,) = partnership.tick(15.0)
    assert isinstance(stop, StopSyphon)
    assert partnership.deadline is None, "it does not open again"


def test_closed_counts_before_refused() -> None:
    partnership = pair()
    partnership.refused("secondary", "wrong key", 9.0)
    partnership.closed("secondary", 10.0)
    assert partnership.deadline == 15.0
    assert repr(partnership) == "<Partnership primary open, secondary closed>"
    assert repr(pair()) == "<Partnership primary open, secondary open>"
