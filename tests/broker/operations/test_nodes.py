from __future__ import annotations

from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.operations.nodes import Nodes

NAMES = [f"queue-{number}" for number in range(400)]


def test_p49_entities_are_spread_over_the_nodes() -> None:
    nodes = Nodes(4)
    spread = nodes.spread(NAMES)
    assert sorted(name for node in spread for name in node) == sorted(NAMES)
    assert all(70 < len(node) < 130 for node in spread)
    assert [nodes.on(node, NAMES) for node in range(4)] == spread
    assert nodes.node_of("ORDERS") == nodes.node_of("orders")


def test_p49_the_entities_of_a_node_move_to_all_the_others_and_nobody_else_moves() -> None:
    nodes = Nodes(4)
    before = nodes.spread(NAMES)
    nodes.move(before[1])
    after = nodes.spread(NAMES)
    assert after[1] == []
    assert all(set(after[node]) > set(before[node]) for node in (0, 2, 3))
    nodes.move(["queue-0"])
    assert nodes.node_of("queue-0") != before[1]


def test_p49_where_an_entity_is_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(data: bytes, digest_size: int) -> Any:
        calls.append(data)
        return blake2b(data, digest_size=digest_size)

    monkeypatch.setattr("pairbus.broker.operations.nodes.blake2b", counted)
    nodes = Nodes(64)
    names = [f"asked-for-twice-{number}" for number in range(10)]
    before = nodes.spread(names)
    assert len(calls) == 10 * 64
    nodes.move(names)
    assert nodes.spread(names) != before and nodes.on(3, names) == nodes.spread(names)[3]
    assert len(calls) == 10 * 64


@given(st.integers(1, 64), st.text(min_size=1), st.integers(1, 5))
def test_p49_a_move_leads_to_another_node_if_there_is_one(count: int, name: str, moves: int) -> None:
    nodes = Nodes(count)
    for _ in range(moves):
        before = nodes.node_of(name)
        nodes.move([name])
        assert 0 <= nodes.node_of(name) < count
        assert (nodes.node_of(name) == before) is (count == 1)


def test_p49_what_is_deleted_is_forgotten() -> None:
    nodes = Nodes(4)
    home = nodes.node_of("orders")
    nodes.move(["Orders", "news"])
    nodes.forget_others(["NEWS"])
    assert nodes.node_of("orders") == home
    assert repr(nodes) == "<Nodes: 4, 1 entities have moved>"
