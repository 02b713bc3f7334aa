"""Draws a progress bar for a line on a terminal. Pure."""

from __future__ import annotations

from typing import Final

WIDTH: Final = 20


def bar(done: int, total: int | None) -> str:
    """Return `[########            ]  40% `, with a blank after it; an empty text if the total is unknown or 0."""
    if not total or total < 0:
        return ""
    share = min(max(done / total, 0.0), 1.0)
    # whole only when all is done: the last message is the one that people wait for
    filled = WIDTH if share == 1.0 else min(int(share * WIDTH), WIDTH - 1)
    percent = 100 if share == 1.0 else min(int(share * 100), 99)
    return f"[{'#' * filled:<{WIDTH}}] {percent:3d}% "
