"""Seeded bugs where features meet: each was a defect once, which no test of one feature alone had found."""

from __future__ import annotations

from functools import partial

from . import Sabotage

_JOURNAL = "pairbus.journal.journal"
_REPLAY = "pairbus.broker.storage.replay"

_OFFER = (
    "        for entity in rebuilt.entities.values():\n"
    "            entity.confirm_all()\n"
    "            entity.active.reoffer()\n"
    "            entity.dead_letter.reoffer()\n"
)
_SUBSCRIBE = (
    "        for entity in list(rebuilt.entities.values()):\n"
    "            if isinstance(entity, Subscription):\n"
    "                self._subscribe(entity)\n"
    "            elif entity.detects_duplicates:\n"
    "                entity.watch_duplicates(self.release)\n"
)

_sabotage = partial(Sabotage, kind="combined")

SABOTAGES = (
    _sabotage(
        "first-partition-of-a-subscription-not-offered-after-a-start",
        _REPLAY,
        _SUBSCRIBE + "        # Not before: a subscription learns from its topic that it has partitions.\n" + _OFFER,
        _OFFER + _SUBSCRIBE,
        "What is in the first partition of a subscription is received by nobody after a restart.",
        needs=("partitioned", "feed"),
    ),
    _sabotage(
        "restart-asks-the-journal-for-a-transfer-queue-without-messages",
        "pairbus.broker.operations.restart",
        "if not isinstance(entity, Subscription | TransferQueue)]\n        missing",
        "if not isinstance(entity, Subscription)]\n        missing",
        "An entity whose transfer dead letters somebody has looked at can't be restarted.",
        needs=("crash", "$Transfer"),
    ),
    _sabotage(
        "transfer-queue-without-messages-reported-as-missing",
        "pairbus.broker.storage.diagnostics",
        "    if not isinstance(entity, TransferQueue) or entity.segment >= 0:\n",
        "    if entity.id:\n",
        "The diagnostics of a failed node call an entity inconsistent that is not.",
        needs=("crash", "$Transfer"),
    ),
    _sabotage(
        "transfer-queue-made-while-its-owner-is-down",
        "pairbus.broker.operations.namespace",
        "            if entity.deleting and entity.transfer is None:\n",
        "            if False:\n",
        "Looking at transfer dead letters while their entity is restarted leaves an entity behind for ever.",
        needs=("crash", "$Transfer"),
    ),
    _sabotage(
        "via-that-is-down-not-found",
        "pairbus.broker.operations.transfer",
        "    return unavailable(via.entity, via.path) if via",
        "    return unavailable(None, via.path) if via",
        "What is sent through an entity that is restarted is refused for good.",
        needs=("crash", "transact"),
    ),
    _sabotage(
        "transaction-goes-on-through-a-via-that-fails",
        "pairbus.broker.model.transaction",
        "    via = operation.via if isinstance(operation, Send) else None\n",
        "    via = None\n",
        "A transaction through an entity that has failed is not rolled back.",
        needs=("crash", "transact"),
    ),
    _sabotage(
        "restart-reads-a-segment-whose-removal-hung",
        _JOURNAL,
        " <= SEGMENT_HEADER_BYTES or self._is_being_deleted(self._path(each)):\n",
        " <= SEGMENT_HEADER_BYTES:\n",
        "The restart of an entity that fails during a storage stall takes longer than it must.",
        needs=("crash", "stall home unlink 20"),
    ),
    _sabotage(
        "restart-reads-a-folder-that-stalls",
        _JOURNAL,
        "    ) -> Generator[list[Record], None, None]:\n        self._check_answers(number, path)\n",
        "    ) -> Generator[list[Record], None, None]:\n",
        "The broker hangs when a node fails during a storage stall.",
        needs=("crash", "stall"),
    ),
    Sabotage(
        "connections-sent-away-when-the-clock-is-set-forward",
        "pairbus.broker.server",
        "self.faults.shift, self._shift_connections):",
        "self.faults.shift):",
        "Clients that are about to put their token lose their connection when the clock is set.",
        needs=("stranger", "clock 3600"),
    ),
    _sabotage(
        "forwarding-confirms-the-last-partition-only",
        "pairbus.broker.operations.enqueue",
        "                for message in messages:  # those of one forwarding may be in several partitions\n    ",
        "",
        "Messages that were forwarded to several partitions and received come back after a compaction.",
        needs=("entities: partitioned", "entry"),
    ),
)
