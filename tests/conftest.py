"""With PAIRBUS_REQUIRE=all, as in CI, a test that is skipped because something is missing has failed. No Hypothesis
example has a time limit of its own: two busy cores are no bug; and every run draws the same ones. A process whose test
outlasts its time-out is ended. The sync clients' tests are generated from the async ones before any are collected."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings
from scripts.generate_sync import write_tests

write_tests()  # here, since the conftest.py of tests/sync imports one of them before any hook is called

settings.register_profile("fresh", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("house", settings.get_profile("fresh"), derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis draw the same examples in every run but a soak. It takes the profile when tests are imported."""
    settings.load_profile("fresh" if config.option.markexpr == "soak" else "house")


# `requests` looks for proxies by going through the environment, which fails on any thread while pytest removes
# PYTEST_CURRENT_TEST from it on another. It does not look for a host that needs none.
os.environ["no_proxy"] = ",".join(
    [*filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"),)), "localhost", "127.0.0.1"]
)

REQUIRE_ALL = os.environ.get("PAIRBUS_REQUIRE") == "all"


#: Slow tests in these places start Spark in their own process. Those of a group go to one worker, one after the other:
#: a session costs half a gigabyte and many seconds, and a process can have one only. Two workers, two groups.
#: Any other file stays on one worker, with its broker; what starts Spark by commands alone, as the drill does, too.
SPARK = {
    "reports": ("tests/spark/reports/", "tests/spark/test_cost_proof.py", "tests/spark/test_reports_proof.py"),
    "": tuple(f"tests/spark/test_{name}_proof.py" for name in ("cluster", "ingest_kill", "interrupt")),
    "spark": ("tests/spark/", "tests/frozen/test_data_proof.py", "tests/test_docs.py"),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            groups = (group for group, places in SPARK.items() if file.startswith(places))
            return (next(groups, "") if config.option.markexpr == "slow" else "") or file

    return ByFile(config, log)


#: How much longer than its time-out a test may take, and how long its teardown. The time-out raises an error once; what
#: catches it, or hangs in the teardown after it, would go on for ever. Then the process prints where its threads are
#: and ends, and xdist goes on with another one.
HANG_S = 300.0


def _end_later(item: pytest.Item, seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    mark = item.get_closest_marker("timeout")
    given = item.config.getoption("timeout", None)
    timeout = float(item.config.getini("timeout") if given is None else given) if mark is None else float(mark.args[0])
    if timeout and given != 0:
        _end_later(item, timeout + HANG_S)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    _end_later(item, HANG_S)  # pytest ends the other when a test fails
    return (yield)


def _fail_if_skipped(report: Any) -> None:
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"PAIRBUS_REQUIRE=all, yet this was skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _fail_if_skipped(report)
    return report
