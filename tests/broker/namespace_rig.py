"""A namespace on the in-memory disk, without a thread: the journal writes when the test says so."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pairbus.amqp.message import Properties, encode_message, read_body, read_properties, split
from pairbus.broker.description import QueueDescription
from pairbus.broker.namespace import Namespace
from pairbus.broker.queue import Message, MessageQueue, Outcome
from pairbus.broker.refusal import Refusal
from pairbus.journal import Journal, MemoryFiles, Options

FOLDER = "j"
SMALL = Options(segment_bytes=2048, reserve_bytes=1024, allocate_bytes=256)
WAITING = Refusal("waiting", "no answer yet")


def counting_tokens() -> Callable[[], bytes]:
    numbers = itertools.count(1)
    return lambda: next(numbers).to_bytes(16, "big")


def body_of(payload: bytes) -> bytes:
    parts = read_body(payload, split(payload))
    return parts[0][1] if parts else b""


def id_of(payload: bytes) -> Any:
    return read_properties(payload, split(payload)).message_id


def make(body: bytes, **properties: Any) -> bytes:
    return encode_message(properties=Properties(**{"message_id": "m", **properties}), body=body)


class Rig:
    """`posted` are the journal's answers that the loop has not run yet; `run` writes and answers until all is quiet."""

    def __init__(
        self, files: MemoryFiles | None = None, options: Options = SMALL, memory_budget: int = 1 << 20
    ) -> None:
        self.files = files if files is not None else MemoryFiles()
        self.options = options
        self.now = 1000.0
        self.posted: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.journal = Journal.open(FOLDER, options, self.files, clock=lambda: self.now)
        self.namespace = Namespace.open(
            "contoso",
            Path(FOLDER),
            journal=self.journal,
            now=self.now,
            memory_budget=memory_budget,
            new_token=counting_tokens(),
        )
        self.journal.start(self.posted.append, thread=False)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.close()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop

    def turn(self) -> None:
        self.journal.turn()

    def answer(self) -> None:
        posted, self.posted[:] = list(self.posted), []
        for callback in posted:
            callback()

    def run(self) -> None:
        for _ in range(4):
            self.turn()
            self.answer()

    def compact(self) -> int | None:
        task = self.loop.create_task(self.journal.compact(self.namespace.survivors))
        while not task.done():
            self.loop.run_until_complete(asyncio.sleep(0))
            self.run()
        return task.result()

    def compact_all(self) -> None:
        """Every segment that there is now; what lives may fill several again."""
        for _ in self.journal.segments()[:-1]:
            self.compact()

    def reopened(self, files: MemoryFiles | None = None, **options: Any) -> Rig:
        """As after kill -9, or with what `files` says is left."""
        return Rig(files or self.files.kill(), options.pop("options", self.options), **options)

    # calls, answered before they return

    def create(self, name: str = "orders", **fields: Any) -> MessageQueue:
        answers: list[Refusal | None] = []
        self.namespace.create_queue(QueueDescription(name=name, **fields), self.now, answers.append)
        self.run()
        assert answers == [None]
        return self.queue(name)

    def queue(self, path: str = "orders") -> MessageQueue:
        queue = self.namespace.resolve(path)
        assert queue is not None
        return queue

    def send(self, *bodies: bytes, path: str = "orders") -> Refusal | None:
        return self.send_payloads(*(make(body) for body in bodies), path=path)

    def send_payloads(self, *payloads: bytes, path: str = "orders") -> Refusal | None:
        answers: list[Refusal | None] = []
        self.namespace.send(self.queue(path), payloads, self.now, answers.append)
        self.run()
        assert len(answers) == 1
        return answers[0]

    def acquire(self, count: int = 1, path: str = "orders") -> list[Message]:
        return self.namespace.acquire(self.queue(path), count, self.now)

    def tokens(self, count: int = 1, path: str = "orders") -> list[bytes]:
        return [message.lock_token or b"" for message in self.acquire(count, path)]

    def settle(self, tokens: list[bytes], outcome: Outcome, path: str = "orders") -> Refusal | None:
        answers: list[Refusal | None] = []
        self.namespace.settle(self.queue(path), tokens, outcome, self.now, answers.append)
        self.run()
        assert len(answers) == 1
        return answers[0]

    def take(self, count: int = 1, path: str = "orders") -> tuple[list[bytes], Refusal | None]:
        answers: list[tuple[list[bytes], Refusal | None]] = []
        queue = self.queue(path)

        def done(messages: list[Message], refusal: Refusal | None) -> None:
            bodies = [body_of(self.namespace.delivery(queue, message, locked=False)) for message in messages]
            answers.append((bodies, refusal))

        self.namespace.take(queue, count, self.now, done)
        self.run()
        assert len(answers) == 1
        return answers[0]

    def peeked(self, path: str = "orders", start: int = 0, count: int = 10_000) -> list[bytes]:
        return self.namespace.peek(self.queue(path), start, count, self.now)

    def bodies(self, path: str = "orders") -> list[bytes]:
        return [body_of(payload) for payload in self.peeked(path)]

    def grow(self, segments: int = 3) -> list[bytes]:
        """Sends until the journal has so many segments."""
        bodies: list[bytes] = []
        while len(self.journal.segments()) < segments:
            bodies.append(b"body %04d" % len(bodies) * 10)
            assert self.send(bodies[-1]) is None
        return bodies
