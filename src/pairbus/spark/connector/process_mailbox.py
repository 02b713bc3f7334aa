"""Passes messages between the processes of one query on the driver's machine: lines of JSON in a shared folder.

Spark runs the source's offsets, the sink's commits and the application in three processes. The sink writes what was
moved, the source what it polled; the application reads both, and asks both to stop. A reader skips a line that is still
incomplete.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

STOP: Final = "stop"


class ProcessMailbox:
    """Named files of lines: `append` is one write, so that writers need no lock; `read_new` returns the lines since the
    last call."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._read: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<ProcessMailbox {len(self._read)} files read>"

    @property
    def folder(self) -> str:
        return str(self._folder)

    @property
    def is_there(self) -> bool:
        """Whether the folder exists: not on another machine, and not after it was removed."""
        return self._folder.is_dir()

    def append(self, file: str, notice: dict[str, Any]) -> None:
        line = json.dumps(notice, separators=(",", ":")).encode() + b"\n"
        descriptor = os.open(self._folder / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def read_new(self, name: str) -> list[dict[str, Any]]:
        begin = self._read.get(name, 0)
        try:
            with open(self._folder / name, "rb") as file:
                file.seek(begin)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read[name] = begin + len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def raise_flag(self, name: str) -> None:
        (self._folder / name).touch(mode=0o600)

    def lower_flag(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def is_raised(self, name: str) -> bool:
        return (self._folder / name).exists()
