from __future__ import annotations

import json

import pytest

from pairbus.syphon.core.destinations import RefusalVerdict, Trouble
from pairbus.syphon.core.progress import DESTINATIONS_MAX, Progress, duration

AWAY = Trouble(RefusalVerdict.FULL, "5 GB of 5 GB", "amqp:resource-limit-exceeded", 2, 0.0, 9.0)


@pytest.fixture
def progress() -> Progress:
    return Progress(0.0)


def test_p41_counts_by_destination() -> None:
    progress = Progress(100.0)
    progress.counted(50)
    progress.moved("orders", 10, 1000, 101.0)
    progress.moved("news", 5, 500, 102.0)
    progress.left("news", 3)
    progress.dead_lettered("", 1)
    progress.polled()
    report = progress.report(105.0, [("news", AWAY)])
    assert (report.moved, report.moved_bytes, report.left, report.dead_lettered) == (15, 1500, 3, 1)
    assert report.remaining == 50 - 15 - 1
    assert report.rate_per_s == pytest.approx(15 / 4)
    assert report.eta_s == pytest.approx(34 / 3.75)
    told = json.loads(json.dumps(report.as_json()))
    assert told["destinations"]["orders"] == {"moved": 10, "left": 0, "dead_lettered": 0}
    assert told["destinations"]["news"]["trouble"] == "full: 5 GB of 5 GB"
    assert told["eta_s"] == 9.1
    assert report.line() == ("15 moved, 34 to go, 4/s, 9 s left, 1 dead-lettered, 1 destination unavailable")
    assert repr(progress) == "<Progress 15 moved, 3 left, 1 dead-lettered>"


def test_nothing_known_nothing_claimed() -> None:
    report = Progress(0.0).report(10.0)
    assert (report.remaining, report.eta_s, report.rate_per_s) == (None, None, 0.0)
    assert report.line() == "0 moved, 0/s"


def test_the_rate_is_that_of_the_last_seconds(progress: Progress) -> None:
    for step in range(1000):
        progress.moved("orders", 10, 0, step / 10)
    assert progress.report(100.0).rate_per_s == pytest.approx(100, rel=0.05)
    assert progress.report(105.0).rate_per_s == pytest.approx(50, rel=0.1)
    assert progress.report(1000.0).rate_per_s == 0.0
    progress.moved("orders", 10, 0, 1000.0)
    assert 0 < progress.report(1000.5).rate_per_s <= 10


def test_more_than_was_counted(progress: Progress) -> None:
    progress.counted(5)
    progress.moved("orders", 8, 0, 1.0)
    assert progress.report(1.0).remaining == 0
    progress.counted(2)
    assert progress.report(1.0).remaining == 2
    assert progress.moved_count == 8


def test_messages_of_a_queue_that_is_new(progress: Progress) -> None:
    progress.found(7)
    assert progress.report(1.0).remaining is None, "nobody has counted the others"
    progress.counted(5)
    progress.found(7)
    assert progress.report(1.0).remaining == 12


def test_trouble_that_is_over_is_not_told(progress: Progress) -> None:
    progress.left("news", 1)
    assert progress.report(1.0, [("news", AWAY)]).destinations["news"].trouble
    assert progress.report(1.0).destinations["news"].trouble is None


def test_what_is_waited_for(progress: Progress) -> None:
    progress.waiting_for = "the primary can't be reached"
    assert progress.report(1.0).line().endswith("waiting: the primary can't be reached")


def test_destinations_are_bounded(progress: Progress) -> None:
    for number in range(DESTINATIONS_MAX + 5):
        progress.moved(f"d{number}", 1, 1, 0.0)
    report = progress.report(1.0)
    assert len(report.destinations) == DESTINATIONS_MAX
    assert report.moved == DESTINATIONS_MAX + 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7380, "2 h 03 min"), (90000, "1 d 1 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
