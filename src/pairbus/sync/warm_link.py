# Generated from src/pairbus/aio/warm_link.py by scripts/generate_sync.py; do not edit.
"""Keeps one link to a backlog queue open, so that the first diverted messages of an outage need not open one.

It belongs to the client. Its senders share it until their own links are open. The queue is picked at random, so that
independent clients spread over the queues; if the service closes the link as idle, it is opened again. If it can't be
opened, there is an event, and another queue is tried next time.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

from azure.servicebus import ServiceBusSender

from pairbus.pairing.events import WarmLinkFailed
from pairbus.pairing.health_monitor import HealthMonitorBase
from pairbus.pairing.pending_send import Limits
from pairbus.pairing.routing import budget
from pairbus.pairing.routing.dispatch import Dispatch, TryBacklog
from pairbus.sync.concurrency import RepeatedAttempt, is_interruption
from pairbus.sync.guarded_sender import GuardedSender

_log: Final = logging.getLogger("pairbus.pairing")
#: How often it is checked. A check costs nothing on the wire.
LOOK_S: Final = 15.0
OPEN_S: Final = 10.0
#: How long closing waits for an opening that it ends.
END_S: Final = 0.1
#: How long a sender's own link may wait while others use this one.
SHARED_S: Final = 0.25
#: How many of the senders' own links are opened at once: hundreds would leave no time for sends over this one.
OPENINGS_AT_ONCE_MAX: Final = 8


class WarmLink:
    """`make` gives an SDK sender to the backlog queue with that index."""

    def __init__(
        self, monitor: HealthMonitorBase[GuardedSender], make: Callable[[int], ServiceBusSender], limits: Limits
    ) -> None:
        self._monitor = monitor
        self._make = make
        self._limits = limits
        self._has_failed = False
        self._is_closed = False
        self._looks: RepeatedAttempt | None = None
        #: The link, and the index of its queue; None: there is none.
        self.sender: GuardedSender | None = None
        self.queue = 0
        # The link that is being opened, until it is open.
        self._opening: GuardedSender | None = None
        self._users = 0
        # Senders without a link yet, and since when.
        self._waiting: dict[GuardedSender, float] = {}
        # Those whose own link is being opened.
        self._begun: set[GuardedSender] = set()

    def __repr__(self) -> str:
        return f"<WarmLink to backlog queue {self.queue}: {self.sender!r}>"

    def start(self) -> None:
        """Open the link in the background, and check it from then on."""
        if self._looks is None and not self._is_closed:
            self._looks = RepeatedAttempt(self._look, LOOK_S, "pairbus-warm-link", at_once=True)

    def close(self) -> None:
        self._is_closed = True
        if self._looks is not None:
            self._looks.stop()
        if (opening := self._opening) is not None:
            opening.close(END_S)
        self._drop()

    def take(self, own: GuardedSender, dispatch: Dispatch) -> tuple[TryBacklog, GuardedSender] | None:
        """Let a message of a sender whose own link is not open use this one; None: it can't. Called under the lock."""
        sender = self.sender
        if not own.awaits_link or sender is None or not sender.is_open:
            return None
        over = dispatch.over_warm_link(self.queue)
        if over is None:
            return None
        self._users += 1
        self._waiting.setdefault(own, self._monitor.clock())
        return over, sender

    def give_back(self) -> None:
        """Begin to open the senders' own links when nobody waits for this one any more, or has waited for too long:
        opening a link takes more time than a send. Called under the lock."""
        self._users -= 1
        now = self._monitor.clock()
        self._begun = {own for own in self._begun if own.is_opening}
        ready = [own for own, since in self._waiting.items() if not self._users or now - since > SHARED_S]
        for own in ready[: max(0, OPENINGS_AT_ONCE_MAX - len(self._begun))]:
            del self._waiting[own]
            self._begun.add(own)
            try:
                own.begin_opening(budget.OPENING_S)
            except Exception as error:  # no thread to be had, say: the next send opens it, and this one is confirmed
                if is_interruption(error):
                    raise
                _log.warning("%r could not be opened beforehand: %s", own, error)

    def _look(self) -> bool:
        """Open the link if there is none; return whether the client is closed, so that nobody looks any more."""
        usable = self._monitor.coordinator.rotation.queues
        sender = self.sender
        if sender is not None and self.queue in usable and sender.is_alive:
            return self._is_closed
        self._drop()
        if usable and not self._is_closed:
            self._open(random.choice(usable))  # to spread load, not to keep a secret
        return self._is_closed

    def _open(self, queue: int) -> None:
        sender = self._opening = GuardedSender(lambda: self._make(queue), f"backlog queue {queue}")
        if self._is_closed:  # by who did not see this opening
            return
        try:
            sender.open(OPEN_S)
        except Exception as error:
            if not self._has_failed and not self._is_closed:
                self._monitor.announce(WarmLinkFailed(queue, error))
            self._has_failed = True
            sender.close()
            return
        finally:
            self._opening = None
        self._limits.learn_backlog(sender.max_message_size, sender.max_batch_size)
        self._has_failed = False
        self.queue = queue
        self.sender = sender
        if self._is_closed:  # meanwhile
            self._drop()

    def _drop(self) -> None:
        sender, self.sender = self.sender, None
        if sender is not None:
            sender.close()
