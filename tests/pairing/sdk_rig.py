"""What the tests of the SDK's senders and receivers share: clients over every transport, and stopwatches."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from azure.servicebus import TransportType

from pairbus.broker.server import NamespaceServer
from pairbus.wire.sync import WireClient

from ..cpu_wait import CpuWait
from ..message_view import View

LATE_S = 2.0  # how late a busy machine may notice the end of a time-out; what hangs would take far longer
TRANSPORTS = ["plain", "tls", "websocket"]


def sdk_client(kind: Any, transport: str, server: NamespaceServer, port: int = 0, **options: Any) -> Any:
    """A client of either API; `port` is that of a proxy before the broker."""
    if transport == "plain":
        text = server.connection_string.replace(f":{server.port}", f":{port or server.port}")
        return kind.from_connection_string(text, **options)
    over = TransportType.Amqp if transport == "tls" else TransportType.AmqpOverWebsocket
    return kind.from_connection_string(
        server.connection_string.replace(";UseDevelopmentEmulator=true", ""),
        custom_endpoint_address=f"sb://localhost:{port or server.port}",
        connection_verify=server.ca_file,
        transport_type=over,
        **options,
    )


def in_queue(server: NamespaceServer, queue: str) -> list[str]:
    """The bodies of all messages in the queue, which stay there."""
    with WireClient.from_connection_string(server.connection_string) as client:
        return [text(each) for each in client.peek(queue, count=1000)]


def taken(server: NamespaceServer, *queues: str) -> list[str]:
    """The bodies of all messages in the queues, which are taken away."""
    found: list[str] = []
    with WireClient.from_connection_string(server.connection_string) as client:
        for queue in queues:
            receiver = client.receiver(queue, mode="delete")
            while client.peek(queue, count=1):
                found += [text(each.payload) for each in receiver.receive(1000, 5.0)]
    return found


def text(payload: bytes) -> str:
    return b"".join(data for _, data in View(payload).body).decode()


@contextlib.contextmanager
def takes(least: float, most: float) -> Iterator[None]:
    """Assert how long the block takes; the time that a busy machine kept threads of this process waiting is added."""
    began, wait = time.monotonic(), CpuWait(os.getpid())
    yield
    took = time.monotonic() - began
    waited_s = wait.seconds
    assert least <= took <= most + waited_s, f"{took:.3f} s, of which at most {waited_s:.3f} s waiting for a CPU"


class Leftovers:
    """Threads and file descriptors that were there before, and that must not have grown after."""

    def __init__(self) -> None:
        gc.collect()
        self.threads = len(threads())
        self.files = len(os.listdir("/proc/self/fd"))

    def none(self, limit_s: float = 6.0) -> None:
        """What was left behind in the background may take a moment to end."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if self.seen():
                return
            time.sleep(0.05)
        assert len(threads()) <= self.threads, threads()
        assert len(os.listdir("/proc/self/fd")) <= self.files

    def seen(self) -> bool:
        gc.collect()
        return len(threads()) <= self.threads and len(os.listdir("/proc/self/fd")) <= self.files


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name != "pairbus-watchdog"]


@contextlib.contextmanager
def dropped_syns() -> Iterator[int]:
    """A port whose SYNs are dropped, as by a firewall: the listener's backlog is full and nobody accepts."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port
