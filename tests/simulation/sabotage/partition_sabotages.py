"""Seeded bugs in partitioned entities."""

from __future__ import annotations

from functools import partial

from . import Sabotage

_ENTITY = "pairbus.broker.model.entity"

_sabotage = partial(Sabotage, kind="partitioned")

SABOTAGES = (
    _sabotage(
        "number-of-a-partition-given-out-twice",
        _ENTITY,
        "        partitions.last[partitions.current] = self.last_sequence\n",
        "",
        "Two messages of a partitioned queue have one sequence number, and one of them is lost.",
    ),
    _sabotage(
        "partition-that-is-back-not-delivered",
        "pairbus.broker.model.queue",
        "            self.ready_list.down = partitions\n",
        "            self.ready_list.down |= partitions\n",
        "Messages of a partition that was down for a while are never delivered again.",
        needs=("partition ",),
    ),
    _sabotage(
        "numbers-of-the-other-partitions-lost-by-compaction",
        _ENTITY,
        "        return list(self.partitions.last)\n",
        "        return [*self.partitions.last[:1], *(p << PARTITION_SHIFT for p in range(1, 16))]\n",
        "After a compaction and a restart messages get numbers that others had.",
        needs=("segments of 2048 bytes", "receive"),
    ),
    _sabotage(
        "message-of-a-down-partition-forgotten-as-it-is-offered",
        "pairbus.broker.model.ready_list",
        "            message = None if partition in out else self._lists[partition].next()\n",
        "            message = self._lists[partition].next()\n"
        "            message = None if partition in out else message\n",
        "Messages of a partition that is down are not there when it is back.",
        needs=("partition ",),
    ),
)
