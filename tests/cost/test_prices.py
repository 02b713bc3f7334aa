from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.cost.prices import EXAMPLE, EXAMPLE_TOML, GB, MILLION, PriceBook, PriceError, Tier, parse


def book(**changes: object) -> PriceBook:
    given: dict[str, object] = {
        "name": "test", "currency": "EUR", "base_per_month": 10.0, "primary_in_per_gb": 1.0, "primary_out_per_gb": 2.0,
        "backlog_in_per_gb": 3.0, "backlog_out_per_gb": 4.0,
        "tiers": (Tier(10, 0.0), Tier(100, 0.8), Tier(None, 0.5)),
    }  # fmt: skip
    return PriceBook(**{**given, **changes})  # type: ignore[arg-type]


def test_p53_the_example_says_that_it_is_one_at_every_price() -> None:
    assert "replace" in EXAMPLE.name
    priced = [line for line in EXAMPLE_TOML.splitlines() if re.match(r"\w+_(?:gb|million|month) = \d+\.", line)]
    assert len(priced) == 9
    assert [line for line in priced if "EXAMPLE" not in line] == []
    assert [tier.up_to_million for tier in EXAMPLE.tiers] == [13, 100, 2500, None]
    assert repr(EXAMPLE) == "<PriceBook example prices, replace by your own: USD, 4 tiers>"


@pytest.mark.parametrize(
    ("used", "units", "money"),
    [
        (0, 10 * MILLION, 0.0),
        (0, 11 * MILLION, 0.8),
        (10 * MILLION, 1 * MILLION, 0.8),
        (0, 100 * MILLION, 90 * 0.8),
        (0, 102 * MILLION, 90 * 0.8 + 2 * 0.5),
        (99 * MILLION, 2 * MILLION, 0.8 + 0.5),
        (500 * MILLION, 0, 0.0),
    ],
)
def test_operations_are_priced_in_the_tiers_that_they_fall_into(used: float, units: float, money: float) -> None:
    assert book(used_per_month=used).operations(units, 24) == pytest.approx(money)


def test_two_months_are_two_bills() -> None:
    priced = book(used_per_month=0)
    assert priced.operations(20 * MILLION, 2 * 730) == 0.0, "each month includes ten million"
    assert priced.operations(22 * MILLION, 2 * 730) == pytest.approx(1.6)
    assert priced.operations(20 * MILLION, 730) == pytest.approx(8.0)
    assert priced.base(2 * 730) == pytest.approx(20.0)


def test_traffic_is_priced_by_place_and_direction() -> None:
    assert book().traffic(GB, 0, backlog=False) == pytest.approx(1.0)
    assert book().traffic(0, GB, backlog=False) == pytest.approx(2.0)
    assert book().traffic(GB, GB, backlog=True) == pytest.approx(7.0)


@given(st.floats(0, 1e10), st.floats(0, 1e10), st.floats(0, 1e9), st.floats(0, 5000))
def test_more_never_costs_less_and_the_average_sums_up(a: float, b: float, used: float, hours: float) -> None:
    priced = book(used_per_month=used)
    less, more = sorted((a, b))
    assert priced.operations(less, hours) <= priced.operations(more, hours) * (1 + 1e-9) + 1e-6
    if more >= 1:
        assert priced.per_unit(more, hours) * more == pytest.approx(priced.operations(more, hours))
    assert 0 <= priced.per_unit(more, hours) <= 0.8 / MILLION * 1.001


TIER = "operations.tiers[1]"
KEYS = f"the keys of {TIER} are up_to_million, per_million"
NOT_A_KEY = "is not a key of a price book; the keys"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("currency =", "curency =", f"curency {NOT_A_KEY} at the top are name, currency, base, operations, bandwidth"),
        ("[bandwidth]", "[bandwith]", f"bandwith {NOT_A_KEY} at the top are name"),
        ("per_million = 0.80", "per_milion = 0.80", f"{TIER}.per_milion is not a key of a price book; {KEYS}"),
        ("per_million = 0.80", "", f"{TIER}.per_million is missing; {KEYS}"),
        ("per_million = 0.80", "per_million = -1", f"{TIER}.per_million may not be -1; allowed: a number, 0 or more"),
        ("per_million = 0.80", "per_million = inf", "may not be inf; allowed: a number, 0 or more"),
        ("per_million = 0.80", 'per_million = "0.80"', "may not be '0.80'; allowed: a number"),
        ("per_month = 10.0", "per_month = true", "base.per_month may not be True; allowed: a number"),
        ("up_to_million = 100", "up_to_million = 13", f"{TIER}.up_to_million is 13, and must be above that of the"),
        ("up_to_million = 100", "", f"{TIER}.up_to_million is missing"),
        ("per_million = 0.20", "per_million = 0.20\nup_to_million = 9000",
         "operations.tiers[3].up_to_million is there, and the last tier has no end; leave it out, or add a tier"),
        ("backlog_in_per_gb = 0.02", "", "bandwidth.backlog_in_per_gb is missing; the keys of bandwidth are"),
        ("hours_per_month = 730", "hours_per_month = 0", "base.hours_per_month may not be 0; allowed: a number above"),
        ('"USD"', '""', "currency may not be ''; allowed: text"),
        ('name = "', "name = ", "is no TOML"),
    ],
)  # fmt: skip
def test_p53_a_wrong_book_names_the_key_and_the_right_keys(old: str, new: str, said: str) -> None:
    assert EXAMPLE_TOML.count(old) == 1
    with pytest.raises(PriceError, match=re.escape(said)) as caught:
        parse(EXAMPLE_TOML.replace(old, new), "my.toml")
    assert str(caught.value).startswith("my.toml")
    assert "\n" not in str(caught.value)


def test_a_table_that_is_missing_or_none() -> None:
    with pytest.raises(PriceError, match="base is missing; it is a table with the keys per_month, hours_per_month"):
        parse('currency = "EUR"')
    with pytest.raises(PriceError, match="base must be a table with the keys per_month"):
        parse('currency = "EUR"\nbase = 3\noperations = 4')
    with pytest.raises(PriceError, match=r"tiers may not be \[\]; allowed: tables \[\[operations.tiers\]\]"):
        parse('currency = "EUR"\nbase.per_month = 3\noperations.tiers = []\n' + EXAMPLE_TOML.partition("[bandwidth]")[1]
              + EXAMPLE_TOML.partition("[bandwidth]")[2])  # fmt: skip


def test_what_may_be_left_out() -> None:
    text = "\n".join(line for line in EXAMPLE_TOML.splitlines() if not re.match("name|hours_per_month|used_per", line))
    made = parse(text, "my.toml")
    assert (made.name, made.hours_per_month, made.used_per_month) == ("my.toml", 730, 0)


def test_the_document_shows_the_example_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "price-book.md").read_text()
    assert f"```toml\n{EXAMPLE_TOML}```" in page
