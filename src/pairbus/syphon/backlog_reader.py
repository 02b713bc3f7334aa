"""Reads one backlog queue for the engine, and settles the messages that came from it.

A shell. Idle, it holds one long poll: credit is granted once, and again after a quarter of an hour without a message.
Messages are settled on the link that delivered them or, if it is gone, by their lock tokens. `transfer_state` decides
what happens to a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp.errors import DEAD_LETTER
from pairbus.amqp.performative_types import Error, Rejected
from pairbus.amqp.types import Symbol
from pairbus.syphon.core.arrival import arrive
from pairbus.syphon.core.destinations import HALT_S
from pairbus.syphon.core.queue_discovery import GONE
from pairbus.syphon.core.transfer import PendingTransfer
from pairbus.wire.errors import Busy, ClientClosed, LinkLost, NotFound, TooLarge, Unauthorized, WireError
from pairbus.wire.partitions import number_of, partition_of
from pairbus.wire.received import ReceivedMessage
from pairbus.wire.receiver import COMPLETE, Receiver
from pairbus.wire.settling import ABANDONED, COMPLETED, DEAD_LETTERED, RENEWED, by_answer

from . import inspection

if TYPE_CHECKING:
    from .engine import SyphonEngine

#: How long an idle poll lasts, in seconds: the description wants four an hour (P37).
POLL_S: Final = 15 * 60.0
#: How many messages are asked for at once: few at first, while their size is unknown, then more.
COUNT_FIRST: Final = 16
COUNT_MAX: Final = 500
#: How many bytes may be asked for at once, by the size of earlier messages.
BYTES_MAX: Final = 8 * 1024 * 1024
#: How long a drain waits for more messages.
DRAIN_S: Final = 0.5
#: Seconds between attempts to open a queue that doesn't exist or can't be read.
MISSING_S: Final = 60.0
RETRY_S_FIRST: Final = 0.5
RETRY_S_MAX: Final = 30.0
#: A link is replaced when this many messages on it were left: brokers limit how many one link may hold.
LEFT_ON_LINK_MAX: Final = 2000
#: How long the old link stays open for messages in progress on it.
RETIRED_S: Final = 30.0
#: While only messages for unreachable destinations come: how often to peek for others further on, and how far at once.
SCOUT_S: Final = 5.0
SCOUTED_AT_ONCE: Final = 10_000

_log = logging.getLogger("pairbus.syphon")


class BacklogReader:
    """`path` is what is received from; `queue` the backlog queue that it belongs to (its dead letters, in a replay)."""

    def __init__(self, engine: SyphonEngine, queue: str, index: int | None, *, is_replay: bool = False) -> None:
        self.engine = engine
        self.queue = queue
        self.index = index
        self.path = f"{queue}/$DeadLetterQueue" if is_replay else queue
        self.is_replay = is_replay
        #: In a drain: the last look found nothing.
        self.is_empty = False
        self.is_missing = False
        #: It was open since it was last found missing.
        self._was_there = False
        self._receiver: Receiver | None = None
        self._receiving: asyncio.Task[list[ReceivedMessage]] | None = None
        self._interrupted = False
        self._left = 0
        self._count = COUNT_FIRST
        self._size = 0.0
        self._failures = 0
        #: Sequence numbers: the highest that was received, that was looked at, and of one that can be delivered.
        #: The highest number that was received of each partition of the queue, and that a look has come to.
        self._highest: dict[int, int] = {}
        self._scouted: dict[int, int] = {}
        self._sighted = 0

    def __repr__(self) -> str:
        state = "missing" if self.is_missing else "reading" if self._receiving else "resting"
        return f"<Source {self.path}: {state}>"

    # -- reading

    async def run(self) -> None:
        """Receive until the task is cancelled."""
        while True:
            await self.engine.may_read()
            try:
                messages = await self._poll()
            except WireError as error:
                await self._failed(error)
                continue
            self._failures = 0
            self.is_missing = False
            if messages:
                self.is_empty = False
                await self._pass_on(messages)
            elif self.engine.settings.drain:
                self.is_empty = True
                await self.engine.look_again()

    async def _poll(self) -> list[ReceivedMessage]:
        engine = self.engine
        receiver = await self._open()
        await engine.may_read()  # opening may have taken its time
        began = engine.loop.time()
        self._receiving = engine.loop.create_task(
            receiver.receive(self._wanted(), DRAIN_S if engine.settings.drain else POLL_S)
        )
        try:
            messages = await self._receiving
        except asyncio.CancelledError:
            # by `interrupt`, which closes the link: for the service an empty receive, like any other
            engine.polled(self, began)
            if not self._interrupted:
                raise
            self._interrupted = False
            return []
        finally:
            self._receiving = None
        if not messages:
            engine.polled(self, began)
        return messages

    def _wanted(self) -> int:
        bound = self._count if not self._size else min(self._count, max(1, int(BYTES_MAX / self._size)))
        return self.engine.may_ask(bound)

    async def _pass_on(self, messages: list[ReceivedMessage]) -> None:
        engine = self.engine
        now, now_unix = engine.loop.time(), engine.wall()
        size = sum(len(message.payload) for message in messages) / len(messages)
        self._size = max(size, 0.8 * self._size + 0.2 * size)
        if len(messages) >= self._count // 2:
            self._count = min(COUNT_MAX, self._count * 2)
        receiver = self._receiver
        arrivals = [
            arrive(
                self.queue,
                message.payload,
                message.tag,
                now=now,
                now_unix=now_unix,
                handle=(self, receiver, message),
                count_backlog_time=engine.settings.count_backlog_time,
                is_replay=self.is_replay,
            )
            for message in messages
        ]
        flows = engine.arrived(arrivals, now)
        if self._left >= LEFT_ON_LINK_MAX:
            self._retire()
        for message in messages:
            number = message.sequence_number or 0
            self._highest[partition_of(number)] = max(self._highest.get(partition_of(number), 0), number)
        if not flows and self._highest.get(partition_of(self._sighted), 0) >= self._sighted:
            await self._scout()

    async def _scout(self) -> None:
        """All of them were for unreachable destinations. Locking the others too, only to leave them, would cost a
        receive each and delay them when the destinations are back; but deliverable ones may wait behind them."""
        engine = self.engine
        self._count = COUNT_FIRST
        while True:
            places = {
                partition: max(self._scouted.get(partition, 0), self._highest.get(partition, 0)) + 1
                for partition in {*self._scouted, *self._highest}
            }
            try:
                async for number, path in inspection.look(engine.secondary_client, self.path, places, self._scout_end):
                    self._scouted[partition_of(number)] = number
                    if not path or engine.can_take(path):
                        self._sighted = number
                        return
            except WireError as error:
                _log.info("%s: looking further on failed: %s", self.path, error)
            if engine.settings.drain:
                self.is_empty = True
                await engine.look_again()
                return
            wait_s = engine.next_trial_s()
            await asyncio.sleep(min(wait_s, SCOUT_S))
            if wait_s <= SCOUT_S:
                return

    def _scout_end(self, partition: int) -> int:
        return self._highest.get(partition, number_of(partition, 0)) + SCOUTED_AT_ONCE

    async def _open(self) -> Receiver:
        if self._receiver is None or self._receiver.closed:
            self._receiver = await self.engine.secondary_client.receiver(self.path)
            self._left = 0
            self._was_there = True
            self.engine.access_granted("secondary")
        return self._receiver

    async def _failed(self, error: WireError) -> None:
        """Plan another attempt after an error, whatever it was; in a drain, tell the engine of it."""
        engine = self.engine
        self._failures += 1
        await self._close()
        if isinstance(error, NotFound):
            self.is_missing = self.is_empty = True
            engine.missing(self, was_there=self._was_there)
            self._was_there = False
            await asyncio.sleep(MISSING_S)
            return
        if isinstance(error, LinkLost) and error.condition in GONE:
            pass  # it was deleted: no trouble of the secondary's, as the next attempt shows
        elif isinstance(error, TooLarge):
            _log.warning("%s", error)
        elif isinstance(error, Busy):
            engine.busy()
            await asyncio.sleep(HALT_S)
            return
        else:
            engine.trouble_with("secondary", error, self._failures)
            if isinstance(error, Unauthorized):
                engine.access_refused("secondary", error)
        await asyncio.sleep(min(RETRY_S_MAX, RETRY_S_FIRST * 2.0 ** min(self._failures - 1, 10)))

    async def interrupt(self) -> None:
        """Stop receiving at once and return unread messages; reading goes on when the engine allows it."""
        if self._receiving is not None:
            self._interrupted = True
            self._receiving.cancel()
        await self._close()

    async def _close(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await receiver.close()

    def _retire(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            self.engine.later(RETIRED_S, receiver.close)

    # -- settling

    def left(self, count: int) -> None:
        """Note that so many messages of this queue wait for their locks to end."""
        self._left += count

    def complete(self, transfers: Sequence[PendingTransfer]) -> None:
        self._settle(transfers, COMPLETE, lambda some: self._by_token(some, COMPLETED))

    def dead_letter(self, transfers: Sequence[PendingTransfer], reason: str, description: str) -> None:
        info = {Symbol("DeadLetterReason"): reason, Symbol("DeadLetterErrorDescription"): description}
        state = Rejected(error=Error(DEAD_LETTER, description, info)).encode()
        words = {"reason": reason, "description": description}
        self._settle(transfers, state, lambda some: self._by_token(some, DEAD_LETTERED, **words))

    def _settle(
        self,
        transfers: Sequence[PendingTransfer],
        state: bytes,
        by_token: Callable[[Sequence[PendingTransfer]], Coroutine[Any, Any, None]],
    ) -> None:
        """Settle these messages, and report the answer of each to the engine once."""
        for receiver, given in _by_receiver(transfers):
            if receiver is None or any(transfer.tries for transfer in given):
                self.engine.spawn(by_token(given))
                continue
            try:
                answer = receiver.settle_nowait([transfer.handle[2] for transfer in given], state)
            except (LinkLost, ClientClosed):
                self.engine.spawn(by_token(given))
                continue
            answer.add_done_callback(partial(self._answered, given))

    def _answered(self, transfers: Sequence[PendingTransfer], future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is None:
            self.engine.settled(transfers)
        elif isinstance(error, WireError):
            refused = set(error.delivery_ids)
            lost = [transfer for transfer in transfers if not refused or transfer.handle[2].delivery_id in refused]
            self.engine.settled([transfer for transfer in transfers if transfer not in lost] if refused else [])
            self.engine.unsettled(lost, error)
        else:
            raise error

    async def _by_token(self, transfers: Sequence[PendingTransfer], disposition: str, **words: Any) -> None:
        for error, given in by_answer(transfers, await self._ask(transfers, disposition, **words)):
            if error is None:
                self.engine.settled(given)
            else:
                self.engine.unsettled(given, error)

    async def _ask(
        self, transfers: Sequence[PendingTransfer], disposition: str, **words: Any
    ) -> list[WireError | None]:
        tokens = [transfer.token for transfer in transfers]
        return await self.engine.secondary_client.settle_each(self.path, tokens, disposition, **words)

    async def release(self, transfers: Sequence[PendingTransfer]) -> None:
        """Release these messages as far as possible; the others wait for their locks to end."""
        for receiver, given in _by_receiver(transfers):
            try:
                if receiver is not None:
                    await receiver.release([transfer.handle[2] for transfer in given])
                    continue
            except (LinkLost, ClientClosed):
                pass
            for error, kept in by_answer(given, await self._ask(given, ABANDONED)):
                if error is not None:
                    _log.info("%s: %d messages wait for their locks to end: %s", self.path, len(kept), error)

    async def renew(self, transfers: Sequence[PendingTransfer]) -> None:
        """Renew these locks. A lock that can't be renewed is asked for again, and ends by itself."""
        for error, given in by_answer(transfers, await self._ask(transfers, RENEWED)):
            if error is None:
                self.engine.renewed(given)
            else:
                _log.info("%s: %d locks were not renewed: %s", self.path, len(given), error)

    async def stop(self) -> None:
        await self._close()


def _by_receiver(transfers: Sequence[PendingTransfer]) -> list[tuple[Receiver | None, list[PendingTransfer]]]:
    found: dict[Receiver | None, list[PendingTransfer]] = {}
    for transfer in transfers:
        receiver: Receiver | None = transfer.handle[1]
        if receiver is not None and (receiver.closed or not receiver.is_open):
            receiver = None
        found.setdefault(receiver, []).append(transfer)
    return list(found.items())
