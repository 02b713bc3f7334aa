"""An append-only journal with group commit, for everything that must survive. Imports nothing else of pairbus."""

from pairbus.journal.compaction import Owner
from pairbus.journal.errors import (
    FormatError,
    JournalBusy,
    JournalClosed,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalFull,
    JournalLocked,
    JournalStalled,
    RecordTooLarge,
)
from pairbus.journal.files import Files, RealFiles
from pairbus.journal.journal import Journal, SegmentInfo
from pairbus.journal.options import Options
from pairbus.journal.record import Record

__all__ = [
    "Files",
    "FormatError",
    "Journal",
    "JournalBusy",
    "JournalClosed",
    "JournalCorrupt",
    "JournalError",
    "JournalFailed",
    "JournalFull",
    "JournalLocked",
    "JournalStalled",
    "Options",
    "Owner",
    "RealFiles",
    "Record",
    "RecordTooLarge",
    "SegmentInfo",
]
