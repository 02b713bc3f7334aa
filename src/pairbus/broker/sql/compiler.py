"""Compiles a filter into a function of a message, once, when the rule is created. Pure.

A condition is true, false or unknown (None), and AND, OR and NOT follow Kleene's logic: only a true condition matches.
Parts that depend on no message are evaluated here. AND and OR stop at the first part that decides, so a part behind it
can't fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast
from uuid import UUID

from .arithmetic import COMPARERS, calculate, compare, signed
from .kinds import TEXT, EvaluationError, kind_of
from .like import Matcher, like
from .parser import parse_filter
from .system_properties import SYSTEM_PROPERTIES
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
    Signed,
    Value,
)


class Scope(Protocol):
    """The interface of a message for expressions."""

    def user(self, name: str) -> Any:
        """Return the value of an application property, its name in lower case; None where there is none."""

    def has_user(self, name: str) -> bool: ...

    def system(self, name: str) -> Any:
        """Return the value of a system property by its name in SYSTEM_PROPERTIES; None where it is not set."""

    def new_id(self) -> UUID: ...


Run: TypeAlias = Callable[[Scope], Any]
Predicate: TypeAlias = Callable[[Scope], bool | None]


class _Compiled(NamedTuple):
    run: Run
    is_constant: bool = False


def compile_filter(text: str, parameters: Mapping[str, Any]) -> Predicate | bool:
    """Return what tells whether a message matches, or the answer for all messages. Raise SqlSyntaxError.

    The function raises EvaluationError for a message for which it can't tell.
    """
    compiled = compile_part(parse_filter(text, parameters))
    return bool(compiled.run(_NOBODY)) if compiled.is_constant else compiled.run


#: Stands for the message where none is asked.
_NOBODY: Final = cast("Scope", None)


def compile_part(part: Value | Condition) -> _Compiled:
    """Return a part of an expression as a function."""
    compiled: _Compiled = _COMPILERS[type(part)](part)
    if not compiled.is_constant or isinstance(part, Constant):
        return compiled
    try:
        return _constant(compiled.run(_NOBODY))
    except EvaluationError:
        return _Compiled(compiled.run)


def _constant(value: Any) -> _Compiled:
    return _Compiled(lambda scope: value, True)


def _runs(*parts: Value | Condition) -> tuple[list[Run], bool]:
    compiled = [compile_part(part) for part in parts]
    return [each.run for each in compiled], all(each.is_constant for each in compiled)


# ---- values


def _property(part: Property) -> _Compiled:
    if not part.is_system:
        name = part.name.lower()
        return _Compiled(lambda scope: scope.user(name))
    known = SYSTEM_PROPERTIES.get(part.name.lower())
    return _Compiled(_missing(part.name) if known is None else lambda scope: scope.system(known))


def _missing(name: str) -> Run:
    def run(scope: Scope) -> Any:
        raise EvaluationError(f"messages have no system property '{name}'")

    return run


def _named(part: Named) -> _Compiled:
    (run_name,), _ = _runs(part.name)

    def run(scope: Scope) -> Any:
        name = run_name(scope)
        if name is None:
            return None
        if kind_of(name) != TEXT:
            raise EvaluationError(f"the name of a property is text, not {kind_of(name)}")
        return _property(named_property(name)).run(scope)

    return _Compiled(run)


def named_property(name: str) -> Property:
    """Return the property that a name means, with its scope before it or none."""
    scope, dot, rest = name.partition(".")
    if dot and scope.lower() in ("sys", "user"):
        return Property(scope.lower() == "sys", rest)
    return Property(False, name)


def _signed(part: Signed) -> _Compiled:
    (operand,), is_constant = _runs(part.operand)
    signs = part.signs
    return _Compiled(lambda scope: signed(signs, operand(scope)), is_constant)


def _chain(part: Chain) -> _Compiled:
    (first, *operands), is_constant = _runs(part.first, *(operand for _, operand in part.rest))
    steps = [(symbol, operand) for (symbol, _), operand in zip(part.rest, operands, strict=True)]

    def run(scope: Scope) -> Any:
        value = first(scope)
        for symbol, operand in steps:
            value = calculate(symbol, value, operand(scope))
        return value

    return _Compiled(run, is_constant)


# ---- conditions


def _comparison(part: Comparison) -> _Compiled:
    (left, right), is_constant = _runs(part.left, part.right)
    holds = COMPARERS[part.operator]
    if isinstance(part.left, Property) and isinstance(part.right, Constant) and not part.left.is_system:
        # What most filters are made of, without a call for each half.
        name, wanted = part.left.name.lower(), part.right.value
        return _Compiled(lambda scope: compare(holds, scope.user(name), wanted))
    return _Compiled(lambda scope: compare(holds, left(scope), right(scope)), is_constant)


def _among(part: Among) -> _Compiled:
    (left, *items), is_constant = _runs(part.left, *part.items)
    equals = COMPARERS["="]
    found, not_found = (False, True) if part.is_negated else (True, False)

    def run(scope: Scope) -> bool | None:
        value = left(scope)
        if value is None:
            return None
        answer: bool | None = not_found
        for item in items:
            is_equal = compare(equals, value, item(scope))
            if is_equal:
                return found
            if is_equal is None:
                answer = None
        return answer

    return _Compiled(run, is_constant)


_matcher = lru_cache(maxsize=1024)(like)


def _like(part: Like) -> _Compiled:
    said = (part.pattern,) if part.escape is None else (part.pattern, part.escape)
    (left, *patterns), is_constant = _runs(part.left, *said)
    constants = [each.value for each in said if isinstance(each, Constant) and isinstance(each.value, str)]
    known: Matcher | None = like(*constants) if len(constants) == len(said) else None
    wanted = not part.is_negated

    def run(scope: Scope) -> bool | None:
        text = left(scope)
        if known is not None:
            return None if not isinstance(text, str) else known(text) is wanted
        pattern = [each(scope) for each in patterns]
        if not isinstance(text, str) or not all(isinstance(each, str) for each in pattern):
            return None
        return _matcher(*pattern)(text) is wanted

    return _Compiled(run, is_constant)


def _is_null(part: IsNull) -> _Compiled:
    (value,), _ = _runs(part.property)
    is_negated = part.is_negated
    return _Compiled(lambda scope: (value(scope) is None) is not is_negated)


def _exists(part: Exists) -> _Compiled:
    asked = part.property
    if not asked.is_system:
        name = asked.name.lower()
        return _Compiled(lambda scope: scope.has_user(name))
    known = SYSTEM_PROPERTIES.get(asked.name.lower())
    return _constant(False) if known is None else _Compiled(lambda scope: scope.system(known) is not None)


def _not(part: Not) -> _Compiled:
    (operand,), is_constant = _runs(part.operand)

    def run(scope: Scope) -> bool | None:
        value: bool | None = operand(scope)
        return None if value is None else not value

    return _Compiled(run, is_constant)


def _joined(part: AllOf | AnyOf) -> _Compiled:
    runs, is_constant = _runs(*part.parts)
    decides = isinstance(part, AnyOf)

    def run(scope: Scope) -> bool | None:
        answer: bool | None = not decides
        for each in runs:
            value: bool | None = each(scope)
            if value is decides:
                return decides
            if value is None:
                answer = None
        return answer

    return _Compiled(run, is_constant)


_COMPILERS: Final[Mapping[type, Callable[[Any], _Compiled]]] = {
    Constant: lambda part: _constant(part.value),
    Property: _property,
    Named: _named,
    NewId: lambda part: _Compiled(lambda scope: scope.new_id()),
    Signed: _signed,
    Chain: _chain,
    Comparison: _comparison,
    Among: _among,
    Like: _like,
    IsNull: _is_null,
    Exists: _exists,
    Not: _not,
    AllOf: _joined,
    AnyOf: _joined,
}
