"""Runs groups of the SDK's tests side by side, each in a pytest process with a broker process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.sdk_suite.suite import PYTEST, Group, Outcome, SuiteError, environment, say

READY_S_MAX = 60.0  # on a busy machine
SILENCE_S_MAX = 720.0  # more than the time limit of a test in suite.ini
LINE_BYTES_MAX = 1 << 20


async def run_groups(groups: list[Group], suite: Path, logs: Path, jobs: int) -> None:
    """Run the groups, `jobs` at a time; whatever ends the run, no broker and no pytest outlives it."""
    waiting = list(groups)
    total = sum(len(group.tests) for group in groups)

    def report(group: Group, outcome: Outcome) -> None:
        group.outcomes.append(outcome)
        done = sum(len(each.outcomes) for each in groups)
        say(f"{done:4}/{total} {outcome.outcome:7} {outcome.seconds:6.1f} s  {outcome.name}")

    async def work() -> None:
        while waiting:
            group = waiting.pop(0)
            folder = logs / group.name
            folder.mkdir()
            try:
                async with broker(folder, group.tier) as led:
                    async for outcome in run_pytest(group, suite, folder, led):
                        report(group, outcome)
            except SuiteError as error:
                say(f"{group.name}: {error}")
            for test in set(group.tests) - {each.test for each in group.outcomes}:
                report(group, Outcome(test, "failed", why=f"no outcome: the run ended before it, see {folder}/log"))
            shutil.rmtree(folder / "data", ignore_errors=True)

    this_task = asyncio.current_task()
    assert this_task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, this_task.cancel)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(jobs):
            tasks.create_task(work())


@contextlib.asynccontextmanager
async def broker(folder: Path, tier: str | None) -> AsyncIterator[dict[str, str]]:
    """Run a broker; yield the environment variables that lead a pytest of the suite to it."""
    data, config = folder / "data", folder / "broker.toml"
    config.write_text("[namespaces.suite]\nport = 0\n" + (f'tier = "{tier}"\n' if tier else ""))
    with open(folder / "broker.log", "wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pairbus", "broker", "--config", config, "--data", data,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        line = b""
        with contextlib.suppress(TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), READY_S_MAX)
        if not line:
            raise SuiteError(f"the broker didn't start, see {folder}/broker.log")
        ready = json.loads(line)
        yield {
            "SUITE_HOST": f"{ready['host']}:{ready['port']}",
            "SUITE_CONNECTION_STRING": ready["connection_string"],
            "SUITE_NAMESPACE": ready["namespace"],
            "SUITE_DATA": str(data),
            "REQUESTS_CA_BUNDLE": ready["ca_file"],
            "SSL_CERT_FILE": ready["ca_file"],
        }
        if process.returncode is not None:
            raise SuiteError(f"the broker ended with exit code {process.returncode}, see {folder}/broker.log")
    finally:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 10.0)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def run_pytest(group: Group, suite: Path, folder: Path, led: dict[str, str]) -> AsyncIterator[Outcome]:
    """Yield the outcomes that outcome_report.py writes to stderr; all other output goes to the log."""
    with open(folder / "log", "ab") as log:
        process = await asyncio.create_subprocess_exec(
            *PYTEST, *group.tests, cwd=suite, env=environment() | led, limit=LINE_BYTES_MAX,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stderr is not None
        try:
            while line := await asyncio.wait_for(process.stderr.readline(), SILENCE_S_MAX):
                if line.startswith(b'{"test": '):
                    yield Outcome(**json.loads(line))
                else:
                    log.write(line)
        except TimeoutError:
            raise SuiteError(f"silent for {SILENCE_S_MAX:.0f} s, given up, see {folder}/log") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
