"""Matches text with LIKE's patterns: `%` is any text, `_` any character. Pure.

A pattern is cut at each `%`; its pieces are looked for from left to right, each at the first place that is left, so
nothing is tried twice: the time is bounded by the length of the text times that of the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from .kinds import EvaluationError

PATTERN_CHARS_MAX: Final = 1024

Matcher = Callable[[str], bool]
Piece = list[str | None]


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
    middle = [re.compile(_expression(piece), re.DOTALL) for piece in rest[:-1] if piece]
    last = rest[-1]
    tail = re.compile(_expression(last), re.DOTALL)

    def matches(text: str) -> bool:
        found = head.match(text)
        for piece in middle:
            if found is None:
                return False
            found = piece.search(text, found.end())
        if found is None or len(text) - len(last) < found.end():
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


def _expression(piece: Piece) -> str:
    return "".join("." if each is None else re.escape(each) for each in piece)
