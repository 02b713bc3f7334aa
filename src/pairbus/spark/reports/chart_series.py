"""Makes lists of equal length for charts from counts by step, and one state from those of several clients. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor
from typing import Final

from .results import OutageSeries, StateChange

#: Points of a chart at most: a day by seconds would be 86,400 of them, and no screen has as many.
STEPS_MAX: Final = 20_000
#: From best to worst: of several clients the worst state is shown.
_RANK: Final = {"healthy": 0, "suspect": 1, "unreachable": 2, "failed over": 3}


def frame(first: float, last: float, step_s: float) -> tuple[float, float, int]:
    """Return where the first step starts, how long a step is, and how many there are. Raises ValueError."""
    if not step_s > 0:
        raise ValueError(f"step_s is {step_s}; it must be more than 0 seconds")
    step = step_s * max(1, ceil((last - first) / step_s / (STEPS_MAX - 1)))
    start = floor(first / step) * step
    return start, step, floor((last - start) / step) + 1


def by_step(counts: Iterable[tuple[int, int]], count: int) -> list[int]:
    """Return a list of `count` numbers from pairs of step and number; what lies outside goes to the first or last."""
    row = [0] * count
    for at, number in counts:
        row[min(max(at, 0), count - 1)] += number
    return row


def either(better: list[int], other: list[int]) -> list[int]:
    """Return the first, unless there is nothing in it at all."""
    return better if any(better) else other


def depth(came: Sequence[int], *went: Sequence[int]) -> list[int]:
    """Return how many were there at the end of each step. Who carries one home twice can't make it less than none."""
    there = 0
    row = []
    for at, number in enumerate(came):
        there = max(0, there + number - sum(each[at] for each in went))
        row.append(there)
    return row


def states(changes: Iterable[tuple[float, str, str, str]], start: float) -> dict[str, list[StateChange]]:
    """Return each entity's state as the client that is worst off sees it, from (t, client, entity, state), by t."""
    shown: dict[str, list[StateChange]] = {}
    by_client: dict[str, dict[str, str]] = {}
    for t, client, entity, state in changes:
        clients = by_client.setdefault(entity, {})
        clients[client] = state
        worst = max(clients.values(), key=lambda each: _RANK.get(each, 0))
        line = shown.setdefault(entity, [StateChange(t=start, state="healthy")])
        if line[-1]["state"] != worst:
            line.append({"t": t, "state": worst})
    return shown


def empty(step_s: float) -> OutageSeries:
    """Return the series of ledgers without a single event."""
    return {
        "start": None,
        "step": step_s,
        "sends": {"primary": [], "backlog": [], "refused": []},
        "backlog_depth": [],
        "delay": [],
        "states": {},
        "pings": [],
    }
