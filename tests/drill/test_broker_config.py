from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.broker.config.config_file import parse
from pairbus.drill.broker_config import LOCK_S, primary_config, secondary_config
from pairbus.drill.plan import DRILL_FAULTS, PRIMARY, SECONDARY, DrillPlan


@pytest.mark.parametrize("entities", [1, 4, 10])
def test_the_broker_understands_its_stage(entities: int) -> None:
    plan = DrillPlan(entity_count=entities)
    text = primary_config(plan, Path("/other/disk"))
    (primary,) = parse(text, is_json=False)
    assert (primary.name, primary.standby) == (PRIMARY, None)
    assert text.count("requires_duplicate_detection = true") == entities
    assert text.count(f"lock_duration = {LOCK_S}") == entities


def test_p48_the_primary_has_a_standby_folder_where_the_drill_is_about_that() -> None:
    plan = DrillPlan(fault="stall-with-standby")
    (primary,) = parse(primary_config(plan, Path("/other/disk")), is_json=False)
    assert primary.standby == "/other/disk"
    assert plan.detour_s == 0, "nothing has to take the detour"


def test_p9_the_backlog_queues_are_ready_made() -> None:
    plan = DrillPlan(backlog_queues=2)
    (secondary,) = parse(secondary_config(plan), is_json=False)
    assert secondary.name == SECONDARY
    assert [line for line in secondary_config(plan).splitlines() if line.startswith("name")] == [
        'name = "contoso/x-servicebus-transfer/0"',
        'name = "contoso/x-servicebus-transfer/1"',
    ]


def test_an_outage_outlives_the_locks() -> None:
    """Else what the outage caught would come again only after the drill has counted."""
    assert DrillPlan().outage_s + DrillPlan().after_s > LOCK_S
    assert DRILL_FAULTS
