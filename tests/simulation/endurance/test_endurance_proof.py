"""A broker under churn does not grow: minutes of it here, an hour of it with `SOAK_MINUTES=60 make soak`."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from pairbus.wire import WireClient, WireError
from tests.broker.attack_words import QUEUE as FUZZED
from tests.broker.attack_words import Target
from tests.broker.broker_process import SMALL_SEGMENTS, BrokerProcess
from tests.broker.crash_load import split_of
from tests.frozen.test_data_proof import FIXTURES
from tests.frozen.write_fixtures import opened

from . import MB, SAMPLE_S, SEGMENT_BYTES, Bounds, Sample, endure, judge, slope, sum_of
from .churn import Churn
from .churn_books import Books
from .churn_wire import http, id_of

#: The namespaces of all stored data folders; a new folder needs no new code.
STORED = [(each, path.parent.name) for each in FIXTURES for path in sorted(each.glob("broker/*/journal"))]
SOAK_S = float(os.environ.get("SOAK_MINUTES") or 10) * 60


async def churned(broker: BrokerProcess, seconds: float, sample_s: float = SAMPLE_S) -> None:
    broker.start()
    result = await endure(broker, seconds, seed=random.randrange(1 << 30), sample_s=sample_s, progress=print)
    assert broker.stop() == 0
    print(result.as_json())
    assert result.problems == []
    assert result.figures["confirmed"] > 10 * seconds
    never = {"send", "receive", "leave", "strangers", "queues", "guest", "tls", "faults"} - result.figures[
        "rounds"
    ].keys()
    assert not never


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_minute_of_churn_leaves_nothing_behind(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", journal=SMALL_SEGMENTS) as broker:
        await churned(broker, 75.0, sample_s=1.0)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_churn_for_long_leaves_nothing_behind(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", journal=SMALL_SEGMENTS) as broker:
        await churned(broker, SOAK_S)


@pytest.mark.slow
@pytest.mark.parametrize(("fixture", "namespace"), STORED, ids=[f"{each.name} {name}" for each, name in STORED])
async def test_what_an_earlier_version_stored_outlasts_churn_beside_it(
    fixture: Path, namespace: str, tmp_path: Path
) -> None:
    with BrokerProcess(opened(fixture, tmp_path) / "broker", journal=SMALL_SEGMENTS) as broker:
        broker.name = namespace
        broker.start()
        before = await stored(broker)
        assert before
        churn = Churn(broker, 1, pace=0.3)
        await churn.run(6.0)
        assert churn.defects + churn.books.compare(await churn.found()) == []
        assert churn.books.removed > 50
        assert await stored(broker) == before
        assert broker.stop() == 0
        broker.start()
        assert churn.books.compare(await churn.found()) == []
        assert await stored(broker) == before


async def stored(broker: BrokerProcess) -> dict[str, list[tuple[str, int | None]]]:
    """Return the messages of all entities that are not the churn's."""
    target = Target(broker.connection_string, broker.ca_file)
    _, page = await http(target, "GET", "/metrics")
    names = {each for each in re.findall('pairbus_queue_bytes.*entity="(.+?)"', page) if each != FUZZED}
    found = {}
    async with WireClient.from_connection_string(broker.connection_string) as client:
        for name in sorted(each for each in names if not each.startswith("churn-")):
            for path in (name, f"{name}/$DeadLetterQueue"):
                messages = [split_of(payload) for payload in await client.peek(path, 1, 1000)]
                found[path] = [(id_of(each.payload), each.sequence_number) for each in messages]
    return {path: messages for path, messages in found.items() if messages}


@pytest.mark.parametrize("actor", ["_come_and_go_as_subscription", "_come_and_go_as_queue"])
async def test_what_was_created_without_an_answer_is_deleted(
    actor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.connection_string = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=a2V5"
    churn = Churn(broker, 1)
    there: set[str] = set()

    async def lose_answer(method: str, at: str, body: bytes = b"", check: bool = True) -> int:
        if method == "PUT":
            there.add(at)
            raise TimeoutError
        there.remove(at)
        return 200

    monkeypatch.setattr(churn, "http", lose_answer)
    with pytest.raises(TimeoutError):
        await getattr(churn, actor)(random.Random(1))
    assert not there


# -- the judge


def sample(t_s: float, **fields: float) -> Sample:
    usual = dict.fromkeys(Sample.__dataclass_fields__, 0) | {"live": 2_000_000, "disk": 3_000_000, "descriptors": 30}
    return Sample(**(usual | fields | {"t_s": t_s}))  # type: ignore[arg-type]


def run_of(**grow: float) -> list[Sample]:
    """An hour of samples; each named figure grows by so much in it, after a warm-up that is much steeper."""
    rng = random.Random(1)
    samples = []
    for n in range(361):
        t_s = n * 10.0
        noise = {"rss": 50e6 + rng.gauss(0, 0.2e6), "anonymous": 40e6, "descriptors": 30 + rng.randint(-3, 3)}
        warm = min(1.0, t_s / 600) * 20e6
        grown = {name: noise.get(name, getattr(sample(0), name)) + by * t_s / 3600 for name, by in grow.items()}
        fields = noise | grown
        fields["rss"] += warm
        samples.append(sample(t_s, **fields))
    return samples


def test_a_slope_is_found_with_its_error_and_spikes_do_not_move_the_median() -> None:
    rng = random.Random(2)
    points = [(n / 360, 50 + 3 * n / 360 + rng.gauss(0, 0.5)) for n in range(360)]
    found = slope(points)
    assert abs(found.per_hour - 3) < 3 * found.error < 1
    spiked = [(x, y + 100 * (n > 350)) for n, (x, y) in enumerate(points)]
    assert slope(spiked).per_hour > 5 and abs(slope(spiked).median - 3) < 0.5
    assert slope([(n / 10, 7.0) for n in range(5)]).error == 0


def test_the_error_is_wider_where_neighbours_are_alike() -> None:
    rng = random.Random(3)
    loose = [(float(n), rng.gauss(0, 1)) for n in range(300)]
    level, alike = 0.0, []
    for n in range(300):
        level = 0.9 * level + rng.gauss(0, 1) * (1 - 0.81) ** 0.5
        alike.append((float(n), level))
    assert slope(alike).error > 2.5 * slope(loose).error


@pytest.mark.parametrize(
    ("grow", "named"),
    [
        ({}, []),
        ({"rss": 2e6}, ["rss_mb"]),
        ({"anonymous": 2e6}, ["anonymous_mb"]),
        ({"rss": -9e6}, []),
        ({"descriptors": 5}, ["descriptors"]),
        ({"disk": 4e6}, ["folder"]),
        ({"disk": 8e6, "live": 4e6}, []),
    ],
)
def test_what_grows_is_named(grow: dict[str, float], named: list[str]) -> None:
    figures, problems = judge(run_of(**grow), Bounds())
    assert [any(name in problem for problem in problems) for name in named] == [True] * len(named)
    assert len(problems) == len(named), problems
    room = figures["disk_room_mb_min"]
    assert (room < 0) == ("folder" in named) and room <= (2 * 2e6 + 4 * SEGMENT_BYTES - 3e6) / MB


def test_an_hour_has_the_limits_that_are_promised_and_less_has_wider_ones() -> None:
    assert Bounds.for_run(3600) == Bounds.for_run(7200) == Bounds(1.0, 1.0, 2, 4)
    assert Bounds.for_run(1800).memory_mb_per_hour == 8
    assert Bounds.for_run(75) == Bounds(500.0, 48**1.5)


def test_gauges_are_added_up() -> None:
    samples = ("# TYPE x", 'queue_bytes{entity="a b"} 12', 'queue_bytes{entity="c"} 3.0', "tokenless_bytes 7")
    page = "\npairbus_".join(samples)
    assert (sum_of(page, "queue_bytes"), sum_of(page, "tokenless_bytes"), sum_of(page, "queue")) == (15, 7, 0)


def test_the_books_know_what_is_lost_what_is_too_much_and_what_nobody_knows() -> None:
    books = Books()
    for id in ("kept", "lost", "removed", "unsure", "refused", "early", "gone unsure"):
        books.sending("q", id)
    books.gone("q", "early")  # received before its confirmation
    for id in ("kept", "lost", "removed", "early", "gone unsure"):
        books.sent("q", id)
    books.sent("q", "unsure", WireError("x", outcome_unknown=True))
    books.sent("q", "refused", WireError("x"))
    books.gone("q", "removed")
    books.gone("q", "gone unsure", is_certain=False)
    books.seen("q", "kept")
    assert (books.depth["q"], books.confirmed, books.removed, books.unknown) == (4, 5, 2, 1)
    assert books.compare({("q", id): 1 for id in ("kept", "lost", "unsure")}) == []
    assert books.compare({("q", "kept"): 2, ("q", "removed"): 1}) == [
        "lost was confirmed in q and is lost",
        "removed is in q, where it was never sent or was removed before",
        "kept is in q more than once",
    ]
    books.seen("q", "removed")
    assert books.compare({("q", "kept"): 1, ("q", "lost"): 1}) == [
        "removed was received from q, where it was never sent or was removed before"
    ]
    books.doubt("q")
    assert len(books.compare({})) == 1
