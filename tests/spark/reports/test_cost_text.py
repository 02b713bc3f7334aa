"""The report as people read it, from what its JSON holds. No JVM."""

from __future__ import annotations

from typing import Any

from pairbus.spark.reports.cost_text import cost_lines


def figures(operations: int, refused: int = 0) -> dict[str, Any]:
    return {
        "operations": operations, "refused": refused, "units": operations, "bytes_in": 1000 * operations,
        "bytes_out": 0, "money": operations * 0.5,
    }  # fmt: skip


def summary(**changes: Any) -> dict[str, Any]:
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
    assert cost_lines(summary(), [], 10) == [
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
    told = summary(
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
    shown = cost_lines(summary(detour=detour, pings=pings), [], 10)
    assert (
        "The detour: 2 messages came home, 4.50 operations each (2 backlog-sends, 2 backlog-receives, 2 home-sends,"
        " 3 home-receives), 10 bytes in, 20 out, 0.250000 EUR" in shown
    )
    assert "Pings: 1 billed, 1 by the clients (59 more failed)" in shown


def test_where_there_are_too_many_lines_it_says_so() -> None:
    shown = cost_lines(summary(broker=figures(2)), [line("broker", 1), line("broker", 1)], 2)
    assert "(the first 2 lines of both; --parquet writes all)" in shown
