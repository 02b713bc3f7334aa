"""Writes what a namespace still holds into its ledger as `left` lines: at a clean end, and on request.

A shell: it writes a slice of messages in each turn of the loop, so that other clients hardly notice; the ledger's
buffer bounds the memory. At the end of a broker the time is bounded too: messages that could not be written in it are
recorded as a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple

from pairbus.broker.operations.namespace import Namespace
from pairbus.ledger import LedgerWriter

#: How long this may take at a clean end, in seconds.
CLOSING_S: Final = 5.0
#: Written between two looks at the clock.
_SLICE: Final = 100
_TURN_S: Final = 0.005


class Inventory(NamedTuple):
    """How many messages were written into the ledger."""

    written: int
    #: How many messages there was no time for.
    unwritten: int


async def write_left(
    namespace: Namespace, ledger: LedgerWriter, clock: Callable[[], float], seconds: float = float("inf")
) -> Inventory:
    """Write a line for each message, for at most so many seconds, and return how many were written and how many not."""
    began = monotonic()
    ends = began + seconds
    while namespace.maintenance.take_some_apart():  # of queues that were deleted: gone, not left
        if monotonic() >= ends:
            break
        await asyncio.sleep(0)
    event, name = ledger.event, namespace.name
    count = 0
    unwritten = 0
    turn_ends = monotonic() + _TURN_S
    for path, number, mid in namespace.contents():
        if count % _SLICE == 0 and (now := monotonic()) >= min(turn_ends, ends):
            if now >= ends:
                unwritten = max(1, namespace.message_count - count)
                ledger.skip(unwritten)
                break
            await asyncio.sleep(0)
            turn_ends = monotonic() + _TURN_S
        event("left", clock(), name, path, mid=mid, seq=number)
        count += 1
    if not unwritten:
        # Or nobody could tell "nothing is left" from "nobody asked".
        event("stock", clock(), name, ms=(monotonic() - began) * 1000)
    await _flush(ledger, ends)
    return Inventory(count, unwritten)


async def _flush(ledger: LedgerWriter, ends: float) -> None:
    """Wait until all is in the file, or time is over; a disk that does not answer holds up nobody else."""
    while not ledger.flush_aside() and monotonic() < ends:
        await asyncio.sleep(_TURN_S)
    while ledger.is_flushing and monotonic() < ends:
        await asyncio.sleep(_TURN_S)
