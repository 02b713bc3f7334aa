from __future__ import annotations

import dataclasses

import pytest

from pairbus.pairing import events
from pairbus.pairing.events import Announce, Event, OpenLinks, SendPing, StateChanged
from pairbus.pairing.routing.states import EntityState

KINDS = [
    value
    for value in vars(events).values()
    if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == events.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_p23_events_and_commands_are_frozen_and_lean(kind: type) -> None:
    made = kind(*[None for _ in dataclasses.fields(kind)])
    assert not hasattr(made, "__dict__")
    assert made == kind(*[None for _ in dataclasses.fields(kind)])
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, 1)


def test_p23_every_event_is_one_and_carries_no_time() -> None:
    told = [kind for kind in KINDS if kind not in (Announce, OpenLinks, SendPing)]
    assert all(issubclass(kind, Event) for kind in told)
    names = {field.name for kind in told for field in dataclasses.fields(kind)}
    assert not names & {"t", "time", "now", "at", "timestamp"}


def test_a_state_change_reads_well() -> None:
    event = StateChanged("orders", EntityState.HEALTHY, EntityState.SUSPECT, "send failed", TimeoutError("no answer"))
    assert repr(event) == (
        "StateChanged(entity='orders', previous=EntityState.HEALTHY, state=EntityState.SUSPECT, cause='send failed', "
        "error=TimeoutError('no answer'))"
    )
