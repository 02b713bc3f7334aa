from __future__ import annotations

import pytest

from pairbus.broker.sql.tokens import EXPRESSION_CHARS_MAX, SqlSyntaxError, tokenize


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("2.5E-1", 0.25),
        ("'it''s'", "it's"),
        ("''", ""),
        ("''''", "'"),
        ("[a]]b]", "a]b"),
        ('"a""b"', 'a"b'),
        ("größe_2", "GRÖSSE_2"),
        ("@limit", "@limit"),
        ("<>", "<>"),
    ],
)
def test_one_token(text: str, value: object) -> None:
    token, end = tokenize(f"  {text} ")
    assert (token.value, token.column, end.column) == (value, 3, len(text) + 3)
    assert type(token.value) is type(value)


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("a = 'b", 5, "lacks its closing '"),
        ("a = 'b''", 5, "lacks its closing '"),
        ('"a', 1, 'lacks its closing "'),
        ("x = 1 AND [b]]", 11, "lacks its closing ]"),
        ("a ! b", 3, "'!=', or NOT"),
        ("a = @1", 5, "the name of a parameter"),
        ("a = 1 # b", 7, "'#' is no part of the language"),
        ("a = \x00", 5, "the character U+0000"),
        ("_a = 1", 1, "'_' is no part"),
        ("[] = 1", 1, "a name between the delimiters"),
        ("a = 1e999", 5, "a number that a double can hold"),
    ],
)
def test_what_is_no_token_is_named_with_its_column(text: str, column: int, problem: str) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        tokenize(text)
    assert caught.value.column == column
    assert str(caught.value).startswith(f"column {column}: ")
    assert problem in str(caught.value)


def test_length_is_bounded() -> None:
    tokenize("a" * EXPRESSION_CHARS_MAX)
    with pytest.raises(SqlSyntaxError, match="1025 characters; 1024 are allowed"):
        tokenize("a" * (EXPRESSION_CHARS_MAX + 1))
