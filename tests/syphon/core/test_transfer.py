"""The table in full: every state with every input."""

from __future__ import annotations

import pytest

from pairbus.syphon.core.transfer import TABLE, Input, State
from tests.syphon.rig import transfer

#: State → input → where it leads; what is not here changes nothing.
EXPECTED = {
    "waiting": {
        "known": "confirmed", "taken": "sent", "unavailable": "left", "rejected": "refused", "lock over": "done",
        "stopped": "done",
    },
    "sent": {
        "confirmed": "confirmed", "unavailable": "left", "rejected": "refused", "split": "waiting", "again": "sent",
        "given up": "done",
    },
    "confirmed": {"settled": "done", "unsettled": "confirmed", "lock lost": "done", "given up": "done"},
    "refused": {"settled": "done", "unsettled": "refused", "lock lost": "done", "given up": "done"},
    "left": {"lock over": "done", "retried": "done", "stopped": "done"},
    "done": {},
}  # fmt: skip


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("what", Input)
def test_every_state_with_every_input(state: State, what: Input) -> None:
    found = TABLE.get((state, what))
    assert (None if found is None else found.value) == EXPECTED[state.value].get(what.value)


def test_p39_only_a_confirmation_leads_home() -> None:
    """And only when it is confirmed is a message completed: nothing else removes it from the backlog."""
    assert {what for (_, what), after in TABLE.items() if after is State.CONFIRMED} - {Input.UNSETTLED} == {
        Input.CONFIRMED,
        Input.KNOWN,
    }


def test_nothing_comes_back_from_the_end() -> None:
    assert not [state for state, _ in TABLE if state is State.DONE]


def test_repr() -> None:
    assert repr(transfer(7)) == "<PendingTransfer 7 of contoso/x-servicebus-transfer/0 to orders: waiting>"
