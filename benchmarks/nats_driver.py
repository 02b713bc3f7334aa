"""A lean JetStream client on a raw socket: the rival's driver must not be the rival's bottleneck.

One connection, one inbox; publishes are pipelined and their acks counted, messages come by pull requests, each
message is acked with a reply that the server answers. Speaks just enough of the protocol for that and stops at the
first error.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

STREAM = "BENCH"
SUBJECT = "bench"
CONSUMER = "bench"
_INBOX = b"_INBOX.bench"
_PULL = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}".encode()
_PULL_SIZE = 250


class NatsError(Exception):
    """What the server said, or that it went away."""


class NatsDriver(asyncio.Protocol):
    """Counts acks on `_INBOX.bench.p` (publishes) and `_INBOX.bench.a` (acks of acks); `_INBOX.bench.r` brings answers
    to API requests, `_INBOX.bench.m` pulled messages."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._waiter: asyncio.Future[None] | None = None
        self.published = 0
        self.settled = 0
        self.pulled = 0
        self._pull_left = 0
        self._answer: asyncio.Future[bytes] | None = None
        self._error: NatsError | None = None

    @classmethod
    async def connect(cls, port: int) -> NatsDriver:
        loop = asyncio.get_running_loop()
        _, driver = await loop.create_connection(cls, "127.0.0.1", port)
        driver._write(
            b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}\r\n'
            b"SUB " + _INBOX + b".* 1\r\nPING\r\n"
        )
        return driver

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no asyncio.Transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(NatsError(f"connection lost: {exc}"))

    async def close(self) -> None:
        self._error = NatsError("closed")
        if self._transport:
            self._transport.close()

    async def create(self) -> None:
        """A work queue in file storage: messages leave when acked, as from a queue."""
        await self._request(
            f"$JS.API.STREAM.CREATE.{STREAM}",
            {"name": STREAM, "subjects": [SUBJECT], "retention": "workqueue", "storage": "file", "num_replicas": 1},
        )
        await self._request(
            f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}",
            {
                "stream_name": STREAM,
                "config": {
                    "durable_name": CONSUMER,
                    "ack_policy": "explicit",
                    "deliver_policy": "all",
                    "replay_policy": "instant",
                    "max_ack_pending": 10_000,
                },
            },
        )

    async def send(self, payload: bytes, count: int, window: int) -> None:
        """Each ack makes room for one more publish; `window` 1 is one at a time."""
        frame = b"PUB %b %b.p %d\r\n%b\r\n" % (SUBJECT.encode(), _INBOX, len(payload), payload)
        self.published = 0
        sent = 0
        while self.published < count:
            room = min(count - sent, window - (sent - self.published))
            if room:
                self._write(frame * room)
                sent += room
            await self._until_changed()

    async def receive(self, count: int, window: int) -> None:
        """Pulls with at most `window` outstanding, acks each message, waits until every ack is answered."""
        self.pulled = self.settled = 0
        self._pull_left = count
        for _ in range(max(1, window // _PULL_SIZE)):
            self._pull()
        while self.settled < count:
            await self._until_changed()

    def _pull(self) -> None:
        size = min(_PULL_SIZE, self._pull_left)
        if size:
            self._pull_left -= size
            body = b'{"batch":%d,"expires":60000000000}' % size
            self._write(b"PUB %b %b.m %d\r\n%b\r\n" % (_PULL, _INBOX, len(body), body))

    async def _until_changed(self) -> None:
        if self._error:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def _request(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        self._answer = asyncio.get_running_loop().create_future()
        self._write(b"PUB %b %b.r %d\r\n%b\r\n" % (subject.encode(), _INBOX, len(data), data))
        answer: dict[str, Any] = json.loads(await asyncio.wait_for(self._answer, 30))
        if "error" in answer:
            raise NatsError(f"{subject}: {answer['error']}")
        return answer

    def _write(self, data: bytes) -> None:
        if self._error:
            raise self._error
        assert self._transport is not None
        self._transport.write(data)

    def _fail(self, error: NatsError) -> None:
        self._error = self._error or error
        self._wake()
        if self._answer and not self._answer.done():
            self._answer.set_exception(self._error)

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            if self._error:
                self._waiter.set_exception(self._error)
            else:
                self._waiter.set_result(None)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at = 0
        out: list[bytes] = []
        while True:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                break
            line = buffer[at:end]
            if line.startswith((b"MSG ", b"HMSG ")):
                words = line.split(b" ")
                size = int(words[-1])
                start = end + 2
                if len(buffer) < start + size + 2:
                    break
                at = start + size + 2
                self._message(words, buffer[start : start + size], out)
            else:
                at = end + 2
                if line == b"PING":
                    out.append(b"PONG\r\n")
                elif line.startswith(b"-ERR"):
                    self._fail(NatsError(line.decode(errors="replace")))
        self._buffer = buffer[at:]
        if out:
            self._write(b"".join(out))
        self._wake()

    def _message(self, words: list[bytes], payload: bytes, out: list[bytes]) -> None:
        subject = words[1]
        if words[0] == b"HMSG":  # only statuses carry headers here: no responders, a pull that ran out
            self._fail(NatsError(f"status {payload.split(bytes([13]), 1)[0].decode(errors='replace')} on {subject!r}"))
        elif subject == SUBJECT.encode():  # pulled: MSG <subject> <sid> <ack subject> <size>
            self.pulled += 1
            out.append(b"PUB %b %b.a 4\r\n+ACK\r\n" % (words[3], _INBOX))
            if self.pulled % _PULL_SIZE == 0:
                self._pull()
        elif subject.endswith(b".p"):
            if b'"error"' in payload:
                self._fail(NatsError(payload.decode(errors="replace")))
            self.published += 1
        elif subject.endswith(b".a"):
            self.settled += 1
        elif subject.endswith(b".r") and self._answer and not self._answer.done():
            self._answer.set_result(payload)
