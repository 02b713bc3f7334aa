"""What the supervisor of the query makes of the notices that reach it, without Spark."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.ledger import LedgerWriter
from pairbus.pairing.backlog.aliases import divert_encoded
from pairbus.spark.connector.lock_reader import MOVES, QUEUES, LockStream, Share, is_halted
from pairbus.spark.connector.options import parse
from pairbus.spark.connector.process_mailbox import STOP, ProcessMailbox
from pairbus.spark.syphon.query import SparkSyphon, look_s
from pairbus.syphon.core import queue_discovery
from pairbus.syphon.core.queue_discovery import Listed, QueueDiscovery
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.listing import Lister
from pairbus.syphon.settings import SyphonSettings
from pairbus.wire.errors import Unreachable
from tests.spark.conftest import MakeQueue, Pair, wire

QUEUE = "contoso/x-servicebus-transfer/0"
NOWHERE = "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"


def make(queues: Any = ((QUEUE, 0),), pair: Pair | None = None, **settings: Any) -> SparkSyphon:
    texts = [NOWHERE] * 2 if pair is None else [each.connection_string for each in (pair.primary, pair.secondary)]
    return SparkSyphon(SyphonSettings(*map(Endpoint.from_connection_string, texts), queues, **settings))


def lister(find: Any) -> Lister:
    return Lister(QueueDiscovery("contoso", "backup"), find)


class Looking:
    """Stands where the loop thread stands: nothing is given back to a broker."""

    def run(self, coroutine: Any) -> None:
        coroutine.close()


@pytest.fixture
def syphon() -> Iterator[SparkSyphon]:
    made = make()
    yield made
    shutil.rmtree(made._folder)


def notice(*left: tuple[str, str, str, float, bool], troubles: dict[str, Any] | None = None) -> dict[str, Any]:
    nothing: dict[str, Any] = {"moved": {}, "bytes": 0, "dead_lettered": {}, "refused": [], "denied": {}, "busy": []}
    return {**nothing, "batch": 1, "left": list(left), "troubles": troubles or {}}


def tokens(found: list[tuple[str, str]]) -> list[str]:
    return [token for _, token in found]


def test_p40_one_message_tries_a_destination_that_is_away_and_all_follow_when_it_is_back(syphon: SparkSyphon) -> None:
    end = time.time() + 60
    away = {"orders": ("unreachable", "connection refused", "pairbus:unreachable", 1)}
    syphon._heard_of_sink(notice((QUEUE, "a", "orders", end, False), (QUEUE, "b", "orders", end, False), troubles=away))
    assert syphon._chosen(set()) == [], "it was tried just now"
    assert tokens(syphon._chosen({"orders"})) == ["a"]
    syphon._heard_of_sink({**notice(), "moved": {"orders": 1}})
    assert tokens(syphon._chosen(set())) == ["a", "b"]


def test_p41_what_a_replay_can_never_deliver_is_not_asked_back(syphon: SparkSyphon) -> None:
    end = time.time() + 60
    syphon._heard_of_sink(notice((QUEUE, "a", "", end, True), (QUEUE, "b", "orders", end, False)))
    assert tokens(syphon._chosen(set())) == ["b"]
    assert tokens(list(syphon._left)) == ["a", "b"], "a clean stop gives back both"


def test_p36_a_queue_that_is_new_is_told_to_the_source_and_to_the_next_query(syphon: SparkSyphon) -> None:
    syphon.progress.counted(10)
    late = QUEUE.replace("/0", "/3")
    syphon._take_in([Listed(late, 3, 5, 0)])
    assert ProcessMailbox(syphon._folder).read_new(QUEUES) == [{"entities": [late]}]
    assert (syphon._paths, syphon._indexes) == ([QUEUE, late], {QUEUE: 0, late: 3})
    assert syphon.report().remaining == 15


def test_p36_a_replay_reads_the_dead_letters_of_the_new_queue() -> None:
    replay = make([], dead_letters=True, lister=lister(nothing))
    replay._take_in([Listed(QUEUE, 0, 5, 1)])
    assert replay._paths == [f"{QUEUE}/$DeadLetterQueue"]
    shutil.rmtree(replay._folder)


async def nothing() -> list[Listed]:
    return []


def test_p36_it_waits_for_the_first_queue_before_it_starts_spark(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_discovery, "FIRST_S", 0.1)
    found: list[Listed] = []
    looks = 0
    has_looked_twice = threading.Event()

    async def find() -> list[Listed]:
        nonlocal looks
        looks += 1
        if looks == 2:
            has_looked_twice.set()
        return found

    waiting = make([], lister=lister(find))
    begun: list[list[str]] = []

    def session() -> Any:
        begun.append(list(waiting._paths))
        waiting.stop()

    monkeypatch.setattr(waiting, "_session", session)
    monkeypatch.setattr(waiting, "_keep_running", lambda spark, looking: [])
    thread = threading.Thread(target=waiting.run)
    thread.start()
    assert has_looked_twice.wait(10)
    assert begun == []
    assert waiting.report().waiting_for == "backup has no backlog queue of contoso yet"
    found.append(Listed(QUEUE, 0, 0, 0))
    thread.join(5)
    assert begun == [[QUEUE]] and waiting.report().waiting_for is None
    assert caplog.messages[0].endswith("waiting for the first to appear (pairbus provision makes them)")
    stopped = make([], lister=lister(nothing))
    stopped.stop()
    assert stopped.run() == []
    with pytest.raises(ValueError, match="no backlog queue"):
        make([], lister=lister(nothing), drain=True)


def test_p36_a_queue_that_is_gone_is_no_trouble_of_the_secondary(
    syphon: SparkSyphon, caplog: pytest.LogCaptureFixture
) -> None:
    late = QUEUE.replace("/0", "/3")
    syphon._take_in([Listed(late, 3, 0, 0)])
    caplog.clear()
    gone = {"entity": late, "t": 1.0, "condition": "amqp:not-found", "error": "deleted (amqp:not-found)"}
    for kind in ("LinkLost", "NotFound", "NotFound"):
        syphon._heard_of_source({**gone, "kind": kind})
    assert caplog.messages == [f"{late} does not exist any more; it is looked for again"]
    assert (syphon.progress.waiting_for, syphon._failures) == (None, 0)
    syphon._heard_of_source({**gone, "entity": QUEUE, "kind": "NotFound"})
    assert syphon.progress.waiting_for == "none of the backlog queues exists"
    syphon._heard_of_source({"epoch": 5, "entities": [late]})
    syphon._heard_of_sink(notice())
    syphon._heard_of_source({**gone, "entity": QUEUE, "kind": "NotFound"})
    assert syphon.progress.waiting_for is None, "one is back"


def test_p41_a_drain_looks_past_a_queue_that_is_not_there_and_so_does_a_stop(pair: Pair, make_queue: MakeQueue) -> None:
    """Without the Manage right the queues are taken to be 0 to 9."""
    make_queue(pair.secondary, QUEUE)
    with wire(pair.secondary) as client:
        client.sender(QUEUE).send(encode_message(properties=Properties(message_id="m1"), body=b"x"))
        (held,) = client.receiver(QUEUE).receive(1, max_wait=5)
        missing = QUEUE.replace("/0", "/3")
        looking = make([(missing, 3), (QUEUE, 0)], pair, drain=True)
        assert [each.key[0] for each in asyncio.run(looking._scan())] == [QUEUE]
        asyncio.run(looking._release([(missing, str(uuid4())), (QUEUE, str(held.lock_token))]))
        assert len(client.receiver(QUEUE).receive(1, max_wait=5)) == 1, "it was given back"
    shutil.rmtree(looking._folder)


def test_p24_a_destination_that_is_due_is_tried_once_and_then_after_its_pause(syphon: SparkSyphon) -> None:
    end = time.time() + 60
    away = {"orders": ("unreachable", "connection refused", "pairbus:unreachable", 1)}
    syphon._heard_of_sink(notice((QUEUE, "a", "orders", end, False), troubles=away))
    trouble = syphon._troubles["orders"]
    assert trouble.until > time.monotonic()
    syphon._troubles["orders"] = trouble._replace(until=0.0)
    syphon._revive(Looking())  # type: ignore[arg-type]
    assert syphon._troubles["orders"].until > time.monotonic()


class Query:
    """What the supervisor asks of a query."""

    def __init__(self, epoch: int | None) -> None:
        end = None if epoch is None else json.dumps({"epoch": epoch})
        self.lastProgress = None if end is None else {"sources": [{"endOffset": end}]}


def settled(syphon: SparkSyphon, query: Query) -> bool:
    return syphon._is_settled(query)  # type: ignore[arg-type]


def test_p41_a_drain_glances_at_the_backlog_once_all_that_was_taken_is_home(syphon: SparkSyphon) -> None:
    syphon._moved_at -= 0.5
    syphon._heard_of_source({"epoch": 7, "entities": [QUEUE]})
    assert not settled(syphon, Query(None)), "nothing is known before the first batch is over"
    assert not settled(syphon, Query(6)), "a batch is under way"
    assert settled(syphon, Query(7))
    end = time.time() + 60
    syphon._heard_of_sink({**notice(), "moved": {"orders": 1}})
    assert not settled(syphon, Query(7)), "the next batch may be about to begin"
    syphon._moved_at -= 0.5
    assert settled(syphon, Query(7))
    syphon._heard_of_sink(notice((QUEUE, "a", "orders", end, False)))
    syphon._moved_at -= 0.5
    assert not settled(syphon, Query(7)), "a message was left to its lock"
    syphon._left.clear()
    away = {"orders": ("unreachable", "connection refused", "pairbus:unreachable", 1)}
    syphon._heard_of_sink(notice(troubles=away))
    assert not settled(syphon, Query(7)), "P40: its pauses are kept"


def test_p41_a_glance_ends_a_drain_only_where_it_finds_nothing(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = QUEUE.replace("/0", "/1")
    make_queue(pair.secondary, QUEUE, other)
    asked: list[str] = []

    def asking(self: SparkSyphon) -> Any:
        asked.append("session")
        raise ValueError("a session is wanted")

    monkeypatch.setattr(SparkSyphon, "_session", asking)

    def drain() -> list[Any]:
        return make([(QUEUE, 0), (other, 1)], pair, drain=True).run()

    assert (drain(), asked) == ([], []), "no JVM for nothing"
    with wire(pair.secondary) as client:
        client.sender(other).send(encode_message(properties=Properties(message_id="m1"), body=b"x"))
        with pytest.raises(ValueError, match="a session"):
            drain()
        (held,) = client.receiver(other).receive(1, max_wait=5)
        with pytest.raises(ValueError, match="a session"):  # P39: what another syphon holds is not home
            drain()
        client.settle_by_token(other, [held.lock_token], "completed")
    assert drain() == []


def test_p41_a_glance_that_fails_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(self: SparkSyphon) -> bool:
        raise Unreachable("pairbus:unreachable", "connection refused")

    monkeypatch.setattr(SparkSyphon, "_glance", failing)
    monkeypatch.setattr(SparkSyphon, "_session", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(drain=True).run()


@pytest.mark.parametrize("count", [0, 1, 2, 37])
def test_how_many_are_left_is_known_from_a_few_peeks(pair: Pair, make_queue: MakeQueue, count: int) -> None:
    other = QUEUE.replace("/0", "/1")
    make_queue(pair.secondary, QUEUE, other)
    with wire(pair.secondary) as client:
        for path, messages in ((QUEUE, count + 3), (other, 2)):
            payloads = [encode_message(properties=Properties(message_id=f"m{n}"), body=b"x") for n in range(messages)]
            assert client.sender(path).send_many(payloads) == [None] * messages
        receiver = client.receiver(QUEUE)
        receiver.complete(receiver.receive(3, max_wait=5))
    missing = QUEUE.replace("/0", "/3")
    queues = [(missing, 3), (QUEUE, 0), (other, 1)]
    counting = make(queues, pair, drain=True)
    asyncio.run(counting._count())
    assert counting.report().remaining == count + 2
    counting.progress.counted(5)
    asyncio.run(counting._count())
    assert counting.report().remaining == 5, "the caller knows better"
    shutil.rmtree(counting._folder)


def test_a_warm_up_is_one_batch_and_its_end(syphon: SparkSyphon, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Warming(Query):
        @property
        def isActive(self) -> bool:
            return not syphon._mailbox.is_raised(STOP)

        def stop(self) -> None:
            told.append("stopped")

    query = Warming(None)
    monkeypatch.setattr(syphon, "_session", lambda: None)
    monkeypatch.setattr(syphon, "_query", lambda spark: query)
    warming = threading.Thread(target=syphon.warm_up)
    warming.start()
    warming.join(0.3)
    assert warming.is_alive() and told == [], "the first batch is under way"
    query.lastProgress = {"sources": []}
    warming.join(5)
    assert not warming.is_alive() and told == ["stopped"]
    assert not syphon._folder.exists()
    syphon._folder.mkdir()  # the fixture removes it


@pytest.mark.parametrize("is_starting", [False, True])
def test_p44_a_stop_before_spark_has_started_starts_no_query(
    monkeypatch: pytest.MonkeyPatch, is_starting: bool
) -> None:
    stopped = make(on_running=lambda: pytest.fail("it runs"))
    begun: list[str] = []

    def session() -> None:
        begun.append("session")
        stopped.stop()

    monkeypatch.setattr(stopped, "_session", session)
    monkeypatch.setattr(stopped, "_query", lambda spark: begun.append("query"))
    if not is_starting:
        stopped.stop()
    assert stopped.run() == []
    assert begun == (["session"] if is_starting else []), "nor a JVM for who has no use for it any more"
    assert not stopped._folder.exists()


def test_what_a_lost_task_moved_is_told_as_unknown(tmp_path: Path) -> None:
    """An executor that dies takes with it what it knew; the next attempt at its task tells that there was one."""
    ledger = LedgerWriter(tmp_path, "syphon")
    syphon = make(ledger=ledger)
    syphon._mailbox.append(MOVES, {**notice(), "moved": {"orders": 1}, "retried": 2})
    syphon._hear()
    ledger.close()
    report = syphon.report()
    assert (report.moved, report.lost_tasks, report.as_json()["lost_tasks"]) == (1, 2, 2)
    assert "and what 2 lost tasks moved" in report.line()
    assert ledger.path is not None and '"kind":"gap","events":2' in ledger.path.read_text()


def test_p24_the_halts_of_the_application_reach_the_source() -> None:
    halted = {"orders": time.monotonic() + 10.0}
    syphon = make(halted_until=lambda path: halted.get(path, 0.0))
    syphon._mailbox.append(MOVES, {**notice(), "moved": {"orders": 1, "bills": 1}})
    syphon._hear()
    stream = LockStream(parse(syphon.source_options(), {}), lambda: [QUEUE])
    stream._hear(time.monotonic())
    assert stream._halts.keys() == {"orders"} and 9.0 < stream._halts["orders"] - time.time() < 10.1
    end = {"epoch": 1, "entities": [QUEUE], "count": 5, "halts": {"Orders": time.time() + 5.0}}
    (share,) = stream.partitions({"epoch": 0}, end)
    assert isinstance(share, Share)
    to_orders, to_bills = (divert_encoded(encode_message(body=b"x"), each) for each in ("orders", "bills"))
    assert is_halted(to_orders, share.halts, time.time()) and not is_halted(to_bills, share.halts, time.time())
    assert not is_halted(to_orders, share.halts, time.time() + 6.0)
    halted.clear()
    syphon._hear()
    stream._hear(time.monotonic())
    assert not stream._halts


@pytest.mark.parametrize(
    ("is_drain", "quiet_s", "expected"),
    [
        (True, 0.0, 0.03),
        (True, 600.0, 0.03),
        (False, 0.0, 0.1),
        (False, 1.9, 0.1),
        (False, 2.0, 0.5),
        (False, 9e9, 0.5),
    ],
)
def test_the_query_is_looked_at_less_often_when_nothing_comes(is_drain: bool, quiet_s: float, expected: float) -> None:
    assert look_s(is_drain, quiet_s) == expected
