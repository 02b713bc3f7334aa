"""The pure parts of the benchmarks: medians and spreads, paired ratios, verdicts, tables, time to go.

The slow test runs the whole benchmark tiny, so that it can't rot.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus._pyamqp._decode import decode_payload
from benchmarks import against, long_turns
from benchmarks.__main__ import FIGURES_END, FIGURES_START, main, with_figures, with_other_cases
from benchmarks.amqp_driver import encoded
from benchmarks.count import code_lines
from benchmarks.figures import Column, Goal, Row, Series, Table, span
from benchmarks.meter import Meter, Reading
from benchmarks.rounds import Outcome, Progress, Step, run_rounds
from benchmarks.servers import Server, ServerFailed, free_port
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
RATE = Column("rate", "messages", "rate")
RATIO = Column("ratio", "pairbus ÷ it", "ratio")


def test_a_series_gives_its_median_and_its_middle_half() -> None:
    series = Series((5.0, 1.0, 9.0, 3.0, 7.0))
    assert series.median == 5.0
    assert series.quartiles == (3.0, 7.0)
    assert Series((4.0,)).quartiles == (4.0, 4.0)


def test_ratios_are_taken_round_by_round() -> None:
    # a slow second round halves both: the ratio does not see it
    assert Series((100.0, 50.0)).over(Series((50.0, 25.0))).values == (2.0, 2.0)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        Series((1.0, 2.0)).over(Series((1.0,)))


@given(st.lists(st.floats(0.001, 1e9), min_size=1, max_size=30))
def test_the_spread_holds_the_median_and_survives_json(values: list[float]) -> None:
    series = Series(tuple(values))
    low, high = series.quartiles
    assert min(values) <= low * 1.000001 and low <= series.median * 1.000001
    assert series.median <= high * 1.000001 and high <= max(values) * 1.000001
    again = Series.from_json(json.loads(json.dumps(series.to_json())))
    assert again.median == pytest.approx(series.median, rel=1e-4)


@pytest.mark.parametrize(
    ("goal", "values", "verdict"),
    [
        (Goal("rate", at_least=2.0), (3.0, 3.0, 3.0), "met"),
        (Goal("rate", at_least=2.0), (2.0, 2.0, 2.0), "met"),
        (Goal("rate", at_least=2.0), (1.0, 1.0, 1.0), "not met"),
        (Goal("rate", at_least=2.0), (1.0, 3.0, 3.0, 3.0, 3.0), "met"),
        (Goal("rate", at_least=2.0), (1.0, 1.5, 3.0, 3.0, 3.0), "met, within the spread"),
        (Goal("rate", at_least=2.0), (1.0, 1.0, 1.0, 3.0, 3.0), "not met, within the spread"),
        (Goal("rate", below=20.0), (19.0, 19.0), "met"),
        (Goal("rate", below=20.0), (20.0, 20.0), "not met"),
    ],
)
def test_verdicts(goal: Goal, values: tuple[float, ...], verdict: str) -> None:
    assert goal.verdict(Series(values)) == verdict


def _table() -> Table:
    rival = {"rate": Series((10.0,) * 9), "ratio": Series((2.5,) * 9)}
    return Table(
        "brokers",
        "A title",
        (RATE, RATIO, Column("server_us", "server CPU", "us")),
        [
            Row("in flight", "pairbus", {"rate": Series((25.0,) * 9)}, label="synced"),
            Row("in flight", "RabbitMQ", rival, Goal("ratio", at_least=2.0), "synced too"),
            Row("batches", "pairbus", {}, Goal("rate", at_least=50_000.0), "not run"),
        ],
        ["a note"],
    )


def test_a_table_lines_up_and_says_its_goals() -> None:
    text = _table().render()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    assert "server CPU" not in text  # a column that nothing fills
    assert "pairbus ÷ it ≥ 2.00 × | met" in text
    assert "not measured" in text
    assert "- a note" in text
    assert "not to be quoted" not in text
    assert lines[3].startswith("|           | RabbitMQ")  # the case is said once


def test_a_table_comes_back_from_json() -> None:
    table = _table()
    again = Table.from_json(json.loads(json.dumps(table.to_json())))
    assert again.render() == table.render()
    assert [row.verdict for row in again.rows if row.goal] == ["met", "not measured"]


def test_times_are_written_as_people_say_them() -> None:
    assert [span(4.4), span(61), span(3_720)] == ["4 s", "1 min 01 s", "1 h 02 min"]


async def test_rounds_are_interleaved_and_the_first_is_thrown_away(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def step(name: str) -> Step:
        async def run() -> dict[tuple[str, str], dict[str, float]]:
            order.append(name)
            return {("case", name): {"rate": float(len(order))}}

        return Step(name, run)

    outcome = await run_rounds([step("a"), step("b")], 2, Progress("test", sys.stderr))
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert outcome.series["case", "b"]["rate"].values == (3.0, 6.0)
    assert not outcome.failures


async def test_a_failing_step_is_left_out_and_the_rest_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []

    async def good() -> dict[tuple[str, str], dict[str, float]]:
        calls.append("good")
        return {("case", "good"): {"rate": 1.0}}

    async def bad() -> dict[tuple[str, str], dict[str, float]]:
        calls.append("bad")
        if calls.count("bad") == 2:
            raise RuntimeError("gone")
        return {("case", "bad"): {"rate": 1.0}}

    outcome = await run_rounds([Step("bad", bad), Step("good", good)], 2, Progress("test", sys.stderr))
    assert calls == ["bad", "good", "good", "bad", "good"]
    assert outcome.failures == ["bad: RuntimeError: gone"]
    assert list(outcome.series) == [("case", "good")]
    assert "bad: RuntimeError: gone" in capsys.readouterr().err


def test_the_page_gets_the_kept_tables_between_its_markers() -> None:
    kept = {**_table().to_json(), "measured_at": "2030-01-01T00:00:00Z", "machine": {"cpus": 2, "file_system": "ext4"}}
    page = f"before\n{FIGURES_START}\nold\n{FIGURES_END}\nafter\n"
    filled = with_figures(page, {"format": 1, "tables": {"brokers": kept}})
    assert filled.startswith("before\n") and filled.endswith("after\n")
    assert "old" not in filled
    assert "### A title" in filled and "cpus 2, file system ext4" in filled
    assert with_figures(filled, {"format": 1, "tables": {"brokers": kept}}) == filled
    with pytest.raises(ValueError, match="has no"):
        with_figures("no markers", {"tables": {}})


def test_a_case_that_is_measured_by_itself_leaves_the_others_as_they_were() -> None:
    def measured(when: str, **rates: float) -> dict[str, Any]:
        rows = [Row(case, "pairbus", rate(each)) for case, each in rates.items()]
        return {**Table("brokers", "Speed", [RATE], rows).to_json(), "measured_at": when, "machine": {"cpus": 2}}

    first = measured("2030-01-01", one=1.0, window=2.0)
    second = with_other_cases(measured("2030-01-02", window=3.0, batch=4.0), first)
    third = with_other_cases(measured("2030-01-03", batch=5.0), second)
    found = {row["case"]: (row["metrics"]["rate"]["median"], row.get("measured_at")) for row in third["rows"]}
    assert found == {"one": (1.0, "2030-01-01"), "window": (3.0, "2030-01-02"), "batch": (5.0, None)}
    page = with_figures(f"{FIGURES_START}{FIGURES_END}", {"tables": {"brokers": third}})
    assert "Measured 2030-01-03, 1 rounds" in page and "Measured 2030-01-01 already: one." in page
    assert with_other_cases(first, None) == first


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "nothing"],
        ["--rounds", "0"],
        ["--against", "no-such-checkout"],
    ],
)
def test_wrong_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_what_both_checkouts_measured_is_compared_round_by_round() -> None:
    columns = (RATE, RATIO, Column("server_us", "server CPU", "us"), Column("others", "others' CPU", "share"))

    def table(cpu: float, *rows: Row) -> Table:
        metrics = {"rate": Series((10.0, 20.0)), "server_us": Series((cpu, cpu)), "others": Series((0.1, 0.1))}
        return Table("brokers", "A title", columns, [Row("send", "pairbus", metrics), *rows])

    nothing_before = Row("memory", "pairbus", {"server_us": Series((0.0, 5.0))})
    ours = table(30.0, Row("receive", "pairbus", rate(5.0, 5.0)), nothing_before)
    found = against.compared(ours, table(20.0, Row("new", "pairbus", rate(1.0, 1.0)), nothing_before), "before")
    (row,) = found.rows
    assert row.metrics["rate_ratio"].values == (1.0, 1.0) and row.metrics["server_us_ratio"].values == (1.5, 1.5)
    assert row.metrics["server_us"].values == (30.0, 30.0) and row.metrics["server_us_other"].values == (20.0, 20.0)
    assert row.label == "server CPU 30.0 µs, other 20.0 µs", "and the rate is no worse"
    assert [column.header for column in found.columns] == ["messages", "server CPU"]
    assert found.title == "A title: this checkout ÷ before"
    assert [note for note in found.notes if note.startswith("Left out")] == [
        "Left out, the other has no figure to divide by: receive, pairbus.",
        "Left out, the other has no figure to divide by: memory, pairbus.",
        "Left out, this checkout has no figure: new, pairbus.",
    ]


@pytest.mark.parametrize(
    ("column", "ratios", "worse"),
    [
        (RATE, (0.90, 0.92, 0.94), True),
        (RATE, (0.90, 0.99, 1.0), False),
        (RATE, (1.5, 1.5, 1.5), False),
        (Column("p99", "p99", "ms"), (1.10, 1.10, 1.10), True),
        (Column("p99", "p99", "ms"), (0.5, 0.5, 0.5), False),
    ],
)
def test_worse_is_what_lies_beyond_the_noise_on_the_wrong_side(
    column: Column, ratios: tuple[float, ...], worse: bool
) -> None:
    assert against.is_worse(column, Series(ratios)) is worse


def test_two_checkouts_take_turns_and_nobody_is_always_first() -> None:
    order: list[str] = []

    class Fake(against.Side):
        def __init__(self, name: str, steps: int) -> None:
            self.name, self.left = name, steps
            self.is_waiting = True

        def go_on(self) -> None:
            order.append(self.name)
            self.left -= 1
            self.is_waiting = self.left > 0

    against.take_turns(Fake("a", 3), Fake("b", 4))
    assert order == ["a", "b", "b", "a", "a", "b", "b"]


def test_a_checkout_whose_interpreter_has_another_pairbus_is_refused(tmp_path: Path) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    assert "make setup" in (against.why_not(tmp_path) or "")
    for name in ("python", "pairbus"):
        (programs / name).write_text("#!/bin/sh\necho /elsewhere/src/pairbus/__init__.py\n")
        (programs / name).chmod(0o700)
    assert "another pairbus: /elsewhere" in (against.why_not(tmp_path) or "")
    (programs / "python").write_text(f"#!/bin/sh\necho {tmp_path.resolve()}/src/pairbus/__init__.py\n")
    assert against.why_not(tmp_path) is None


def test_the_benchmark_knows_pairbus_by_its_public_names_only() -> None:
    """Or it could not measure a checkout with another structure inside."""
    public = ("pairbus", "pairbus.aio", "pairbus.spark", "pairbus.testing", "pairbus.wire")
    hosts = {"report_host.py"}  # the reports have no public name in Python
    for path in (each for each in (ROOT / "benchmarks").glob("*.py") if each.name not in hosts):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names if alias.name.split(".")[0] == "pairbus"]
                assert set(modules) <= set(public), path
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pairbus":
                assert node.module in public, path
                assert {alias.name for alias in node.names} <= set(import_module(node.module).__all__), path


def test_commands_that_were_run_count_as_the_client() -> None:
    with Meter() as meter:
        subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.1: pass"], check=True)
    assert meter.reading is not None and meter.reading.server_s is None
    assert meter.reading.client_s >= 0.1


def test_what_a_start_took_can_be_taken_off() -> None:
    whole, start = Reading(3.0, 2.0, 1.5, 0.2), Reading(1.0, 0.5, 0.5, 0.3)
    assert whole.without(start) == Reading(2.0, 1.5, 1.0, 0.0)


def test_the_drivers_messages_are_amqp() -> None:
    message = decode_payload(memoryview(encoded(b"x" * 300, "an id", "orders")))
    assert message.header.durable and message.properties.message_id == b"an id"
    assert message.application_properties == {b"x-ms-path": b"orders"}
    assert message.data == [b"x" * 300]
    assert decode_payload(memoryview(encoded(b"x"))).application_properties is None


def test_a_server_that_fails_to_start_leaves_nothing(tmp_path: Path) -> None:
    class Broken(Server):
        def start(self) -> None:
            self._spawn([sys.executable, "-c", "raise SystemExit('no luck')"])
            self.port = free_port()
            self._await_port()

    broken = Broken(tmp_path / "broken")
    with pytest.raises(ServerFailed, match="ended with 1: no luck"), broken:
        pass
    assert not broken.folder.exists()


def test_the_longest_turn_is_read_from_the_metrics() -> None:
    page = (
        '# TYPE x gauge\npairbus_loop_turn_seconds_max 0.0125\npairbus_loop_long_turns_total 3\npairbus_x{a="b c"} 1\n'
    )
    assert long_turns.turns_in(page) == {"turn": 12.5, "long_turns": 3.0}


def test_a_bystander_has_a_row_for_each_of_its_goals() -> None:
    series = {"turn": Series((12.0,)), "added": Series((60.0,))}
    rows = long_turns.rows_from(Outcome({("purge", "10 messages"): series}))
    assert [(row.case, row.goal.verdict(row.metrics[row.goal.metric])) for row in rows if row.goal] == [
        ("purge", "met"),
        ("purge, beside", "not met"),
    ]


def rate(*values: float) -> dict[str, Series]:
    return {"rate": Series(values)}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""A module."""\n\n# why\nx = 1  # so\n', 1),
        ('def f():\n    """What it does.\n\n    More.\n    """\n    return (\n        1,\n    )\n', 4),
        ('x = """\nno docstring\n"""\n', 3),
        ("# Generated by unasync: edit the other one.\nx = 1\n", 0),
    ],
)
def test_only_code_that_somebody_wrote_is_counted(source: str, lines: int) -> None:
    assert code_lines(source) == lines


@pytest.mark.soak
def test_the_whole_benchmark_still_runs(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--out", str(out), "--data", str(tmp_path / "data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    tables = json.loads(out.read_text())["tables"]
    assert set(tables) == {
        "brokers",
        "sdk",
        "growth",
        "bystander",
        "fanout",
        "pairing",
        "outage",
        "syphon",
        "spark",
        "scale",
        "reports",
    }
    assert all(table["rows"] for table in tables.values())


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_checkout_is_measured_against_itself(tmp_path: Path) -> None:
    if reason := against.why_not(ROOT):
        pytest.skip(reason)
    out = tmp_path / "results.json"
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--only", "sdk", "--against", ".", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=190,
    )
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(out.read_text())["tables"]["sdk"]["rows"]
    assert len(rows) == 6
    assert all({"rate", "rate_other", "rate_ratio", "server_us_ratio"} <= set(row["metrics"]) for row in rows)
