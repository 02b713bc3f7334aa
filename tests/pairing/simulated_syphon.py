"""The simulation's syphon: the engine's part without its I/O, round the real ledger of messages on their way home.

Receive, send home, complete on the confirm. It is stopped or killed, and started again with an empty memory; several at
once meet in the queues. What it holds when it is killed stays locked until the locks run out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pairbus.syphon.core.transfer import Command, Complete, DeadLetter, Leave, PendingTransfer, Release, Renew
from pairbus.syphon.core.transfer_state import TICK_S, TransferState
from pairbus.wire.errors import (
    Busy,
    NotFound,
    QuotaExceeded,
    Refused,
    TimedOut,
    Unauthorized,
    Unreachable,
    WireError,
)

from .simulated_brokers import LOCK_S, NETWORK, Namespace, Schedule, Stored

if TYPE_CHECKING:
    from .audit import Audit

# What the wire client raises for a broker's answer.
ERRORS: dict[str, Callable[[], WireError]] = {
    "refuse": lambda: Unreachable("pairbus:unreachable", "connection refused"),
    "reset": lambda: Unreachable("pairbus:unreachable", "connection reset", outcome_unknown=True),
    "busy": lambda: Busy("com.microsoft:server-busy", "throttled"),
    "full": lambda: QuotaExceeded("amqp:resource-limit-exceeded", "the queue is full"),
    "gone": lambda: NotFound("amqp:not-found", "deleted"),
    "disabled": lambda: Refused("com.microsoft:entity-disabled", "disabled"),
    "denied": lambda: Unauthorized("amqp:unauthorized-access", "no right to send"),
    "internal": lambda: Refused("amqp:internal-error", "internal server error"),
}
SEND_S = 5.0
TRANSFER_MAX = 5


class SimulatedSyphon:
    def __init__(
        self,
        name: str,
        schedule: Schedule,
        rng: random.Random,
        primary: Namespace,
        secondary: Namespace,
        paths: Sequence[str],
        audit: Audit,
    ) -> None:
        self.name = name
        self.schedule = schedule
        self.random = rng
        self.primary = primary
        self.secondary = secondary
        self.paths = paths
        self.audit = audit
        self.life = 0
        self.start()

    def start(self) -> None:
        self.life += 1
        self.transfer_state = TransferState()
        self._poll(self.life)
        self._tick(self.life)

    def kill(self) -> None:
        self.audit.note(f"{self.name} dies")
        self.life += 1

    def stop(self) -> None:
        self.audit.note(f"{self.name} stops")
        self._do(self.transfer_state.stop())
        self._do(self.transfer_state.give_up())
        self.life += 1

    # -- in

    def _poll(self, life: int) -> None:
        if life != self.life:
            return
        for path in self.paths:
            if self.secondary.fault(path, (*NETWORK, "internal", "denied")) is None:
                arrivals = [self._transfer(copy) for copy in self.secondary.receive(path, 10)]
                if arrivals:
                    commands, wanted = self.transfer_state.received(arrivals, self.schedule.now)
                    self._do(commands)
                    for destination in sorted(wanted):
                        self._send(destination)
        self.schedule.after(self.random.choice((0.5, 1.0, 2.0)), lambda: self._poll(life))

    def _transfer(self, copy: Stored) -> PendingTransfer:
        key = (copy.path, copy.sequence, int(copy.at * 1000))
        return PendingTransfer(
            copy.path,
            key,
            copy.lock.to_bytes(16, "big"),
            copy.home,
            b"x" * 100,
            now=self.schedule.now,
            lock_s=LOCK_S,
            handle=(copy, copy.lock),
            alone=self.random.random() < 0.1,
        )

    def _tick(self, life: int) -> None:
        if life != self.life:
            return
        now = self.schedule.now
        self._do(self.transfer_state.tick(now))
        for path in self.transfer_state.destinations.due(now):
            self._do(self.transfer_state.retry(path, 1))
        self.schedule.after(TICK_S, lambda: self._tick(life))

    # -- home

    def _send(self, path: str) -> None:
        while True:
            send, commands = self.transfer_state.send(path, self.schedule.now, TRANSFER_MAX, 10_000)
            self._do(commands)
            if send is None:
                return
            self._carry(path, send.transfers)

    def _carry(self, path: str, transfers: list[PendingTransfer]) -> None:
        life = self.life
        homes = []
        for transfer in transfers:
            copy: Stored = transfer.handle[0]
            home = Stored(copy.mid, path, 0.0, path, by=self.name)
            homes.append(home)
            self.audit.carried(self, copy, home)
        answered = False

        def came(error: WireError | None) -> None:
            nonlocal answered
            if answered or life != self.life:
                return
            answered = True
            if error is None:
                for home in homes:
                    home.confirmed = True
                self._do(self.transfer_state.confirmed(transfers))
            else:
                self.audit.syphon_failed(self, path, error)
                self._do(self.transfer_state.failed(transfers, error, self.schedule.now))
            self._send(path)

        self.primary.offer(path, homes, lambda said: came(None if said is None else ERRORS[said]()))
        self.schedule.after(
            SEND_S, lambda: came(TimedOut("pairbus:timed-out", "no answer to the transfer", outcome_unknown=True))
        )

    # -- what the ledger says

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Complete | DeadLetter):
                self._settle(command)
            elif isinstance(command, Renew):
                renewed = [transfer for transfer in command.transfers if self.secondary.renew(*transfer.handle)]
                self.transfer_state.renewed(renewed, self.schedule.now)
            elif isinstance(command, Release):
                for transfer in command.transfers:
                    self.secondary.release(*transfer.handle)
            else:
                assert isinstance(command, Leave)

    def _settle(self, command: Complete | DeadLetter) -> None:
        life = self.life
        transfers = command.transfers
        dead = isinstance(command, DeadLetter)
        for transfer in transfers:
            self.audit.settling(self, transfer.handle[0], dead=dead)

        def arrive() -> None:
            """The request at the backlog; its answer may get lost, and so may the request."""
            lost = self.secondary.fault(command.queue, (*NETWORK, "lost-answer"))
            if lost is None or lost.kind == "lost-answer":
                gone = {id(transfer): self.secondary.settle(*transfer.handle, dead=dead) for transfer in transfers}
            if life != self.life:
                return
            if lost is not None:
                self._do(self.transfer_state.unsettled(transfers, self.schedule.now, lock_lost=False))
                return
            self.transfer_state.settled([transfer for transfer in transfers if gone[id(transfer)]])
            over = [transfer for transfer in transfers if not gone[id(transfer)]]
            self._do(self.transfer_state.unsettled(over, self.schedule.now, lock_lost=True))

        self.schedule.after(self.random.choice((0.001, 0.01, 1.0)), arrive)
