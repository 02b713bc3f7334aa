from __future__ import annotations

import pytest

from pairbus.billing import UNIT_BYTES
from pairbus.broker.telemetry import metering
from pairbus.broker.telemetry.metering import Key, Meter


def rows(meter: Meter) -> dict[Key, tuple[int, int, int]]:
    return {key: (tally.operations, tally.units, tally.nbytes) for key, tally in meter.rows()}


def test_operations_units_and_bytes_by_entity_operation_and_cause_p51() -> None:
    meter = Meter()
    for size in (0, 1, UNIT_BYTES, UNIT_BYTES + 1, 10 * UNIT_BYTES):
        meter.count("orders", "send", "app", size)
    meter.count("orders", "send", "syphon", 7)
    meter.count("orders", "poll", "app", 0)
    meter.count("bills", "receive", "spark", 3 * UNIT_BYTES + 1)
    assert rows(meter) == {
        Key("bills", "receive", "spark"): (1, 4, 3 * UNIT_BYTES + 1),
        Key("orders", "poll", "app"): (1, 1, 0),
        Key("orders", "send", "app"): (5, 1 + 1 + 1 + 2 + 10, 12 * UNIT_BYTES + 2),
        Key("orders", "send", "syphon"): (1, 1, 7),
    }
    assert repr(meter) == "<Meter 8 operations>"


def test_names_without_end_share_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "KEYS_MAX", 2)
    meter = Meter()
    for entity in ("a", "b", "c", "d", "a"):
        meter.count(entity, "manage", "manage", 1)
    assert {key.entity: sums[0] for key, sums in rows(meter).items()} == {"a": 2, "b": 1, "(other)": 2}


def test_rows_of_deleted_entities_are_merged_when_the_table_has_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "MERGE_MIN", 4)
    meter = Meter()
    for entity in ("a", "b", "c"):
        meter.count(entity, "send", "app", UNIT_BYTES + 1)
    asked: list[str] = []

    def exists(path: str) -> bool:
        asked.append(path)
        return path in "ad"

    list(meter.merge_deleted(exists))
    assert (asked, len(rows(meter))) == ([], 3), "there are few"
    meter.count("d", "poll", "app", 0)
    list(meter.merge_deleted(exists))
    assert rows(meter) == {
        Key("(other)", "send", "app"): (2, 4, 2 * UNIT_BYTES + 2),
        Key("a", "send", "app"): (1, 2, UNIT_BYTES + 1),
        Key("d", "poll", "app"): (1, 1, 0),
    }
    for number in range(3):
        meter.count("a", "receive", f"cause {number}", 1)
    asked.clear()
    list(meter.merge_deleted(exists))
    assert asked and len(rows(meter)) == 6
    meter.count("e", "send", "app", 1)
    list(meter.merge_deleted(exists))
    assert Key("e", "send", "app") in rows(meter), "twelve rows are the next time"
