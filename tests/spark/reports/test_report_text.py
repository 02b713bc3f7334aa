from __future__ import annotations

from typing import Any

import pytest

from pairbus.spark.reports.audit_rules import COUNTS, FINDINGS
from pairbus.spark.reports.report_text import (
    WIDTH,
    aligned,
    audit_table,
    availability_table,
    cost_lines,
    percent,
    seconds,
)


def summary(**given: Any) -> dict[str, Any]:
    counts = {name: given.get(name, 0) for name in COUNTS}
    return {
        **counts, "late_s": 60.0, "start": 0.0, "end": 61.0, "entities": {"orders": counts},
        "ids": {name: [] for name in FINDINGS}, "findings": [], "missing_files": [], "notes": [], **given,
    }  # fmt: skip


def test_the_first_line_answers_the_question() -> None:
    assert audit_table(summary(confirmed=1234)).splitlines()[0] == (
        "lost 0, unknown 0, duplicated 0 of 1,234 confirmed messages"
    )
    assert audit_table(summary(confirmed=1, lost=1)).startswith(
        "lost 1, unknown 0, duplicated 0 of 1 confirmed message\n"
    )


def test_ids_are_named_and_the_rest_counted() -> None:
    found = [
        {
            "finding": "lost",
            "entity": "orders",
            "mid": f"m{n}",
            "detail": "gone",
            "sent_at": 3661.0,
            "received_at": None,
        }
        for n in range(12)
    ]
    lines = audit_table(summary(lost=12, findings=found)).splitlines()
    assert "  m0  orders  01:01:01  gone" in lines
    assert "  m9  orders  01:01:01  gone" in lines
    assert "  and 2 more" in lines


def test_what_else_there_is_is_one_line_and_only_where_there_is() -> None:
    assert "also" not in audit_table(summary())
    assert "also: late 3, dead-lettered 2 (late: more than 60 s)" in audit_table(summary(late=3, dead_lettered=2))


def test_it_reads_at_a_hundred_columns() -> None:
    big = dict.fromkeys(COUNTS, 123_456)
    text = audit_table(summary(**big, notes=["orders: 3 unknown: " + "the words of a reason " * 8]))
    assert max(map(len, text.splitlines())) <= WIDTH


def test_missing_files_are_in_the_first_line() -> None:
    text = audit_table(summary(confirmed=3, unknown=2, missing_files=[{"files": 1}]))
    assert text.splitlines()[0] == (
        "lost 0, unknown 2 and what the missing ledger files tell, duplicated 0 of 3 confirmed messages"
    )


def test_several_entities_have_a_sum() -> None:
    each = dict.fromkeys(COUNTS, 1)
    lines = audit_table(summary(**dict.fromkeys(COUNTS, 2), entities={"a": each, "b": each})).splitlines()
    assert [line.split()[-1] for line in lines if line.startswith(("a ", "b ", "in all"))] == ["1", "1", "2"]


def test_ledgers_without_an_event() -> None:
    assert audit_table(summary(start=None, end=None, entities={})).count("\n") == 0


OUTAGE = {
    "entity": "orders", "start": 0.0, "end": 75.0, "seconds": 75.0, "open": False, "failed_over": True, "clients": 1,
    "time_to_fail_over_s": 2.0, "time_to_return_s": None,
}  # fmt: skip


def test_availability_says_failed_first() -> None:
    entity = {
        "calls": 10, "refused": 1, "availability": 90.0, "outages": [OUTAGE], "outage_s": 75.0,
        "time_to_fail_over_s": 2.0, "time_to_return_s": None, "primary_availability": 99.9999,
    }  # fmt: skip
    whole = {
        "refused": 1, "calls": 10, "availability": 90.0, "start": 0.0, "end": 100.0, "entities": {"orders": entity},
        "outages": [OUTAGE, {**OUTAGE, "open": True, "end": None}], "notes": ["so"],
    }  # fmt: skip
    text = availability_table(whole)
    assert text.splitlines()[0] == "failed 1 of 10 sends, availability 90.000 %, 2 outages"
    assert "1 min 15 s" in text and "99.999 %" in text and "still out" in text and text.endswith("note: so")
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize(
    ("share", "said"), [(None, "-"), (100.0, "100 %"), (99.99999, "99.999 %"), (0.0, "0.000 %"), (50.1234, "50.123 %")]
)
def test_only_all_is_a_hundred_per_cent(share: float | None, said: str) -> None:
    assert percent(share) == said


@pytest.mark.parametrize(
    ("value", "said"), [(None, "-"), (0.04, "0.0 s"), (59.9, "59.9 s"), (75.4, "1 min 15 s"), (5400.0, "1 h 30 min")]
)
def test_seconds(value: float | None, said: str) -> None:
    assert seconds(value) == said


def test_columns_stand_apart() -> None:
    assert aligned([["", "N"], ["orders", "12"]]) == ["         N", "orders  12"]


# -- cost


def figures(operations: int, refused: int = 0) -> dict[str, Any]:
    return {
        "operations": operations, "refused": refused, "units": operations, "bytes_in": 1000 * operations,
        "bytes_out": 0, "money": operations * 0.5,
    }  # fmt: skip


def cost_summary(**changes: Any) -> dict[str, Any]:
    nothing = {"broker": None, "clients": None}
    detour = {
        "diverted": None, "carried": 0, "operations": 0, "operations_per_message": None, "legs": {}, "bytes_in": 0,
        "bytes_out": 0, "money": 0.0,
    }  # fmt: skip
    known = {
        "currency": "EUR", "prices": "mine", "period": {"start": None, "end": None, "seconds": 0.0}, "broker": None,
        "clients": None, "detour": detour, "pings": nothing, "idle_polls": nothing, "differences": [], "notes": [],
    }  # fmt: skip
    return {**known, **changes}


def line(book: str, operations: int, **changes: str) -> dict[str, Any]:
    names = {"namespace": "contoso", "entity": "orders", "cause": "app", "operation": "send", "term": "healthy-sends"}
    return {"book": book, **names, **changes, **figures(operations)}


def test_of_what_no_ledger_tells_nothing_is_claimed() -> None:
    assert cost_lines(cost_summary(), [], 10) == [
        "The ledgers have no events; mine",
        "",
        "Billed, by the brokers' ledgers: there is none",
        "",
        "By the clients' ledgers: there is none",
        "",
        "The detour: no message came home; unknown how many diverted",
        "Pings: unknown",
        "Idle polls of the backlog: unknown",
    ]


def test_p51_both_books_their_total_and_their_differences() -> None:
    told = cost_summary(
        period={"start": 0.0, "end": 90.0, "seconds": 90.0},
        broker=figures(12),
        differences=[
            {
                "cause": "app",
                "operation": "send",
                "place": "primary",
                "operations": 2,
                "bytes": -5,
                "explanation": "why",
            }
        ],
        notes=["a file was cut"],
    )
    shown = cost_lines(told, [line("broker", 12), line("broker", 0, entity="refused only")], 10)
    assert shown[0] == "1970-01-01 00:00:00 to 1970-01-01 00:01:30 UTC, 90 s; mine"
    assert shown[3:6] == [
        "namespace  entity  cause  operation  term           operations  units  bytes in  bytes out       EUR",
        "contoso    orders  app    send       healthy-sends          12     12    12,000          0  6.000000",
        "total                                                       12     12    12,000          0  6.000000",
    ]
    assert shown[-4:] == [
        "Where the books differ, brokers' less clients'",
        "cause  operation  at       operations  bytes  because",
        "app    send       primary          +2     -5  why",
        "note: a file was cut",
    ]


def test_p52_the_detour_and_the_pings() -> None:
    detour = {
        "diverted": 3, "carried": 2, "operations": 9, "operations_per_message": 4.5, "bytes_in": 10, "bytes_out": 20,
        "legs": {"backlog-sends": 2, "backlog-receives": 2, "home-sends": 2, "home-receives": 3}, "money": 0.25,
    }  # fmt: skip
    pings = {"broker": figures(1), "clients": figures(1, refused=59)}
    shown = cost_lines(cost_summary(detour=detour, pings=pings), [], 10)
    assert (
        "The detour: 2 messages came home, 4.50 operations each (2 backlog-sends, 2 backlog-receives, 2 home-sends,"
        " 3 home-receives), 10 bytes in, 20 out, 0.250000 EUR" in shown
    )
    assert "Pings: 1 billed, 1 by the clients (59 more failed)" in shown


def test_where_there_are_too_many_lines_it_says_so() -> None:
    shown = cost_lines(cost_summary(broker=figures(2)), [line("broker", 1), line("broker", 1)], 2)
    assert "(the first 2 lines of both; --parquet writes all)" in shown
