from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.connector import stream_reader as stream_module
from pairbus.spark.connector.listing import Entities
from pairbus.spark.connector.options import Address, InvalidOption, parse
from pairbus.spark.connector.schema import encode, read
from pairbus.spark.connector.stream_reader import DeleteStream, PeekStream, admit, stream_reader
from tests.spark.conftest import MakeQueue, Pair, admin_of, peeked, wire

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


def test_before_spark_4_2_without_a_start_all_is_read_at_any_rate_and_the_end_never_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = [1, 2, 3]
    stream = PeekStream(parse({"connectionString": "Endpoint=sb://x", "maxRate": "1"}, {}), lambda: ["a"])
    monkeypatch.setattr(stream, "_first_from", lambda entity, number: Asked(there)(number))
    assert stream.latestOffset() == stream.latestOffset() == {"a": 4}
    there.clear()  # somebody took them away
    assert stream.latestOffset() == {"a": 4}
    there.append(4)
    assert stream.latestOffset() == {"a": 5}


def test_a_stream_keeps_to_its_rate_and_saves_up_no_more_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = PeekStream(parse({"connectionString": "Endpoint=sb://x", "maxRate": "10"}, {}), lambda: ["a"])
    monkeypatch.setattr(stream, "_first_from", lambda entity, number: number)
    at, seen = stream.initialOffset(), []
    for now in (0.0, 0.5, 1.0, 1.9, 2.0, 100.0, 100.4, 100.5):
        monkeypatch.setattr(stream_module, "time", SimpleNamespace(monotonic=lambda now=now: now))
        end = stream.latestOffset(at, SimpleNamespace(max_rows=1000))
        seen.append(end["a"] - at["a"])
        at = end
    assert seen == [10, 0, 10, 0, 10, 10, 0, 10]
    assert stream.latestOffset(at, SimpleNamespace(max_rows=3)) == at, "that second's worth is spent"


class _Time:
    """A clock that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_run_over_what_is_there_waits_for_its_rate_instead_of_ending_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends such a run at the first batch with nothing new. A gap in the numbers is not charged to the rate."""
    clock, there = _Time(), range(1_000_001, 1_000_051)
    monkeypatch.setattr(stream_module, "time", clock)
    stream = PeekStream(parse({"connectionString": "Endpoint=sb://x", "maxRate": "10"}, {}), lambda: ["a"])
    monkeypatch.setattr(stream, "_first_from", lambda entity, number: Asked(list(there))(number))
    stream.prepareForTriggerAvailableNow()
    at, steps = stream.initialOffset(), 0
    while (end := stream.latestOffset(at, SimpleNamespace(max_rows=1000))) != at:
        at, steps = end, steps + 1
    assert at == {"a": 1_000_051}
    assert steps == 5
    assert clock.now == pytest.approx(4.0, abs=1.1), "fifty messages at ten a second"


def test_an_entity_that_is_made_while_a_stream_runs_is_found(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    address = Address(pair.primary.connection_string, ca_file=str(pair.primary.ca_file))
    options = parse({"connectionString": pair.primary.connection_string, "entity": "late-*"}, {})
    make_queue(pair.primary, "late-1")
    stream = PeekStream(options, Entities(address, ["late-*"]))
    monkeypatch.setattr(stream._discovery, "_clock", lambda: now)
    start = stream.initialOffset()
    assert start == {"late-1": 1}
    with admin_of(pair.primary) as admin:
        admin.create_queue("late-2")
        with wire(pair.primary) as client:
            client.sender("late-2").send(b"\x00Su\xa0\x01x")
        assert stream.latestOffset(start) == start
        now = 31.0
        end = stream.latestOffset(start)
        assert end == {"late-1": 1, "late-2": 2}
        (partition,) = stream.partitions(start, end)
        assert [batch.num_rows for batch in stream.read(partition)] == [1]
        admin.delete_queue("late-2")
    assert stream.latestOffset(end) == end, "gone again: the others go on"


def test_a_stream_ends_at_its_last_sequence_number(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse({"connectionString": "Endpoint=sb://x", "fromSequenceNumber": "3", "toSequenceNumber": "7"}, {})
    stream = PeekStream(options, lambda: ["a", "b"])
    monkeypatch.setattr(stream, "_first_from", lambda entity, number: Asked(list(range(1, 20)))(number))
    start = stream.initialOffset()
    assert stream.latestOffset(start) == {"a": 8, "b": 8}
    assert stream.latestOffset({"a": 8, "b": 8}) == {"a": 8, "b": 8}
    assert stream.latestOffset() == {"a": 8, "b": 8}, "before Spark 4.2"
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(start) == {"a": 8, "b": 8}


@pytest.mark.parametrize("name", ["fromSequenceNumber", "toSequenceNumber"])
def test_a_lock_stream_has_no_sequence_numbers_to_keep_to(name: str) -> None:
    options = parse({"connectionString": "Endpoint=sb://x", "mode": "lock", name: "7"}, {})
    with pytest.raises(InvalidOption, match="toSequenceNumber are for the modes peek and delete"):
        stream_reader(options, lambda: ["a"])


@pytest.mark.parametrize(("begin", "left"), [("1", [8, 9, 10]), ("3", [1, 2, 8, 9, 10])])
def test_a_delete_stream_removes_what_it_has_read_and_nothing_else(
    pair: Pair, make_queue: MakeQueue, begin: str, left: list[int]
) -> None:
    make_queue(pair.primary, "some")
    with wire(pair.primary) as client:
        assert client.sender("some").send_many([encode({"body": "x"})] * 10) == [None] * 10
    given = {"connectionString": pair.primary.connection_string, "fromSequenceNumber": begin, "toSequenceNumber": "7"}
    stream = DeleteStream(parse(given, {}), lambda: ["some"])
    end = stream.latestOffset(stream.initialOffset())
    assert end == {"some": 8}
    assert stream.latestOffset(end) == end
    assert [read(each)["sequence_number"] for each in peeked(pair.primary, "some")] == left


@pytest.mark.parametrize("kind", [PeekStream, DeleteStream])
def test_a_partitioned_entity_is_refused_before_anything_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, kind: type[PeekStream]
) -> None:
    stream = kind(parse({"connectionString": "Endpoint=sb://x"}, {}), lambda: ["orders"])
    there = Asked([1, 2, (3 << 48) + 1])
    monkeypatch.setattr(stream_module.connections, "client", lambda address: None)
    monkeypatch.setattr(stream_module, "first_from", lambda client, entity, number: there(number))
    with pytest.raises(InvalidOption, match=r"'orders' is partitioned.*mode=lock"):
        stream.latestOffset({"orders": 1})
