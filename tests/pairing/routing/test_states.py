from __future__ import annotations

from pairbus.pairing.routing.states import EntityState, Route


def test_the_words_are_those_of_the_docs_and_of_the_ledger() -> None:
    assert [state.value for state in EntityState] == ["healthy", "suspect", "failed over", "unreachable"]
    assert [route.value for route in Route] == ["primary", "backlog", "refused"]


def test_they_show_their_names() -> None:
    assert repr(EntityState.FAILED_OVER) == "EntityState.FAILED_OVER"
    assert repr(Route.BACKLOG) == "Route.BACKLOG"
