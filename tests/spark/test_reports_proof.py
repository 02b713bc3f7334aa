"""The reports on a real Spark: every finding of the audit on ledgers written by hand, all of them in one audit, each in
a namespace of its own; then a real outage. What needs no Spark is tested beside each module."""

from __future__ import annotations

import bisect
import gc
import gzip
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pairbus.cli import main
from pairbus.spark.reports import audit as audit_module
from pairbus.spark.reports import ledgers as ledgers_module
from pairbus.spark.reports.audit import Audit, audit
from pairbus.spark.reports.audit_rules import COUNTS
from pairbus.spark.reports.availability import availability
from pairbus.spark.reports.cost_report import cost_report
from pairbus.spark.reports.ledger_files.compaction import compact
from pairbus.spark.reports.ledgers import BadLedger, Ledgers, read_ledgers
from pairbus.spark.reports.outage_series import series

from . import real_outage
from .audit_scenes import SCENARIOS, Stage
from .ledger_file import LedgerFile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("led {g}+ers")
    for name, (write, _) in SCENARIOS.items():
        write(Stage(root, name))
    return root


@pytest.fixture(scope="module")
def ledgers(spark: Any, root: Path) -> Iterator[Ledgers]:
    with read_ledgers(spark, root) as read:
        yield read


@pytest.fixture(scope="module")
def audited(ledgers: Ledgers) -> Audit:
    return audit(ledgers)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_message_is_accounted_for(audited: Audit, name: str) -> None:
    counts = audited.summary["entities"][f"{name}-orders"]
    assert counts == {**dict.fromkeys(COUNTS, 0), **SCENARIOS[name][1]}


def test_the_ids_are_named_and_the_reasons_said(audited: Audit) -> None:
    details = {
        (each["entity"].removesuffix("-orders"), each["mid"]): (each["finding"], each["detail"])
        for each in audited.summary["findings"]
    }
    assert details["dropped-by-the-syphon", "gone"][0] == "lost"
    assert "never came home" in details["dropped-by-the-syphon", "gone"][1]
    assert "no longer there" in details["vanished-in-the-backlog", "gone"][1]
    assert details["by-the-receivers-alone", "gone"][0] == "unknown"
    assert "it may still be there" in details["by-the-receivers-alone", "gone"][1]
    assert details["cut-by-a-kill", "before"][0] == "unknown"
    assert details["cut-by-a-kill", "after"][0] == "lost"
    assert details["one-id-twice-and-no-broker", "same"][0] == "unknown"
    assert details["without-an-id-but-numbered", "#2"] == ("unknown", "sent without a message id")
    notes = "\n".join(audited.summary["notes"])
    assert "only-clients-orders: 2 unknown: diverted, not seen at home, and no secondary's ledger" in notes
    assert "nobody-received-too: 1 unknown: no receiver's ledger and no broker's ledger of the primary" in notes
    assert "misses 7 events" in notes and "cut by a kill" in notes


def test_clocks_that_disagree_are_said(audited: Audit) -> None:
    said = [note.partition(";")[0] for note in audited.summary["notes"] if "clock" in note]
    assert said == [
        "a-broker-45-s-behind: the broker's clock is 45.0 s behind that of client-10",
        "a-receiver-45-s-behind: a receiver's clock is at least 45.0 s behind that of client-10",
    ]


def test_missing_files_are_said(audited: Audit, root: Path) -> None:
    found = {}
    for each in audited.summary["missing_files"]:
        after, before = (Path(file) if file else None for file in (each["after"], each["before"]))
        scene = (after or before or root).relative_to(root).parts[0]
        names = after and after.name, before and before.name
        found[each["writer"], scene] = each["files"], *names, each["since"], each["until"]
    assert found == {
        ("broker", "a-middle-file-missing"): (
            1, "broker-20-000001.jsonl", "broker-20-000003.jsonl", 40, 60
        ),
        ("broker", "the-first-file-missing"): (1, None, "broker-20-000002.jsonl", None, 60),
        ("broker", "the-last-file-missing"): (None, "broker-20-000001.jsonl", None, 40, None),
        ("broker", "a-file-missing-before-a-restart-of-an-earlier-version"): (
            None, "broker-20-000001.jsonl", "broker-20-000003.jsonl", 40, 60
        ),
        ("client", "a-clients-file-missing"): (2, "client-10-000001.jsonl", "client-10-000004.jsonl", 30, 60),
    }  # fmt: skip
    notes = "\n".join(audited.summary["notes"])
    assert "1 file of a ledger (broker) missing after " in notes
    assert audited.table().startswith(f"lost {audited.summary['lost']}, unknown {audited.summary['unknown']} and what ")


def test_the_counts_are_sums_and_the_exit_code_says_lost(audited: Audit) -> None:
    for name in COUNTS:
        assert audited.summary[name] == sum(each[name] for each in audited.summary["entities"].values())
    assert not audited.ok and audited.exit_code == 1
    assert json.loads(audited.to_json()) == audited.summary
    assert audited.table().splitlines()[0].startswith(f"lost {audited.summary['lost']}, unknown")


def test_what_a_report_caches_ends_with_it(spark: Any, root: Path) -> None:
    """Eighteen audits in one session took all of its memory."""

    def cached() -> int:
        return int(spark.sparkContext._jsc.getPersistentRDDs().size())

    before = cached()
    with read_ledgers(spark, root / "all-well", root / "dropped-by-the-syphon") as read:
        first = audit(read)
        assert cached() > before
        first.close()
        assert cached() == before
        kept = [audit(read), cost_report(read)]
        assert cached() > before
    assert cached() == before
    assert len(kept) == 2


def test_messages_are_a_table_of_findings(audited: Audit, tmp_path: Path, spark: Any) -> None:
    audited.to_parquet(tmp_path)
    table = spark.read.parquet(str(tmp_path / "audit_messages"))
    lost = table.where("finding = 'lost'").selectExpr("sum(count) as n").collect()[0]["n"]
    assert lost == audited.summary["lost"]
    counts = {row["entity"]: row["lost"] for row in spark.read.parquet(str(tmp_path / "audit")).collect()}
    assert counts["lost-at-home-orders"] == 1


def test_p51_compacted_ledgers_say_the_same_as_their_lines(
    spark: Any, ledgers: Ledgers, audited: Audit, root: Path, tmp_path: Path
) -> None:
    """Also where compaction was killed before it could remove a file, and where files of both kinds lie together."""
    shutil.copytree(root, tmp_path / "ledgers")
    killed = sorted((tmp_path / "ledgers").rglob("client-*.jsonl"))[0]
    lines = killed.read_bytes()
    done = compact(tmp_path / "ledgers")
    assert len(done.compacted) > 50 and all("no last line" in each.why for each in done.left)
    killed.write_bytes(lines)
    with read_ledgers(spark, tmp_path / "ledgers") as again:
        found = audit(again).summary
        billed = cost_report(again).summary
    (copy,) = [note for note in found["notes"] if "counts once" in note]
    assert str(killed) in copy
    for summary in (found, billed):
        summary["notes"] = [_as_lines(note, tmp_path / "ledgers", root) for note in summary["notes"] if note != copy]
    for missing in found["missing_files"]:
        for end in ("after", "before"):
            missing[end] = missing[end] and _as_lines(missing[end], tmp_path / "ledgers", root)
    assert sorted(found.pop("notes")) == sorted(audited.summary["notes"])
    assert found == {name: value for name, value in audited.summary.items() if name != "notes"}
    assert billed == cost_report(ledgers).summary


def _as_lines(note: str, folder: Path, root: Path) -> str:
    return note.replace(str(folder), str(root)).replace(".jsonl.parquet", ".jsonl")


def test_spark_and_arrow_read_the_same_of_odd_files(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Arrow would read in another way is left to Spark; on a cluster Spark reads all of it."""
    odd = [
        b'{"t":2.0,"kind":"send","ns":"n","entity":"q","mid":7,"seq":"8"}\n',
        b'\n{"t":3.0,"kind":"send","ns":"n","entity":"q","colour":"red"}\n',
        b'{"t":4.0,"kind":"send","ns":"n","entity":"\xff"}\n\x00\x00\n',
        b'{"t":5.0,"kind":"send","ns":"n","entity":"q"}\r\n',
        b'{"t":6.0,"kind":"send","ns":"n","entity":"\xc3\xa4\\ud83d\\ude00","mid":null}\n{"t":7,"ki',
    ]
    for number, text in enumerate(odd):
        with LedgerFile(tmp_path, "client", "n", pid=number) as book:
            book("send", 1.0, "Q", f"m{number}", ms=0.1, why="so").cut()
        with book.path.open("ab") as file:
            file.write(text)
    packed = tmp_path / "client-9-000001.jsonl.gz"
    packed.write_bytes(gzip.compress(book.path.read_bytes().replace(b'"pid": 4', b'"pid": 9')))

    def read() -> tuple[list[Any], list[Any]]:
        with read_ledgers(spark, tmp_path) as found:
            return tuple(sorted(map(str, table.collect())) for table in (found.events, found.files))  # type: ignore[return-value]

    staged = read()
    monkeypatch.setattr(ledgers_module, "is_local", lambda master: False)
    assert read() == staged and len(staged[0]) >= len(odd) + 4


def test_lines_are_not_kept_in_javas_memory_and_their_temporary_files_go(spark: Any, root: Path) -> None:
    """However many lines there are, the driver and the JVM hold none of them between two questions."""
    stored = len(spark.sparkContext._jsc.sc().getRDDStorageInfo())
    before = set(Path(tempfile.gettempdir()).glob("pairbus-ledgers-*"))
    read = read_ledgers(spark, root)
    assert read.events.count() > 100
    assert len(spark.sparkContext._jsc.sc().getRDDStorageInfo()) == stored
    (made,) = set(Path(tempfile.gettempdir()).glob("pairbus-ledgers-*")) - before
    read.close()
    assert not made.exists()


class TestOrder:
    """The messages of senders in the order of time, against a plain reckoning of the definition."""

    COLUMNS = "home_no int, order_path int, sender_no int, order_seq bigint, begun_us bigint, sent_us bigint"

    @staticmethod
    def rows(count: int, seed: int) -> list[tuple[int, int, int, int, int, int]]:
        """Messages of one sender; few are overtaken. Times meet now and then."""
        dice = random.Random(seed)
        found = []
        for n in range(count):
            begun = n * 10 + dice.randrange(4)
            number = n + (dice.randrange(200) if dice.random() < 0.01 else dice.randrange(2))
            found.append((0, 3, 5, number, begun, begun + dice.randrange(1, 40)))
        return found

    @staticmethod
    def overtaken(rows: list[tuple[int, int, int, int, int, int]]) -> int:
        later = sorted((row[4], row[3]) for row in rows)
        lowest = [number for _, number in later]
        for at in range(len(lowest) - 2, -1, -1):
            lowest[at] = min(lowest[at], lowest[at + 1])
        count = 0
        for *_, number, _, sent in rows:
            at = bisect.bisect_right(later, (sent, 1 << 62))
            count += at < len(lowest) and lowest[at] < number
        return count

    def test_p55_one_sender_with_most_of_the_messages_is_not_one_task(
        self, spark: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = self.rows(6000, 7)
        messages = spark.createDataFrame(rows, self.COLUMNS).cache()
        monkeypatch.setattr(audit_module, "SPAN_MESSAGES", 250)
        # A row stays in the task that looked for those before it.
        by_task = (
            audit_module._with_order(messages, 8)
            .selectExpr("spark_partition_id() as task", "out_of_order")
            .groupBy("task")
            .agg({"out_of_order": "sum", "*": "count"})
            .collect()
        )
        assert sum(row["count(1)"] for row in by_task) == len(rows)
        assert sum(row["sum(out_of_order)"] for row in by_task) == self.overtaken(rows) > 20
        assert max(row["count(1)"] for row in by_task) < len(rows) / 3
        messages.unpersist()

    def test_p55_many_senders_with_few_messages_are_not_parted(
        self, spark: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = [(0, 3, sender, *row[3:]) for sender in range(3) for row in self.rows(50, sender)]
        found = audit_module._with_order(spark.createDataFrame(rows, self.COLUMNS), 2).collect()
        assert {row["span"] for row in found} == {0}


def test_a_half_last_line_is_left_out_and_said(spark: Any, tmp_path: Path) -> None:
    with LedgerFile(tmp_path, "client", "contoso") as book:
        book("send", 10, "orders", "a").cut()
    with book.path.open("a") as file:
        file.write('{"t":11.0,"kind":"send","ns":"cont')
    read = read_ledgers(spark, book.path)
    assert [row["mid"] for row in read.events.collect()] == ["a"]
    (row,) = read.files.collect()
    assert (row["cut"], row["ended"], row["bad_lines"]) == (True, False, 1)
    assert repr(read) == "<Ledgers 1 files of client, 1 of them cut>"


def test_the_same_ledger_given_again_counts_once_however_it_was_copied(spark: Any, tmp_path: Path) -> None:
    stage = Stage(tmp_path / "first", "contoso")
    with stage.client() as client, stage.broker() as broker:
        for n in range(20):
            client("send", 10.0 + n, stage.entity, f"m{n}", ms=4.0)
            stage.arrive(broker, 10.0 + n, f"m{n}", n + 1)
            stage.fetch(broker, 20.0 + n, f"m{n}", n + 1)
    copied, cut, packed = (tmp_path / name for name in ("copied", "cut", "packed"))
    for folder in (copied, cut, packed):
        folder.mkdir()
    for number, path in enumerate((client.path, broker.path)):
        text = path.read_bytes()
        (copied / f"renamed-{number}.jsonl").write_bytes(text)
        (cut / path.name).write_bytes(text[: len(text) // 2])
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(text))
    (tmp_path / "tables%20").mkdir()
    once = read_ledgers(spark, tmp_path / "first")
    once.to_parquet((tmp_path / "tables").as_uri())
    expected = audit(once).summary
    assert (expected["lost"], expected["confirmed"], expected["notes"]) == (0, 20, [])
    given: list[tuple[Path | str, ...]] = [
        (copied, packed, cut, (tmp_path / "first").as_uri()), (tmp_path / "tables", cut, copied),
    ]  # fmt: skip
    for more in given:
        found = audit(read_ledgers(spark, tmp_path / "first", *more)).summary
        notes = found.pop("notes")
        assert found == {name: value for name, value in expected.items() if name != "notes"}, more
        assert all("and counts once" in note for note in notes) and len(notes) == 2 * 3


def test_a_ledger_without_a_line_and_one_without_an_event_do_not_end_the_audit(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage(tmp_path, "contoso")
    with stage.client() as client, stage.broker() as broker, stage.syphon().cut():
        client("send", 10.0, stage.entity, "a", ms=4.0)
        stage.arrive(broker, 10.0, "a", 1)
        stage.fetch(broker, 20.0, "a", 1)
    (tmp_path / "client-77-000001.jsonl").touch()
    target = tmp_path / "audit {1}"
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(tmp_path), "--json", "--parquet", f"file://{quote(str(target))}"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["lost"], found["confirmed"], found["received"]) == (0, 1, 1)
    assert any("client-77-000001.jsonl is empty and left out" in note for note in found["notes"])
    assert {each.name for each in target.iterdir()} == {"events", "files", "audit", "audit_messages"}


def test_an_unknown_file_system_is_told_before_the_work(
    spark: Any, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(root), "--parquet", "nowhere://bucket/audit"])
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert "can't write to nowhere://bucket/audit: No FileSystem for scheme" in said and "file:/// URL works" in said


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ('{"t":1.0,"kind":"send"}\n', "the first line, which names its schema and its writer, is missing"),
        ('{"schema":2,"writer":"client","pid":1,"t":1.0}\n', "of schema 2, and this pairbus reads schema 1; update"),
        ("not even JSON\n", "is no ledger"),
    ],
)
def test_what_is_no_ledger_is_named(spark: Any, tmp_path: Path, first: str, said: str) -> None:
    (tmp_path / "strange-1.jsonl").write_text(first)
    with pytest.raises(BadLedger, match="strange-1") as raised:
        read_ledgers(spark, tmp_path)
    assert said in str(raised.value)


@pytest.fixture(scope="module")
def outage(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Ledgers:
    """Two clients see one outage of `orders`; a send is refused before the first fails over."""
    folder = tmp_path_factory.mktemp("outage")
    with LedgerFile(folder, "client", "contoso", pid=1) as one, LedgerFile(folder, "client", "contoso", pid=2) as two:
        for n in range(10):
            one("send", 100.0 + n, "orders", f"a{n}", ms=3.0)
        one("send", 112, "orders", "b0", ms=2000.0, outcome="OperationTimeoutError")
        one("state", 112, "orders", from_="healthy", to="suspect")
        one("send", 115, "orders", "b1", ms=2000.0, outcome="OperationTimeoutError")
        one("state", 115, "orders", from_="suspect", to="failed over")
        one("divert", 115.1, "orders", "b1", ns="backup", ms=80.0, queue=0)
        one("divert", 116, "orders", "b0", ns="backup", ms=8.0, queue=0)
        two("send", 116, "orders", "c", ms=10.0, outcome="amqp:internal-error")
        two("state", 116, "orders", from_="healthy", to="failed over")
        two("divert", 116.1, "orders", "c", ns="backup", ms=80.0, queue=0)
        for t, outcome in ((120, "amqp:internal-error"), (125, "amqp:internal-error"), (130, "ok")):
            one("ping", t, "orders", ms=10.0, outcome=outcome, cause="ping")
        one("state", 130, "orders", from_="failed over", to="healthy")
        two("state", 131, "orders", from_="failed over", to="healthy")
        one("send", 140, "orders", "d", ms=3.0)
        one("receive", 140.5, "orders", "d", seq=99)
        for n, mid in enumerate(["b1", "b0", "c"]):
            one("move", 135.0 + n, "orders", mid, cause="syphon", queue=0)
            one("receive", 139.0, "orders", mid, seq=n + 50)
        one.end = two.end = 200.0
    return read_ledgers(spark, folder)


def test_availability_of_an_entity(outage: Ledgers, spark: Any, tmp_path: Path) -> None:
    found = availability(outage)
    orders = found.summary["entities"]["orders"]
    (out,) = orders["outages"]
    assert (out["start"], out["end"], out["clients"], out["open"]) == (110.0, 131.0, 2, False)
    assert (out["time_to_fail_over_s"], out["time_to_return_s"]) == (5.0, 15.0)
    assert (orders["calls"], orders["confirmed"], orders["refused"], orders["diverted"]) == (15, 14, 1, 3)
    assert orders["availability"] == pytest.approx(100 * 14 / 15)
    assert orders["primary_availability"] == pytest.approx(79.0)
    assert found.table().splitlines()[0] == "failed 1 of 15 sends, availability 93.333 %, 1 outage"
    assert json.loads(found.to_json()) == found.summary
    found.to_parquet(tmp_path)
    assert spark.read.parquet(str(tmp_path / "availability")).collect()[0]["refused"] == 1
    assert spark.read.parquet(str(tmp_path / "availability_outages")).count() == found.outages.count() == 1


@pytest.mark.parametrize(
    ("command", "doing"),
    [
        (["audit"], "following every message"),
        (["availability"], "looking for outages"),
        (["cost", "report"], "summing up what was billed"),
    ],
    ids=str,
)
def test_the_commands_say_what_they_are_doing(
    outage: Ledgers, command: list[str], doing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next(iter(outage.file_facts))
    with pytest.raises(SystemExit):
        main([*command, file])
    assert capsys.readouterr().err.splitlines() == ["reading the ledgers", doing]


def test_series_of_an_outage(outage: Ledgers) -> None:
    found = series(outage)
    assert (found["start"], found["step"]) == (100.0, 1.0)
    assert {len(each) for each in (*found["sends"].values(), found["backlog_depth"])} == {101}
    assert found["sends"]["primary"][:11] == [1] * 10 + [0]
    assert (found["sends"]["backlog"][15], found["sends"]["backlog"][16]) == (1, 2)
    assert found["sends"]["refused"][12] == 1 == sum(found["sends"]["refused"])
    assert found["backlog_depth"][14:19] == [0, 1, 3, 3, 3] and found["backlog_depth"][35:39] == [2, 1, 0, 0]
    assert [each["t"] for each in found["delay"]] == [139.0, 140.0]
    assert found["delay"][1] == {"t": 140.0, "p50": 0.5, "p99": 0.5}
    assert [(each["t"], each["state"]) for each in found["states"]["orders"]] == [
        (100.0, "healthy"), (112.0, "suspect"), (115.0, "failed over"), (131.0, "healthy"),
    ]  # fmt: skip
    assert [each["outcome"] for each in found["pings"]] == ["amqp:internal-error"] * 2 + ["ok"]


# -- a real outage


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_outage.Story]:
    yield real_outage.run(tmp_path_factory.mktemp("real"))
    gc.collect()  # here, where what the SDK left behind is forgiven


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
class TestRealOutage:
    def test_what_was_taken_is_lost_and_what_was_sent_again_is_doubled(
        self, spark: Any, story: real_outage.Story
    ) -> None:
        with read_ledgers(spark, story.primary, story.secondary, story.sender, story.receiver) as read:
            found = audit(read)
        assert found.summary["ids"]["lost"] == [story.taken]
        assert found.summary["ids"]["doubled"] == [story.doubled]
        counts = found.summary["entities"]["orders"]
        assert (counts["sent"], counts["confirmed"], counts["unknown"]) == (real_outage.SENT, real_outage.SENT, 0)
        assert counts["diverted"] == 20 and counts["carried_home"] == 19
        assert counts["received"] == real_outage.SENT
        assert found.exit_code == 1

    def test_with_the_receivers_ledgers_alone_it_is_unknown(self, spark: Any, story: real_outage.Story) -> None:
        with read_ledgers(spark, story.secondary, story.sender, story.receiver) as read:
            found = audit(read)
        assert (found.summary["ids"]["lost"], found.summary["ids"]["unknown"]) == ([], [story.taken])
        assert found.summary["ids"]["doubled"] == [story.doubled]

    def test_without_the_ledgers_of_those_who_received_it_is_unknown(
        self, spark: Any, story: real_outage.Story
    ) -> None:
        with read_ledgers(spark, story.secondary, story.sender) as read:
            found = audit(read)
            sends = availability(read).summary
        assert (found.summary["lost"], found.summary["unknown"]) == (0, real_outage.SENT)
        assert found.ok and found.exit_code == 3
        assert "no receiver's ledger and no broker's ledger of the primary" in "\n".join(found.summary["notes"])
        assert (sends["refused"], len(sends["outages"])) == (0, 1)
