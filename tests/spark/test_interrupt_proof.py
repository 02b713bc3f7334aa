"""Ctrl-C and SIGTERM to a whole process group, as a terminal or a supervisor sends them, while Spark is at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.pairing.backlog.aliases import divert_encoded
from tests.waiting import until

from .conftest import MakeQueue, Pair, peeked, wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BACKLOG = "signals/x-servicebus-transfer/0"


class Command:
    """In a process group of its own, with what it prints in files."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        for name, server in (("primary", pair.primary), ("secondary", pair.secondary)):
            (folder / name).write_text(server.connection_string)
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pairbus", "syphon", "--json", "--count", "1", "--primary-name", "signals",
                 "--primary", f"@{folder / 'primary'}", "--secondary", f"@{folder / 'secondary'}",
                 "--ca-file", str(pair.primary.ca_file), "--master", "local[2,4]"],
                stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    def until(self, condition: Callable[[], Any], within_s: float = 120.0) -> None:
        end = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < end and self.process.poll() is None, self.err.read_text() + self.out.read_text()
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def descendants(self) -> set[int]:
        parents: dict[int, int] = {}
        for file in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        found, more = {self.process.pid}, True
        while more:
            new = {child for child, parent in parents.items() if parent in found} - found
            found, more = found | new, bool(new)
        return found - {self.process.pid}

    def ended(self) -> tuple[int, str]:
        code = self.process.wait(60)
        return code, self.err.read_text()


def alive(processes: set[int]) -> dict[int, str]:
    """A process that has ended and that nobody has asked for prints no more: `Z`."""
    found = {}
    for each in processes:
        try:
            state = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found[each] = f"{state} {words(each)!r}"
    return found


def test_a_signal_to_the_group_ends_the_round_and_leaves_no_process(
    pair: Pair, make_queue: MakeQueue, tmp_path: Path
) -> None:
    make_queue(pair.primary, "orders")
    make_queue(pair.secondary, BACKLOG)
    with wire(pair.secondary) as client:
        one = encode_message(None, None, Properties(message_id="m"), body=b"x")
        assert client.sender(BACKLOG).send_many([divert_encoded(one, "orders")]) == [None]
    command = Command(tmp_path, pair)
    try:
        command.until(lambda: peeked(pair.primary, "orders"))
        started = command.descendants()
        assert len(started) >= 2, "Java and Python's workers"
        command.signal(signal.SIGTERM)
        code, said = command.ended()
        left = alive(started)
        assert code == 0 and not left, (code, left, said)
        assert "stopping after this round; again to break off" in said and "Traceback" not in said
        assert "Exception" not in said and "ERROR" not in said, said
        assert '"outcome": "stopped"' in command.out.read_text().splitlines()[-1]
    finally:
        command.process.kill()


def test_a_second_ctrl_c_breaks_off_even_while_spark_starts(pair: Pair, make_queue: MakeQueue, tmp_path: Path) -> None:
    make_queue(pair.secondary, BACKLOG)
    command = Command(tmp_path, pair)
    try:
        command.until(lambda: any(b"java" in words(each) for each in command.descendants()))
        started = command.descendants()
        command.signal(signal.SIGINT)
        command.until(lambda: "again to break off" in command.err.read_text(), 10.0)
        command.signal(signal.SIGINT)
        code, said = command.ended()
        # The Java that works out how to start Spark's Java has no parent any more, and ends when it has written that.
        assert code == 130, said
        until(lambda: not alive(started), told=lambda: alive(started))
        assert said.splitlines()[-1].startswith("pairbus: broken off") and "Traceback" not in said
    finally:
        command.process.kill()


def words(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
