"""A broker in which everything comes and goes does not grow, and loses nothing: `SOAK_MINUTES=60 make soak`.

A real process with small segments serves actors, each of which is called again and again. Meanwhile its memory and
descriptors, and the bytes of its data folder, are sampled, and lines are laid through the samples after the warm-up. In
the end it must have no more connections and descriptors than before anyone came.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pairbus.amqp.message import Properties, encode_message, read_properties, split
from pairbus.broker.control.control_socket import request as ask_control
from pairbus.broker.http.atom import ATOM, SERVICE_BUS
from pairbus.wire import WireClient, WireError
from tests.broker.attack_words import QUEUE as FUZZED
from tests.broker.attack_words import Target, attach, credit, let_in, transfer
from tests.broker.attacks import ATTACKS, connected
from tests.broker.broker_process import SMALL_SEGMENTS, BrokerProcess, used_bytes

SOAK_S = float(os.environ.get("SOAK_MINUTES") or 10) * 60
SAMPLE_S = 2.0
MB = 1e6
#: What a queue may hold before nobody sends to it.
DEPTH_MAX = 300
#: Attacks that are short: the others would take all the time.
STRANGERS = ("garbage", "http_garbage", "tls_garbage", "sasl_garbage", "halves", "wounds", "strange_messages")
FAULTS = ("refuse", "throttle", "latency", "crash-entity", "crash-node")


class Sample(NamedTuple):
    """One look at the broker's process, its folder and its gauges; `others` are descriptors besides connections and
    segments, of which there are now more, now fewer."""

    at_s: float
    memory: int
    others: int
    disk: int
    tokenless: int
    live: int
    connections: int


def slope_per_hour(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes of all pairs, which single spikes do not move (Theil and Sen)."""
    pairs = itertools.combinations(points, 2)
    return 3600 * statistics.median((d - b) / (c - a) for (a, b), (c, d) in pairs)


def judge(samples: Sequence[Sample], seconds: float) -> list[str]:
    """Return what grows. An hour may bring a megabyte and a descriptor; what is promised for less is less, since memory
    is mostly found in the first minutes, and the error of a slope goes with the time to minus 3/2."""
    shorter = max(1.0, 3600 / seconds)
    kept = [each for each in samples if each.at_s >= samples[-1].at_s / 6][-1000:]
    memory = slope_per_hour([(each.at_s, each.memory / MB) for each in kept])
    others = slope_per_hour([(each.at_s, each.others) for each in kept])
    room = min(2 * each.live + 4 * SMALL_SEGMENTS["segment_bytes"] - each.disk for each in kept)
    print(f"{memory:+.2f} MB and {others:+.2f} descriptors an hour, {room / MB:.2f} MB of room on the disk, {kept[-1]}")
    limits = min(500.0, shorter**3), shorter**1.5
    return [
        *([f"memory grows by {memory:.2f} MB an hour; {limits[0]:g} are allowed"] if memory > limits[0] else []),
        *([f"descriptors grow by {others:.2f} an hour; {limits[1]:g} are allowed"] if others > limits[1] else []),
        *([f"the folder is larger than 2 × live data + 4 segments, by {-room} bytes"] if room < 0 else []),
    ]


class Churn:
    """The actors, and what they know of the messages that must be there."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.broker = broker
        self.target = Target(broker.connection_string, broker.ca_file)
        self.rng = random.Random(seed)
        self.rounds: Counter[str] = Counter()
        self.there: dict[str, set[str]] = {"orders": set(), "carts": set()}
        self.problems: list[str] = []
        self._numbers = itertools.count()

    async def http(self, method: str, at: str, tag: str = "", inside: str = "") -> tuple[int, str]:
        """Make one request on a connection of its own."""
        content = f'<a:content type="application/xml"><{tag}>{inside}</{tag}></a:content>' if tag else ""
        body = f'<a:entry xmlns:a="{ATOM}" xmlns="{SERVICE_BUS}">{content}</a:entry>' if tag else ""
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.target.port)
            head = f"{method} {at} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Authorization: {self.target.token()}\r\n\r\n{body}".encode())
            answer = (await reader.read()).decode()
            writer.transport.abort()
        return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]

    def client(self) -> WireClient:
        return WireClient.from_connection_string(self.broker.connection_string, timeout=20.0)

    def new(self, count: int, session: str | None = None) -> dict[str, bytes]:
        ids = [f"m{next(self._numbers)}" for _ in range(count)]
        size = self.rng.choice((50, 400, 2000, 6000))
        return {
            id: encode_message(properties=Properties(message_id=id, group_id=session), body=b"x" * size) for id in ids
        }

    # -- actors: nothing but what the broker confirmed is in `there`, since no fault is set on these entities

    async def send_and_receive(self) -> None:
        """Messages come and go in all ways; what is abandoned or forgotten too often becomes a dead letter."""
        async with self.client() as client:
            if len(self.there["orders"]) < DEPTH_MAX:
                payloads = self.new(self.rng.randint(1, 40))
                await (await client.sender("orders")).send_batch(list(payloads.values()))
                self.there["orders"] |= payloads.keys()
            dead = self.rng.random() < 0.3
            receiver = await client.receiver("orders/$DeadLetterQueue" if dead else "orders")
            messages = await receiver.receive(self.rng.randint(1, 50), 0.2)
            await self._complete("orders", receiver, messages[: len(messages) * 3 // 4])
            rest = messages[len(messages) * 3 // 4 :]
            how = self.rng.choice(("abandon", "release", "forget", "forget" if dead else "dead_letter"))
            if rest and how != "forget":
                await getattr(receiver, how)(rest)

    async def use_sessions(self) -> None:
        session = f"s{self.rng.randrange(10)}" if self.rng.random() < 0.5 else f"s{next(self._numbers)}"
        async with self.client() as client:
            payloads = self.new(self.rng.randint(1, 8), session)
            await (await client.sender("carts")).send_batch(list(payloads.values()))
            self.there["carts"] |= payloads.keys()
            receiver = await client.receiver("carts", session_id=session)
            named = {"session-id": session, "session-state": self.rng.choice((None, b"x" * 300))}
            await client.request("carts", "com.microsoft:set-session-state", named)
            while messages := await receiver.receive(20, 0.2):
                await self._complete("carts", receiver, messages)
            await client.request("carts", "com.microsoft:set-session-state", {**named, "session-state": None})

    async def _complete(self, home: str, receiver: Any, messages: Sequence[Any]) -> None:
        if messages:
            await receiver.complete(messages)
        for message in messages:
            id = str(read_properties(message.payload, split(message.payload)).message_id)
            if id not in self.there[home]:
                self.problems.append(f"{id} came from {home}, and was completed before")
            self.there[home].discard(id)

    async def come_and_go(self) -> None:
        """A queue, or a subscription, of a name that was never used before, with links that go with it."""
        name = f"guest-{next(self._numbers)}"
        is_queue = self.rng.random() < 0.5
        at = f"/{name}" if is_queue else f"/news/Subscriptions/{name}"
        await self.http("PUT", at, "QueueDescription" if is_queue else "SubscriptionDescription")
        async with self.client() as client:
            sender, receiver = await client.sender(name if is_queue else "news"), await client.receiver(at[1:])
            await sender.send_batch(list(self.new(5).values()))
            await receiver.complete(await receiver.receive(3, 0.5))
            if self.rng.random() < 0.5:
                await self.http("DELETE", at)
        if (await self.http("DELETE", at))[0] not in (200, 404):
            self.problems.append(f"{at} could not be deleted")

    # -- actors: those who leave as nobody should, or may not come in; what they meet, nobody counts

    async def leave_somehow(self) -> None:
        async with connected(self.target, self.rng, tls=self.rng.random() < 0.1) as wire:
            message = next(iter(self.new(1).values()))
            links = [attach(5, "left", receives=True), credit(5, 50), attach(6, "left", receives=False)]
            more = [transfer(6, 6, message), transfer(6, 7, message[:20], more=True), attach(7, "carts", receives=True)]
            await wire.send(let_in(self.target) + b"".join(links + self.rng.sample(more, 2)))
            await asyncio.sleep(self.rng.choice((0.0, 0.05)))
            if self.rng.random() < 0.5:
                await wire.leave(rudely=True)

    async def be_strange(self) -> None:
        await ATTACKS[self.rng.choice(STRANGERS)](self.target, self.rng)

    async def clean_up(self) -> None:
        for name in (FUZZED, "left"):
            await self.http("DELETE", f"/{name}")
            await self.http("PUT", f"/{name}", "QueueDescription", "<LockDuration>PT5S</LockDuration>")

    async def set_fault(self) -> None:
        needs = {"throttle": {"rate": 2}, "latency": {"delay": 0.1}, "crash-entity": {"delay": 0.1}}
        kind = self.rng.choice(FAULTS[:4])
        wanted = {"command": "fault", "kind": kind, "entity": "left", "for": 1.0, **needs.get(kind, {})}
        await asyncio.to_thread(ask_control, self.broker.data, {**wanted, "namespace": self.broker.name})

    async def _repeat(self, act: Callable[[], Awaitable[None]], pause_s: float, end: float) -> None:
        loop = asyncio.get_running_loop()
        is_exact = act in (self.send_and_receive, self.use_sessions)
        while loop.time() < end:
            try:
                await act()
                self.rounds[act.__name__] += 1
            except (WireError, OSError, EOFError, TimeoutError) as error:
                if is_exact:
                    self.problems.append(f"{act.__name__}: {error!r}")
            await asyncio.sleep(pause_s * self.rng.uniform(0.5, 1.5))

    async def run(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        paced = (
            (self.send_and_receive, 0.05), (self.use_sessions, 0.3), (self.come_and_go, 0.5), (self.leave_somehow, 0.2),
            (self.be_strange, 0.5), (self.clean_up, 10.0), (self.set_fault, 4.0),
        )  # fmt: skip
        async with asyncio.TaskGroup() as actors:
            for act, pause_s in paced:
                actors.create_task(self._repeat(act, pause_s, end))

    async def left(self) -> dict[str, set[str]]:
        """Return what is there in the end."""
        found: dict[str, set[str]] = {home: set() for home in self.there}
        async with self.client() as client:
            for home, path in itertools.product(found, ("", "/$DeadLetterQueue")):
                payloads = await client.peek(home + path, 1, 4 * DEPTH_MAX)
                found[home] |= {str(read_properties(each, split(each)).message_id) for each in payloads}
        return found

    async def look(self) -> Sample:
        _, page = await self.http("GET", "/metrics")

        def gauge(name: str) -> int:
            return int(sum(map(float, re.findall(rf"^pairbus_{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))))

        proc = Path(f"/proc/{self.broker.pid}")
        files = []
        for each in (proc / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                files.append(os.readlink(each))
        others = sum(not each.endswith(".segment") for each in files) - gauge("connections")
        now, disk = asyncio.get_running_loop().time(), used_bytes(str(self.broker.data))
        (memory,) = re.findall(r"^RssAnon:\s+(\d+)", (proc / "status").read_text(), re.MULTILINE)
        return Sample(
            now, int(memory) * 1024, others, gauge("tokenless_bytes"), disk, gauge("queue_bytes"), gauge("connections")
        )


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_churn_leaves_nothing_behind(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", journal=SMALL_SEGMENTS) as broker:
        broker.start()
        churn = Churn(broker, random.randrange(1 << 30))
        lock = "<LockDuration>PT5S</LockDuration><MaxDeliveryCount>5</MaxDeliveryCount>"
        await churn.http("PUT", "/orders", "QueueDescription", lock)
        await churn.http("PUT", "/carts", "QueueDescription", f"{lock}<RequiresSession>true</RequiresSession>")
        await churn.http("PUT", "/news", "TopicDescription")
        await churn.clean_up()
        idle, samples = await churn.look(), []
        running = asyncio.create_task(churn.run(SOAK_S))
        while not running.done():
            await asyncio.wait((running,), timeout=max(SAMPLE_S, SOAK_S / 1000))
            samples.append(await churn.look())
        running.result()
        print(churn.rounds)
        assert churn.problems == []
        assert await churn.left() == churn.there
        await asyncio.sleep(5.0)  # until what nobody closed is found
        quiet = await churn.look()
        assert quiet.others <= idle.others and quiet.tokenless < idle.tokenless + 1000 and not quiet.connections
        assert judge([each._replace(at_s=each.at_s - samples[0].at_s) for each in samples], SOAK_S) == []
        assert broker.stop() == 0
        assert "Traceback" not in broker.said()


@pytest.mark.parametrize(
    ("grows", "named"),
    [({}, []), ({"memory": 2e6}, ["memory"]), ({"memory": -9e6}, []), ({"others": 5}, ["descriptors"]),
     ({"disk": 4e6}, ["the folder"]), ({"disk": 8e6, "live": 4e6}, [])],
)  # fmt: skip
def test_what_grows_in_an_hour_is_named(grows: dict[str, float], named: list[str]) -> None:
    """After a warm-up that is much steeper, and with single spikes."""
    rng = random.Random(1)
    samples = []
    for at_s in map(float, range(0, 3600, 10)):
        noise = rng.gauss(0, 0.2e6) + 30e6 * (rng.random() < 0.02)
        sample = Sample(at_s, 50e6 + noise + min(1.0, at_s / 600) * 20e6, 30 + rng.randint(-3, 3), 3e6, 0, 2e6, 9)
        samples.append(
            sample._replace(**{what: getattr(sample, what) + by * at_s / 3600 for what, by in grows.items()})
        )
    assert [problem.split(" is")[0].split(" grow")[0] for problem in judge(samples, 3600)] == named
