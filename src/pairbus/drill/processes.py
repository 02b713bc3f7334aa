"""Starts, reads and ends the processes of a drill: two brokers, a sender and a receiver.

Each has its own session, so that Ctrl-C at the terminal reaches only the drill, which ends them in order. Their stderr
goes to a file.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pairbus.errors import PairbusError

READY_S: Final = 30.0
STOP_S: Final = 10.0
LINE_BYTES_MAX: Final = 16 * 1024 * 1024


class DrillFailed(PairbusError):
    """A part of the drill failed; this says nothing about the messages."""


class Ready(NamedTuple):
    """What a broker prints when it is ready."""

    port: int
    connection_string: str


class Child:
    """A process whose stdout is read line by line."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        state = "not started" if self._process is None else f"pid {self._process.pid}"
        return f"<Child {self.name}: {state}>"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, *arguments: str) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                start_new_session=True, limit=LINE_BYTES_MAX,
            )  # fmt: skip

    async def line(self) -> dict[str, Any] | None:
        """Return the next line, or None at the end."""
        assert self._process is not None and self._process.stdout is not None
        text = await self._process.stdout.readline()
        return json.loads(text) if text.endswith(b"\n") else None

    async def write(self, text: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(text.encode() + b"\n")
            await self._process.stdin.drain()

    def kill(self) -> None:
        if self.is_running:
            assert self._process is not None
            with suppress(ProcessLookupError):
                self._process.kill()

    async def ended(self, timeout: float = STOP_S) -> int:
        assert self._process is not None
        try:
            async with asyncio.timeout(timeout):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    async def terminate(self) -> None:
        if not self.is_running:
            return
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        await self.ended()

    def failure(self, what: str) -> DrillFailed:
        text = self._log.read_text(errors="replace").strip() if self._log.exists() else ""
        last = text.splitlines()[-1] if text else "it said nothing"
        return DrillFailed(f"the drill's {self.name} {what}: {last}; its log is {self._log}")


class BrokerProcess(Child):
    """Runs `pairbus broker` with one namespace; killed and started again it keeps its port and its data."""

    def __init__(self, namespace: str, folder: Path, config: str, log: Path) -> None:
        super().__init__(f"broker of {namespace}", log)
        self.namespace = namespace
        self.data = folder / namespace
        self._config = folder / f"{namespace}.toml"
        self._config.write_text(config)
        self.ready = Ready(0, "")

    @property
    def ledger(self) -> Path:
        return self.data / self.namespace / "ledger"

    async def serve(self) -> None:
        await self.start(
            "pairbus", "broker", "--namespace", f"{self.namespace}:{self.ready.port}", "--data", str(self.data),
            "--config", str(self._config), "--ledger",
        )  # fmt: skip
        try:
            async with asyncio.timeout(READY_S):
                said = await self.line()
        except TimeoutError:
            raise self.failure(f"was not ready after {READY_S:g} s") from None
        if said is None:
            raise self.failure("did not start")
        self.ready = Ready(said["port"], said["connection_string"])


class Application(Child):
    """Runs a sender or a receiver; `hear` gets each fact that it prints."""

    def __init__(self, role: str, log: Path, hear: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(role, log)
        self._role = role
        self._hear = hear
        self._listening: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()
        self._has_finished = asyncio.Event()
        self._is_done = False

    async def begin(self, settings: dict[str, Any]) -> None:
        await self.start("pairbus.drill.worker", self._role)
        await self.write(json.dumps(settings))
        self._listening = asyncio.create_task(self._listen())
        await self._heard_of(self._is_ready, READY_S)
        if not self._is_ready.is_set():
            raise self.failure("did not begin")

    async def enough(self) -> None:
        """Ask a sender to end its traffic."""
        await self.write("enough")

    async def finished(self) -> None:
        """Wait until it has done its work; it keeps its client open until `stop`."""
        await self._heard_of(self._has_finished, None)
        if not self._has_finished.is_set():
            raise self.failure(f"ended with exit code {await self.ended()}")

    async def stop(self) -> None:
        """Stop it, and wait until it has closed its ledger."""
        assert self._listening is not None
        await self.write("stop")
        await self._listening
        code = await self.ended()
        if code or not self._is_done:
            raise self.failure(f"ended with exit code {code}")

    async def _heard_of(self, event: asyncio.Event, timeout: float | None) -> None:
        """Wait for the event, for the end of its output, or until the time is over."""
        assert self._listening is not None
        heard = asyncio.create_task(event.wait())
        await asyncio.wait({heard, self._listening}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        heard.cancel()

    async def _listen(self) -> None:
        while (fact := await self.line()) is not None:
            if fact["fact"] == "ready":
                self._is_ready.set()
            elif fact["fact"] == "finished":
                self._has_finished.set()
            elif fact["fact"] == "done":
                self._is_done = True
            else:
                self._hear(fact)


async def end_all(children: list[Child]) -> None:
    """End all processes, whatever happened; kill those that do not end in time."""
    await asyncio.gather(*(child.terminate() for child in children))
