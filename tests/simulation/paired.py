"""What a paired client must decide: a second, plain account of its decisions, kept from the same facts. Pure.

Whoever runs a client writes down in a `History` (`paired`) what it was told and what it did: each verb is a method of
`Paired`. From that the account knows the state that every entity must have and the only steps that a call may take:

- Entities fail over one by one (P15), by their timer (P16, P17), come back by pings, trials or the operator (P21, P23,
  P31, P34, P35), and are pinged once at a time, when it is due: first at the client's phase, then once per interval
  (P31, P33). With a return ramp they come back by the client's share of it later (P21). What the control file pins
  nothing else moves (P23). Events tell all of it (P23).
- A call goes to the primary, to the backlog queue that its sender keeps (P12), to an ejected queue as its only trial
  (P13), to the primary once more, or fails with the error that is due; each attempt gets its share of the time (P19).
- Where both sides say no there is another round, after each of the SDK's waits; a host that refuses is asked at one
  queue (P13). What a broker has said to a call wins over the silence after it (P18).
- After server busy an entity pauses for ten seconds, in which its messages wait or go to the backlog (P24); too many
  slow sends count as a failure, slow pings for none.
- The primary's silence is waited for as long as the patience says (P19), over any number of calls that are given up
  (P16); after a short one a ping asks at once, if the primary was heard meanwhile. Opening a link is silence too,
  waited for as long as this client's openings took lately; after a return links are opened before somebody sends.
- Sent is what a broker confirmed, and nothing else (P22). It arrives, and more than once only where an answer was lost,
  or where the syphon, which is watched as well (P39), could not know.

Of the product it knows what callers see: options, steps, events, states. After the first breach it judges no more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusServerBusyError,
)

from pairbus.pairing.errors import (
    BacklogUnavailableError,
    EntityUnreachableError,
    NoTimeLeftError,
    NotTriedError,
    is_nothing_sent,
)
from pairbus.pairing.events import (
    BacklogQueueEjected,
    BacklogQueueReturned,
    ControlFileChanged,
    EntityThrottled,
    Event,
    OperatorActed,
    PingSucceeded,
    StateChanged,
)
from pairbus.pairing.options import Settings
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import Failed, Sent, Step, TryBacklog, TryPrimary, Wait
from pairbus.pairing.routing.states import EntityState

from .paired_entity import FAILED_OVER, HEALTHY, SUSPECT, Attempt, Broken, Entity, demand, is_close

GIVEN_UP_S: Final = 5.0
LEAST_S: Final = 0.001
#: So late the answer to an attempt may be whose time is over.
SLACK_S: Final = 0.25
_BUSY: Final = ServiceBusServerBusyError(message="busy")
#: What a failed attempt says: of the entity, or (late, not tried, large) of the answer, the client or the message.
Kind = Literal["down", "late", "busy", "gone", "large", "not tried"]


def kind_of(error: BaseException) -> Kind:
    """Return what an error says, of those that the worlds know."""
    kinds: dict[Kind, tuple[type[BaseException], ...]] = {
        "not tried": (NotTriedError,),
        "busy": (ServiceBusServerBusyError,),
        "late": (OperationTimeoutError,),
        "large": (MessageSizeExceededError,),
        "gone": (MessagingEntityNotFoundError, MessagingEntityDisabledError, ServiceBusAuthorizationError),
    }
    for kind, classes in kinds.items():
        if isinstance(error, classes):
            return kind
    return "gone" if getattr(error, "_condition", None) == "amqp:not-allowed" else "down"


class View(NamedTuple):
    """What can be asked of a client."""

    states: dict[str, EntityState]
    halts: dict[str, float]
    ejected: dict[int, float]
    queues: tuple[int, ...]
    deadline: float | None


def view_of(coordinator: Coordinator) -> View:
    states, rotation = coordinator.states(), coordinator.rotation
    halts = {entity: coordinator.halted_until(entity) for entity in states}
    return View(states, halts, rotation.ejected, rotation.queues, coordinator.deadline)


@dataclass(slots=True, eq=False)
class Call:
    """One call of send_messages, and what the account expects of its next steps."""

    id: Any
    entity: str
    sender: Any
    granted_s: float
    began: float
    ends: float
    at: Attempt | None = None
    last: Attempt | None = None
    is_over: bool = False
    is_sent: bool = False
    confirmed: bool = False
    failures: int = 0
    leaving: bool = False
    is_throttled: bool = False  # it left because of a busy pause, and for nothing else
    due_error: BaseException | type[BaseException] | None = None
    tried: list[int] = field(default_factory=list)
    #: In this round: whether each queue that was asked said no, one of them for its host, and when.
    is_refused: bool | None = None
    is_host_refused: bool = False
    refused_at: float = 0.0
    #: How many rounds are over, and when the next one may begin.
    rounds: int = 0
    resumes_at: float = 0.0
    #: What a broker said last to an attempt that the SDK repeats, or before a busy pause.
    heard: BaseException | None = None
    busy: BaseException | None = None
    was_trial: bool = False
    was_once_more: bool = False
    kept_s: float | None = None  # what its backlog queues leave for the primary
    #: Attempts that a broker may have stored, at the primary and in the backlog.
    at_primary: int = 0
    in_backlog: int = 0


class Paired:
    """The account of one paired client and of the syphons behind it. Its verbs are the public methods."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self._is_broken = False
        self.settings = Settings()
        self._prompt = True
        self._draw = 0.0
        self._pins: dict[str, str] = {}
        self._pinned_at = 0.0
        self._queues: list[int] = []
        self._entities: dict[str, Entity] = {}
        self._told: dict[str, EntityState] = {}
        self._owed: set[tuple[type[Event], str]] = set()  # events that must be told before anything else
        self._calls: dict[Any, Call] = {}
        #: When the primary last confirmed a message, of whatever entity.
        self._heard = -math.inf
        #: How long each opening of a link to the primary took.
        self._openings: list[float] = []
        self._owed_links: set[str] = set()  # of entities that have come back
        self._out: dict[int, float] = {}  # queues that are ejected, until
        self._trying: set[int] = set()
        self._refused: set[int] = set()  # ejected ones that said no
        self._waits: tuple[float, ...] = ()
        self._terms: dict[int, int] = {}
        self._kept: dict[Any, tuple[int, int]] = {}
        # What syphons carry: by their name and the message's key in the backlog.
        self._under_way: set[tuple[str, Any]] = set()
        self._known_home: set[tuple[str, Any]] = set()
        self._home: set[Any] = set()
        self._carried: Counter[str] = Counter()  # id → so often a syphon may have stored it

    def __repr__(self) -> str:
        return f"<Paired: {len(self._calls)} calls, {len(self._entities)} entities>"

    def fold(self, verb: str, *fields: Any) -> None:
        """Judge one event; after a breach nothing is judged."""
        if self._is_broken:
            return
        try:
            if verb != "told" and self._owed:
                missing = ", ".join(sorted(f"{kind.__name__} of {entity}" for kind, entity in self._owed))
                raise Broken(f"P23: nobody was told: {missing}")
            if verb not in ("told", "reopens") and self._owed_links:
                raise Broken(f"P19: back, and no link is opened: {sorted(self._owed_links)}")
            do: Callable[..., None] = getattr(self, verb)
            do(*fields)
        except Broken as broken:
            self._is_broken = True
            what = ", ".join(map(str, fields))
            self._problems.append(f"{broken} ({verb}: {what})")

    def _entity(self, name: str) -> Entity:
        if name not in self._entities:
            entity = self._entities[name] = Entity(self.settings, self._draw)
            entity.pinned(self._pinned_at, self._pin_of(name))
        return self._entities[name]

    def _pin_of(self, name: str) -> str | None:
        word = self._pins.get(name, self._pins.get("*", "auto"))
        return None if word == "auto" else word

    # -- what a client is told

    def began(
        self,
        settings: Settings,
        queues: Sequence[int],
        prompt: bool = True,
        draw: float = 0.0,
        waits: Sequence[float] = (),
    ) -> None:
        """`prompt`: its timers are exact. `draw`: the number that it draws whenever it may draw one. `waits`: those of
        its SDK, before each retry."""
        self._waits = tuple(waits)
        self.settings, self._queues, self._prompt, self._draw = settings, list(queues), prompt, draw

    def learned(self, name: str, took: Sequence[float]) -> None:
        """It begins with the knowledge of how long answers took."""
        self._entity(name).took.extend(took)

    def control_file(self, pins: Mapping[str, str], now: float) -> None:
        """The control file says this from now on, with names in lower case."""
        self._pins, self._pinned_at = dict(pins), now
        self._owed.add((ControlFileChanged, ""))
        for name, entity in self._entities.items():
            entity.pinned(now, self._pin_of(name))

    def extended(self, queues: Sequence[int]) -> None:
        """It has its backlog queues now."""
        self._queues = list(queues)

    def closed(self, sender: Any) -> None:
        self._kept.pop(sender, None)

    def operated(self, name: str, what: str, now: float) -> None:
        """The operator, or (busy) a receiver that met a busy server."""
        entity = self._entity(name)
        if what != "busy":
            demand(entity.pin is None, "P23: the operator was let, and the control file pins it")
            self._owed.add((OperatorActed, name))
        if what == "mark":
            entity.marked(now)
        elif what == "busy":
            self._busy(name, now, sending=False)
        else:
            entity.forced(now, what == "hold")

    def _busy(self, name: str, now: float, *, sending: bool) -> bool:
        entity = self._entity(name)
        if entity.halted_until <= now:
            self._owed.add((EntityThrottled, name))
        return entity.busy(now, sending=sending)

    # -- calls

    def called(self, id: Any, entity: str, sender: Any, now: float, timeout: float | None) -> None:
        total = self.settings.send_timeout if timeout is None else timeout
        self._entity(entity)
        self._calls[id] = Call(id, entity, sender, total, now, now + total)

    def stepped(self, id: Any, step: Step, now: float, route: tuple[str, int | None]) -> None:
        """`route`: what the client says where the message is or was."""
        call = self._calls[id]
        entity = self._entity(call.entity)
        entity.clock(now)
        demand(call.at is None, "a step while an attempt is under way")
        if isinstance(step, Sent | Failed):
            demand(now <= call.ends + SLACK_S, f"P19: it took {now - call.began:.3f} s")
        is_once_more = self._compare(call, entity, now, step)
        if isinstance(step, Sent):
            call.is_over = call.is_sent = True
            place = None if call.last is None else call.last.queue
            demand(route == ("primary" if place is None else "backlog", place), f"P23: told as {route}")
        elif isinstance(step, Failed):
            call.is_over = True
        elif isinstance(step, TryPrimary):
            is_trial = entity.left and not is_once_more
            call.at = Attempt(None, step.timeout_s, entity.returns, is_trial, is_once_more, entity.left)
            call.at.patience_s = self._patience(entity, step, is_trial, is_once_more, now)
            call.at.opening_s = math.inf if step.terms is None else step.terms.opening_s
            if entity.asked is None:
                entity.asked = now
            call.at_primary += 1
            if is_trial:
                entity.begin_probe(now)
        elif isinstance(step, TryBacklog):
            is_trial = self._picked(call, entity, step.queue, now)
            call.at = Attempt(step.queue, step.timeout_s, is_trial=is_trial, term=self._terms.get(step.queue, 0))
            call.in_backlog += 1

    def _patience(self, entity: Entity, step: TryPrimary, is_trial: bool, is_once_more: bool, now: float) -> float:
        """Judge the terms of an attempt at the primary; return how long its silence is waited for (P19)."""
        is_spared = self._is_spared() and not is_once_more
        self._judge_opening(step, is_spared, is_trial)
        ends_at = None if step.terms is None else step.terms.ends_at
        is_wanted = is_spared or is_once_more or (is_trial and bool(self._queues))
        demand((ends_at is not None) == is_wanted, "P19: what ends the attempt")
        # That the primary is busy is no failure: it ends the last attempt alone, which the next round repeats (P13).
        demand(ends_at is None or ends_at(_BUSY) == is_once_more, "P19: what ends the attempt")
        silence_s = math.inf if step.terms is None else step.terms.silence_s
        wanted = self.settings.primary_patience
        if wanted == "adaptive" and is_spared and not is_trial:
            demand(silence_s >= 0.25, "P19: adaptive patience is never under 0.25 s")
            entity.judge_patience(silence_s, now)
        else:
            is_given = isinstance(wanted, float) and is_spared and not is_trial
            demand(silence_s == (wanted if is_given else math.inf), f"P19: the patience is {wanted}")
        return silence_s

    def _judge_opening(self, step: TryPrimary, is_spared: bool, is_trial: bool) -> None:
        """A link may take four times as long as nine of ten of the last openings took, and at least a second; three
        seconds while none is known, or as long as the option says (P19)."""
        wanted, limit_s = self.settings.primary_patience, math.inf
        if wanted == "adaptive" and self._queues and (is_spared or is_trial):
            count = len(self._openings)
            last = sorted(self._openings[: count if count < 64 else count - count % 8][-64:])
            limit_s = max(1.0, 4 * last[math.ceil(len(last) * 0.9) - 1]) if last else 3.0
        elif isinstance(wanted, float) and is_spared and not is_trial:
            limit_s = wanted
        opening_s = math.inf if step.terms is None else step.terms.opening_s
        demand(is_close(opening_s, limit_s) or opening_s == limit_s, f"P19: a link may take {limit_s:.3f} s to open")

    def opened(self, took_s: float) -> None:
        """A link to the primary was opened."""
        self._openings.append(took_s)

    def reopens(self, name: str) -> None:
        """The links of an entity that is back are opened."""
        demand(name in self._owed_links, f"P19: {name} has not come back")
        self._owed_links.discard(name)

    def redirected(self, id: Any, queue: int) -> None:
        """The attempt goes over the link that stands ready, to this queue; its sender keeps its own (P12, P19)."""
        call = self._calls[id]
        attempt = call.at
        if attempt is None or attempt.queue is None:
            raise Broken("P19: nothing is on its way to the backlog")
        demand(not attempt.is_trial, "P13: the trial of an ejected queue goes to that queue")
        demand(
            queue in set(self._queues) - set(self._out) - set(call.tried),
            "P13: the ready link's queue is out, or failed",
        )
        attempt.queue, attempt.term = queue, self._terms.get(queue, 0)

    def heard(self, id: Any, error: BaseException) -> None:
        """A broker answered an attempt, which goes on with a retry of the SDK's."""
        self._calls[id].heard = error

    def answered(
        self, id: Any, error: BaseException | None, now: float, is_unknown: bool = False, took_s: float | None = None
    ) -> None:
        """An attempt ended; `is_unknown`: a broker may have stored the message all the same. `took_s`: if measured."""
        call = self._calls[id]
        attempt = call.last = call.at
        call.at = None
        if attempt is None:
            raise Broken("an answer, and no attempt is under way")
        heard, call.heard = call.heard, None
        if error is not None and heard is not None:
            demand(kind_of(error) != "late", f"P18: a broker said {heard!r}, and it passes for silence")
        if error is None:
            call.confirmed = True
        else:
            call.failures += 1
            if not is_unknown:
                call.at_primary -= attempt.queue is None
                call.in_backlog -= attempt.queue is not None
        if attempt.queue is None:
            self._primary_answered(call, attempt, error, now, took_s)
        else:
            self._backlog_answered(call, attempt, attempt.queue, error, now)

    def given_up(self, id: Any, now: float) -> None:
        """The call was cancelled."""
        call = self._calls[id]
        attempt, call.at = call.at, None
        call.is_over = True
        if attempt is not None and attempt.queue is None and not attempt.is_trial and not attempt.is_once_more:
            entity = self._entity(call.entity)
            if entity.silent_for(now) > min(attempt.patience_s, call.granted_s / 2, GIVEN_UP_S):
                entity.failed(now, attempt.returns)
        if attempt is None or not attempt.is_trial:
            return
        if attempt.queue is None:
            self._entity(call.entity).end_probe(now, "nothing")
        else:
            self._trying.discard(attempt.queue)
            self._out[attempt.queue] = now + self.settings.backlog_retry_interval

    def _is_spared(self) -> bool:
        return bool(self._queues) and (self.settings.while_suspect == "divert" or self.settings.failover_interval == 0)

    def _leave_throttled(self, call: Call) -> None:
        """In a busy pause: it goes to the backlog, if the option says so and there is one (P24)."""
        if not call.leaving and self._queues and self.settings.while_throttled == "divert":
            call.leaving = call.is_throttled = True

    def _primary_answered(
        self, call: Call, attempt: Attempt, error: BaseException | None, now: float, took_s: float | None
    ) -> None:
        entity = self._entity(call.entity)
        if error is None or kind_of(error) in ("busy", "gone", "large"):
            entity.asked = None
        if attempt.is_once_more:
            took_s = None
        if error is None:
            self._heard = now
        if error is None and took_s is not None:
            entity.took.append(took_s)
        if error is None and took_s is not None and self._is_brownout(entity, attempt, now, took_s):
            return
        entity.clock(now)
        if error is None:
            if attempt.is_once_more:
                entity.sent_once_more(now, attempt)
            if attempt.is_trial:
                entity.end_probe(now, "good")
            entity.sent(now)
            return
        kind = kind_of(error)
        if attempt.is_once_more:
            self._failed_once_more(call, entity, attempt, error, now)
            return
        if attempt.is_trial:
            says_nothing = kind in ("large", "not tried")
            entity.end_probe(now, "refused" if kind == "gone" else "nothing" if says_nothing else "unanswered")
        too_long = kind == "busy" and self._busy(call.entity, now, sending=True) and not attempt.is_trial
        is_answered = kind == "late" and call.busy is not None  # the broker has said that it is busy (P18)
        if kind == "busy":
            call.busy = error
        if not attempt.is_trial and not is_answered and (too_long or kind in ("down", "late")):
            self._primary_failed(entity, attempt, kind, now, error)
        is_stale = attempt.returns != entity.returns and entity.pin is None
        if kind == "large" or (kind == "gone" and not (attempt.is_trial and entity.left)):
            call.due_error = error
        elif entity.left:
            pass
        elif is_answered:
            call.due_error = call.busy
        elif kind == "busy":
            call.leaving = too_long and self._is_spared()
            self._leave_throttled(call)
            if not call.leaving and entity.halted_until >= call.ends:
                call.due_error = error
        elif self._is_spared() or (is_stale and kind != "not tried" and self._queues):
            call.leaving = True
        else:
            call.due_error = error

    def _is_brownout(self, entity: Entity, attempt: Attempt, now: float, took_s: float) -> bool:
        """A success that came too late counts as a failure; a trial tells by itself (P24)."""
        if attempt.is_trial:
            if not entity.is_slow(took_s):
                return False
            entity.end_probe(now, "unanswered")
            return True
        if not entity.is_browned_out(took_s):
            return False
        entity.failed(now, attempt.returns)
        return True

    def _primary_failed(self, entity: Entity, attempt: Attempt, kind: Kind, now: float, error: BaseException) -> None:
        is_silence = kind == "late"
        patience_s = attempt.opening_s if is_nothing_sent(error) else attempt.patience_s
        is_impatient = attempt.granted_s < patience_s < math.inf  # the caller had less patience (P16)
        if is_silence and is_impatient and entity.silent_for(now) <= min(patience_s, GIVEN_UP_S):
            return
        was_left = entity.left
        entity.failed(now, attempt.returns)
        is_hasty = self.settings.primary_patience == "adaptive" and patience_s < attempt.granted_s
        is_new = entity.left and not was_left and entity.probe is None
        was_heard = now - self._heard < patience_s / 2  # so it probably is a false alarm: a ping asks at once
        if is_silence and is_hasty and is_new and was_heard and self.settings.probe == "ping":
            entity.due, entity.is_soon = min(entity.due, now), True

    def _failed_once_more(self, call: Call, entity: Entity, attempt: Attempt, error: BaseException, now: float) -> None:
        kind = kind_of(error)
        if kind == "busy":
            call.busy = error
            if self._busy(call.entity, now, sending=True):
                entity.failed(now, attempt.returns)
            return
        is_answered = kind == "late" and call.busy is not None  # P18: the entity was busy, not silent
        if kind in ("down", "late") and not is_answered:
            entity.failed(now, attempt.returns)
        call.was_once_more = call.leaving = True
        if kind == "large":
            call.due_error = error
        elif not self._last_queues(call):
            self._end_round(call)

    def _last_queues(self, call: Call) -> set[int]:
        """Queues, ejected or not, that this message was not at, unless their host refuses."""
        return set() if call.is_host_refused else set(self._queues) - set(call.tried)

    def _end_round(self, call: Call) -> None:
        """Another round is due, where the backlog said no and the SDK's wait leaves time for it (P13); or the error."""
        wait_s = self._waits[call.rounds] if call.is_refused and call.rounds < len(self._waits) else math.inf
        if call.ends - (call.refused_at + wait_s) < LEAST_S:
            call.due_error = BacklogUnavailableError
            return
        call.rounds += 1
        call.resumes_at = call.refused_at + wait_s
        call.was_once_more = call.is_host_refused = False
        call.is_refused = call.kept_s = None
        del call.tried[:1]

    def _backlog_answered(
        self, call: Call, attempt: Attempt, queue: int, error: BaseException | None, now: float
    ) -> None:
        call.tried.append(queue)
        kind = None if error is None else kind_of(error)
        if error is not None:
            is_no = kind not in ("late", "not tried")
            call.is_refused = is_no and call.is_refused is not False
            call.is_host_refused = is_no and isinstance(error.__cause__, ConnectionRefusedError)
            call.refused_at = now
        is_stale = attempt.term != self._terms.get(queue, 0)
        is_impatient = kind == "late" and attempt.granted_s < min(1.0, self.settings.send_timeout / 8)
        if kind == "large":
            call.due_error = error
        if attempt.is_trial:
            self._trying.discard(queue)
            if error is None:
                del self._out[queue]
                self._refused.discard(queue)
                self._terms[queue] = self._terms.get(queue, 0) + 1
            else:
                self._out[queue] = now + self.settings.backlog_retry_interval
                if kind in ("down", "late", "busy", "gone") and not is_impatient:
                    (self._refused.discard if kind == "late" else self._refused.add)(queue)
        elif kind in ("down", "late", "busy", "gone") and not (is_impatient or is_stale) and queue not in self._out:
            self._out[queue] = now + self.settings.backlog_retry_interval
            (self._refused.discard if kind == "late" else self._refused.add)(queue)

    # -- the steps that a call may take

    def _usable(self, call: Call, now: float) -> tuple[set[int], set[int]]:
        """Queues in the rotation, and ejected ones that a trial may try, that this message has not been at."""
        usable = set(self._queues) - set(self._out) - set(call.tried)
        due = {queue for queue, at in self._out.items() if now >= at} - self._trying - set(call.tried)
        return usable, due

    def _refused_before(self, call: Call) -> set[int]:
        """Where nothing else is left: ejected queues that said no, for a message that was nowhere yet (P13)."""
        return set() if call.tried else self._refused - self._trying

    def _picked(self, call: Call, entity: Entity, queue: int, now: float) -> bool:
        """Take note of the pick; return whether it is the one trial of an ejected queue (P13)."""
        if call.was_once_more:
            is_trial = queue in self._out and queue not in self._trying
            if is_trial:
                self._trying.add(queue)
            return is_trial
        usable, due = self._usable(call, now)
        if due and (not call.was_trial or not usable):
            demand(queue in due, f"P13: it passes by {due}, which wait for their trial")
            self._trying.add(queue)
            call.was_trial = True
            return True
        if not usable and queue in self._refused_before(call):
            self._trying.add(queue)
            call.was_trial = True
            return True
        demand(queue in usable, "P13: a queue that is ejected, or that failed this message already")
        kept = self._kept.get(call.sender)
        if kept is not None and kept[0] == entity.returns and kept[1] in usable:
            demand(queue == kept[1], f"P12: its sender leaves queue {kept[1]}")
        self._kept[call.sender] = (entity.returns, queue)
        return False

    def _compare(self, call: Call, entity: Entity, now: float, step: Step) -> bool:
        """Judge whether this is the step that is due; return whether it is the one to the primary once more."""
        remaining = call.ends - now
        if call.confirmed:
            demand(isinstance(step, Sent), "P20: a broker has confirmed it, and it goes on")
            return False
        demand(not isinstance(step, Sent), "P22: called sent, and no broker has confirmed it")
        if call.due_error is not None:
            _demand_failed(step, call.due_error)
            return False
        if remaining < LEAST_S:
            _demand_failed(step, NoTimeLeftError)
            return False
        is_halted = entity.halted_until > now
        if is_halted and not entity.left:
            self._leave_throttled(call)
        if not call.leaving:
            if not entity.left:
                self._compare_primary(call, entity, now, step)
                return False
            if (
                self.settings.probe == "trial" and not entity.held and entity.probe is None and not is_halted
                and now >= entity.due and entity.home is None and not call.failures
            ):  # fmt: skip
                demand(isinstance(step, TryPrimary), "P31: whoever sends next is the trial")
                self._compare_primary(call, entity, now, step)
                return False
            if entity.refused and self.settings.when_unreachable == "raise":
                _demand_failed(step, EntityUnreachableError)
                return False
        if now < call.resumes_at:
            _demand_wait(step, call.resumes_at)
            return False
        if call.was_once_more:
            self._compare_last_queue(call, remaining, step)
            return False
        kept_s = call.kept_s
        if kept_s is None:
            kept_s = min(call.granted_s / 8, remaining / 2)
            kept_s = kept_s if remaining - kept_s >= LEAST_S else 0.0
        usable, due = self._usable(call, now)
        refused = set() if usable | due else self._refused_before(call)
        if call.is_host_refused or remaining - kept_s < LEAST_S or not usable | due | refused:
            return self._compare_once_more(call, entity, now, step)
        call.kept_s = kept_s
        self._demand_backlog(step, remaining - kept_s, usable | due | refused, is_last=bool(refused))
        return False

    def _compare_primary(self, call: Call, entity: Entity, now: float, step: Step) -> None:
        remaining = call.ends - now
        if entity.halted_until <= now:
            self._demand_primary(step, remaining / 2 if self._queues else remaining, f"P16, {entity.state.value}")
        elif entity.halted_until < call.ends:
            wake = entity.wake()
            _demand_wait(step, entity.halted_until if wake is None else min(wake, entity.halted_until))
        else:
            _demand_failed(step, ServiceBusServerBusyError)

    def _compare_once_more(self, call: Call, entity: Entity, now: float, step: Step) -> bool:
        """The primary, whatever its state (P13), but for a halt."""
        remaining = call.ends - now
        if entity.halted_until <= now:
            rounds_left = len(self._waits) - call.rounds if call.is_refused else 0
            halves = 1 + min(rounds_left, 3) if rounds_left else bool(self._last_queues(call))
            share = remaining / 2**halves
            self._demand_primary(step, share, "P13, once more")
            return True
        if entity.halted_until < call.ends:
            _demand_wait(step, entity.halted_until)
        else:
            _demand_failed(step, ServiceBusServerBusyError if call.is_throttled else BacklogUnavailableError)
        return False

    def _compare_last_queue(self, call: Call, remaining: float, step: Step) -> None:
        """After that, the queues that it was not at, ejected or not."""
        if left := self._last_queues(call):
            self._demand_backlog(step, remaining, left)
            return
        self._end_round(call)
        if call.due_error is not None:
            _demand_failed(step, BacklogUnavailableError)
        else:
            _demand_wait(step, call.resumes_at)

    def _demand_primary(self, step: Step, share: float, why: str) -> None:
        if not isinstance(step, TryPrimary):
            raise Broken(f"{why}: it does not go to the primary")
        demand(is_close(step.timeout_s, share), f"P19: the primary's share is {share:.3f} s")

    def _demand_backlog(self, step: Step, left: float, queues: set[int], is_last: bool = False) -> None:
        if not isinstance(step, TryBacklog):
            raise Broken("P13, P16: it does not go to the backlog")
        demand(step.queue in queues, f"P13: queues that may take it: {queues}")
        share = left / 2 if queues - {step.queue} and not is_last else left
        demand(is_close(step.timeout_s, share), f"P13, P19: the share of queue {step.queue} is {share:.3f} s")

    # -- pings, time, events

    def pinged(self, name: str, now: float) -> None:
        """A ping to the primary begins."""
        entity = self._entity(name)
        entity.clock(now)
        demand(self.settings.probe == "ping", "P31: a ping, where trials are asked for")
        is_due = is_close(now, entity.due) or is_close(now, entity.freed)
        demand(is_due or not self._prompt, f"P31: a ping at {now:.3f}, and not at {entity.due:.3f}")
        entity.begin_probe(now)

    def ping_answered(self, name: str, error: BaseException | None, now: float, took_s: float = 0.0) -> None:
        entity = self._entity(name)
        entity.freed = now
        kind = None if error is None else kind_of(error)
        if kind is None and entity.is_slow(took_s):
            kind = "late"
        if kind == "busy":
            self._busy(name, now, sending=False)
        counts = entity.end_probe(now, "good" if kind is None else "refused" if kind == "gone" else "unanswered")
        if kind == "busy" and counts:
            entity.due = max(entity.due, entity.halted_until)
        if kind is None and counts:
            self._owed.add((PingSucceeded, name))

    def told(self, event: Event) -> None:
        """An event was announced."""
        self._owed.discard((type(event), getattr(event, "entity", "")))
        if isinstance(event, StateChanged):
            demand(self._told.get(event.entity, HEALTHY) is event.previous, "P23: a change was not told")
            demand(event.state is not event.previous, "P23: no change")
            self._told[event.entity] = event.state
            if event.state is HEALTHY and event.previous is not SUSPECT:
                self._owed_links.add(event.entity)
        elif isinstance(event, BacklogQueueEjected):
            demand(event.queue in self._out, "P13: this queue did not fail")
        elif isinstance(event, BacklogQueueReturned):
            demand(event.queue not in self._out, "P13: this queue did not take its trial")

    def ticked(self, now: float, view: View) -> None:
        """The client has done all that was due. One thing will wake a sick entity: the clock, or else its probe, a
        message, or the operator."""
        self.looked(now, view)
        for name, state in view.states.items():
            demand(state is self._entity(name).state, f"P16: {name} is {state.value} after a tick")
        wakes = [wake for entity in self._entities.values() if (wake := entity.wake()) is not None]
        due = min(wakes, default=None)
        is_right = view.deadline is None if due is None else view.deadline is not None and is_close(view.deadline, due)
        demand(is_right, f"P16, P31: it will wake at {view.deadline}, and not at {due}")
        demand(view.deadline is None or view.deadline > now, "P16, P31: something was due, and is still")

    def looked(self, now: float, view: View) -> None:
        """This is what the client shows."""
        for name, state in view.states.items():
            entity = self._entity(name)
            entity.clock(now)
            demand(self._told.get(name, HEALTHY) is state, f"P23: events do not say that {name} is {state.value}")
            # The interval or the return ramp is over, and nobody has looked at the clock yet.
            is_over = (state is SUSPECT and entity.state is FAILED_OVER) or (
                entity.ramp_s > 0 and state is not SUSPECT and entity.state is HEALTHY
            )
            is_late = is_over and view.deadline is not None and view.deadline <= now
            demand(state is entity.state or is_late, f"P15–P35: {name} must be {entity.state.value}, not {state.value}")
            halt = view.halts[name]
            is_forgotten = not halt and entity.halted_until <= now
            demand(halt == entity.halted_until or is_forgotten, f"P24: {name} must pause until {entity.halted_until}")
        demand(view.ejected == self._out, f"P13: ejected must be {self._out}, not {view.ejected}")
        queues = sorted(set(self._queues) - set(self._out))
        demand(sorted(view.queues) == queues, f"P13: the rotation must be {queues}, not {view.queues}")

    # -- messages, and the syphons that carry them

    def carries(self, syphon: str, key: Any, id: str) -> None:
        """A syphon begins to send a message of the backlog, which it knows by its key, to the primary."""
        demand((syphon, key) not in self._under_way, f"P39: {syphon} sends {id} a second time at once")
        demand((syphon, key) not in self._known_home, f"P39: {syphon} knows that {id} is home, and sends it again")
        self._under_way.add((syphon, key))
        self._carried[id] += 1

    def carried(self, syphon: str, key: Any, id: str, outcome: Literal["confirmed", "refused", "unknown"]) -> None:
        self._under_way.discard((syphon, key))
        if outcome == "confirmed":
            self._known_home.add((syphon, key))
            self._home.add(key)
        elif outcome == "refused":
            self._carried[id] -= 1

    def power_cut(self) -> None:
        """The secondary has lost its power, and perhaps what was completed last: a syphon can't know that."""
        self._known_home.clear()

    def completes(self, syphon: str, key: Any) -> None:
        demand(key in self._home, f"P39: {syphon} completes {key}, which the primary has not confirmed")

    def found(self, copies: Mapping[Any, int], once: Collection[str] = (), dead: Iterable[Any] = ()) -> None:
        """These messages are in all queues, so often; `dead` are those that syphons gave up, and `once` entities that
        find duplicates. Copies in the backlog count, unless they were carried home."""
        dead = set(dead)
        for call in self._calls.values():
            count = copies.get(call.id, 0)
            if call.is_sent:
                demand(count > 0 or call.id in dead, f"P39: {call.id} was sent to {call.entity} and is lost")
            allowed = call.at_primary + (self._carried[call.id] or call.in_backlog)
            demand(count <= allowed, f"P20: {call.id} is there {count} times, and {allowed} can be explained")
            demand(count < 2 or call.entity not in once, f"P20: {call.id} is in {call.entity} {count} times")


def _demand_failed(step: Step, error: BaseException | type[BaseException]) -> None:
    if not isinstance(step, Failed):
        raise Broken(f"P17, P22: it must fail: {error!r}")
    is_right = isinstance(step.error, error) if isinstance(error, type) else step.error is error
    demand(is_right, f"P17, P22: it must fail with {error!r}")


def _demand_wait(step: Step, until: float) -> None:
    if not isinstance(step, Wait):
        raise Broken("P24: it does not pause")
    demand(is_close(step.until, until), f"P24: it must pause until {until:.3f}")
