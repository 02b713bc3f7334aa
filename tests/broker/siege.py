"""A broker under attack, watched: is anyone else kept waiting, does its memory grow, does anything break inside it?"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pairbus.amqp.message import Properties, encode_message
from pairbus.broker.control.control_socket import request
from pairbus.wire import WireClient

from .attack_words import QUEUE, Target
from .attacks import ATTACKS
from .broker_process import BrokerProcess
from .bystander import QUEUES, Bystander
from .crash_load import admin_client

RSS_BYTES_MAX: Final = 300 << 20
#: Of attacks. With 20 the same attacks take the broker to 260 to 320 MB, with this one to 90.
SEED: Final = int(os.environ.get("PAIRBUS_SEED") or 3)
#: How many rounds each of the bystander's clients must finish in the course of an attack.
ROUNDS_MIN: Final = 3
ATTACK_S_MAX: Final = 30.0
#: The SDK has a connection for its sender and one for its receiver, the wire client one for all.
_BYSTANDER_CONNECTIONS: Final = 3


class Siege:
    def __init__(self, data: Path) -> None:
        self.broker = BrokerProcess(data)
        self.rss_bytes_max = 0
        self.attacks: Counter[str] = Counter()
        self.turned_away: Counter[str] = Counter()
        self.target: Target
        self._bystander: Bystander
        self._watch: asyncio.Task[None]

    def __repr__(self) -> str:
        return f"<Siege: {sum(self.attacks.values())} attacks, {self.rss_bytes_max >> 20} MB at most>"

    async def __aenter__(self) -> Self:
        broker = self.broker
        broker.start()
        try:
            with admin_client(broker.connection_string, broker.ca_file) as admin:
                for name in (QUEUE, *QUEUES.values()):
                    admin.create_queue(name)
            self.target = Target(broker.connection_string, broker.ca_file)
            await self._fill()
            self._bystander = Bystander(broker.connection_string)
        except BaseException:
            broker.kill()
            raise
        self._watch = asyncio.create_task(self._watch_memory())
        return self

    async def _fill(self) -> None:
        """Something to peek at and to deliver: a few megabytes."""
        async with WireClient.from_connection_string(self.broker.connection_string) as client:
            sender = await client.sender(QUEUE)
            body = b"x" * 5000
            payloads = [encode_message(properties=Properties(message_id=f"m{n}"), body=body) for n in range(500)]
            assert set(await sender.send_many(payloads)) == {None}

    async def _watch_memory(self) -> None:
        while True:
            self.rss_bytes_max = max(self.rss_bytes_max, self.broker.rss_bytes())
            await asyncio.sleep(0.05)

    async def attack(self, names: Iterable[str], seed: int, at_once: int = 8) -> None:
        """A failing attack can be had again alone: its seed is that of the run, its name and its number."""
        room = asyncio.Semaphore(at_once)

        async def one(name: str, number: int) -> None:
            async with room:
                try:
                    async with asyncio.timeout(ATTACK_S_MAX):
                        await ATTACKS[name](self.target, random.Random(f"{seed} {name} {number}"))
                except OSError as error:  # the broker hung up, as it should
                    self.turned_away[type(error).__name__] += 1

        tasks = []
        for name in names:
            self.attacks[name] += 1
            tasks.append(one(name, self.attacks[name]))
        await asyncio.gather(*tasks)
        self.check_inside()

    async def attack_until_served(self, attack: Callable[[], Coroutine[Any, Any, None]], at_once: int = 8) -> None:
        """Repeat one attack until the bystander, however slow the machine, has been served in the course of it."""
        target = self._bystander.rounds() + ROUNDS_MIN
        while True:
            await asyncio.gather(*(attack() for _ in range(at_once)))
            if self._bystander.rounds() >= target:
                return

    def check_inside(self) -> None:
        said = self.broker.said()
        assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]
        assert self.rss_bytes_max < RSS_BYTES_MAX, f"{self.rss_bytes_max >> 20} MB"

    async def connections_left(self) -> int:
        """Besides the bystander's, a while after all others left."""
        left = 0
        for _ in range(200):
            answer = await asyncio.to_thread(request, self.broker.data, {"command": "status"})
            left = answer["status"][self.broker.name]["connections"] - _BYSTANDER_CONNECTIONS
            if left <= 0:
                break
            await asyncio.sleep(0.05)
        return left

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        if error is not None:
            self._bystander.kill()
            self.broker.kill()
            return
        try:
            left = await self.connections_left()
            reports = await asyncio.to_thread(self._bystander.finish)
        except BaseException:
            self._bystander.kill()
            self.broker.kill()
            raise
        code = self.broker.stop()
        print(f"{self!r}\n{dict(self.attacks)}\nturned away: {dict(self.turned_away)}\nbystander: {reports}")
        self.check_inside()
        self._check_bystander(reports)
        assert left == 0, f"{left} connections stayed"
        assert code == 0

    def _check_bystander(self, reports: dict[str, dict[str, Any]]) -> None:
        for name, report in reports.items():
            assert report["errors"] == [], name
            assert report["rounds"] >= ROUNDS_MIN, (name, report)
