"""`pairbus move`, `archive` and `restore` on a real Spark: one session, and one more program for the signal."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Header, Properties, encode_message
from pairbus.amqp.types import Array, Symbol, Timestamp
from pairbus.broker import NamespaceServer
from pairbus.cli import main
from pairbus.pairing.backlog.aliases import sent_anew
from pairbus.spark import archive, archived, move, restore
from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.connector.schema import read
from pairbus.spark.pipelines.archive import Archiver, Restorer
from pairbus.spark.pipelines.move import EntityAddress, Mover
from pairbus.spark.pipelines.preflight import TransferFailed
from pairbus.testing import fault
from tests.waiting import until

from .conftest import MakeQueue, Pair, peeked, wire
from .fault_scene import kill, workers_of
from .test_spark_proof import EVERY_TYPE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
BODIES: list[Any] = [
    b"data",
    ("data", [b"a", b"b"]),
    ("value", {"k": [1, None]}),
    ("value", Array([1, 2], 0x81)),
    ("value", "text"),
    ("sequence", [[1, "two"]]),
]


def message(number: int, **application: Any) -> bytes:
    return encode_message(
        Header(durable=True, ttl=3_600_000) if number % 2 else Header(durable=True),
        {Symbol("x-opt-partition-key"): "p"} if number % 5 == 4 else None,
        Properties(message_id=f"m{number}", subject=f"s{number % 3}", group_id="g" if number % 4 == 3 else None),
        {"n": number, **EVERY_TYPE, **application},
        body=BODIES[number % len(BODIES)],
    )


def send(namespace: NamespaceServer, entity: str, *payloads: bytes) -> None:
    with wire(namespace) as client:
        assert client.sender(entity).send_many(payloads) == [None] * len(payloads)


def bury(namespace: NamespaceServer, entity: str, reason: str, words: str = "as the test wanted") -> None:
    with wire(namespace) as client:
        receiver = client.receiver(entity)
        while found := receiver.receive(100, max_wait=1):
            receiver.dead_letter(found, reason, words)


def exact(namespace: NamespaceServer, entity: str) -> dict[str, bytes]:
    return {str(read(each)["message_id"]): _plain(each) for each in peeked(namespace, entity)}


def _plain(payload: bytes) -> bytes:
    return sent_anew(payload, is_dead_letter=False)


def free(namespace: NamespaceServer, entity: str) -> int:
    """How many can be locked at once; they are given back."""
    found = 0
    with wire(namespace) as client:
        receiver = client.receiver(entity)
        held: list[Any] = []
        while some := receiver.receive(500, max_wait=1):
            held += some
            found += len(some)
        receiver.release(held)
    return found


@pytest.fixture(autouse=True)
def queues(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "orders", lock_duration=dt.timedelta(seconds=15), max_delivery_count=50)
    make_queue(pair.primary, "bills")
    make_queue(pair.secondary, "copies")


def test_dead_letters_go_back_by_filter_and_count_and_the_others_are_not_touched(spark: Any, pair: Pair) -> None:
    messages = {f"m{number}": message(number) for number in range(60)}
    send(pair.primary, "orders", *messages.values())
    bury(pair.primary, "orders", "TooLate")
    found: dict[str, Any] = {"namespace": pair.primary.connection_string, "spark": spark}
    dead = "orders/$DeadLetterQueue"
    where = "dead_letter_reason = 'TooLate' AND subject = 's1' AND application_properties['n'] >= 10"
    report, remaining = move(dead, "orders", where=where, count=5, **found)
    assert (report.moved, remaining) == (5, [])
    assert exact(pair.primary, "orders") == {f"m{n}": _plain(messages[f"m{n}"]) for n in (10, 13, 16, 19, 22)}
    assert free(pair.primary, dead) == 55, "nothing is left locked"
    assert {read(each)["delivery_count"] for each in peeked(pair.primary, dead)} == {0}
    report, _ = move(dead, "orders", where="try_cast(CAST(body AS STRING) AS INT) = 7", **found)
    assert report.moved == 0
    with pytest.raises(
        InvalidOption, match=r"'colour = 1' is not understood: there is no column colour; .* message_id str"
    ):
        move(dead, "orders", where="colour = 1", **found)
    with pytest.raises(InvalidOption, match="is not understood"):
        move(dead, "orders", where="subject", **found)
    for never in ("enqueued_time between '2026-11-16' and '2026-11-31'", "sequence_number > 'ten'", "subject = null"):
        with pytest.raises(InvalidOption, match="is true for no message, whatever it holds: perhaps it names a time"):
            move(dead, "orders", where=never, **found)
    report, remaining = move(dead, "orders", **found)
    assert (report.moved, remaining) == (55, []) and exact(pair.primary, "orders") == {
        name: _plain(each) for name, each in messages.items()
    }


def test_p39_a_worker_that_dies_in_mid_move_loses_nothing(spark: Any, pair: Pair) -> None:
    send(pair.primary, "orders", *map(message, range(300)))
    source = EntityAddress(pair.primary_address, "orders", "contoso")
    mover = Mover(source, EntityAddress(pair.secondary_address, "copies", "backup"), spark=spark)
    left: list[Any] = []
    thread = threading.Thread(target=lambda: left.append(mover.run()))
    with fault(pair.data, "lost-answer", namespace="backup", entity="copies", delay=60):
        thread.start()
        until(lambda: len(peeked(pair.secondary, "copies")) >= 100)
        assert kill(workers_of(os.getpid()))
    thread.join(120)
    assert not thread.is_alive() and left == [[]]
    arrived = Counter(str(read(each)["message_id"]) for each in _all(pair.secondary, "copies"))
    assert arrived.keys() == {f"m{number}" for number in range(300)}, "lost"
    assert max(arrived.values()) <= 3 and peeked(pair.primary, "orders") == []


def _all(namespace: NamespaceServer, entity: str) -> Iterator[bytes]:
    with wire(namespace) as client:
        number = 1
        while found := client.peek(entity, number, 250):
            yield from found
            number = read(found[-1])["sequence_number"] + 1


def test_an_archive_and_back_is_the_same_to_the_byte(spark: Any, pair: Pair, tmp_path: Path) -> None:
    later = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(4_000_000_000_000)}
    messages = {f"m{number}": message(number, DeadLetterReason="our own") for number in range(48)}
    messages["later"] = encode_message(None, later, Properties(message_id="later"), body=b"x")
    send(pair.primary, "bills", *messages.values())
    folder = tmp_path / "archive"
    done = archive(spark, pair.primary.connection_string, "bills", folder)
    assert (done.messages, done.removed, len(peeked(pair.primary, "bills"))) == (49, 0, 49)
    assert archive(spark, pair.primary_address, "bills", folder, where="subject = 's1'").messages == 16
    assert archived(spark, folder).count() == 49, "a message that is there twice counts once"
    assert (
        archived(spark, folder).where("time_to_live = INTERVAL '1' HOUR AND enqueued_time > '2020-01-01'").count() == 24
    )
    assert restore(spark, folder, pair.secondary.connection_string, "copies") == 49
    assert exact(pair.secondary, "copies") == {name: _plain(each) for name, each in messages.items()}
    with pytest.raises(TransferFailed, match="has no queue or topic 'bills'"):
        restore(spark, folder, pair.secondary.connection_string)


def test_what_one_engine_archived_the_other_restores(spark: Any, pair: Pair, tmp_path: Path) -> None:
    messages = {f"m{number}": message(number, DeadLetterReason="our own") for number in range(48)}
    send(pair.primary, "bills", *messages.values())
    by_spark, here = tmp_path / "spark", tmp_path / "here"
    assert archive(spark, pair.primary_address, "bills", by_spark).messages == 48
    assert Archiver(pair.primary_address, "bills", here, in_process=True).run() == []
    one, other = (archived(spark, folder).drop("batch") for folder in (by_spark, here))
    assert one.schema == other.schema
    names = [name for name in one.columns if name != "application_properties"]
    texts = [*names, "to_json(application_properties)"]  # maps can't be compared
    assert one.selectExpr(*texts).exceptAll(other.selectExpr(*texts)).isEmpty() and other.count() == 48
    assert restore(spark, here, pair.secondary.connection_string, "copies") == 48
    assert exact(pair.secondary, "copies") == {name: _plain(each) for name, each in messages.items()}
    assert Archiver(pair.primary_address, "bills", by_spark, remove=True, in_process=True).run() == []
    assert archived(spark, by_spark).count() == 48, "Spark's files and these, each message once"
    back = Restorer(by_spark, pair.primary_address, in_process=True)
    assert back.run() == [] and back.report().moved == 48
    assert exact(pair.primary, "bills") == {name: _plain(each) for name, each in messages.items()}


def test_several_tasks_move_exactly_what_was_chosen(spark: Any, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["pairbus.spark.pipelines.transfer_loop"], "TASK_MAX", 100)
    messages = [message(number) for number in range(1000)]
    send(pair.primary, "orders", *messages)
    found: dict[str, Any] = {"namespace": pair.primary.connection_string, "spark": spark}
    report, remaining = move("orders", "copies", to=pair.secondary.connection_string, count=700, **found)
    assert (report.moved, remaining) == (700, [])
    assert sorted(_plain(each) for each in _all(pair.secondary, "copies")) == sorted(map(_plain, messages[:700]))
    left = [read(each) for each in _all(pair.primary, "orders")]
    assert {each["message_id"] for each in left} == {f"m{number}" for number in range(700, 1000)}
    assert {each["delivery_count"] for each in left} == {0} and free(pair.primary, "orders") == 300


def test_p41_a_restore_keeps_to_its_rate(spark: Any, pair: Pair, tmp_path: Path) -> None:
    send(pair.primary, "bills", *map(message, range(120)))
    archiver = Archiver(pair.primary_address, "bills", tmp_path / "a", spark=spark)
    said: set[str | None] = set()
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(archiver.run)
        while not copying.done():
            said.add(archiver.report().waiting_for)
            time.sleep(0.01)
        assert copying.result() == [] and archiver.archived == 120
    assert any(each and re.fullmatch(r"Spark, \d+ of \d+ parts done", each) for each in said), said
    begun = time.monotonic()
    restorer = Restorer(tmp_path / "a", pair.secondary_address, "copies", spark=spark, max_rate=40)
    seen: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(restorer.run)
        while not running.done():
            seen.append(restorer.report().moved)
            time.sleep(0.1)
        assert running.result() == [] and restorer.report().moved == 120
    assert len(set(seen)) > 3, "progress while it runs"
    times = sorted(read(each)["enqueued_time"].timestamp() for each in _all(pair.secondary, "copies"))
    assert times[-1] - times[0] >= 120 / 40 - 0.6 and time.monotonic() - begun < 30
    assert max(sum(first <= each < first + 1 for each in times) for first in times) <= 40 * 1.5 + 1


def test_a_restore_is_stopped_in_mid_job(spark: Any, pair: Pair, tmp_path: Path) -> None:
    send(pair.primary, "bills", *map(message, range(120)))
    archive(spark, pair.primary.connection_string, "bills", tmp_path / "a")
    slow = Restorer(tmp_path / "a", pair.primary_address, "orders", spark=spark, max_rate=5)
    stopped: list[float] = []

    def stop_in_mid_job() -> None:
        until(lambda: peeked(pair.primary, "orders"))
        stopped.append(time.time())
        slow.stop()

    stopping = threading.Thread(target=stop_in_mid_job, daemon=True)
    stopping.start()
    with pytest.raises(TransferFailed, match="was not restored as a whole: it was stopped; what was sent stays sent"):
        slow.run()
    stopping.join(10)
    time.sleep(4)  # Spark lets the Python of a cancelled task go on for three seconds, at five messages a second
    times = [read(each)["enqueued_time"].timestamp() for each in peeked(pair.primary, "orders")]
    assert 0 < len(times) < 120 and max(times) < stopped[0] + 1, "what was given up sends no more"
    assert restore(spark, tmp_path / "a", pair.primary.connection_string, "orders", where="subject = 's1'") == 40


def test_an_archive_that_is_interrupted_before_it_removes_loses_nothing_and_doubles_nothing(
    spark: Any, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = {f"m{number}": message(number) for number in range(600)}
    send(pair.primary, "orders", *messages.values())
    module = sys.modules["pairbus.spark.pipelines.archive"]
    settle = module.settle
    archived_only: list[set[int]] = []

    def dies(address: Any, entity: str, locked: dict[Any, int]) -> Any:
        if locked:
            archived_only.append(set(locked.values()))
            if len(archived_only) == 2:
                raise KeyboardInterrupt
        return settle(address, entity, locked)

    monkeypatch.setattr(module, "settle", dies)
    with pytest.raises(KeyboardInterrupt):  # as if the process had died: files are committed, messages not removed
        archive(spark, pair.primary.connection_string, "orders", tmp_path / "a", remove=True)
    # how many a round takes is up to the machine: at least one of the 600 waited for the second
    kept = {row["sequence_number"] for row in archived(spark, tmp_path / "a").collect()}
    queued = {read(each)["sequence_number"] for each in _all(pair.primary, "orders")}
    assert len(kept | queued) == 600, "each is in the queue or in a file"
    assert archived_only[1] <= kept & queued, "files first"
    done = archive(spark, pair.primary.connection_string, "orders", tmp_path / "a", remove=True)
    assert (done.removed, done.remaining) == (len(queued), []) and peeked(pair.primary, "orders") == []
    assert spark.read.parquet(str(tmp_path / "a")).count() >= 600 + len(archived_only[1])
    assert archived(spark, tmp_path / "a").count() == 600
    assert restore(spark, tmp_path / "a", pair.primary.connection_string) == 600, "back to where they came from"
    assert {str(read(each)["message_id"]): _plain(each) for each in _all(pair.primary, "orders")} == {
        name: _plain(each) for name, each in messages.items()
    }


@pytest.mark.parametrize("engine", ["spark", "in-process"])
def test_a_signal_ends_a_move_early_and_leaves_nothing_locked(pair: Pair, tmp_path: Path, engine: str) -> None:
    send(pair.primary, "bills", *map(message, range(200)))
    (tmp_path / "contoso").write_text(pair.primary.connection_string)
    command = [sys.executable, "-m", "pairbus", "move", "--from", "@contoso", "bills", "orders", "--engine", engine]
    with subprocess.Popen(
        [*command, "--max-rate", "20", "--json", "--ledger", "ledger"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as moving:
        assert moving.stdout is not None
        for line in moving.stdout:
            if json.loads(line)["moved"] >= 10:
                break
        moving.send_signal(signal.SIGTERM)
        result = json.loads(moving.stdout.read().splitlines()[-1])
        assert moving.wait(60) == 130
    assert result["kind"] == "result" and result["outcome"] == "stopped" and result["not_moved"] == []
    moved = result["moved"]
    assert 10 <= moved < 200 and len(peeked(pair.primary, "orders")) == moved
    assert free(pair.primary, "bills") == 200 - moved
    lines = [json.loads(line) for file in (tmp_path / "ledger").iterdir() for line in file.read_text().splitlines()]
    assert sum(line.get("kind") == "move" and line["cause"] == "move" for line in lines) == moved


# -- the documents


def run_console(document: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Runs the console blocks of a how-to that name a test; commands, with what they print and what is shown."""
    text = (ROOT / document).read_text()
    shown: list[tuple[str, str]] = []
    for block in re.findall(r"<!-- tested by: \S+_proof\S+ -->\n```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, wanted = part.partition("\n")
            program, *arguments = shlex.split(line, comments=True)
            assert program == "pairbus", line
            with contextlib.suppress(SystemExit):
                main(arguments)
            pattern = re.escape(wanted.strip()).replace("…", ".*")
            said = capsys.readouterr()
            printed = said.out.strip()
            assert re.fullmatch(pattern, printed, re.DOTALL), f"{line}\nprints\n{printed}\n{said.err}and not\n{wanted}"
            shown.append((line, printed))
    return shown


@pytest.fixture
def folder(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "contoso").write_text(pair.primary.connection_string)
    (tmp_path / "backup").write_text(pair.secondary.connection_string)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_how_to_on_dead_letters_prints_what_it_shows(
    spark: Any, pair: Pair, folder: Path, make_queue: MakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    make_queue(pair.primary, "invoices", requires_session=True)
    for reason, start, count in (("CustomerUnknown", 0, 30), ("PriceMissing", 30, 12)):
        send(
            pair.primary,
            "orders",
            *(
                encode_message(properties=Properties(message_id=f"o{n}", subject="invoice"), body=b'{"total": 12}')
                for n in range(start, start + count)
            ),
        )
        bury(pair.primary, "orders", reason, "K-204 is not known" if reason == "CustomerUnknown" else "no price")
    assert len(run_console("docs/how-to/replay-dead-letters.md", capsys)) >= 4
    assert peeked(pair.primary, "orders/$DeadLetterQueue") == [] and free(pair.primary, "orders") == 42


def test_the_how_to_on_archives_prints_what_it_shows(
    spark: Any, pair: Pair, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(pair.primary, "orders", *map(message, range(100)))
    assert len(run_console("docs/how-to/archive-a-queue.md", capsys)) >= 3


def test_the_tutorial_s_own_pipeline_runs(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is written, with no name defined beforehand."""
    text = (ROOT / "docs/tutorial/queues-as-dataframes.md").read_text()
    ((program, shown),) = re.findall(
        r"<!-- tested by: \S+test_the_tutorial_s_own_pipeline_runs -->\n```python\n(.*?)```\n\n"
        r"<!-- output -->\n```text\n(.*?)```",
        text,
        re.DOTALL,
    )
    exec(compile(program, "tutorial", "exec"), {"__name__": "tutorial"})
    assert capsys.readouterr().out == shown
