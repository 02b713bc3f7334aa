"""Defines the events that pairing announces and the commands that it gives to its shell. Pure.

Events state facts in the past tense; observers and subscribers get them in order, without times. Commands are
imperatives that the decisions leave in `Coordinator.commands` for the shell to carry out.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from pairbus.pairing.routing.states import EntityState

Action = Literal["force failover", "force failover and hold", "mark healthy"]


@dataclass(frozen=True, slots=True)
class Event:
    """Root of all events."""

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, each.name) for each in fields(self)]
        return _restored, (type(self), [_packed(each) if isinstance(each, BaseException) else each for each in values])


#: How many errors behind an error are pickled with it.
_CAUSES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class _PackedError:
    """The parts of an error that can be pickled: the SDK's errors can't be rebuilt from their arguments, and hold
    tracebacks."""

    kind: type[BaseException]
    arguments: tuple[Any, ...]
    state: dict[str, Any]
    cause: _PackedError | None


def _packed(error: BaseException, causes: int = _CAUSES_MAX) -> _PackedError:
    cause = error.__cause__
    return _PackedError(
        next(kind for kind in type(error).__mro__ if issubclass(kind, BaseException) and _can_be_pickled(kind)),
        tuple(each if _can_be_pickled(each) else str(each) for each in error.args),
        {name: value for name, value in vars(error).items() if _can_be_pickled(value)},
        _packed(cause, causes - 1) if cause is not None and causes else None,
    )


def _unpacked(packed: _PackedError) -> BaseException:
    error = packed.kind.__new__(packed.kind, *packed.arguments)
    error.args = packed.arguments
    vars(error).update(packed.state)
    error.__cause__ = None if packed.cause is None else _unpacked(packed.cause)
    return error


def _can_be_pickled(value: object) -> bool:
    try:
        pickle.loads(pickle.dumps(value))  # our own bytes
    except Exception:
        return False
    return True


def _restored(kind: type[Event], values: list[Any]) -> Event:
    return kind(*(_unpacked(each) if isinstance(each, _PackedError) else each for each in values))


@dataclass(frozen=True, slots=True)
class StateChanged(Event):
    entity: str
    previous: EntityState
    state: EntityState
    #: "send failed", "interval over", "ping succeeded" …: the inputs of `failover.TABLE`, in its words.
    cause: str
    #: The last failure of the entity that counted; None for a return, and for one that had not failed.
    error: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PingSucceeded(Event):
    entity: str
    #: Good pings in a row, and how many of them bring the entity back.
    good: int
    needed: int
    #: Once there are enough: seconds until messages go to the primary again, this client's share of `return_ramp`.
    return_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PingFailed(Event):
    entity: str
    #: True: the primary answered and refused. False: it did not answer, or was busy.
    reachable: bool
    error: BaseException


@dataclass(frozen=True, slots=True)
class OperatorActed(Event):
    """`force_failover` or `mark_healthy` was called, whether it changed a state or not."""

    entity: str
    action: Action


@dataclass(frozen=True, slots=True)
class ControlFileChanged(Event):
    """The control file was read and its content has changed."""

    #: Each name in the file, `*` for all others, with "failed-over", "healthy" or "auto".
    pins: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ControlFileUnusable(Event):
    """The control file can't be read or followed: its last valid content stays in force."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class BacklogQueueEjected(Event):
    queue: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class BacklogQueueReturned(Event):
    queue: int


@dataclass(frozen=True, slots=True)
class BacklogQueueLeftOut(Event):
    """Pairing could neither find nor create this backlog queue."""

    queue: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class WarmLinkFailed(Event):
    """The link to a backlog queue that is kept open could not be opened; it is tried again, with another queue.

    Announced once until it is open again.
    """

    queue: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class MessageDiverted(Event):
    entity: str
    queue: int
    count: int
    message_ids: tuple[str, ...]
    #: The rule by which they left for the backlog, in the words of the ledger: "failed over", "throttled" …
    rule: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SizeWarning(Event):
    """A message went to the primary that would not fit into the backlog."""

    entity: str
    size: int
    diverted_size: int
    limit: int


@dataclass(frozen=True, slots=True)
class EntityThrottled(Event):
    entity: str
    #: Seconds from now for which sends, receives and management calls of this entity pause.
    until_s: float
    #: Whether its messages go to the backlog instead of waiting: the option `while_throttled`.
    diverted: bool = False


@dataclass(frozen=True, slots=True)
class PairingDegraded(Event):
    """The secondary could not be set up; pairing goes on trying."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class PairingCompleted(Event):
    backlog_queue_count: int


@dataclass(frozen=True, slots=True)
class SyphonStarted(Event):
    pass


@dataclass(frozen=True, slots=True)
class SyphonStopped(Event):
    #: None: it was told to stop.
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class ClientFaulted(Event):
    """A client was faulted because its partner closed or faulted."""

    namespace: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class SendPing:
    """Send one ping to the primary entity, and answer it: `ping_succeeded` or `ping_failed`, always and once."""

    entity: str


@dataclass(frozen=True, slots=True)
class OpenLinks:
    """Open the links of this entity's senders to the primary again, before somebody sends: it is back."""

    entity: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Hand the event to observers and subscribers."""

    event: Event


Command = SendPing | OpenLinks | Announce
