"""Declares the results of the reports, with the keys of their JSON. Pure."""

from __future__ import annotations

from typing import Final, TypedDict

from .audit_rules import COUNTS


class AuditCounts(TypedDict):
    """Messages of one entity or of all; `docs/reference/reports.md` says what each count means."""

    sent: int
    confirmed: int
    diverted: int
    carried_home: int
    received: int
    still_there: int
    expired: int
    dead_lettered: int
    lost: int
    doubled: int
    late: int
    out_of_order: int
    unknown: int
    no_id: int
    redelivered: int


def counts_of(found: AuditCounts) -> dict[str, int]:
    """Return the counts alone, by name, in the order of the report."""
    return {name: found[name] for name in COUNTS}


#: The words for people, where the key in the JSON has others.
_WORDS: Final = {"doubled": "duplicated", "dead_lettered": "dead-lettered", "no_id": "without id"}


def in_words(count: str) -> str:
    """Return what a count of the audit is called where people read it."""
    return _WORDS.get(count, count.replace("_", " "))


class Finding(TypedDict):
    finding: str
    entity: str
    mid: str
    detail: str | None
    sent_at: float | None
    received_at: float | None


class Missing(TypedDict):
    """Ledger files that are missing: how many (None: nobody knows), between which, and from when to when they tell."""

    writer: str
    files: int | None
    after: str | None
    before: str | None
    since: float | None
    until: float | None


class AuditSummary(AuditCounts):
    late_s: float
    start: float | None
    end: float | None
    entities: dict[str, AuditCounts]
    ids: dict[str, list[str]]
    findings: list[Finding]
    missing_files: list[Missing]
    notes: list[str]


class MergedOutage(TypedDict):
    start: float
    end: float | None
    seconds: float
    open: bool
    failed_over: bool
    clients: int
    time_to_fail_over_s: float | None
    time_to_return_s: float | None


class EntityOutage(MergedOutage):
    entity: str


class EntityAvailability(TypedDict):
    calls: int
    confirmed: int
    refused: int
    diverted: int
    availability: float | None
    primary_availability: float | None
    outage_s: float
    time_to_fail_over_s: float | None
    time_to_return_s: float | None
    outages: list[MergedOutage]


class AvailabilitySummary(TypedDict):
    refused: int
    calls: int
    availability: float | None
    start: float | None
    end: float | None
    entities: dict[str, EntityAvailability]
    outages: list[EntityOutage]
    notes: list[str]


class CostFigures(TypedDict):
    """`refused` are attempts that failed, which nobody bills."""

    operations: int
    refused: int
    units: int
    bytes_in: int
    bytes_out: int
    money: float


class CauseFigures(CostFigures):
    book: str
    cause: str
    operation: str


class BothBooks(TypedDict):
    """The figures of each book; None where there is no such ledger."""

    broker: CostFigures | None
    clients: CostFigures | None


class Period(TypedDict):
    start: float | None
    end: float | None
    seconds: float


class Detour(TypedDict):
    """`messages_by_operations`: how many messages took how many operations."""

    diverted: int | None
    carried: int
    operations: int
    operations_per_message: float | None
    messages_by_operations: dict[str, int]
    legs: dict[str, int]
    units: int
    bytes_in: int
    bytes_out: int
    money: float
    books: dict[str, str | None]


class Difference(TypedDict):
    cause: str
    operation: str
    place: str
    reason: str
    operations: int
    bytes: int
    explanation: str


class CostSummary(BothBooks):
    currency: str
    prices: str
    period: Period
    base_money: float
    by_cause: list[CauseFigures]
    terms: dict[str, CostFigures]
    detour: Detour
    pings: BothBooks
    idle_polls: BothBooks
    differences: list[Difference]
    notes: list[str]


class StateChange(TypedDict):
    t: float
    state: str


class Ping(TypedDict):
    t: float
    entity: str
    outcome: str


class Delay(TypedDict):
    t: float
    p50: float | None
    p99: float | None


class OutageSeries(TypedDict):
    """Times are unix seconds; every list of numbers has one for each step of `step` seconds from `start` on."""

    start: float | None
    step: float
    sends: dict[str, list[int]]
    backlog_depth: list[int]
    delay: list[Delay]
    states: dict[str, list[StateChange]]
    pings: list[Ping]
