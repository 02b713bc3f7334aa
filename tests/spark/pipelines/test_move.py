"""A whole move between real brokers, round by round, in this process: what Spark would run, and who decides what."""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Header, Properties, encode_message
from pairbus.amqp.types import Symbol
from pairbus.broker import NamespaceServer
from pairbus.ledger import LedgerWriter
from pairbus.pairing.backlog.aliases import sent_anew
from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.connector.schema import read
from pairbus.spark.connector.selection import Selection
from pairbus.spark.pipelines import transfer_loop
from pairbus.spark.pipelines.archive import Archiver, Restorer
from pairbus.spark.pipelines.move import EntityAddress, Mover, move
from pairbus.spark.pipelines.preflight import Chosen, TransferFailed
from pairbus.spark.pipelines.transfer import run_here
from pairbus.spark.syphon import sink
from pairbus.testing import fault

from ..conftest import MakeQueue, Pair, admin_of, peeked, wire


def message(number: int, **properties: Any) -> bytes:
    return encode_message(
        Header(durable=True, ttl=3_600_000 + number),
        {Symbol("x-opt-partition-key"): "p"} if number % 5 == 4 else None,
        Properties(message_id=f"m{number}", subject=f"s{number % 2}", **properties),
        {"n": number, "DeadLetterReason": "my own"} if number % 7 == 6 else {"n": number},
        body=[b"data", ("value", {"k": [1, None]}), ("sequence", [[1, "two"]]), ("data", [b"a", b"b"])][number % 4],
    )


def send(namespace: NamespaceServer, entity: str, *payloads: bytes) -> None:
    with wire(namespace) as client:
        assert client.sender(entity).send_many(payloads) == [None] * len(payloads)


def dead_letter(namespace: NamespaceServer, entity: str, count: int) -> None:
    with wire(namespace) as client:
        receiver = client.receiver(entity)
        found = receiver.receive(count, max_wait=5)
        while len(found) < count:
            found += receiver.receive(count - len(found), max_wait=5)
        receiver.dead_letter(found, "TooLate", "it was too late")


def ids(namespace: NamespaceServer, entity: str) -> list[str]:
    return sorted((str(read(payload)["message_id"]) for payload in peeked(namespace, entity)), key=lambda m: int(m[1:]))


def counts(namespace: NamespaceServer, entity: str) -> set[int]:
    return {read(payload)["delivery_count"] or 0 for payload in peeked(namespace, entity)}


@pytest.fixture(autouse=True)
def queues(pair: Pair, make_queue: MakeQueue) -> Iterator[None]:
    make_queue(pair.primary, "orders", "bills", lock_duration=dt.timedelta(seconds=30))
    make_queue(pair.secondary, "copies", lock_duration=dt.timedelta(seconds=30))
    yield
    assert not sink._tasks_of_worker, "connections are left open"


class Jobs:
    """Counts the jobs of a move and their tasks; `before_job` gets the number of each before it runs."""

    def __init__(self) -> None:
        self.before_job: Callable[[int], None] = lambda number: None
        self.jobs = self.tasks = 0

    def __call__(self, reader: Any, writer: Any) -> None:
        self.jobs += 1
        self.before_job(self.jobs)
        self.tasks += len(reader.partitions())
        run_here(reader, writer)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    found = Jobs()
    # the package's `move` is the function
    monkeypatch.setattr(sys.modules["pairbus.spark.pipelines.move"], "run_here", found)
    return found


def places(pair: Pair, source: str, destination: str, away: bool = False) -> tuple[EntityAddress, EntityAddress]:
    target = pair.secondary_address if away else pair.primary_address
    return EntityAddress(pair.primary_address, source, "contoso"), EntityAddress(
        target, destination, "backup" if away else "contoso"
    )


def test_it_arrives_byte_for_byte_in_another_namespace(pair: Pair, jobs: Jobs) -> None:
    messages = [message(number) for number in range(40)]
    send(pair.primary, "orders", *messages)
    mover = Mover(*places(pair, "orders", "copies", away=True), in_process=True)
    assert mover.run() == []
    assert peeked(pair.primary, "orders") == []
    found = {
        read(each)["message_id"]: sent_anew(each, is_dead_letter=False) for each in peeked(pair.secondary, "copies")
    }
    assert found == {f"m{number}": sent_anew(each, is_dead_letter=False) for number, each in enumerate(messages)}
    report = mover.report()
    assert (report.moved, report.remaining, report.left) == (40, 0, 0)


def test_p41_dead_letters_go_back_without_their_marks(pair: Pair, jobs: Jobs) -> None:
    messages = [message(number) for number in range(6)]  # number 6 would have a mark of its own
    send(pair.primary, "orders", *messages)
    dead_letter(pair.primary, "orders", 6)
    (dead, *_) = peeked(pair.primary, "orders/$DeadLetterQueue")
    assert read(dead)["dead_letter_reason"] == "TooLate"
    report, remaining = move(
        "orders/$DeadLetterQueue", "orders", namespace=pair.primary.connection_string, in_process=True
    )
    assert (report.moved, remaining) == (6, [])
    assert peeked(pair.primary, "orders/$DeadLetterQueue") == []
    back = sorted(peeked(pair.primary, "orders"), key=lambda each: read(each)["message_id"])
    assert [sent_anew(each, is_dead_letter=False) for each in back] == [
        sent_anew(each, is_dead_letter=False) for each in messages
    ]


def test_a_count_takes_the_oldest_and_leaves_the_others_untouched(pair: Pair, jobs: Jobs) -> None:
    send(pair.primary, "orders", *map(message, range(30)))
    mover = Mover(*places(pair, "orders", "bills"), in_process=True, count=10)
    assert mover.run() == []
    assert ids(pair.primary, "bills") == [f"m{n}" for n in range(10)]
    assert ids(pair.primary, "orders") == [f"m{n}" for n in range(10, 30)]
    assert counts(pair.primary, "orders") == {0}, "none was locked and abandoned on the way"


def test_a_count_is_exact_where_several_tasks_receive(pair: Pair, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_loop, "TASK_MAX", 40)
    send(pair.primary, "orders", *map(message, range(150)))
    mover = Mover(*places(pair, "orders", "bills"), in_process=True, count=100)
    assert mover.run() == []
    assert (jobs.jobs, jobs.tasks) == (1, 3)
    assert ids(pair.primary, "bills") == [f"m{n}" for n in range(100)]
    assert ids(pair.primary, "orders") == [f"m{n}" for n in range(100, 150)]
    assert counts(pair.primary, "orders") == {0}
    assert Mover(*places(pair, "orders", "copies", away=True), in_process=True, max_rate=20).run() == []
    assert jobs.tasks - 3 == jobs.jobs - 1, "what a ceiling makes small is for one task"


def test_what_is_not_chosen_is_passed_over_and_released(
    pair: Pair, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a filter: the chosen ones lie between others, and behind them."""
    monkeypatch.setattr(transfer_loop, "TASK_MAX", 2)
    send(pair.primary, "orders", *map(message, range(700)))
    wanted = [3, 7, 400, 650, 690]
    monkeypatch.setattr(
        sys.modules["pairbus.spark.pipelines.move"], "choose", lambda *_: Chosen(Selection.of(wanted), len(wanted))
    )
    mover = Mover(*places(pair, "orders", "bills"), in_process=True, where="given above")
    assert mover.run() == [] and jobs.tasks == jobs.jobs, "a second one would pass over the same messages"
    assert ids(pair.primary, "bills") == [f"m{number - 1}" for number in wanted]
    assert len(peeked(pair.primary, "orders")) == 695 and counts(pair.primary, "orders") == {0}
    with wire(pair.primary) as client:
        (first,) = client.receiver("orders").receive(1, max_wait=5)
        assert first.sequence_number == 1, "nothing is left locked"


def test_what_comes_meanwhile_is_not_meant(pair: Pair, jobs: Jobs) -> None:
    send(pair.primary, "orders", *map(message, range(20)))
    jobs.before_job = lambda number: send(pair.primary, "orders", message(100 + number))
    assert Mover(*places(pair, "orders", "bills"), in_process=True).run() == []
    assert ids(pair.primary, "bills") == [f"m{n}" for n in range(20)]
    assert set(ids(pair.primary, "orders")) == {f"m{100 + n}" for n in range(1, jobs.jobs + 1)}


def test_topics_and_subscriptions(pair: Pair, jobs: Jobs) -> None:
    with admin_of(pair.primary) as admin:
        admin.create_topic("news")
        for name in ("all", "other"):
            admin.create_subscription("news", name)
        try:
            send(pair.primary, "orders", *map(message, range(5)))
            assert Mover(*places(pair, "orders", "news"), in_process=True).run() == []
            assert ids(pair.primary, "news/Subscriptions/all") == ids(pair.primary, "news/Subscriptions/other")
            assert Mover(*places(pair, "news/Subscriptions/all", "bills"), in_process=True).run() == []
            assert ids(pair.primary, "bills") == [f"m{n}" for n in range(5)]
            assert peeked(pair.primary, "news/Subscriptions/all") == []
            assert len(peeked(pair.primary, "news/Subscriptions/other")) == 5
        finally:
            admin.delete_topic("news")


def test_p40_what_is_refused_for_good_stays_with_its_reason_and_is_not_buried(
    pair: Pair, jobs: Jobs, make_queue: MakeQueue
) -> None:
    make_queue(pair.primary, "in-sessions", requires_session=True)
    send(pair.primary, "orders", *(message(n, group_id="s" if n % 3 else None) for n in range(9)))
    mover = Mover(*places(pair, "orders", "in-sessions"), in_process=True)
    (left,) = mover.run()
    assert (left.path, left.messages) == ("orders", 3) and "session" in left.reason
    assert ids(pair.primary, "orders") == ["m0", "m3", "m6"]
    assert counts(pair.primary, "orders") == {1}, "each was tried once, and once only"
    assert peeked(pair.primary, "orders/$DeadLetterQueue") == []
    with wire(pair.primary) as client:
        assert len(client.receiver("orders").receive(3, max_wait=5)) == 3, "nothing is left locked"


def test_a_destination_that_goes_away_leaves_the_rest_where_it_was(
    pair: Pair, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_loop, "PAUSE_S_FIRST", 0.05)
    send(pair.primary, "orders", *map(message, range(8)))
    mover = Mover(*places(pair, "orders", "bills"), in_process=True)
    with fault(pair.data, "no-send", namespace="contoso", entity="bills"):
        (left,) = mover.run()
    assert left.messages == 8 and "amqp:internal-error" in left.reason
    assert ids(pair.primary, "orders") == [f"m{n}" for n in range(8)] and peeked(pair.primary, "bills") == []
    assert counts(pair.primary, "orders") <= {1, 2, 3}
    assert Mover(*places(pair, "orders", "bills"), in_process=True).run() == []
    assert ids(pair.primary, "bills") == [f"m{n}" for n in range(8)]


def test_what_another_receiver_holds_is_told_after_a_while(pair: Pair, jobs: Jobs) -> None:
    send(pair.primary, "orders", *map(message, range(5)))
    with wire(pair.primary) as client:
        receiver = client.receiver("orders")
        held = receiver.receive(2, max_wait=5)
        mover = Mover(*places(pair, "orders", "bills"), in_process=True, patience_s=0.5)
        (left,) = mover.run()
        assert left.messages == len(held) and "locked by another receiver" in left.reason
        receiver.complete(held)
    assert len(peeked(pair.primary, "bills")) == 5 - len(held)


def test_what_another_receiver_takes_is_gone(pair: Pair, jobs: Jobs) -> None:
    send(pair.primary, "orders", *map(message, range(5)))

    def take_one(number: int) -> None:
        if number == 1:
            with wire(pair.primary) as client:
                receiver = client.receiver("orders")
                receiver.complete(receiver.receive(1, max_wait=5))

    jobs.before_job = take_one
    mover = Mover(*places(pair, "orders", "bills"), in_process=True, count=5)
    assert mover.run() == []
    assert (mover.report().moved, mover.gone) == (4, 1)


def test_a_stop_ends_it_after_the_round_and_leaves_nothing_locked(pair: Pair, jobs: Jobs) -> None:
    send(pair.primary, "orders", *map(message, range(30)))
    mover = Mover(*places(pair, "orders", "bills"), in_process=True, max_rate=10)
    jobs.before_job = lambda number: mover.stop() if number == 2 else None
    thread = threading.Thread(target=mover.run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    moved = mover.report().moved
    assert 0 < moved < 30 and len(peeked(pair.primary, "bills")) == moved
    with wire(pair.primary) as client:
        receiver, found = client.receiver("orders"), 0
        while some := receiver.receive(50, max_wait=1):
            found += len(some)
        assert found == 30 - moved


def test_the_ledger_has_a_line_for_each_with_its_cause(pair: Pair, jobs: Jobs, tmp_path: Path) -> None:
    send(pair.primary, "orders", *map(message, range(3)))
    writer = LedgerWriter(tmp_path, "move")
    Mover(*places(pair, "orders", "copies", away=True), in_process=True, ledger=writer).run()
    writer.close()
    lines = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    moves = [line for line in lines if line.get("kind") == "move"]
    assert {line["mid"] for line in moves} == {"m0", "m1", "m2"}
    assert {(line["cause"], line["ns"], line["entity"], line["outcome"]) for line in moves} == {
        ("move", "backup", "copies", "ok")
    }


def test_a_round_that_fails_is_run_again_and_too_many_end_it(
    pair: Pair, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PySparkRuntimeError

    monkeypatch.setattr(transfer_loop, "PAUSE_S_FIRST", 0.01)

    def fail(number: int) -> None:
        if number in bad:
            raise PySparkRuntimeError("the task died")

    jobs.before_job = fail
    send(pair.primary, "orders", *map(message, range(3)))
    bad = {1, 2}
    assert Mover(*places(pair, "orders", "bills"), in_process=True).run() == []
    send(pair.primary, "orders", *map(message, range(3)))
    jobs.jobs, bad = 0, set(range(10))
    with pytest.raises(TransferFailed, match="the rounds fail, the last one with: the task died"):
        Mover(*places(pair, "orders", "bills"), in_process=True).run()


@pytest.mark.parametrize("wrong", [-1, "x", float("nan")])
def test_a_wrong_patience_is_told(pair: Pair, wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="patience_s is a number of seconds of at least 0, not "):
        Mover(*places(pair, "orders", "bills"), patience_s=wrong)


def test_an_entity_is_not_moved_to_itself(pair: Pair) -> None:
    with pytest.raises(TransferFailed, match="Orders is both ends of the move"):
        Mover(*places(pair, "Orders", "orders"))
    mover = Mover(*places(pair, "orders", "bills"))
    assert repr(mover) == "<Mover <EntityAddress orders of contoso> to <EntityAddress bills of contoso>>"


def test_spark_is_not_started_for_an_empty_queue_or_a_wrong_filter(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_queue(pair.primary, "empty", "there")

    def refuse(*_: Any) -> Any:
        raise AssertionError("Spark is started for nothing")

    monkeypatch.setattr("pairbus.spark.pipelines.transfer.started", refuse)
    empty, there = (EntityAddress(pair.primary_address, each, "contoso") for each in ("empty", "there"))
    for where in (None, "subject = 'x'"):
        mover = Mover(empty, there, where=where)
        assert mover.run() == [] and mover.report().remaining == 0
        for remove in (False, True):
            assert Archiver(pair.primary_address, "empty", tmp_path / "x", where=where, remove=remove).run() == []
    with pytest.raises(InvalidOption, match="there is no column colour"):
        Mover(empty, there, where="colour = 'red'").run()
    (tmp_path / "batch=1").mkdir()
    (tmp_path / "batch=1" / "x.parquet").touch()
    with pytest.raises(TransferFailed, match="has no queue or topic 'nowhere'"):
        Restorer(tmp_path, pair.primary_address, "nowhere").run()
    with pytest.raises(InvalidOption, match="there is no column colour"):
        Restorer(tmp_path, pair.primary_address, "there", where="colour = 'red'").run()
