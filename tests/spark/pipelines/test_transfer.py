"""What moves, archives and restores share. The rounds themselves are in test_move and test_move_proof."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError

from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.pipelines.transfer import Transfer, rate_of
from pairbus.spark.pipelines.transfer_loop import Over, RoundResult, TransferLoop
from pairbus.syphon.core.rate_limit import RateLimit


def test_it_goes_from_step_to_step_to_the_end() -> None:
    transfer, rounds, steps = Transfer(), TransferLoop(30, RateLimit(), 0.0), list[str]()

    def take(count: int) -> None:
        steps.append(f"take {count}")
        rounds.ended(RoundResult(count, 0, 0), 1.0)

    def look() -> int:
        steps.append("look")
        return 0

    assert transfer._go_through(rounds, take, look) == Over()
    assert steps == ["take 30", "look"]
    assert transfer.report().moved == 0


def test_a_stop_ends_a_wait() -> None:
    transfer, rounds = Transfer(), TransferLoop(30, RateLimit(), 0.0, patience_s=1e9)

    class StoppedInTheWait(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert transfer.progress.waiting_for is not None
            transfer.stop()
            return super().wait(timeout)

    transfer._stop = StoppedInTheWait()

    def take(count: int) -> None:
        rounds.ended(RoundResult(0, 0, 0), 1e9)

    assert transfer._go_through(rounds, take, lambda: 5) is None
    assert transfer.progress.waiting_for is None


class Jobs:
    """As much of a session as a job is looked at by: two stages of one job, the second not begun."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.stages = {7: SimpleNamespace(numCompletedTasks=3, numTasks=8), 8: None}
        self.is_gone = False
        self.sparkContext = self._jsc = self

    def addJobTag(self, tag: str) -> None:
        self.tags.append(tag)

    def removeJobTag(self, tag: str) -> None:
        self.tags.remove(tag)

    def sc(self) -> Jobs:
        return self

    def statusTracker(self) -> Jobs:
        if self.is_gone:
            raise Py4JNetworkError("no JVM")
        return self

    def getJobIdsForTag(self, tag: str) -> list[int]:
        return [1, 2] if tag in self.tags else []

    def getJobInfo(self, job: int) -> Any:
        return SimpleNamespace(stageIds=[7, 8]) if job == 1 else None

    def getStageInfo(self, stage: int) -> Any:
        return self.stages[stage]


def test_of_a_long_job_it_says_how_many_parts_are_done() -> None:
    transfer, jobs = Transfer(), Jobs()
    with transfer._known_as_job(cast(Any, jobs)):
        assert transfer.report().waiting_for == "Spark, 3 of 8 parts done"
        assert "waiting: Spark, 3 of 8 parts done" in transfer.report().line()
        jobs.stages[7] = None
        assert transfer.report().waiting_for == "Spark's plan"
        jobs.is_gone = True
        assert transfer.report().waiting_for is None
        jobs.is_gone, jobs.stages[7] = False, SimpleNamespace(numCompletedTasks=8, numTasks=8)
        transfer.progress.moved("orders", 5, 50, 0.0)
        assert transfer.report().waiting_for is None, "what was moved says more"
    assert transfer.report().waiting_for is None and jobs.tags == []


@pytest.mark.parametrize("rate", [0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    assert rate_of(None) is None and rate_of(0.5) == 0.5
    with pytest.raises(InvalidOption, match="max_rate is a number of messages a second above 0, not "):
        rate_of(rate)
