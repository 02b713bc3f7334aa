"""Pytest plugin: writes the outcome of each test to stderr, as a line of JSON with the fields of `suite.Outcome`.

A test counts as facing the broker if the process connected to the broker's port while it ran. An audit hook sees that
for every transport of the SDK and changes none.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

REASON_CHARS_MAX = 4000
_stderr = os.fdopen(os.dup(2), "w", buffering=1)  # pytest redirects the descriptor itself while a test runs
_reports: list[pytest.TestReport] = []
_connected = False


def _note_connection(event: str, arguments: tuple[Any, ...]) -> None:
    global _connected
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        _connected |= str(arguments[1][1]) == os.environ["SUITE_HOST"].rpartition(":")[2]


sys.addaudithook(_note_connection)


def pytest_runtest_logstart() -> None:
    global _connected
    _connected = False
    _reports.clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _reports.append(report)


def pytest_runtest_logfinish(nodeid: str) -> None:
    failed = [report for report in _reports if report.failed]
    skipped = [report for report in _reports if report.skipped]
    fields = {
        "test": nodeid,
        "outcome": "failed" if failed else "skipped" if skipped else "passed",
        "facing": _connected,
        "seconds": round(sum(report.duration for report in _reports), 2),
        "why": next(map(_reason, failed or skipped), ""),
    }
    print(json.dumps(fields), file=_stderr)


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # of a skipped test: file, line, reason
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)[-REASON_CHARS_MAX:]
