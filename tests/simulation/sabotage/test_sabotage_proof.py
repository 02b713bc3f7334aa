"""The simulation finds each sabotage in the world that it names, and by the rule that it names."""

from __future__ import annotations

import inspect
import re

import pytest

from . import Sabotage, sabotages

ALL = sabotages()


@pytest.mark.parametrize("sabotage", ALL.values(), ids=ALL)
def test_the_simulation_finds_it(sabotage: Sabotage) -> None:
    before = inspect.getattr_static(sabotage.owner, sabotage.name)
    assert re.search(sabotage.rule, sabotage.show(sabotage.seed)), "python -m tests.simulation.sabotage hunt"
    assert inspect.getattr_static(sabotage.owner, sabotage.name) is before
    assert sabotage.why.endswith(".") and sabotage.why.count(".") == 1
