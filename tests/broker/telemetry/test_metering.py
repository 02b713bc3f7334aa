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
