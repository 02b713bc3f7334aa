"""Reads the present values that `/metrics` shows of a broker: queues, connections, the journal, the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.telemetry.metrics import Labels, Metrics, Sample

if TYPE_CHECKING:
    from .server import Broker


class Gauges:
    """The gauges of a broker. Nothing is counted for them: they are read when the page is asked for."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def show(self, metrics: Metrics) -> None:
        """Let the page have them."""
        metrics.gauge("queue_messages", "Messages of a queue or subscription, by sub-queue.", self._depths)
        metrics.gauge("queue_bytes", "Bytes of the messages in a queue.", self._sizes)
        metrics.counter("pings_total", "Pings confirmed and not stored, since the start.", self._pings)
        metrics.counter("forwarded_total", "Messages that an entity forwarded, since the start.", self._forwarded)
        help_text = "Messages that are kept from receivers, since the store stalled when they came."
        metrics.gauge("late_messages", help_text, self._late)
        metrics.gauge("entity_node", "The node that a queue or topic is on.", self._nodes)
        metrics.gauge("connections", "Connections open now.", self._connections)
        metrics.gauge("tokenless_bytes", "Bytes held for connections that have put no token.", self._tokenless)
        metrics.counter("journal_syncs_total", "Syncs of the journal since the start.", self._syncs)
        help_text = (
            "The longest turn of the event loop in the last one to two minutes, to within 5 ms, or 50 after idling."
        )
        metrics.gauge("loop_turn_seconds_max", help_text, self._longest_turn)
        help_text = "Turns of the event loop that took more than 20 ms, since the start."
        metrics.counter("loop_long_turns_total", help_text, self._long_turns)

    def _entities(self, name: str) -> Iterator[tuple[Labels, QueueEntity]]:
        """Yield the queues and subscriptions: what holds messages that somebody can receive."""
        namespace = self._broker.namespaces[name].namespace
        subscriptions = [each for topic in namespace.topics.values() for each in topic.subscriptions.values()]
        for entity in [*namespace.queues.values(), *subscriptions]:
            yield {"namespace": name, "entity": entity.active.path}, entity

    def _depths(self, name: str) -> Iterator[Sample]:
        for labels, entity in self._entities(name):
            for state, count in (("active", entity.active_count), ("dead-letter", entity.dead_letter_count)):
                yield {**labels, "state": state}, count

    def _nodes(self, name: str) -> Iterator[Sample]:
        server = self._broker.namespaces[name]
        for entity in server.entity_names:
            yield {"namespace": name, "entity": entity}, server.crashes.nodes.node_of(entity)

    def _late(self, name: str) -> Iterator[Sample]:
        yield {"namespace": name}, self._broker.namespaces[name].namespace.registry.late_count

    def _connections(self, name: str) -> Iterator[Sample]:
        yield {"namespace": name}, len(self._broker.namespaces[name].connections)

    def _tokenless(self, name: str) -> Iterator[Sample]:
        """Yield the bytes of all namespaces: one limit holds for them together."""
        yield {}, self._broker.unauthenticated.held_bytes

    def _syncs(self, name: str) -> Iterator[Sample]:
        yield {"namespace": name}, self._broker.namespaces[name].journal_syncs

    def _pings(self, name: str) -> Iterator[Sample]:
        namespace = self._broker.namespaces[name].namespace
        for entity in [*namespace.queues.values(), *namespace.topics.values()]:
            yield {"namespace": name, "entity": entity.name}, entity.pings

    def _forwarded(self, name: str) -> Iterator[Sample]:
        for labels, entity in self._entities(name):
            yield labels, entity.forwarded

    def _sizes(self, name: str) -> Iterator[Sample]:
        for labels, entity in self._entities(name):
            yield labels, entity.size_bytes

    def _longest_turn(self, name: str) -> Iterator[Sample]:
        """Yield what is the same for all namespaces: they share the loop."""
        yield {}, self._broker.loop_turns.longest_s

    def _long_turns(self, name: str) -> Iterator[Sample]:
        yield {}, self._broker.loop_turns.too_long
