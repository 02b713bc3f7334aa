from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.types import Int, Symbol, Timestamp
from pairbus.broker.sql.compiler import compile_filter
from pairbus.broker.sql.kinds import EvaluationError

from .message import evaluate

MESSAGE = {
    "color": "red",
    "Größe": "x",
    "empty": "",
    "nothing": None,
    "amount": Int(5),
    "big": 5_000_000_000,
    "price": 9.5,
    "yes": True,
    "symbol": Symbol("red"),
    "dot.ted": "d",
    "which": "color",
    "at": Timestamp(1000),
    "pattern": "r_d",
}
SYSTEM = {"Label": "news", "MessageId": "m1"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("color = 'red'", True),
        ("COLOR = 'red'", True),
        ("[Color] = 'red'", True),
        ("user.color = 'red'", True),
        ("color = 'Red'", False),
        ("color <> 'Red'", True),
        ("color > 'blue'", True),
        ("color < 'blue'", False),
        ("größe = 'x'", True),
        ("empty = ''", True),
        ("symbol = color", True),
        ("amount = 5", True),
        ("amount = 5.0", True),
        ("amount >= 5 AND amount <= 5", True),
        ("amount != 5", False),
        ("big > amount", True),
        ("price * 2 = 19", True),
        ("yes = TRUE", True),
        ("yes <> FALSE", True),
        ("yes > FALSE", None),
        ("yes = 1", False),
        # text and numbers: never equal, in no order, no error
        ("color = 5", False),
        ("color <> 5", True),
        ("color < 5", None),
        ("amount = '5'", False),
        ("NOT amount = '5'", True),
        ("NOT amount < '5'", None),
        ("at = 1000", False),
        # missing and null
        ("missing = 1", None),
        ("missing <> 1", None),
        ("NOT missing = 1", None),
        ("nothing = 1", None),
        ("missing = NULL", None),
        ("NULL = NULL", False),
        ("missing + 1 = 1", None),
        ("-missing = 1", None),
        ("missing LIKE '%'", None),
        ("color LIKE missing", None),
        ("color LIKE 'r%' ESCAPE missing", None),
        ("missing IN (1, 2)", None),
        ("missing NOT IN (1, 2)", None),
        ("missing IS NULL", True),
        ("nothing IS NULL", True),
        ("color IS NULL", False),
        ("color IS NOT NULL", True),
        ("missing IS NOT NULL", False),
        ("EXISTS(color)", True),
        ("EXISTS(nothing)", True),
        ("EXISTS(missing)", False),
        ("NOT EXISTS(missing)", True),
        ("color IN ('blue', 'red')", True),
        ("color NOT IN ('blue', 'red')", False),
        ("color IN ('blue', missing)", None),
        ("color NOT IN ('blue', missing)", None),
        ("color IN ('red', missing)", True),
        ("color IN (5, 'red')", True),
        ("amount IN (4 + 1)", True),
        ("amount + 1 IN (5, 6)", True),
        ("color LIKE 'r%'", True),
        ("color LIKE 'R%'", False),
        ("color NOT LIKE 'r%'", False),
        ("color LIKE pattern", True),
        ("color LIKE pattern ESCAPE '_'", False),
        ("amount LIKE '5'", None),
        ("color + 'dish' = 'reddish'", True),
        ("'n' + amount = 'n5'", True),
        # functions
        ("property('color') = 'red'", True),
        ("p('Color') = 'red'", True),
        ("p(which) = 'red'", True),
        ("p('dot.ted') = 'd'", True),
        ("p('user.color') = 'red'", True),
        ("p('sys.Label') = 'news'", True),
        ("p('missing') IS NULL", True),
        ("p(missing) IS NULL", True),
        ("newid() = 'x'", False),
        ("newid() + '' LIKE '________-____-4___-____-____________'", True),
        # system properties
        ("sys.Label = 'news'", True),
        ("sys.SUBJECT = 'news'", True),
        ("sys.To = 'x'", None),
        ("sys.To IS NULL", True),
        ("EXISTS(sys.To)", False),
        ("EXISTS(sys.Label)", True),
        ("EXISTS(sys.NoSuch)", False),
        ("Label = 'news'", None),
        # parameters
        ("color = @color", True),
        ("amount = @five", True),
    ],
)  # fmt: skip
def test_what_a_filter_says(text: str, expected: bool | None) -> None:
    assert evaluate(text, MESSAGE, SYSTEM, {"@color": "red", "Five": Int(5)}) is expected


KLEENE: list[tuple[str, bool | None]] = [("yes = TRUE", True), ("yes = FALSE", False), ("missing = 1", None)]


@pytest.mark.parametrize(("left", "a"), KLEENE)
@pytest.mark.parametrize(("right", "b"), KLEENE)
def test_three_valued_logic(left: str, a: bool | None, right: str, b: bool | None) -> None:
    number = {False: 0, None: 1, True: 2}
    value = {0: False, 1: None, 2: True}
    assert evaluate(f"{left} AND {right}", MESSAGE) is value[min(number[a], number[b])]
    assert evaluate(f"{left} OR {right}", MESSAGE) is value[max(number[a], number[b])]
    assert evaluate(f"NOT ({left})", MESSAGE) is value[2 - number[a]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sys.NoSuch = 1", "messages have no system property 'NoSuch'"),
        ("sys.NoSuch IS NULL", "no system property"),
        ("p('sys.NoSuch') = 1", "no system property"),
        ("p(amount) = 1", "the name of a property is text, not a number"),
        ("color - 1 = 1", "'-' is for numbers, not for text and a number"),
        ("-color = 1", "a sign is for numbers, not for text"),
        ("amount / 0 = 1", "divided by zero"),
        ("1 / 0 = 1", "divided by zero"),
        ("color LIKE pattern + '!' ESCAPE '!'", "ends with its escape character"),
        ("color LIKE 'x' ESCAPE pattern", "one character, not 3"),
        ("color LIKE long", "the pattern of LIKE has 2000 characters"),
    ],
)
def test_what_can_t_be_evaluated_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(EvaluationError, match=problem):
        evaluate(text, MESSAGE | {"long": "x" * 2000}, SYSTEM)


@pytest.mark.parametrize(
    "text", ["yes = TRUE OR sys.NoSuch = 1", "NOT (yes = FALSE AND 1 / 0 = 1)", "amount IN (5, 1 / 0)"]
)
def test_what_is_decided_asks_no_further(text: str) -> None:
    assert evaluate(text, MESSAGE) is True


@pytest.mark.parametrize(
    ("text", "value"),
    [("1=1", True), ("1=0", False), ("NOT 1 = 0 AND 'a' LIKE 'a'", True), ("NULL = 1", False), ("@p > 3", True)],
)
def test_a_filter_that_asks_no_message_is_evaluated_once(text: str, value: bool) -> None:
    assert compile_filter(text, {"p": 4}) is value


def test_every_newid_is_another() -> None:
    ids = iter([UUID(int=1), UUID(int=2)])

    class Message:
        def new_id(self) -> UUID:
            return next(ids)

    compiled: Any = compile_filter("newid() = newid()", {})
    assert compiled(Message()) is False
