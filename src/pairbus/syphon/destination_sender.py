"""Sends to one destination for the engine, and reports the answers.

A shell: it opens, writes and reports answers; `transfer_state` decides what is sent when. Destinations share a
connection. One that could not be reached gets a separate connection for as long as it is used, so that a failure of
that connection affects no other destination.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from pairbus.syphon.core.destinations import RefusalVerdict, verdict_of
from pairbus.syphon.core.meter import Meter
from pairbus.syphon.core.pair_lifecycle import Which
from pairbus.syphon.core.rate_limit import SPAN_S
from pairbus.syphon.core.transfer import Command, PendingTransfer, Send
from pairbus.syphon.core.transfer_state import TransferState
from pairbus.wire import WireClient
from pairbus.wire.batches import GROUP_BYTES_MAX, GROUP_MAX
from pairbus.wire.errors import TimedOut, Unauthorized, Unreachable, WireError
from pairbus.wire.sender import Sender

#: Transfers, and messages in them, under way to one destination.
WINDOW: Final = 512
UNDER_WAY_MAX: Final = 5000
#: A group that turns out too large for one transfer is cut into so many at most.
PARTS_MAX: Final = 8
#: How long the primary may take to confirm; the locks of what waits for it are renewed meanwhile.
CONFIRM_S: Final = 15.0
OPEN_S: Final = 10.0
#: A destination that nothing came for is let go after so long.
IDLE_S: Final = 60.0

_log = logging.getLogger("pairbus.syphon")


class Engine(Protocol):
    """The interface of a destination sender's engine: the in-process one, or that of a Spark task."""

    loop: asyncio.AbstractEventLoop
    transfer_state: TransferState
    primary_client: WireClient

    def carry_out(self, commands: Iterable[Command]) -> None: ...
    def confirmed(self, transfers: Sequence[PendingTransfer]) -> None: ...
    def not_confirmed(self, transfers: Sequence[PendingTransfer], error: WireError) -> None: ...
    def unsendable(self, path: str, error: WireError) -> None: ...
    def access_granted(self, which: Which) -> None: ...
    def access_refused(self, which: Which, error: WireError) -> None: ...
    def isolated_client(self) -> WireClient | None: ...
    async def close_isolated(self, client: WireClient) -> None: ...
    def later(self, seconds: float, closer: Callable[[], Awaitable[Any]]) -> None: ...
    def forget_sender(self, sender: DestinationSender) -> None: ...


class DestinationSender:
    def __init__(self, engine: Engine, path: str) -> None:
        self.engine = engine
        self.path = path
        self.under_way = 0
        self._moved = Meter(SPAN_S)
        self._sender: Sender | None = None
        #: Its own connection, if it has one.
        self._own: WireClient | None = None
        self._isolated = False
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Lane to {self.path}: {self.under_way} under way{', on its own' if self._own else ''}>"

    @property
    def is_idle(self) -> bool:
        return self._task is None and not self.under_way

    def moved_per_s(self, now: float) -> float:
        return self._moved.per_s(now)

    def wake(self) -> None:
        """Send, since there is something to send."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._task is None:
            self._task = self.engine.loop.create_task(self._run())
            self._task.add_done_callback(self._rest)

    def _rest(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.result()
            if not self.under_way and self.engine.transfer_state.waiting(self.path):
                self.wake()
            else:
                self._idle = self.engine.loop.call_later(IDLE_S, self._idled)

    def _idled(self) -> None:
        self._idle = None
        if self.is_idle:
            self.engine.forget_sender(self)

    async def _run(self) -> None:
        """Send as much as there is room for; answers make room for the rest."""
        engine, transfer_state = self.engine, self.engine.transfer_state
        try:
            sender = await self._open()
        except WireError as error:
            self._failed(error)
            engine.unsendable(self.path, error)
            return
        while sender.room >= PARTS_MAX and self.under_way < UNDER_WAY_MAX:
            send, commands = transfer_state.send(self.path, engine.loop.time(), GROUP_MAX, GROUP_BYTES_MAX)
            engine.carry_out(commands)
            if send is None:
                return
            self._put(sender, send)

    async def _open(self) -> Sender:
        """Open the link, or fail within seconds, since the messages that wait for it are locked."""
        if self._sender is None:
            if self._isolated and self._own is None:
                self._own = self.engine.isolated_client()
            client = self._own or self.engine.primary_client
            self._sender = await client.sender(self.path, window=WINDOW, timeout=CONFIRM_S, open_timeout=OPEN_S)
            self.engine.access_granted("primary")
        elif not self._sender.is_open:
            await self._sender.open(OPEN_S)
        return self._sender

    def _put(self, sender: Sender, send: Send) -> None:
        transfers = send.transfers
        try:
            if len(transfers) == 1:
                self._expect(sender.send_nowait(transfers[0].payload), transfers)
                return
            for part, confirm in sender.send_batch_nowait([transfer.payload for transfer in transfers]):
                self._expect(confirm, transfers[part.start : part.stop])
        except WireError as error:  # nothing was sent
            self.engine.not_confirmed(transfers, error)

    def _expect(self, confirm: asyncio.Future[None], transfers: Sequence[PendingTransfer]) -> None:
        self.under_way += len(transfers)
        confirm.add_done_callback(lambda future: self._answered(future, transfers))

    def _answered(self, confirm: asyncio.Future[None], transfers: Sequence[PendingTransfer]) -> None:
        self.under_way -= len(transfers)
        error = None if confirm.cancelled() else confirm.exception()
        if error is None:
            self._moved.count(len(transfers), self.engine.loop.time())
            self.engine.confirmed(transfers)
        elif isinstance(error, WireError):
            self._failed(error)
            self.engine.not_confirmed(transfers, error)
        else:
            raise error
        if self.engine.transfer_state.waiting(self.path):
            self.wake()

    def _failed(self, error: WireError) -> None:
        verdict = verdict_of(error)
        if isinstance(error, Unauthorized):
            self.engine.access_refused("primary", error)
        unanswered = isinstance(error, Unreachable | TimedOut) or error.outcome_unknown
        if verdict is RefusalVerdict.UNREACHABLE and unanswered:
            self._isolated = True
            self._let_go()
        elif verdict is not RefusalVerdict.REFUSED and self._sender is not None and not self._sender.is_open:
            self._let_go()

    def _let_go(self) -> None:
        """Close the link, and the connection if it is not shared; the next attempt opens new ones."""
        sender, self._sender = self._sender, None
        own, self._own = self._own, None
        # other messages may still wait for their answers on it
        if own is not None:
            self.engine.later(CONFIRM_S, lambda: self.engine.close_isolated(own))
        elif sender is not None:
            self.engine.later(CONFIRM_S, sender.close)

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._task is not None:
            self._task.cancel()
        sender, self._sender = self._sender, None
        own, self._own = self._own, None
        if own is not None:
            await self.engine.close_isolated(own)
        elif sender is not None:
            await sender.close()
