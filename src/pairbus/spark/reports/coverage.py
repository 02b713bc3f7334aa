"""Decides for which times the ledgers of a namespace are complete, and where they have gaps.

Pure. A file without its last line was cut by a kill, or is being written: what happened to a message that was sent
before the cut may be in the lines that are missing. A broker that was asked what is left (`left`) has reported
everything up to then, as long as it is not asked again. A gap, or a missing file, makes everything that was sent before
it uncertain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

#: Lines are written this often, so that many seconds of them are missing at most after the last one, with a margin.
CUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Watch:
    """One file of one watcher. `asked`: when the last complete snapshot of what is left began."""

    started: float
    last: float
    ended: bool
    asked: float | None = None
    gap: float | None = None
    bad_lines: int = 0


@dataclass(frozen=True, slots=True)
class Coverage:
    """For a message that was sent at t: was it watched from then to its end? `blind` are (after, up to and with)."""

    since: float
    until: float
    blind: tuple[tuple[float, float], ...]


def coverage(watches: Iterable[Watch], missing: Iterable[tuple[float, float]] = ()) -> Coverage:
    """Return what several files of one place together cover. `missing`: since and until when files that are missing may
    tell of it; they end where the next one begins, since one broker at a time writes them."""
    every = list(watches)
    starts = [each.started for each in every]
    spells = [(-inf, min((start for start in starts if start > since), default=until)) for since, until in missing]
    until = -inf
    for each in every:
        if each.gap is not None:
            spells.append((-inf, each.gap))
        if each.ended:
            until = max(until, each.last)
            if each.bad_lines:
                spells.append((-inf, each.last))
        else:
            # What was left then and is gone by a later look may have gone in the lines that are missing.
            asked = -inf if each.asked is None or each.started < max(starts) else each.asked
            until = max(until, asked)
            spells.append((asked, each.last + CUT_S))
    return Coverage(min(starts, default=inf), until, merged(spells))


def merged(spells: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the spells with those that overlap or touch as one."""
    joined: list[tuple[float, float]] = []
    for after, until in sorted(spells):
        if until <= after:
            continue
        if joined and after <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], until))
        else:
            joined.append((after, until))
    return tuple(joined)


def last_snapshot_since(completed: Sequence[float], closed: Sequence[float]) -> float:
    """Return the time after which `left` lines are of the last snapshot; those before are of earlier ones, and tell
    nothing more.

    `completed`: the lines that end a snapshot; `closed`: where there are none, the clean ends of files.
    """
    times = sorted(set(completed) or set(closed))
    return times[-2] if len(times) > 1 else -inf
