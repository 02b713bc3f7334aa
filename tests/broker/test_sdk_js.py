"""The official JavaScript SDK, unmodified from npm, against a broker in a process of its own: tests/js, a case each.

Node runs all files once; every `test("…")` in them is a test here, so that a failure has its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from .broker_process import ROOT, BrokerProcess

JS = ROOT / "tests" / "js"
FILES = sorted(path.name for path in JS.glob("*.test.js"))
CASE = re.compile(r'^test\("([^"]+)"', re.MULTILINE)
CASES = [(file, name) for file in FILES for name in CASE.findall((JS / file).read_text())]
#: The SDK wants 20, --test-timeout 20.11.
NODE_MIN = (20, 11)
INSTALL_S_MAX = 180
FILE_S_MAX = 150
RUN_S_MAX = 240


def missing() -> str | None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    version = subprocess.run(["node", "--version"], capture_output=True, check=True, text=True).stdout.strip()
    if tuple(map(int, version.lstrip("v").split(".")[:2])) < NODE_MIN:
        return f"node is {version}; {'.'.join(map(str, NODE_MIN))} or newer is needed"
    return None


MISSING = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(INSTALL_S_MAX + RUN_S_MAX + 60),
    # with PAIRBUS_REQUIRE=all a skip is a failure (tests/conftest.py)
    pytest.mark.skipif(MISSING is not None, reason=MISSING or ""),
]


@dataclass(frozen=True)
class Run:
    #: File and name of a case → what went wrong, or None.
    errors: dict[tuple[str, str], str | None]
    node_said: str
    broker_said: str


def install() -> None:
    """Once for each lock file."""
    stamp = JS / "node_modules" / ".installed"
    wanted = hashlib.sha256((JS / "package-lock.json").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    command = ["npm", "ci", "--ignore-scripts"]
    done = subprocess.run(command, cwd=JS, capture_output=True, text=True, timeout=INSTALL_S_MAX)
    assert done.returncode == 0, f"npm ci failed: {done.stderr[-2000:]}"
    stamp.write_text(wanted)


def run_node(environment: dict[str, str], report: Path) -> str:
    """All files, some at a time, since most of them wait; what node said besides the report."""
    command = [
        *("node", "--test", "--test-concurrency=3", f"--test-timeout={FILE_S_MAX * 1000}"),
        *("--test-reporter=./reporter.js", f"--test-reporter-destination={report}", *FILES),
    ]
    # a group of its own: with it ends what a test has started and left behind
    node = subprocess.Popen(
        command,
        cwd=JS,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = node.communicate(timeout=RUN_S_MAX)
    except subprocess.TimeoutExpired:
        said = f"node did not end within {RUN_S_MAX} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.communicate()
    return said


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    install()
    folder = tmp_path_factory.mktemp("js")
    report = folder / "report"
    with BrokerProcess(folder / "contoso") as broker, BrokerProcess(folder / "spare") as spare:
        # the second one is the tests' own to start and end; here it only makes its certificates
        spare.start()
        spare.stop()
        broker.start()
        trusted = folder / "ca.pem"
        trusted.write_text(Path(broker.ca_file).read_text() + Path(spare.ca_file).read_text())
        namespace = f"{spare.name}:{spare.port}"
        command = [sys.executable, "-m", "pairbus", "broker", "--namespace", namespace, "--data", str(spare.data)]
        environment = {
            "NODE_EXTRA_CA_CERTS": str(trusted),
            "PAIRBUS_CONNECTION_STRING": broker.connection_string,
            "PAIRBUS_SPARE": json.dumps(command),
        }
        node_said = run_node(environment, report)
        broker_said = broker.said()
    results = [json.loads(line) for line in report.read_text().splitlines()]
    errors = {(result["file"], result["name"]): result["error"] for result in results}
    return Run(errors, node_said, broker_said)


@pytest.mark.parametrize(("file", "name"), CASES)
def test_javascript(run: Run, file: str, name: str) -> None:
    assert (file, name) in run.errors, f"it did not run to its end. {run.node_said[-2000:]}"
    error = run.errors[file, name]
    assert error is None, error


def test_every_case_is_known(run: Run) -> None:
    """A file that fails to load, or a test written in another way, is not overlooked."""
    assert {key: error for key, error in run.errors.items() if key not in set(CASES)} == {}


def test_the_broker_was_never_surprised(run: Run) -> None:
    assert "Traceback" not in run.broker_said, run.broker_said[-4000:]
