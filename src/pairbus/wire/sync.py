"""The wire client for code without an event loop: the same names, each call waits for its result.

A separate thread runs the loop and the asyncio client. Calls may come from any thread. It must not be used inside a
running event loop, since each call would block that loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from pairbus.connection_string import ConnectionString

from . import client, receiver, sender
from .errors import CLIENT_CLOSED, ClientClosed, WireError
from .links import ReopeningLink
from .received import ReceivedMessage
from .receiver import COMPLETE
from .requests import LockToken

T = TypeVar("T")
Messages = ReceivedMessage | Sequence[ReceivedMessage]


class LoopThread:
    """A loop on a daemon thread. `run` waits; interrupting the wait (Ctrl-C) cancels what was run."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._serve, name="pairbus-wire", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if not self._thread.is_alive():  # stopped, or we are the child of a fork: threads stay with the parent
            coroutine.close()
            raise ClientClosed(CLIENT_CLOSED, "the client was closed, or made in another process; make a new one")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if self._thread.is_alive():
            self.run(self._finish())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _finish(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


class WireClient:
    """The wire client without a loop; takes what `pairbus.wire.client.WireClient` takes."""

    def __init__(self, host: str, port: int | None = None, **options: Any) -> None:
        self._use(client.WireClient(host, port, **options))

    @classmethod
    def from_connection_string(cls, text: str | ConnectionString, **options: Any) -> Self:
        return cls.of(client.WireClient.from_connection_string(text, **options))

    @classmethod
    def of(cls, inner: client.WireClient) -> Self:
        """Return the client for a `pairbus.wire.client.WireClient` that no loop has used yet."""
        made = cls.__new__(cls)
        made._use(inner)
        return made

    def _use(self, inner: client.WireClient) -> None:
        self._client = inner
        self._thread = LoopThread()

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    def connect(self, timeout: float | None = None) -> None:
        self._thread.run(self._client.connect(timeout))

    def namespace(self, timeout: float | None = None) -> str:
        return self._thread.run(self._client.namespace(timeout))

    def sender(self, entity: str, **options: Any) -> Sender:
        return Sender(self._thread, self._thread.run(self._client.sender(entity, **options)))

    def receiver(self, entity: str, **options: Any) -> Receiver:
        return Receiver(self._thread, self._thread.run(self._client.receiver(entity, **options)))

    def next_session(self, entity: str, wait_s: float, **options: Any) -> Receiver | None:
        found = self._thread.run(self._client.next_session(entity, wait_s, **options))
        return None if found is None else Receiver(self._thread, found)

    def request(
        self, entity: str, operation: str, body: Mapping[str, Any], timeout: float | None = None
    ) -> tuple[int, Any]:
        return self._thread.run(self._client.request(entity, operation, body, timeout))

    def settle_by_token(self, entity: str, tokens: Iterable[LockToken], disposition: str, **options: Any) -> None:
        self._thread.run(self._client.settle_by_token(entity, tokens, disposition, **options))

    def settle_each(
        self, entity: str, tokens: Sequence[LockToken], disposition: str, **options: Any
    ) -> list[WireError | None]:
        return self._thread.run(self._client.settle_each(entity, tokens, disposition, **options))

    def renew(self, entity: str, tokens: Iterable[LockToken], timeout: float | None = None) -> list[float]:
        return self._thread.run(self._client.renew(entity, tokens, timeout))

    def peek(self, entity: str, from_sequence: int = 1, count: int = 100, timeout: float | None = None) -> list[bytes]:
        return self._thread.run(self._client.peek(entity, from_sequence, count, timeout))

    def close(self) -> None:
        try:
            self._thread.run(self._client.close())
        except ClientClosed:
            return
        self._thread.stop()


class _Link:
    """Base of senders and receivers: the one of the loop, and the thread that runs it."""

    _link: Any

    def __init__(self, thread: LoopThread, inner: ReopeningLink) -> None:
        self._thread = thread
        self._link = inner

    def __repr__(self) -> str:
        return repr(self._link)

    @property
    def entity(self) -> str:
        return str(self._link.entity)


class Sender(_Link):
    _link: sender.Sender

    @property
    def message_bytes_max(self) -> float:
        return self._link.message_bytes_max

    def send(self, payload: bytes, *, message_format: int = 0, timeout: float | None = None) -> None:
        self._thread.run(self._link.send(payload, message_format=message_format, timeout=timeout))

    def send_nowait(self, payload: bytes, message_format: int = 0) -> Future[None]:
        """Send without waiting, neither for room nor for the answer, which the future has. `send_many` costs far
        less."""
        return self._thread.start(self._link.send(payload, message_format=message_format))

    def send_many(
        self, payloads: Sequence[bytes], *, message_format: int = 0, timeout: float | None = None
    ) -> list[WireError | None]:
        return self._thread.run(self._link.send_many(payloads, message_format=message_format, timeout=timeout))

    def send_grouped(
        self, payloads: Sequence[bytes], companies: Sequence[object], *, timeout: float | None = None
    ) -> list[WireError | None]:
        return self._thread.run(self._link.send_grouped(payloads, companies, timeout=timeout))

    def send_batch(self, payloads: Sequence[bytes], *, timeout: float | None = None) -> None:
        self._thread.run(self._link.send_batch(payloads, timeout=timeout))

    def flush(self, timeout: float | None = None) -> None:
        self._thread.run(self._link.flush(timeout))

    def close(self) -> None:
        self._thread.run(self._link.close())


class Receiver(_Link):
    _link: receiver.Receiver

    @property
    def is_open(self) -> bool:
        return self._link.is_open

    @property
    def at_hand(self) -> int:
        return self._link.at_hand

    @property
    def unsettled(self) -> int:
        return self._link.unsettled

    @property
    def session_id(self) -> str | None:
        found = self._link.session_id
        return found if isinstance(found, str) else None

    def receive(self, max_count: int = 1, max_wait: float | None = None) -> list[ReceivedMessage]:
        return self._thread.run(self._link.receive(max_count, max_wait))

    def complete(self, messages: Messages, timeout: float | None = None) -> None:
        self._thread.run(self._link.complete(messages, timeout))

    def abandon(
        self, messages: Messages, properties: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> None:
        self._thread.run(self._link.abandon(messages, properties, timeout))

    def defer(
        self, messages: Messages, properties: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> None:
        self._thread.run(self._link.defer(messages, properties, timeout))

    def dead_letter(
        self,
        messages: Messages,
        reason: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self._thread.run(self._link.dead_letter(messages, reason, description, timeout))

    def release(self, messages: Messages) -> None:
        self._thread.run(self._link.release(messages))

    def settle_nowait(self, messages: Sequence[ReceivedMessage], state: bytes = COMPLETE) -> Future[None]:
        async def settle() -> None:
            await self._link.settle_nowait(messages, state)

        return self._thread.start(settle())

    def close(self) -> list[ReceivedMessage]:
        return self._thread.run(self._link.close())
