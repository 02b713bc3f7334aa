"""The commands as a user runs them, against two embedded brokers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from pairbus.broker import Broker
from pairbus.broker.control.control_socket import request
from pairbus.commands import syphon
from pairbus.pairing.backlog.backlog_queues import path
from pairbus.syphon.core import queue_discovery
from pairbus.syphon.core.progress import Progress, Report
from pairbus.wire.sync import LoopThread
from tests.message_view import View
from tests.waiting import soon

from ..syphon.conftest import Clock
from ..syphon.conftest import syphon_brokers as syphon_brokers
from ..syphon.conftest import syphon_clock as syphon_clock
from ..syphon.pair import Pair, diverted
from .calls import Result, call


class BlockingPair:
    """A Pair for tests without a loop: commands bring their own."""

    def __init__(self, pair: Pair, thread: LoopThread) -> None:
        self._pair = pair
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._pair, name)
        if not asyncio.iscoroutinefunction(found):
            return found
        return lambda *arguments, **options: self._thread.run(found(*arguments, **options))

    def receive(self, queue: str, then: str | None = None) -> None:
        """One message, locked, and what is done with it."""

        async def receive() -> None:
            receiver = await self._pair.west_client.receiver(queue)
            messages = await receiver.receive(1, 2.0)
            if then is not None:
                await getattr(receiver, then)(messages)
                await receiver.close()

        self._thread.run(receive())


@pytest.fixture
def pair(syphon_brokers: Broker, syphon_clock: Clock) -> Iterator[BlockingPair]:
    thread = LoopThread()
    made = Pair(syphon_brokers, syphon_clock)
    yield BlockingPair(made, thread)
    for name in ("east", "west"):
        request(syphon_brokers.data, {"command": "clear", "namespace": name})
    thread.run(made.close())
    thread.stop()


@pytest.fixture
def run(pair: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs a command with both namespaces named in the environment."""
    monkeypatch.setenv("PAIRBUS_PRIMARY", pair.east.connection_string)
    monkeypatch.setenv("PAIRBUS_SECONDARY", pair.west.connection_string)

    def run(*arguments: str, name: bool = True, ca: bool = True) -> Result:
        command = [*arguments]
        if name:
            command += ["--primary-name", pair.name]
        if ca and "--print" not in arguments:
            command += ["--ca-file", pair.west.ca_file]
        texts = [each.connection_string for each in (pair.east, pair.west)]
        keys = tuple(text.split("SharedAccessKey=")[1].split(";")[0] for text in texts)
        return call(capsys, *command, secrets=keys)

    return run


Run = Callable[..., Result]


def signal_at_first_report(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """Send this process a signal when the command that runs in it tells its progress for the first time."""
    show = syphon._show
    signals = [number]

    async def signal_and_show(report: Callable[[], Report], as_json: bool) -> None:
        def reported() -> Report:
            if signals:
                os.kill(os.getpid(), signals.pop())
            return report()

        await show(reported, as_json)

    monkeypatch.setattr(syphon, "_show", signal_and_show)
    monkeypatch.setattr(syphon, "SHOW_S", dict.fromkeys(syphon.SHOW_S, 0.05))


class TestProvision:
    def test_p9_makes_the_queues_and_tells_which_existed(self, pair: Any, run: Run) -> None:
        result = run("provision", "--count", "2")
        assert result.code == 0, result.err
        assert result.out == f"{path(pair.name, 0)}  made\n{path(pair.name, 1)}  made\n"
        found = pair.manage(pair.west, lambda admin: admin.get_queue(path(pair.name, 0)))
        assert (found.max_size_in_megabytes, found.max_delivery_count) == (5120, 2147483647)
        result = run("provision", "--count", "3", "--json")
        assert json.loads(result.out) == {
            "secondary": "127.0.0.1",
            "made": [path(pair.name, 2)],
            "existed": [path(pair.name, 0), path(pair.name, 1)],
            "failed": {},
            "extra": [],
        }

    @pytest.mark.parametrize("language", ["bicep", "terraform"])
    def test_p4_as_code_offline(self, run: Run, monkeypatch: pytest.MonkeyPatch, language: str) -> None:
        monkeypatch.delenv("PAIRBUS_SECONDARY")
        result = run("provision", "--print", language, "--count", "4")
        assert result.code == 0
        assert "x-servicebus-transfer" in result.out and "5120" in result.out


class TestBacklog:
    def test_depth_age_and_destinations(self, pair: Any, run: Run) -> None:
        pair.backlog(0, 1)
        pair.divert(0, [diverted("orders", "m1"), diverted("news", "m2"), diverted("orders", "m3")])
        result = run("backlog")
        assert result.code == 0, result.err
        lines = result.out.splitlines()
        assert lines[0].split() == ["QUEUE", "MESSAGES", "OLDEST", "DEAD", "DESTINATIONS"]
        assert lines[1].startswith(path(pair.name, 0))
        assert lines[1].endswith("orders 2, news 1")
        assert lines[3].split()[:3] == ["in", "all", "3"]

    def test_as_json_and_without_the_manage_right(self, pair: Any, run: Run) -> None:
        pair.backlog(0)
        pair.divert(0, [diverted("orders", "m1")])
        result = run("backlog", "--json", ca=False)
        assert "so the backlog queues are taken to be 0 to 9" in result.err
        told = json.loads(result.out)
        assert (told["messages"], told["primary_name"], len(told["queues"])) == (1, pair.name, 1)
        assert told["queues"][0]["destinations"] == {"orders": 1}
        assert told["queues"][0]["dead_letters"] is None

    def test_past_a_limit(self, pair: Any, run: Run) -> None:
        pair.backlog(0)
        pair.divert(0, [diverted("orders", "m1"), diverted("orders", "m2")])
        assert run("backlog", "--fail-depth", "2", "--fail-age", "3600").code == 0
        result = run("backlog", "--fail-depth", "1")
        result.ends(4, "2 messages, more than --fail-depth 1")
        result = run("backlog", "--fail-age", "0")
        result.ends(4, "more than --fail-age 0")

    def test_p36_warns_when_nothing_drains(self, pair: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(syphon, "LOOK_AGAIN_S", 0.1)
        ((queue, _),) = pair.backlog(0)
        pair.divert(0, [diverted("orders", "m1")])
        assert "nothing drains" not in run("backlog").err, "it has just come"
        monkeypatch.setattr(syphon, "UNDRAINED_S", 0.0)
        result = run("backlog", "--json")
        assert "nothing drains them" in result.err and queue in result.err
        assert json.loads(result.out)["warnings"]
        pair.receive(queue, "abandon")
        assert "nothing drains" not in run("backlog").err, "somebody has tried"

    def test_no_queue_at_all(self, pair: Any, run: Run) -> None:
        result = run("backlog")
        assert (result.code, result.out) == (
            0, f"127.0.0.1 has no backlog queue of {pair.name}; pairbus provision makes them\n",
        )  # fmt: skip


DRAIN = ("syphon", "--engine", "in-process", "--drain")


class TestSyphon:
    def test_p41_a_drain(self, pair: Any, run: Run, tmp_path: Path) -> None:
        orders = pair.destination("orders")
        pair.backlog(0, 1)
        pair.divert(0, [diverted(orders, f"m{number}") for number in range(10)])
        pair.divert(1, [diverted(None, "bad")])
        result = run(*DRAIN, "--ledger", str(tmp_path / "ledger"))
        assert result.code == 0, result.err
        assert result.out.startswith("10 messages moved (")
        assert result.out.endswith("1 dead-lettered in the backlog\n")
        assert len(pair.ids(orders)) == 10
        (file,) = (tmp_path / "ledger").iterdir()
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert sum(line.get("kind") == "move" for line in lines) == 10
        assert lines[-1]["reason"] == "closed"

    def test_p28_the_time_in_the_backlog_counts_if_asked_for(self, pair: Any, run: Run) -> None:
        orders = pair.destination("orders")
        pair.backlog(0)
        left: list[int] = []
        for option in ([], ["--count-backlog-time"]):
            pair.divert(0, [diverted(orders, "m1", **{"x-ms-timetolive": 3_600_000})])
            time.sleep(0.05)
            assert run(*DRAIN, *option).code == 0
            (payload,) = pair.arrived(orders)
            left.append(View(payload).header.ttl)
        assert left[0] == 3_600_000
        assert 3_500_000 < left[1] < 3_600_000

    def test_p41_exit_code_3_and_a_list(self, pair: Any, run: Run) -> None:
        orders = pair.destination("orders")
        pair.backlog(0)
        pair.divert(0, [diverted(orders, "m1"), diverted(orders, "m2")])
        with pair.fault("no-send", entity=orders):
            result = run(*DRAIN)
            assert result.code == 3
            assert f"\n{orders}: 2 messages remain: unreachable: " in result.out
            result = run(*DRAIN, "--json")
        assert result.code == 3
        told = json.loads(result.out.splitlines()[-1])
        assert (told["kind"], told["outcome"]) == ("result", "unavailable")
        assert told["unavailable"][0]["destination"] == orders

    def test_progress_as_json_lines(self, pair: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(syphon.SHOW_S, "json", 0.1)
        orders = pair.destination("orders")
        pair.backlog(0)
        pair.divert(0, [diverted(orders, f"m{number}") for number in range(40)])
        result = run(*DRAIN, "--json", "--max-rate", "40")
        lines = [json.loads(line) for line in result.out.splitlines()]
        assert {line["kind"] for line in lines[:-1]} == {"progress"}
        assert lines[0]["remaining"] is not None and lines[0]["remaining"] <= 40
        assert (lines[-1]["kind"], lines[-1]["outcome"], lines[-1]["moved"]) == ("result", "drained", 40)

    def test_p10_orphans(self, pair: Any, run: Run) -> None:
        orders = pair.destination("orders")
        pair.backlog(0, 7)
        pair.divert(0, [diverted(orders, "m0")])
        pair.divert(7, [diverted(orders, "m7")])
        assert run(*DRAIN, "--count", "5").out.startswith("1 message moved")
        assert pair.left(7) == 1
        assert run(*DRAIN, "--count", "5", "--orphans").out.startswith("1 message moved")
        result = run(*DRAIN, "--orphans", ca=False)
        result.ends(1, "--orphans finds the queues by listing")

    def test_p41_dead_letters(self, pair: Any, run: Run) -> None:
        pair.backlog(0)
        pair.divert(0, [diverted(f"later-{pair.name}", "m1")])
        assert "1 dead-lettered" in run(*DRAIN).out
        pair.destination("later")
        assert run(*DRAIN, "--dead-letters").out.startswith("1 message moved")

    def test_p41_a_connection_that_fails(self, pair: Any, run: Run) -> None:
        pair.backlog(0)
        with pair.fault("unreachable", "east"):
            result = run(*DRAIN)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith(f"pairbus: the primary {pair.name} can't be reached: ")
        assert result.err.count("\n") == 1

    def test_without_queues(self, pair: Any, run: Run) -> None:
        result = run(*DRAIN)
        result.ends(0, "nothing to drain")

    @pytest.fixture
    def sigterm(self) -> Iterator[int]:
        """Harmless for the tests, should the command have ended before it comes."""
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        yield signal.SIGTERM
        signal.signal(signal.SIGTERM, before)

    @pytest.mark.parametrize("engine", ["in-process", "spark"])
    def test_p36_waits_for_the_first_queue_until_a_signal(
        self, pair: Any, run: Run, monkeypatch: pytest.MonkeyPatch, engine: str
    ) -> None:
        """On Spark, without starting it."""
        signal_at_first_report(monkeypatch, signal.SIGTERM)
        result = run("syphon", "--engine", engine, "--json")
        assert result.code == 0, result.err
        assert result.err == (
            f"pairbus: 127.0.0.1 has no backlog queue of {pair.name} yet; waiting for the first to appear "
            "(pairbus provision makes them)\n"
            "pairbus: stopping after this round; again to break off\n"
        )
        told = [json.loads(line) for line in result.out.splitlines()]
        assert told[0]["waiting_for"] == f"127.0.0.1 has no backlog queue of {pair.name} yet"
        assert (told[-1]["kind"], told[-1]["outcome"], told[-1]["moved"]) == ("result", "stopped", 0)

    def test_p36_goes_on_when_the_first_queue_is_there_and_takes_in_more(
        self, pair: Any, run: Run, monkeypatch: pytest.MonkeyPatch, sigterm: int
    ) -> None:
        monkeypatch.setattr(queue_discovery, "FIRST_S", 0.2)
        monkeypatch.setattr(queue_discovery, "LIST_S", 0.2)
        orders = pair.destination("orders")
        is_waiting = threading.Event()
        greeting = queue_discovery.QueueDiscovery.greeting

        def started(self: queue_discovery.QueueDiscovery) -> str | None:
            is_waiting.set()
            return greeting(self)

        monkeypatch.setattr(queue_discovery.QueueDiscovery, "greeting", started)

        def outage() -> None:
            try:
                is_waiting.wait(10)
                for index in range(2):
                    pair.backlog(index)
                    pair.divert(index, [diverted(orders, f"m{index}")])
                    end = time.monotonic() + 10
                    while pair.left(index) and time.monotonic() < end:
                        time.sleep(0.05)
            finally:
                os.kill(os.getpid(), sigterm)

        application = threading.Thread(target=outage)
        application.start()
        result = run("syphon", "--engine", "in-process")
        application.join()
        assert result.code == 0, result.err
        assert result.out.startswith("2 messages moved")
        assert pair.ids(orders) == ["m0", "m1"]
        told = [line for line in result.err.splitlines() if "new backlog queue" in line]
        assert told == [f"pairbus: a new backlog queue: {path(pair.name, index)}" for index in range(2)]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_until_a_signal(self, pair: Any, run: Run, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
        pair.backlog(0)
        signal_at_first_report(monkeypatch, number)
        result = run("syphon", "--engine", "in-process")
        assert result.code == 0, result.err
        assert result.out.startswith("0 messages moved")

    def test_p41_a_drain_that_is_interrupted(self, pair: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        ((queue, _),) = pair.backlog(0)
        pair.divert(0, [diverted("orders", "m1")])
        pair.receive(queue)
        signal_at_first_report(monkeypatch, signal.SIGTERM)
        assert run(*DRAIN).code == 130

    def test_auto_drains_few_messages_in_this_process(
        self, pair: Any, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        orders = pair.destination("orders")
        pair.backlog(0)
        pair.divert(0, [diverted(orders, f"m{number}") for number in range(3)])
        result = run("syphon", "--engine", "auto", "--drain")
        assert result.out.startswith("3 messages moved (") and len(pair.ids(orders)) == 3
        assert result.err == "pairbus: runs in this process: there are 3 messages, and up to 5,000 need no Spark\n"

        def no_spark(*_: Any) -> Any:
            raise click.ClickException("no Spark")

        monkeypatch.setattr(syphon, "_maker_of", no_spark)
        why = {"--drain": "--checkpoint is for --engine spark", "--orphans": "without --drain nobody knows how many"}
        for option, words in why.items():
            more = ("--checkpoint", "x") if option == "--drain" else ()
            run("syphon", "--engine", "auto", option, *more).ends(1, f"pairbus: runs on Spark: {words}", "no Spark")

    def test_a_terminal_gets_one_line_that_refreshes(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(syphon.SHOW_S, "terminal", 0.01)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        progress = Progress(0.0)
        progress.counted(10)
        reports: list[Report] = []

        def report() -> Report:
            reports.append(progress.report(1.0))
            return reports[-1]

        async def show() -> None:
            task = asyncio.create_task(syphon._show(report, False))
            await soon(lambda: reports)
            progress.moved("orders", 10, 0, 1.0)
            await soon(lambda: reports[-1].moved)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(show())
        shown = capsys.readouterr().err
        assert shown.startswith("\r[                    ]   0% 0 moved, 10 to go, 0/s\r")
        assert "\r[####################] 100% 10 moved, 0 to go" in shown
        assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 KB"), (2.5e6, "2.5 MB"), (7e9, "7.0 GB")]
)
def test_sizes(count: float, text: str) -> None:
    assert syphon._size(count) == text
