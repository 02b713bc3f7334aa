"""Runs the writer's thread: it takes all waiting records, lets the Log commit them, and wakes the loop once per commit.

A lazy record that comes while the thread has nothing to do is written by the caller itself (`write_here`): it costs one
write into the page cache instead of two thread switches, which are most of the cost of a settlement.

A file operation that does not return (stall.py) blocks its thread: a third thread, which watches, abandons it and
starts another, which continues with the same Log and with the records that the first one had taken. When the operation
does return, its thread waits until the folder answers, reports that, and ends.

It decides nothing about the disk. Its own rule is that it never dies silently: if the Log raises an unexpected error,
every waiting and every later append is answered with JournalFailed, and the error is raised once on the loop's thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from pairbus.journal.errors import JournalError, JournalFailed
from pairbus.journal.log import Answer, Entry, Log
from pairbus.journal.stall import LeftBehind, WatchedFiles, see_whether_it_answers

Post = Callable[[Callable[[], None]], object]
BATCH_BYTES = 8 * 1024 * 1024
_LOOKS = 4  # how often a lasting operation is checked before it counts as a stall
_CLOSING_S = 1.0
# Where settlements follow each other the thread syncs once in `lazy_sync_s`; for twice as long a disk that has answered
# is trusted to take a write at once.
_TRUSTED_SYNCS = 2.0
# How long the loop waits, once, for a disk that was not used for a while. A hanging disk costs no more than that.
_ASKED_S = 0.002
# How long callbacks are called in one turn of the loop.
_DELIVERED_S = 0.003


@dataclass(slots=True, eq=False)
class Command:
    """Something for the writer to do between two batches; `run` gets the log and the time."""

    run: Callable[[Log, float], JournalError | None]
    then: Callable[[JournalError | None], None] | None = None
    is_last: bool = False
    error: JournalError | None = None
    finished: bool = False


class Writer:
    def __init__(self, log: Log, post: Post, clock: Callable[[], float], note: Callable[[str], None]) -> None:
        self.log = log
        self.failure: JournalError | None = None
        self.queue: SimpleQueue[Entry | Command] = SimpleQueue()
        self._post = post
        self._clock = clock
        self._note = note
        self._thread: threading.Thread | None = None
        self._undone: list[Entry] = []  # answered with an error if the thread crashes
        self._log_in_use = threading.Lock()
        # Entries put by the loop's thread, and those of them that are committed: equal when the writer has nothing.
        self._taken = 0
        self._committed = 0
        self._is_waited_for = False  # the loop's thread waits for this event:
        self._caught_up = threading.Event()  # the thread has committed something
        self._answered_at = clock()  # when the disk last did what the thread asked for
        self._told: list[list[Answer]] = []  # those of them that are answered already
        self._undelivered: list[Answer] = []  # of the loop's thread
        self._command: Command | None = None  # what is in hand
        self._resumes = False  # the next turn goes on with what another thread had in hand
        self._hung: list[threading.Thread] = []
        self._watch: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        self.log.gate.is_threaded = True
        self._begin_thread()
        self._watch = threading.Thread(target=self._look, name="pairbus-journal-watch", daemon=True)
        self._watch.start()

    def _begin_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, args=(self.log.files,), name="pairbus-journal", daemon=True)
        self._thread.start()

    @property
    def is_threaded(self) -> bool:
        return self._thread is not None

    def join(self) -> None:
        """Wait until the last command is done. A thread that hangs is not waited for, or not for long."""
        self._ended.wait()
        for thread in (self._thread, self._watch):
            if thread is not None:
                thread.join()

    def await_answers(self) -> None:
        """Give a folder that stalled a moment to answer, now that all is to be closed."""
        self.log.gate.open()
        for thread in list(self._hung):
            thread.join(_CLOSING_S)

    def put(self, entry: Entry) -> None:
        self._taken += 1
        self.queue.put(entry)

    def write_here(self, entry: Entry) -> tuple[int, int] | None:
        """Write a lazy record from the loop's thread and return its segment and offset. None: the thread has it.

        Only while nothing waits: a record must not overtake those that were appended before it. And only while the
        disk has answered the thread a moment ago: one that has hung since would hold up the caller, and all others.
        Otherwise the thread is given a moment to write this one, so that those which follow can be written here.
        """
        if self._taken != self._committed or self.failure is not None:
            self.put(entry)
            return None
        now = self._clock()
        if now - self._answered_at > _TRUSTED_SYNCS * self.log.options.lazy_sync_s:
            self._caught_up.clear()
            self._is_waited_for = True
            self.put(entry)
            if self._thread is not None:
                self._caught_up.wait(_ASKED_S)
            return None
        place = self._written_here(entry, now)
        if place is None:
            self.put(entry)
        return place

    def _written_here(self, entry: Entry, now: float) -> tuple[int, int] | None:
        if not self._log_in_use.acquire(blocking=False):
            return None
        try:
            is_first = not self.log.has_unsynced
            offset = self.log.write_lazy(entry, now)
            number = self.log.number
        finally:
            self._log_in_use.release()
        if offset is None:
            return None
        if is_first:
            self.queue.put(Command(lambda log, now: None))  # the thread must learn that a sync will be due
        return number, offset

    def _run(self, files: WatchedFiles) -> None:
        while self.turn(wait=True):
            pass
        if files.is_left:
            files.close_all()
            if not self._ended.is_set():
                see_whether_it_answers(self.log.unwatched, self.log.gate, files.folder)
                self._answers(files.folder)

    def _look(self) -> None:
        """Watch the thread that writes, until the end."""
        seen: tuple[WatchedFiles, int] | None = None
        looks = 0
        while not self._ended.wait(self.log.options.stall_s / _LOOKS):
            files, turn = self.log.files, self.log.files.turns
            looks = looks + 1 if seen == (files, turn) and turn % 2 else 0
            seen = files, turn
            if looks >= _LOOKS and files.leave(turn):
                assert self._thread is not None
                self._hung = [thread for thread in self._hung if thread.is_alive()] + [self._thread]
                self._leave(files)
                self._begin_thread()

    def _leave(self, files: WatchedFiles) -> None:
        """Abandon the thread that uses these files: from here on the log belongs to the next turn."""
        log, lock = self.log, threading.Lock()
        lock.acquire()
        log.stalled.add(files.folder)
        log.files = WatchedFiles(log.unwatched, log.gate, log.stalled)
        self._log_in_use, self._resumes = lock, True

    def _answers(self, folder: str) -> None:
        """Note that a folder answers again."""
        self.log.stalled.discard(folder)
        self._note(f"{folder} answers again")
        self.queue.put(Command(lambda log, now: None))  # wakes the thread that writes

    def _ask_again(self) -> None:
        """Look whether the folders that stalled answer; where there are threads, those that hang do."""
        for folder in sorted(self.log.stalled):
            try:
                see_whether_it_answers(self.log.unwatched, self.log.gate, folder)
            except LeftBehind:
                continue
            self._answers(folder)

    def turn(self, *, wait: bool) -> bool:
        """Do one round; return False after the last command. Without `wait` it does what there is to do now and
        returns."""
        command: Command | None = None
        if self.log.stalled and self._thread is None:
            self._ask_again()
        try:
            if self._resumes:
                command = self._command
                self._resume()
            elif self.failure is None:
                command, batch = self._collect(wait)
                self._undone, self._told, self._command = batch, [], command
                now = self._clock()
                files, turns = self.log.files, self.log.files.turns
                with self._log_in_use:
                    if batch:
                        self.log.commit(batch, now)
                    else:
                        self.log.tick(now)
                if files.turns != turns:
                    self._answered_at = self._clock()
                self._undone = []
                self._committed += len(batch)
                if self._is_waited_for:  # an event that is set for nobody costs a single send some 3 %
                    self._is_waited_for = False
                    self._caught_up.set()
            else:
                command, batch = self._collect(wait)
                self._refuse(batch)
            if command is not None:
                return self._obey(command)
        except LeftBehind:
            if self._thread is None:
                left = self.log.files
                self._leave(left)
                left.close_all()
                return self.turn(wait=False)
            return False
        except BaseException as error:  # a bug of ours, or no memory: say so to everyone
            self._crash(error)
            if command is not None:
                return self._obey(command)
        return True

    def _resume(self) -> None:
        """Go on with the records that another thread had in hand; the log is taken already (`_leave`)."""
        self._resumes, lock = False, self._log_in_use
        try:
            self.log.go_on(self._clock())
        finally:
            lock.release()
        self._committed += len(self._undone)
        self._undone = []

    def _collect(self, wait: bool) -> tuple[Command | None, list[Entry]]:
        batch: list[Entry] = []
        get, size = self.queue.get, 0
        try:
            if wait:
                timeout = None
                if self.failure is None:
                    with self._log_in_use:
                        timeout = self.log.timeout(self._clock())
                item = get(True, timeout)
            else:
                item = get(False)
            while True:
                if type(item) is not tuple:
                    assert isinstance(item, Command)
                    return item, batch
                batch.append(item)
                size += item[3]
                if size >= BATCH_BYTES or self.queue.empty():
                    break
                item = get(False)
        except Empty:
            pass
        return None, batch

    def _obey(self, command: Command) -> bool:
        error = self.failure
        if error is None:
            try:
                with self._log_in_use:
                    error = command.run(self.log, self._clock())
            except LeftBehind:
                raise
            except BaseException as problem:
                self._crash(problem)
                error = self.failure
        self._command = None
        command.error = error
        command.finished = True
        then = command.then
        if then is not None:
            self._send(lambda: self._deliver([(lambda refused, segment, offset: then(error), None, 0, 0)]))
        if command.is_last:
            self._ended.set()
        return not command.is_last

    def answer(self, answers: list[Answer]) -> None:
        """Wake the loop once for all answers."""
        self._told.append(answers)
        self._send(lambda: self._deliver(answers))

    def _send(self, callback: Callable[[], None]) -> None:
        try:
            self._post(callback)
        except RuntimeError as error:  # the loop is closed: nobody is left to hear it
            self._note(f"answers of the journal could not be delivered: {error}")

    def _crash(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = JournalFailed(f"the journal's writer crashed: {error!r}", unknown=True)
            self._note(str(self.failure))

            def complain() -> None:
                raise error

            self._send(complain)
        told = Counter(id(answer[0]) for answers in self._told for answer in answers)
        undone, self._undone, self._told = self._undone, [], []
        waiting = []
        for entry in undone:
            if told[id(entry[4])]:
                told[id(entry[4])] -= 1
            else:
                waiting.append(entry)
        self._refuse(waiting)

    def _refuse(self, entries: list[Entry]) -> None:
        failure = self.failure
        answers: list[Answer] = [(entry[4], failure, 0, 0) for entry in entries if entry[4] is not None]
        if answers:
            self._send(lambda: self._deliver(answers))

    def _deliver(self, answers: list[Answer]) -> None:
        """Call the callbacks of these answers, behind those that still wait to be called: for a few milliseconds, and
        the others in the next turns of the loop, since a sync may answer for ten thousand."""
        if self._undelivered:
            self._undelivered += answers
            return
        try:
            deliver(answers, self._clock, self._clock() + _DELIVERED_S, self._undelivered)
        finally:
            if self._undelivered:
                self._send(self._deliver_more)

    def _deliver_more(self) -> None:
        answers, self._undelivered = self._undelivered, []
        self._deliver(answers)


def deliver(answers: list[Answer], clock: Callable[[], float], until: float, left: list[Answer]) -> None:
    """Call the callbacks in order until then, whatever one of them raises, and put the others into `left`; raise the
    first error at the end."""
    failure: BaseException | None = None
    to_call = iter(answers)
    for done, error, segment, offset in to_call:
        try:
            done(error, segment, offset)
        except BaseException as problem:
            failure = failure or problem
        if clock() >= until:
            left += to_call
            break
    if failure is not None:
        raise failure
