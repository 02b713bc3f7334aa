"""Maps the old places of lazy records to the new ones when they are written again after a failed sync.

Pure. The owner keeps using the old place, also inside payloads; the journal translates it. Entries are kept until the
segment with the second copy is compacted away.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import NamedTuple


class _Move(NamedTuple):
    offset: int
    size: int
    now_segment: int
    now_offset: int


class Relocations:
    __slots__ = ("_known_as", "_moves")

    def __init__(self) -> None:
        self._moves: dict[int, list[_Move]] = {}  # by the segment that the owner knows, in order of offset
        self._known_as: dict[tuple[int, int], tuple[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._known_as)

    def add(self, segment: int, offset: int, size: int, now_segment: int, now_offset: int) -> None:
        moves = self._moves.setdefault(segment, [])
        at = bisect_right(moves, offset, key=lambda move: move.offset) - 1
        if at >= 0 and moves[at].offset == offset:
            self._known_as.pop((moves[at].now_segment, moves[at].now_offset), None)
            del moves[at]
        insort(moves, _Move(offset, size, now_segment, now_offset), key=lambda move: move.offset)
        self._known_as[now_segment, now_offset] = (segment, offset)

    def now(self, segment: int, offset: int) -> tuple[int, int]:
        """Return where the byte is that its owner knows as segment:offset."""
        moves = self._moves.get(segment)
        if moves:
            at = bisect_right(moves, offset, key=lambda move: move.offset) - 1
            if at >= 0 and offset < moves[at].offset + max(1, moves[at].size):
                return moves[at].now_segment, moves[at].now_offset + offset - moves[at].offset
        return segment, offset

    def known_as(self, segment: int, offset: int) -> tuple[int, int]:
        """Return the place that the owner knows of a payload that starts at segment:offset."""
        return self._known_as.get((segment, offset), (segment, offset))

    def concern(self, segment: int) -> bool:
        """Return whether a record was written again in this segment, or was first told to be in it."""
        return segment in self._moves or any(place[0] == segment for place in self._known_as)

    def forget(self, segment: int) -> None:
        """Forget a segment that is deleted: what lived in it has another place."""
        for place in [place for place in self._known_as if place[0] == segment]:
            told, offset = self._known_as.pop(place)
            left = [move for move in self._moves[told] if move.offset != offset]
            if left:
                self._moves[told] = left
            else:
                del self._moves[told]
