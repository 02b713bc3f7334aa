"""Starts and stops the servers that are measured: own processes, free ports, own data folders on one disk. Also the
benchmark's own helper processes, which are spoken to in lines.

Only what was started here is stopped, by its id; the kernel ends it too if this process dies first. RabbitMQ and NATS
come from Debian's packages and keep their defaults except for ports, folders and what a durability label names.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[1]
COMMAND = Path(sys.executable).with_name("pairbus")
START_S = 120.0
STOP_S = 30.0
RABBITMQ_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one in sbin changes user and hides its output
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ServerMissing(Exception):
    """A rival isn't installed; the text says how to."""


class ServerFailed(Exception):
    """A server died or didn't get ready; the text has the end of what it said."""


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def environment() -> dict[str, str]:
    """Return this process's, in which every interpreter finds the pairbus that is installed for it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _ended(process: subprocess.Popen[Any]) -> None:
    """Wait for the end of a process that was asked to end, and kill it where that takes long."""
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


class Helper:
    """A module of the benchmark as a process of its own, told lines on stdin and answering with lines on stdout."""

    def __init__(self, module: str, *arguments: str, python: Path | str = sys.executable, **environ: str) -> None:
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            cwd=ROOT,
            env=environment() | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=_die_with_parent,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it has ended is seen where it should answer
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def hear(self) -> str:
        """Return its next line with the end of line; nothing: it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def wait(self) -> int:
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        _ended(self._process)


class Server:
    """One server process with its data folder."""

    name = "server"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    def _spawn(self, command: list[str], env: Mapping[str, str] | None = None, stdout: int | None = None) -> None:
        # settings of a server that the user runs must not reach ours
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        with (self.folder / "said.log").open("ab") as said:
            self._process = subprocess.Popen(
                command,
                env={**inherited, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=said if stdout is None else stdout,
                stderr=said,
                start_new_session=True,  # Ctrl-C reaches the harness alone, which then stops its servers
                preexec_fn=_die_with_parent,
            )

    def start(self) -> None:
        raise NotImplementedError

    def _await_port(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            self._check_alive()
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise ServerFailed(f"{self.name} didn't listen within {START_S:.0f} s: {self.said()}")

    def _check_alive(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ServerFailed(f"{self.name} ended with {self._process.returncode}: {self.said()}")

    def said(self) -> str:
        try:
            return (self.folder / "said.log").read_text(errors="replace")[-2000:]
        except OSError:
            return "(nothing)"

    def kill(self) -> None:
        """As a crash would: no clean shutdown."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            _ended(process)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class PairbusServer(Server):
    """The broker that is installed beside this interpreter."""

    name = "pairbus"

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self._options = options
        self.connection_string = ""
        self.ca_file = ""
        self.ready_s = 0.0

    def start(self) -> None:
        if not COMMAND.exists():
            raise ServerMissing(f"{COMMAND} is missing: run `make setup` and use its .venv")
        started = time.perf_counter()
        self._spawn(
            # a fixed port after the first start: clients may come back to it
            [
                *(str(COMMAND), "broker", "--namespace", f"bench:{self.port}", "--data", str(self.folder / "data")),
                *self._options,
            ],
            stdout=subprocess.PIPE,
        )
        line = self._ready_line()
        self.ready_s = time.perf_counter() - started
        try:
            ready = json.loads(line)
            self.port = int(ready["port"])
            self.connection_string = ready["connection_string"]
            self.ca_file = ready.get("ca_file") or ""
        except (ValueError, KeyError, TypeError) as error:
            raise ServerFailed(f"pairbus broker printed {line!r}, not the ready line: {error!r}") from error

    def _ready_line(self) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        too_late = threading.Timer(START_S, self._process.kill)
        too_late.start()
        line: bytes = self._process.stdout.readline()
        too_late.cancel()
        if not line:
            self._process.wait(STOP_S)
            self._check_alive()
        return line


class NatsServer(Server):
    name = "nats"

    @staticmethod
    def command() -> str:
        found = shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/bin")
        if not found:
            raise ServerMissing("nats-server is missing: apt-get install nats-server")
        return found

    @classmethod
    def version(cls) -> str:
        said = subprocess.run([cls.command(), "--version"], capture_output=True, text=True, timeout=30)
        return said.stdout.strip().removeprefix("nats-server: v")

    def start(self) -> None:
        self.port = self.port or free_port()
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.folder}/store", max_file_store: 20GB }}\n'
        )
        self._spawn([self.command(), "-c", str(config)])
        self._await_port()


class RabbitServer(Server):
    """RabbitMQ with the AMQP 1.0 plugin, an Erlang port mapper of its own, and the queues asked for."""

    name = "rabbitmq"
    user = "bench"
    password = "bench"  # listens on loopback, for as long as the run lasts

    def __init__(self, folder: Path, queues: Mapping[str, str]) -> None:
        super().__init__(folder)
        self._queues = queues  # name → "classic" or "quorum"
        self._mapper: subprocess.Popen[bytes] | None = None

    @staticmethod
    def version() -> str:
        plugins = Path("/usr/lib/rabbitmq/lib")
        found = sorted(plugins.glob("rabbitmq_server-*")) if plugins.exists() else []
        if not found or not RABBITMQ_SERVER.exists() or not shutil.which("epmd"):
            raise ServerMissing("RabbitMQ is missing: apt-get install rabbitmq-server")
        return found[-1].name.removeprefix("rabbitmq_server-")

    def start(self) -> None:
        self.version()
        folder = self.folder
        self.port = self.port or free_port()
        mapper_port = free_port()
        definitions = {
            "users": [{"name": self.user, "password": self.password, "tags": "administrator"}],
            "vhosts": [{"name": "/"}],
            "permissions": [{"user": self.user, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
            "queues": [
                {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": kind}}
                for name, kind in self._queues.items()
            ],
        }
        (folder / "definitions.json").write_text(json.dumps(definitions))
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"load_definitions = {folder}/definitions.json\n"
            "log.file = false\nlog.console = true\nlog.console.level = warning\n"
        )
        (folder / "plugins").write_text("[rabbitmq_amqp1_0].\n")
        cookie = folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(secrets.token_hex(16))
            cookie.chmod(0o400)
        # in the foreground and ours, so that no daemon stays behind
        self._mapper = subprocess.Popen(
            ["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self._spawn(
            [str(RABBITMQ_SERVER)],
            {
                "detached": "1",  # the script then becomes the server rather than waiting for it: its id is ours
                "HOME": str(folder),
                "ERL_EPMD_PORT": str(mapper_port),
                "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
                "RABBITMQ_DIST_PORT": str(free_port()),
                "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
                "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
                "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
                "RABBITMQ_LOG_BASE": str(folder / "log"),
                "RABBITMQ_PID_FILE": str(folder / "pid"),
            },
        )
        self._await_port()

    def stop(self) -> None:
        super().stop()
        if self._mapper:
            self._mapper.terminate()
            self._mapper.wait()
            self._mapper = None
