"""Helps to test code that uses Service Bus: fixtures, faults as `with` blocks, a clock that tests move.

The fixtures (`pairbus_broker`, `pairbus_namespace`, `pairbus_queue`, `pairbus_topic`, `pairbus_pair`) are available
wherever pytest runs with pairbus installed. Names are imported on first use, since pytest imports this package in every
run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairbus.testing.clock import ManualClock as ManualClock
    from pairbus.testing.faults import fault as fault

__all__ = ["ManualClock", "fault"]


def __getattr__(name: str) -> Any:
    if name == "ManualClock":
        from pairbus.testing.clock import ManualClock

        return ManualClock
    if name == "fault":
        from pairbus.testing.faults import fault

        return fault
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
