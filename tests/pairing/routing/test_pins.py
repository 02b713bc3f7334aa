from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.pairing.errors import ControlFileError
from pairbus.pairing.routing.pins import BYTES_MAX, NAMES_MAX, NO_PINS, SETTLED_S, ControlFileLog, Pins, parse


def test_p23_the_specific_name_wins_over_the_star() -> None:
    pins = parse('"*" = "failed-over"\norders = "healthy"\n"sales/invoices" = "auto"\n')
    assert pins.of("orders") == pins.of("ORDERS") == "healthy"
    assert pins.of("news") == "failed-over"
    assert pins.of("Sales/Invoices") is None
    assert repr(pins) == "<Pins *=failed-over, orders=healthy, sales/invoices=auto>"


@pytest.mark.parametrize("content", ["", b"", "# nothing yet\n", {}, '"*" = "auto"', b"\xef\xbb\xbforders = 'auto'"])
def test_p23_a_file_without_pins_pins_nothing(content: Any) -> None:
    assert parse(content).of("orders") is NO_PINS.of("orders") is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('orders = "broken"', 'orders may not be \'broken\'; allowed: "failed-over", "healthy" or "auto"'),
        ("orders = true", "orders may not be True"),
        ('orders = ["healthy"]', "orders may not be"),
        ('sales.orders = "healthy"', 'sales is a table; put a name with dots in quotes: "sales.'),
        ("[orders]\n", "orders is a table"),
        ("orders = ", "no TOML: Invalid value (at end of document)"),
        ('orders = "auto"\norders = "auto"', "no TOML: Cannot overwrite"),
        ('orders = "auto"\nOrders = "healthy"', "orders and Orders are one entity"),
        ('"" = "auto"', "'' names no entity"),
        (b"orders = '\xff'", "not UTF-8"),
        ("x" * (BYTES_MAX + 1), f"larger than the {BYTES_MAX} bytes"),
        ({str(n): "auto" for n in range(NAMES_MAX + 1)}, f"names {NAMES_MAX + 1} entities"),
        ({3: "auto"}, "3 names no entity"),
        (None, "may not be a NoneType; right is TOML text or a mapping"),
        ({"orders": "x" * 5000}, "…; allowed"),
        ("a = " + "[" * 5000, "no TOML"),
    ],
)
def test_p23_what_cant_be_followed_is_named(content: Any, says: str) -> None:
    with pytest.raises(ControlFileError) as found:
        parse(content)
    assert says in str(found.value)
    assert len(str(found.value)) < 400


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60), st.dictionaries(st.text(), st.text())))
def test_p23_anything_is_pins_or_a_control_file_error(content: Any) -> None:
    try:
        pins = parse(content)
    except ControlFileError:
        return
    assert isinstance(pins, Pins)


def test_p23_a_change_is_read_when_it_is_a_moment_old_or_was_there_before() -> None:
    log = ControlFileLog()
    assert log.is_settled("a", 0.0), "the first look"
    assert not log.is_settled("b", 0.0)
    assert log.is_settled("b", 0.1), "the same at two looks"
    assert not log.is_settled("c", SETTLED_S - 0.01)
    assert log.is_settled("d", SETTLED_S)
    assert not log.is_settled("e", -3600.0), "the clock of a network drive may be ahead"
    assert log.is_settled("e", -3600.0)
    late = ControlFileLog()
    late.is_news(FileNotFoundError(2, "no such file"))
    assert not late.is_settled("a", 0.0), "that was the first look"


def test_p23_each_change_and_each_failure_is_news_once() -> None:
    log = ControlFileLog()
    missing, refused = FileNotFoundError(2, "no such file"), PermissionError(13, "denied")
    assert [log.is_news(error) for error in (missing, FileNotFoundError(2, "no such file"), refused)] == [1, 0, 1]
    assert log.is_new("a")
    first = log.read("a", 'orders = "healthy"')
    assert first is not None and first.of("orders") == "healthy"
    assert not log.is_new("a")
    assert log.read("b", 'orders = "healthy"  # saved again') is None
    with pytest.raises(ControlFileError) as found:
        log.read("c", "orders = ")
    assert log.is_news(found.value) and not log.is_news(found.value)
    with pytest.raises(ControlFileError) as found:
        log.read("d", "orders = ")
    assert log.is_news(found.value), "the operator has changed it, and it is still wrong"
    assert "unusable" in repr(log)
    assert log.read("e", 'orders = "healthy"') is not None, "it can be followed again: told, though nothing changed"
    assert log.is_news(missing)
    assert log.is_new("e"), "what is there after a failure is read anew"
