"""The journal's settings and their bounds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pairbus.journal.record import SEGMENT_BYTES_MAX

STALL_S_MIN, STALL_S_MAX = 0.05, 600.0
Durability = Literal["strict", "default", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`durability` says what a power cut may take; a killed process loses nothing in any mode.

    strict   nothing that was answered
    default  answers to lazy records (settlements) of the last `lazy_sync_s`
    none     answers to any record since the last segment change, compaction or clean stop
    """

    segment_bytes: int = 64 * 1024 * 1024
    durability: Durability = "default"
    lazy_sync_s: float = 0.1
    reserve_bytes: int = 16 * 1024 * 1024
    pending_bytes_max: int = 256 * 1024 * 1024
    # How far ahead a segment's file is allocated: 25 to 35 % off each fdatasync on ext4, which then rarely has to
    # commit a new file size, and a full disk shows before a write fails. 0 turns it off.
    allocate_bytes: int = 1024 * 1024
    # After how many seconds a file operation that does not return counts as a stall of its folder.
    stall_s: float = 5.0
    # Start although synced records are damaged: they are skipped, and the notes say what was lost.
    salvage: bool = False

    def __post_init__(self) -> None:
        if self.durability not in ("strict", "default", "none"):
            raise ValueError(f"durability {self.durability!r}: one of strict, default, none")
        if not 1024 <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(f"segment_bytes {self.segment_bytes}: between 1024 and {SEGMENT_BYTES_MAX}")
        if not 0 < self.lazy_sync_s <= 60:
            raise ValueError(f"lazy_sync_s {self.lazy_sync_s}: above 0, at most 60")
        if not STALL_S_MIN <= self.stall_s <= STALL_S_MAX:
            raise ValueError(f"stall_s {self.stall_s}: between {STALL_S_MIN:g} and {STALL_S_MAX:g}")
        for name in ("reserve_bytes", "pending_bytes_max", "allocate_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)}: not negative")
        if self.reserve_bytes > self.segment_bytes:
            raise ValueError(f"reserve_bytes {self.reserve_bytes}: at most segment_bytes {self.segment_bytes}")
