"""A broker in a process of its own, to be killed; its journal may be given small segments and its disk faults.

Run as a module this is that process: the command line of pairbus over a journal whose settings and files the first
argument changes. Without any it is `python -m pairbus`, as users start it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from pairbus.journal import RealFiles

ROOT = Path(__file__).parent.parent.parent
START_S_MAX = 60.0
#: Segments so small that a few seconds of load compact several of them.
SMALL_SEGMENTS = {"segment_bytes": 256 << 10, "reserve_bytes": 64 << 10, "allocate_bytes": 32 << 10}


class NotReady(AssertionError):
    pass


class BrokerProcess:
    """`start` and `kill` as often as wanted: the port, the key and the data stay. Good as the namespace of an `Sdk`.

    `journal`: fields of the journal's Options. `disk`: faults, see `SickDisk`.
    """

    def __init__(
        self, data: Path, *, journal: dict[str, Any] | None = None, disk: dict[str, Any] | None = None
    ) -> None:
        self.data = data
        self.journal = journal or {}
        self.disk = disk or {}
        self.durability = "default"
        self.standby: Path | None = None
        self.name = "contoso"
        self.host = "127.0.0.1"
        self.port = quiet_port()
        self.connection_string = ""
        self.ca_file = ""
        self.starts = 0
        self._log = data.with_name(f"{data.name}.stderr")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def __repr__(self) -> str:
        return f"<BrokerProcess {self.name}:{self.port}: start {self.starts}, pid {self.pid}>"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def launch(self) -> None:
        """Starts without waiting for anything."""
        assert self._process is None
        settings = {name: value for name, value in (("journal", self.journal), ("disk", self.disk)) if value}
        module = [__name__, json.dumps(settings)] if settings else ["pairbus"]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", *module, "broker"),
                    *("--namespace", f"{self.name}:{self.port}", "--data", str(self.data)),
                    *("--durability", self.durability),
                    *(() if self.standby is None else ("--standby", str(self.standby))),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.starts += 1

    def start(self) -> None:
        """Returns when the broker serves."""
        self.launch()
        assert self._process is not None
        pipe = self._process.stdout
        assert pipe is not None
        readable, _, _ = select.select([pipe], [], [], START_S_MAX)
        line = pipe.readline() if readable else b""
        if not line:
            self.kill()
            raise NotReady(f"the broker did not start; it said: {self.said()[-2000:]}")
        ready = json.loads(line)
        self.connection_string = ready["connection_string"]
        self.ca_file = ready["ca_file"]

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As a user stops it; the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Until it has died by itself."""
        assert self._process is not None
        self._process.wait(timeout_s)
        return self._end(None)

    def _end(self, number: signal.Signals | None) -> int:
        process, self._process = self._process, None
        assert process is not None
        if number is not None:
            process.send_signal(number)
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        if process.stdout is not None:
            process.stdout.close()
        return code

    def said(self) -> str:
        """All that it wrote to stderr since its first start."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024


_given: set[int] = set()


def quiet_port() -> int:
    """A free port outside the range of outgoing connections. Inside it a client that tries again and again while the
    broker is down ends up connected to itself (TCP's simultaneous open), and the broker can't have its port back."""
    for port in random.Random(os.urandom(8)).sample(range(15000, 32000), 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            if port not in _given:  # or two brokers that are not started yet would get the same
                _given.add(port)
                return port
    raise AssertionError("no free port between 15000 and 32000")


class SickDisk(RealFiles):
    """Real files with faults, told in a dict:

    capacity  bytes that all files of the data folder may take, then ENOSPC
    folder    that data folder
    failing   [call, path]: the call fails with EIO as long as a file with that path exists
    fails     [call, path]: it fails once, and takes that file away
    dies      [call, nth, 'before' or 'after']: the process kills itself at the nth such call
    hangs     [nth, seconds]: every nth sync of a file in the data folder takes so long
    """

    __slots__ = ("_capacity", "_dies", "_failing", "_fails", "_folder", "_hangs", "_seen", "_syncs")

    def __init__(self, faults: dict[str, Any]) -> None:
        self._capacity: int | None = faults.get("capacity")
        self._folder: str = faults.get("folder", "")
        self._failing: tuple[str, str] | None = faults.get("failing")
        self._fails: tuple[str, str] | None = faults.get("fails")
        self._dies: tuple[str, int, str] | None = faults.get("dies")
        self._hangs: tuple[int, float] | None = faults.get("hangs")
        self._seen = self._syncs = 0

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._failing is not None and self._failing[0] == name and os.path.exists(self._failing[1]):
            raise OSError(errno.EIO, "Input/output error")
        if self._fails is not None and self._fails[0] == name and os.path.exists(self._fails[1]):
            os.unlink(self._fails[1])
            raise OSError(errno.EIO, "Input/output error")
        dies = None
        if self._dies is not None and self._dies[0] == name:
            self._seen += 1
            dies = self._dies[2] if self._seen == self._dies[1] else None
        if dies == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = getattr(RealFiles, name)(self, *arguments)
        if dies == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def fdatasync(self, fd: int) -> None:
        if self._hangs is not None and os.readlink(f"/proc/self/fd/{fd}").startswith(f"{self._folder}/"):
            self._syncs += 1
            if self._syncs % self._hangs[0] == 0:
                time.sleep(self._hangs[1])
        self._call("fdatasync", fd)

    def unlink(self, path: str) -> None:
        self._call("unlink", path)

    def fsync_dir(self, folder: str) -> None:
        self._call("fsync_dir", folder)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._make_room(fd, offset + len(data))
        written: int = self._call("pwrite", fd, data, offset)
        return written

    def fallocate(self, fd: int, offset: int, length: int) -> None:
        self._make_room(fd, offset + length)
        self._call("fallocate", fd, offset, length)

    def _make_room(self, fd: int, end: int) -> None:
        if self._capacity is None:
            return
        missing = end - os.fstat(fd).st_blocks * 512
        if missing > 0 and used_bytes(self._folder) + missing > self._capacity:
            raise OSError(errno.ENOSPC, "No space left on device")


def used_bytes(folder: str) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def wait_until(condition: Any, timeout_s: float = 30.0, every_s: float = 0.02) -> bool:
    """For what another process does in its own time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def main() -> None:
    from pairbus import cli
    from pairbus.broker import server
    from pairbus.journal import Journal, Options

    settings = json.loads(sys.argv[1])
    files = SickDisk(settings["disk"]) if "disk" in settings else RealFiles()

    class TheJournal(Journal):
        open = partial(Journal.open, files=files)

    server.Journal = TheJournal  # type: ignore[misc]
    server.Options = partial(Options, **settings.get("journal", {}))  # type: ignore[assignment,misc]
    cli.main(sys.argv[2:])


if __name__ == "__main__":
    main()
