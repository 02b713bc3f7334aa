"""Tracks the messages on their way home: which are locked, sent, confirmed, settled.

It decides what happens to each: a message is completed in the backlog only after the primary confirmed it; one that is
refused permanently is dead-lettered; one whose destination is unreachable stays locked until its lock expires, which is
the back-off, and blocks no other message. Only locks of sends in progress are renewed. A message that the primary has
confirmed and whose completion was lost is recognised when it comes again, and is completed without being sent twice.

`now` is any clock of seconds. It neither sends nor settles: methods report facts and return commands, and the shell
carries them out. `transfer_index` keeps where each message is, and `transfer.TABLE` has its possible states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from pairbus.wire.errors import WireError

from .destinations import Destinations, RefusalVerdict, Trouble, verdict_of
from .transfer import (
    Command,
    Complete,
    DeadLetter,
    Input,
    Leave,
    PendingTransfer,
    Rejection,
    Release,
    Renew,
    Send,
    State,
)
from .transfer_index import CROWD, LEFT_MAX, TransferIndex

#: A lock that has less than this left, or a quarter of its time, is too short to begin a send under.
SPARE_S: Final = 10.0
#: How often locks are looked at while there are any.
TICK_S: Final = 1.0
#: Between two attempts to renew the same lock.
RENEWAL_S: Final = 5.0
#: A slow destination may have this many in hand; the others are left, so that it does not take all the room.
PER_DESTINATION_MAX: Final = 10_000
#: Messages that may wait for the answer to a trial; the others are left.
AT_TRIAL_MAX: Final = 200
#: Attempts at a settlement while the lock lasts.
SETTLE_TRIES: Final = 5


class TransferState(TransferIndex):
    """The transfers of one engine. `can_dead_letter` is False where they come from a dead-letter queue."""

    def __init__(self, destinations: Destinations | None = None, *, can_dead_letter: bool = True) -> None:
        super().__init__()
        self.destinations = Destinations() if destinations is None else destinations
        self._can_dead_letter = can_dead_letter
        self._ticked_at = float("-inf")
        self._stopping = False

    @property
    def deadline(self) -> float | None:
        """Return when `tick` must be called next."""
        return self._ticked_at + TICK_S if self._transfers or self._left else None

    # -- from the backlog

    def received(self, arrivals: Iterable[PendingTransfer | Rejection], now: float) -> tuple[list[Command], set[str]]:
        """Add deliveries, all in state WAITING; return commands to carry out at once, and the destinations to `send`
        to."""
        commands: list[Command] = []
        left: dict[str, tuple[Trouble, list[PendingTransfer]]] = {}
        known: list[PendingTransfer] = []
        obstacles: dict[str, Trouble | None] = {}
        wanted: set[str] = set()
        if not self._transfers and not self._left:
            self._ticked_at = now
        for arrival in arrivals:
            transfer = arrival.transfer if isinstance(arrival, Rejection) else arrival
            key, path = transfer.key, transfer.path
            if key in self._transfers and self._came_again(self._transfers[key], transfer):
                continue
            self._left.pop(key, None)
            self._transfers[key] = transfer
            self._in_hand[path] = self._in_hand.get(path, 0) + 1
            self._in_hand_bytes += transfer.size
            if key in self._remembered:
                known += self._move((transfer,), Input.KNOWN)
            elif self._stopping:
                self._move((transfer,), Input.STOPPED)
                commands.append(Release(transfer.queue, [transfer]))
            elif isinstance(arrival, Rejection):
                self._reject(transfer, arrival.reason, arrival.description, commands)
            else:
                if path not in obstacles:
                    obstacles[path] = self.destinations.obstacle(path, now)
                obstacle = obstacles[path]
                if obstacle is None and self._in_hand[path] > PER_DESTINATION_MAX and self._is_slow(path, now):
                    obstacle = _passing("slower than its messages come", "pairbus:slow", now)
                if obstacle is None or self._waits_for_trial(path):
                    self._waiting.setdefault(path, deque()).append(transfer)
                    wanted.add(path)
                elif obstacle.verdict.is_for_good:
                    self._reject(transfer, *_words(path, obstacle), commands)
                else:
                    left.setdefault(path, (obstacle, []))[1].extend(self._move((transfer,), Input.UNAVAILABLE))
        commands += [Leave(path, transfers, trouble) for path, (trouble, transfers) in left.items()]
        commands += [Complete(queue, transfers) for queue, transfers in _by_queue(known)]
        return commands, wanted

    def _waits_for_trial(self, path: str) -> bool:
        return self.destinations.is_trying(path) and self._in_hand[path] <= AT_TRIAL_MAX

    def _came_again(self, known: PendingTransfer, transfer: PendingTransfer) -> bool:
        """Add a message that is still in hand, because its lock had expired. The new lock serves a send in progress."""
        if self._move((known,), Input.AGAIN):
            known.token, known.handle = transfer.token, transfer.handle
            known.lock_s, known.locked_until = transfer.lock_s, transfer.locked_until
            return True
        if known.state is State.CONFIRMED:
            self._remember(known)
        if known.state is State.WAITING:
            self._unqueue(known)
        self._forget((known,))
        return False

    # -- to the primary

    def send(self, path: str, now: float, count_max: int, bytes_max: int) -> tuple[Send | None, list[Command]]:
        """Return what to send to `path` now: one message, or several that may share an AMQP transfer. The caller
        must report `confirmed` or `failed` for it once."""
        commands: list[Command] = []
        waiting = self._waiting.get(path)
        if not waiting:
            return None, commands
        obstacle = self.destinations.obstacle(path, now)
        if obstacle is not None:
            if not self.destinations.is_trying(path):
                self._leave_waiting(path, obstacle, commands)
            return None, commands
        if self.destinations.is_trial(path) or self.destinations.sends_singly(path):
            count_max = 1
        chosen: list[PendingTransfer] = []
        late: list[PendingTransfer] = []
        size = 0
        while waiting and len(chosen) < count_max:
            transfer = waiting[0]
            if transfer.locked_until - now < min(SPARE_S, transfer.lock_s / 4):
                late.append(waiting.popleft())
                continue
            if chosen and (transfer.alone or chosen[0].alone or size + transfer.size > bytes_max):
                break
            chosen.append(waiting.popleft())
            size += transfer.size
        if not waiting:
            del self._waiting[path]
        if late:
            self._move(late, Input.UNAVAILABLE)
            commands.append(Leave(path, late, _passing("its lock ran short before it was sent", "pairbus:late", now)))
        if not chosen:
            return None, commands
        epoch = self.destinations.begin(path)
        for transfer in self._move(chosen, Input.TAKEN):
            transfer.epoch = epoch
        return Send(path, chosen), commands

    def confirmed(self, transfers: Sequence[PendingTransfer]) -> list[Command]:
        """Note that the primary confirmed a send. This is the only way to a completion."""
        home = self._move(transfers, Input.CONFIRMED)
        for transfer in home:
            transfer.payload = b""
        if len(home) < len(transfers):
            for transfer in transfers:
                if transfer not in home:
                    self._remember(transfer)  # it was given up before the answer came
        if transfers:
            self.destinations.succeeded(transfers[0].path, transfers[0].epoch)
            if transfers[0].alone:
                self.destinations.answered_alone(transfers[0].path, is_confirmed=True)
        return [Complete(queue, given) for queue, given in _by_queue(home)]

    def failed(self, transfers: Sequence[PendingTransfer], error: WireError, now: float) -> list[Command]:
        """Note that a send was refused, or that its outcome is unknown."""
        commands: list[Command] = []
        if not transfers:
            return commands
        path, epoch = transfers[0].path, transfers[0].epoch
        verdict = verdict_of(error)
        trouble = Trouble(verdict, error.description, error.condition, 1, now, now)
        if verdict is RefusalVerdict.REFUSED:
            # it answered: whatever is wrong with these messages, nothing is wrong with the destination
            self.destinations.succeeded(path, epoch)
            if len(transfers) > 1:
                self.destinations.batch_refused(path, error, len(transfers))
                for transfer in self._move(reversed(transfers), Input.SPLIT):
                    transfer.alone = True
                    self._waiting.setdefault(path, deque()).appendleft(transfer)
                return commands
            self.destinations.answered_alone(path, is_confirmed=False)
        else:
            self.destinations.failed(path, epoch, error, now)
        if verdict.is_for_good:
            for transfer in transfers:
                self._reject(transfer, *_words(path, trouble), commands)
        else:
            left = self._move(transfers, Input.UNAVAILABLE)
            if left:
                commands.append(Leave(path, left, self.destinations.trouble(path) or trouble))
        self._leave_if_obstructed(path, now, commands)
        return commands

    def unsendable(self, path: str, error: WireError, now: float) -> list[Command]:
        """Note that the link to a destination could not be opened, and give up what waits for it."""
        commands: list[Command] = []
        self.destinations.failed(path, self.destinations.epoch(path), error, now)
        self._leave_if_obstructed(path, now, commands)
        return commands

    def _leave_if_obstructed(self, path: str, now: float, commands: list[Command]) -> None:
        obstacle = self.destinations.obstacle(path, now)
        if obstacle is not None and not self.destinations.is_trying(path):
            self._leave_waiting(path, obstacle, commands)

    def _leave_waiting(self, path: str, trouble: Trouble, commands: list[Command]) -> None:
        waiting = self._waiting.pop(path, ())
        if trouble.verdict.is_for_good:
            for transfer in waiting:
                self._reject(transfer, *_words(path, trouble), commands)
        elif waiting:
            self._move(waiting, Input.UNAVAILABLE)
            commands.append(Leave(path, list(waiting), trouble))

    # -- settling

    def settled(self, transfers: Sequence[PendingTransfer]) -> None:
        self._move(transfers, Input.SETTLED)
        for transfer in transfers:
            self._remembered.pop(transfer.key, None)

    def unsettled(self, transfers: Iterable[PendingTransfer], now: float, *, lock_lost: bool) -> list[Command]:
        """Note that a settlement failed or has an unknown outcome; ask for it again while the lock lasts. A message
        that
        stays in the backlog although it is home is delivered again, and recognised then."""
        commands: list[Command] = []
        again: list[PendingTransfer] = []
        for transfer in transfers:
            transfer.tries += 1
            if lock_lost or transfer.tries >= SETTLE_TRIES or transfer.locked_until <= now:
                self._lose(transfer)
            else:
                again += self._move((transfer,), Input.UNSETTLED)
        for queue, given in _by_queue(transfer for transfer in again if transfer.state is State.CONFIRMED):
            commands.append(Complete(queue, given))
        for transfer in again:
            if transfer.state is State.REFUSED and transfer.reason is not None:
                commands.append(DeadLetter(transfer.queue, [transfer], *transfer.reason))
        return commands

    def _lose(self, transfer: PendingTransfer) -> None:
        if transfer.state is State.CONFIRMED:
            self._remember(transfer)
        self._move((transfer,), Input.LOCK_LOST)

    # -- locks and time

    def tick(self, now: float) -> list[Command]:
        if now < self._ticked_at + TICK_S:
            return []
        self._ticked_at = now
        due: list[PendingTransfer] = []
        over = [transfer for transfer in self._left.values() if transfer.locked_until <= now]
        for transfer in self._transfers.values():
            if transfer.state is State.SENT:
                is_due = transfer.locked_until - now <= transfer.lock_s / 3 + TICK_S
                if is_due and transfer.renewal_at + min(RENEWAL_S, transfer.lock_s / 3) <= now:
                    transfer.renewal_at = now
                    due.append(transfer)
            elif transfer.state is State.WAITING and transfer.locked_until <= now:
                over.append(transfer)
        for transfer in over:
            if transfer.state is State.WAITING:
                self._unqueue(transfer)
        self._move(over, Input.LOCK_OVER)
        return [Renew(queue, transfers) for queue, transfers in _by_queue(due)]

    def renewed(self, transfers: Iterable[PendingTransfer], now: float) -> None:
        for transfer in transfers:
            transfer.locked_until = now + transfer.lock_s

    def revive(self, now: float) -> list[Command]:
        """Return the left messages to release before their locks end: all those of a destination that is back, and one
        of each that may be tried again. A lock's end is the back-off while a destination is away, not after."""
        commands: list[Command] = []
        due = set(self.destinations.due(now))
        for path in self.left_paths():
            if path in due:
                commands += self.retry(path, 1)
            elif self.destinations.obstacle(path, now) is None and self._in_hand.get(path, 0) < CROWD:
                commands += self.retry(path, LEFT_MAX)
        return commands

    # -- ending

    def retry(self, path: str, count_max: int) -> list[Command]:
        """Return left messages of a destination to release before their locks end, to try it or since it is back."""
        chosen = [each for each in self._left.values() if each.path == path and each.reason is None][:count_max]
        self._move(chosen, Input.RETRIED)
        return [Release(queue, transfers) for queue, transfers in _by_queue(chosen)]

    def stop(self) -> list[Command]:
        """Send nothing more. Callers wait a few seconds for answers, then call `give_up`."""
        self._stopping = True
        released = [transfer for transfers in self._waiting.values() for transfer in transfers]
        released += self._left.values()
        self._waiting.clear()
        self._move(released, Input.STOPPED)
        return [Release(queue, transfers) for queue, transfers in _by_queue(released)]

    def give_up(self) -> list[Command]:
        """Return what to release: messages without an answer from the primary, and those that it refused. What it
        confirmed must not be released, and waits for its lock to end."""
        commands = self.stop()
        held = list(self._transfers.values())
        released = [transfer for transfer in held if transfer.state is State.SENT]
        self._move(held, Input.GIVEN_UP)
        return [*commands, *(Release(queue, transfers) for queue, transfers in _by_queue(released))]

    def _reject(self, transfer: PendingTransfer, reason: str, description: str, commands: list[Command]) -> None:
        if not self._can_dead_letter:
            if self._move((transfer,), Input.UNAVAILABLE):
                transfer.reason = (reason, description)
                trouble = Trouble(RefusalVerdict.REFUSED, description, reason, 1, transfer.since, transfer.since)
                commands.append(Leave(transfer.path, [transfer], trouble))
        elif self._move((transfer,), Input.REJECTED):
            transfer.payload = b""
            transfer.reason = (reason, description)
            last = commands[-1] if commands else None
            if isinstance(last, DeadLetter) and last[0] == transfer.queue and last[2:] == (reason, description):
                last.transfers.append(transfer)
            else:
                commands.append(DeadLetter(transfer.queue, [transfer], reason, description))


def _words(path: str, trouble: Trouble) -> tuple[str, str]:
    """Return the reason and the description of a dead letter."""
    if trouble.verdict is RefusalVerdict.GONE:
        return "DestinationNotFound", f"the primary has no {path!r}: {trouble.text} ({trouble.condition})"
    return "DestinationRefused", f"{path!r} refused the message for good: {trouble.text} ({trouble.condition})"


def _passing(text: str, condition: str, now: float) -> Trouble:
    return Trouble(RefusalVerdict.UNREACHABLE, text, condition, 0, now, now)


def _by_queue(transfers: Iterable[PendingTransfer]) -> list[tuple[str, list[PendingTransfer]]]:
    found: dict[str, list[PendingTransfer]] = {}
    for transfer in transfers:
        found.setdefault(transfer.queue, []).append(transfer)
    return list(found.items())
