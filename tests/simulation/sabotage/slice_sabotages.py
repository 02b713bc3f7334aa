"""Seeded bugs in long work that is done in slices: who waits for whom, and what is done when."""

from __future__ import annotations

from functools import partial

from . import Sabotage

_SLICES = "pairbus.broker.slices"
_ENQUEUE = "pairbus.broker.operations.enqueue"

_sabotage = partial(Sabotage, kind="features", needs=("feed",))

SABOTAGES = (
    _sabotage(
        "slice-without-an-end",
        _SLICES,
        "                while not job.is_done and self._left > 0:\n",
        "                while not job.is_done:\n",
        "A batch to a topic with many rules keeps all other clients waiting.",
    ),
    _sabotage(
        "later-send-overtakes",
        _ENQUEUE,
        "                work, partial(self._write_prepared, target, payloads, now, done, results), (topic.sending,)\n",
        "                work, partial(self._write_prepared, target, payloads, now, done, results), ()\n",
        "A short send to a topic overtakes a long one that came before it.",
    ),
)
