from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.broker.model.partitions import partition_for
from pairbus.spark.connector import stream_reader as stream_module
from pairbus.spark.connector.batch_reader import DataLoss, ServiceBusReader, Slice, Wanted
from pairbus.spark.connector.listing import Entities
from pairbus.spark.connector.options import Address, InvalidOption, parse
from pairbus.spark.connector.places.offsets import admit
from pairbus.spark.connector.schema import encode, read
from pairbus.spark.connector.stream_reader import DeleteStream, PeekStream, stream_reader
from pairbus.testing import fault
from pairbus.wire.partitions import Range
from tests.spark.conftest import MakeQueue, Pair, admin_of, peeked, wire
from tests.wire.test_partitions import Asked


def test_what_comes_after_the_goal_waits_for_the_next_run() -> None:
    assert admit({"a": 1}, None, lambda entity, number: number, lambda entity: 5) == {"a": 5}
    assert admit({"a": 5}, 10, lambda entity, number: number, lambda entity: 5) == {"a": 5}


def test_a_small_limit_is_shared_among_many() -> None:
    end = admit(dict.fromkeys("abc", 1), 2, lambda entity, number: number)
    assert sum(end.values()) - 3 == 2


def test_before_spark_4_2_without_a_start_all_is_read_at_any_rate_and_the_end_never_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = [1, 2, 3]
    stream = PeekStream(parse({"connectionString": "Endpoint=sb://x", "maxRate": "1"}, {}), lambda: ["a"])
    holds(monkeypatch, stream, there)
    assert stream.latestOffset() == stream.latestOffset() == {"a": 4, **TIMES}
    there.clear()  # somebody took them away
    assert stream.latestOffset() == {"a": 4, **TIMES}
    there.append(4)
    assert stream.latestOffset() == {"a": 5, **TIMES}


#: What offsets hold beside the places in a world without time.
TIMES: dict[str, object] = {"$enqueued": {"a": {"0": 0}}}


def holds(monkeypatch: pytest.MonkeyPatch, stream: PeekStream, there: Sequence[int]) -> None:
    """Have a stream read messages with these numbers, all enqueued at the same time, without a broker."""
    monkeypatch.setattr(stream, "_first_from", lambda entity, number: Asked(there)(number))
    monkeypatch.setattr(stream, "_oldest", lambda lane, number: (there[0], 0) if there else None)
    monkeypatch.setattr(stream, "_time_before", lambda lane, first, stop: 0)


def places(offset: Any) -> dict[str, Any]:
    """An offset without its times."""
    return {name: value for name, value in offset.items() if name != "$enqueued"}


def test_a_stream_keeps_to_its_rate_and_saves_up_no_more_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = PeekStream(parse({"connectionString": "Endpoint=sb://x", "maxRate": "10"}, {}), lambda: ["a"])
    holds(monkeypatch, stream, range(1, 10_000))
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
    holds(monkeypatch, stream, there)
    stream.prepareForTriggerAvailableNow()
    at, steps = stream.initialOffset(), 0
    while (end := stream.latestOffset(at, SimpleNamespace(max_rows=1000))) != at:
        at, steps = end, steps + 1
    assert places(at) == {"a": 1_000_051}
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
        assert places(end) == {"late-1": 1, "late-2": 2}
        (partition,) = stream.partitions(start, end)
        assert [batch.num_rows for batch in stream.read(partition)] == [1]
        admin.delete_queue("late-2")
    assert stream.latestOffset(end) == end, "gone again: the others go on"


def test_a_stream_ends_at_its_last_sequence_number(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse({"connectionString": "Endpoint=sb://x", "fromSequenceNumber": "3", "toSequenceNumber": "7"}, {})
    stream = PeekStream(options, lambda: ["a", "b"])
    holds(monkeypatch, stream, range(1, 20))
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    assert places(end) == {"a": 8, "b": 8}
    assert stream.latestOffset(end) == end
    assert stream.latestOffset() == end, "before Spark 4.2"
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(start) == end


@pytest.mark.parametrize("name", ["fromSequenceNumber", "toSequenceNumber"])
def test_a_lock_stream_has_no_sequence_numbers_to_keep_to(name: str) -> None:
    options = parse({"connectionString": "Endpoint=sb://x", "mode": "lock", name: "7"}, {})
    with pytest.raises(InvalidOption, match="toSequenceNumber are for the modes peek and delete"):
        stream_reader(options, lambda: ["a"])


@pytest.mark.parametrize("sessions", [0, 1, 3])
@pytest.mark.parametrize(("begin", "left"), [("1", [8, 9, 10]), ("3", [1, 2, 8, 9, 10])])
def test_a_delete_stream_removes_what_it_has_read_and_nothing_else(
    pair: Pair, make_queue: MakeQueue, begin: str, left: list[int], sessions: int
) -> None:
    make_queue(pair.primary, "some", requires_session=sessions > 0)
    with wire(pair.primary) as client:
        rows = [{"body": "x", "session_id": f"s{number % sessions}" if sessions else None} for number in range(10)]
        assert client.sender("some").send_many(list(map(encode, rows))) == [None] * 10
    given = {"connectionString": pair.primary.connection_string, "fromSequenceNumber": begin, "toSequenceNumber": "7"}
    stream = DeleteStream(parse(given, {}), lambda: ["some"])
    end = stream.latestOffset(stream.initialOffset())
    assert places(end) == {"some": 8}
    assert stream.latestOffset(end) == end
    found = [read(each) for each in peeked(pair.primary, "some")]
    assert [row["sequence_number"] for row in found] == left and not any(row.get("delivery_count") for row in found)


@pytest.mark.parametrize("kind", ["peek", "delete"])
def test_a_checkpoint_of_another_stream_is_refused_and_removes_nothing(
    pair: Pair, make_queue: MakeQueue, kind: str
) -> None:
    make_queue(pair.primary, "some", "others")
    for entity in ("some", "others"):
        send_keyed(pair, entity, KEYS[:5], "x")
    ended = stream_of(pair, "peek", "some").latestOffset({"some": 1})
    assert places(ended) == {"some": 6}
    words = "of a stream of some, and this one reads others; give each stream a checkpointLocation of its own"
    with pytest.raises(InvalidOption, match=words):
        stream_of(pair, kind, "others").latestOffset(ended)
    with pytest.raises(InvalidOption, match=words):
        stream_of(pair, kind, "others").partitions({"some": 1}, ended)
    second = stream_of(pair, "peek", "others").latestOffset({"others": 1}, SimpleNamespace(max_rows=2))
    both = {**ended, **second, "$enqueued": {**ended["$enqueued"], **second["$enqueued"]}}
    stream = stream_of(pair, kind, "others")  # of a stream that read both, and now reads one
    end = stream.latestOffset(both)
    assert places(end) == {"some": 6, "others": 6} and len(bodies(stream, both, end)) == 3
    stream.commit(end)
    assert [len(peeked(pair.primary, each)) for each in ("some", "others")] == [5, 0 if kind == "delete" else 5]


@pytest.mark.parametrize("kind", ["peek", "delete"])
def test_a_checkpoint_goes_on_where_its_entity_is_spelled_in_another_letter_case(
    pair: Pair, make_queue: MakeQueue, kind: str
) -> None:
    make_queue(pair.primary, "some")
    send_keyed(pair, "some", KEYS[:5], "x")
    start = stream_of(pair, "peek", "some").latestOffset({"some": 1}, SimpleNamespace(max_rows=3))
    assert places(start) == {"some": 4}
    stream = stream_of(pair, kind, "Some")
    end = stream.latestOffset(start)
    assert places(end) == {"Some": 6} and len(bodies(stream, start, end)) == 2


KEYS = [f"key-{number}" for number in range(40)]


def send_keyed(pair: Pair, entity: str, keys: list[str], text: str) -> None:
    """Send a message for each key, to the partitions of the keys."""
    with wire(pair.primary) as client:
        payloads = [encode({"body": f"{text} {key}", "partition_key": key}) for key in keys]
        assert client.sender(entity).send_many(payloads) == [None] * len(keys)


def bodies(stream: PeekStream, start: dict[str, object], end: dict[str, object]) -> list[str]:
    """Read a batch as Spark does: its partitions, each of them once."""
    return [
        body.decode()
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for body in batch.column("body").to_pylist()
    ]


def stream_of(pair: Pair, kind: str, entity: str, **given: str) -> PeekStream:
    options = {"connectionString": pair.primary.connection_string, "entity": entity, "mode": kind, **given}
    made = stream_reader(parse(options, {}), lambda: [entity])
    assert isinstance(made, PeekStream)
    return made


@pytest.mark.parametrize("kind", ["peek", "delete"])
@pytest.mark.parametrize("rows_max", [7, 1000])
def test_a_partitioned_queue_is_read_whole_while_messages_arrive_in_every_partition(
    pair: Pair, make_queue: MakeQueue, kind: str, rows_max: int
) -> None:
    make_queue(pair.primary, "parts", enable_partitioning=True)
    stream = stream_of(pair, kind, "parts")
    at: dict[str, object] = stream.initialOffset()
    assert at == {"parts": 1}
    seen: list[str] = []
    sent: list[str] = []
    for turn in range(4):
        keys = KEYS[turn * 10 :] + KEYS[: turn * 3]
        send_keyed(pair, "parts", keys, f"turn {turn}:")
        sent += [f"turn {turn}: {key}" for key in keys]
        for _ in range(2):
            end = json.loads(json.dumps(stream.latestOffset(at, SimpleNamespace(max_rows=rows_max))))
            batch = bodies(stream, at, end)
            assert len(batch) <= rows_max
            seen += batch
            at = end
        stream = stream_of(pair, kind, "parts")  # a crash: another process goes on with what was written down
    while (end := stream.latestOffset(at, SimpleNamespace(max_rows=rows_max))) != at:
        seen += bodies(stream, at, end)
        at = end
    assert sorted(seen) == sorted(sent)
    by_partition = at["parts"]
    assert isinstance(by_partition, dict) and len(by_partition) > 10
    assert sum(by_partition.values()) - len(by_partition) == len(sent), "the numbers count within each partition"
    assert len(peeked(pair.primary, "parts")) == (0 if kind == "delete" else len(sent))


def test_a_delete_stream_removes_nothing_that_it_has_not_read_of_any_partition(
    pair: Pair, make_queue: MakeQueue
) -> None:
    make_queue(pair.primary, "spared", enable_partitioning=True)
    send_keyed(pair, "spared", KEYS, "first")
    stream = stream_of(pair, "delete", "spared")
    end = stream.latestOffset(stream.initialOffset(), SimpleNamespace(max_rows=1000))
    send_keyed(pair, "spared", KEYS, "second")
    stream.commit(end)
    left = [read(each)["body"].decode() for each in peeked(pair.primary, "spared")]
    assert sorted(left) == sorted(f"second {key}" for key in KEYS)


def test_a_partition_that_is_down_is_read_when_it_is_back(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "down", enable_partitioning=True)
    send_keyed(pair, "down", KEYS, "x")
    stream = stream_of(pair, "peek", "down")
    start = stream.initialOffset()
    with fault(pair.data, "unreachable", namespace="contoso", entity="down", partition=partition_for(KEYS[0])):
        first = stream.latestOffset(start)
        seen = bodies(stream, start, first)
    assert f"x {KEYS[0]}" not in seen and len(seen) > 20
    second = stream.latestOffset(first)
    assert sorted(seen + bodies(stream, first, second)) == sorted(f"x {key}" for key in KEYS)


def test_a_run_over_what_is_there_ends_before_what_arrives_in_other_partitions(
    pair: Pair, make_queue: MakeQueue
) -> None:
    make_queue(pair.primary, "goal", enable_partitioning=True)
    send_keyed(pair, "goal", KEYS[:3], "there")
    stream = stream_of(pair, "peek", "goal")
    stream.prepareForTriggerAvailableNow()
    send_keyed(pair, "goal", KEYS, "later")
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    assert sorted(bodies(stream, start, end)) == [f"there {key}" for key in KEYS[:3]]
    assert stream.latestOffset(end) == end


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_where_a_stream_starts(pair: Pair, make_queue: MakeQueue, is_partitioned: bool) -> None:
    name = f"start-{is_partitioned}"
    make_queue(pair.primary, name, enable_partitioning=is_partitioned)
    send_keyed(pair, name, KEYS, "old")
    times = [read(each)["enqueued_time"] for each in peeked(pair.primary, name)]
    between = max(times) + dt.timedelta(milliseconds=1)
    streams = {position: stream_of(pair, "peek", name, startingPosition=position) for position in ("latest",)}
    begun = {position: stream.initialOffset() for position, stream in streams.items()}
    while dt.datetime.now(dt.UTC) < between:  # broker and test share a clock
        pass
    send_keyed(pair, name, KEYS, "new")
    streams["time"] = stream_of(pair, "peek", name, startingPosition=between.isoformat())
    begun["time"] = streams["time"].initialOffset()
    copied = json.dumps({name: begun["latest"][name]})  # a position may be copied from an offset
    streams["json"] = stream_of(pair, "peek", name, startingPosition=copied)
    begun["json"] = streams["json"].initialOffset()
    for position, stream in streams.items():
        start = begun[position]
        assert stream.initialOffset() == start, "Spark may ask again before the first batch"
        end = stream.latestOffset(start)
        assert sorted(bodies(stream, start, end)) == sorted(f"new {key}" for key in KEYS), position
        # The first batch is run again after a crash: Spark asks a new process where the stream begins.
        other = stream_of(pair, "peek", name, startingPosition="latest")
        assert sorted(bodies(other, other.initialOffset(), end)) == sorted(f"new {key}" for key in KEYS), position


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_delete_stream_that_starts_later_leaves_what_was_there(
    pair: Pair, make_queue: MakeQueue, is_partitioned: bool
) -> None:
    name = f"later-{is_partitioned}"
    make_queue(pair.primary, name, enable_partitioning=is_partitioned)
    send_keyed(pair, name, KEYS, "old")
    stream = stream_of(pair, "delete", name, startingPosition="latest")
    start = stream.initialOffset()
    send_keyed(pair, name, KEYS, "new")
    end = stream.latestOffset(start)
    assert len(bodies(stream, start, end)) == len(KEYS)
    again = stream_of(pair, "delete", name, startingPosition="latest")  # after a crash
    assert again.latestOffset(end) == end
    left = [read(each)["body"].decode() for each in peeked(pair.primary, name)]
    assert sorted(left) == sorted(f"old {key}" for key in KEYS)


def test_a_position_for_an_entity_that_is_not_read_is_refused(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "named")
    with pytest.raises(InvalidOption, match="names 'other', which is not read; read are named"):
        stream_of(pair, "peek", "named", startingPosition='{"other": 5}').initialOffset()


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_messages_that_are_gone_before_they_are_read_fail_the_query_where_asked(
    pair: Pair, make_queue: MakeQueue, is_partitioned: bool
) -> None:
    name = f"loss-{is_partitioned}"
    make_queue(pair.primary, name, enable_partitioning=is_partitioned)
    send_keyed(pair, name, [KEYS[0]] * 3, "a")
    with wire(pair.primary) as client:
        receiver = client.receiver(name)
        receiver.complete(receiver.receive(1, max_wait=5.0))  # gone before the stream began: no loss
        receiver.close()
    stream = stream_of(pair, "peek", name, failOnDataLoss="true")
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    assert bodies(stream, start, end) == [f"a {KEYS[0]}"] * 2
    send_keyed(pair, name, [KEYS[0]] * 5, "b")
    ahead = stream.latestOffset(end)
    planned = stream.partitions(end, ahead)
    with wire(pair.primary) as client:
        receiver = client.receiver(name)
        receiver.complete(receiver.receive(3, max_wait=5.0))  # the two that were read, and one that was not
        receiver.close()
    where = f"partition {partition_for(KEYS[0])} of '{name}'" if is_partitioned else f"'{name}'"
    with pytest.raises(DataLoss, match=f"message 4 of {where} can't be read"):
        stream.partitions(end, ahead)
    with pytest.raises(DataLoss, match=f"message 4 of {where} can't be read"):
        [list(stream.read(each)) for each in planned]
    assert bodies(stream_of(pair, "peek", name), end, ahead) == [f"b {KEYS[0]}"] * 4, "by default they are passed over"


def test_how_far_a_stream_is_behind(pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    make_queue(pair.primary, "behind", enable_partitioning=True)
    send_keyed(pair, "behind", KEYS, "x")
    stream = stream_of(pair, "peek", "behind")
    end = stream.latestOffset(stream.initialOffset(), SimpleNamespace(max_rows=10))
    report = stream.reportLatestOffset()
    assert report is not None
    lag = report.pop("$lag")
    assert lag["messages"] == 30 and lag["entities"]["behind"]["messages"] == 30
    assert 0 <= lag["oldestAgeSeconds"] < 60
    assert report == places(stream_of(pair, "peek", "behind").latestOffset({"behind": 1})), (
        "what is there, as an offset"
    )
    end = stream.latestOffset(end)
    caught_up = stream.reportLatestOffset()
    assert caught_up == {**places(end), "$lag": {"messages": 0, "oldestAgeSeconds": 0.0, "entities": {}}}


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_what_a_batch_read_finds_between_two_positions(pair: Pair, make_queue: MakeQueue, is_partitioned: bool) -> None:
    name = f"between-{is_partitioned}"
    make_queue(pair.primary, name, enable_partitioning=is_partitioned)
    send_keyed(pair, name, KEYS, "old")
    latest = stream_of(pair, "peek", name).latestOffset({name: 1})
    send_keyed(pair, name, KEYS, "new")

    def found(**given: str) -> list[str]:
        options = parse({"connectionString": pair.primary.connection_string, **given}, {})
        reader = ServiceBusReader(options.address, lambda: [name], Wanted(), options.starting, options.ending)
        slices = reader.partitions()
        return sorted(
            body.decode() for each in slices for batch in reader.read(each) for body in batch.column("body").to_pylist()
        )

    old, new = (sorted(f"{text} {key}" for key in KEYS) for text in ("old", "new"))
    assert found() == sorted(old + new)
    assert found(startingPosition=json.dumps(latest)) == new
    assert found(endingPosition=json.dumps(latest)) == old
    assert found(startingPosition=json.dumps(latest), endingPosition=json.dumps(latest)) == []
    assert found(endingPosition="2020-01-01T00:00Z") == []
    assert found(startingPosition="2020-01-01T00:00Z") == sorted(old + new)


def test_a_first_batch_that_was_planned_before_there_was_a_starting_position_runs_again_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark asks once more where the stream begins, and has the batch's end from before the option was added."""
    stream = PeekStream(parse({"connectionString": "Endpoint=sb://x", "entity": "a"}, {}), lambda: ["a"])
    holds(monkeypatch, stream, range(1, 20))
    (found,) = stream.partitions({"a": 5, "$from": {"a": 5}}, {"a": 9})
    assert found == Slice("a", (Range(1, 8),))


# -- entities that are deleted and made again


def made_again(pair: Pair, name: str, count: int, is_partitioned: bool = False) -> list[str]:
    """Delete a queue, make it again and fill it; return the bodies."""
    with admin_of(pair.primary) as admin:
        admin.delete_queue(name)
        admin.create_queue(name, enable_partitioning=is_partitioned)
    keys = [KEYS[number % len(KEYS)] for number in range(count)]
    send_keyed(pair, name, keys, "new")
    return sorted(f"new {key}" for key in keys)


@pytest.mark.parametrize("is_partitioned", [False, True])
@pytest.mark.parametrize("count", [7, 100])
@pytest.mark.parametrize("kind", ["peek", "delete"])
def test_an_entity_that_was_made_again_is_read_from_its_first_message(
    pair: Pair, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture, kind: str, count: int, is_partitioned: bool
) -> None:
    """With fewer messages than were read before, or with more, so that the numbers have grown beyond the offset."""
    name = f"again-{kind}-{count}-{is_partitioned}"
    make_queue(pair.primary, name, enable_partitioning=is_partitioned)
    send_keyed(pair, name, KEYS, "old")
    stream = stream_of(pair, kind, name)
    at = json.loads(json.dumps(stream.latestOffset(stream.initialOffset())))
    assert len(bodies(stream, {name: 1}, at)) == len(KEYS)
    new = made_again(pair, name, count, is_partitioned)
    stream = stream_of(pair, kind, name)  # after a restart
    end = json.loads(json.dumps(stream.latestOffset(at)))
    assert len(peeked(pair.primary, name)) == count, "nothing is removed that was not read"
    assert sorted(bodies(stream, at, end)) == new
    assert sorted(bodies(stream_of(pair, kind, name), at, end)) == new, "the batch is run again after a crash"
    assert stream.latestOffset(end) == end
    assert len(peeked(pair.primary, name)) == (0 if kind == "delete" else count)
    assert "was deleted and made again; it is read from its first message" in caplog.text
    send_keyed(pair, name, KEYS, "later")
    last = stream.latestOffset(end)
    assert "$anew" not in last and sorted(bodies(stream, end, last)) == sorted(f"later {key}" for key in KEYS)


@pytest.mark.parametrize("count", [7, 100])
@pytest.mark.parametrize("kind", ["peek", "delete"])
def test_an_entity_that_was_made_again_fails_the_query_where_asked(
    pair: Pair, make_queue: MakeQueue, kind: str, count: int
) -> None:
    name = f"again-fails-{kind}-{count}"
    make_queue(pair.primary, name)
    send_keyed(pair, name, KEYS, "old")
    stream = stream_of(pair, kind, name, failOnDataLoss="true")
    at = stream.latestOffset(stream.initialOffset())
    assert len(bodies(stream, {name: 1}, at)) == len(KEYS)
    made_again(pair, name, count)
    for _ in range(2):
        with pytest.raises(DataLoss, match=f"'{name}' was deleted and made again since .* a new checkpointLocation"):
            stream_of(pair, kind, name, failOnDataLoss="true").latestOffset(at)
    with pytest.raises(DataLoss, match="was deleted and made again"):  # as Spark before 4.2 has it
        stream_of(pair, kind, name, failOnDataLoss="true").partitions(at, {name: count + 1})
    assert len(peeked(pair.primary, name)) == count


@pytest.mark.parametrize("may_manage", [True, False])
def test_that_an_entity_was_made_again_is_known_without_its_first_messages_to_who_may_manage_it(
    pair: Pair, make_queue: MakeQueue, may_manage: bool
) -> None:
    name = f"again-managed-{may_manage}"
    make_queue(pair.primary, name)
    send_keyed(pair, name, KEYS, "old")
    given = {"failOnDataLoss": "true", **({"caFile": str(pair.primary.ca_file)} if may_manage else {})}
    stream = stream_of(pair, "peek", name, **given)
    at = stream.latestOffset(stream.initialOffset())
    made_again(pair, name, 50)
    with wire(pair.primary) as client:
        receiver = client.receiver(name)
        receiver.complete(receiver.receive(40, max_wait=5.0))
        receiver.close()
    stream = stream_of(pair, "peek", name, **given)
    if may_manage:
        with pytest.raises(DataLoss, match="was deleted and made again"):
            stream.latestOffset(at)
    else:
        assert len(bodies(stream, at, stream.latestOffset(at))) == 10, "nothing that is there is passed over"


@pytest.mark.parametrize("kind", ["peek", "delete"])
def test_an_offset_of_an_earlier_version_goes_on(pair: Pair, make_queue: MakeQueue, kind: str) -> None:
    name = f"earlier-{kind}"
    make_queue(pair.primary, name)
    send_keyed(pair, name, KEYS[:5], "old")
    stream = stream_of(pair, kind, name)
    at: dict[str, object] = {name: 6}
    if kind == "peek":
        assert stream.latestOffset(at) == at
    else:  # it is not known whether these were read, so that they are read again rather than removed
        end = stream.latestOffset(at)
        assert len(peeked(pair.primary, name)) == 5
        assert len(bodies(stream, at, end)) == 5
        assert stream.latestOffset(end) == end and peeked(pair.primary, name) == []
        at = end
    send_keyed(pair, name, KEYS[5:8], "new")
    end = stream.latestOffset(at)
    assert len(bodies(stream, at, end)) == 3 and "$enqueued" in end
    made_again(pair, name, 4)
    stream = stream_of(pair, kind, name)
    assert len(bodies(stream, {name: 9}, stream.latestOffset({name: 9}))) == 4, "it ends below the offset"


@pytest.mark.parametrize("begin", ["1", "2"])
def test_of_an_entity_that_is_made_again_at_the_last_moment_nothing_is_removed(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    make_queue(pair.primary, "moment")
    send_keyed(pair, "moment", KEYS, "old")
    stream = stream_of(pair, "delete", "moment", fromSequenceNumber=begin)
    at = stream.latestOffset(stream.initialOffset())
    made_again(pair, "moment", 100)
    monkeypatch.setattr(stream, "_made_again", lambda offset: set())  # it was looked just before
    stream.commit(at)
    assert len(peeked(pair.primary, "moment")) == 100


def test_scheduled_messages_say_nothing_of_when_a_stream_read(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "mixed")
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    with wire(pair.primary) as client:
        payloads = [encode({"body": "now"})] + [encode({"body": "x", "scheduled_enqueue_time_utc": later})] * 20
        assert client.sender("mixed").send_many(payloads) == [None] * 21
    stream = stream_of(pair, "peek", "mixed")
    at = stream.latestOffset(stream.initialOffset())
    assert at["$enqueued"]["mixed"]["0"] < later.timestamp() * 1000 - 3_000_000
    new = made_again(pair, "mixed", 5)
    assert sorted(bodies(stream, at, stream.latestOffset(at))) == new
