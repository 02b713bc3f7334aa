"""The broker's two books, its ledger and its counters, in one form: they must be equal (P51)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pairbus.billing import BILLED_OUTCOMES, OPERATIONS
from pairbus.broker import Broker
from pairbus.broker.telemetry.metering import OTHER

#: (entity, operation, cause) → operations, units, bytes
Books = dict[tuple[str, str, str], tuple[int, int, int]]

_SAMPLE = re.compile(r"pairbus_operation(s|_units|_bytes)_total\{([^}]*)\} (\d+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def events(data: Path, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((data / namespace / "ledger").glob("*.jsonl")):
        # an event that is being written has no end yet
        found += [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [event for event in found if "kind" in event]


def added_up(lines: Iterable[dict[str, Any]]) -> Books:
    books: Books = {}
    for line in lines:
        if line["kind"] in OPERATIONS and line["outcome"] in BILLED_OUTCOMES:
            key = (line["entity"], line["kind"], line["cause"])
            operations, units, nbytes = books.get(key, (0, 0, 0))
            books[key] = (operations + 1, units + line["units"], nbytes + line["bytes"])
    return books


def booked(data: Path, namespace: str) -> Books:
    return added_up(events(data, namespace))


def counted(broker: Broker, namespace: str) -> Books:
    rows = broker.metrics.namespace(namespace).meter.rows()
    return {tuple(key): (tally.operations, tally.units, tally.nbytes) for key, tally in rows}


def agree(ledger: Books, counters: Books) -> bool:
    """Return whether the two say the same, where the counters of deleted entities have been merged."""

    def sums(books: Books) -> Books:
        found: Books = {}
        for (_, operation, cause), row in books.items():
            before = found.get(("", operation, cause), (0, 0, 0))
            found["", operation, cause] = (before[0] + row[0], before[1] + row[1], before[2] + row[2])
        return found

    named = {key: row for key, row in counters.items() if key[0] != OTHER}
    if len(named) == len(counters):
        return ledger == counters
    return sums(ledger) == sums(counters) and all(
        all(one <= all_of_it for one, all_of_it in zip(row, ledger[key], strict=True)) for key, row in named.items()
    )


def exposed(text: str, namespace: str) -> Books:
    """From the text of /metrics."""
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for which, labels, value in _SAMPLE.findall(text):
        named = dict(_LABEL.findall(labels))
        if named["namespace"] == namespace:
            if which == "_bytes":
                assert named["direction"] == ("in" if named["operation"] in ("send", "ping") else "out")
            found.setdefault((named["entity"], named["operation"], named["cause"]), {})[which] = int(value)
    return {key: (sums["s"], sums["_units"], sums["_bytes"]) for key, sums in found.items()}
