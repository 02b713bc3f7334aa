"""A RabbitMQ of our own with the AMQP 1.0 plugin: free ports, its folder, its port mapper; nothing is left behind.

with running_rabbitmq(folder) as rabbit:
    WireClient("127.0.0.1", rabbit.amqp_port, tls=False, credential=Login(rabbit.user, rabbit.password))
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Debian's wrapper on the PATH wants to change user; this is the server's own script
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_S_MAX = 90.0
STOP_S_MAX = 20.0


def rabbitmq_missing() -> str | None:
    """Why it cannot be run here, or None."""
    if not SERVER.exists() or shutil.which("epmd") is None:
        return "RabbitMQ is missing: apt-get install rabbitmq-server"
    return None


class RabbitMQ:
    user = "wire"
    password = "wire"  # on loopback, for as long as a test runs

    def __init__(self, folder: Path, queues: tuple[str, ...]) -> None:
        self.folder = folder
        self.queues = queues
        self.amqp_port = _free_port()
        self._mapper: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<RabbitMQ on port {self.amqp_port}: {'running' if self._server else 'stopped'}>"

    @property
    def server_pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    def start(self) -> None:
        problem = rabbitmq_missing()
        if problem is not None:
            raise RuntimeError(problem)
        folder, mapper_port = self.folder, _free_port()
        folder.mkdir(parents=True, exist_ok=True)
        definitions = {
            "users": [{"name": self.user, "password": self.password, "tags": "administrator"}],
            "vhosts": [{"name": "/"}],
            "permissions": [{"user": self.user, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
            "queues": [
                {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
                for name in self.queues
            ],
        }
        (folder / "definitions.json").write_text(json.dumps(definitions))
        (folder / "plugins").write_text("[rabbitmq_amqp1_0].\n")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.amqp_port}\nload_definitions = {folder}/definitions.json\n"
            "log.file = false\nlog.console = true\nlog.console.level = warning\n"
        )
        cookie = folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(secrets.token_hex(16))
            cookie.chmod(0o400)
        # started here and in the foreground: left to the server, the port mapper would stay behind as a daemon
        self._mapper = subprocess.Popen(
            ["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")},
            "detached": "1",  # the script then becomes the server, so that its process is ours to stop
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(mapper_port),
            "RABBITMQ_NODENAME": f"wire{self.amqp_port}@localhost",
            "RABBITMQ_DIST_PORT": str(_free_port()),
            "RABBITMQ_NODE_PORT": str(self.amqp_port),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        with (folder / "console.log").open("wb") as console:
            self._server = subprocess.Popen(
                [str(SERVER)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._await_port()

    def _await_port(self) -> None:
        assert self._server is not None
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            if self._server.poll() is not None:
                break
            try:
                with socket.create_connection(("127.0.0.1", self.amqp_port), timeout=1.0):
                    return
            except OSError:
                time.sleep(0.1)
        text = (self.folder / "console.log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"RabbitMQ did not start within {START_S_MAX:.0f} s: {text}")

    def stop(self) -> None:
        for process in (self._server, self._mapper):
            if process is None or process.poll() is not None:
                continue
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._server = self._mapper = None


@contextmanager
def running_rabbitmq(folder: Path, queues: tuple[str, ...] = ("wire",)) -> Iterator[RabbitMQ]:
    rabbit = RabbitMQ(folder, queues)
    try:
        rabbit.start()
        yield rabbit
    finally:
        rabbit.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
