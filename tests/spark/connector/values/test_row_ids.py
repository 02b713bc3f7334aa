from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.connector.values.row_ids import RowIds

CONTENTS = st.lists(st.sampled_from([b"", b"a", b"b", b"aa"]), max_size=12)


def ids(contents: list[bytes], query: str = "q", batch: str = "7", partition: int = 0) -> list[str]:
    made = RowIds(query, batch, partition)
    return [made.take(each) for each in contents]


@given(CONTENTS, st.randoms())
def test_the_ids_of_a_task_are_the_same_in_whatever_order_its_rows_come(contents: list[bytes], random: object) -> None:
    shuffled = list(contents)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = zip(contents, ids(contents), strict=True), zip(shuffled, ids(shuffled), strict=True)
    assert sorted(first) == sorted(second), "each row content has the same ids, whichever of the equal rows gets which"


@given(CONTENTS)
def test_no_two_rows_share_an_id_and_none_is_too_long(contents: list[bytes]) -> None:
    assert len(set(ids(contents))) == len(contents)
    assert all(len(each) <= 128 for each in ids(contents))


def test_another_query_batch_or_partition_makes_other_ids() -> None:
    found = [ids([b"a"]), ids([b"a"], "r"), ids([b"a"], batch="8"), ids([b"a"], partition=1)]
    assert len({each for (each,) in found}) == 4


def test_where_one_part_ends_and_the_next_begins_is_a_part_of_the_content() -> None:
    made = RowIds("q", "1", 0)
    assert made.take(b"ab", b"c").split("-")[0] != made.take(b"a", b"bc").split("-")[0]
