from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.stream_reader import admit

from .test_batch_reader import SEQUENCES, Asked

QUEUES = st.dictionaries(st.sampled_from(["a", "b", "c"]), SEQUENCES, min_size=1)


@given(QUEUES, st.none() | st.integers(1, 100), st.integers(1, 50))
def test_batch_by_batch_everything_is_read_once_and_no_batch_is_too_large(
    queues: dict[str, list[int]], rows_max: int | None, begin: int
) -> None:
    def first_from(entity: str, number: int) -> int | None:
        return Asked(queues[entity])(number)

    at = dict.fromkeys(queues, begin)
    seen: list[tuple[str, int]] = []
    for _ in range(200):
        end = admit(at, rows_max, first_from)
        batch = [(e, n) for e, numbers in queues.items() for n in numbers if at[e] <= n < end[e]]
        assert rows_max is None or len(batch) <= rows_max
        if end == at:
            break
        seen += batch
        at = end
    assert sorted(seen) == sorted((e, n) for e, numbers in queues.items() for n in numbers if n >= begin)


def test_what_comes_after_the_goal_waits_for_the_next_run() -> None:
    assert admit({"a": 1}, None, lambda entity, number: number, until={"a": 5}) == {"a": 5}
    assert admit({"a": 5}, 10, lambda entity, number: number, until={"a": 5}) == {"a": 5}


def test_a_small_limit_is_shared_among_many() -> None:
    end = admit(dict.fromkeys("abc", 1), 2, lambda entity, number: number)
    assert sum(end.values()) - 3 == 2
