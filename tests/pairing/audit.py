"""What must hold in every simulated world, checked as it happens and at the end. A breach raises with the trace.

Knows the requirements and the brokers' truth, and of the decisions only what their callers see: steps, events, states.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.errors import BacklogUnavailableError, NotTriedError, PairingError
from pairbus.pairing.events import (
    BacklogQueueEjected,
    BacklogQueueReturned,
    EntityThrottled,
    Event,
    PingSucceeded,
    StateChanged,
)
from pairbus.pairing.routing.dispatch import Failed, Sent, TryBacklog, TryPrimary, Wait
from pairbus.pairing.routing.states import EntityState
from pairbus.pairing.routing.verdicts import DEFAULT, Verdict
from pairbus.wire.errors import Busy

from .simulated_brokers import Namespace, Schedule, Stored, backlog_path

if TYPE_CHECKING:
    from .simulated_client import Attempt, Call, SimulatedClient
    from .simulated_syphon import SimulatedSyphon

HEALTHY, SUSPECT, FAILED_OVER, UNREACHABLE = EntityState
HALT_S = 10.0  # P24
# A timer fires up to 0.02 s late, and a call may wait for several of them in a row.
SLACK_S = 0.25
# Of the errors that the simulated brokers give: the entity is there, and does not want the message.
REFUSED = ("MessagingEntityNotFoundError", "MessagingEntityDisabledError", "ServiceBusAuthorizationError")
CLOSE = 1e-6

# What may lead from one state to another: the fact that was reported at that very moment.
CAUSES: dict[tuple[EntityState, EntityState], set[str]] = {
    (HEALTHY, SUSPECT): {"failed", "busy"},
    (HEALTHY, FAILED_OVER): {"failed", "busy", "forced"},  # failed: only with interval zero
    (SUSPECT, HEALTHY): {"sent", "marked healthy"},
    # the timer's own beat, or whoever comes first after it has run out
    (SUSPECT, FAILED_OVER): {"tick", "failed", "sent", "busy", "forced", "refused", "step", "marked healthy"},
    (FAILED_OVER, HEALTHY): {"ping ok", "sent", "marked healthy"},  # sent: only by a trial, or once more (P13)
    (FAILED_OVER, UNREACHABLE): {"ping refused", "refused", "failed"},  # failed: a trial's, by another table
    (UNREACHABLE, FAILED_OVER): {"ping failed", "ping ok", "failed", "busy", "forced", "sent", "refused"},
    (UNREACHABLE, HEALTHY): {"ping ok", "sent", "marked healthy"},
}


class Breach(AssertionError):
    pass


class Watch:
    """What the audit knows of one entity in one client."""

    def __init__(self) -> None:
        self.state = HEALTHY
        self.returned_at = 0.0
        self.since = 0.0
        self.halted_until = 0.0
        self.ping_at: float | None = None
        self.pinging = False
        self.good = 0
        self.held = False
        self.held_at = 0.0
        self.busy_since: float | None = None
        self.busy_at = 0.0
        self.trial: Call | None = None
        self.trial_at = 0.0
        self.halted_before = 0.0
        self.failed_over_at = 0.0
        self.trouble = False  # has any attempt or ping on it ever failed, or an operator touched it


class Audit:
    def __init__(self, schedule: Schedule, primary: Namespace, secondary: Namespace) -> None:
        self.schedule = schedule
        self.primary = primary
        self.secondary = secondary
        self.trace: list[tuple[float, str]] = []
        self.counts: Counter[str] = Counter()
        self.copies: dict[str, list[Stored]] = defaultdict(list)
        self.homes: dict[str, list[tuple[Stored, Stored, tuple[str, int]]]] = defaultdict(list)
        self.successes: Counter[str] = Counter()
        self.reported: dict[str, str] = {}  # message id → entity, of everything that was reported as sent
        self.freezes: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._watches: dict[tuple[str, str], Watch] = {}
        self._fact = "step"
        self._fact_attempt: Attempt | None = None
        self._fact_error: BaseException | None = None
        self._throttled_told = self._ping_told = False
        self._returned: dict[tuple[str, int], float] = {}
        self._out: dict[tuple[str, int], float] = {}
        self._trials: dict[tuple[str, int], Call] = {}
        self._syphon_halts: dict[tuple[str, int, str], float] = {}
        self._kept: dict[tuple[str, str], int] = {}

    def note(self, text: str) -> None:
        self.trace.append((self.schedule.now, text))

    def breach(self, text: str) -> None:
        self.note(f"BREACH: {text}")
        raise Breach(text)

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            self.breach(text)

    def watch(self, client: SimulatedClient, entity: str) -> Watch:
        key = (client.name, entity)
        found = self._watches.get(key)
        if found is None:
            found = self._watches[key] = Watch()
        return found

    def stood_still(self, client: SimulatedClient, start: float, end: float) -> float:
        """For how long of that time the client was frozen."""
        return sum(max(0.0, min(end, b) - max(start, a)) for a, b in self.freezes[client.name])

    # -- the life of a client

    def started(self, client: SimulatedClient) -> None:
        self.note(f"{client.name} starts")
        for key in [key for key in self._watches if key[0] == client.name]:
            del self._watches[key]
        for book in (self._out, self._trials, self._kept):
            for each in [each for each in book if each[0] == client.name]:
                del book[each]  # type: ignore[arg-type]

    def frozen(self, client: SimulatedClient, start: float, end: float) -> None:
        self.note(f"{client.name} stands still for {end - start:.1f} s")
        spans = self.freezes[client.name]
        if spans and spans[-1][1] >= start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))

    # -- a call

    def began(self, call: Call) -> None:
        self.counts["calls"] += 1
        self.watch(call.client, call.entity)

    def stepped(self, call: Call, step: object) -> None:
        watch = self.watch(call.client, call.entity)
        state = call.client.coordinator.state(call.entity)
        now = self.schedule.now
        self.note(f"{call}: {step!r}")
        total = call.client.settings.send_timeout if call.timeout is None else call.timeout
        if isinstance(step, TryPrimary | TryBacklog):
            self.check(step.timeout_s > 0, f"{call} got no time: {step!r}")
            self.check(now + step.timeout_s <= call.began + total + CLOSE, f"P19: {call} may pass its end: {step!r}")
        if isinstance(step, TryPrimary):
            self._step_primary(call, step, watch, state, total)
        elif isinstance(step, TryBacklog):
            self._step_backlog(call, step, state, call.began + total - now, total)
        elif isinstance(step, Wait):
            # sooner than the halt's end only for the end of the interval: then the message has somewhere to go (P17)
            until = step.until - call.client.offset
            soonest = min(watch.halted_until, watch.since + call.client.settings.failover_interval)
            self.check(until >= soonest - CLOSE, f"P24: {call} waits only until {until:.3f}")
            self.check(until < call.began + total, f"P24: {call} waits past its end")
            call.busy = True
        elif isinstance(step, Failed):
            self._step_failed(call, step, state, total)
        else:
            self.check(isinstance(step, Sent), f"what is {step!r}?")

    def _step_primary(self, call: Call, step: TryPrimary, watch: Watch, state: EntityState, total: float) -> None:
        trial = call.client.settings.probe == "trial"
        remaining = call.began + total - self.schedule.now
        assert call.dispatch is not None
        call.once_more = call.dispatch._once_more  # from outside a trial without any backlog queue looks the same
        if call.once_more:
            tried = call.primary_tries + call.backlog_tries > 0 or state in (FAILED_OVER, UNREACHABLE)
            self.check(tried, f"P13: {call} is at the primary for the last time, and was nowhere before")
            # The primary is tried once more, whatever its state, and nothing is kept back any longer.
            self.check(not self._has_queue(call, remaining, total), f"P13: {call} passes by a backlog queue")
            untried = call.client.has_queues and set(call.client.queues) - call.tried
            share = remaining / 2 if untried else remaining
            self.check(abs(step.timeout_s - share) <= CLOSE, f"P13: {call}: the last attempt gets all: {step!r}")
            halted = self.schedule.now < watch.halted_until - CLOSE
            self.check(not halted, f"P24: {call} does not halt until {watch.halted_until:.2f}")
            call.primary_tries += 1
            call.primary_at = self.schedule.now
            return
        if state in (FAILED_OVER, UNREACHABLE):
            self.check(trial, f"P16: {call} goes to the primary, which is {state.value}")
            self.check(watch.trial is None, f"P31: a second trial at once: {call}")
            watch.trial, watch.trial_at = call, self.schedule.now
        self.check(
            self.schedule.now >= watch.halted_until - CLOSE, f"P24: {call} does not halt until {watch.halted_until:.2f}"
        )
        again = call.has_failed and call.primary_at >= watch.returned_at
        self.check(not again, f"P17: {call} failed at the primary and goes there again")
        interval = call.client.settings.failover_interval
        overdue = state is SUSPECT and self.schedule.now > watch.since + interval + CLOSE
        self.check(not overdue, f"P16: {call} goes to the primary, though its interval is over")
        share = remaining / 2 if call.client.has_queues else remaining
        self.check(step.timeout_s <= share + CLOSE, f"P19: {call} leaves the backlog less than half")
        call.primary_tries += 1
        call.primary_at = self.schedule.now

    def _kept_back(self, call: Call, remaining: float, total: float) -> float:
        """What the backlog leaves for the primary: an eighth of all, or half of what there was; nothing where only one
        attempt is left."""
        if call.kept_s is None:
            kept = min(total / 8, remaining / 2)
            assert call.dispatch is not None
            if abs(remaining - kept - 0.001) <= CLOSE:  # the two clocks differ by less than a rounding
                kept = call.dispatch._kept_s or 0.0
            elif remaining - kept < 0.001:
                kept = 0.0
            call.kept_s = kept
        return call.kept_s

    def _has_queue(self, call: Call, remaining: float, total: float) -> bool:
        """Some backlog queue could take the message now, and there is time for it."""
        client = call.client
        if not client.has_queues or (call.kept_s is not None and remaining - call.kept_s < 0.001 + CLOSE):
            return False
        due = self.schedule.now - client.settings.backlog_retry_interval - CLOSE
        return any(
            queue not in call.tried
            and ((key := (client.name, queue)) not in self._out or (self._out[key] < due and key not in self._trials))
            for queue in client.queues
        )

    def _step_backlog(self, call: Call, step: TryBacklog, state: EntityState, remaining: float, total: float) -> None:
        client, queue = call.client, step.queue
        settings = client.settings
        known = client.has_queues and queue in client.queues
        self.check(known, f"P3: {call} goes to backlog queue {queue}, which is not there")
        assert call.dispatch is not None
        # The primary has failed it again: now it goes wherever it was not, in the rotation or out. A busy primary only
        # leads to a halt, and then to the queues that are in the rotation.
        if call.dispatch._was_once_more:
            self.check(queue not in call.tried, f"P13: {call} goes to queue {queue} again")
            call.tried.add(queue)
            share = remaining / 2 if set(client.queues) - call.tried else remaining
            self.check(abs(step.timeout_s - share) <= CLOSE, f"P13: {call} has {remaining:.3f} s: {step!r}")
            if (client.name, queue) in self._out:
                self._trials.setdefault((client.name, queue), call)
            call.backlog_tries += 1
            return
        if call.backlog_tries == 0 and state is HEALTHY:
            self.check(call.primary_tries > 0, f"P14: {call} is diverted while the primary is healthy")
        if call.backlog_tries == 0 and state is SUSPECT:
            # a failure from before the primary was taken again has nobody to be told to: the message is diverted
            stale = call.primary_at <= self.watch(client, call.entity).returned_at
            allowed = settings.while_suspect == "divert" or stale
            self.check(allowed, f"P17: {call} is diverted while the primary is suspect")
        if state is UNREACHABLE:
            self.check(settings.when_unreachable == "divert", f"P34: {call} is diverted from an unreachable entity")
        out = self._out.get((client.name, queue))
        if call.backlog_tries == 0 and out is None:
            due = self.schedule.now - settings.backlog_retry_interval - CLOSE
            for (name, other), since in self._out.items():
                idle = name == client.name and since < due and (name, other) not in self._trials
                self.check(not idle, f"P13: {call} passes by queue {other}, which waits for its trial")
        if out is not None:
            self.check(
                self.schedule.now >= out + settings.backlog_retry_interval - CLOSE,
                f"P13: {call} goes to queue {queue}, ejected at {out:.2f}",
            )
            trial = self._trials.get((client.name, queue))
            self.check(trial is None, f"P13: {call} tries queue {queue} while {trial} does")
            self._trials[client.name, queue] = call
        else:
            kept = self._kept.get((client.name, call.sender))
            if kept is not None and call.backlog_tries == 0 and (client.name, kept) not in self._out:
                self.check(queue == kept, f"P12: {call} leaves queue {kept} for {queue}")
            self._kept[client.name, call.sender] = queue
        self.check(queue not in call.tried, f"P13: {call} goes to queue {queue} again")
        call.tried.add(queue)
        due = self.schedule.now - settings.backlog_retry_interval
        others = [
            other
            for other in client.queues
            if other not in call.tried
            and (
                (key := (client.name, other)) not in self._out
                or (self._out[key] < due - CLOSE and key not in self._trials)
            )
        ]
        left = remaining - self._kept_back(call, remaining, total)
        share = left / 2 if others else left
        # a queue whose time comes at this very moment may be counted or not
        meets = any(abs(out - due) <= CLOSE for (name, _), out in self._out.items() if name == client.name)
        self.check(
            abs(step.timeout_s - share) <= CLOSE or meets,
            f"P13: {call} has {remaining:.3f} s and {len(others)} more queues, and gives this one {step.timeout_s:.3f}",
        )
        call.backlog_tries += 1

    def _step_failed(self, call: Call, step: Failed, state: EntityState, total: float) -> None:
        settings, error = call.client.settings, step.error
        if (settings.failover_interval == 0 or settings.while_suspect == "divert") and call.client.has_queues:
            time_left = call.began + total - self.schedule.now > 0.01
            own = isinstance(error, PairingError) and not (isinstance(error, NotTriedError) and time_left)
            shown = own or settings.classifier(error) is not Verdict.QUALIFIES
            self.check(shown, f"P17: {call} sees a failure of the primary: {error!r}")
        if isinstance(error, BacklogUnavailableError):
            halted = self.schedule.now < self.watch(call.client, call.entity).halted_until
            self.check(call.once_more or halted, f"P13: {call} fails, and the primary was not tried once more")
        self.check(call.confirms == 0, f"P22: {call} is reported as failed, though a broker confirmed it: {step!r}")

    def tried(self, attempt: Attempt) -> None:
        call = attempt.call
        self.counts["attempts"] += 1
        self.copies[call.mid].append(attempt.copy)
        call.client.secondary.add([attempt.copy.path]) if attempt.queue is not None else None

    def late(self, attempt: Attempt, error: BaseException | None) -> None:
        self.counts["late answers"] += 1
        self.note(f"{attempt.call}: a late answer from {attempt.copy.path}: {error or 'stored'}")

    @contextmanager
    def fact(self, call: Call, attempt: Attempt, error: BaseException | None) -> Iterator[None]:
        """Around the report of an attempt's end."""
        where = "primary" if attempt.queue is None else f"queue {attempt.queue}"
        self.note(f"{call}: {where}: {'confirmed' if error is None else repr(error)}")
        watch = self.watch(call.client, call.entity)
        if attempt.queue is None:
            self._fact = self._primary_fact(call, watch, error)
        else:
            self._fact = "backlog"
            tried = self._end_trial(call, ended=error is not None)
        self._fact_attempt, self._fact_error = attempt, error
        was_halted, self._throttled_told = watch.halted_before > self.schedule.now, False
        is_trial = watch.trial is call and attempt.queue is None
        current = is_trial and not watch.held and watch.trial_at >= max(watch.failed_over_at, watch.held_at)
        yield
        if self._fact == "busy" and not was_halted:
            self.check(self._throttled_told, f"P24: {call}: {call.entity} is throttled, and nobody is told")
        if current and error is not None and not isinstance(error, NotTriedError):
            self._check_probed(call.client, call.entity, watch, error)
        self._fact, self._fact_attempt = "step", None
        self._check_ejected(attempt, error)
        if attempt.queue is None:
            self._check_busy(call, watch, error)
        elif error is None and tried:
            back = (call.client.name, attempt.queue) not in self._out
            self.check(back, f"P13: queue {attempt.queue} took its trial and does not come back")
        if watch.trial is call and attempt.queue is None:
            watch.trial = None

    def _check_ejected(self, attempt: Attempt, error: BaseException | None) -> None:
        """A queue that refused is out for everyone, unless it came back while this attempt was under way (P13)."""
        if attempt.queue is None or error is None or isinstance(error, OperationTimeoutError):
            return
        key = (attempt.call.client.name, attempt.queue)
        if self._returned.get(key, 0.0) <= attempt.since:
            self.check(key in self._out, f"P13: queue {attempt.queue} refused {attempt.call} and is not ejected")

    def _primary_fact(self, call: Call, watch: Watch, error: BaseException | None) -> str:
        if error is None:
            if call.once_more and watch.state in (FAILED_OVER, UNREACHABLE):
                watch.good += 1
            return "sent"
        watch.trouble = True
        verdict = expected_verdict(call, error)
        if verdict is Verdict.BUSY:
            call.busy = True
            watch.halted_before = watch.halted_until
            watch.halted_until = max(watch.halted_until, self.schedule.now + HALT_S)
            return "busy"
        if verdict is Verdict.QUALIFIES:
            call.has_failed = True
            return "failed"
        return "refused"

    def _over(self, call: Call) -> None:
        total = call.client.settings.send_timeout if call.timeout is None else call.timeout
        allowed = total + SLACK_S + self.stood_still(call.client, call.began, self.schedule.now)
        took = self.schedule.now - call.began
        self.check(took <= allowed, f"P19: {call} took {took:.3f} s of {total:g}")

    def sent(self, call: Call) -> None:
        self._over(call)
        self.counts["sent"] += 1
        self.note(f"{call}: reported as sent")
        self.check(call.confirms > 0, f"P22: {call} is reported as sent, and no broker confirmed it")
        self.check(call.confirms == 1, f"P20: {call} went on after a broker had confirmed it")
        assert call.dispatch is not None
        copy = next(copy for copy in reversed(self.copies[call.mid]) if copy.confirmed)
        primary = call.dispatch.route_word == "primary" and call.dispatch.queue is None
        told = call.entity if primary else backlog_path(call.dispatch.queue or 0)
        self.check(copy.path == told, f"P23: {call} was confirmed by {copy.path}, and told as {told}")
        self.successes[call.mid] += 1
        self.reported[call.mid] = call.entity

    def failed(self, call: Call, error: BaseException) -> None:
        self._over(call)
        self.counts["failed"] += 1
        self.note(f"{call}: the caller sees {error!r}")
        self._forget_trial(call)

    def forgotten(self, call: Call) -> None:
        self.counts["forgotten"] += 1
        self.note(f"{call}: cancelled or killed")
        if call.confirms:  # the answer was in, and the caller gone before it heard
            self.successes[call.mid] += 1
        self._forget_trial(call)

    def _forget_trial(self, call: Call) -> None:
        watch = self.watch(call.client, call.entity)
        if watch.trial is call:
            watch.trial = None
        self._end_trial(call, ended=True)

    def _end_trial(self, call: Call, *, ended: bool) -> bool:
        """Of a backlog queue. Unless it succeeded, the next one comes an interval later (P13)."""
        keys = [key for key, trying in self._trials.items() if trying is call]
        for key in keys:
            del self._trials[key]
            if ended and key in self._out:
                self._out[key] = self.schedule.now
        return bool(keys)

    def _check_busy(self, call: Call, watch: Watch, error: BaseException | None) -> None:
        """Nothing but busy for longer than `busy_failover_after`, without a break, is a failure (P24)."""
        now, limit = self.schedule.now, call.client.settings.busy_failover_after
        if error is None:
            watch.busy_since = None
        elif expected_verdict(call, error) is Verdict.BUSY:
            if watch.busy_since is None or now >= watch.busy_at + 2 * HALT_S:
                watch.busy_since = now
            watch.busy_at = now
            current = call.primary_at > watch.returned_at
            if limit is not None and current and now - watch.busy_since > limit + CLOSE:
                self.check(watch.state is not HEALTHY, f"P24: {call}: busy for more than {limit:g} s is no failure")

    # -- pings and timers

    @contextmanager
    def tick(self, client: SimulatedClient) -> Iterator[None]:
        self._fact = "tick"
        yield
        self._fact = "step"

    @contextmanager
    def operated(self, client: SimulatedClient, entity: str, healthy: bool, hold: bool) -> Iterator[None]:
        self.note(f"{client.name}: the operator {'marks' if healthy else 'holds' if hold else 'forces'} {entity}")
        self._fact = "marked healthy" if healthy else "forced"
        watch = self.watch(client, entity)
        watch.trouble = True
        if watch.held and not healthy and not hold:  # the pings begin anew
            watch.failed_over_at, watch.ping_at = self.schedule.now, None
        watch.held, watch.held_at = hold and not healthy, self.schedule.now
        yield
        self._fact = "step"

    def pinging(self, client: SimulatedClient, entity: str) -> None:
        watch = self.watch(client, entity)
        now, interval = self.schedule.now, client.settings.ping_primary_interval
        self.counts["pings"] += 1
        self.note(f"{client.name}: ping to {entity}")
        self.check(client.settings.probe == "ping", f"P31: {client.name} pings {entity}, told to use trials")
        self.check(
            watch.state in (FAILED_OVER, UNREACHABLE),
            f"P33: {client.name} pings {entity}, which is {watch.state.value}",
        )
        # one that was due at the very moment still goes
        self.check(
            not watch.held or now == watch.held_at, f"P23: {client.name} pings {entity}, which the operator holds"
        )
        self.check(not watch.pinging, f"P33: {client.name} sends a second ping to {entity} at once")
        before = watch.failed_over_at if watch.ping_at is None else watch.ping_at
        self.check(now - before >= interval - SLACK_S, f"P31: {client.name} pings {entity} after {now - before:.3f} s")
        allowed = interval + client.ping_timeout + HALT_S + SLACK_S + self.stood_still(client, before, now)
        self.check(now - before <= allowed, f"P31: {client.name} pings {entity} only after {now - before:.3f} s")
        watch.pinging = True
        watch.ping_at = now

    @contextmanager
    def pinged(self, client: SimulatedClient, entity: str, error: BaseException | None) -> Iterator[None]:
        watch = self.watch(client, entity)
        watch.pinging = False
        self._fact_error = error
        self.note(f"{client.name}: {entity} answers the ping: {'taken' if error is None else repr(error)}")
        if error is None:
            watch.good += 1
            self._fact = "ping ok"
        else:
            watch.good = 0
            watch.trouble = True
            if DEFAULT(error) is Verdict.BUSY:  # sends halt too
                watch.halted_until = max(watch.halted_until, self.schedule.now + HALT_S)
            self._fact = "ping refused" if DEFAULT(error) is Verdict.REFUSED else "ping failed"
        current = watch.state in (FAILED_OVER, UNREACHABLE) and watch.ping_at is not None and not watch.held
        self._ping_told = False
        yield
        if current and error is None:
            self.check(self._ping_told, f"P23: {client.name}: a good ping to {entity}, and nobody is told")
        elif current and error is not None:
            self._check_probed(client, entity, watch, error)
        self._fact = "step"

    def _check_probed(self, client: SimulatedClient, entity: str, watch: Watch, error: BaseException) -> None:
        """The state says what the last probe met (P34)."""
        expected = UNREACHABLE if type(error).__name__ in REFUSED else FAILED_OVER
        self.check(watch.state is expected, f"P34: {client.name}: {entity} is {watch.state.value} after {error!r}")

    # -- events

    def announced(self, client: SimulatedClient, event: Event) -> None:
        self.note(f"{client.name}: {event!r}")
        if isinstance(event, StateChanged):
            self._state_changed(client, event)
        elif isinstance(event, BacklogQueueEjected):
            self.counts["ejections"] += 1
            self.check((client.name, event.queue) not in self._out, f"P13: queue {event.queue} is ejected twice")
            back_since = self._returned.get((client.name, event.queue), 0.0)
            fresh = self._fact_attempt is not None and self._fact_attempt.since >= back_since
            self.check(fresh, f"P13: queue {event.queue} is ejected by an attempt from before its return")
            self._out[client.name, event.queue] = self.schedule.now
            for key in [key for key, kept in self._kept.items() if key[0] == client.name and kept == event.queue]:
                del self._kept[key]
        elif isinstance(event, EntityThrottled):
            self._throttled_told = True
        elif isinstance(event, PingSucceeded):
            self._ping_told = True
        elif isinstance(event, BacklogQueueReturned):
            self.check((client.name, event.queue) in self._out, f"P13: queue {event.queue} returns, and was never out")
            del self._out[client.name, event.queue]
            self._returned[client.name, event.queue] = self.schedule.now

    def _state_changed(self, client: SimulatedClient, event: StateChanged) -> None:
        watch = self.watch(client, event.entity)
        settings = client.settings
        now = self.schedule.now
        change = (event.previous, event.state)
        self.counts[f"{event.previous.value} → {event.state.value}"] += 1
        self.check(event.previous is watch.state, f"P23: {event!r}, but it was {watch.state.value}")
        allowed = CAUSES.get(change, set())
        self.check(self._fact in allowed, f"P23: {client.name}: {event!r} out of {self._fact!r}, not of {allowed}")
        if change == (SUSPECT, FAILED_OVER) and self._fact != "forced":
            took = now - watch.since
            self.check(took >= settings.failover_interval - CLOSE, f"P16: {event!r} after {took:.3f} s")
            late = settings.failover_interval + SLACK_S + self.stood_still(client, watch.since, now)
            self.check(took <= late, f"P16: {event!r} only after {took:.3f} s")
        if change == (HEALTHY, FAILED_OVER) and self._fact != "forced":
            self.check(settings.failover_interval == 0, f"P16: {event!r} before the interval")
        if change[0] in (FAILED_OVER, UNREACHABLE) and event.state is HEALTHY:
            if self._fact == "sent":
                call = None if self._fact_attempt is None else self._fact_attempt.call
                by_trial = call is not None and (watch.trial is call or call.once_more)
                self.check(by_trial, f"P21: {event!r} by a send that was no trial")
                if call is not None and call.once_more:
                    self.check(watch.good >= settings.pings_to_return, f"P35: {event!r} after {watch.good} good pings")
            elif self._fact == "ping ok":
                self.check(watch.good >= settings.pings_to_return, f"P35: {event!r} after {watch.good} good pings")
        if event.previous is HEALTHY and self._fact == "failed":
            fresh = self._fact_attempt is not None and self._fact_attempt.since >= watch.returned_at
            self.check(fresh, f"P16: {event!r} by an attempt from before the last return")
        if event.state is UNREACHABLE:
            refused = type(self._fact_error).__name__ in REFUSED
            self.check(refused, f"P34: {event!r} after {self._fact_error!r}, which is no refusal")
        if change == (HEALTHY, SUSPECT) and self._fact == "busy":
            self.check(settings.busy_failover_after is not None, f"P24: {event!r} though busy is no failure")
        if event.state is FAILED_OVER and event.previous in (HEALTHY, SUSPECT):
            # when the interval was over, however late that was noticed
            overdue = event.previous is SUSPECT and self._fact != "forced"
            watch.failed_over_at = watch.since + settings.failover_interval if overdue else now
            watch.ping_at = None
            watch.good = 0
        # at the next failover every sender picks anew (P12)
        for key in [key for key in self._kept if key[0] == client.name and key[1].startswith(event.entity)]:
            if HEALTHY in change:
                del self._kept[key]
        if event.state is HEALTHY:
            if self._fact != "sent" or event.previous is not SUSPECT:
                watch.returned_at = now
            watch.good = 0
            watch.trial = None
        watch.state, watch.since = event.state, now

    # -- the syphon

    def carried(self, syphon: SimulatedSyphon, copy: Stored, home: Stored) -> None:
        self.counts["carried"] += 1
        self.note(f"{syphon.name}: {copy.mid} from {copy.path} to {copy.home}")
        self.check(not copy.gone, f"P39: {syphon.name} carries {copy.mid}, which is settled")
        for other, earlier, life in self.homes[copy.mid]:
            known = other is copy and earlier.confirmed and life == (syphon.name, syphon.life)
            self.check(not known, f"P39: {syphon.name} knows that {copy.mid} is home, and sends it again")
        until = self._syphon_halts.get((syphon.name, syphon.life, copy.home), 0.0)
        self.check(self.schedule.now >= until - CLOSE, f"P24: {syphon.name} does not halt for {copy.home}")
        self.homes[copy.mid].append((copy, home, (syphon.name, syphon.life)))

    def syphon_failed(self, syphon: SimulatedSyphon, path: str, error: BaseException) -> None:
        self.note(f"{syphon.name}: {path}: {error!r}")
        if isinstance(error, Busy):
            self._syphon_halts[syphon.name, syphon.life, path] = self.schedule.now + HALT_S

    def settling(self, syphon: SimulatedSyphon, copy: Stored, *, dead: bool) -> None:
        self.note(f"{syphon.name}: {copy.mid} is to be {'dead-lettered' if dead else 'completed'} in {copy.path}")
        if dead:
            self.counts["dead-lettered"] += 1
            return
        home = any(home.confirmed and other is copy for other, home, _ in self.homes[copy.mid])
        self.check(home, f"P39: {syphon.name} completes {copy.mid}, which the primary never confirmed")

    # -- the end

    def all_healthy(self, clients: list[SimulatedClient]) -> None:
        for client in clients:
            for entity, state in client.coordinator.states().items():
                self.check(state is HEALTHY, f"P21: {client.name}: {entity} is still {state.value}")

    def finish(self, clients: list[SimulatedClient], entities: list[str]) -> None:
        self.all_healthy(clients)
        for client in clients:
            self.check(not client.calls, f"P19: {client.calls[:3]} never came to an end")
            for entity, state in client.coordinator.states().items():
                watch = self.watch(client, entity)
                self.check(state is watch.state, f"P23: {entity} is {state.value}, its events say {watch.state.value}")
                if not watch.trouble:
                    self.check(watch.since == 0.0, f"P15: {entity} left its state, and nothing ever failed on it")
        waiting = [copy.mid for path, copies in self.secondary.stored.items() for copy in copies]
        self.check(not waiting, f"P39: {len(waiting)} messages are still in the backlog: {waiting[:5]}")
        dead = {copy.mid for copy in self.secondary.dead}
        arrived: Counter[tuple[str, str]] = Counter()
        for path in entities:
            arrived.update((copy.mid, path) for copy in self.primary.stored[path])
        for mid, entity in self.reported.items():
            self.check(
                (mid, entity) in arrived or mid in dead, f"P39: {mid} was reported as sent to {entity} and is lost"
            )
        self.check(len(arrived) == len({mid for mid, _ in arrived}), "P27: a message came home to two entities")
        for (mid, _), count in arrived.items():
            self._check_copies(mid, count)

    def _check_copies(self, mid: str, count: int) -> None:
        """Twice only where somebody could not know: an answer lost or late, a syphon that died or lost its lock."""
        if count > 1:
            self.counts["duplicates"] += 1
        unknown = sum(1 for copy in self.copies[mid] if copy.at > 0 and not copy.confirmed)
        carried = [id(copy) for copy, home, _ in self.homes[mid] if home.at > 0]
        carried_again = len(carried) - len(set(carried))
        allowed = self.successes[mid] + unknown + carried_again
        self.check(count <= allowed, f"P20: {mid} arrived {count} times, and only {allowed} can be explained")


def expected_verdict(call: Call, error: BaseException) -> Verdict:
    """Of the errors that the simulated brokers give; the audit has a mind of its own about the default table."""
    if call.client.settings.classifier is not DEFAULT:
        return call.client.settings.classifier(error)
    if isinstance(error, NotTriedError):
        return Verdict.REFUSED
    name = type(error).__name__
    if name == "ServiceBusServerBusyError":
        return Verdict.BUSY
    return Verdict.REFUSED if name in REFUSED else Verdict.QUALIFIES
