"""Compacts the journal: copies the oldest segment's live records forward, syncs them and deletes the segment.

Only the oldest segment is compacted: dropping any other would drop tombstones of records that lie before it, and
deleted records would come back. A kill at any point does no harm: copies are ordinary records with new log numbers, the
original stays until all of them are synced, and the owner recognises a repeated record. It runs on the loop's thread in
steps of about a millisecond, or up to eight if it is behind (`Pace`): operations that make records obsolete wait for
the loop meanwhile, so they hardly outrun it. It does not decide when compaction is worthwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pairbus.journal.errors import JournalError
from pairbus.journal.log import Done
from pairbus.journal.record import RECORD_HEADER_BYTES, Record

CHUNK_BYTES = 128 * 1024
# How much waits for the disk at once: the first value, and up to the second if compaction is behind.
_IN_FLIGHT_BYTES = 1024 * 1024
_IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024
_STEP_S = 0.001
# The longest step: nobody is served meanwhile.
_STEP_S_MAX = 0.008


class Owner(Protocol):
    """Knows what the records mean. Both methods are called on the loop's thread."""

    def live(self, record: Record) -> tuple[int, tuple[bytes, ...] | bytes] | None:
        """Return kind and payload to keep of this record, or None. A record whose content already lives at another
        place (compare segment and offset) is not live."""

    def moved(self, record: Record, segment: int, offset: int) -> None:
        """Note that the copy is synced and the content is now there. The owner may have dropped it meanwhile."""


class Pace(NamedTuple):
    """`owed` tells how many bytes must be read before the step may end, `has_read` hears of those that were."""

    owed: Callable[[], int]
    has_read: Callable[[int], None]


@dataclass(eq=False)
class Compaction:
    """One run over one segment."""

    chunks: Generator[list[Record], None, None]
    append: Callable[[int, tuple[bytes, ...] | bytes, Done], None]
    owner: Owner
    pace: Pace
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._records: Iterator[Record] = iter(())
        self._read_all = False
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._error: JournalError | None = None
        self._wake = asyncio.Event()

    async def copy_live(self) -> None:
        """Return when all live records are synced elsewhere; raise the JournalError of a copy that failed."""
        try:
            while True:
                self._wake.clear()
                if self._step():
                    await asyncio.sleep(0)
                elif self._in_flight:
                    await self._wake.wait()
                elif self._error is not None:
                    raise self._error
                elif self._read_all:
                    return
        finally:
            self.chunks.close()

    def _step(self) -> bool:
        """Append copies for a millisecond, or a few as long as reading is owed. False: nothing more to do until one of
        them is answered."""
        began = self.clock()
        owed = self.pace.owed()
        room = min(_IN_FLIGHT_BYTES_MAX, max(_IN_FLIGHT_BYTES, owed))
        read = 0
        try:
            while not self._read_all and self._error is None and self._in_flight_bytes < room:
                read += self._next()
                if self.clock() - began >= (_STEP_S if read >= owed else _STEP_S_MAX):
                    return True
            return False
        finally:
            self.pace.has_read(read)

    def _next(self) -> int:
        """Deal with one record and return the bytes that it took in the segment."""
        record = next(self._records, None)
        if record is None:
            chunk = next(self.chunks, None)
            if chunk is None:
                self._read_all = True
            else:
                self._records = iter(chunk)
            return 0
        kept = self.owner.live(record)
        if kept is not None:
            self._copy(record, kept[0], kept[1])
        return RECORD_HEADER_BYTES + len(record.payload)

    def _copy(self, record: Record, kind: int, parts: tuple[bytes, ...] | bytes) -> None:
        size = len(record.payload)

        def done(error: JournalError | None, segment: int, offset: int) -> None:
            self._in_flight -= 1
            self._in_flight_bytes -= size
            if error is None:
                self.owner.moved(record, segment, offset)
            else:
                self._error = self._error or error
            self._wake.set()

        self._in_flight += 1
        self._in_flight_bytes += size
        self.append(kind, parts, done)
