"""Defines the result of a drill as values, from which the page, the terminal and `--json` are printed. Pure.

`verdict.py` creates it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .chart import Bar, Delay, Frame, TimeMark


class Figure(NamedTuple):
    """A figure of the audit; `key` is its name in the JSON, and the value None means unknown, not 0."""

    key: str
    label: str
    value: int | float | None
    meaning: str = ""


class Tile(NamedTuple):
    """One of the few figures at the top of the page."""

    key: str
    value: str
    label: str
    is_good: bool = True


class Table(NamedTuple):
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: How many columns from the left are words, the others figures.
    words: int = 1


@dataclass(frozen=True, slots=True)
class Findings:
    is_good: bool
    headline: str
    #: Sentences under the headline, with the ids of what was lost among them.
    remarks: Sequence[str]
    tiles: Sequence[Tile]
    frame: Frame
    states: Mapping[str, Sequence[tuple[float, str]]]
    pings: Mapping[str, Sequence[tuple[float, bool]]]
    step_s: float
    sends: Mapping[str, Sequence[float]]
    depths: Sequence[float]
    moments: Sequence[TimeMark]
    delays: Sequence[Delay]
    cost: Sequence[Bar]
    cost_table: Table
    estimate: Table
    estimate_remark: str
    audit: Sequence[Figure]
    audit_by_entity: Table
    availability: Table
    timeline: Sequence[str]
    settings: Sequence[tuple[str, str]]
    notes: Sequence[str]
    #: When, as a person writes it, and how long it took.
    held: str
    #: Everything, for `--json` and result.json.
    as_json: Mapping[str, Any] = field(default_factory=dict)
