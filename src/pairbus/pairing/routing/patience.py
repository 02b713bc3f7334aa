"""Decides how long the primary may be silent before a message leaves for the backlog, and when sends are too slow.

If `primary_patience` is "adaptive", `Patience` learns from how long the recent sends of one entity took, and from how
long links to the primary took to open: it takes a high quantile of the last answers, which a few slow ones don't
change, times a factor. A false alarm, where the primary answered after all, doubles the factor for an hour. Pings also
tell how long an opening takes, since each opens a link. `SlowSends` judges a brownout: more than a share of the last
sends took longer than a given time. Both keep a fixed number of values.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

#: Adaptive patience is never shorter: a pause of the sender's own process or a lost packet takes as long.
LEAST_S: Final = 0.25
#: With fewer answers than this it is half of the caller's time.
ANSWERS_MIN: Final = 20
ANSWERS_KEPT: Final = 64
#: After this many new answers the quantile is computed again, once ANSWERS_KEPT are known; before, after each: the
#: first answers of a new link are often slow ones.
_REVIEW_EVERY: Final = 8
_QUANTILE: Final = 0.9
_MULTIPLE: Final = 12.0
#: Openings are few, and each consists of many exchanges: one is enough to know, and they differ less than sends.
OPENING_LEAST_S: Final = 1.0
_OPENING_MULTIPLE: Final = 4.0
#: How long an opening is waited for while none is known, if that is less than half of the caller's time.
OPENING_UNKNOWN_S: Final = 3.0
_WIDEST: Final = 64.0
#: A false alarm is forgotten, one doubling at a time, after this long without another.
CALM_S: Final = 3600.0
#: However patient the caller is, after this long a silence of the entity a send that is given up counts.
GIVEN_UP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PrimaryTerms:
    """The terms of one attempt at the primary, besides its time. With terms the attempt is measured."""

    #: Tells whether a failure to open or keep the link ends the attempt, after one fresh link and without a retry of
    #: the SDK. None: the SDK's retries go on as the user set them.
    ends_at: Callable[[BaseException], bool] | None = None
    #: How long an open link may be silent, from the beginning of the send on it.
    silence_s: float = math.inf
    #: How long an attempt may take that opens a link, or that finds one which has not been used for a while.
    opening_s: float = math.inf
    #: Says whether the entity has failed over meanwhile: a call that waited for others then opens no link.
    has_left: Callable[[], bool] | None = field(default=None, compare=False)


class Patience:
    """How long recent sends of one entity took, and how long its silence is waited for."""

    __slots__ = (
        "_answers_min", "_calm_at", "_factor", "_least_s", "_multiple", "_quantile_s", "_slot", "_took", "doubted",
        "silence_s",
    )  # fmt: skip

    def __init__(
        self,
        least_s: float = LEAST_S,
        multiple: float = _MULTIPLE,
        answers_min: int = ANSWERS_MIN,
        unknown_s: float = math.inf,
    ) -> None:
        self._least_s = least_s
        self._multiple = multiple
        self._answers_min = answers_min
        self._took: list[float] = []
        self._slot = 0
        self._quantile_s = 0.0
        self._factor = 1.0
        self._calm_at = math.inf
        #: How long an open link, or one that is being opened, may be silent; `unknown_s` while too little is known.
        self.silence_s = unknown_s
        #: A silence was taken for a failure, and it is not known yet whether the primary was down.
        self.doubted = False

    def __repr__(self) -> str:
        return (
            f"<Patience {self.silence_s:.3f} s, of {len(self._took)} answers, times {self._multiple * self._factor:g}>"
        )

    def noted(self, took_s: float, now: float) -> bool:
        """Note how long an answer took; return whether `silence_s` was computed anew."""
        took = self._took
        if len(took) < ANSWERS_KEPT:
            took.append(took_s)
        else:
            took[self._slot] = took_s
        self._slot = (self._slot + 1) % ANSWERS_KEPT
        if len(took) < self._answers_min or (len(took) == ANSWERS_KEPT and self._slot % _REVIEW_EVERY):
            return False
        if now >= self._calm_at:
            self._factor = max(1.0, self._factor / 2)
            self._calm_at = now + CALM_S if self._factor > 1.0 else math.inf
        self._quantile_s = sorted(took)[math.ceil(len(took) * _QUANTILE) - 1]
        self._review()
        return True

    def false_alarm(self, now: float) -> None:
        """Note that the primary answered after all: its next silence is waited for twice as long."""
        self.doubted = False
        self._factor = min(_WIDEST, self._factor * 2)
        self._calm_at = now + CALM_S
        if len(self._took) >= self._answers_min:
            self._review()

    def _review(self) -> None:
        # The factor also applies to the minimum: if sends are fast, the minimum was too short.
        self.silence_s = self._factor * max(self._least_s, self._multiple * self._quantile_s)


def patience_with_openings() -> Patience:
    """Return how long a link to the primary may take to open, based on the client's earlier openings."""
    return Patience(OPENING_LEAST_S, _OPENING_MULTIPLE, 1, OPENING_UNKNOWN_S)


class Brownout(NamedTuple):
    """The option `brownout`: more than `share` of the last `sends` sends took longer than `slower_than_s`."""

    share: float
    sends: int
    slower_than_s: float


class SlowSends:
    """Which of the last sends of one entity were slow."""

    __slots__ = ("_brownout", "_slot", "_slow", "_sum")

    def __init__(self, brownout: Brownout) -> None:
        self._brownout = brownout
        self.clear()

    def __repr__(self) -> str:
        return f"<SlowSends {self._sum} of {len(self._slow)}>"

    def clear(self) -> None:
        self._slow: list[bool] = []
        self._slot = self._sum = 0

    def noted(self, took_s: float) -> bool:
        """Note how long a send took; return whether the entity is in a brownout."""
        sends = self._brownout.sends
        slow = self.is_slow(took_s)
        self._sum += slow
        if len(self._slow) < sends:
            self._slow.append(slow)
            return self.is_on
        self._sum -= self._slow[self._slot]
        self._slow[self._slot] = slow
        self._slot = (self._slot + 1) % sends
        return self.is_on

    def is_slow(self, took_s: float) -> bool:
        return took_s > self._brownout.slower_than_s

    @property
    def is_on(self) -> bool:
        return len(self._slow) == self._brownout.sends and self._sum > self._brownout.share * self._brownout.sends
