"""The four states of a primary entity, as one paired client sees it, and the three routes that a message can take."""

from __future__ import annotations

import enum


class EntityState(enum.Enum):
    #: Messages go to the primary; nothing is amiss.
    HEALTHY = "healthy"
    #: A send failed, none has succeeded since; messages still go to the primary until the interval is over.
    SUSPECT = "suspect"
    #: Messages go to the backlog, and a probe looks for the primary.
    FAILED_OVER = "failed over"
    #: The primary answers, and refuses: deleted, disabled, access lost.
    UNREACHABLE = "unreachable"

    def __repr__(self) -> str:
        return f"EntityState.{self.name}"


class Route(enum.Enum):
    PRIMARY = "primary"
    BACKLOG = "backlog"
    #: UNREACHABLE with `when_unreachable="raise"`: the caller gets an error.
    REFUSED = "refused"

    def __repr__(self) -> str:
        return f"Route.{self.name}"
