"""Decides on which node of a namespace each entity is. Pure.

A node is a group of entities that fail together; all nodes are in one process. Each queue or topic, with everything
that belongs to it, has its own order of the nodes, derived from its name. It starts on the first node and moves to the
next one each time that it has to move. So the entities of a failing node are spread over all the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

NODES: Final = 4
NODES_MAX: Final = 64


@lru_cache(maxsize=20_000)
def _order(key: str, count: int) -> tuple[int, ...]:
    """Return the nodes in the order in which an entity uses them."""
    return tuple(sorted(range(count), key=lambda node: blake2b(f"{node} {key}".encode(), digest_size=8).digest()))


class Nodes:
    """The nodes of a namespace, counted from 0."""

    __slots__ = ("_moves", "count")

    def __init__(self, count: int = NODES) -> None:
        self.count = count
        # By name in lower case: how often an entity has moved.
        self._moves: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Nodes: {self.count}, {len(self._moves)} entities have moved>"

    def node_of(self, name: str) -> int:
        """Return the node that a queue or topic is on."""
        key = name.lower()
        return _order(key, self.count)[self._moves.get(key, 0) % self.count]

    def on(self, node: int, names: Iterable[str]) -> list[str]:
        """Return those of these queues and topics that are on a node."""
        return [name for name in names if self.node_of(name) == node]

    def spread(self, names: Iterable[str]) -> list[list[str]]:
        """Return the queues and topics of each node."""
        found: list[list[str]] = [[] for _ in range(self.count)]
        for name in names:
            found[self.node_of(name)].append(name)
        return found

    def move(self, names: Iterable[str]) -> None:
        """Move queues and topics to another node each; where there is no other one, they stay."""
        for name in names:
            key = name.lower()
            self._moves[key] = self._moves.get(key, 0) + 1

    def forget_others(self, names: Iterable[str]) -> None:
        """Forget the moves of all except these: after a deletion a new entity of the same name starts from its first
        node."""
        known = {name.lower() for name in names}
        self._moves = {key: moves for key, moves in self._moves.items() if key in known}
