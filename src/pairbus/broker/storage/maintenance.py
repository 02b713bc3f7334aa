"""Keeps the journal small while the broker runs: compaction, remains of deleted entities, records to write again.

The journal decides when to compact (`compaction_is_due`), and live_records.py decides what is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from pairbus.journal import Journal, JournalError

from .live_records import LiveRecords

_NOTES_MAX: Final = 1000
# Steps of dismantling a deleted entity at once: about a millisecond.
_STEPS: Final = 200


class Maintenance:
    """Runs compaction, takes deleted entities apart and repeats failed writes."""

    def __init__(self, journal: Journal, live_records: LiveRecords, notes: list[str]) -> None:
        self.journal = journal
        self.live_records = live_records
        self.notes = notes
        self._deleted: deque[Iterator[object]] = deque()
        self._unwritten: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        journal.on_garbage = self._wake.set

    def __repr__(self) -> str:
        deleted, unwritten = len(self._deleted), len(self._unwritten)
        return f"<Maintenance: {deleted} entities to take apart, {unwritten} records to write again>"

    async def run(self, interval_s: float = 0.5) -> None:
        """Look every `interval_s` seconds, and whenever the journal says that much has died: time alone would let a
        busy broker run ahead."""
        while True:
            self._wake.clear()
            self.write_again()
            is_busy = self.take_some_apart()
            try:
                while self.journal.compaction_is_due() and await self.journal.compact(self.live_records) is not None:
                    pass
            except JournalError as error:
                self._note(f"compaction will be tried again: {error}")
            if is_busy:
                await asyncio.sleep(0)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._wake.wait()

    def take_apart(self, steps: Iterator[object]) -> None:
        """Release the messages of a deleted entity step by step, since a large one would stop the event loop."""
        self._deleted.append(steps)
        self._wake.set()

    def take_some_apart(self) -> bool:
        """Do one step of that; return False when nothing is left to do."""
        if not self._deleted:
            return False
        steps = self._deleted[0]
        for _ in range(_STEPS):
            if next(steps, self) is self:
                self._deleted.popleft()
                break
        return True

    def retry(self, write: Callable[[], None]) -> None:
        """Call `write` at the next `write_again`: a record that must follow a copy could not be written there."""
        self._unwritten.append(write)

    @property
    def has_unwritten(self) -> bool:
        """Whether there are records that could not be written yet."""
        return bool(self._unwritten)

    def write_again(self) -> None:
        """Try again to write the records that could not be written."""
        unwritten, self._unwritten = self._unwritten, []
        for write in unwritten:
            write()

    def _note(self, text: str) -> None:
        self.notes.append(text)
        del self.notes[:-_NOTES_MAX]
