"""Measures whether a broker under churn grows: `python -m tests.simulation.endurance --minutes 60 --json out.json`.

A real broker process with small segments serves the load of `churn.py`. Every ten seconds its memory, descriptors,
threads, the bytes of its data folder and its own gauges are sampled. In the end lines are laid through the samples
after the warm-up, and what the broker still holds is compared with what was confirmed.

Samples lie close together in time and are alike for that, so that the usual standard error of a slope would promise too
much: it is widened by the correlation of neighbours. Beside the least-squares line stands the median of the slopes of
all pairs (Theil and Sen), which single spikes do not move.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from tests.broker.attack_words import Target
from tests.broker.broker_process import SMALL_SEGMENTS, BrokerProcess, used_bytes

from .churn import Churn
from .churn_wire import http

SAMPLE_S: Final = 10.0
WARM_UP: Final = 1 / 6
SEGMENT_BYTES: Final = SMALL_SEGMENTS["segment_bytes"]
MB: Final = 1e6
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
_QUIET_S_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the broker's process, its folder and its gauges."""

    t_s: float
    rss: int
    #: Without files, whose pages come and go with what else runs on the machine.
    anonymous: int
    descriptors: int
    segments: int
    threads: int
    disk: int
    live: int
    connections: int
    tokenless: int
    broker_cpu_s: float
    driver_cpu_s: float
    rounds: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class Slope:
    """What a figure gains in an hour: the least-squares line, its standard error, and the median of pairs."""

    per_hour: float
    error: float
    median: float

    def __str__(self) -> str:
        return f"{self.per_hour:+.3f} ± {self.error:.3f}, median {self.median:+.3f}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What must hold after the warm-up."""

    memory_mb_per_hour: float = 1.0
    descriptors_per_hour: float = 1.0
    live_factor: int = 2
    segments: int = 4

    @classmethod
    def for_run(cls, seconds: float) -> Bounds:
        """Return the limits of an hour, or wider ones for less. Memory is mostly found in the first ten minutes, until
        there are holes of every size between what stays; and the error of a slope goes with the time to minus 3/2."""
        shorter = max(1.0, 3600 / seconds)
        return cls(min(500.0, shorter**3), shorter**1.5)


@dataclass(slots=True)
class Result:
    minutes: float
    figures: dict[str, Any]
    problems: list[str]
    samples: list[Sample]

    def as_json(self) -> dict[str, Any]:
        return {"minutes": self.minutes, **self.figures, "problems": self.problems}


# -- lines through samples


def slope(points: Sequence[tuple[float, float]]) -> Slope:
    """Return the slope of values over hours."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    line = statistics.linear_regression(xs, ys)
    middle = statistics.fmean(xs)
    spread = sum((x - middle) ** 2 for x in xs)
    rests = [y - line.intercept - line.slope * x for x, y in points]
    squares = sum(rest * rest for rest in rests)
    error = math.sqrt(squares / max(1, len(points) - 2) / spread)
    alike = sum(a * b for a, b in itertools.pairwise(rests)) / squares if squares else 0.0
    alike = min(max(alike, 0.0), 0.95)
    pairs = [(d - b) / (c - a) for n, (a, b) in enumerate(points) for c, d in points[n + 1 :]]
    return Slope(line.slope, error * math.sqrt((1 + alike) / (1 - alike)), statistics.median(pairs))


def after_warm_up(samples: Sequence[Sample]) -> list[Sample]:
    return [each for each in samples if each.t_s >= samples[-1].t_s * WARM_UP]


def judge(samples: Sequence[Sample], bounds: Bounds) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of a run, and what of them is out of bounds."""
    kept = after_warm_up(samples)

    def line(read: Callable[[Sample], float]) -> Slope:
        return slope([(each.t_s / 3600, read(each)) for each in kept])

    slopes = {
        "rss_mb": line(lambda each: each.rss / MB), "anonymous_mb": line(lambda each: each.anonymous / MB),
        "descriptors": line(lambda each: each.descriptors), "other_descriptors": line(other_descriptors),
        "threads": line(lambda each: each.threads),
        "disk_mb": line(lambda each: each.disk / MB), "live_mb": line(lambda each: each.live / MB),
        "connections": line(lambda each: each.connections),
    }  # fmt: skip
    room = [bounds.live_factor * each.live + bounds.segments * SEGMENT_BYTES - each.disk for each in kept]
    problems = []
    for name in ("rss_mb", "anonymous_mb"):
        if slopes[name].per_hour >= bounds.memory_mb_per_hour:
            problems.append(f"{name} grows by {slopes[name]} an hour; allowed are {bounds.memory_mb_per_hour:g}")
    others = slopes["other_descriptors"]
    if abs(others.per_hour) > bounds.descriptors_per_hour + 2 * others.error:
        problems.append(f"descriptors change by {others} an hour; allowed are {bounds.descriptors_per_hour:g}")
    if min(room) < 0:
        problems.append(
            f"the folder is larger than {bounds.live_factor} × live data + {bounds.segments} segments by {-min(room)} "
            f"bytes in {sum(each < 0 for each in room)} of {len(room)} samples"
        )
    first, last = kept[0], kept[-1]
    seconds = max(1e-9, last.t_s - first.t_s)
    figures: dict[str, Any] = {
        "samples": len(kept),
        "slopes_per_hour": {name: dataclasses.asdict(each) for name, each in slopes.items()},
        "rss_mb": spread_of(each.rss / MB for each in kept),
        "descriptors": spread_of(each.descriptors for each in kept),
        "other_descriptors": spread_of(map(other_descriptors, kept)),
        "threads": spread_of(each.threads for each in kept),
        "disk_mb": spread_of(each.disk / MB for each in kept),
        "live_mb": spread_of(each.live / MB for each in kept),
        "connections": spread_of(each.connections for each in kept),
        "disk_room_mb_min": min(room) / MB,
        "cores": round((last.broker_cpu_s + last.driver_cpu_s - first.broker_cpu_s - first.driver_cpu_s) / seconds, 3),
        "broker_cores": round((last.broker_cpu_s - first.broker_cpu_s) / seconds, 3),
    }
    return figures, problems


def other_descriptors(sample: Sample) -> int:
    """Return how many there are besides connections and segments, of which there are now more, now fewer."""
    return sample.descriptors - sample.segments - sample.connections


def spread_of(values: Iterable[float]) -> dict[str, float]:
    listed = list(values)
    return {"min": round(min(listed), 3), "median": round(statistics.median(listed), 3), "max": round(max(listed), 3)}


# -- samples


class Watch:
    """Takes samples of a broker's process."""

    def __init__(self, broker: BrokerProcess, churn: Churn) -> None:
        self.samples: list[Sample] = []
        self._broker = broker
        self._churn = churn
        self._target = Target(broker.connection_string, broker.ca_file)
        self._began = time.monotonic()

    async def look(self) -> Sample:
        """Take a sample now; a fault may keep the broker from telling its gauges for a moment."""
        gauges = await self._gauges()
        proc = Path(f"/proc/{self._broker.pid}")
        status = dict(re.findall(r"^(\w+):\s+(\d+)", (proc / "status").read_text(), re.MULTILINE))
        times = (proc / "stat").read_text().rpartition(")")[2].split()
        files = [name_of(each) for each in (proc / "fd").iterdir()]
        sample = Sample(
            t_s=round(time.monotonic() - self._began, 2),
            rss=int(status["VmRSS"]) * 1024,
            anonymous=int(status["RssAnon"]) * 1024,
            descriptors=len(files),
            segments=sum(name.endswith(".segment") for name in files),
            threads=int(status["Threads"]),
            disk=used_bytes(str(self._broker.data)),
            live=int(sum_of(gauges, "queue_bytes")),
            connections=int(sum_of(gauges, "connections")),
            tokenless=int(sum_of(gauges, "tokenless_bytes")),
            broker_cpu_s=(int(times[11]) + int(times[12])) / _CLOCK_TICKS,
            driver_cpu_s=round(time.process_time(), 2),
            rounds=sum(self._churn.rounds.values()),
            confirmed=self._churn.books.confirmed,
        )
        self.samples.append(sample)
        return sample

    async def _gauges(self) -> str:
        for _ in range(100):
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                status, text = await http(self._target, "GET", "/metrics")
                if status == 200:
                    return text
            await asyncio.sleep(0.2)
        raise AssertionError("the broker does not give its metrics")

    async def until_like(self, idle: Sample) -> Sample:
        """Wait until nothing of any connection is left and return how the broker is then."""
        deadline = time.monotonic() + _QUIET_S_MAX
        while True:
            sample = await self.look()
            self.samples.pop()
            if is_like(sample, idle) or time.monotonic() > deadline:
                return sample
            await asyncio.sleep(0.2)


def is_like(sample: Sample, idle: Sample) -> bool:
    """Return whether there are no more connections and descriptors, segments aside, than before anyone came."""
    return (
        sample.connections <= idle.connections
        and sample.tokenless <= idle.tokenless
        and sample.descriptors - sample.segments <= idle.descriptors - idle.segments
    )


def name_of(descriptor: Path) -> str:
    """Return what a descriptor is open for; it may be closed by now."""
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""


def sum_of(page: str, name: str) -> float:
    """Return the sum of a gauge over its labels."""
    return sum(float(value) for value in re.findall(rf"^pairbus_{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))


# -- a run


async def endure(
    broker: BrokerProcess,
    seconds: float,
    *,
    seed: int = 1,
    pace: float = 1.0,
    sample_s: float = SAMPLE_S,
    lines: TextIO | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Churn for so long on a broker that serves, and judge it. `lines` gets a line of JSON for each sample."""
    churn = Churn(broker, seed, pace)
    watch = Watch(broker, churn)
    idle = await watch.look()
    watch.samples.clear()

    async def sample() -> None:
        while True:
            await asyncio.sleep(sample_s)
            taken = await watch.look()
            if lines is not None:
                print(json.dumps(dataclasses.asdict(taken)), file=lines, flush=True)
            if len(watch.samples) % 6 == 0:
                progress(line_of(watch.samples))

    sampling = asyncio.create_task(sample())
    try:
        await churn.run(seconds)
    finally:
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
    quiet = await watch.until_like(idle)
    figures, problems = judge(watch.samples, Bounds.for_run(seconds))
    books = churn.books
    found = await churn.found()
    problems += churn.defects + books.compare(found)
    if not is_like(quiet, idle):
        problems.append(f"when all had left: {quiet}; before they came: {idle}")
    said = broker.said()
    if "Traceback" in said:
        problems.append(said[said.index("Traceback") - 500 :][:3000])
    figures |= {
        "idle": dataclasses.asdict(idle),
        "quiet": dataclasses.asdict(quiet),
        "confirmed": books.confirmed,
        "removed": books.removed,
        "unknown": books.unknown,
        "left": len(found),
        "rounds": dict(churn.rounds),
        "errors": dict(churn.errors),
    }
    return Result(round(seconds / 60, 2), figures, problems, watch.samples)


def line_of(samples: Sequence[Sample]) -> str:
    last = samples[-1]
    kept = after_warm_up(samples)
    memory = slope([(each.t_s / 3600, each.rss / MB) for each in kept]) if len(kept) > 3 else "-"
    return (
        f"{last.t_s / 60:5.1f} min: {last.rss / MB:.2f} MB (MB/h: {memory}), {last.descriptors} descriptors, "
        f"{last.disk / MB:.2f} MB on disk for {last.live / MB:.2f} MB, {last.connections} connections, "
        f"{last.confirmed} messages, {(last.broker_cpu_s + last.driver_cpu_s) / last.t_s:.2f} cores"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no broker is left behind
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--pace", type=float, default=1.0, help="how many times as long as usual the actors pause")
    parser.add_argument("--sample", type=float, default=SAMPLE_S, metavar="SECONDS")
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--lines", type=Path, help="where the samples go, a line of JSON each")
    parser.add_argument("--judge", type=Path, metavar="LINES", help="run nothing: judge the samples of an earlier run")
    chosen = parser.parse_args()
    if chosen.judge:
        samples = [Sample(**json.loads(line)) for line in chosen.judge.read_text().splitlines()]
        figures, problems = judge(samples, Bounds.for_run(samples[-1].t_s + SAMPLE_S))
        print(json.dumps({**figures, "problems": problems}, indent=1))
        return 1 if problems else 0

    def tell(text: str) -> None:
        print(text, flush=True)

    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder, "data"), journal=SMALL_SEGMENTS) as broker,
        contextlib.ExitStack() as stack,
    ):
        lines = stack.enter_context(chosen.lines.open("w")) if chosen.lines else None
        broker.start()
        tell(f"seed {chosen.seed}, {broker!r}")
        result = asyncio.run(
            endure(
                broker, chosen.minutes * 60, seed=chosen.seed, pace=chosen.pace, sample_s=chosen.sample, lines=lines,
                progress=tell,
            )
        )  # fmt: skip
        code = broker.stop()
        if code:
            result.problems.append(f"the broker ended with {code}")
    told = json.dumps(result.as_json(), indent=1)
    tell(told)
    if chosen.json:
        chosen.json.write_text(told + "\n")
    return 1 if result.problems else 0
