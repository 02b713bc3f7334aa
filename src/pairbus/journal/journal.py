"""The journal's interface: open, replay, start, append, read, release, compact, close.

An append-only log with group commit. All methods are called on one thread, the loop's; the writer has its own thread
and answers through `post`. log.py and segment.py decide what is on the disk and what a failing disk means.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from pairbus.journal.compaction import CHUNK_BYTES, Compaction, Owner, Pace
from pairbus.journal.errors import (
    JournalBusy,
    JournalClosed,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalLocked,
    RecordTooLarge,
    from_os_error,
    no_room,
)
from pairbus.journal.files import Files, RealFiles, write_again
from pairbus.journal.log import LAZY, LOCK_NAME, PRIVILEGED, Done, Log
from pairbus.journal.options import Options
from pairbus.journal.record import RECORD_BYTES_MAX, SEGMENT_HEADER_BYTES, Record, decode_segment_header
from pairbus.journal.relocation import Relocations
from pairbus.journal.segment import Segment, scan, segment_name, survey
from pairbus.journal.standby import Pledge, check, has_segments, read_pledge, write_pledge
from pairbus.journal.writer import Command, Post, Writer

_OPEN_FILES_MAX = 64
_NOTES_MAX = 1000
# While compaction runs, this many bytes of the oldest segments are read for each byte that becomes dead. With four, if
# it begins when dead bytes are half of the live ones, all live records are copied before dead bytes equal live ones.
_PACE = 4


# A step of reading it again, on the loop's thread.
_STEP_S = 0.001
_HELD_S = 0.005

#: A segment's number, an offset in it, and the lsn of the last record before that: all before it was read
Position = tuple[int, int, int]
START: Position = (0, 0, 0)
#: A record that was gathered: its kind and parts, and whom to answer
Gathered = tuple[int, tuple[bytes, ...] | bytes, Done | None]


class SegmentInfo(NamedTuple):
    number: int
    size: int  # bytes in use of the file
    live: int  # payload bytes not released yet
    is_current: bool
    live_size: int  # the share of `size` that the live records take, framing included


class Journal:
    def __init__(
        self, folder: str, standby: str | None, options: Options, files: Files, clock: Callable[[], float]
    ) -> None:
        self.folder = folder
        self.standby = standby
        self.options = options
        self.files = files
        self.notes: list[str] = []
        self._clock = clock
        self._locks: dict[str, int] = {}  # by folder
        self._pledge: Pledge | None = None
        self._in_standby: set[int] = set()  # segments that are not in the journal's own folder
        self._chain: list[Segment] = []
        self._debris: list[str] = []
        self._abandoned: list[str] = []
        self._number_max = 0
        self._lsn = 0
        self._state = "opened"  # replaying, replayed, started, closed
        self._writer: Writer | None = None
        self._log: Log | None = None
        self._post: Post | None = None
        self._writes_here = False
        self._taken_bytes = 0
        self._ends: dict[int, int] = {}  # replayed segments and where they end
        self._loaded: dict[int, int] = {}  # payload bytes replayed, per segment
        self._dropped: dict[int, int] = {}  # payload bytes released, per segment
        self._deleted_max = 0
        self._readers: OrderedDict[int, int] = OrderedDict()
        self._compacting = False
        self._compaction_holds = 0
        self._compacted = 0  # the segment that is being compacted; 0: none
        self._held: Counter[int] = Counter()
        self._owed_bytes = 0  # of old segments that compaction has to read before it lets others go on
        self._spared_bytes = self._garbage_bytes = options.segment_bytes // 8  # to release until `on_garbage` is called
        #: Called on the loop's thread each time that an eighth of a segment was released.
        self.on_garbage: Callable[[], None] | None = None
        self._relocations = Relocations()
        self._gathered: list[Gathered] | None = None

    def __repr__(self) -> str:
        return f"<Journal {self.folder}: {self._state}, lsn {self._lsn}, {self.pending_bytes} bytes pending>"

    @classmethod
    def open(
        cls,
        folder: Path | str,
        options: Options | None = None,
        files: Files | None = None,
        clock: Callable[[], float] = time.monotonic,
        standby: Path | str | None = None,
    ) -> Journal:
        """Take the folder's lock and read the segments' headers. Raise JournalLocked, FormatError or JournalCorrupt.

        While the folder stalls, records go to the `standby` folder, which should be on another disk."""
        options, files, path = options or Options(), files or RealFiles(), str(folder)
        journal = cls(path, None if standby is None else str(standby), options, files, clock)
        try:
            journal._lock(path)
            if journal.standby is not None:
                journal._lock(journal.standby)
            journal._survey()
        except OSError as error:
            journal._unlock()
            raise from_os_error(error, f"the journal in {path} cannot be read") from error
        except BaseException:
            journal._unlock()
            raise
        return journal

    def _lock(self, folder: str) -> None:
        if folder in self._locks:
            raise JournalError(f"the standby folder {folder} is the journal's own; give another one, on another disk")
        lock_path = f"{folder}/{LOCK_NAME}"
        try:
            self.files.make_folder(folder)
            lock = self.files.lock(lock_path)
        except OSError as error:
            raise from_os_error(error, f"the journal folder {folder} cannot be opened") from error
        if lock is None:
            holder = self.files.holder(lock_path)
            raise JournalLocked(f"{folder} is in use by process {holder}; stop it or use another folder")
        self._locks[folder] = lock

    def _survey(self) -> None:
        """Find out which files form the journal, and whether they are all here."""
        salvage = self.options.salvage
        self._pledge = read_pledge(self.files, self.folder)
        identity, passed_over = check(self.files, self.folder, self.standby, self._pledge, salvage=salvage)
        if passed_over:
            self.notes.append(passed_over)
            self._pledge = Pledge(identity, "")
        chain = survey(self.files, self.folder, salvage, self.standby)
        self._chain, self._number_max = chain.segments, chain.number_max
        self._debris, self._abandoned = chain.debris, chain.abandoned
        self._in_standby = {each.number for each in chain.segments if not each.path.startswith(f"{self.folder}/")}
        self.notes += chain.notes

    # -- start-up

    def replay(self) -> Iterator[Record]:
        """Yield all records in lsn order; once, before start. A torn tail ends it and is said in `notes`;
        JournalCorrupt when records that were synced are damaged."""
        if self._state != "opened":
            raise JournalClosed(f"replay() comes once and before start(); the journal is {self._state}")
        self._state = "replaying"
        return self._replay()

    def _replay(self) -> Iterator[Record]:
        lsn, first_lsn = 0, 1
        for segment in self._chain:
            first_lsn = max(first_lsn, segment.header.first_lsn)
            loaded = 0
            for records in scan(self.files, segment, lsn, self.options.salvage, self.notes):
                lsn = records[-1].lsn
                for record in records:
                    loaded += len(record.payload)
                    yield record
            self._ends[segment.number] = segment.end or SEGMENT_HEADER_BYTES
            self._loaded[segment.number] = loaded
        self._lsn = max(lsn, first_lsn - 1)
        self._state = "replayed"

    def start(self, post: Post, *, thread: bool = True, write_here: bool = False) -> None:
        """Open for appends. `post` brings a callable to the loop's thread, as `loop.call_soon_threadsafe` does.

        With `write_here` a lazy record is written, and its `done` called, by `append` itself while nothing waits.
        Without `thread` the rest is written when someone calls `turn()`: for tests.
        """
        if self._state != "replayed":
            raise JournalClosed(f"start() comes after a complete replay(); the journal is {self._state}")
        try:
            reuse, previous = self._settle()
            if self.options.salvage:
                for path in self._debris + self._abandoned:
                    self.files.rename(path, f"{path}.damaged")
                self._debris, self._abandoned = [], []
            for path in self._debris:
                self.files.unlink(path)
                self._note(f"{path} was never a finished segment: removed")
            self._make_pledge()
        except OSError as error:
            raise from_os_error(error, f"the end of the journal in {self.folder} cannot be made safe") from error
        self._post = post
        self._writes_here = write_here
        log = Log(
            self._locks,
            self.files,
            self.options,
            identity=self._pledge.identity if self._pledge is not None else 0,
            previous=previous,
            number_next=self._number_max + 1,
            lsn=self._lsn,
            answer=lambda answers: writer.answer(answers),
            note=self._note,
            relocated=self._relocations.add,
        )
        log.in_standby = self._in_standby
        writer = Writer(log, post, self._clock, self._note)
        log.begin(reuse, self._abandoned)
        self._log, self._writer, self._state = log, writer, "started"
        if thread:
            writer.start()

    def _settle(self) -> tuple[Segment | None, tuple[int, int, bool]]:
        """Make the replayed records durable before anything builds on them.

        The last process may have been killed before it synced its last records, or after a failed sync: the cache may
        hold records that the disk does not. Records that are not known to be synced are written again, so that this
        sync is real.
        """
        if not self._chain:
            return None, (0, 0, True)
        for segment in self._chain:
            if not segment.is_sure and segment.end != SEGMENT_HEADER_BYTES:
                # What salvage passed over is told from a torn tail by what stands behind it: on a full disk no header
                # may say so instead.
                end = segment.end or SEGMENT_HEADER_BYTES
                write_again(self.files, segment.path, segment.synced, end, cut=not self.options.salvage)
        last = self._chain[-1]
        if last.end != SEGMENT_HEADER_BYTES:
            return None, (last.number, last.end or 0, True)
        del self._ends[last.number]
        if len(self._chain) == 1:
            return last, last.header[3:6]
        before = self._chain[-2]
        return last, (before.number, before.end or 0, True)

    def _make_pledge(self) -> None:
        """Record durably which standby folder there is, before the first segment that may refer to it.

        Both folders are synced: a number that is free in one must not come back in the other.
        """
        pledge = None
        if self.standby is not None:
            identity = self._pledge.identity if self._pledge is not None else 0
            mark = read_pledge(self.files, self.standby)
            if (mark is None or mark.identity != identity) and not has_segments(self.files, self.standby):
                identity = 0  # another folder than before
            pledge = Pledge(identity or self.files.salt() << 32 | 1, self.standby, self.files.salt())
        try:
            self._write_pledges(pledge)
        except OSError as error:
            # A full disk is no reason not to start: the folders know each other by the last start that had room.
            if not no_room(error) or self._pledge is None or pledge is None or pledge[:2] != self._pledge[:2]:
                raise
            for folder in self._locks:
                self.files.fsync_dir(folder)
        self._pledge = pledge

    def _write_pledges(self, pledge: Pledge | None) -> None:
        """Write it in both folders, so that they know each other wherever this ends."""
        if pledge is not None:
            before = self._pledge.turn if self._pledge is not None else 0
            write_pledge(self.files, pledge.folder, pledge._replace(turn_before=before))
        if pledge != self._pledge:
            write_pledge(self.files, self.folder, pledge)
        if pledge is not None:
            write_pledge(self.files, pledge.folder, pledge)

    # -- service

    def append(
        self,
        kind: int,
        parts: tuple[bytes, ...] | bytes,
        done: Done | None = None,
        *,
        lazy: bool = False,
    ) -> int:
        """Queue a record and return its lsn. `done(error, segment, offset)` comes through `post`, never from here,
        unless `start` was told to `write_here` and this is a lazy record that needed nobody else.

        Callbacks that come through `post` come in lsn order among the lazy records and among the others; a refusal for
        too much pending (JournalBusy) overtakes.
        """
        if self._gathered is not None:
            self._gathered.append((kind, parts, done))
            return self._lsn
        size = len(parts) if isinstance(parts, bytes) else sum(map(len, parts))
        return self._append(kind, parts, size, done, LAZY | PRIVILEGED if lazy else 0)

    @property
    def is_gathering(self) -> bool:
        """Whether what is appended now is gathered."""
        return self._gathered is not None

    @contextlib.contextmanager
    def gathering(self) -> Iterator[list[Gathered]]:
        """Collect the appended records in the meantime instead of writing them: the owner writes them as one record,
        which a crash leaves whole or not at all, and calls each `done` itself."""
        gathered: list[Gathered] = []
        self._gathered = gathered
        try:
            yield gathered
        finally:
            self._gathered = None

    def _append(self, kind: int, parts: tuple[bytes, ...] | bytes, size: int, done: Done | None, flags: int) -> int:
        writer = self._writer
        if writer is None or self._state != "started":
            raise JournalClosed(f"append() to a journal that is {self._state}")
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(f"a record of {size} bytes: at most {RECORD_BYTES_MAX}")
        lsn = self._lsn = self._lsn + 1
        pending = self._taken_bytes - writer.log.released_bytes
        if pending + size > self.options.pending_bytes_max and pending:
            self._refuse_busy(done, pending)
            return lsn
        self._taken_bytes += size
        entry = (lsn, kind, parts, size, done, flags)
        if not (self._writes_here and flags & LAZY):
            writer.put(entry)
        elif (place := writer.write_here(entry)) is not None and done is not None:
            done(None, *place)
        return lsn

    def _refuse_busy(self, done: Done | None, pending: int) -> None:
        if done is None or self._post is None:
            return
        callback = done
        error = self._busy_error(pending)
        self._post(lambda: callback(error, 0, 0))

    def _busy_error(self, pending: int) -> JournalError:
        return JournalBusy(f"{pending} bytes wait for the disk, at most {self.options.pending_bytes_max}; try later")

    def read(self, segment: int, offset: int, length: int) -> bytes:
        """Return bytes of a payload, at the place that replay, `done` or `moved` gave."""
        if self._relocations:
            segment, offset = self._relocations.now(segment, offset)
        try:
            fd = self._readers.get(segment)
            if self._log is not None and self._log.stalled and self._folder_of(segment) in self._log.stalled:
                raise OSError(errno.ETIMEDOUT, "")
            if fd is None:
                fd = self.files.open(self._path(segment))
                self._readers[segment] = fd
                if len(self._readers) > _OPEN_FILES_MAX:
                    self.files.close(self._readers.popitem(last=False)[1])
            else:
                self._readers.move_to_end(segment)
            data = self.files.pread(fd, length, offset)
        except OSError as error:
            raise from_os_error(error, f"reading {length} bytes at {segment}:{offset}", of_send=False) from error
        if len(data) != length:
            raise JournalFailed(f"reading {length} bytes at {segment}:{offset}: the segment ends after {len(data)}")
        return data

    def _folder_of(self, segment: int) -> str:
        return self.standby if self.standby is not None and segment in self._in_standby else self.folder

    def _path(self, segment: int) -> str:
        return f"{self._folder_of(segment)}/{segment_name(segment)}"

    def _is_stalled(self, segment: int) -> bool:
        """Return whether the segment is in a folder that does not answer."""
        return self._log is not None and self._folder_of(segment) in self._log.stalled

    def answers(self, segment: int, offset: int) -> bool:
        """Return whether the folder that holds the record at this place answers."""
        if self._relocations:
            segment, _ = self._relocations.now(segment, offset)
        return not self._is_stalled(segment)

    def stall(self, is_stalled: bool) -> None:
        """Start a stall of the journal's own folder, or end it: the writer's operations there wait."""
        if self._log is not None and is_stalled != bool(self._log.gate.folder):
            if is_stalled:
                self._log.gate.shut(self.folder)
            else:
                self._log.gate.open()

    def hold(self, segment: int) -> bool:
        """Keep a segment from being compacted until `let_go`, as its owner has yet to learn what a record in it says.
        Return False if it is being compacted already."""
        if segment == self._compacted:
            return False
        self._held[segment] += 1
        return True

    def let_go(self, segment: int) -> None:
        """End a `hold`."""
        self._held[segment] -= 1
        if not self._held[segment]:
            del self._held[segment]

    def release(self, segment: int, nbytes: int) -> None:
        """Count payload bytes of the segment that are no longer live: also of records that never were (settlements)."""
        if segment > self._deleted_max:
            self._dropped[segment] = self._dropped.get(segment, 0) + nbytes
        if self._compacting:
            self._owed_bytes += _PACE * nbytes
        self._spared_bytes -= nbytes
        if self._spared_bytes <= 0:
            self._spared_bytes = self._garbage_bytes
            if self.on_garbage is not None:
                self.on_garbage()

    def reclaim(self, segment: int, nbytes: int) -> None:
        """Count payload bytes of the segment as live again that were released, or will be by another owner."""
        if segment > self._deleted_max:
            self._dropped[segment] = self._dropped.get(segment, 0) - nbytes

    # -- reading it again

    @contextlib.asynccontextmanager
    async def without_compaction(self) -> AsyncIterator[None]:
        """Wait until a running compaction has ended, and start none before the block is left."""
        self._compaction_holds += 1
        try:
            while self._compacting:
                await asyncio.sleep(_HELD_S)
            yield
        finally:
            self._compaction_holds -= 1

    async def read_again(self, position: Position, take: Callable[[Record], None]) -> Position:
        """Sync what is written and give `take` the records from a position on, in order; return where that ended.

        What is appended meanwhile is left to the next call. Runs in steps of about a millisecond, so that others
        hardly notice. Call it within `without_compaction`. Raises JournalError.
        """
        ends = {**self._ends, **await self._sync_all()}
        number, offset, lsn = position
        for each in sorted(ends):
            if each < number or ends[each] <= SEGMENT_HEADER_BYTES or self._is_being_deleted(self._path(each)):
                continue
            start = offset if each == number else SEGMENT_HEADER_BYTES
            until = self._clock() + _STEP_S
            for records in self._chunks(each, self._path(each), ends[each], start, lsn):
                lsn = records[-1].lsn
                for record in records:
                    take(record)
                    if self._clock() >= until:
                        await asyncio.sleep(0)
                        until = self._clock() + _STEP_S
            number, offset = each, ends[each]
        return number, offset, lsn

    async def _sync_all(self) -> dict[int, int]:
        """Sync, and return where the segments that were written here end by then."""
        ends: dict[int, int] = {}

        def sync(log: Log, now: float) -> JournalError | None:
            error = log.flush()
            ends.update(log.sizes)
            if log.number:
                ends[log.number] = log.synced
            return error

        await self._command(sync)
        return ends

    @property
    def pending_bytes(self) -> int:
        return self._taken_bytes - (self._log.released_bytes if self._log is not None else 0)

    @property
    def is_full(self) -> bool:
        """Whether the disk has no room: sends are refused with JournalFull until it has."""
        return self._log is not None and self._log.is_full

    @property
    def failure(self) -> JournalError | None:
        """The reason why the writer is dead, if it is."""
        return self._writer.failure if self._writer is not None else None

    def trouble(self) -> JournalError | None:
        """Return why a send would be refused now, as far as can be told without one."""
        return self._known_trouble() or self._trouble_in(self.files)

    async def look_for_trouble(self) -> JournalError | None:
        """Do as `trouble`; the writer's thread looks at the disk, which may not answer."""
        trouble = self._known_trouble()
        if trouble is None:
            try:
                await self._command(lambda log, now: self._trouble_in(log.files))
            except JournalError as error:
                return error
        return trouble

    def _known_trouble(self) -> JournalError | None:
        """Return the trouble that is known without accessing the disk."""
        if self._log is None or self._state != "started":
            return JournalClosed(f"the journal is {self._state}")
        if self.failure is not None:
            return self.failure
        if self._log.folder in self._log.stalled:
            return self._trouble_in(self.files)
        pending = self.pending_bytes
        return self._busy_error(pending) if pending >= self.options.pending_bytes_max else None

    def _trouble_in(self, files: Files) -> JournalError | None:
        log = self._log
        assert log is not None
        folder = log.folder
        if folder in log.stalled:
            return log.trouble or from_os_error(OSError(errno.ETIMEDOUT, ""), f"the journal folder {folder}")
        try:
            if not files.is_same(self._locks[folder], f"{folder}/{LOCK_NAME}"):
                return from_os_error(OSError(errno.ESTALE, ""), f"the journal folder {folder}")
            if log.is_full:
                return log.full_error()
            if not log.number:
                return log.trouble
            if files.is_read_only(folder):
                return from_os_error(OSError(errno.EROFS, ""), f"the journal folder {folder}")
        except OSError as error:
            return from_os_error(error, f"the journal folder {folder}")
        return None

    @property
    def syncs(self) -> int:
        return self._log.syncs if self._log is not None else 0

    @property
    def last_lsn(self) -> int:
        return self._lsn

    def segments(self) -> list[SegmentInfo]:
        """Return the segments, oldest first."""
        sizes, written, current = dict(self._ends), {}, 0
        if self._log is not None:
            current = self._log.number
            sizes.update(self._log.sizes.copy())
            written = self._log.written
        segments = []
        for number, size in sorted(sizes.items()):
            payload = self._loaded.get(number, 0) + written.get(number, 0)
            live = max(0, payload - self._dropped.get(number, 0))
            segments.append(SegmentInfo(number, size, live, number == current, size * live // max(1, payload)))
        return segments

    # -- compaction

    def compaction_is_due(self) -> bool:
        """Return whether to compact the oldest segment: nothing lives in it, so that it costs nothing; or too much of
        the whole journal is dead, and it stands in the way; or there are many small segments; or the disk is full, it
        is half dead, and the reserve can hold what lives. Else a half-dead one is left: in a queue it soon is dead."""
        segments = self.segments()
        if self._compacting or not self._may_go(segments):
            return False
        oldest, options = segments[0], self.options
        if oldest.is_current:
            return True
        if self.is_full and oldest.live > options.reserve_bytes // 2:
            return False
        if self._is_dead(oldest.number) or (self.is_full and 2 * oldest.live_size <= oldest.size):
            return True
        size = sum(segment.size for segment in segments)
        live = sum(segment.live_size for segment in segments)
        if size > 2 * options.segment_bytes and (2 * live < size or 2 * size > 3 * live + 4 * options.segment_bytes):
            return True
        return len(segments) > 16 and oldest.size < options.segment_bytes // 8

    def _may_go(self, segments: list[SegmentInfo]) -> bool:
        """Return whether the oldest segment can be compacted: it is not the one that is written, unless the disk is
        full and that is mostly dead, so that it keeps the room that sends wait for."""
        if not segments or self._compaction_holds or self._is_stalled(segments[0].number):
            return False
        if segments[0].number in self._held:
            return False
        oldest, options = segments[0], self.options
        if not oldest.is_current:
            return len(segments) > 1
        # With less to gain it would be repeated again and again.
        dead = oldest.size - oldest.live_size
        gain = max(options.allocate_bytes, options.segment_bytes // 64)
        return self.is_full and dead >= max(gain, oldest.live_size) and oldest.live <= options.reserve_bytes // 2

    async def compact(self, owner: Owner) -> int | None:
        """Copy what lives in the oldest segment forward, then delete it; where nothing lives in it, delete it unread.

        Returns its number, or None when there is only the current one and no need to leave it, or while compaction is
        held. Raises the JournalError of a copy that could not be written; the segment then stays."""
        segments = self.segments()
        if self._state != "started" or not self._may_go(segments):
            return None
        if self._compacting:
            raise JournalError("a compaction is already running")
        number = segments[0].number
        path = self._path(number)
        self._compacting, self._compacted = True, number
        try:
            if segments[0].is_current:
                await self._command(lambda log, now: log.turn_page(now))
                segments = self.segments()
                if segments[0].number != number or segments[0].is_current:
                    return None  # nothing in it was valid: it is gone already, or it is new and still written
            if self._is_dead(number) or self._is_being_deleted(path):
                self._has_read(segments[0].size)
            else:
                chunks = self._chunks(number, path, segments[0].size)
                pace = Pace(lambda: self._owed_bytes, self._has_read)
                await Compaction(chunks, self._append_copy, owner, pace, self._clock).copy_live()
            await self._delete(path)
        finally:
            self._compacting, self._compacted = False, 0
        self._forget(number)
        return number

    def _is_dead(self, number: int) -> bool:
        """Return whether exactly all of its payload was released.

        Records that were written again elsewhere are on the account of the segment that their owner knows: a segment
        that holds such is read."""
        written = 0 if self._log is None else self._log.written.get(number, 0)
        payload = self._loaded.get(number, 0) + written
        return payload == self._dropped.get(number, 0) and not self._relocations.concern(number)

    def _is_being_deleted(self, path: str) -> bool:
        """Return whether the segment is needed no more, and may be gone although its removal failed."""
        return self._log is not None and self._log.deleting == path

    def _has_read(self, nbytes: int) -> None:
        self._owed_bytes = max(0, self._owed_bytes - nbytes)

    def _chunks(
        self, number: int, path: str, end: int, start: int = SEGMENT_HEADER_BYTES, lsn: int = 0
    ) -> Generator[list[Record], None, None]:
        self._check_answers(number, path)
        try:
            fd = self.files.open(path)
            try:
                header = decode_segment_header(self.files.pread(fd, SEGMENT_HEADER_BYTES, 0), path)
            finally:
                self.files.close(fd)
        except OSError as error:
            raise from_os_error(error, f"reading {path}", of_send=False) from error
        if header is None:
            raise JournalCorrupt(f"segment {number} has a damaged header", segment=number, offset=0)
        segment = Segment(header, path, end, end)
        segment.start = start
        for records in scan(self.files, segment, lsn, self.options.salvage, self.notes, chunk_bytes=CHUNK_BYTES):
            self._check_answers(number, path)
            if self._relocations:
                for record in records:
                    record.segment, record.offset = self._relocations.known_as(record.segment, record.offset)
            yield records

    def _check_answers(self, number: int, path: str) -> None:
        if self._is_stalled(number):
            raise from_os_error(OSError(errno.ETIMEDOUT, ""), f"reading {path}", of_send=False)

    def _append_copy(self, kind: int, parts: tuple[bytes, ...] | bytes, done: Done) -> None:
        size = len(parts) if isinstance(parts, bytes) else sum(map(len, parts))
        self._append(kind, parts, size, done, PRIVILEGED)

    async def _delete(self, path: str) -> None:
        await self._command(lambda log, now: log.delete(path, now))

    async def _command(self, run: Callable[[Log, float], JournalError | None]) -> None:
        """Let the writer run a command after everything that was appended before; raise the JournalError that it
        returns."""
        writer = self._writer
        if writer is None or self._state != "started":
            raise JournalClosed(f"the journal is {self._state}")
        answer: asyncio.Future[JournalError | None] = asyncio.get_running_loop().create_future()

        def then(error: JournalError | None) -> None:
            if not answer.done():
                answer.set_result(error)

        writer.queue.put(Command(run, then))
        error = await answer
        if error is not None:
            raise error

    def _forget(self, number: int) -> None:
        self._deleted_max = number
        fd = self._readers.pop(number, None)
        if fd is not None:
            with contextlib.suppress(OSError):
                self.files.close(fd)
        self._relocations.forget(number)
        self._in_standby.discard(number)
        for account in (self._ends, self._loaded, self._dropped):
            account.pop(number, None)
        if self._log is not None:
            self._log.sizes.pop(number, None)
            self._log.written.pop(number, None)

    # -- the end

    def turn(self) -> bool:
        """Do the writer's work now, on this thread; only after start(thread=False)."""
        assert self._writer is not None
        return self._writer.turn(wait=False)

    def close(self) -> None:
        """Write and sync what waits, post the answers, unlock. Raise the JournalError if that failed; it is closed
        then too."""
        if self._state == "closed":
            return
        error: JournalError | None = None
        writer, self._state = self._writer, "closed"
        if writer is not None:
            writer.await_answers()
            command = Command(lambda log, now: log.end(), is_last=True)
            writer.queue.put(command)
            if writer.is_threaded:
                writer.join()
            else:
                while writer.turn(wait=False):
                    pass
            error = command.error
        for fd in self._readers.values():
            with contextlib.suppress(OSError):
                self.files.close(fd)
        self._readers.clear()
        self._unlock()
        if error is not None:
            raise error

    def _unlock(self) -> None:
        while self._locks:
            with contextlib.suppress(OSError):
                self.files.close(self._locks.popitem()[1])

    def _note(self, text: str) -> None:
        self.notes.append(text)
        if len(self.notes) > _NOTES_MAX:
            del self.notes[: _NOTES_MAX // 2]
