from __future__ import annotations

import copy
import dataclasses
import pickle
import threading

import pytest
from azure.servicebus import exceptions

from pairbus.pairing import events
from pairbus.pairing.errors import BacklogUnavailableError, NoTimeLeftError
from pairbus.pairing.events import Announce, Event, OpenLinks, SendPing, StateChanged
from pairbus.pairing.routing.states import EntityState

KINDS = [
    value
    for value in vars(events).values()
    if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == events.__name__
]
PUBLIC = [kind for kind in KINDS if not kind.__name__.startswith("_")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_p23_events_and_commands_are_frozen_and_lean(kind: type) -> None:
    made = kind(*[None for _ in dataclasses.fields(kind)])
    assert not hasattr(made, "__dict__")
    assert made == kind(*[None for _ in dataclasses.fields(kind)])
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, 1)


def test_p23_every_event_is_one_and_carries_no_time() -> None:
    told = [kind for kind in PUBLIC if kind not in (Announce, OpenLinks, SendPing)]
    assert all(issubclass(kind, Event) for kind in told)
    names = {field.name for kind in told for field in dataclasses.fields(kind)}
    assert not names & {"t", "time", "now", "at", "timestamp"}


class OfNoModule(TimeoutError):
    """An error whose class can't be found again, as that of a program's own function."""


OfNoModule.__qualname__ = "nowhere.OfNoModule"


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ServiceBusServerBusyError(message="busy"),
        exceptions.OperationTimeoutError(message="no answer"),
        exceptions.ServiceBusError("refused", condition="amqp:not-allowed"),
        BacklogUnavailableError("all queues failed", error=exceptions.ServiceBusConnectionError(message="down")),
        NoTimeLeftError("over"),
        ConnectionRefusedError(111, "refused"),
        OfNoModule("of no module"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_p23_an_event_with_an_error_can_be_pickled(error: BaseException) -> None:
    try:
        raise error from ValueError("why", threading.Lock())
    except type(error) as raised:
        raised.confirmed_ids = ("a",)  # type: ignore[attr-defined]
        event = events.PingFailed("orders", False, raised)
    for copied in (pickle.loads(pickle.dumps(event)), copy.deepcopy(event)):
        assert (copied.entity, copied.reachable) == ("orders", False)
        assert isinstance(error, type(copied.error))
        assert str(copied.error) == str(error)
        assert copied.error.confirmed_ids == ("a",)
        assert isinstance(copied.error.__cause__, ValueError)
        assert copied.error.__cause__.args[0] == "why"
    restored = pickle.loads(pickle.dumps(event)).error
    assert type(restored) is (TimeoutError if isinstance(error, OfNoModule) else type(error))
    assert getattr(restored, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, Event)], ids=lambda kind: kind.__name__)
def test_p23_every_event_can_be_pickled(kind: type) -> None:
    made = kind(*[None for _ in dataclasses.fields(kind)])
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_state_change_reads_well() -> None:
    event = StateChanged("orders", EntityState.HEALTHY, EntityState.SUSPECT, "send failed", TimeoutError("no answer"))
    assert repr(event) == (
        "StateChanged(entity='orders', previous=EntityState.HEALTHY, state=EntityState.SUSPECT, cause='send failed', "
        "error=TimeoutError('no answer'))"
    )
