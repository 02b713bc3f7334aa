"""A TCP proxy before a broker that falls silent at a chosen point: for tests of what hangs, and when.

The connection stays up and the client's bytes are taken; what the broker answers from the chosen point on is withheld.

    SilentProxy(port, "accept")                  nothing at all is ever said
    SilentProxy(port, "bytes", 200)              after so many bytes (a TLS handshake in the middle of it)
    SilentProxy(port, "attach", 3)               before the third attach frame of a connection (not under TLS)
    SilentProxy(port, "drip", 0.02)              a byte every so often: alive, and never done
    SilentProxy(port, "delay", 0.3)              far away: everything takes so long, each way
    SilentProxy(port)                            an honest proxy, until `fall_silent()` or `cut()`
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator
from types import TracebackType

CODES = {
    "mechanisms": 0x40, "outcome": 0x44, "open": 0x10, "begin": 0x11, "attach": 0x12, "flow": 0x13, "transfer": 0x14,
    "disposition": 0x15,
}  # fmt: skip


class SilentProxy:
    def __init__(self, port: int, point: str = "", count: float = 1) -> None:
        self._upstream = port
        self.point = point
        self.count = count
        self._silent = threading.Event()
        self._sockets: list[socket.socket] = []
        self.accepted = 0
        self.withheld = 0  # how often a client had nothing from what should have answered it
        self.closed_by_client = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> SilentProxy:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _t: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self.cut()

    def fall_silent(self) -> None:
        self._silent.set()

    def speak_again(self) -> None:
        """New connections are served again; what an old one missed it never gets."""
        self.point = ""
        self._silent.clear()

    def cut(self) -> None:
        """Drops all connections as they are, without a word."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            drop(sock)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._sockets.append(client)
            server = None
            if self.point != "accept" and not self._silent.is_set():
                server = socket.create_connection(("127.0.0.1", self._upstream))
                self._sockets.append(server)
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket | None) -> None:
        try:
            for data in self._arriving(client):
                if server is not None:
                    server.sendall(data)
                else:
                    self.withheld += 1
        except OSError:
            pass
        self.closed_by_client += 1
        for sock in (client, server):
            if sock is not None:
                drop(sock)

    def _arriving(self, sock: socket.socket) -> Iterator[bytes]:
        """What the socket has received; late, where that is wanted."""
        if self.point != "delay":
            while data := sock.recv(65536):
                yield data
            return
        on_the_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def take() -> None:
            data = b"-"
            while data:
                try:
                    data = sock.recv(65536)
                except OSError:
                    data = b""
                on_the_way.put((time.monotonic() + self.count, data))

        threading.Thread(target=take, daemon=True).start()
        while True:
            due, data = on_the_way.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not data:
                return
            yield data

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        point, count = self.point, self.count
        passed = 0
        silent = False
        pending = b""
        try:
            for data in self._arriving(server):
                if silent or self._silent.is_set():
                    self.withheld += 1
                    continue
                if point == "drip":
                    for byte in data:
                        time.sleep(count)
                        client.sendall(bytes([byte]))
                elif point == "bytes":
                    client.sendall(data[: max(0, int(count) - passed)])
                    passed += len(data)
                    silent = passed >= count
                elif point and point != "delay":
                    pending += data
                    while (size := frame_size(pending)) and not silent:
                        frame, pending = pending[:size], pending[size:]
                        passed += kind_of(frame) == point
                        silent = passed >= count
                        if silent:
                            self.withheld += 1
                        else:
                            client.sendall(frame)
                else:
                    client.sendall(data)
        except OSError:
            pass
        if not silent and not self._silent.is_set():
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)


def drop(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads from it; close alone does not
    sock.close()


def frame_size(data: bytes) -> int:
    """The size of the frame or protocol header at the start, or 0 where it is not complete."""
    if len(data) < 8:
        return 0
    size = 8 if data[:4] == b"AMQP" else int.from_bytes(data[:4], "big")
    return size if len(data) >= size else 0


def kind_of(frame: bytes) -> str:
    if frame[:4] == b"AMQP":
        return "sasl header" if frame[4] == 3 else "header"
    code = frame[frame[4] * 4 + 2] if len(frame) > 8 else None
    return next((name for name, each in CODES.items() if each == code), "other")
