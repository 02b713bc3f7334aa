"""How fast an archive is sent, with a clock of our own; and the sink between real brokers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.spark.connector import connections, writer
from pairbus.spark.connector.options import PATIENCE_S
from pairbus.spark.connector.process_mailbox import STOP, ProcessMailbox
from pairbus.spark.connector.schema import Outgoing
from pairbus.spark.connector.writer import NotSent, Patience, Sent, send_patiently
from pairbus.spark.pipelines.restore_sink import SENT, RestoreOptions, RestoreWriter, shares
from pairbus.syphon.core.destinations import HALT_S
from pairbus.syphon.core.rate_limit import RateLimit
from pairbus.testing import fault
from pairbus.wire.errors import Busy, TimedOut, WireError
from tests.spark.conftest import MakeQueue, Pair, peeked

BUSY = Busy("com.microsoft:server-busy", "wait a little")


class Scene:
    """A destination with its clock; `answer` says of a message at a time what it gets."""

    def __init__(self, answer: Callable[[bytes, float], WireError | None] = lambda *_: None) -> None:
        self.now = 100.0
        self.answer = answer
        self.sent: list[tuple[float, bytes]] = []
        self.tries = 0

    def send(self, payloads: Sequence[bytes]) -> list[WireError | None]:
        self.now += 0.001
        self.tries += len(payloads)
        answers = [self.answer(each, self.now) for each in payloads]
        self.sent += [(self.now, each) for each, error in zip(payloads, answers, strict=True) if error is None]
        return answers

    def run(self, count: int, rate: RateLimit) -> None:
        payloads = [b"%d" % number for number in range(count)]
        told: list[bytes] = []
        assert send_patiently(self.send, payloads, self.patience(rate), told.extend) == []
        assert sorted(each for _, each in self.sent) == sorted(payloads), "each once"
        assert told == [each for _, each in self.sent], "and said so as it was confirmed"

    def patience(self, rate: RateLimit) -> Patience:
        return Patience("orders", rate, clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("ceiling", [0.5, 7.0, 200.0])
def test_p41_never_more_than_the_ceiling_and_half_a_second_s_worth(ceiling: float) -> None:
    scene = Scene()
    count = int(ceiling * 10)
    scene.run(count, RateLimit(ceiling))
    times = [at for at, _ in scene.sent]
    for first in range(count):
        for span in (1.0, 5.0):
            within = sum(times[first] <= at < times[first] + span for at in times)
            assert within <= ceiling * (span + 0.5) + 1
    assert times[-1] - times[0] <= count / ceiling + 1, "and no slower than it may"


def test_without_a_ceiling_it_goes_at_once() -> None:
    scene = Scene()
    scene.run(5000, RateLimit())
    assert scene.now < 101 and scene.tries == 5000


def test_p24_busy_halts_it_and_only_what_was_refused_is_sent_again() -> None:
    scene = Scene(lambda each, now: BUSY if now < 105 and int(each) % 2 else None)
    scene.run(3000, RateLimit())
    assert scene.tries == 3000 + 500, "the first thousand was refused by half"
    assert sum(at < 100 + HALT_S for at, _ in scene.sent) == 500
    assert scene.sent[-1][0] > 100 + HALT_S + 1, "and then it goes on slower"


def test_what_stays_busy_and_what_fails_end_it() -> None:
    scene = Scene(lambda *_: BUSY)
    with pytest.raises(NotSent, match=r"orders has taken no message for 300 s: .*wait a little.*; try later"):
        scene.run(10, RateLimit())
    assert PATIENCE_S <= scene.now - 100 <= PATIENCE_S + 2 * HALT_S
    scene = Scene(lambda each, _: TimedOut("pairbus:timed-out", "no answer") if each == b"3" else None)
    with pytest.raises(NotSent, match=r"orders has taken no message for 300 s: .*no answer"):
        scene.run(10, RateLimit())


@pytest.mark.parametrize("how", ["asked", "taken down"])
def test_a_task_that_spark_has_given_up_sends_no_more(
    pair: Pair, make_queue: MakeQueue, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(pair.primary, "orders")
    mailbox = ProcessMailbox(tmp_path / "board")
    (tmp_path / "board").mkdir()
    # the first goes by itself in every task, since it has no session
    rows = [{"amqp": encode_message(properties=Properties(group_id="s"), body=b"x"), "entity": "orders"}] * 3

    class Given(RestoreWriter):
        def confirmed(self, target: str, messages: Sequence[Outgoing]) -> None:
            super().confirmed(target, messages)
            if len(messages) == 3:
                mailbox.raise_flag(STOP) if how == "asked" else shutil.rmtree(mailbox.folder)

    monkeypatch.setattr(writer, "AT_ONCE", 3)
    given = Given(RestoreOptions(pair.primary_address, "orders", mailbox=mailbox.folder))
    with pytest.raises(NotSent, match="3 messages to orders were not sent: the restore was stopped"):
        given.write(iter([pa.RecordBatch.from_pylist(rows)] * 2))
    assert len(peeked(pair.primary, "orders")) == 3
    connections.close_all()


def test_a_ceiling_is_spread_over_no_more_tasks_than_it_takes() -> None:
    assert [shares(ceiling) for ceiling in (0.1, 500, 2000, 2001, 20_000, 1e9)] == [1, 1, 1, 2, 10, 64]


def test_the_sink_waits_for_a_busy_broker_and_says_what_it_took(
    pair: Pair, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_queue(pair.primary, "orders")
    monkeypatch.setattr(writer, "HALT_S", 0.3)
    rows = [
        {"amqp": encode_message(properties=Properties(message_id=f"m{n}"), body=b"x"), "entity": "orders"}
        for n in range(30)
    ]
    given = RestoreWriter(RestoreOptions(pair.primary_address, "orders", mailbox=str(tmp_path)))
    with fault(pair.data, "throttle", namespace="contoso", entity="orders", rate=50):
        assert given.write(iter([pa.RecordBatch.from_pylist(rows)] * 3)) == Sent(90)
    assert len(peeked(pair.primary, "orders")) == 90
    notices = ProcessMailbox(tmp_path).read_new(SENT)
    assert {notice["to"] for notice in notices} == {"orders"}
    sizes = [len(row["amqp"]) for row in rows]
    assert [sum(notice[name] for notice in notices) for name in ("messages", "bytes")] == [90, 3 * sum(sizes)]
    elsewhere = RestoreWriter(RestoreOptions(pair.primary_address, "orders", mailbox=str(tmp_path / "elsewhere")))
    assert elsewhere.write(iter([pa.RecordBatch.from_pylist(rows)])) == Sent(30)
    with pytest.raises(NotSent, match="30 messages to nowhere were not confirmed"):
        RestoreWriter(RestoreOptions(pair.primary_address, "nowhere")).write(iter([pa.RecordBatch.from_pylist(rows)]))
    connections.close_all()
