"""Writes the end of the journal: group commit, the rules for a failing disk, and the reserve.

It is called from one thread at a time and knows no threads and no clock: callers pass `now`. `commit` takes all waiting
records, writes them with one call, syncs once, and passes the outcomes to `answer`.

A failed write or sync (`_abandon`): the file is never synced again. Its valid end is the last synced offset: the file
is cut there if the file system allows it, and the next segment's header states the end in any case, so that refused
records never come back. Lazy records that wait, or were answered since the last sync, are written again in the new
segment; `relocated` reports the new place of those whose old place is known to their owner. Refusals go out only after
that header is synced; when no new segment can be made they carry `unknown`.

A stall (`go_on`): a file operation did not return. The segment is left as it is, with the last synced offset as its
end; waiting records and those answered since then go to a new segment in the first folder that answers, the standby
folder, with their old log numbers. If no folder answers, sends are refused. Once the journal's own folder answers
again, the log returns to it.

A full disk: sends are refused and not written at all. Lazy records and compaction's copies are still written: into the
allocated part of the current segment, then into the reserve file, which becomes a segment by renaming, so that nothing
else on the disk can take its space, and without a reserve into whatever space there is. Sends are accepted again once a
whole new reserve is allocated. A segment that was the reserve gives its unused space back for that: a small disk has no
room for two.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence

from pairbus.journal.errors import JournalError, JournalFailed, JournalFull, from_os_error, no_room
from pairbus.journal.files import Files, Stamp, folder_of, stamp_in_place, write_again, write_all
from pairbus.journal.options import Durability, Options
from pairbus.journal.record import (
    MARK,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    encode_segment_header,
    frame,
)
from pairbus.journal.reserve import RESERVE_NAME, Reserve
from pairbus.journal.segment import Segment, number_in, segment_name
from pairbus.journal.stall import Gate, WatchedFiles

Done = Callable[[JournalError | None, int, int], None]
# lsn, kind, payload or its parts, payload bytes, done, flags: a plain tuple since every append makes one
Entry = tuple[int, int, "tuple[bytes, ...] | bytes", int, "Done | None", int]
Answer = tuple[Done, "JournalError | None", int, int]

LAZY = 1
PRIVILEGED = 2  # written even when the disk is full: lazy records, and compaction's copies
ANSWERED = 4  # a lazy record that was already answered
LOCK_NAME = "lock"
PROBE_S = 0.25
_ABANDONS_MAX = 3  # new segments that one commit tries before it refuses what is left


class Log:
    """`locks` are the folders to write in, the journal's own and then the standby folder, each with its lock;
    `identity` is that of a journal with a standby folder, or 0."""

    def __init__(
        self,
        locks: dict[str, int],
        files: Files,
        options: Options,
        *,
        identity: int,
        previous: tuple[int, int, bool],
        number_next: int,
        lsn: int,
        answer: Callable[[list[Answer]], None],
        note: Callable[[str], None],
        relocated: Callable[[int, int, int, int, int], None],
    ) -> None:
        self.folder = self.home = next(iter(locks))  # the one that is written in, and the journal's own
        self.stalled: set[str] = set()  # folders that do not answer
        self.in_standby: set[int] = set()  # segments that are not at home
        self.gate = Gate()
        self.unwatched = files
        self.files = WatchedFiles(files, self.gate, self.stalled)
        self.options = options
        self.number = 0  # of the current segment; 0: there is none, the disk does not let us make one
        self.offset = 0
        self.synced = 0
        self.sizes: dict[int, int] = {}  # valid bytes per segment written here
        self.written: dict[int, int] = {}  # payload bytes per segment, as the answers told
        self.is_full = False
        self.syncs = 0
        self.deleting = ""  # the path of the segment that was last removed, or is to be: it is needed no more
        self.released_bytes = 0  # of memory: payload bytes that no longer have to be kept
        self._lsn = lsn
        self._answer = answer
        self._note = note
        self._relocated = relocated
        self._locks = locks
        self._identity = identity
        self._previous = previous
        self._number_next = number_next
        self._fd, self._path = -1, ""
        self._stamp: Stamp = None  # of the folder when the segment was last found in it
        self._salt = 0
        self._allocated = 0
        self._allocates = options.allocate_bytes > 0
        self._reserve = Reserve(self.home, options.reserve_bytes, note)
        self._unsynced: list[tuple[Entry, int]] = []  # lazy records answered and not yet synced, and where they are
        self._redo: list[Entry] = []  # the same after their segment was abandoned, until they are written again
        self._todo: list[Entry] = []  # what the present round of a commit has to write or to refuse
        self._making = ""  # the path of a segment that is being made
        self._lazy_since: float | None = None
        self._mode: Durability = options.durability  # of the present commit: strict while a sync is late
        self._idle_since: float | None = None
        self._marked_at = 0
        self._probed_at = -1e9
        self._abandons = 0
        self._has_claimed = False
        self._unsure: dict[str, int] = {}  # abandoned segments that were not synced (durability none), and their ends
        self._leftovers: list[str] = []  # files of abandoned segments without records
        # Folders that lost such a file, or a segment, since they were last synced: perhaps by the process before this.
        self._unsettled = set(locks)
        self.trouble: JournalError | None = None  # why there is no segment

    # -- what the writer calls

    def begin(self, reuse: Segment | None, abandoned: list[str]) -> None:
        """Make the reserve and the first segment; `reuse` is a last segment without records, and `abandoned` are files
        that it, or another one, skips. A full disk is no reason not to start."""
        self._leftovers = abandoned if reuse is None else [*abandoned, reuse.path]
        try:
            self._claim_reserve()
            # One that calls the segment before it not synced is replaced: it has been synced since then. So is one in
            # the standby folder, and one of before there was such a folder.
            if reuse is not None and reuse.header[5:] == (True, self._identity) and folder_of(reuse.path) == self.home:
                self._reuse(reuse)
            else:
                self._new_segment()
        except OSError as error:
            self.trouble = from_os_error(error, "no segment can be made")
            if not no_room(error):
                raise self.trouble from error

    def commit(self, batch: list[Entry], now: float) -> None:
        """Write, sync if the batch or the lazy deadline asks for it, answer. Never raises OSError."""
        self._idle_since = now
        self._abandons = 0
        self._todo = batch
        if self.folder != self.home:
            self._go_home()
        if self.is_full or not self.number:
            self.probe(now)
        self._drain(batch, now)
        if self._sync_is_due(now) and not self._sync():
            self._drain([], now)

    def write_lazy(self, entry: Entry, now: float) -> int | None:
        """Write one lazy record into allocated space: no sync, no new segment, no rule for a failing disk. Return where
        its payload lies. None: it takes more than that, and nothing has changed."""
        lsn, kind, parts, size, _, _ = entry
        end = self.offset + RECORD_HEADER_BYTES + size
        is_well = self.options.durability == "default" and self.number and not (self.is_full or self._redo)
        has_room = end <= self.options.segment_bytes and (end <= self._allocated or not self._allocates)
        if not (is_well and has_room) or self._sync_is_due(now, 1.0):
            return None
        payload = parts if isinstance(parts, bytes) else b"".join(parts)
        data = frame(self._salt, self.synced, lsn, kind, payload) + payload
        try:
            if self.unwatched.pwrite(self._fd, data, self.offset) != len(data):
                return None
        except OSError:
            return None
        self.offset = self.sizes[self.number] = end
        self._lsn = lsn
        self.written[self.number] = self.written.get(self.number, 0) + size
        self._unsynced.append((entry, end - size))
        self._idle_since = now
        if self._lazy_since is None:
            self._lazy_since = now
        return end - size

    @property
    def has_unsynced(self) -> bool:
        return self._lazy_since is not None

    def timeout(self, now: float) -> float | None:
        """Return the seconds until `tick` has something to do."""
        lazy_s, times = self.options.lazy_sync_s, []
        if self._lazy_since is not None:
            times.append(self._lazy_since + 0.8 * lazy_s)
        if self._idle_since is not None:
            times.append(self._idle_since + lazy_s)
        if self.is_full or not self.number or self._redo:
            times.append(self._probed_at + 2 * PROBE_S)
        if self.stalled:
            times.append(now + 2 * PROBE_S)
        return max(0.0, min(times) - now) if times else None

    def tick(self, now: float) -> None:
        """Do what is due by time alone: sync lazy records, write the mark after a pause, look for space."""
        self._abandons = 0
        if self.folder != self.home:
            self._go_home()
        if self.is_full or not self.number or self._redo:
            self.probe(now)
        # The sync does not wait for what is to be written again: that may have no room for long.
        is_synced = not self._sync_is_due(now) or self._sync()
        if self._redo or not is_synced:
            self._drain([], now)
        if self._idle_since is not None and now >= self._idle_since + self.options.lazy_sync_s:
            self._idle_since = None
            self._mark()

    def probe(self, now: float) -> None:
        """Look, not too often, whether the disk serves us again."""
        if now < self._probed_at + PROBE_S:
            return
        self._probed_at = now
        if not self.number:
            try:
                self._new_segment()
            except OSError as error:
                self.trouble = from_os_error(error, "no segment can be made")
                return
        if self.is_full and self._refill() and self._allocate(self.options.allocate_bytes):
            self.is_full = False
            self._note("the disk has room again: sends are accepted")

    def flush(self) -> JournalError | None:
        """Sync all that is written, in every mode."""
        self._abandons = 0
        if self._redo or (self.number and self.offset > self.synced and not self._sync()):
            self._drain([], self._probed_at)
            if self.number and self.offset > self.synced:
                self._sync()
        if self._redo:
            return self.trouble or JournalFailed("settlements that were answered could not be written again")
        try:
            self._make_sure()
        except OSError as error:
            return from_os_error(error, "records that were answered could not be written again")
        return None

    def delete(self, path: str, now: float) -> JournalError | None:
        """Remove the oldest segment's file permanently, after what was copied out of it is on the disk."""
        self._abandons = 0
        if self.number and self.offset > self.synced and not self._sync():
            self._drain([], now)
            return self.trouble or JournalFailed(f"{path} is kept: the sync before its deletion failed")
        was_tried, self.deleting = self.deleting == path, path
        try:
            self._make_sure(but=path)
            self._settle_removals(path)
            try:
                self.files.unlink(path)
            except FileNotFoundError:
                if not was_tried or not self._is_in_place(folder_of(path)):
                    raise
            self.files.fsync_dir(folder_of(path))
        except OSError as problem:
            return from_os_error(problem, f"deleting {path}", of_send=False)
        self._probed_at = -1e9
        if self.is_full or not self.number:
            self.probe(now)
        return None

    def turn_page(self, now: float) -> JournalError | None:
        """Go on in a new segment. The current one stays where it has no records yet, which is not an error."""
        self._abandons = 0
        number = self.number
        if number and self.offset == SEGMENT_HEADER_BYTES:
            return None  # it is new
        if number:
            self._drain(self._turn_page([]), now)
        return None if self.number not in (0, number) else self.trouble or self.full_error()

    def end(self) -> JournalError | None:
        """Stop cleanly: everything synced, the file cut to its size."""
        error = self.flush()
        if self.number:
            self._mark()
            if self.number:
                self._close_segment(self.offset, sync=True)
        return error

    # -- writing

    def _drain(self, batch: list[Entry], now: float) -> None:
        self._todo = self._redo + batch if self._redo else batch
        # A power cut may already undo as much as allowed: records that come now are answered after the sync.
        self._mode = "strict" if self._redo or self._sync_is_due(now, 1.0) else self.options.durability
        self._redo = []
        while self._todo:
            self._todo = self._round(self._todo, now)

    def _round(self, todo: list[Entry], now: float) -> list[Entry]:
        """Write what fits in one go and return what is left to do."""
        if not self.number or self._abandons >= _ABANDONS_MAX:
            return self._refuse(todo, self.trouble or JournalFailed("the disk fails"))
        options = self.options
        if self.is_full:
            todo = self._todo = self._without_sends(todo)
            limit = self._allocated
        else:
            limit = options.segment_bytes
        room, taken, size = limit - self.offset, 0, 0
        for entry in todo:
            more = size + entry[3] + RECORD_HEADER_BYTES
            if more > room and not (self.offset == SEGMENT_HEADER_BYTES and not taken and not self.is_full):
                break
            size = more
            taken += 1
        if not taken:
            return self._turn_page(todo) if todo else []
        if self.offset + size > self._allocated and not self.is_full and not self._allocate(size):
            return todo
        if taken == len(todo):
            return self._write(todo, now)
        return self._write(todo[:taken], now) + todo[taken:]

    def _write(self, group: list[Entry], now: float) -> list[Entry]:  # noqa: C901, PLR0912 - one loop for all modes: hot
        """Write and sync at most once each. Return the lazy records to write again when the disk failed."""
        salt, synced, number, mode = self._salt, self.synced, self.number, self._mode
        offset, lazy_bytes, other_bytes, told_bytes = self.offset, 0, 0, 0
        pieces: list[bytes] = []
        early: list[Answer] = []
        late: list[Answer] = []
        lazy: list[tuple[Entry, int]] = []
        waiting: list[Entry] = []
        for entry in group:
            lsn, kind, parts, size, done, flags = entry
            payload = parts if isinstance(parts, bytes) else b"".join(parts)
            pieces.append(frame(salt, synced, lsn, kind, payload))
            pieces.append(payload)
            offset += RECORD_HEADER_BYTES
            if flags & LAZY and mode == "default":
                lazy.append((entry, offset))
                if not flags & ANSWERED:  # those stay on the account of the segment that their callers know
                    lazy_bytes += size
                if done is not None:
                    early.append((done, None, number, offset))
            else:
                other_bytes += size
                told_bytes += size if flags & ANSWERED else 0
                waiting.append(entry)
                if done is not None:
                    late.append((done, None, number, offset))
            offset += size
        fd, data, written = self._fd, b"".join(pieces), list[bool]()
        try:
            if lazy:  # they are answered before the sync
                self.files.run(fd, write_all, self.unwatched, fd, data, self.offset)
            else:
                self._stamp = self.files.run(fd, self._write_in_place, fd, data, self.offset, mode != "none", written)
        except OSError as error:
            return self._abandon(error, "sync" if written else "write", group)
        self.offset = self.sizes[number] = offset
        self._lsn = group[-1][0]
        if lazy:
            self.written[number] = self.written.get(number, 0) + lazy_bytes
            self._unsynced += lazy
            if self._lazy_since is None:
                self._lazy_since = now
        if early:
            self._answer(early)
        if not waiting:
            return []
        if lazy:
            try:
                self._fdatasync()
            except OSError as error:
                return self._abandon(error, "sync", waiting)
        elif mode != "none":
            self._note_sync()
        self._account(other_bytes, told_bytes)
        if late:
            self._answer(late)
        return []

    def _account(self, size: int, told: int) -> None:
        self.released_bytes += size
        self.written[self.number] = self.written.get(self.number, 0) + size - told

    def _fdatasync(self) -> None:
        self._stamp = self.files.run(self._fd, self._check_in_place, self._fd, True)
        self._note_sync()

    def _note_sync(self) -> None:
        self.syncs += 1
        self.synced = self.offset
        self._lazy_since = None
        if self._unsynced:
            self.released_bytes += sum([entry[3] for entry, _ in self._unsynced])
            self._unsynced = []

    def _write_in_place(self, fd: int, data: bytes, offset: int, sync: bool, written: list[bool]) -> Stamp:
        """Write, sync if asked to, and check, as one operation; `written` tells in which of them an OSError came."""
        write_all(self.unwatched, fd, data, offset)
        written.append(True)
        return self._check_in_place(fd, sync)

    def _check_in_place(self, fd: int, sync: bool) -> Stamp:
        """Sync the file, if asked to, and return the stamp of its folder. Raise OSError when it has lost its name."""
        folder, path, known = self.folder, self._path, self._stamp
        if sync:
            self.unwatched.fdatasync(fd)
        return stamp_in_place(self.unwatched, fd, folder, path, known)

    def _sync_is_due(self, now: float, share: float = 0.8) -> bool:
        """Return whether this share of the time has passed after which no lazy record may be undone by a power cut."""
        return self._lazy_since is not None and now >= self._lazy_since + share * self.options.lazy_sync_s

    def _sync(self) -> bool:
        """Sync. Return False when the disk failed; the lazy records are in `_redo` then."""
        try:
            self._fdatasync()
        except OSError as error:
            self._give_up(error, "sync")
            return False
        return True

    def _mark(self) -> None:
        """After a pause, state what is synced, so that damage to the last records shows as such and not as a tear."""
        if not self.number or self.offset in (self._marked_at, SEGMENT_HEADER_BYTES) or self.synced != self.offset:
            return
        end = self.offset + RECORD_HEADER_BYTES
        if self._allocates and end > self._allocated:
            return
        try:
            mark = frame(self._salt, self.synced, self._lsn, 0, b"", MARK)
            write_all(self.files, self._fd, mark, self.offset)
        except OSError as error:
            self._give_up(error, "write")
            return
        self.offset = self._marked_at = self.sizes[self.number] = end

    def _make_sure(self, but: str = "") -> None:
        """Bring to the disk what is in abandoned segments that were not synced (durability none), or raise OSError."""
        for path in [path for path in self._unsure if path != but]:
            write_again(self.files, path, SEGMENT_HEADER_BYTES, self._unsure[path])
            del self._unsure[path]
        self._unsure.pop(but, None)

    # -- refusing

    def _refuse(self, entries: Sequence[Entry], error: JournalError, *, unknown: bool = False) -> list[Entry]:
        answers: list[Answer] = []
        if unknown and not error.unknown:
            error = type(error)(str(error), errno=error.errno, unknown=True)
        for entry in entries:
            if entry[5] & ANSWERED:
                self._redo.append(entry)
                continue
            self.released_bytes += entry[3]
            if entry[4] is not None:
                answers.append((entry[4], error, 0, 0))
        if answers:
            self._answer(answers)
        return []

    def _without_sends(self, todo: list[Entry]) -> list[Entry]:
        sends = [entry for entry in todo if not entry[5] & PRIVILEGED]
        if not sends:
            return todo
        self._refuse(sends, self.full_error())
        return [entry for entry in todo if entry[5] & PRIVILEGED]

    def full_error(self) -> JournalError:
        return JournalFull("no room on the disk (ENOSPC); sends are refused until there is room", errno=errno.ENOSPC)

    def _enter_full(self, why: str) -> None:
        if not self.is_full:
            self.is_full = True
            self._note(f"the disk is full ({why}): sends are refused, settlements go on in the reserve")

    # -- segments

    def _allocate(self, size: int) -> bool:
        """Make room for the next `size` bytes. Return False when there is none; the journal is full then."""
        missing = self.offset + size - self._allocated
        if missing <= 0 or not self._allocates:
            return True
        ahead = max(self.options.allocate_bytes, 4 * size)  # a busy journal in bigger steps
        step = max(missing, min(ahead, self.options.segment_bytes - self._allocated))
        for length in (step, missing):
            try:
                self.files.fallocate(self._fd, self._allocated, length)
            except OSError as error:
                if not no_room(error):
                    self._allocates = False
                    return True
            else:
                self._allocated += length
                return True
        self._enter_full(f"segment {self.number} cannot grow")
        return False

    def _turn_page(self, todo: list[Entry]) -> list[Entry]:
        """Go on in a new segment: the first record does not fit any more, or there is none and somebody wants it."""
        was_full = self.is_full
        if was_full and todo and not self._reserve_holds(todo[0]):
            return todo if self._grows_for(todo[0]) else self._refuse(todo, self.full_error())
        if self.offset > self.synced and not self._sync():
            redo, self._redo = self._redo, []
            return redo + todo
        left, end = self._fd, self.offset
        previous, self._previous = self._previous, (self.number, end, True)
        try:
            self._new_segment()
        except OSError as error:
            trouble = from_os_error(error, "a new segment cannot be made")
            self._previous = previous
            if self._has_claimed:
                self.trouble = trouble
                self._close_segment(end, sync=False)
                return self._refuse(todo, trouble)
            if no_room(error) and not was_full:
                return todo  # full now: what is privileged may fit in the rest of what is allocated
            return self._refuse(todo, trouble)
        with contextlib.suppress(OSError):
            self.files.truncate(left, end)
        self._close_fd(left)
        return todo

    def _reserve_holds(self, entry: Entry) -> bool:
        most = self.options.reserve_bytes - SEGMENT_HEADER_BYTES - RECORD_HEADER_BYTES
        return self._reserve.is_there and entry[3] <= most

    def _grows_for(self, entry: Entry) -> bool:
        """Make room for a record on a full disk without the reserve: there may be some, too little for a reserve."""
        size = entry[3] + RECORD_HEADER_BYTES
        return self._allocates and self.offset + size <= self.options.segment_bytes and self._allocate(size)

    def _new_segment(self) -> None:
        """Create, write the header, sync file and folder: only then may a record in it be confirmed.

        Where this fails after a header was written (`_has_claimed`), a power cut may bring that file back, and with it
        what it says about where the segment before ends: nothing may be added there any more.
        """
        self._has_claimed = False
        if not self.number:
            self._choose_folder()
        if not self._is_in_place(self.folder):
            # Another folder in its place has none of what was confirmed before: what goes there would seem to be all.
            raise OSError(errno.ESTALE, "the folder is not the one that was opened")
        if not self.is_full:
            try:
                self._create(use_reserve=False)
                return
            except OSError as error:
                if not no_room(error):
                    raise
                self._enter_full("a new segment cannot be made")
        self._create(use_reserve=self._reserve.is_there)

    def _choose_folder(self) -> None:
        """Take the first folder that answers; raise OSError when none does."""
        folder = next((each for each in self._locks if each not in self.stalled), None)
        if folder is None:
            raise OSError(errno.ETIMEDOUT, "no folder answers")
        if folder != self.home:
            self._reserve.is_there = False  # it is at home
        if folder == self.folder:
            return
        self.is_full, self._allocates = False, self.options.allocate_bytes > 0
        if folder == self.home:
            self._claim_reserve()
        self.folder = folder
        self._note(f"the journal goes on in {folder}")

    def _is_in_place(self, folder: str) -> bool:
        """Return whether the folder is the one that was opened: it has our lock in it."""
        return self.files.is_same(self._locks[folder], f"{folder}/{LOCK_NAME}")

    def _create(self, *, use_reserve: bool) -> None:
        files, options = self.files, self.options
        number = self._number_next
        self._number_next += 1
        path = self._making = f"{self.folder}/{segment_name(number)}"
        salt = files.salt()
        header = SegmentHeader(number, salt, self._lsn + 1, *self._previous, self._identity)
        fd, allocated = -1, 0
        try:
            if use_reserve:
                self._reserve.is_there = False
                files.rename(self._reserve.path, path)
                fd = files.open(path)
                allocated = options.reserve_bytes
            else:
                fd = files.create(path)
                if self._allocates:
                    try:
                        files.fallocate(fd, 0, max(options.allocate_bytes, SEGMENT_HEADER_BYTES))
                        allocated = max(options.allocate_bytes, SEGMENT_HEADER_BYTES)
                    except OSError as error:
                        if no_room(error):
                            raise
                        self._allocates = False
            data = encode_segment_header(header)
            self._has_claimed = True
            if files.pwrite(fd, data, 0) != len(data):
                raise OSError(errno.ENOSPC, "a short write of the segment header")
            files.fdatasync(fd)
            files.fsync_dir(self.folder)
        except OSError:
            if fd >= 0:
                self._close_fd(fd)
            self._remove_leftovers([path])
            self._making = ""
            raise
        self._take(fd, path, number, salt, allocated)

    def _remove_leftovers(self, paths: list[str]) -> None:
        """Remove files that are no links of the chain; what cannot be removed now is in `_leftovers` afterwards."""
        for path in paths:
            try:
                self._unlink(path)
            except OSError:
                self._leftovers.append(path)

    def _settle_removals(self, before: str) -> None:
        """See to it that no file of before this segment comes back, or raise OSError: with the segment gone, such a
        file would look as if the segment were missing."""
        for path in [path for path in self._leftovers if number_in(path) < number_in(before)]:
            self._unlink(path)
            self._leftovers.remove(path)
        for folder in list(self._unsettled):
            self.files.fsync_dir(folder)
            self._unsettled.discard(folder)

    def _unlink(self, path: str) -> None:
        """Remove a file that may be gone already; raise OSError while the whole folder is: nobody can tell then."""
        try:
            self.files.unlink(path)
        except FileNotFoundError:
            if not self._is_in_place(folder_of(path)):
                raise
        self._unsettled.add(folder_of(path))

    def _reuse(self, segment: Segment) -> None:
        """Go on in a segment that has a header and nothing else."""
        fd = self.files.open(segment.path)
        try:
            self.files.truncate(fd, SEGMENT_HEADER_BYTES)
            write_all(self.files, fd, encode_segment_header(segment.header), 0)
            self.files.fdatasync(fd)
            self.files.fsync_dir(self.folder)
        except OSError:
            self._close_fd(fd)
            raise
        self._take(fd, segment.path, segment.number, segment.header.salt, SEGMENT_HEADER_BYTES)

    def _take(self, fd: int, path: str, number: int, salt: int, allocated: int) -> None:
        """Write here from now on: file and folder are synced."""
        self._fd, self._path, self._salt, self._allocated, self._stamp = fd, path, salt, allocated, None
        if self.folder != self.home:
            self.in_standby.add(number)
        self.number, self._making = number, ""
        self.offset = self.synced = self.sizes[number] = SEGMENT_HEADER_BYTES
        self._marked_at = 0
        self.trouble = None
        self._unsettled.discard(self.folder)
        # Not before: their headers said where the segment before them ends.
        leftovers, self._leftovers = self._leftovers, []
        self._remove_leftovers([each for each in leftovers if each != path])

    def _claim_reserve(self) -> None:
        """Take over the reserve as it was left, or make one."""
        self._reserve.is_there = RESERVE_NAME in self.files.listdir(self.home)
        if not self._fill_reserve():
            self._enter_full("no room for the reserve")

    def _refill(self) -> bool:
        """Allocate the reserve, which the journal's own folder has. Return False when there is no room for it."""
        return self.folder != self.home or self._fill_reserve()

    def _fill_reserve(self) -> bool:
        # All space that the segment does not use, except for the next step of a send.
        unused = self._allocated - self.offset - self.options.allocate_bytes if self.number else 0
        return self._reserve.fill(self.files, unused, self._resize)

    def _resize(self, by: int) -> None:
        """Give back a part of what is allocated of the current segment, or allocate it again."""
        if by < 0:
            self._allocated += by  # before it is cut: who is left behind there must not rely on it
            self.files.truncate(self._fd, self._allocated)
        else:
            self.files.fallocate(self._fd, self._allocated, by)
            self._allocated += by

    def go_on(self, now: float) -> None:
        """Go on after a file operation that did not return, in a new segment and in a folder that answers.

        What its caller had in hand is in `_todo`; some of it may be on the disk, beyond the end of the segment."""
        self._abandons, self._idle_since = 0, now
        if self._making:
            self._leftovers.append(self._making)
            self._making = ""
        number = self.number
        if number:
            end = self._valid_end()
            self._redo += [self._answered(entry, number, offset) for entry, offset in self._unsynced]
            self._unsynced, self._lazy_since = [], None
            self._note(f"segment {number} ends at offset {end}: its folder {self.folder} does not answer")
            self._leave_segment(end, is_sure=False)
        again = {entry[0] for entry in self._redo}
        self._todo = [entry for entry in self._todo if entry[0] not in again]
        try:
            self._new_segment()
        except OSError as problem:
            self.trouble = from_os_error(problem, "no segment can be made")
            todo, self._todo = self._todo, []
            self._refuse(todo, self.trouble, unknown=True)
            return
        # In the order of their log numbers, since replay passes over what it takes for a repeat.
        self._redo = sorted(self._redo + self._todo, key=lambda entry: entry[0])
        self._drain([], now)

    def _go_home(self) -> None:
        """Return to the journal's own folder, if it answers again."""
        if not self.number or self.home in self.stalled:
            return
        if self.offset > self.synced and not self._sync():
            return
        self._close_segment(self.offset, sync=False)
        try:
            self._new_segment()
        except OSError as error:
            self.trouble = from_os_error(error, "no segment can be made")

    def _valid_end(self) -> int:
        """Return where the current segment ends permanently when it can't be relied on any more."""
        return self.offset if self.options.durability == "none" else self.synced

    def _abandon(self, error: OSError, doing: str, group: list[Entry]) -> list[Entry]:
        """Apply the rules after a failed write or sync and return what must be written again in the new segment."""
        self._abandons += 1
        number = self.number
        end = self._valid_end()
        trouble = from_os_error(error, f"{doing} failed in segment {number} at offset {self.offset}")
        self._note(f"{trouble}; the segment ends at offset {end}")
        if no_room(error):
            self._enter_full(f"{doing} failed")
        answered = self._redo + [self._answered(entry, number, offset) for entry, offset in self._unsynced]
        self._redo, self._unsynced, self._lazy_since = answered, [], None
        self._mode = "strict" if answered else self._mode
        self._close_segment(end, sync=False)
        lazy = [entry for entry in group if entry[5] & LAZY]
        sends = [entry for entry in group if not entry[5] & LAZY]
        try:
            self._new_segment()
        except OSError as problem:
            self.trouble = from_os_error(problem, "no segment can be made")
            self._refuse(group, trouble, unknown=True)
            return []
        self._redo = []
        self._refuse(sends, trouble)
        return answered + lazy

    def _give_up(self, error: OSError, doing: str) -> None:
        """Abandon the segment outside a commit; the lazy records are in `_redo` then, with a new segment or without."""
        again = self._abandon(error, doing, [])
        self._redo += again  # in two lines: it changes _redo itself

    def _answered(self, entry: Entry, number: int, offset: int) -> Entry:
        """Return the entry for writing again: its caller knows a place, which `relocated` keeps valid."""
        lsn, kind, parts, size, done, flags = entry
        if flags & ANSWERED or done is None:
            return (lsn, kind, parts, size, done, flags | ANSWERED)

        def relocate(error: JournalError | None, new_number: int, new_offset: int) -> None:
            self._relocated(number, offset, size, new_number, new_offset)

        return (lsn, kind, parts, size, relocate, flags | ANSWERED)

    def _close_segment(self, end: int, *, sync: bool) -> None:
        """Cut the current segment to its end and leave it permanently."""
        fd = self._fd
        self._leave_segment(end, is_sure=sync)
        with contextlib.suppress(OSError):
            self.files.truncate(fd, end)
            if sync:
                self.files.fdatasync(fd)
        self._close_fd(fd)

    def _leave_segment(self, end: int, *, is_sure: bool) -> None:
        """Leave the current segment with this end. One without records is no link of the chain and goes away, unless
        this is a clean stop (`is_sure`)."""
        number = self.number
        self.number, self._fd = 0, -1
        self.sizes[number] = end
        if end > SEGMENT_HEADER_BYTES:
            self._previous = (number, end, end <= self.synced)
            if end > self.synced and not is_sure:
                self._unsure[self._path] = end
        elif not is_sure:
            del self.sizes[number]
            self._leftovers.append(self._path)

    def _close_fd(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            self.files.close(fd)
