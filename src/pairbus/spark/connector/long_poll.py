"""Waits for messages while a stream is idle: one long poll of 15 minutes per queue.

It runs in the driver-side process of a `lock` stream, on a thread with its own loop. Spark asks for the latest offset
dozens of times a second; this module answers from memory. Messages that a poll receives are released at once: they only
show that a batch is worth starting.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pairbus.wire import WireClient
from pairbus.wire.errors import WireError
from pairbus.wire.received import ReceivedMessage
from pairbus.wire.receiver import Receiver
from pairbus.wire.sync import LoopThread

POLL_S: Final = 15 * 60.0
RETRY_S_FIRST: Final = 0.5
RETRY_S_MAX: Final = 30.0
#: Queues whose messages are found together answer within this time of each other.
APART_S: Final = 0.1
#: For the first message of a session that has come free, which another receiver may have taken just before.
SESSION_S: Final = 0.2


class LongPoll:
    """Polls queues on its own thread. `polled(entity)`: a poll ended with nothing. `failed(entity, error)`: once
    for each attempt. `found(message)`: what a poll yielded, on the watcher's thread. `sessions`: the queues have
    sessions, and a poll waits for one that is free."""

    def __init__(
        self,
        make_client: Callable[[], WireClient],
        entities: Sequence[str],
        *,
        polled: Callable[[str], None],
        failed: Callable[[str, WireError], None],
        found: Callable[[ReceivedMessage], None],
        poll_s: float = POLL_S,
        sessions: bool = False,
    ) -> None:
        self._entities = list(entities)
        self._polled = polled
        self._failed = failed
        self._found = found
        self._poll_s = poll_s
        self._sessions = sessions
        self._failures: dict[str, int] = {}
        self._lock = threading.Condition()
        self._ready: set[str] = set()
        self._thread = LoopThread()
        self._thread.run(self._start(make_client))

    def __repr__(self) -> str:
        return f"<LongPoll {len(self._ready)} of {len(self._entities)} queues have messages>"

    def ready(self) -> list[str]:
        """Return the queues that are known to hold messages, in order."""
        with self._lock:
            return [entity for entity in self._entities if entity in self._ready]

    def wait(self, limit_s: float) -> None:
        """Wait until it is known which queues hold messages, as far as can be told: all do, or some do and no other
        follows soon, or the time is over."""
        end = time.monotonic() + limit_s
        with self._lock:
            while len(self._ready) < len(self._entities) and (left := end - time.monotonic()) > 0:
                if not self._lock.wait(min(left, APART_S) if self._ready else left) and self._ready:
                    return

    def wait_for_any(self, limit_s: float) -> None:
        """Wait until one of the queues is known to hold messages, or the time is over."""
        with self._lock:
            self._lock.wait_for(lambda: bool(self._ready), limit_s)

    def taken(self, entities: Iterable[str]) -> None:
        """Poll these again: a batch has been read from them."""
        with self._lock:
            found = self._ready & set(entities)
            self._ready -= found
        for entity in found:
            self._thread.start(self._arm(entity))

    def watch(self, entities: Iterable[str]) -> None:
        """Poll these too; those that are already polled are skipped."""
        for entity in entities:
            if entity not in self._entities:
                self._entities.append(entity)
                self._thread.run(self._add(entity))

    def stop(self) -> None:
        self._thread.run(self._stop())
        self._thread.stop()

    async def _start(self, make_client: Callable[[], WireClient]) -> None:
        self._client = make_client()
        self._armed: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        for entity in self._entities:
            await self._add(entity)

    async def _add(self, entity: str) -> None:
        self._armed[entity] = asyncio.Event()
        self._armed[entity].set()
        self._tasks.append(asyncio.create_task(self._watch(entity)))

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _arm(self, entity: str) -> None:
        self._armed[entity].set()

    async def _watch(self, entity: str) -> None:
        armed = self._armed[entity]
        while True:
            await armed.wait()
            try:
                while not await (self._poll_session(entity) if self._sessions else self._poll(entity)):
                    pass
            except WireError as error:
                self._failed(entity, error)
                failures = self._failures.get(entity, 0)
                await asyncio.sleep(min(RETRY_S_MAX, RETRY_S_FIRST * 2.0 ** min(failures, 10)))
                self._failures[entity] = failures + 1
                continue
            armed.clear()
            with self._lock:
                self._ready.add(entity)
                self._lock.notify_all()

    async def _poll(self, entity: str) -> bool:
        """Return True when there is a message."""
        receiver = await self._client.receiver(entity)
        try:
            while not await self._look(receiver, self._poll_s):
                self._polled(entity)
        finally:
            await receiver.close()
        return True

    async def _poll_session(self, entity: str) -> bool:
        """Return whether a session with messages has come free."""
        receiver = await self._client.next_session(entity, self._poll_s)
        self._failures[entity] = 0
        if receiver is None:
            self._polled(entity)
            return False
        try:
            return await self._look(receiver, SESSION_S)
        finally:
            await receiver.close()

    async def _look(self, receiver: Receiver, wait_s: float) -> bool:
        messages = await receiver.receive(1, wait_s)
        self._failures[receiver.entity] = 0
        if messages:
            self._found(messages[0])
            await receiver.release(messages)
        return bool(messages)
