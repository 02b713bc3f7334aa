"""Parses filters and actions: recursive descent, one method for each precedence. Pure.

    filter     condition                      action   (SET property = value | REMOVE property) [;] …
    condition  OR ← AND ← NOT ← comparison, IN, LIKE, IS NULL, EXISTS ← ( condition )
    value      + - ← * / % ← signs ← constant, property, @parameter, function, ( value )

Each method parses operators that bind at least as tightly as its name says. Parentheses may contain a value or a
condition, which is only known inside them, so the methods return either, and the caller checks for the one that it
needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .kinds import EvaluationError
from .like import like
from .tokens import DELIMITED, END, NAME, NUMBER, PARAMETER, SYMBOL, TEXT, SqlSyntaxError, Token, tokenize
from .tree import (
    AllOf,
    Among,
    AnyOf,
    Chain,
    Comparison,
    Condition,
    Constant,
    Exists,
    IsNull,
    Like,
    Named,
    NewId,
    Not,
    Property,
    Remove,
    Set,
    Signed,
    Statement,
    Value,
)

DEPTH_MAX: Final = 32
STATEMENTS_MAX: Final = 32

_COMPARISONS: Final = frozenset(("=", "<>", "!=", ">", ">=", "<", "<="))
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_RESERVED: Final = frozenset((*_CONSTANTS, "AND", "OR", "NOT", "IS", "IN", "LIKE", "ESCAPE", "EXISTS"))
_STATEMENTS: Final = frozenset(("SET", "REMOVE"))
_SCOPES: Final = {"SYS": True, "USER": False}
_LONG_MAX: Final = (1 << 63) - 1


def parse_filter(text: str, parameters: Mapping[str, Any]) -> Condition:
    """Return the condition that a filter is. Raise SqlSyntaxError."""
    parser = _Parser(text, parameters, _RESERVED)
    condition = parser.condition(parser.either())
    parser.end()
    return condition


def parse_action(text: str, parameters: Mapping[str, Any]) -> list[Statement]:
    """Return the statements of an action. Raise SqlSyntaxError."""
    return _Parser(text, parameters, _RESERVED | _STATEMENTS).statements()


class _Parser:
    def __init__(self, text: str, parameters: Mapping[str, Any], reserved: frozenset[str]) -> None:
        self._tokens = tokenize(text)
        self._at = 0
        self._depth = 0
        self._reserved = reserved
        self._parameters = {name.removeprefix("@").lower(): value for name, value in parameters.items()}

    # ---- tokens

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _takes(self, *symbols: str) -> str | None:
        """Take one of these symbols if it is next."""
        token = self._token
        if token.kind == SYMBOL and token.text in symbols:
            self._at += 1
            return token.text
        return None

    def _takes_word(self, *words: str) -> str | None:
        token = self._token
        if token.kind == NAME and token.value in words:
            self._at += 1
            return str(token.value)
        return None

    def _need(self, symbol: str) -> None:
        if self._takes(symbol) is None:
            raise self._expected(f"'{symbol}'")

    def _expected(self, what: str) -> SqlSyntaxError:
        token = self._token
        after = f" after {self._tokens[self._at - 1].shown}" if self._at else ""
        instead = "" if token.kind == END else f", not {token.shown}"
        return SqlSyntaxError(token.column, f"expected {what}{after}{instead}")

    def end(self) -> None:
        if self._token.kind != END:
            raise self._expected("an operator, AND, OR or the end")

    # ---- conditions

    def either(self) -> Value | Condition:
        """Read all that OR joins."""
        return self._joined("OR", self._every, AnyOf)

    def _every(self) -> Value | Condition:
        return self._joined("AND", self._negated, AllOf)

    def _joined(self, word: str, read: Any, join: type[AllOf] | type[AnyOf]) -> Value | Condition:
        first: Value | Condition = read()
        if self._token.value != word or self._token.kind != NAME:
            return first
        parts = [self.condition(first)]
        while self._takes_word(word):
            parts.append(self.condition(read()))
        return join(tuple(parts))

    def _negated(self) -> Value | Condition:
        negations = 0
        while self._takes_word("NOT"):
            negations += 1
        part = self._comparison()
        if not negations:
            return part
        condition = self.condition(part)
        return Not(condition) if negations % 2 else condition

    def _comparison(self) -> Value | Condition:
        if self._takes_word("EXISTS"):
            self._need("(")
            asked = self._property()
            self._need(")")
            return Exists(asked)
        left = self._sum()
        token = self._token
        if token.kind == SYMBOL and token.text in _COMPARISONS:
            first = self._value(left)
            self._take()
            return Comparison(token.text, first, self.value())
        if self._takes_word("IS"):
            is_negated = self._takes_word("NOT") is not None
            if self._takes_word("NULL") is None:
                raise self._expected("NULL" if is_negated else "NULL or NOT NULL")
            if not isinstance(left, Property | Named):
                raise SqlSyntaxError(token.column, "expected a property before IS")
            return IsNull(left, is_negated)
        is_negated = self._takes_word("NOT") is not None
        word = self._takes_word("IN", "LIKE")
        if word is None:
            if is_negated:
                raise self._expected("IN or LIKE")
            return left
        value = self._value(left)
        return self._among(value, is_negated) if word == "IN" else self._like(value, is_negated)

    def _among(self, left: Value, is_negated: bool) -> Among:
        self._need("(")
        items = [self.value()]
        while self._takes(","):
            items.append(self.value())
        self._need(")")
        return Among(left, tuple(items), is_negated)

    def _like(self, left: Value, is_negated: bool) -> Like:
        column = self._token.column
        pattern = self.value()
        escape = self.value() if self._takes_word("ESCAPE") else None
        said = [each.value for each in (pattern, escape) if isinstance(each, Constant) and isinstance(each.value, str)]
        if len(said) == 1 + (escape is not None):
            try:
                like(*said)
            except EvaluationError as error:
                raise SqlSyntaxError(column, str(error)) from None
        return Like(left, pattern, escape, is_negated)

    def condition(self, part: Value | Condition) -> Condition:
        if isinstance(part, Condition):
            return part
        raise self._expected("a comparison, IN, LIKE or IS")

    def _value(self, part: Value | Condition) -> Value:
        if isinstance(part, Condition):
            column = self._tokens[self._at - 1].column
            raise SqlSyntaxError(column, "expected a value, but what ends here is a condition")
        return part

    # ---- values

    def value(self) -> Value:
        return self._value(self._sum())

    def _sum(self) -> Value | Condition:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Value | Condition:
        return self._chain(self._signed, "*", "/", "%")

    def _chain(self, read: Any, *operators: str) -> Value | Condition:
        first: Value | Condition = read()
        rest: list[tuple[str, Value]] = []
        while operator := self._takes(*operators):
            if not rest:
                self._value(first)
            rest.append((operator, self._value(read())))
        return Chain(self._value(first), tuple(rest)) if rest else first

    def _signed(self) -> Value | Condition:
        signs = ""
        while sign := self._takes("+", "-"):
            signs += sign
        if signs.endswith("-") and self._token.kind == NUMBER and self._token.value == _LONG_MAX + 1:
            # The lowest number there is, which has no positive one.
            self._take()
            signs = signs[:-1]
            part: Value | Condition = Constant(-_LONG_MAX - 1)
        else:
            part = self._primary()
        return Signed(signs, self._value(part)) if signs else part

    def _primary(self) -> Value | Condition:
        token = self._token
        if token.kind == NUMBER:
            self._take()
            if isinstance(token.value, int) and token.value > _LONG_MAX:
                raise SqlSyntaxError(token.column, "expected a whole number of up to 64 bits")
            return Constant(token.value)
        if token.kind == TEXT:
            return Constant(self._take().value)
        if token.kind == PARAMETER:
            return self._parameter(self._take())
        if token.kind == NAME and token.value in _CONSTANTS:
            return Constant(_CONSTANTS[self._take().value])
        if self._takes("("):
            return self._nested()
        if token.kind == NAME and self._tokens[self._at + 1].text == "(" and token.value not in self._reserved:
            return self._function(self._take())
        return self._property("a value")

    def _nested(self) -> Value | Condition:
        self._deeper()
        part = self.either()
        self._need(")")
        self._depth -= 1
        return part

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SqlSyntaxError(self._token.column, f"more than {DEPTH_MAX} parentheses are open here")

    def _parameter(self, token: Token) -> Constant:
        try:
            return Constant(self._parameters[token.text[1:].lower()])
        except KeyError:
            given = ", ".join(f"@{name}" for name in self._parameters)
            problem = f"the parameter {token.text} has no value; given are: {given or 'none'}"
            raise SqlSyntaxError(token.column, problem) from None

    def _function(self, token: Token) -> Value:
        self._need("(")
        if token.value == "NEWID":
            self._need(")")
            return NewId()
        if token.value not in ("PROPERTY", "P"):
            raise SqlSyntaxError(token.column, f"no function {token.shown}; expected newid, property or p")
        self._deeper()
        name = self.value()
        self._need(")")
        self._depth -= 1
        return Named(name)

    def _property(self, what: str = "a property") -> Property:
        name = self._name(what)
        if self._takes(".") is None:
            return Property(False, name)
        scope = self._tokens[self._at - 2]
        if scope.kind != NAME or scope.value not in _SCOPES:
            problem = f"expected sys or user before '.', not {scope.shown}; a name with a dot is written [a.b]"
            raise SqlSyntaxError(scope.column, problem)
        return Property(_SCOPES[scope.value], self._name("the name of a property"))

    def _name(self, what: str) -> str:
        token = self._token
        if token.kind == DELIMITED:
            return str(self._take().value)
        if token.kind != NAME or token.value in self._reserved:
            raise self._expected(what)
        return self._take().text

    # ---- statements

    def statements(self) -> list[Statement]:
        found: list[Statement] = []
        while self._token.kind != END or not found:
            if len(found) == STATEMENTS_MAX:
                raise SqlSyntaxError(self._token.column, f"an action may have {STATEMENTS_MAX} expressions")
            match self._takes_word("SET", "REMOVE"):
                case "SET":
                    target = self._property()
                    self._need("=")
                    found.append(Set(target, self.value()))
                case "REMOVE":
                    found.append(Remove(self._property()))
                case _:
                    raise self._expected("SET or REMOVE")
            self._takes(";")
        return found
