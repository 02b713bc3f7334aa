from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

import pytest

from pairbus.broker.sql.actions import Action
from pairbus.broker.sql.compiler import compile_filter
from pairbus.broker.sql.parser import parse_action, parse_filter
from pairbus.broker.sql.tokens import SqlSyntaxError
from pairbus.broker.sql.tree import (
    AllOf,
    Among,
    AnyOf,
    Chain,
    Comparison,
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
)

from .message import FakeMessage

A, B, C = (Property(False, name) for name in "abc")
ONE, TWO = Constant(1), Constant(2)
IS_A, IS_B, IS_C = (Comparison("=", each, ONE) for each in (A, B, C))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a = 1", IS_A),
        ("((a) = (1))", IS_A),
        ("a = 1 OR b = 1 AND c = 1", AnyOf((IS_A, AllOf((IS_B, IS_C))))),
        ("(a = 1 OR b = 1) AND c = 1", AllOf((AnyOf((IS_A, IS_B)), IS_C))),
        ("a = 1 and b = 1 And c = 1", AllOf((IS_A, IS_B, IS_C))),
        ("NOT a = 1 AND b = 1", AllOf((Not(IS_A), IS_B))),
        ("NOT (a = 1 AND b = 1)", Not(AllOf((IS_A, IS_B)))),
        ("NOT NOT a = 1", IS_A),
        ("NOT NOT NOT a = 1", Not(IS_A)),
        ("a + 1 * 2 = b", Comparison("=", Chain(A, (("+", Chain(ONE, (("*", TWO),))),)), B)),
        ("a - 1 - 2 = b", Comparison("=", Chain(A, (("-", ONE), ("-", TWO))), B)),
        ("(a - 1) * 2 = b", Comparison("=", Chain(Chain(A, (("-", ONE),)), (("*", TWO),)), B)),
        ("a - -1 = b", Comparison("=", Chain(A, (("-", Signed("-", ONE)),)), B)),
        ("+-a = b", Comparison("=", Signed("+-", A), B)),
        ("a = -9223372036854775808", Comparison("=", A, Constant(-(2**63)))),
        ("a IN (1, b, 2)", Among(A, (ONE, B, TWO), False)),
        ("a NOT IN (1)", Among(A, (ONE,), True)),
        ("a LIKE 'x%'", Like(A, Constant("x%"), None, False)),
        ("a NOT LIKE b ESCAPE c", Like(A, B, C, True)),
        ("a IS NULL", IsNull(A, False)),
        ("property('a') IS NOT NULL", IsNull(Named(Constant("a")), True)),
        ("EXISTS(user.a)", Exists(A)),
        ("EXISTS (sys.Label)", Exists(Property(True, "Label"))),
        ("SYS.label = User.[a b]", Comparison("=", Property(True, "label"), Property(False, "a b"))),
        ("[AND] = \"a\"\"b\"", Comparison("=", Property(False, "AND"), Property(False, 'a"b'))),
        ("newid() = p(a + 'b')", Comparison("=", NewId(), Named(Chain(A, (("+", Constant("b")),))))),
        ("p = property", Comparison("=", Property(False, "p"), Property(False, "property"))),
        ("a = @x AND b = @Y", AllOf((Comparison("=", A, Constant("X")), Comparison("=", B, Constant(5))))),
        ("TRUE = false", Comparison("=", Constant(True), Constant(False))),
        ("a <> NULL", Comparison("<>", A, Constant(None))),
    ],
)  # fmt: skip
def test_filters(text: str, tree: object) -> None:
    assert parse_filter(text, {"@X": "X", "y": 5}) == tree


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SET a = 1", [Set(A, ONE)]),
        ("set a = 1; REMOVE b;", [Set(A, ONE), Remove(B)]),
        ("SET a = 1 SET b = a + 2 REMOVE sys.Label", [
            Set(A, ONE), Set(B, Chain(A, (("+", TWO),))), Remove(Property(True, "Label")),
        ]),
        ("SET [set] = @p", [Set(Property(False, "set"), Constant("x"))]),
    ],
)  # fmt: skip
def test_actions(text: str, statements: list[object]) -> None:
    assert parse_action(text, {"p": "x"}) == statements


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "expected a value"),
        ("colour = ", 9, "expected a value after '='"),
        ("a", 2, "expected a comparison, IN, LIKE or IS after 'a'"),
        ("a = 1 AND", 10, "expected a value after 'AND'"),
        ("a = 1 AND b", 12, "expected a comparison, IN, LIKE or IS after 'b'"),
        ("a = 1 b", 7, "expected an operator, AND, OR or the end after '1', not 'b'"),
        ("a = 1)", 6, "expected an operator, AND, OR or the end after '1', not ')'"),
        ("(a = 1", 7, "expected ')' after '1'"),
        ("a = b = c", 7, "expected an operator, AND, OR or the end after 'b', not '='"),
        ("(a = 1) = b", 7, "expected a value, but what ends here is a condition"),
        ("a + (b = 1) = 2", 11, "expected a value, but what ends here is a condition"),
        ("a == 1", 4, "expected a value after '=', not '='"),
        ("a IN 1", 6, "expected '(' after 'IN', not '1'"),
        ("a IN ()", 7, "expected a value after '(', not ')'"),
        ("a IN (1,", 9, "expected a value after ','"),
        ("a IS 1", 6, "expected NULL or NOT NULL after 'IS', not '1'"),
        ("1 IS NULL", 3, "expected a property before IS"),
        ("a NOT = 1", 7, "expected IN or LIKE after 'NOT', not '='"),
        ("a LIKE 'x' ESCAPE ''", 8, "the escape character of LIKE is one character, not 0"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "the pattern of LIKE ends with its escape character"),
        ("EXISTS(1)", 8, "expected a property after '(', not '1'"),
        ("and = 1", 1, "expected a value, not 'and'"),
        ("order.a = 1", 1, "expected sys or user before '.', not 'order'; a name with a dot is written [a.b]"),
        ("[sys].a = 1", 1, "expected sys or user before '.', not '[sys]'"),
        ("sys. = 1", 6, "expected the name of a property after '.', not '='"),
        ("upper(a) = 1", 1, "no function 'upper'; expected newid, property or p"),
        ("newid(1) = 1", 7, "expected ')' after '(', not '1'"),
        ("a = 9223372036854775808", 5, "expected a whole number of up to 64 bits"),
        ("a = @q", 5, "the parameter @q has no value; given are: @p"),
    ],
)
def test_a_wrong_filter_is_told_where_and_what_was_expected(text: str, column: int, problem: str) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        parse_filter(text, {"@p": 1})
    assert str(caught.value).startswith(f"column {column}: {problem}")


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "expected SET or REMOVE"),
        (";", 1, "expected SET or REMOVE, not ';'"),
        ("SET a", 6, "expected '=' after 'a'"),
        ("SET a = ", 8, "expected a value after '='"),
        ("SET a = (b = 1)", 15, "expected a value, but what ends here is a condition"),
        ("SET a = 1 b = 2", 11, "expected SET or REMOVE after '1', not 'b'"),
        ("SET set = 1", 5, "expected a property after 'SET', not 'set'"),
        ("REMOVE", 7, "expected a property after 'REMOVE'"),
        ("SET a = 1 " * 33, 321, "an action may have 32 expressions"),
    ],
)
def test_a_wrong_action_is_told_where_and_what_was_expected(text: str, column: int, problem: str) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        parse_action(text, {})
    assert str(caught.value).startswith(f"column {column}: {problem}")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1024,
        "(" * 500 + "a = 1" + ")" * 500,
        "p(" * 300 + "a",
        "NOT " * 255,
        "-" * 1020 + "1",
        "a = 1 OR " * 110,
        "a IN (" * 160,
        "a = " + "+1" * 505,
        "[" * 1024,
        "'" * 1023,
    ],
)
def test_deep_and_long_input_takes_neither_stack_nor_time(text: str) -> None:
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(500 + len(_frames()))
    try:
        started = time.process_time()
        try:
            compiled = compile_filter(text, {})
            assert isinstance(compiled, bool) or callable(compiled)
        except SqlSyntaxError:
            pass
        assert time.process_time() - started < 1
    finally:
        sys.setrecursionlimit(depth)


def _frames() -> list[object]:
    frame = sys._getframe()
    frames: list[object] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return frames


@pytest.mark.parametrize(
    "text", ["a = " + "+1" * 500, "NOT " * 250 + "a = 1", "a=1 OR " * 140 + "a=1", "--" * 500 + "a=1"]
)
def test_the_longest_chains_are_evaluated_without_recursion(text: str) -> None:
    compiled = compile_filter(text, {})
    assert callable(compiled)
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(len(_frames()) + 60)
    try:
        assert compiled(FakeMessage({"a": 1})) in (True, False)
    finally:
        sys.setrecursionlimit(depth)


WORDS = [
    *("a", "b", "[x y]", '"q"', "sys.Label", "user.a", "sys", "user", "@p", "@zz", "newid", "property", "p", "é", "漢"),
    *("'text'", "''", "1", "2.5", "1e3", "9223372036854775808", "NULL", "TRUE", "FALSE"),
    *(".", "=", "<>", "!=", "<", ">", "<=", ">=", "+", "-", "*", "/", "%", "(", ")", ",", ";"),
    *("NOT", "AND", "OR", "IN", "LIKE", "ESCAPE", "IS", "EXISTS", "SET", "REMOVE"),
    *("'", '"', "[", "]", "!", "#", "$", "\\", "\t"),
]


def test_ten_thousand_malformed_expressions_give_a_clear_error_and_nothing_else() -> None:
    dice = random.Random(13)
    refused = 0
    while refused < 10_000:
        text = dice.choice(("", " ")).join(dice.choices(WORDS, k=dice.randrange(1, 20)))
        if dice.random() < 0.2:
            text = "".join(chr(dice.choice((dice.randrange(128), dice.randrange(0x2000)))) for _ in range(30))
        make = Action if dice.random() < 0.3 else compile_filter
        error = refusal_of(make, text)
        if error is not None:
            refused += 1
            assert 1 <= error.column <= len(text) + 1, text
            assert str(error).startswith(f"column {error.column}: ")
            assert len(str(error)) < 250


def refusal_of(make: Callable[..., object], text: str) -> SqlSyntaxError | None:
    try:
        make(text, {"p": 1})
    except SqlSyntaxError as error:
        return error
    return None
