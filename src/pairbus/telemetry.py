"""Reports metrics and spans of a paired client to OpenTelemetry, through the API only (extra `otel`).

`instrument(client)` on a paired client, or `observers=(TelemetryObserver("contoso"),)` when it is paired. The
application brings the SDK and its exporters, as for any library. It reports:

    pairbus.sends              counter, messages     by pairbus.entity, pairbus.route, pairbus.outcome
    pairbus.send.duration      histogram, seconds    the same; one value an attempt
    pairbus.diverted           counter, messages     confirmed by a backlog queue, by pairbus.entity, pairbus.queue,
                                                     pairbus.rule
    pairbus.pings              counter               by pairbus.entity, pairbus.outcome
    pairbus.entity.state       gauge, 1 or 0         by pairbus.entity, pairbus.state: 1 for the state that holds
    pairbus.backlog.ejected    up-down counter       backlog queues that are out of the rotation now
    span `pairbus divert`      one per diverted send, child of the current span and linked to it; its attributes
                               pairbus.rule, pairbus.why and pairbus.primary.seconds say which rule decided, why, and
                               how long the primary was given
    event `pairbus.state`      on the current span, when a change of state came out of it

All of them carry `pairbus.namespace`, the primary's name. It decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pairbus import __version__
from pairbus.errors import PairbusError
from pairbus.pairing import events
from pairbus.pairing.observers import OK, Observer, RouteWord
from pairbus.pairing.routing.dispatch import Diversion
from pairbus.pairing.routing.states import EntityState

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

SCOPE = "pairbus"


class TelemetryMissing(PairbusError, ImportError):
    """The package `opentelemetry-api` is not installed."""


class Watched(Protocol):
    """What `instrument` needs of a client: either `ServiceBusClient` has it."""

    @property
    def primary_name(self) -> str: ...
    def states(self) -> Mapping[str, EntityState]: ...
    def observe(self, observer: Observer) -> Callable[[], None]: ...


def instrument(
    client: Watched, *, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> Callable[[], None]:
    """Report to OpenTelemetry what the client does, until the returned function is called or the client closes.

    The client must be paired. Without providers the global ones are used, those set later too.
    """
    observer = TelemetryObserver(
        client.primary_name, client.states(), meter_provider=meter_provider, tracer_provider=tracer_provider
    )
    take_off = client.observe(observer)

    def end() -> None:
        take_off()
        observer.close()

    return end


class TelemetryObserver(Observer):
    """`namespace`: the primary's name. `states`: of entities that were in use before this observer came."""

    wants_sends = True

    def __init__(
        self,
        namespace: str,
        states: Mapping[str, EntityState] | None = None,
        *,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError as error:
            raise TelemetryMissing(
                "telemetry needs the package opentelemetry-api: install the extra, pip install 'pairbus[otel]'"
            ) from error
        self._trace = trace
        self._recorder: type[Observation] = metrics.Observation
        self._namespace = namespace
        self._states: dict[str, EntityState] = dict(states or {})
        self._tracer = trace.get_tracer(SCOPE, __version__, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, __version__, meter_provider=meter_provider)
        self._sends = meter.create_counter("pairbus.sends", "{message}", "Messages in attempts to send, by outcome")
        self._duration = meter.create_histogram("pairbus.send.duration", "s", "How long attempts to send took")
        self._diverted = meter.create_counter("pairbus.diverted", "{message}", "Messages confirmed by a backlog queue")
        self._pings = meter.create_counter("pairbus.pings", "{ping}", "Pings to entities that are failed over")
        self._ejected = meter.create_up_down_counter(
            "pairbus.backlog.ejected", "{queue}", "Backlog queues out of the rotation now"
        )
        meter.create_observable_gauge(
            "pairbus.entity.state", [self._observe_states], "{entity}", "1 for the state that an entity is in"
        )
        # Kept to take back what `close` leaves counted.
        self._out: set[int] = set()

    def __repr__(self) -> str:
        return f"<TelemetryObserver {self._namespace}>"

    def sent(
        self,
        entity: str,
        route: RouteWord,
        queue: int | None,
        messages: Sequence[Any],
        outcome: str,
        ms: float,
        reason: Diversion | None = None,
    ) -> None:
        attributes = {
            "pairbus.namespace": self._namespace,
            "pairbus.entity": entity,
            "pairbus.route": route,
            "pairbus.outcome": outcome,
        }
        if entity not in self._states:
            self._states[entity] = EntityState.HEALTHY
        count = len(messages)
        self._sends.add(count, attributes)
        self._duration.record(ms / 1000, attributes)
        if route == "backlog":
            self._was_diverted(entity, queue, count, outcome, ms, reason)

    def sent_to_backlog(
        self, entity: str, queue: int | None, messages: Sequence[Any], outcome: str, ms: float, reason: Diversion
    ) -> None:
        self.sent(entity, "backlog", queue, messages, outcome, ms, reason)

    def _was_diverted(
        self, entity: str, queue: int | None, count: int, outcome: str, ms: float, reason: Diversion | None
    ) -> None:
        where: dict[str, str | int] = {"pairbus.namespace": self._namespace, "pairbus.entity": entity}
        reasons: dict[str, str | float] = {}
        if queue is not None:
            where["pairbus.queue"] = queue
        if reason is not None:
            where["pairbus.rule"] = reason.rule
            reasons = {"pairbus.why": reason.why, "pairbus.primary.seconds": reason.primary_s}
        if outcome == OK:
            self._diverted.add(count, where)
        trace = self._trace
        end = time.time_ns()
        current = trace.get_current_span().get_span_context()
        span = self._tracer.start_span(
            "pairbus divert",
            kind=trace.SpanKind.PRODUCER,
            attributes={**where, **reasons, "pairbus.messages": count, "pairbus.outcome": outcome},
            links=[trace.Link(current)] if current.is_valid else None,
            start_time=end - int(ms * 1_000_000),
        )
        if outcome != OK:
            span.set_status(trace.StatusCode.ERROR, outcome)
        span.end(end)

    def pinged(self, entity: str, outcome: str, ms: float) -> None:
        self._pings.add(1, {"pairbus.namespace": self._namespace, "pairbus.entity": entity, "pairbus.outcome": outcome})

    def announced(self, event: events.Event) -> None:
        if isinstance(event, events.StateChanged):
            self._states[event.entity] = event.state
            # Most changes come out of somebody's send; those that a timer or a ping made have no span to tell.
            self._trace.get_current_span().add_event(
                "pairbus.state",
                {
                    "pairbus.namespace": self._namespace,
                    "pairbus.entity": event.entity,
                    "pairbus.state": event.state.value,
                    "pairbus.state.previous": event.previous.value,
                    "pairbus.cause": event.cause,
                },
            )
        elif isinstance(event, events.BacklogQueueEjected):
            if event.queue not in self._out:
                self._out.add(event.queue)
                self._ejected.add(1, {"pairbus.namespace": self._namespace})
        elif isinstance(event, events.BacklogQueueReturned) and event.queue in self._out:
            self._out.discard(event.queue)
            self._ejected.add(-1, {"pairbus.namespace": self._namespace})

    def close(self) -> None:
        """Stop reporting: the meter keeps its callback forever, and gets nothing more from it."""
        self._states = {}
        if self._out:
            self._ejected.add(-len(self._out), {"pairbus.namespace": self._namespace})
            self._out.clear()

    def _observe_states(self, options: CallbackOptions) -> Iterable[Observation]:
        for entity, state in list(self._states.items()):
            for each in EntityState:
                yield self._recorder(
                    1 if each is state else 0,
                    {
                        "pairbus.namespace": self._namespace,
                        "pairbus.entity": entity,
                        "pairbus.state": each.value,
                    },
                )
