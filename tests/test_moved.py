"""Modules that have moved can still be imported by their old names, with a warning that says the new one."""

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("pairbus.pairing.verdicts", "pairbus.pairing.routing.verdicts", "Verdict"),
        ("pairbus.spark.options", "pairbus.spark.connector.options", "InvalidOption"),
        ("pairbus.spark.reports.series", "pairbus.spark.reports.outage_series", "series"),
    ],
)
def test_the_old_name_warns_and_gives_the_same_thing(old: str, new: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} has moved: import {name} from {new}"):
        found = getattr(import_module(old), name)
    assert found is getattr(import_module(new), name)


def test_a_name_that_never_was_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        import_module("pairbus.pairing.verdicts").nonsense  # noqa: B018 - the look-up is what is tested
