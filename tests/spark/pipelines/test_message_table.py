"""Where a message of a table may be, and what of a batch gets into it, without files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.pipelines.message_table import (
    FileIndex,
    Identity,
    StagedRow,
    digest,
    plan_commit,
    staged_files,
)

DAY = "2026-11-17"


def row(number: int | None, token: str, *, until: int = 1, enqueued: int = 5, file: str = "a") -> StagedRow:
    return StagedRow(file, DAY, Identity("orders", number, enqueued), token, until, 10)


@pytest.mark.parametrize(
    ("rows", "present", "drop", "complete", "known"),
    [
        ([row(1, "t1"), row(2, "t2")], [], set(), {"t1": 1, "t2": 2}, 0),
        ([row(1, "t1"), row(2, "t2")], [Identity("orders", 1, 5)], {"t1"}, {"t1": 1, "t2": 2}, 1),
        # the queue was made anew: the same number is another message
        ([row(1, "t1")], [Identity("orders", 1, 4)], set(), {"t1": 1}, 0),
        ([row(1, "t1")], [Identity("bills", 1, 5)], set(), {"t1": 1}, 0),
        # locked twice within the batch: the later lock is the one that holds
        ([row(1, "t1", until=1), row(1, "t2", until=9)], [], {"t1"}, {"t2": 1}, 0),
        ([row(1, "t2", until=9), row(1, "t1", until=1)], [], {"t1"}, {"t2": 1}, 0),
        ([row(1, "t2", until=9), row(1, "t1", until=1)], [Identity("orders", 1, 5)], {"t1", "t2"}, {"t2": 1}, 1),
        # what can't be told apart is written
        ([row(None, "t1"), row(None, "t2")], [Identity("orders", None, 5)], set(), {"t1": 0, "t2": 0}, 0),
    ],
)
def test_what_of_a_batch_is_committed_and_completed(
    rows: list[StagedRow], present: list[Identity], drop: set[str], complete: dict[str, int], known: int
) -> None:
    assert plan_commit(rows, present) == (drop, complete, known)


@given(
    st.lists(
        st.builds(row, st.integers(1, 6), st.uuids().map(str), until=st.integers(0, 3), file=st.sampled_from("abc")),
        max_size=12,
        unique_by=lambda each: each.token,
    ),
    st.sets(st.builds(Identity, st.just("orders"), st.integers(1, 6), st.just(5))),
)
def test_each_message_of_a_batch_is_then_in_the_table_once_and_completed_once(
    rows: list[StagedRow], present: set[Identity]
) -> None:
    plan = plan_commit(rows, present)
    written = [each.identity for each in rows if each.token not in plan.drop]
    assert len(written) == len(set(written)) and not set(written) & present
    assert {*written, *present} >= {each.identity for each in rows}
    by_token = {each.token: each for each in rows}
    completed = [by_token[token].identity for token in plan.complete]
    assert sorted(completed) == sorted({each.identity for each in rows})
    assert plan.known == len(present & {each.identity for each in rows})


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=5), max_size=6),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1),
)
def test_a_file_that_holds_a_message_is_always_looked_into(
    files: list[list[tuple[int, int]]], wanted: list[tuple[int, int]]
) -> None:
    """Of partitioned entities too: a number's high bits are its partition."""
    index = FileIndex("Orders")
    index.listed(DAY, [])
    held: dict[str, set[int]] = {}
    for batch, places in enumerate(files):
        numbers = [partition << 48 | number for partition, number in places]
        (file,) = staged_files([row(each, str(each)) for each in numbers], "orders", f"u{batch}")
        index.committed(file.date, file.name)
        held[file.name] = set(numbers)
    numbers = [partition << 48 | number for partition, number in wanted]
    found = index.may_hold(DAY, numbers)
    assert {name for name, there in held.items() if there & set(numbers)} <= set(found)


def test_files_that_can_t_hold_a_message_are_not_read() -> None:
    index = FileIndex("orders")
    mine = [f"{digest('orders')}-{first}-{first + 99}-u{first}.parquet" for first in range(1, 100_000, 100)]
    index.listed(DAY, [*mine, f"{digest('bills')}-1-100000-x.parquet", "_temporary", ".part.crc", "compacted.parquet"])
    # one old message that came again among new ones: not all that lies between
    assert index.may_hold(DAY, [150, 250_000, 250_001]) == [mine[1], "compacted.parquet"]
    assert index.may_hold(DAY, [250_000]) == ["compacted.parquet"], "a file of somebody else's may hold anything"


def test_days_are_forgotten_and_asked_for_again() -> None:
    index = FileIndex("orders", days_max=2)
    for day in ("d1", "d2", "d3"):
        index.listed(day, ["x.parquet"])
    assert [index.knows(day) for day in ("d1", "d2", "d3")] == [False, True, True]
    index.committed("d1", "y.parquet")
    assert not index.knows("d1"), "a day that is not known as a whole is not known"
    index.forget("d2")
    assert not index.knows("d2") and repr(index) == "<FileIndex 1 files of 1 days>"
