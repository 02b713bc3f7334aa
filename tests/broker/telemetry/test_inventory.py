from __future__ import annotations

import json
from pathlib import Path

from pairbus.broker.telemetry.inventory import Inventory, write_left
from pairbus.ledger import LedgerWriter
from tests.broker.namespace_rig import Rig, make_special


def told(folder: Path) -> list[dict[str, object]]:
    (path,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()[1:-1]]


async def test_p51_all_that_is_left_in_slices(tmp_path: Path) -> None:
    ledger = LedgerWriter(tmp_path, "broker")
    with Rig() as rig:
        rig.create()
        for n in range(5):
            rig.send_payloads(*(make_special(b"x", id=f"m{n}-{i}") for i in range(50)))
        assert await write_left(rig.namespace, ledger, lambda: 1.0) == Inventory(250, 0)
    ledger.close()
    *found, complete = told(tmp_path)
    assert [each["seq"] for each in found] == list(range(1, 251))
    assert complete["kind"] == "stock" and "entity" not in complete
    wanted = {"t": 1.0, "kind": "left", "ns": rig.namespace.name, "entity": "orders", "mid": "m0-0", "seq": 1}
    assert found[0] == {**wanted, "outcome": "ok"}


async def test_p51_what_there_is_no_time_for_is_a_gap(tmp_path: Path) -> None:
    ledger = LedgerWriter(tmp_path, "broker", clock=lambda: 2.0)
    with Rig() as rig:
        rig.create()
        for n in range(5):
            rig.send_payloads(*(make_special(b"x", id=f"m{n}-{i}") for i in range(50)))
        assert await write_left(rig.namespace, ledger, lambda: 1.0, 0.0) == Inventory(0, 250)
    ledger.close()
    assert told(tmp_path) == [{"t": 2.0, "kind": "gap", "events": 250}]
