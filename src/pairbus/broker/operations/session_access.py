"""Accepts, renews and releases sessions, and reads and sets their state.

See docs/reference/protocol.md#sessions.

sessions.py decides which session is next and whether a lock still holds. A state is set once its record is synced; it
stays on disk and is read on request. As with messages (settlement.py), compaction may copy the old state behind the
record of the new one: that record is then written again.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Final

from pairbus.amqp import errors as conditions
from pairbus.broker.format import records
from pairbus.broker.format.content import ID_CHARS_MAX
from pairbus.broker.model.message import Stored
from pairbus.broker.model.partitions import partition_down, partition_for
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.sessions import Session, SessionLock, Sessions
from pairbus.broker.refusal import Refusal
from pairbus.broker.storage.store import Done, Store, nobody, refusal_of, unavailable
from pairbus.journal import JournalError

from .settlement import SettlementOperations

SESSIONS_MAX: Final = 1_000_000


class SessionAccess:
    """Accepts, renews and releases sessions and keeps their states."""

    def __init__(self, store: Store, settlement: SettlementOperations) -> None:
        self._store = store
        self._settlement = settlement

    def accept(self, queue: MessageQueue, session_id: str | None, now: float) -> SessionLock | Refusal | None:
        """Lock the session with this id or, without one, the next free session; return None when no session is free."""
        sessions = queue.sessions
        refusal = _refusal(queue, session_id)
        if refusal is not None or sessions is None:
            return refusal
        queue.entity.accessed_at = now
        # Its time may be over although that was not noticed yet.
        if sessions.deadline() <= now:
            self._settlement.expire_locks(queue, now)
        if queue.lifetimes.next <= now and not self._settlement.clear_overdue(queue, now) and session_id is None:
            return None
        if session_id is not None and queue.is_down(session_id):
            return partition_down(queue.path, partition_for(session_id))
        lock = sessions.accept(session_id, now + queue.lock_duration)
        if lock is None and session_id is not None:
            text = (
                f"The requested session '{session_id}' of '{queue.path}' can't be accepted: "
                "it is locked by another receiver."
            )
            return Refusal(conditions.SESSION_CANNOT_BE_LOCKED, text)
        if lock is not None:
            self._store.watched[queue] = None
        return lock

    def renew(self, lock: SessionLock, now: float) -> float | Refusal:
        """Return until when the session is locked from now on, or the refusal."""
        queue = lock.queue
        if queue.sessions is None or not lock.is_held(now):
            return queue.session_lost()
        queue.entity.accessed_at = now
        queue.sessions.renew(lock, now + queue.lock_duration)
        return lock.locked_until

    def release(self, lock: SessionLock, now: float) -> None:
        """Release a session that its receiver closes: unsettled messages are available again, with the same delivery
        count. Does nothing when the lock has expired."""
        queue = lock.queue
        if queue.entity.deleting or not lock.is_held(now):
            return
        queue.entity.accessed_at = now
        if not queue.release_session(lock):
            self._store.wake(queue)
            return
        self._store.slices.run(lambda: self._releasing(lock))

    def _releasing(self, lock: SessionLock) -> Generator[None, None, None]:
        """Return the rest of the messages of a session that holds many."""
        while lock.queue.release_session(lock):
            yield
        self._store.wake(lock.queue)

    def list_ids(
        self, queue: MessageQueue, updated_after: float | None, skip: int, top: int
    ) -> Generator[None, None, list[str]]:
        """Return ids of sessions with messages or state or, with a time, of those whose state was set after it. To be
        done in slices."""
        return [] if queue.sessions is None else (yield from queue.sessions.listed(updated_after, skip, top))

    # ---- state

    def get_state(self, queue: MessageQueue, session_id: str, now: float) -> bytes | None:
        """Return the state of a session, or None. Raises JournalError when it can't be read."""
        queue.entity.accessed_at = now
        session = None if queue.sessions is None else queue.sessions.get(session_id)
        if session is None or session.state is None:
            return None
        state = session.state
        return self._store.journal.read(state.segment, state.offset, state.length) if state.length else b""

    def set_state(self, queue: MessageQueue, session_id: str, state: bytes | None, now: float, done: Done) -> None:
        """Set the state of a session, None to clear it. The caller must know that the receiver holds the session."""
        refusal = _refusal(queue, session_id)
        if refusal is None and state is not None and len(state) > queue.message_bytes_max:
            text = f"A state of {len(state)} bytes; '{queue.path}' takes up to {queue.message_bytes_max} bytes."
            refusal = Refusal(conditions.MESSAGE_SIZE_EXCEEDED, text)
        if refusal is not None or queue.sessions is None:
            done(refusal)
            return
        queue.entity.accessed_at = now
        session = queue.sessions.open(session_id)
        write = partial(self._begin_state, queue, queue.sessions, session, state, now, done)
        if session.writing is None:
            write()
        else:
            session.waiting.append(write)

    def _begin_state(
        self, queue: MessageQueue, sessions: Sessions, session: Session, state: bytes | None, now: float, done: Done
    ) -> None:
        # Rising, so that no two records of a session are alike.
        updated_at = max(now, session.updated_at + 1e-6)
        payload = records.pack_session(queue.entity.id, session.id, updated_at, state)
        self._write_state(queue, sessions, session, payload, done, False)

    def _write_state(
        self, queue: MessageQueue, sessions: Sessions, session: Session, payload: bytes, done: Done, again: bool
    ) -> None:
        session.writing = payload

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if queue.entity.deleted:
                self._next_state(sessions, session)
                done(None)
                return
            if error is None:
                self._apply_state(session, payload, segment, offset)
                if session.recopied:
                    session.recopied = False
                    self._write_state(queue, sessions, session, payload, done, True)
                    return
            elif again:
                self._store.maintenance.retry(partial(self._repeat_state, queue, sessions, session, payload))
            session.recopied = False
            self._next_state(sessions, session)
            done(None if error is None or again else refusal_of(error))

        self._store.append(records.SESSION, payload, written)

    def _apply_state(self, session: Session, payload: bytes, segment: int, offset: int) -> None:
        release = self._store.journal.release
        if session.state is not None:
            release(session.state.segment, session.record_bytes)
        read = records.read_session(payload)
        session.updated_at = read.updated_at
        session.record_bytes = len(payload)
        if read.state_length is None:
            session.state = None
            release(segment, len(payload))
        else:
            session.state = Stored(segment, offset + read.state_offset, read.state_length)

    def _repeat_state(self, queue: MessageQueue, sessions: Sessions, session: Session, payload: bytes) -> None:
        """Write a state once more behind the copy that compaction made, unless a newer one was written since."""
        known = sessions.get(session.id) or session
        if known.updated_at > records.read_session(payload).updated_at:
            return
        if known.writing is not None:
            self._store.maintenance.retry(partial(self._repeat_state, queue, sessions, session, payload))
        else:
            self._write_state(queue, sessions, known, payload, nobody, True)

    def _next_state(self, sessions: Sessions, session: Session) -> None:
        session.writing = None
        if session.waiting:
            session.waiting.popleft()()
        else:
            sessions.forget_if_empty(session)


def _refusal(queue: MessageQueue, session_id: str | None) -> Refusal | None:
    if queue.entity.deleting:
        return unavailable(queue.entity, queue.path)
    if queue.sessions is None:
        text = f"'{queue.path}' does not require sessions: no session can be accepted on it."
        return Refusal(conditions.NOT_ALLOWED, text)
    if session_id is not None and len(session_id) > ID_CHARS_MAX:
        text = f"A session id may have {ID_CHARS_MAX} characters; this one has {len(session_id)}."
        return Refusal(conditions.INVALID_FIELD, text)
    if len(queue.sessions) >= SESSIONS_MAX:
        text = f"'{queue.path}' has {SESSIONS_MAX} sessions, the most that it can have."
        return Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, text)
    return queue.refuses_receives
