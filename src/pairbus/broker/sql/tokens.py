"""Splits the text of a filter or an action into tokens, and reports where in it an error is. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

EXPRESSION_CHARS_MAX: Final = 1024
_SHOWN_CHARS_MAX: Final = 40

NAME: Final = "name"
DELIMITED: Final = "delimited"
NUMBER: Final = "number"
TEXT: Final = "text"
PARAMETER: Final = "parameter"
SYMBOL: Final = "symbol"
END: Final = "end"

# No alternative can match the same characters in two ways, so that nothing is tried twice.
_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<text>'[^']*(?:''[^']*)*'(?!'))
    | (?P<bracketed>\[[^\]]*(?:\]\][^\]]*)*\](?!\]))
    | (?P<quoted>"[^"]*(?:""[^"]*)*"(?!"))
    | (?P<parameter>@[^\W\d_]\w*)
    | (?P<name>[^\W\d_]\w*)
    | (?P<symbol><>|!=|>=|<=|[=<>+\-*/%(),.;])
    )""",
    re.VERBOSE,
)
_UNCLOSED: Final = {"'": "the text that begins here lacks its closing '",
                    '"': 'the name that begins here lacks its closing "',
                    "[": "the name that begins here lacks its closing ]"}  # fmt: skip


class SqlSyntaxError(ValueError):
    """A filter or an action can't be read. `column` counts characters from 1."""

    def __init__(self, column: int, problem: str) -> None:
        super().__init__(f"column {column}: {problem}")
        self.column = column


class Token(NamedTuple):
    """`text` is as it was written, `value` what it stands for."""

    kind: str
    text: str
    value: Any
    column: int

    @property
    def shown(self) -> str:
        text = self.text
        return f"'{text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 1] + '…'}'"


def tokenize(text: str) -> list[Token]:
    """Return the tokens, the last of them the end. Raise SqlSyntaxError for what is none."""
    if len(text) > EXPRESSION_CHARS_MAX:
        problem = f"the expression has {len(text)} characters; {EXPRESSION_CHARS_MAX} are allowed"
        raise SqlSyntaxError(EXPRESSION_CHARS_MAX + 1, problem)
    tokens: list[Token] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise _no_token(text, at)
        tokens.append(_token(found.lastgroup, found.group(found.lastgroup), found.start(found.lastgroup) + 1))
        at = found.end()
    tokens.append(Token(END, "", None, end + 1))
    return tokens


def _token(group: str, text: str, column: int) -> Token:
    match group:
        case "number":
            return Token(NUMBER, text, _number(text, column), column)
        case "text":
            return Token(TEXT, text, text[1:-1].replace("''", "'"), column)
        case "bracketed":
            return Token(DELIMITED, text, _name(text[1:-1].replace("]]", "]"), column), column)
        case "quoted":
            return Token(DELIMITED, text, _name(text[1:-1].replace('""', '"'), column), column)
        case "name":
            return Token(NAME, text, text.upper(), column)
    return Token(group, text, text, column)


def _number(text: str, column: int) -> int | float:
    if text.isdecimal():
        return int(text)
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise SqlSyntaxError(column, "expected a number that a double can hold")
    return value


def _name(name: str, column: int) -> str:
    if not name:
        raise SqlSyntaxError(column, "expected a name between the delimiters")
    return name


def _no_token(text: str, at: int) -> SqlSyntaxError:
    at += len(text[at:]) - len(text[at:].lstrip())
    found = text[at]
    problem = _UNCLOSED.get(found)
    if problem is None:
        what = f"'{found}'" if found.isprintable() else f"the character U+{ord(found):04X}"
        problem = f"{what} is no part of the language; a name with other characters is written [so]"
        if found == "@":
            problem = "expected the name of a parameter after '@'"
        elif found == "!":
            problem = "expected '!=', or NOT for a negation"
    return SqlSyntaxError(at + 1, problem)
