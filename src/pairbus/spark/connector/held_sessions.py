"""Keeps the sessions that a task of a `lock` stream has read from locked until their messages are settled.

A session is locked while the link on which it was accepted is open, but its messages are settled by token, by other
processes and after the task has ended. So the links stay open here, in the Python worker, which Spark keeps for later
tasks. A peek shows which messages were settled. A session is released as soon as its messages are settled, for the next
batch or another receiver; otherwise its lock expires, which counts as a delivery, as it does without sessions.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark import TaskContext

from pairbus.amqp.errors import AmqpError
from pairbus.wire.errors import WireError
from pairbus.wire.received import ReceivedMessage
from pairbus.wire.sync import Receiver, WireClient

from .options import InvalidOption

#: Spark ends Python workers that had nothing to do for a minute, and with them the locks of their sessions.
WORKER_S: Final = 60.0
#: How often to check whether a session is settled: at first, and at most.
LOOK_S: Final = (0.1, 1.0)
#: How many messages to peek behind one that is settled.
PEEKED: Final = 100
#: Seconds after the end of a lock, so that the broker has ended it by its own clock.
GRACE_S: Final = 2.0
_DEFERRED: Final = 1


def check_worker() -> None:
    """Raise InvalidOption in a Python worker that ends with its task: the sessions would be free before they are
    settled, and come again without end."""
    if TaskContext.get() is not None and not os.environ.get("SPARK_REUSE_WORKER"):
        raise InvalidOption(
            "a lock stream with sessions holds them in its Python workers, and these end with each task, since "
            "spark.python.worker.reuse is false; start the session with spark.python.worker.reuse=true"
        )


def count_settled(found: Sequence[ReceivedMessage], read: Sequence[tuple[int, int]]) -> int:
    """Return how many of the messages that were read are settled, from the first on: gone, deferred, or abandoned,
    which raises their count of deliveries. `found` is what a peek from the first one's number on has found; of messages
    behind that it says nothing. `read`: numbers and counts of deliveries, in order."""
    if not found:
        return len(read)
    try:
        present = {each.sequence_number or 0: each for each in found}
        last = max(present)
        for place, (number, delivery_count) in enumerate(read):
            if number > last:
                return place
            each = present.get(number)
            if each is None or each.annotations.get("x-opt-message-state") == _DEFERRED:
                continue
            if each.delivery_count <= delivery_count:
                return place
    except AmqpError:
        return 0
    return len(read)


@dataclass
class HeldSession:
    """One session, and the messages that were read from it and may not be settled yet."""

    client: WireClient
    receiver: Receiver
    #: By the monotonic clock, as `look_at`.
    until: float = 0.0
    look_at: float = 0.0
    pause_s: float = LOOK_S[0]
    #: Their numbers and counts of deliveries, in order.
    read: list[tuple[int, int]] = field(default_factory=list)

    def received(self, messages: Sequence[ReceivedMessage]) -> None:
        """Note messages that were read from it, before they are passed on."""
        self.read += [(each.sequence_number or 0, each.delivery_count) for each in messages]
        self.until = time.monotonic() + (messages[-1].locked_until or 0.0) - time.time() + GRACE_S

    def is_over(self, now: float) -> bool:
        """Return whether its lock is no longer needed; asks the peer, unless that was just done."""
        if now >= self.until or not self.receiver.is_open:
            return True
        if now < self.look_at:
            return False
        with contextlib.suppress(WireError):  # asked again
            self._forget_settled()
        self.pause_s = min(LOOK_S[1], self.pause_s * 2)
        self.look_at = time.monotonic() + self.pause_s
        return not self.read

    def _forget_settled(self) -> None:
        """Forget messages that are settled, from the first on, up to one that is not."""
        count = 1  # that it is not yet settled is what most looks find
        while self.read:
            payloads = self.client.peek(self.receiver.entity, self.read[0][0], count)
            settled = count_settled([ReceivedMessage(payload, 0, b"", None, True) for payload in payloads], self.read)
            if not settled:
                return
            del self.read[:settled]
            count = PEEKED

    def give_back(self) -> None:
        """Close its link: the session is free, and what was not settled is on offer again."""
        with contextlib.suppress(WireError):
            self.receiver.close()


class HeldSessions:
    """All sessions of this process that tasks have read from. A thread gives them back, and ends with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[HeldSession] = []
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<HeldSessions {len(self._held)}>"

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, session: HeldSession) -> None:
        with self._lock:
            if self._pid != os.getpid():  # the parent's stay with it
                self._held, self._thread, self._pid = [], None, os.getpid()
            self._held.append(session)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="pairbus-sessions", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        while True:
            for each in list(self._held):
                if each.is_over(time.monotonic()):
                    each.give_back()
                    with self._lock:
                        self._held.remove(each)
            with self._lock:
                if not self._held:
                    self._thread = None
                    return
            time.sleep(LOOK_S[0])


#: Of this process.
SESSIONS: Final = HeldSessions()
