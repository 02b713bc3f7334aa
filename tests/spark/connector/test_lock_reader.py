"""The lock stream on a real broker, without Spark: Spark's calls are made by hand, in Spark's order."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.spark.connector import lock_reader
from pairbus.spark.connector.batch_reader import Slice, Wanted, peek_slice
from pairbus.spark.connector.lock_reader import MOVES, POLLS, QUEUES, WAIT_FIRST_S, LockStream, Share, take
from pairbus.spark.connector.lock_reader import receive as take_rows
from pairbus.spark.connector.options import InvalidOption, parse
from pairbus.spark.connector.process_mailbox import STOP, ProcessMailbox
from pairbus.spark.connector.schema import Rows, read
from pairbus.spark.connector.selection import Selection
from pairbus.spark.connector.values.transfer_packs import Locked, unpack
from pairbus.wire.partitions import Range
from pairbus.wire.sync import Receiver
from tests.spark.conftest import MakeQueue, Pair, admin_of, peeked, wire
from tests.waiting import until


@pytest.fixture
def stream(pair: Pair, make_queue: MakeQueue, tmp_path: Path) -> Iterator[Callable[..., LockStream]]:
    make_queue(pair.secondary, "a", "b")
    made: list[LockStream] = []

    def make(**options: str) -> LockStream:
        given = {
            "connectionString": pair.secondary.connection_string,
            "mode": "lock",
            "board": str(tmp_path),
            **options,
        }
        made.append(LockStream(parse(given, {}), lambda: ["a", "b"]))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def send(pair: Pair, entity: str, count: int) -> None:
    with wire(pair.secondary) as client:
        messages = [encode_message(properties=Properties(message_id=f"{entity}{n}"), body=b"x") for n in range(count)]
        assert client.sender(entity).send_many(messages) == [None] * count


def rows(stream: LockStream, start: dict[str, Any], end: dict[str, Any]) -> list[Locked]:
    found: list[Locked] = []
    for partition in stream.partitions(start, end):
        for batch in stream.read(partition):
            if "messages" in batch.schema.names:
                found += [each for some in unpack(batch) for each in some]
            else:  # as a user's stream has them
                found += [
                    Locked(row["entity"], UUID(row["lock_token"]).bytes_le, row["amqp"]) for row in batch.to_pylist()
                ]
    return found


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_reader, "IDLE_LOOK_S", 0.02)


def test_p37_nothing_to_move_is_no_batch(pair: Pair, stream: Callable[..., LockStream]) -> None:
    idle = stream()
    first = idle.initialOffset()
    for _ in range(50):
        assert idle.latestOffset(first) == first


class Watcher:
    """A long poll that finds something at the n-th look, and counts the waits."""

    def __init__(self, found_at: int) -> None:
        self.waits = 0
        self._found_at = found_at

    def ready(self) -> list[str]:
        return ["a"] if self.waits >= self._found_at else []

    def wait_for_any(self, limit_s: float) -> None:
        self.waits += 1

    def taken(self, entities: object) -> None: ...
    def watch(self, entities: object) -> None: ...
    def stop(self) -> None: ...


def test_an_idle_stream_answers_late_and_a_message_ends_its_wait(
    stream: Callable[..., LockStream], tmp_path: Path
) -> None:
    """Spark asks again at once, which is what an idle query costs."""
    reading = stream()
    start = reading.initialOffset()
    reading._watcher = idle = Watcher(1000)  # type: ignore[assignment]
    assert reading.latestOffset(start) == start and idle.waits == lock_reader.IDLE_LOOKS
    reading._watcher = found = Watcher(2)  # type: ignore[assignment]
    assert reading.latestOffset(start)["entities"] == ["a"] and found.waits == 2
    reading._watcher = stopped = Watcher(1000)  # type: ignore[assignment]
    stopped.wait_for_any = lambda limit_s: ProcessMailbox(tmp_path).raise_flag(STOP)  # type: ignore[method-assign]
    assert reading.latestOffset(start) == start and reading._watcher is None


def test_a_stream_that_keeps_to_its_rate_waits_for_that(
    stream: Callable[..., LockStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = stream(maxRate="10", maxMessagesPerTrigger="10")
    reading._watcher = Watcher(0)  # type: ignore[assignment]
    start, now = reading.initialOffset(), [100.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], time=time.time, time_ns=time.time_ns, sleep=lambda s: now.append(now.pop() + s)
    )
    monkeypatch.setattr(lock_reader, "time", clock)
    monkeypatch.setattr(lock_reader, "IDLE_LOOK_S", 0.25)
    first = reading.latestOffset(start)
    assert first["epoch"] > 0 and now[0] == 100.0
    second = reading.latestOffset(first)
    assert second["epoch"] > first["epoch"]
    assert now[0] == pytest.approx(100.0 + first["count"] / 10, abs=0.01), "it slept for no longer than the rate wants"


def test_a_checkpoint_of_a_stream_by_sequence_number_is_refused(pair: Pair, stream: Callable[..., LockStream]) -> None:
    with pytest.raises(InvalidOption, match=r"of a stream with mode=peek or delete.*a checkpointLocation of its own"):
        stream().latestOffset({"a": 17})


def test_the_first_batch_is_not_empty_where_there_is_something(
    pair: Pair, stream: Callable[..., LockStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs the first batch whatever its offset, and an empty one takes as long."""
    monkeypatch.setattr("pairbus.spark.connector.lock_reader.BEGIN_S", 20.0)
    send(pair, "a", 1)
    send(pair, "b", 1)
    reading = stream()
    assert reading.latestOffset(reading.initialOffset())["entities"] == ["a", "b"]


def test_the_first_batch_does_not_wait_for_queues_that_are_empty(
    pair: Pair, stream: Callable[..., LockStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.spark.connector.lock_reader.BEGIN_S", 1000.0)  # whoever waits for them hangs
    send(pair, "b", 1)
    reading = stream()
    assert reading.latestOffset(reading.initialOffset())["entities"] == ["b"]
    reading.stop()
    monkeypatch.setattr("pairbus.spark.connector.lock_reader.BEGIN_S", 0.1)
    with wire(pair.secondary) as client:
        receiver = client.receiver("b")
        receiver.complete(receiver.receive(1, max_wait=5))
    idle = stream()
    assert idle.latestOffset(idle.initialOffset()) == idle.initialOffset(), "the time is over"


def test_a_reader_asks_what_there_is_and_waits_for_the_first_only(
    pair: Pair, stream: Callable[..., LockStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    receive = Receiver.receive

    def receive_and_tell(self: Receiver, count: int = 1, max_wait: float | None = None) -> Any:
        waits.append(max_wait)
        return receive(self, count, max_wait)

    monkeypatch.setattr(Receiver, "receive", receive_and_tell)
    send(pair, "a", 3)
    assert len(rows(stream(), {"epoch": 0}, {"epoch": 5, "entities": ["a"], "count": 10})) == 3
    assert waits[0] == WAIT_FIRST_S and set(waits[1:]) == {0.0}


def test_rows_carry_what_a_sink_needs_to_settle(pair: Pair, stream: Callable[..., LockStream]) -> None:
    reading = stream()
    send(pair, "a", 3)
    start = reading.initialOffset()
    end = until(lambda: (e := reading.latestOffset(start)) != start and e)
    assert end["entities"] == ["a"]
    found = rows(reading, start, end)
    assert [read(row.payload)["message_id"] for row in found] == ["a0", "a1", "a2"]
    assert {row.queue for row in found} == {"a"}
    with wire(pair.secondary) as client:
        client.settle_by_token("a", [row.token for row in found], "completed")
    assert peeked(pair.secondary, "a") == []
    assert reading.latestOffset(end) == end


def test_a_batch_is_bounded_and_the_next_one_follows(pair: Pair, stream: Callable[..., LockStream]) -> None:
    reading = stream(maxMessagesPerTrigger="4")
    send(pair, "a", 10)
    at = reading.initialOffset()
    seen: list[str] = []
    while len(seen) < 10:
        end = until(lambda at=at: (e := reading.latestOffset(at)) != at and e)
        assert end["epoch"] > at["epoch"]
        batch = rows(reading, at, end)
        assert 0 < len(batch) <= 4
        seen += [read(row.payload)["message_id"] for row in batch]
        at = end
    assert sorted(seen) == sorted(f"a{n}" for n in range(10))


def test_a_batch_can_be_read_from_its_offsets_alone(pair: Pair, stream: Callable[..., LockStream]) -> None:
    """After a crash of the driver Spark runs the last batch again, in a new process."""
    send(pair, "b", 2)
    assert [type(each) for each in stream().partitions({"epoch": 0}, {"epoch": 5, "entities": ["b"], "count": 10})] == [
        Share
    ]
    assert len(rows(stream(), {"epoch": 0}, {"epoch": 5, "entities": ["b"], "count": 10})) == 2
    assert rows(stream(), {"epoch": 0}, {"epoch": 0}) == []


def test_several_receivers_compete_for_a_queue_and_get_each_message_once(
    pair: Pair, stream: Callable[..., LockStream]
) -> None:
    send(pair, "b", 9)
    several = stream(minPartitions="5")
    end = {"epoch": 5, "entities": ["b"], "count": 20}
    shares = several.partitions({"epoch": 0}, end)
    assert [each.count for each in shares if isinstance(each, Share)] == [4] * 5
    got = [read(row.payload)["message_id"] for row in rows(several, {"epoch": 0}, end)]
    assert sorted(got) == [f"b{n}" for n in range(9)]
    both = several.partitions({"epoch": 0}, {**end, "entities": ["a", "b"]})
    assert [(each.entity, each.count) for each in both if isinstance(each, Share)] == [
        *[("a", 4), ("a", 3), ("a", 3)],
        *[("b", 4), ("b", 3), ("b", 3)],
    ]
    assert len(several.partitions({"epoch": 0}, {"epoch": 0})) == 2, "an empty first batch starts two workers"


def test_the_stop_flag_ends_new_batches(pair: Pair, stream: Callable[..., LockStream], tmp_path: Path) -> None:
    reading = stream()
    send(pair, "a", 1)
    start = reading.initialOffset()
    ProcessMailbox(tmp_path).raise_flag(STOP)
    until(lambda: reading._watching().ready())
    assert reading.latestOffset(start) == start
    assert reading._watcher is None
    assert ProcessMailbox(tmp_path).read_new(POLLS)[-1] == {"stopped": True}
    assert reading.latestOffset(start) == start
    with wire(pair.secondary) as client:  # the watcher holds nothing
        assert len(client.receiver("a").receive(1, max_wait=2)) == 1


def test_p24_server_busy_at_a_destination_slows_the_source(
    pair: Pair, stream: Callable[..., LockStream], tmp_path: Path
) -> None:
    reading = stream()
    mailbox = ProcessMailbox(tmp_path)
    send(pair, "a", 1)
    start = reading.initialOffset()
    end = until(lambda: (e := reading.latestOffset(start)) != start and e)
    full = end["count"]
    mailbox.append(MOVES, {"moved": {"orders": 100}, "busy": ["orders"]})
    rows(reading, start, end)
    send(pair, "a", 1)
    later = until(lambda: (e := reading.latestOffset(end)) != end and e)
    assert later["count"] < full
    assert [notice for notice in mailbox.read_new(POLLS) if "epoch" in notice]


def test_before_spark_4_2_there_is_no_start_and_the_epoch_grows_all_the_same(
    pair: Pair, stream: Callable[..., LockStream]
) -> None:
    reading = stream()
    send(pair, "a", 1)
    first = until(lambda: (e := reading.latestOffset()).get("entities") and e)
    rows(reading, {"epoch": 0}, first)
    assert reading.latestOffset() == first
    send(pair, "a", 1)
    second = until(lambda: (e := reading.latestOffset()).get("entities") and e["epoch"] > first["epoch"] and e)
    assert second["epoch"] > first["epoch"]


def test_an_entity_that_is_made_while_the_stream_runs_is_watched_too(pair: Pair, make_queue: MakeQueue) -> None:
    class Found:
        may_change = True
        names = ("a",)

        def __call__(self) -> list[str]:
            return list(self.names)

    now = 0.0
    found = Found()
    make_queue(pair.secondary, "a", "late")
    reading = LockStream(parse({"connectionString": pair.secondary.connection_string, "mode": "lock"}, {}), found)
    reading._discovery._clock = lambda: now
    try:
        start = reading.initialOffset()
        send(pair, "late", 1)
        assert reading.latestOffset(start) == start
        found.names = ("a", "late")  # type: ignore[assignment]
        assert reading.latestOffset(start) == start
        assert repr(reading._watcher) == "<LongPoll 0 of 1 queues have messages>"
        now = 31.0
        end = until(lambda: (e := reading.latestOffset(start)) != start and e)
        assert end["entities"] == ["late"] and len(rows(reading, start, end)) == 1
    finally:
        reading.stop()


def test_p36_p37_a_queue_that_the_application_names_while_the_stream_runs_is_watched_too(
    pair: Pair, stream: Callable[..., LockStream], make_queue: MakeQueue, tmp_path: Path
) -> None:
    reading = stream()
    start = reading.initialOffset()
    assert reading.latestOffset(start) == start
    make_queue(pair.secondary, "late")
    send(pair, "late", 2)
    ProcessMailbox(tmp_path).append(QUEUES, {"entities": ["late", "a"]})
    end = until(lambda: (e := reading.latestOffset(start)) != start and e)
    assert end["entities"] == ["late"] and len(rows(reading, start, end)) == 2
    assert repr(reading._watcher) == "<LongPoll 1 of 3 queues have messages>"
    reading.stop()
    again = stream()  # a query that is started again reads the board from its beginning
    again.latestOffset(start)
    assert repr(again._watcher) == "<LongPoll 0 of 3 queues have messages>"


def test_p36_a_queue_that_was_deleted_since_it_was_seen_is_an_empty_share(
    pair: Pair, stream: Callable[..., LockStream], tmp_path: Path
) -> None:
    """Spark would run a batch that fails again and again, and the other queues would wait for it."""
    reading = stream()
    mailbox = ProcessMailbox(tmp_path)
    with admin_of(pair.secondary) as admin:
        admin.create_queue("short-lived")
        mailbox.append(QUEUES, {"entities": ["short-lived"]})
        start = reading.initialOffset()
        send(pair, "short-lived", 1)
        send(pair, "a", 1)
        until(lambda: len(reading._watching().ready()) == 2)
        end = reading.latestOffset(start)
        admin.delete_queue("short-lived")
    assert end["entities"] == ["a", "short-lived"]
    assert [row.queue for row in rows(reading, start, end)] == ["a"]
    assert reading.latestOffset(end) == end
    assert "short-lived" not in reading._watching().ready()
    told: list[dict[str, Any]] = []
    until(lambda: told.extend(mailbox.read_new(POLLS)) or [each for each in told if "error" in each])
    assert {(each["entity"], each["condition"]) for each in told if "error" in each} == {
        ("short-lived", "amqp:not-found")
    }


def test_the_chosen_are_taken_and_the_others_go_back_as_if_never_delivered(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.secondary, "a")
    send(pair, "a", 1200)
    chosen = Selection.of([2, 3, 5, 1100])
    got = [m.sequence_number for some in take(pair.secondary_address, Share("a", 10, chosen)) for m in some]
    assert got == [2, 3, 5, 1100]
    with wire(pair.secondary) as client:
        receiver = client.receiver("a")
        free: dict[int | None, int] = {}
        while some := receiver.receive(500, max_wait=1):
            free |= {each.sequence_number: each.delivery_count for each in some}
    assert free.keys() == set(range(1, 1201)) - set(got) and set(free.values()) == {0}


def test_no_more_are_taken_than_asked_for_and_none_beyond_the_last(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.secondary, "a")
    send(pair, "a", 50)
    got = [m.sequence_number for some in take(pair.secondary_address, Share("a", 2, Selection([(3, 9)]))) for m in some]
    assert got == [3, 4]
    begun = time.monotonic()
    assert list(take(pair.secondary_address, Share("a", 2, Selection([(60, 70)])))) == []
    assert list(take(pair.secondary_address, Share("a", 0, Selection([(5, 9)])))) == []
    assert time.monotonic() - begun < 5


def lock_stream(pair: Pair, *entities: str, key: str | None = None, **options: str) -> LockStream:
    text = pair.secondary.connection_string
    if key is not None:
        text = re.sub("SharedAccessKey=[^;]*", f"SharedAccessKey={key}", text)
    return LockStream(parse({"connectionString": text, "mode": "lock", **options}, {}), lambda: list(entities))


def test_what_can_never_be_received_ends_the_query_at_its_start(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.secondary, "a")
    make_queue(pair.secondary, "grouped", requires_session=True)
    for stream, words in (
        (lock_stream(pair, "a", "nowhere"), "mode=lock can't receive from nowhere: .*could not be found"),
        (lock_stream(pair, "a", key="AAAA"), r"mode=lock can't receive from a: .*\(amqp:unauthorized-access\)"),
        (lock_stream(pair, "grouped"), "mode=lock can't receive from grouped: .*session.*; set sessions=true"),
        (
            lock_stream(pair, "grouped", "a", sessions="true"),
            "mode=lock can't receive from a: .*no sessions.*; leave out the option sessions",
        ),
        (
            lock_stream(pair, "grouped/$DeadLetterQueue", sessions="true"),
            "can't receive from grouped/.DeadLetterQueue: .*; leave out the option sessions",
        ),
    ):
        with pytest.raises(InvalidOption, match=words):
            stream.latestOffset(stream.initialOffset())
        stream.stop()


def test_a_session_is_on_one_task_in_order_and_the_next_batch_goes_on_with_it(
    pair: Pair, make_queue: MakeQueue
) -> None:
    make_queue(pair.secondary, "talks", requires_session=True, lock_duration=dt.timedelta(seconds=300))
    with wire(pair.secondary) as client:
        sender = client.sender("talks")
        for number in range(40):
            sender.send(encode_message(properties=Properties(group_id=f"s{number % 4}"), body=b"x"))
    stream = lock_stream(pair, "talks", sessions="true", minPartitions="3", maxMessagesPerTrigger="24")
    numbers: dict[str, list[int]] = {}
    at = stream.initialOffset()
    try:
        while sum(map(len, numbers.values())) < 40:
            end = until(lambda at=at: (e := stream.latestOffset(at)) != at and e, 20, lambda: numbers)
            tasks = [
                [row for batch in stream.read(each) for row in batch.to_pylist()] for each in stream.partitions(at, end)
            ]
            sessions = [{row["session_id"] for row in task} for task in tasks]
            assert len(tasks) == 3 and sum(map(len, sessions)) == len(set().union(*sessions)), "of no two tasks"
            for row in (row for task in tasks for row in task):
                numbers.setdefault(row["session_id"], []).append(row["sequence_number"])
            with wire(pair.secondary) as client:
                client.settle_by_token(
                    "talks", [UUID(row["lock_token"]) for task in tasks for row in task], "completed"
                )
            at = end
    finally:
        stream.stop()
    assert numbers == {f"s{n}": list(range(n + 1, 41, 4)) for n in range(4)}
    assert peeked(pair.secondary, "talks") == []
    assert stream._pace._lock_s <= 60, "the Python workers that hold the sessions are kept for a minute"


def test_batches_follow_the_lock_of_the_entity_and_shrink_where_messages_come_again(
    pair: Pair, make_queue: MakeQueue
) -> None:
    make_queue(pair.secondary, "a", lock_duration=dt.timedelta(seconds=5))
    send(pair, "a", 300)
    stream = lock_stream(pair, "a")
    try:
        first = until(lambda: (e := stream.latestOffset(stream.initialOffset())).get("entities") and e)
        assert 100 < first["count"] < 170, "a share of two thousand, which are for a lock of a minute"
        rows(stream, {"epoch": 0}, first)
        until(lambda: peeked_delivery_count(pair) > 0)  # nobody settled them in time
        second = until(lambda: (e := stream.latestOffset(first)) != first and e)
        assert 1 <= second["count"] <= first["count"] // 2
    finally:
        stream.stop()


def peeked_delivery_count(pair: Pair) -> int:
    return max(read(each).get("delivery_count") or 0 for each in peeked(pair.secondary, "a"))


def test_large_messages_are_asked_for_few_at_a_time_and_handed_on_by_bytes(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(pair.secondary, "a")
    with wire(pair.secondary) as client:
        large = [encode_message(properties=Properties(message_id=f"{n}"), body=b"x" * 200_000) for n in range(100)]
        assert client.sender("a").send_many(large) == [None] * 100
    asked: list[int] = []
    receive = Receiver.receive

    def receive_and_tell(self: Receiver, count: int = 1, max_wait: float | None = None) -> Any:
        asked.append(count)
        return receive(self, count, max_wait)

    monkeypatch.setattr(Receiver, "receive", receive_and_tell)
    options = parse({"connectionString": pair.secondary.connection_string, "mode": "lock"}, {})
    batches = list(take_rows(options, Share("a", 100)))
    assert sum(batch.num_rows for batch in batches) == 100
    assert max(batch.nbytes for batch in batches) < 18 * 1024 * 1024
    assert asked[0] == 32 and max(asked[1:]) <= 21
    whole = list(peek_slice(pair.secondary_address, Slice("a", (Range(1, 100),)), Wanted(), Rows()))
    assert sum(batch.num_rows for batch in whole) == 100
    assert max(batch.nbytes for batch in whole) < 18 * 1024 * 1024
