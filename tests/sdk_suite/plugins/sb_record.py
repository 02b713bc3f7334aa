"""A pytest plugin for the suite's own interpreter: writes what became of each test, a JSON line each, to SB_RECORD.

A test faces the broker when it, or a thread of it, connected to the broker's port while it ran. Seen by an audit
hook, so that no transport of the SDK is missed and none is changed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

WORDS_MAX = 4000
_port = int(os.environ["SB_HOST"].rpartition(":")[2])
_connected = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    global _connected
    if event == "socket.connect":
        address = arguments[1]
        if isinstance(address, tuple) and len(address) >= 2 and address[1] == _port:
            _connected = True


sys.addaudithook(_audit)


class Recorder:
    def __init__(self, path: str) -> None:
        self._path = path
        self._parts: list[pytest.TestReport] = []

    def pytest_runtest_logstart(self) -> None:
        global _connected
        _connected = False
        self._parts = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._parts.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        failed = [part for part in self._parts if part.failed]
        skipped = [part for part in self._parts if part.skipped]
        outcome = "failed" if failed else "skipped" if skipped else "passed"
        told = failed or skipped
        line = {
            "test": nodeid,
            "outcome": outcome,
            "facing": _connected,
            "seconds": round(sum(part.duration for part in self._parts), 2),
            "why": _last_words(told[0]) if told else "",
        }
        with open(self._path, "a") as out:
            out.write(json.dumps(line) + "\n")


def _last_words(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message)[-WORDS_MAX:]
    if isinstance(report.longrepr, tuple):  # a skip: file, line, reason
        return str(report.longrepr[2])
    return str(report.longrepr)[-WORDS_MAX:]


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.collectonly:
        config.pluginmanager.register(Recorder(os.environ["SB_RECORD"]))
