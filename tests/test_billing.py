from __future__ import annotations

from typing import Any

import pytest

from pairbus.amqp.types import Symbol
from pairbus.billing import CAUSES, UNIT_BYTES, cause_in, units


@pytest.mark.parametrize(
    ("size", "wanted"),
    [(0, 1), (1, 1), (UNIT_BYTES, 1), (UNIT_BYTES + 1, 2), (10 * UNIT_BYTES, 10), (10 * UNIT_BYTES + 1, 11)],
)
def test_a_started_unit_is_a_whole_one_p51(size: int, wanted: int) -> None:
    assert units(size) == wanted


@pytest.mark.parametrize("cause", CAUSES)
def test_a_client_says_its_cause_p51(cause: str) -> None:
    assert cause_in({Symbol("pairbus-cause"): cause, Symbol("product"): "x"}) == cause


@pytest.mark.parametrize(
    "properties",
    [None, {}, {"product": "MSFT"}, {"pairbus-cause": "weather"}, {"pairbus-cause": 7}, {"pairbus-cause": ["app"]}],
)
def test_who_says_nothing_of_ours_is_an_application_p51(properties: Any) -> None:
    assert cause_in(properties) == "app"
