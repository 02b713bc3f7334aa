"""Decides which session of a queue is next, and who holds it until when; keeps each session's state.

See docs/reference/protocol.md#sessions.

Pure. A session is known while it has messages, state or a holder. It is free when nobody holds it and one of its
messages is on offer; of the free ones, the session whose next message has the lowest number is next. Messages within a
session have no separate locks: delivered messages can be settled while the session's lock holds. The caller decides
whether and where a state is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final

from .message import LATE, LOCKED, READY, Message, Stored
from .partitions import COUNT_MASK
from .ready_list import ReadyList

if TYPE_CHECKING:
    from .queue import MessageQueue

_STALE_MAX: Final = 1024
_LOOKED_AT_MAX: Final = 500


class SessionLock:
    """The lock of a session.

    `on_available` is called when messages are available for its holder, `on_lost` when it expired or its queue is gone.
    """

    __slots__ = ("held", "is_over", "locked_until", "on_available", "on_lost", "queue", "session_id")

    def __init__(self, queue: MessageQueue, session_id: str, locked_until: float) -> None:
        self.queue = queue
        self.session_id = session_id
        self.locked_until = locked_until
        self.is_over = False
        self.on_available: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        #: Delivered and unsettled messages under this lock, by token.
        self.held: dict[bytes, Message] = {}

    def is_held(self, now: float) -> bool:
        return not self.is_over and self.locked_until > now

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"until {self.locked_until}"
        return f"<SessionLock {self.session_id!r} of {self.queue.path}: {state}, {len(self.held)} unsettled>"


class Session:
    """One session: its messages, lock and state."""

    __slots__ = (
        "count",
        "id",
        "late",
        "lock",
        "ready_list",
        "recopied",
        "record_bytes",
        "state",
        "updated_at",
        "waiting",
        "writing",
    )

    def __init__(self, id: str) -> None:
        self.id = id
        self.ready_list = ReadyList()
        self.lock: SessionLock | None = None
        #: Its messages, in whatever state.
        self.count = 0
        #: Those that are kept from receivers.
        self.late = 0
        #: Where its state is stored, and the size of the record.
        self.state: Stored | None = None
        self.record_bytes = 0
        self.updated_at = -inf
        # Of its state: the record that is on its way, whether compaction has made a copy meanwhile, who comes next.
        self.writing: bytes | None = None
        self.recopied = False
        self.waiting: deque[Callable[[], None]] = deque()

    @property
    def is_empty(self) -> bool:
        return not (self.count or self.state is not None or self.lock is not None or self.writing is not None)

    def __repr__(self) -> str:
        return f"<Session {self.id!r}: {self.count} messages, {'held' if self.lock is not None else 'not held'}>"


class Sessions:
    """All sessions of one queue."""

    __slots__ = ("_by_id", "_expiries", "_free", "_queue", "_touched")

    def __init__(self, queue: MessageQueue) -> None:
        self._queue = queue
        self._by_id: dict[str, Session] = {}
        # (number of the next message within its partition, session) of those that were free when this was noted
        self._free: list[tuple[int, str]] = []
        # (locked until, session); stale entries stay until they come up or are too many
        self._expiries: list[tuple[float, str]] = []
        # where something has come on offer since `wake`
        self._touched: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    def __repr__(self) -> str:
        return f"<Sessions of {self._queue.path}: {len(self._by_id)}>"

    def get(self, id: str) -> Session | None:
        return self._by_id.get(id)

    def open(self, id: str) -> Session:
        session = self._by_id.get(id)
        if session is None:
            session = self._by_id[id] = Session(id)
        return session

    def forget_if_empty(self, session: Session) -> None:
        if session.is_empty:
            self._by_id.pop(session.id, None)

    @property
    def available(self) -> int:
        return sum(len(session.ready_list) for session in self._by_id.values())

    def listed(self, updated_after: float | None, skip: int, top: int) -> Generator[None, None, list[str]]:
        """Return ids of sessions with messages or state or, with a time, of those with a state set after it, in the
        order in which they came to be. Some hundred are looked at between two steps."""
        ids: list[str] = []
        for looked_at, session in enumerate(list(self._by_id.values()), 1):
            if looked_at % _LOOKED_AT_MAX == 0:
                yield
            has_state = session.state is not None and (updated_after is None or session.updated_at > updated_after)
            if not has_state and (not session.count or updated_after is not None):
                continue
            if skip:
                skip -= 1
                continue
            if len(ids) >= top:
                break
            ids.append(session.id)
        return ids

    # messages

    def entered(self, message: Message) -> None:
        if message.session_id is not None:
            self.open(message.session_id).count += 1

    def left(self, message: Message) -> None:
        session = self._by_id.get(message.session_id or "")
        if session is not None:
            session.count -= 1
            self._let_go(session, message)
            self.forget_if_empty(session)

    def offer(self, message: Message) -> None:
        session = self.open(message.session_id or "")
        before = _head(session)
        session.ready_list.add(message)
        self._touched[session.id] = None
        if session.lock is None and (before is None or message.sequence_number & COUNT_MASK < before):
            self._note_free(session)

    def is_late(self, message: Message) -> bool:
        """Return whether it would overtake one of its session that is kept from receivers."""
        session = self._by_id.get(message.session_id or "")
        return session is not None and session.late > 0 and message.home == READY

    def count_late(self, message: Message, change: int) -> None:
        if message.state == LATE:
            self.open(message.session_id or "").late += change

    def discard(self, message: Message) -> None:
        session = self._by_id.get(message.session_id or "")
        if session is not None:
            session.ready_list.discard(message)

    def let_go(self, message: Message) -> None:
        session = self._by_id.get(message.session_id or "")
        if session is not None:
            self._let_go(session, message)

    def _let_go(self, session: Session, message: Message) -> None:
        if session.lock is not None and message.lock_token is not None:
            session.lock.held.pop(message.lock_token, None)

    def reset(self) -> None:
        """Forget counts and available messages before all are added again."""
        for session in list(self._by_id.values()):
            session.count = session.late = 0
            session.ready_list.clear()
            self.forget_if_empty(session)
        self._free.clear()
        self._touched.clear()

    # locks

    def lock_of(self, message: Message) -> SessionLock | None:
        """Return the lock under which a message was delivered, if it still holds."""
        session = self._by_id.get(message.session_id or "")
        if session is None or session.lock is None or message.lock_token not in session.lock.held:
            return None
        return session.lock

    def is_held(self, message: Message) -> bool:
        session = self._by_id.get(message.session_id or "")
        return session is not None and session.lock is not None

    def accept(self, id: str | None, until: float) -> SessionLock | None:
        """Lock a session, the next free one without an id; return None when it is held, or none is free."""
        session = self.open(id) if id is not None else self._next_up() if self._queue.down else self._next_free()
        if session is None or session.lock is not None:
            return None
        lock = session.lock = SessionLock(self._queue, session.id, until)
        self._watch(lock)
        return lock

    def renew(self, lock: SessionLock, until: float) -> None:
        lock.locked_until = until
        for message in lock.held.values():
            message.locked_until = until
        self._watch(lock)

    def end(self, lock: SessionLock, count: int) -> list[Message]:
        """End a lock and return up to `count` messages that it still holds, for the caller to put back. While it holds
        more, nobody else gets the session: who comes next would see those before these."""
        session = self._by_id.get(lock.session_id)
        lock.is_over = True
        if session is None or session.lock is not lock:
            lock.held.clear()
            return []
        taken = [lock.held.pop(token) for token in list(islice(lock.held, count))]
        messages = [message for message in taken if message.state == LOCKED]
        if lock.held:
            return messages
        session.lock = None
        if len(session.ready_list):
            self._touched[session.id] = None
            self._note_free(session)
        self.forget_if_empty(session)
        return messages

    def run_out(self, now: float) -> SessionLock | None:
        """Return a lock that has expired, for the caller to end."""
        return self._next_lock() if self.deadline() <= now else None

    def deadline(self) -> float:
        """Return when the next lock expires, or earlier where many have ended."""
        for _ in range(_STALE_MAX):
            if not self._expiries or self._next_lock() is not None:
                break
            heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else inf

    def _next_lock(self) -> SessionLock | None:
        until, id = self._expiries[0]
        return self._lock_until(id, until)

    def shift(self, seconds: float) -> None:
        """Adapt to a wall clock that was set: as much is left of each lock as before."""
        for session in self._by_id.values():
            if session.lock is not None:
                session.lock.locked_until += seconds
        self._expiries = [(until + seconds, id) for until, id in self._expiries]

    def close(self) -> dict[str, Session]:
        """Forget all sessions, end the locks that are held, and return the sessions by id."""
        for until, id in self._expiries:
            lock = self._lock_until(id, until)
            if lock is not None and not lock.is_over:
                lock.is_over = True
                lock.held.clear()
                if lock.on_lost is not None:
                    lock.on_lost()
        by_id, self._by_id = self._by_id, {}
        self._free.clear()
        self._expiries.clear()
        self._touched.clear()
        return by_id

    def take_touched(self) -> tuple[list[SessionLock], bool]:
        """Return locks for whose holders messages came since the last call, and whether a session may be free."""
        locks = []
        is_free = False
        for id in self._touched:
            session = self._by_id.get(id)
            if session is None or not len(session.ready_list):
                continue
            if session.lock is None:
                is_free = True
            else:
                locks.append(session.lock)
        self._touched.clear()
        return locks, is_free

    def touch_all(self) -> None:
        """Let `wake` return all possible receivers: partitions that were down may serve again."""
        self._touched.update(dict.fromkeys(self._by_id))

    def _lock_until(self, id: str, until: float) -> SessionLock | None:
        session = self._by_id.get(id)
        lock = None if session is None else session.lock
        return lock if lock is not None and lock.locked_until == until else None

    def _watch(self, lock: SessionLock) -> None:
        heappush(self._expiries, (lock.locked_until, lock.session_id))
        if len(self._expiries) > 2 * len(self._by_id) + _STALE_MAX:
            self._expiries = [each for each in self._expiries if self._lock_until(each[1], each[0]) is not None]
            heapify(self._expiries)

    def _note_free(self, session: Session) -> None:
        head = _head(session)
        if head is None:
            return
        heappush(self._free, (head, session.id))
        if len(self._free) > 2 * len(self._by_id) + _STALE_MAX:
            self._free = [
                (head, session.id)
                for session in self._by_id.values()
                if session.lock is None and (head := _head(session)) is not None
            ]
            heapify(self._free)

    def _next_free(self) -> Session | None:
        free = self._free
        while free:
            number, id = free[0]
            session = self._by_id.get(id)
            if session is None or session.lock is not None:
                heappop(free)
                continue
            head = _head(session)
            if head == number:
                return session
            heappop(free)
            if head is not None and head > number:
                heappush(free, (head, id))
        return None

    def _next_up(self) -> Session | None:
        """Return the next free session while partitions are down: one of another partition."""
        free = [
            (head, session.id)
            for session in self._by_id.values()
            if session.lock is None and (head := _head(session)) is not None and not self._queue.is_down(session.id)
        ]
        return self._by_id[min(free)[1]] if free else None


def _head(session: Session) -> int | None:
    """Return the number of the next message within its partition: no partition comes before another one."""
    head = session.ready_list.head()
    return None if head is None else head & COUNT_MASK
