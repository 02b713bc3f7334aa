"""Serves and asks the control socket: `control.sock` in the data folder, one JSON object a line each way.

`ControlServer` is the broker's end, `request` the sync client of the command line and of `pairbus.testing`.
control_commands.py decides what a message means. No fault affects this socket, so a broker that is unreachable for
everyone else can still be controlled.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pairbus.errors import ControlError

SOCKET_NAME = "control.sock"
LINE_BYTES_MAX = 256 * 1024
CLIENTS_MAX = 32
IDLE_S = 30.0

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Yield a path of the socket that fits `sun_path` (108 bytes) however long the folder's own path is."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ControlError(f"the data folder {folder} can't be opened: {error.strerror}; name another") from None
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


class ControlServer:
    """The broker's end of the control socket; only the owner of the data folder may connect."""

    def __init__(self, folder: Path, handler: Handler) -> None:
        self._folder = folder
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        sock = self._bind()
        self._server = await asyncio.start_unix_server(self._serve, sock=sock, limit=LINE_BYTES_MAX)

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self._server = None
        clients = list(self._clients)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        path = self._folder / SOCKET_NAME
        with suppress(FileNotFoundError):
            # A later broker may have bound its own in the meantime; that one is not ours to remove.
            if path.stat().st_ino == self._inode:
                path.unlink()

    def _bind(self) -> socket.socket:
        path = self._folder / SOCKET_NAME
        with _short_path(self._folder) as short:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                # Linux makes the file with the mode of the unbound socket: it is never open to others, not even
                # for the moment between bind and chmod.
                os.fchmod(sock.fileno(), 0o600)
                try:
                    sock.bind(short)
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    self._remove_stale(path, short)
                    sock.bind(short)
                sock.listen(CLIENTS_MAX)
                sock.setblocking(False)
                self._inode = path.stat().st_ino
            except OSError as error:
                sock.close()
                raise ControlError(f"the control socket {path} can't be made: {error.strerror}") from error
            except BaseException:
                sock.close()
                raise
            return sock

    @staticmethod
    def _remove_stale(path: Path, short: str) -> None:
        """Remove what a killed broker left behind; raise ControlError for a socket in use, or another file."""
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ControlError(f"{path} is not a socket; remove it, or take another data folder")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(short)
            except ConnectionRefusedError:
                path.unlink()
            else:
                raise ControlError(f"another broker serves {path.parent}; stop it, or take another data folder")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            if len(self._clients) > CLIENTS_MAX:
                # Closing with the question unread would reset the connection, and the answer with it.
                async with asyncio.timeout(1.0):
                    await reader.readline()
                writer.write(_line({"ok": False, "error": f"more than {CLIENTS_MAX} control clients; close some"}))
                return
            await self._converse(reader, writer)
        except (OSError, ValueError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._clients.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    line = await reader.readline()
            except ValueError:
                writer.write(_line({"ok": False, "error": f"a line has at most {LINE_BYTES_MAX} bytes"}))
                return
            if not line:
                return
            writer.write(_line(await self._answer(line)))
            async with asyncio.timeout(IDLE_S):
                await writer.drain()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return {"ok": False, "error": "a line must be one JSON object"}
        if not isinstance(message, dict):
            return {"ok": False, "error": f"a line must be one JSON object, not {type(message).__name__}"}
        try:
            return await self._handler(message)
        except Exception as error:
            # The one who asked sees what went wrong; the socket stays up for the next command.
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def request(folder: Path, message: dict[str, Any], timeout: float = 10.0) -> dict[str, Any]:
    """Send one command to the broker that serves `folder` and return its answer, `ok` or not. Raise ControlError."""
    start = f"start one with `pairbus broker --data {folder}`"
    with _short_path(folder) as short, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect(short)
            sock.sendall(_line(message))
            received = bytearray()
            while not received.endswith(b"\n"):
                chunk = sock.recv(65_536)
                if not chunk:
                    raise ControlError(f"the broker of {folder} went away before it answered; look at its log")
                received += chunk
                if len(received) > 64 * LINE_BYTES_MAX:
                    raise ControlError(f"the broker of {folder} answers without end; is it a broker?")
        except FileNotFoundError:
            raise ControlError(f"no broker serves {folder}: it has no {SOCKET_NAME}; {start}") from None
        except ConnectionRefusedError:
            raise ControlError(f"no broker serves {folder}: nobody answers on {SOCKET_NAME}; {start}") from None
        except PermissionError:
            raise ControlError(f"the {SOCKET_NAME} of {folder} belongs to another user; run as its owner") from None
        except TimeoutError:
            raise ControlError(f"the broker of {folder} did not answer in {timeout:g} s; is it stopped?") from None
        except OSError as error:
            raise ControlError(f"the {SOCKET_NAME} of {folder} failed: {error.strerror or error}") from error
    answer = json.loads(received)
    assert isinstance(answer, dict)
    return answer


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
