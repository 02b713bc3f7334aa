"""The list of sabotages fits the code as it is, and the simulation finds each of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter

import pytest

from . import Sabotage, catch, known, parts, sabotages

ALL = sabotages()
#: The defects that trials have found, and one of the syphon.
SOME = (
    "link-left-behind-an-end",
    "locks-follow-the-wall-clock",
    "poison-schedule",
    "strangers-memory",
    "syphon-completes-before-the-primary-confirms",
)


def test_the_list_is_long_and_names_the_defects_that_trials_have_found() -> None:
    assert len(ALL) >= 60
    assert set(SOME) <= set(ALL)
    assert len({(each.module, each.old, each.new) for each in ALL.values()}) == len(ALL)


def test_no_two_have_one_name() -> None:
    names = Counter(each.name for part in parts() for each in part.SABOTAGES)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("sabotage", ALL.values(), ids=ALL)
def test_it_changes_code_that_is_there(sabotage: Sabotage) -> None:
    patched = sabotage.patched()
    assert ast.dump(ast.parse(patched)) != ast.dump(ast.parse(sabotage.path.read_text()))
    compile(patched, sabotage.path, "exec", dont_inherit=True)
    assert sabotage.why.endswith(".") and sabotage.why.count(".") == 1


def test_the_bug_is_in_the_module_that_is_imported() -> None:
    program = (
        "from tests.simulation.sabotage import put_in; put_in('one-delivery-too-many')\n"
        "from pairbus.broker.model.description import QueueDescription\n"
        "from pairbus.broker.model.entity import QueueEntity\n"
        "queue = QueueEntity(1, QueueDescription(name='q', max_delivery_count=3)).active\n"
        "print(queue.exhausts(3), queue.exhausts(4))\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "True"]


def test_a_world_is_known_for_each() -> None:
    assert set(known()) == set(ALL), "python -m tests.simulation.sabotage hunt"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SOME)
def test_the_simulation_finds_it(name: str) -> None:
    assert catch(name) is not None


@pytest.mark.soak
@pytest.mark.parametrize("name", ALL)
def test_the_simulation_finds_every_one_within_a_minute(name: str) -> None:
    assert catch(name) is not None
