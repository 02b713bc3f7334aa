"""A backlog, three destinations and the account of every message, for faults that come at a known moment.

    with scene.held("after send", 30) as in_flight:  # 30 diverted messages have come so far and no further
        kill(workers_of(pid))
    scene.expire_locks()
    scene.until_drained()
    scene.settle_accounts(doubled_max=in_flight)     # nothing lost, nothing invented, poison buried

No switch in the product is needed: a fault of the broker stops the pipeline at one place, and the broker's own counts
tell that everything has arrived there.

    moment          held by                         then locked in the backlog   at home
    after receive   black-hole, no link open yet    all                          none; nothing was sent
    before send     hang on the destinations        all                          none; sent and not stored
    after send      lost-answer, a minute late      all                          all; not confirmed
    before settle   latency on the backlog          all                          all; confirmed, not settled
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from pairbus.amqp.message import Properties, encode_message
from pairbus.pairing.backlog.aliases import divert_encoded
from pairbus.pairing.backlog.backlog_queues import QUEUE_PROPERTIES, path
from pairbus.testing import fault
from pairbus.wire.sync import WireClient
from tests.message_view import View
from tests.moving_clock import Clock as Clock
from tests.waiting import until as until

from .conftest import admin_of, wire

MOMENTS: Final = ("after receive", "before send", "after send", "before settle")
QUEUES: Final = 3
#: Longer than any test; the broker's clock is moved on by a minute for each kill.
HELD_S: Final = 60.0
#: Less than a receiver waits for the answer to a drain, which is as late.
LATE_S: Final = 3.5
WINDOW: Final = dt.timedelta(days=1)
_numbers = itertools.count(1)


class Scene:
    """`primary` and `secondary`: a NamespaceServer each, or a BrokerProcess; some of what is here wants the former."""

    def __init__(
        self,
        primary: Any,
        secondary: Any,
        *,
        data: Path | None = None,
        clock: Clock | None = None,
        lock_duration: str = "PT1M",
    ) -> None:
        self.primary, self.secondary = primary, secondary
        self._data = data
        self.clock = clock
        number = next(_numbers)
        self.name = f"scene{number}"
        #: Of these only `orders` detects duplicates, and `news` is a topic.
        self.orders, self.bills, self.news = (f"{each}{number}" for each in ("orders", "bills", "news"))
        self.homes = [self.orders, self.bills, f"{self.news}/Subscriptions/all"]
        self.backlog = [path(self.name, index) for index in range(QUEUES)]
        self.sent: Counter[tuple[str, str]] = Counter()
        self.poison: set[str] = set()
        self._ids = itertools.count(1)
        with admin_of(primary) as there:
            there.create_queue(
                self.orders, requires_duplicate_detection=True, duplicate_detection_history_time_window=WINDOW
            )
            there.create_queue(self.bills)
            there.create_topic(self.news)
            there.create_subscription(self.news, "all")
        with admin_of(secondary) as there:
            for each in self.backlog:
                there.create_queue(each, **(QUEUE_PROPERTIES | {"lock_duration": lock_duration}))

    def __repr__(self) -> str:
        return f"<Scene {self.name}: {sum(self.sent.values())} sent, {self.locked()} locked, {self.home()} home>"

    # -- messages

    def stock(
        self, count: int, *, poison: int = 0, to: str | None = None, queues: int = QUEUES, directly: bool = False
    ) -> int:
        """Diverted messages in equal parts to all destinations, or `to` one; how many have a way home.

        A batch that is held is not followed by another: where all must be held at once, they are in one queue.
        `directly`: past the broker's links, which a fault may hold.
        """
        by_queue: dict[str, list[bytes]] = {each: [] for each in self.backlog[:queues]}
        for number in range(count + poison):
            message_id = f"{self.name}-{next(self._ids)}"
            message = encode_message(None, None, Properties(message_id=message_id), {"n": number}, b"x" * 200)
            queue = by_queue[self.backlog[number % queues]]
            if number >= count:
                self.poison.add(message_id)
                queue.append(message)  # no x-ms-path (P40)
                continue
            # a third of the messages of each queue to each destination
            target = to or (self.orders, self.bills, self.news)[number // queues % 3]
            self.sent[target, message_id] += 1
            queue.append(divert_encoded(message, target))
        if directly:
            for each, payloads in by_queue.items():
                self._put(each, payloads)
            return count
        with wire(self.secondary) as client:
            for each, payloads in by_queue.items():
                if payloads:
                    assert client.sender(each).send_many(payloads) == [None] * len(payloads)
        return count

    def _put(self, queue: str, payloads: list[bytes]) -> None:
        server, target = self.secondary, self._queue(self.secondary, queue)
        stored: Future[object] = Future()
        server.loop.call_soon_threadsafe(
            server.namespace.enqueue.send, target, payloads, server.clock(), stored.set_result
        )
        assert stored.result(10) is None

    # -- what the brokers see; only of brokers in this process

    def locked(self) -> int:
        return sum(self._queue(self.secondary, each).locked for each in self.backlog)

    def waiting(self) -> int:
        return sum(self._queue(self.secondary, each).active_count for each in self.backlog)

    def home(self) -> int:
        return sum(self._queue(self.primary, each).active_count for each in self.homes)

    @staticmethod
    def _queue(namespace: Any, entity: str) -> Any:
        found = namespace.namespace.resolve(entity)
        assert found is not None
        return found

    def peeked(self) -> list[bytes]:
        """What is in the backlog, seen from outside; some of it."""
        with wire(self.secondary) as client:
            return [payload for each in self.backlog for payload in client.peek(each)]

    # -- faults and moments

    @contextlib.contextmanager
    def fault(self, kind: str, *, entity: str | None = None, at: Any = None, **options: Any) -> Iterator[None]:
        namespace = at or self.primary
        with fault(
            getattr(namespace, "data", None) or self._data, kind, namespace=namespace.name, entity=entity, **options
        ):
            yield

    @contextlib.contextmanager
    def held(self, moment: str, count: int) -> Iterator[int]:
        """`count` messages, all of them at that point while the block runs; how many of them can come twice."""
        home = self.home()
        is_home = moment in ("after send", "before settle")
        # behind a black hole: to a destination without a link yet, or bytes would wait in it and arrive afterwards
        to = self._fresh() if moment == "after receive" else None
        with contextlib.ExitStack() as stack:
            if moment == "after receive":
                stack.enter_context(self.fault("black-hole"))
            elif moment == "before settle":
                stack.enter_context(self.fault("latency", entity=self.backlog[0], at=self.secondary, delay=LATE_S))
            else:
                kind, options = ("hang", {}) if moment == "before send" else ("lost-answer", {"delay": HELD_S})
                for each in (self.orders, self.bills, self.news):
                    stack.enter_context(self.fault(kind, entity=each, **options))
            self.stock(count, queues=1, to=to, directly=moment == "before settle")
            self._until(count, home + (count if is_home else 0))
            yield count if is_home else 0

    def _fresh(self) -> str:
        name = f"fresh{next(_numbers)}"
        with admin_of(self.primary) as there:
            there.create_queue(name)
        self.homes.append(name)
        return name

    def _until(self, locked: int, home: int) -> None:
        """So it is; and after a little, for what the broker can't see, it still is."""
        begun = time.monotonic()
        seen: list[tuple[float, int, int]] = []

        def is_so() -> bool:
            now = (self.locked(), self.home())
            if not seen or seen[-1][1:] != now:
                seen.append((round(time.monotonic() - begun, 1), *now))
            return now == (locked, home)

        until(is_so, 120, lambda: f"{self}, wanted {locked} locked and {home} home; (s, locked, home): {seen}")
        time.sleep(0.5)  # what a worker of Spark has in hand shows itself only by what it does next
        assert (self.locked(), self.home()) == (locked, home), (self, seen)

    def expire_locks(self) -> None:
        assert self.clock is not None
        self.clock.ahead += 61.0

    # -- the end

    def until_drained(self, within_s: float = 150.0) -> None:
        until(lambda: self.waiting() == 0, within_s, lambda: self)

    def settle_accounts(self, doubled_max: int = 0) -> int:
        """Nothing lost, nothing invented; how many came twice, of those that may."""
        arrived: Counter[tuple[str, str]] = Counter()
        with wire(self.primary) as client:
            for home in self.homes:
                target = home.split("/")[0]
                arrived.update((target, message_id(payload)) for payload in taken(client, home))
        lost = self.sent - arrived
        assert not lost, f"lost {sum(lost.values())}: {sorted(lost)[:5]}"
        doubled = arrived - self.sent
        assert doubled.keys() <= self.sent.keys(), "came from nowhere"
        assert not [each for each in doubled if each[0] == self.orders], "doubled although it detects duplicates"
        assert sum(doubled.values()) <= doubled_max, f"{sum(doubled.values())} doubled, at most {doubled_max}"
        with wire(self.secondary) as client:
            assert [each for each in self.backlog if client.peek(each)] == []
            buried = [payload for each in self.backlog for payload in peeked_all(client, f"{each}/$DeadLetterQueue")]
        assert {message_id(payload) for payload in buried} == self.poison and len(buried) == len(self.poison)
        for payload in buried:
            reasons = View(payload).application_properties
            assert reasons["DeadLetterReason"] and reasons["DeadLetterErrorDescription"]
        self.sent.clear()
        return sum(doubled.values())

    def assert_nothing_locked(self) -> None:
        assert self.locked() == 0, self


def message_id(payload: bytes) -> str:
    return str(View(payload).properties.message_id)


def taken(client: WireClient, entity: str) -> list[bytes]:
    receiver = client.receiver(entity, mode="delete")
    found: list[bytes] = []
    while messages := receiver.receive(1000, max_wait=0.3):
        found += [each.payload for each in messages]
    receiver.close()
    return found


def peeked_all(client: WireClient, entity: str) -> list[bytes]:
    return client.peek(entity, 1, 1000)


# -- processes, of this test's own


class Command:
    """`pairbus syphon` in a process of its own."""

    def __init__(self, scene: Scene, folder: Path, master: str) -> None:
        self._log = folder / "stderr"
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pairbus", "syphon", "--primary-name", scene.name, "--count", str(QUEUES),
                 "--master", master, "--json"],
                env={
                    **os.environ,
                    "PAIRBUS_PRIMARY": scene.primary.connection_string,
                    "PAIRBUS_SECONDARY": scene.secondary.connection_string,
                },
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, cwd=folder,
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Command {self.pid}: {self._process.poll()}; {self._log.read_text()[-2000:]}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.has_ended:
            self.kill()

    def terminate(self) -> int:
        self._process.terminate()
        return self._process.wait(90)

    def kill(self) -> None:
        """kill -9, of its JVM too: that would end by itself, a little later."""
        below = list(descendants(self.pid))
        kill([self.pid, *drivers_of(self.pid)])
        self._process.wait(30)
        # executors and workers end when they miss their driver
        with contextlib.suppress(AssertionError):
            until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), 20)
        kill(below)


def descendants(*roots: int) -> dict[int, tuple[int, str]]:
    """pid → (parent, command line) of all below these."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                parents[int(folder.name)] = (parent, words)
    found: dict[int, tuple[int, str]] = {}
    below = set(roots)
    while below:
        below = {each for each, (parent, _) in parents.items() if parent in below}
        found.update((each, parents[each]) for each in below)
    return found


def workers_of(*roots: int) -> list[int]:
    """The Python workers that run tasks: forks of a daemon."""
    there = descendants(*roots)
    mark = "-m pyspark.daemon pyspark.worker"
    return [each for each, (parent, words) in there.items() if mark in words and mark in there.get(parent, (0, ""))[1]]


def executors_of(*roots: int) -> list[int]:
    return [each for each, (_, words) in descendants(*roots).items() if "CoarseGrainedExecutorBackend" in words]


def drivers_of(pid: int) -> list[int]:
    """JVMs that are drivers."""
    return [each for each, (_, words) in descendants(pid).items() if "pyspark-shell" in words and "java" in words]


def source_runners_of(pid: int) -> list[int]:
    return [each for each, (_, words) in descendants(pid).items() if "python_streaming_source_runner" in words]


def kill(pids: list[int]) -> int:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)
