"""Runs the tests that the official SDK publishes, each group of them against a broker process of its own.

The tests are fetched into `.venv/sdk-suite`; deselected.toml names, with the reason, those that are not run. Progress
goes to stderr; the table and the failures go to stdout, and everything to `.venv/sdk-suite/result.json`. The exit code
is 0 only if enough of the tests that face the broker pass.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from pairbus import __version__
from tests.sdk_suite.run import run_groups
from tests.sdk_suite.suite import (
    CACHE,
    FILES,
    SDK_VERSION,
    Outcome,
    SuiteError,
    collect,
    fetch,
    make_groups,
    read_deselected,
    say,
)

PASS_SHARE_MIN = 0.95
JOBS = 2 * (os.cpu_count() or 1)  # the tests wait out real lock times: most of them sleep most of the time
COLUMNS = ("passed", "failed", "skipped", "never", "no broker")


def count(outcomes: list[Outcome]) -> dict[str, Counter[str]]:
    """Count by file. Tests that passed without the broker prove nothing about it and are counted apart."""
    counts: dict[str, Counter[str]] = {}
    for each in outcomes:
        column = "no broker" if each.outcome == "passed" and not each.facing else each.outcome
        counts.setdefault(each.file, Counter())[column] += 1
    return counts


def show(outcomes: list[Outcome]) -> float:
    """Print the table and the failures; return the share of the broker-facing tests that passed."""
    counts = count(outcomes)
    total = sum(counts.values(), Counter())
    width = max(len(file) for file in FILES) + 2
    print(" " * width + "".join(f"{column:>11}" for column in COLUMNS))
    for file, row in (counts | {"all": total}).items():
        print(f"{file:{width}}" + "".join(f"{row[column] or '':>11}" for column in COLUMNS))
    print("skipped: by the suite itself, xfail included; never: deselected.toml; no broker: passed without one")
    for each in outcomes:
        if each.outcome == "failed":
            print(f"\nFAILED {each.test}\n    " + each.why[-600:].replace("\n", "\n    "))
    ran = total["passed"] + total["failed"]
    share = total["passed"] / max(1, ran)
    print(f"\n{total['passed']} of {ran} broker-facing tests passed: {share:.1%}")
    return share


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sdk_suite", description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="tests whose id contains TEXT")
    parser.add_argument("--jobs", type=int, default=JOBS, help="groups at a time, %(default)s unless told")
    parser.add_argument("--result", type=Path, default=CACHE / "result.json", help="where the JSON goes")
    parser.add_argument("--keep", action="store_true", help="keep the logs of each group even when all passed")
    arguments = parser.parse_args()
    suite = fetch()
    collected = collect(suite)
    deselected = read_deselected(collected)
    chosen = [test for test in collected if not arguments.only or any(text in test for text in arguments.only)]
    groups = make_groups([test for test in chosen if test not in deselected])
    say(f"{sum(len(group.tests) for group in groups)} tests in {len(groups)} groups, {arguments.jobs} at a time")
    logs = Path(tempfile.mkdtemp(prefix="run-", dir=CACHE))
    started = time.monotonic()
    asyncio.run(run_groups(groups, suite, logs, arguments.jobs))
    outcomes = [each for group in groups for each in group.outcomes]
    outcomes += [deselected[test] for test in chosen if test in deselected]
    outcomes.sort(key=lambda each: collected.index(each.test))
    result = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "pairbus": __version__,
        "azure-servicebus": SDK_VERSION,
        "seconds": round(time.monotonic() - started),
        "files": count(outcomes),
        "tests": [asdict(each) for each in outcomes],
    }
    arguments.result.write_text(json.dumps(result, indent=1) + "\n")
    share = show(outcomes)
    if arguments.keep or any(each.outcome == "failed" for each in outcomes):
        print(f"logs: {logs}")
    else:
        shutil.rmtree(logs)
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
