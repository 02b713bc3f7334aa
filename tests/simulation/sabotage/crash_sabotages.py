"""Seeded bugs in the restart of entities from the journal while the broker serves (P49)."""

from __future__ import annotations

from functools import partial

from . import Sabotage

_REPLAY = "pairbus.broker.storage.replay"
_RESTART = "pairbus.broker.operations.restart"
_JOURNAL = "pairbus.journal.journal"
_CRASHES = "pairbus.broker.crashes"

_sabotage = partial(Sabotage, kind="crashes")

SABOTAGES = (
    _sabotage(
        "restart-before-what-is-written-is-synced",
        _JOURNAL,
        "            error = log.flush()\n            ends.update(log.sizes)\n",
        "            error = None\n            ends.update(log.sizes)\n",
        "Settlements that were answered are undone by the failure of a node.",
    ),
    _sabotage(
        "restart-skips-removals",
        _REPLAY,
        "        if id in self._ids:\n            self.count += 1\n            super()._remove_all(id, numbers)\n",
        "        pass\n",
        "What was forwarded or settled comes back when a node fails.",
    ),
    _sabotage(
        "restart-forgets-subscriptions",
        _CRASHES,
        "        old = [part for owner in owners for part in owner.with_parts()]\n",
        "        old = list(owners)\n",
        "The subscriptions of a topic are gone when its node fails.",
        needs=("news",),
    ),
    _sabotage(
        "restarted-entity-stays-suspended",
        _RESTART,
        "            entity.resume()\n",
        "            entity.next_revision += 0\n",
        "An entity whose node failed is never served again.",
    ),
    _sabotage(
        "entity-goes-on-while-it-is-read-again",
        "pairbus.broker.model.entity",
        "        self.suspended = refusal\n        self.deleting = True\n",
        "        self.suspended = refusal\n",
        "What an entity confirms while it is rebuilt is lost.",
    ),
    _sabotage(
        "what-is-held-is-not-reclaimed",
        _RESTART,
        "            self._journal.reclaim(segment, nbytes)\n",
        "            self._journal.reclaim(segment, 0 * nbytes)\n",
        "Segments are deleted that hold messages of an entity which was restarted.",
    ),
)
