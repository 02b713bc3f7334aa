"""The audit's definitions, asked in SQLite: they are plain SQL, and need no Spark to be judged."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.spark.reports import audit_rules as rules

ZEROS: dict[str, Any] = dict.fromkeys(
    ("c_lines", "c_send", "c_divert", "b_tries", "b_send", "b_dup", "b_car", "b_car_dup", "m_ok", "x_send", "x_taken",
     "x_left", "x_dead", "x_expired", "found"), 0,
)  # fmt: skip
WATCH: dict[str, Any] = {
    f"{who}_{name}": value
    for who in "ps"
    for name, value in (("known", False), ("since", 0.0), ("until", 1000.0), ("cut", False))
} | {"r_known": False}
TIMES: dict[str, Any] = {"sent_at": 10.0, "home_at": 10.0, "named": True}


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:")) as made:
        made.create_function("greatest", -1, lambda *values: max(values))
        made.create_function("least", -1, lambda *values: min(values))
        yield made


def judge(database: sqlite3.Connection, **given: Any) -> dict[str, Any]:
    row = {**ZEROS, **WATCH, **TIMES, **given}
    assert row.keys() == {*ZEROS, *WATCH, *TIMES}, "a column that the rules don't have"
    for name, expression in {**rules.NUMBERS, "reason": rules.REASON}.items():
        columns = ", ".join(f":{column} as {column}" for column in row)
        row[name] = database.execute(f"select {expression} from (select {columns})", row).fetchone()[0]
    return row


SENT = {"c_lines": 1, "c_send": 1}
AWAY = {"c_lines": 1, "c_divert": 1}
STORED = {"b_tries": 1, "b_send": 1}
P = {"p_known": True}
R = {"r_known": True}
S = {"s_known": True}

REASONS: list[tuple[dict[str, Any], str | None]] = [
    ({**SENT, **STORED, **P, "found": 1}, None),
    ({**SENT, **STORED, **P}, "gone"),
    ({**SENT, **P}, "gone"),
    ({**SENT}, "nobody-watched"),
    ({**SENT, **R}, "not-received"),
    ({**SENT, "c_send": 2, **R, "found": 1}, "repeated"),
    ({**SENT, "c_send": 2, **STORED, **P, "b_send": 2, "found": 1}, "gone"),
    ({**SENT, "c_send": 2, **STORED, **P, "b_dup": 1, "found": 1}, None),
    ({**SENT, **STORED, **P, "b_dup": 1}, "gone"),
    ({**SENT, "b_dup": 1, "b_tries": 1, **P}, None),
    ({**SENT, **P, "p_since": 11.0}, "broker-later"),
    ({**SENT, **P, "p_cut": True, **R}, "broker-cut"),
    ({**SENT, **P, "p_until": 9.0}, "broker-ended"),
    ({**AWAY, **P}, "no-backlog-ledger"),
    ({**AWAY, **P, **S, "x_send": 1, "x_left": 1}, None),
    ({**AWAY, **P, **S, "x_send": 1, "x_dead": 1}, None),
    ({**AWAY, **P, **S}, "not-in-backlog"),
    ({**AWAY, **P, **S, "x_send": 1}, "gone-from-backlog"),
    ({**AWAY, **P, **S, "x_send": 1, "x_taken": 1}, "taken-not-home"),
    ({**AWAY, **R, **S, "x_send": 1, "x_taken": 1}, "not-received"),
    ({**AWAY, **S, "x_send": 1, "x_taken": 1}, "nobody-watched"),
    ({**AWAY, **P, **S, "s_cut": True}, "backlog-cut"),
    ({**AWAY, **P, **S, "s_since": 11.0}, "backlog-later"),
    ({**AWAY, **P, **S, "s_until": 9.0}, "backlog-ended"),
    ({**AWAY, **P, **S, "x_send": 1, "x_taken": 1, "m_ok": 1}, "gone"),
    ({**AWAY, **P, "m_ok": 1, "home_at": 2000.0}, "broker-ended"),
    ({"c_lines": 1, **P}, None),
    ({**STORED, **P}, "gone"),
    ({**STORED, **P, "named": False}, "no-id"),
    ({**STORED, **P, "named": False, "found": 1}, None),
    ({"b_car": 1, **P}, "gone"),
    ({"x_send": 1, **S, **P, "x_taken": 1}, "taken-not-home"),
]


@pytest.mark.parametrize(("given", "reason"), REASONS)
def test_why_a_message_is_lost_or_unknown(
    database: sqlite3.Connection, given: dict[str, Any], reason: str | None
) -> None:
    assert judge(database, **given)["reason"] == reason


@pytest.mark.parametrize("given", [given for given, reason in REASONS if reason in ("gone", "not-received")])
def test_without_the_ledger_of_the_primarys_broker_nothing_is_known_to_be_lost_at_home(
    database: sqlite3.Connection, given: dict[str, Any]
) -> None:
    assert judge(database, **{**given, "p_known": False, "m_ok": 0, "b_car": 1})["reason"] in rules.UNKNOWN


def test_every_reason_has_its_row_and_its_words() -> None:
    told = {reason for _, reason in REASONS} - {None}
    assert told == rules.LOST.keys() | rules.UNKNOWN.keys()
    assert rules.REMEDY.keys() <= rules.UNKNOWN.keys()
    assert not rules.LOST.keys() & rules.UNKNOWN.keys()


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        (SENT, {"sent": 1, "confirmed": 1, "diverted": 0, "wanted": 1}),
        ({"c_lines": 3}, {"sent": 1, "confirmed": 0}),
        ({"found": 1}, {"sent": 0, "confirmed": 0, "missing": 0}),
        ({"b_tries": 2}, {"sent": 1, "confirmed": 0}),
        ({"b_tries": 3, "b_send": 2, "b_dup": 1}, {"sent": 3, "confirmed": 3, "dropped": 1, "wanted": 2}),
        # P20: the answer was lost, the message went to the backlog too; a broker alone can't tell that from two
        ({**AWAY, "c_lines": 2, **STORED, "b_car": 1}, {"confirmed": 1, "wanted": 1, "carried_home": 1}),
        ({**STORED, "b_car": 1, "x_send": 1}, {"confirmed": 2, "wanted": 1, "diverted": 1}),
        # carried twice, since the completion was lost: that is one message
        ({**AWAY, "m_ok": 2, "b_car": 1, "b_car_dup": 1}, {"carried_home": 1, "dropped": 0}),
    ],
)
def test_what_is_counted(database: sqlite3.Connection, given: dict[str, Any], counts: dict[str, int]) -> None:
    judged = judge(database, **given)
    assert {name: judged[name] for name in counts} == counts


def test_the_words_are_sql_too(database: sqlite3.Connection) -> None:
    for reason in (*rules.LOST, *rules.UNKNOWN):
        said = database.execute(f"select {rules.words_case()} from (select ? as reason)", (reason,)).fetchone()[0]
        assert said == {**rules.LOST, **rules.UNKNOWN}[reason]
        lost = database.execute(f"select {rules.is_in(rules.LOST)} from (select ? as reason)", (reason,)).fetchone()[0]
        assert bool(lost) is (reason in rules.LOST)


@pytest.mark.parametrize(
    ("lost", "unknown", "missing_files", "code"), [(0, 0, 0, 0), (1, 0, 0, 1), (1, 9, 9, 1), (0, 1, 0, 3), (0, 0, 1, 3)]
)
def test_unknown_alone_is_no_success(lost: int, unknown: int, missing_files: int, code: int) -> None:
    assert rules.exit_code(lost, unknown, missing_files) == code


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ((False, 0, 0), None),
        ((True, 0, 0), "x.jsonl (client) has no last line: cut by a kill, or still being written"),
        ((True, 0, 1), "incomplete and left out"),
        ((True, 0, 2), "2 lines that are no JSON"),
        ((False, 0, 1), "1 lines that are no JSON"),
        ((False, 7, 0), "misses 7 events"),
    ],
)
def test_what_is_said_of_a_file(facts: tuple[bool, int, int], said: str | None) -> None:
    note = rules.file_note("x.jsonl", "client", *facts)
    assert note is None if said is None else said in (note or "")


def test_a_note_says_what_to_do() -> None:
    assert rules.note("nobody-watched", 1200, "orders") == (
        "orders: 1,200 unknown: no receiver's ledger and no broker's ledger of the primary; add the ledger of a "
        "receiver (ledger=FOLDER) or of the primary's broker (--ledger)"
    )
