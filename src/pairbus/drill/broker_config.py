"""Writes the brokers' configuration files for a plan. Pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pairbus.pairing.backlog import backlog_queues

from .plan import PRIMARY, SECONDARY, SUBSCRIPTION, DrillPlan

#: Messages that the outage interrupted at a receiver come again when their locks end: within the drill.
LOCK_S: Final = 10
_BACKLOG: Final = {
    name: value for name, value in backlog_queues.QUEUE_PROPERTIES.items() if value != backlog_queues.UNLIMITED
}


def primary_config(plan: DrillPlan, standby: Path) -> str:
    """Return the primary's: with duplicate detection, which removes second copies after an unknown outcome, and
    with the standby folder if the fault is about that."""
    lines = [f"[namespaces.{PRIMARY}]"]
    if plan.drill_fault.has_standby:
        lines.append(f"standby = {json.dumps(str(standby))}")
    for each in plan.entities:
        kind = "topics" if each.is_topic else "queues"
        lines += [
            f"[[namespaces.{PRIMARY}.{kind}]]",
            f"name = {json.dumps(each.name)}",
            "requires_duplicate_detection = true",
            "duplicate_detection_history_time_window = 3600",
        ]
        if each.is_topic:
            lines += [f"[[namespaces.{PRIMARY}.topics.subscriptions]]", f"name = {json.dumps(SUBSCRIPTION)}"]
        lines.append(f"lock_duration = {LOCK_S}")
    return "\n".join(lines) + "\n"


def secondary_config(plan: DrillPlan) -> str:
    """Return the secondary's: with the backlog queues, so that the clients need no right to manage."""
    lines = [f"[namespaces.{SECONDARY}]"]
    for path in backlog_queues.paths(PRIMARY, plan.backlog_queues):
        lines += [f"[[namespaces.{SECONDARY}.queues]]", f"name = {json.dumps(path)}"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in _BACKLOG.items()]
    return "\n".join(lines) + "\n"
