"""Writes ledgers: one JSON object a line, append-only, a file per process, rotated by size.

Owns the file and the buffer; decides nothing about what is worth an event. `event` only appends to a list (a few µs);
the owner calls `flush` every 0.2 s and `close` at the end. A ledger must never stop a broker: when the disk refuses,
events are dropped and counted, and the gap is written down as soon as there is room again. A disk may also not answer
at all: with `aside` another thread writes, the caller never waits, and the oldest events are dropped once too many
wait. The format is described in docs/reference/ledger.md.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Final

from pairbus import __version__
from pairbus.billing import UNIT_BYTES
from pairbus.errors import LedgerError

SCHEMA: Final = 1
#: Added to the name of a file whose lines are Parquet (`pairbus ledger compact`).
COMPACTED: Final = ".parquet"
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
# Reached only when the owner's timer is late; the write then happens inside `event`, unless it is done aside.
PENDING_LINES_MAX: Final = 20_000
#: Lines that may wait for a write aside.
WAITING_LINES_MAX: Final = 100_000
#: How long the end waits for a disk that does not answer.
CLOSING_S: Final = 2.0
_NAMES_MAX: Final = 10_000
_WRITER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()


class LedgerWriter:
    """Writes the events of one process. Safe to share between threads; a forked child goes on in its own file."""

    def __init__(
        self,
        folder: Path,
        writer: str,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        clock: Callable[[], float] = time.time,
        aside: bool = False,
        continues: bool = False,
    ) -> None:
        """`aside`: nothing but `flush` waits for the disk; the owner calls `flush_aside` instead. `continues`: one
        process at a time writes under this name there, and all of them write one series of files."""
        if not _WRITER_NAME.fullmatch(writer):
            raise LedgerError(f"{writer!r} can't name a ledger's writer: letters, digits, dot, dash, at most 64")
        self._folder = folder
        self.writer = writer
        self._clock = clock
        self._file_bytes_max = file_bytes_max
        self._lines: list[str] = []
        # Escaped names by name: a process has few namespaces and entities, and many events on each.
        self._names: dict[str, str] = {}
        # Held while the file is written, and while what was dropped is counted: the first may take forever.
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._is_aside = aside
        self._thread: threading.Thread | None = None
        self._descriptor: int | None = None
        self._number = 0
        self._continues = continues
        self._series, self._series_number = _new_series(), 0
        self._size = 0
        self._events = 0
        self._dropped = 0
        self.dropped_total = 0
        self.error: OSError | None = None
        self.path: Path | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if continues:
                self._series, self._series_number = self._kept_series()
            self._open()
        except OSError as error:
            raise LedgerError(f"the ledger folder {folder} can't be written: {error.strerror}; name another") from error
        _writers.add(self)

    def __repr__(self) -> str:
        return f"<LedgerWriter {self.path}: {self._events} events, {self.dropped_total} dropped>"

    def event(
        self,
        kind: str,
        t: float,
        ns: str,
        entity: str | None = None,
        *,
        mid: str | None = None,
        seq: int | None = None,
        size: int | None = None,
        outcome: str | None = "ok",
        ms: float | None = None,
        cause: str | None = None,
        queue: int | None = None,
        old: str | None = None,
        new: str | None = None,
        rule: str | None = None,
        why: str | None = None,
        given_ms: float | None = None,
    ) -> None:
        """Write one event. `size` becomes `bytes` and `units`, `old` and `new` the `from` and `to` of a state
        change."""
        line = f'{{"t":{t:.6f},"kind":"{kind}","ns":{self._names.get(ns) or self._name(ns)}'
        if entity is not None:
            line += f',"entity":{self._names.get(entity) or self._name(entity)}'
        if mid is not None:
            line += f',"mid":{quoted(mid)}'
        if seq is not None:
            line += f',"seq":{seq}'
        if size is not None:
            line += f',"bytes":{size},"units":{-(-size // UNIT_BYTES) or 1}'
        if outcome is not None:
            line += f',"outcome":{self._names.get(outcome) or self._name(outcome)}'
        if ms is not None:
            line += f',"ms":{ms:.3f}'
        if cause is not None:
            line += f',"cause":"{cause}"'
        if queue is not None:
            line += f',"queue":{queue}'
        if old is not None:
            line += f',"from":{quoted(old)}'
        if new is not None:
            line += f',"to":{quoted(new)}'
        if rule is not None:
            line += f',"rule":"{rule}"'
        if why is not None:
            line += f',"why":{quoted(why)}'
        if given_ms is not None:
            line += f',"given_ms":{given_ms:.3f}'
        self._lines.append(line + "}\n")
        if len(self._lines) >= PENDING_LINES_MAX:
            self._relieve()

    def _relieve(self) -> None:
        """Make room for more lines."""
        if not self._is_aside:
            self.flush()
            return
        self.flush_aside()
        if len(self._lines) >= WAITING_LINES_MAX:
            # Those that have waited longest: what is written next follows the gap.
            with self._counting:
                count = len(self._lines)
                del self._lines[:count]
                self._drop(count)

    def flush(self) -> None:
        with self._lock:
            self._flush()

    @property
    def is_flushing(self) -> bool:
        """Whether another thread writes."""
        return self._thread is not None and self._thread.is_alive()

    def flush_aside(self) -> bool:
        """Let another thread flush; return False where one does already, and perhaps has not seen the last events."""
        if self.is_flushing:
            return False
        if self._lines or self._dropped:
            self._thread = threading.Thread(target=self.flush, name="pairbus-ledger", daemon=True)
            self._thread.start()
        return True

    def skip(self, count: int) -> None:
        """Note in the file that so many events are missing, since there was no time to write them."""
        with self._counting:
            self._drop(count)

    def _drop(self, count: int) -> None:
        self._dropped += count
        self.dropped_total += count

    def close(self) -> None:
        """Write what waits, and the end. A disk that does not answer is not waited for, or not for long: the file
        then has no end, as after a kill."""
        if not self._is_aside:
            self._close()
            return
        closing = threading.Thread(target=self._close, name="pairbus-ledger", daemon=True)
        closing.start()
        closing.join(CLOSING_S)

    def _close(self) -> None:
        with self._lock:
            self._flush()
            if self._descriptor is not None:
                self._end("closed")
        _writers.discard(self)

    def _name(self, text: str) -> str:
        if len(self._names) >= _NAMES_MAX:
            self._names.clear()
        escaped = self._names[text] = quoted(text)
        return escaped

    def _flush(self) -> None:
        # Other threads append to this very list meanwhile: take a count, never swap the list under them.
        with self._counting:
            count = len(self._lines)
            lines = self._lines[:count]
            del self._lines[:count]
            dropped, self._dropped = self._dropped, 0
        if not count and not dropped:
            return
        try:
            if self._descriptor is None or self._size >= self._file_bytes_max:
                if self._descriptor is not None:
                    self._end("rotated")
                self._open()
            if dropped:
                self._write(_line({"t": self._clock(), "kind": "gap", "events": dropped}))
                dropped = 0
            self._write("".join(lines).encode())
            self._events += count
            self.error = None
        except OSError as error:
            self.error = error
            with self._counting:
                self._dropped += dropped
                self._drop(count)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        pid = os.getpid()
        while True:
            self._number += 1
            path = self._folder / f"{self.writer}-{pid}-{self._number:06d}.jsonl"
            # An earlier process had the same id where there is such a file, or where one was compacted.
            if path.with_name(path.name + COMPACTED).exists():
                continue
            try:
                self._descriptor = os.open(path, flags, 0o600)
                break
            except FileExistsError:
                continue
        self.path = path
        self._size = self._events = 0
        first = {
            "schema": SCHEMA, "writer": self.writer, "pid": pid, "t": self._clock(), "pairbus": __version__,
            "series": self._series, "number": self._series_number + 1,
        }  # fmt: skip
        try:
            self._write(_line(first))
            if self._continues:
                self._keep_series(self._series_number + 1)
        except OSError:
            # Without its first line nobody could read the file; the next flush makes another.
            self._abandon()
            path.unlink(missing_ok=True)
            raise
        self._series_number += 1

    def _kept_series(self) -> tuple[str, int]:
        """Return the series that an earlier process wrote there and its last number, else a new one. Without its
        number, a report could not tell a file that somebody took away from one that never was."""
        try:
            series, number = (self._folder / f"{self.writer}.series").read_text().split()
            return series, int(number)
        except (FileNotFoundError, ValueError):  # a power cut may have emptied it
            return _new_series(), 0

    def _keep_series(self, number: int) -> None:
        draft = self._folder / f".{self.writer}.series.draft"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"{self._series} {number}\n")
        draft.replace(self._folder / f"{self.writer}.series")

    def _write(self, data: bytes) -> None:
        """Write all of it or none: a half-written line would spoil the next one too."""
        assert self._descriptor is not None
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError:
                self._abandon()
            raise
        self._size += len(data)

    def _abandon(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _end(self, reason: str) -> None:
        assert self._descriptor is not None
        try:
            # A file without this line was cut by a kill: what is missing after it is unknown, not nothing.
            self._write(_line({"t": self._clock(), "kind": "end", "reason": reason, "events": self._events}))
        except OSError as error:
            self.error = error
        self._abandon()

    def _forked(self) -> None:
        """Start anew in a forked child: what the parent has not flushed yet is the parent's to write."""
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._thread = None
        self._lines.clear()
        self._dropped = self._number = self._series_number = 0
        self._series, self._continues = _new_series(), False
        self._abandon()


def _new_series() -> str:
    return os.urandom(8).hex()


def _line(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _forked() -> None:
    for writer in list(_writers):
        writer._forked()


os.register_at_fork(after_in_child=_forked)
