"""Worlds with a pair hold, and much happens in them; what paired.py says of a client is judged step by step."""

from __future__ import annotations

from collections import Counter

import pytest

from .pair import PairRun
from .pair_world import draw_pair
from .run import Violation

SEEDS = range(9, 2009, 10)
#: What is looked for in the traces, since a simulation in which nothing happens proves nothing.
EVENTS = (
    "'send failed'", "'interval over'", "'ping succeeded'", "'trial succeeded'", "'send succeeded'", "PingFailed",
    "BacklogQueueEjected", "BacklogQueueReturned", ": sent", ": failed", "'control file'", "'return ramp over'",
    "rule 'interval zero'", "rule 'interval over'", "rule 'while suspect'", "rule 'failed over'", ": given up",
    ": over the link that stands ready",
)  # fmt: skip


@pytest.mark.timeout(600)
def test_p14_p39_hundreds_of_worlds_hold() -> None:
    total: Counter[str] = Counter()
    for seed in SEEDS:
        run = PairRun(draw_pair(seed))
        try:
            run.run()
        except Violation as violation:
            raise AssertionError(f"{violation}\nreplay it: make simulate SEED={seed}") from None
        text = "\n".join(run.trace.lines())
        total.update({event: text.count(event) for event in EVENTS})
    assert [event for event in EVENTS if total[event] < 10] == [], total
