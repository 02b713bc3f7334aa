"""Matches text with LIKE's patterns: `%` is any text, `_` any character. Pure.

A pattern is split at each `%`; its pieces are searched from left to right, each at the first place after the one
before, so nothing is tried twice. If a piece has a `_`, the places in a long text where it may match are the bits of a
number, and each character of the piece clears some of them: trying the places one by one would take the length of the
text times that of the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from .kinds import EvaluationError

PATTERN_CHARS_MAX: Final = 1024
# Pieces with a `_` that are looked for a place at a time, and places that are tried so when only these are left.
_SHORT_MAX: Final = 16
_PLACES_MAX: Final = 64

Matcher = Callable[[str], bool]
Piece = list[str | None]
#: Text, where to begin, and the known places of characters in the text → where a piece ends; -1: it isn't there
_Finder = Callable[[str, int, dict[str, int]], int]


def like(pattern: str, escape: str | None = None) -> Matcher:
    """Return what tells whether a text matches. Raise EvaluationError for what is no pattern."""
    if len(pattern) > PATTERN_CHARS_MAX:
        text = f"the pattern of LIKE has {len(pattern)} characters; {PATTERN_CHARS_MAX} are allowed"
        raise EvaluationError(text)
    if escape is not None and len(escape) != 1:
        raise EvaluationError(f"the escape character of LIKE is one character, not {len(escape)}")
    first, *rest = _pieces(pattern, escape)
    if not rest:
        whole = re.compile(_expression(first), re.DOTALL)
        return lambda text: whole.fullmatch(text) is not None
    head = re.compile(_expression(first), re.DOTALL)
    middle = [_finder(piece) for piece in rest[:-1] if piece]
    last = rest[-1]
    tail = re.compile(_expression(last), re.DOTALL)

    def matches(text: str) -> bool:
        found = head.match(text)
        if found is None:
            return False
        at = found.end()
        places: dict[str, int] = {}
        for find in middle:
            at = find(text, at, places)
            if at < 0:
                return False
        if len(text) - len(last) < at:
            return False
        return tail.fullmatch(text, len(text) - len(last)) is not None

    return matches


def _pieces(pattern: str, escape: str | None) -> list[Piece]:
    """Return the characters between the `%`, None for any character."""
    pieces: list[Piece] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise EvaluationError("the pattern of LIKE ends with its escape character")
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return pieces


def _finder(piece: Piece) -> _Finder:
    length = len(piece)
    expression = re.compile(_expression(piece), re.DOTALL)
    fixed = [(offset, character) for offset, character in enumerate(piece) if character is not None]

    def find(text: str, start: int, places: dict[str, int]) -> int:
        if length <= _SHORT_MAX or len(fixed) in (0, length):
            found = expression.search(text, start)
            return -1 if found is None else found.end()
        left = (1 << max(0, len(text) - length - start + 1)) - 1 << start
        for offset, character in fixed:
            if character not in places:
                places[character] = _places(text, character)
            left &= places[character] >> offset
            if left.bit_count() <= _PLACES_MAX:
                break
        while left:
            first = left & -left
            if expression.match(text, first.bit_length() - 1) is not None:
                return first.bit_length() - 1 + length
            left ^= first
        return -1

    return find


def _places(text: str, character: str) -> int:
    """Return a number with a bit for each place at which a character stands."""
    digits = bytearray(b"0") * len(text)
    at = text.find(character)
    while at >= 0:
        digits[-1 - at] = 49
        at = text.find(character, at + 1)
    return int(digits, 2)


def _expression(piece: Piece) -> str:
    return "".join("." if each is None else re.escape(each) for each in piece)
