from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pairbus.broker.control import control_socket
from pairbus.broker.control.control_socket import SOCKET_NAME, ControlServer, request
from pairbus.errors import ControlError


async def echo(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("command") == "fail":
        raise RuntimeError("no luck")
    return {"ok": True, "heard": message}


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[ControlServer]:
    server = ControlServer(folder, echo)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(folder: Path, message: dict[str, Any], timeout: float = 10.0) -> dict[str, Any]:
    return await asyncio.to_thread(request, folder, message, timeout)


async def raw(folder: Path, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(folder / SOCKET_NAME)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_command_and_its_answer(tmp_path: Path) -> None:
    async with serving(tmp_path):
        assert await ask(tmp_path, {"command": "list"}) == {"ok": True, "heard": {"command": "list"}}


def test_on_uvloop_too(tmp_path: Path) -> None:
    async def main() -> dict[str, Any]:
        async with serving(tmp_path):
            return await ask(tmp_path, {"command": "é"})

    assert uvloop.run(main()) == {"ok": True, "heard": {"command": "é"}}


async def test_the_owner_alone_may_use_it_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        async with serving(tmp_path):
            assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600
    finally:
        os.umask(old)


async def test_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    async with serving(folder):
        assert (await ask(folder, {"command": "list"}))["ok"]


async def test_stop_takes_the_file_away_and_ends_open_conversations(tmp_path: Path) -> None:
    async with serving(tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        writer.write(b'{"command":"list"}\n')
        assert json.loads(await reader.readline())["ok"]
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert not (tmp_path / SOCKET_NAME).exists()


async def test_several_commands_on_one_connection(tmp_path: Path) -> None:
    async with serving(tmp_path):
        lines = (await raw(tmp_path, b'{"command":"a"}\n{"command":"b"}\n')).splitlines()
    assert [json.loads(line)["heard"]["command"] for line in lines] == ["a", "b"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"nonsense\n", "one JSON object"),
        (b"\xff\xfe\n", "one JSON object"),
        (b"[1]\n", "not list"),
        (b"[" * 100_000 + b"\n", "one JSON object"),
        (b"x" * (control_socket.LINE_BYTES_MAX + 1), "at most 262144 bytes"),
        (b'{"command":"fail"}\n', "RuntimeError: no luck"),
    ],
)
async def test_bad_lines_get_an_answer_and_the_socket_lives_on(tmp_path: Path, data: bytes, says: str) -> None:
    async with serving(tmp_path):
        answer = json.loads((await raw(tmp_path, data)).splitlines()[0])
        assert answer["ok"] is False
        assert says in answer["error"]
        assert (await ask(tmp_path, {"command": "list"}))["ok"]


async def test_what_a_killed_broker_left_is_taken_over(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / SOCKET_NAME))
    left.close()
    async with serving(tmp_path):
        assert (await ask(tmp_path, {"command": "list"}))["ok"]


async def test_a_live_broker_is_not_pushed_aside(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with pytest.raises(ControlError, match="another broker serves"):
            await ControlServer(tmp_path, echo).start()
        assert (await ask(tmp_path, {"command": "list"}))["ok"]


async def test_a_file_in_its_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / SOCKET_NAME).write_text("mine")
    with pytest.raises(ControlError, match="is not a socket"):
        await ControlServer(tmp_path, echo).start()
    assert (tmp_path / SOCKET_NAME).read_text() == "mine"


async def test_stop_leaves_a_successor_s_socket(tmp_path: Path) -> None:
    first = ControlServer(tmp_path, echo)
    await first.start()
    (tmp_path / SOCKET_NAME).unlink()
    async with serving(tmp_path):
        await first.stop()
        assert (await ask(tmp_path, {"command": "list"}))["ok"]


async def test_clients_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "CLIENTS_MAX", 1)
    async with serving(tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        writer.write(b"{}\n")
        await reader.readline()
        assert "more than 1 control clients" in (await ask(tmp_path, {}))["error"]
        writer.close()
        await writer.wait_closed()


async def test_a_silent_client_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "IDLE_S", 0.01)
    async with serving(tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


class TestRequest:
    """The client's words when there is no broker to talk to."""

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ControlError, match="No such file or directory; name another"):
            request(tmp_path / "missing", {})

    def test_no_socket(self, tmp_path: Path) -> None:
        with pytest.raises(ControlError, match=r"it has no control\.sock; start one with `pairbus broker --data"):
            request(tmp_path, {})

    def test_nobody_listens(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / SOCKET_NAME))
            with pytest.raises(ControlError, match=r"nobody answers on control\.sock; start one"):
                request(tmp_path, {})

    def test_nobody_answers(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(tmp_path / SOCKET_NAME))
            silent.listen()
            with pytest.raises(ControlError, match=r"did not answer in 0\.05 s"):
                request(tmp_path, {}, timeout=0.05)

    async def test_gone_before_the_answer(self, tmp_path: Path) -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.close()

        server = await asyncio.start_unix_server(hang_up, tmp_path / SOCKET_NAME)
        with pytest.raises(ControlError, match="went away before it answered"):
            await ask(tmp_path, {})
        server.close()
