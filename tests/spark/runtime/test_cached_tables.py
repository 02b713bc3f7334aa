from __future__ import annotations

from typing import Any

from pairbus.spark.runtime import cached_tables


class Table:
    def __init__(self, name: str, ended: list[str]) -> None:
        self.name = name
        self.ended = ended

    def unpersist(self) -> None:
        self.ended.append(self.name)
        if self.name == "stopped":
            raise RuntimeError("its session was stopped")


class Owner:
    pass


def test_what_is_cached_ends_with_its_owner_or_what_that_was_made_within() -> None:
    ended: list[str] = []
    table: Any = lambda name: Table(name, ended)  # noqa: E731
    ledgers, audit, cost, other = Owner(), Owner(), Owner(), Owner()
    cached_tables.keep(audit, table("messages"), within=ledgers)
    cached_tables.keep(cost, table("stopped"), table("differences"), within=ledgers)
    cached_tables.keep(other, table("another's"), within=Owner())
    cached_tables.release(audit)
    assert ended == ["messages"]
    cached_tables.release(ledgers)
    assert ended == ["messages", "stopped", "differences"]
    cached_tables.release(ledgers)
    cached_tables.release(other)
    assert ended[3:] == ["another's"]


def test_what_nobody_has_any_more_ends_with_the_next() -> None:
    ended: list[str] = []
    ledgers, report = Owner(), Owner()
    cached_tables.keep(report, Table("first", ended), within=ledgers)  # type: ignore[arg-type]
    del report
    assert ended == []
    second = Owner()
    cached_tables.keep(second, Table("second", ended), within=ledgers)  # type: ignore[arg-type]
    assert ended == ["first"]
    cached_tables.release(second)
