from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.sql.kinds import EvaluationError
from pairbus.broker.sql.like import like


@pytest.mark.parametrize(
    ("pattern", "escape", "yes", "no"),
    [
        ("", None, [""], ["a"]),
        ("%", None, ["", "a", "a\nb"], []),
        ("_", None, ["a", "%", "\n"], ["", "ab"]),
        ("a%", None, ["a", "abc"], ["ba", "A"]),
        ("%a", None, ["a", "cba"], ["ab"]),
        ("%a%", None, ["a", "bab"], ["b"]),
        ("a%a", None, ["aa", "aba"], ["a", "ab"]),
        ("a_c", None, ["abc"], ["ac", "abbc"]),
        ("%_b_%", None, ["abc", "xxabcxx"], ["bc", "ab"]),
        ("%ab%ab%", None, ["abab", "xabxabx"], ["ab", "aba"]),
        ("10!%", "!", ["10%"], ["10", "100"]),
        ("!_!!!%", "!", ["_!%"], ["a!%"]),
        ("a.b[c]*", None, ["a.b[c]*"], ["axb[c]*", "a.bc"]),
        ("%%%", None, ["", "a"], []),
    ],
)
def test_patterns(pattern: str, escape: str | None, yes: list[str], no: list[str]) -> None:
    matches = like(pattern, escape)
    assert [text for text in yes if not matches(text)] == []
    assert [text for text in no if matches(text)] == []


@pytest.mark.parametrize(("short", "places"), [(16, 64), (0, 1), (0, 0)])
@given(st.text("ab%_!", max_size=8), st.text("ab%_!", max_size=10), st.sampled_from([None, "!"]))
def test_as_the_definition_says(short: int, places: int, pattern: str, text: str, escape: str | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pairbus.broker.sql.like._SHORT_MAX", short)
        patch.setattr("pairbus.broker.sql.like._PLACES_MAX", places)
        check_against_the_definition(pattern, text, escape)


def check_against_the_definition(pattern: str, text: str, escape: str | None) -> None:
    @cache
    def defined(p: int, t: int) -> bool:
        if p == len(pattern):
            return t == len(text)
        if pattern[p] == escape:
            if p + 1 == len(pattern):
                raise EvaluationError
            return t < len(text) and pattern[p + 1] == text[t] and defined(p + 2, t + 1)
        if pattern[p] == "%":
            return defined(p + 1, t) or (t < len(text) and defined(p, t + 1))
        return t < len(text) and pattern[p] in ("_", text[t]) and defined(p + 1, t + 1)

    dangling = escape is not None and (len(pattern) - len(pattern.rstrip("!"))) % 2
    if dangling:
        with pytest.raises(EvaluationError):
            like(pattern, escape)
        return
    assert like(pattern, escape)(text) is defined(0, 0)


@pytest.mark.parametrize("pattern", ["%a" * 511 + "b", "%" + "_a" * 510 + "b", "%a_" * 340 + "b", "%_" * 512])
def test_no_pattern_takes_long(pattern: str) -> None:
    started = time.process_time()
    like(pattern)("a" * 32768)
    assert time.process_time() - started < 2


def test_a_long_piece_with_any_character_in_it_is_not_tried_place_by_place() -> None:
    started = time.process_time()
    assert not like("%_" + "a" * 1000 + "b%")("a" * 2_000_000)
    assert time.process_time() - started < 2
