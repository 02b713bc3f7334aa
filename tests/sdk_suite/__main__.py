"""`make sdk-suite`: the official SDK's own tests, each group of them on a broker process of its own.

The suite is fetched by `../shared/sdk-suite/run` into `.venv/sdk-suite` and never becomes part of this repository.
deselected.toml names, with the reason, what isn't run. Progress goes to stderr; the table and the failures go to
stdout, all of it to `.venv/sdk-suite/result.json`. Exit code 0 only when enough of the tests that face the broker pass.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pairbus import __version__
from pairbus.wire.connection_string import ConnectionString

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
SUITE = ROOT.parent / "shared" / "sdk-suite"
WORK = ROOT / ".venv" / "sdk-suite"
SDK_VERSION = "7.15.0"
PASS_SHARE_MIN = 0.95
PLUGINS = ("-p", "sb_record", "-p", "sb_endpoint")
TEST_S_MAX = 600  # some sleep for five minutes of their own
SILENCE_S_MAX = TEST_S_MAX + 120
READY_S_MAX = 20.0
JOBS = 2 * (os.cpu_count() or 1)  # the tests wait out real lock times: most of them sleep most of the time
# The files that talk to a broker, the longest first, and into how many groups each is dealt. A management file stays
# whole: its tests want a namespace that nobody else changes.
FILES = {
    "tests/test_topic.py": 1,
    "tests/async_tests/test_topic_async.py": 1,
    "tests/test_queues.py": 6,
    "tests/async_tests/test_queues_async.py": 6,
    "tests/test_sessions.py": 3,
    "tests/async_tests/test_sessions_async.py": 3,
    "tests/test_sb_client.py": 1,
    "tests/async_tests/test_sb_client_async.py": 1,
    "tests/test_subscriptions.py": 1,
    "tests/async_tests/test_subscriptions_async.py": 1,
    "tests/test_list_sessions.py": 1,
    "tests/async_tests/test_list_sessions_async.py": 1,
    "tests/test_message.py": 1,
    "tests/mgmt_tests/test_mgmt_queues.py": 1,
    "tests/mgmt_tests/test_mgmt_topics.py": 1,
    "tests/mgmt_tests/test_mgmt_subscriptions.py": 1,
    "tests/mgmt_tests/test_mgmt_rules.py": 1,
    "tests/mgmt_tests/test_mgmt_namespaces.py": 1,
    "tests/mgmt_tests/test_topic_filter_counts.py": 1,
    "tests/mgmt_tests/test_topic_filter_counts_live.py": 1,
    "tests/mgmt_tests/test_mgmt_dictmixin.py": 1,
    "tests/mgmt_tests/async/test_mgmt_queues_async.py": 1,
    "tests/mgmt_tests/async/test_mgmt_topics_async.py": 1,
    "tests/mgmt_tests/async/test_mgmt_subscriptions_async.py": 1,
    "tests/mgmt_tests/async/test_mgmt_rules_async.py": 1,
    "tests/mgmt_tests/async/test_mgmt_namespaces_async.py": 1,
}


class SuiteError(Exception):
    """The run can't go on; the message is the line that the user sees."""


@dataclass
class Outcome:
    test: str
    outcome: str  # passed, failed, skipped (by the suite itself), never, later
    facing: bool = True
    seconds: float = 0.0
    why: str = ""

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def short(self) -> str:
        return self.file.rpartition("/")[2] + "::" + self.test.rpartition("::")[2]


@dataclass
class Group:
    """Tests that share a broker."""

    name: str
    tests: list[str]
    found: list[Outcome] = field(default_factory=list)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def plain_name(test: str) -> str:
    """`file::Class::test[x]` → `file::test[x]`: what deselected.toml calls it."""
    return f"{test.partition('::')[0]}::{test.rpartition('::')[2]}"


def read_deselected(collected: list[str]) -> dict[str, Outcome]:
    """Which of the collected tests aren't run, and why. A name without a test is an error: the list may not rot."""
    by_name: dict[str, list[str]] = {}
    for test in collected:
        name = plain_name(test)
        by_name.setdefault(name, []).append(test)
        by_name.setdefault(re.sub(r"\[.*\]$", "", name), []).append(test)
    found: dict[str, Outcome] = {}
    for kind, groups in tomllib.loads((HERE / "deselected.toml").read_text()).items():
        if kind not in ("never", "later"):
            raise SuiteError(f"deselected.toml: [[{kind}]] should be [[never]] or [[later]]")
        for group in groups:
            for name in group["tests"]:
                if name not in by_name:
                    raise SuiteError(
                        f"deselected.toml names {name}, which the suite doesn't have; correct or remove it"
                    )
                for test in dict.fromkeys(by_name[name]):
                    found[test] = Outcome(test, kind, why=group["reason"])
    return found


def prepare() -> Path:
    """The folder with the suite and its virtual environment, made once."""
    if not (SUITE / "run").exists():
        raise SuiteError(
            f"{SUITE} is missing: it holds the script that fetches the official SDK's tests; "
            "check this repository out beside it (both in one folder), then run make sdk-suite again"
        )
    base = WORK / SDK_VERSION
    if not (base / "suite" / "tests").exists():
        say(f"fetching the tests of azure-servicebus {SDK_VERSION}, once")
    return base


def clean_environment() -> dict[str, str]:
    dropped = ("PYTEST_", "SB_", "MAKE", "MFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "SB_SDK_VERSION": SDK_VERSION, "PYTHONDONTWRITEBYTECODE": "1"}


def collect(base: Path) -> list[str]:
    ran = subprocess.run(
        [SUITE / "run", "--collect-only", *FILES],
        env={**clean_environment(), "SB_SUITE_DIR": str(base)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode != 0:
        raise SuiteError(f"the suite can't be collected:\n{(ran.stdout + ran.stderr)[-3000:]}")
    return [line for line in ran.stdout.splitlines() if "::" in line and line.startswith("tests/")]


def make_groups(tests: list[str]) -> list[Group]:
    groups = []
    for file, parts in FILES.items():
        inside = [test for test in tests if test.startswith(file + "::")]
        parts = min(parts, max(1, len(inside) // 4))
        for part in range(parts):
            if dealt := inside[part::parts]:
                stem = file.rpartition("/")[2].removesuffix(".py")
                groups.append(Group(stem + (f".{part + 1}" if parts > 1 else ""), dealt))
    return groups


class Runner:
    def __init__(self, base: Path, run: Path, total: int) -> None:
        self._base = base
        self._run = run
        self._total = total
        self._done = 0

    async def run_group(self, group: Group) -> None:
        folder = self._run / group.name
        (folder / "suite").mkdir(parents=True)
        (folder / "venv").symlink_to(self._base / "venv")
        shutil.copytree(self._base / "suite" / "tests", folder / "suite" / "tests")
        record = folder / "record.jsonl"
        record.touch()
        try:
            async with broker(folder) as environment:
                await self._run_pytest(group, folder, record, environment)
        except SuiteError as error:
            say(f"{group.name}: {error}")
        self._read(group, record)
        known = {each.test for each in group.found}
        for test in group.tests:
            if test not in known:
                self._tell(group, Outcome(test, "failed", why=f"no result: the run ended before it, see {folder}/log"))
        shutil.rmtree(folder / "data", ignore_errors=True)
        shutil.rmtree(folder / "suite", ignore_errors=True)

    async def _run_pytest(self, group: Group, folder: Path, record: Path, environment: dict[str, str]) -> None:
        with open(folder / "log", "wb") as log:
            process = await asyncio.create_subprocess_exec(
                SUITE / "run", *PLUGINS, f"--timeout={TEST_S_MAX}", "--tb=short", *group.tests,
                env={**environment, "SB_SUITE_DIR": str(folder), "SB_RECORD": str(record)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        heard_at = time.monotonic()
        try:
            while process.returncode is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 1.0)
                if self._read(group, record):
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > SILENCE_S_MAX:
                    say(f"{group.name}: silent for {SILENCE_S_MAX} s, given up")
                    return
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def _read(self, group: Group, record: Path) -> bool:
        lines = record.read_text().split("\n")[len(group.found) : -1]
        for line in lines:
            self._tell(group, Outcome(**json.loads(line)))
        return bool(lines)

    def _tell(self, group: Group, outcome: Outcome) -> None:
        group.found.append(outcome)
        self._done += 1
        say(f"{self._done:4}/{self._total} {outcome.outcome:7} {outcome.seconds:6.1f} s  {outcome.short}")


@contextlib.asynccontextmanager
async def broker(folder: Path):  # type: ignore[no-untyped-def]
    """A broker process for one group; yields the environment that leads the suite to it."""
    data = folder / "data"
    with open(folder / "broker.log", "wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pairbus", "broker", "--namespace", "suite:0", "--data", data,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        try:
            line = await asyncio.wait_for(process.stdout.readline(), READY_S_MAX)
        except TimeoutError:
            line = b""
        if not line:
            raise SuiteError(f"the broker didn't start, see {folder}/broker.log")
        ready = json.loads(line)
        parsed = ConnectionString.parse(ready["connection_string"])
        yield {
            **clean_environment(),
            "SB_HOST": f"{ready['host']}:{ready['port']}",
            "SB_KEY_NAME": parsed.key_name,
            "SB_KEY": parsed.key,
            "SB_DATA": str(data),
            "SB_NAMESPACE": ready["namespace"],
            "REQUESTS_CA_BUNDLE": ready["ca_file"],
            "SSL_CERT_FILE": ready["ca_file"],
            "PYTHONPATH": str(HERE / "plugins"),
        }
        if process.returncode is not None:
            say(f"{folder.name}: the broker died, exit code {process.returncode}, see {folder}/broker.log")
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10.0)
            except TimeoutError:
                process.kill()
                await process.wait()


async def run_groups(groups: list[Group], base: Path, run: Path, jobs: int) -> None:
    runner = Runner(base, run, sum(len(group.tests) for group in groups))
    waiting = list(groups)

    async def work() -> None:
        while waiting:
            await runner.run_group(waiting.pop(0))

    # Whatever ends the run, no broker and no pytest outlives it.
    own = asyncio.current_task()
    assert own is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, own.cancel)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(jobs):
            tasks.create_task(work())


COLUMNS = ("passed", "failed", "skipped", "never", "later", "no broker")


def count(outcomes: list[Outcome]) -> dict[str, Counter[str]]:
    """Per file. Passed tests that never reached for the broker prove nothing about it and are counted apart."""
    counts: dict[str, Counter[str]] = {}
    for each in outcomes:
        column = "no broker" if each.outcome == "passed" and not each.facing else each.outcome
        counts.setdefault(each.file, Counter())[column] += 1
    return counts


def show(outcomes: list[Outcome]) -> float:
    counts = count(outcomes)
    width = max(len(file) for file in counts) + 2
    print(f"{'':{width}}" + "".join(f"{column:>11}" for column in COLUMNS))
    for file in [*FILES, "all"]:
        row = counts.get(file) if file != "all" else sum(counts.values(), Counter())
        if row:
            print(f"{file:{width}}" + "".join(f"{row[column] or '':>11}" for column in COLUMNS))
    print("skipped: by the suite itself, xfail included; never, later: deselected.toml; no broker: passed without one")
    for each in outcomes:
        if each.outcome == "failed":
            print(f"\nFAILED {each.test}\n    " + each.why[-600:].replace("\n", "\n    "))
    total = sum(counts.values(), Counter())
    share = total["passed"] / max(1, total["passed"] + total["failed"])
    print(f"\n{total['passed']} of {total['passed'] + total['failed']} broker-facing tests passed: {share:.1%}")
    return share


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sdk_suite", description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="tests whose id contains TEXT")
    parser.add_argument("--jobs", type=int, default=JOBS, help="groups at a time, %(default)s unless told")
    parser.add_argument("--result", type=Path, default=WORK / "result.json", help="where the JSON goes")
    parser.add_argument("--keep", action="store_true", help="keep the logs of each group even when all passed")
    arguments = parser.parse_args()
    base = prepare()
    collected = collect(base)
    deselected = read_deselected(collected)
    chosen = [test for test in collected if not arguments.only or any(text in test for text in arguments.only)]
    groups = make_groups([test for test in chosen if test not in deselected])
    say(f"{sum(len(group.tests) for group in groups)} tests in {len(groups)} groups, {arguments.jobs} at a time")
    run = Path(tempfile.mkdtemp(prefix="run-", dir=WORK))
    started = time.monotonic()
    asyncio.run(run_groups(groups, base, run, arguments.jobs))
    outcomes = [each for group in groups for each in group.found]
    outcomes += [deselected[test] for test in chosen if test in deselected]
    order = {test: number for number, test in enumerate(collected)}
    outcomes.sort(key=lambda each: order[each.test])
    result = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "pairbus": __version__,
        "azure-servicebus": SDK_VERSION,
        "seconds": round(time.monotonic() - started),
        "files": count(outcomes),
        "tests": [asdict(each) for each in outcomes],
    }
    arguments.result.parent.mkdir(parents=True, exist_ok=True)
    arguments.result.write_text(json.dumps(result, indent=1) + "\n")
    share = show(outcomes)
    if arguments.keep or any(each.outcome == "failed" for each in outcomes):
        print(f"logs: {run}")
    else:
        shutil.rmtree(run)
    print(f"result: {arguments.result}")
    return 0 if share >= PASS_SHARE_MIN else 1


if __name__ == "__main__":
    try:
        code = main()
    except SuiteError as error:
        say(f"sdk-suite: {error}")
        code = 1
    except asyncio.CancelledError:
        say("sdk-suite: interrupted")
        code = 130
    sys.exit(code)
