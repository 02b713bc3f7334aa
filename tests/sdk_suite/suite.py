"""Fetches the SDK's tests and decides which of them are run, and in which groups."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".venv" / "sdk-suite"
SDK_VERSION = metadata.version("azure-servicebus")
PYTEST = (sys.executable, "-m", "pytest", "-c", str(HERE / "suite.ini"), "--rootdir", ".")

# The files that talk to a broker, the longest first, and into how many groups each is divided. A management file stays
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
    """The run cannot go on; the message is the line that the user sees."""


@dataclass
class Outcome:
    test: str
    outcome: str  # passed, failed, skipped (by the suite itself), never
    facing: bool = True
    seconds: float = 0.0
    why: str = ""

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def name(self) -> str:
        """The test without its class, as deselected.toml names it."""
        return f"{self.file}::{self.test.rpartition('::')[2]}"


@dataclass
class Group:
    """Tests that share a broker."""

    name: str
    tests: list[str]
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def tier(self) -> str | None:
        """That of the namespace: tests of management want a Standard one to refuse what it can't have."""
        return "standard" if self.tests[0].startswith("tests/mgmt_tests/") else None


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def environment() -> dict[str, str]:
    """Return the environment for a pytest of the suite: nothing of an outer pytest or make, and our plugins."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE", "MFLAGS"))}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def fetch() -> Path:
    """Return the folder of the SDK's unpacked source package, which is downloaded once.

    Raises SuiteError if pip cannot download the package or its hash is another.
    """
    package = f"azure_servicebus-{SDK_VERSION}"
    folder = CACHE / package
    if folder.exists():
        return folder
    say(f"fetching the source package of azure-servicebus {SDK_VERSION}, once")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        ran = subprocess.run(
            [*pip, "--no-binary", "azure-servicebus", "--dest", scratch, "--requirement", HERE / "sdist.txt"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        archive = Path(scratch, f"{package}.tar.gz")
        if not archive.exists():
            raise SuiteError(
                f"pip didn't fetch the source package of azure-servicebus {SDK_VERSION} that {HERE}/sdist.txt names; "
                f"see that it reaches a package index, then run make sdk-suite again\n{ran.stderr[-3000:]}"
            )
        shutil.unpack_archive(archive, scratch)
        Path(scratch, package).rename(folder)
    return folder


def collect(folder: Path) -> list[str]:
    """Return the ids of all tests in FILES."""
    ran = subprocess.run(
        [*PYTEST, "--collect-only", *FILES], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        raise SuiteError(f"the suite can't be collected:\n{(ran.stdout + ran.stderr)[-3000:]}")
    return [line for line in ran.stdout.splitlines() if line.startswith("tests/") and "::" in line]


def read_deselected(collected: list[str]) -> dict[str, Outcome]:
    """Return the collected tests that are not run, with the reason.

    Raises SuiteError for a name that no test has, so that the list stays true.
    """
    tests_by_name: dict[str, list[str]] = {}
    for test in collected:
        name = Outcome(test, "").name
        for each in {name, re.sub(r"\[.*\]$", "", name)}:
            tests_by_name.setdefault(each, []).append(test)
    found: dict[str, Outcome] = {}
    for kind, groups in tomllib.loads((HERE / "deselected.toml").read_text()).items():
        for group in groups:
            for name in group["tests"]:
                if name not in tests_by_name:
                    raise SuiteError(
                        f"deselected.toml names {name}, which the suite doesn't have; correct or remove it"
                    )
                for test in tests_by_name[name]:
                    found[test] = Outcome(test, kind, why=group["reason"])
    return found


def make_groups(tests: list[str]) -> list[Group]:
    groups = []
    for file, parts in FILES.items():
        inside = [test for test in tests if test.startswith(file + "::")]
        parts = min(parts, max(1, len(inside) // 4))
        for part in range(parts):
            if chosen := inside[part::parts]:
                groups.append(Group(f"{Path(file).stem}.{part + 1}", chosen))
    return groups
