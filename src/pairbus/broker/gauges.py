"""Reads the present values that `/metrics` shows of a broker: queues, connections, the journal, the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.telemetry.metrics import Labels, Metrics, Read, Sample

if TYPE_CHECKING:
    from .server import Broker, NamespaceServer


def show_gauges(broker: Broker, metrics: Metrics) -> None:
    """Let the page of `/metrics` show them."""

    def of_namespace(read: Callable[[NamespaceServer], float]) -> Read:
        return lambda name: [({"namespace": name}, read(broker.namespaces[name]))]

    def queues(name: str) -> Iterator[tuple[Labels, QueueEntity]]:
        """Yield the queues and subscriptions: what holds messages that somebody can receive."""
        namespace = broker.namespaces[name].namespace
        subscriptions = [each for topic in namespace.topics.values() for each in topic.subscriptions.values()]
        for entity in [*namespace.queues.values(), *subscriptions]:
            yield {"namespace": name, "entity": entity.active.path}, entity

    def of_queues(read: Callable[[QueueEntity], float]) -> Read:
        return lambda name: ((labels, read(queue)) for labels, queue in queues(name))

    def of_owners(read: Callable[[NamespaceServer, QueueEntity], float]) -> Read:
        """Read queues and topics."""

        def samples(name: str) -> Iterator[Sample]:
            server = broker.namespaces[name]
            for entity in [*server.namespace.queues.values(), *server.namespace.topics.values()]:
                yield {"namespace": name, "entity": entity.name}, read(server, entity)

        return samples

    def of_process(read: Callable[[], float]) -> Read:
        """Read what is the same for all namespaces: they share the loop and what clients without a token may use."""
        return lambda name: [({}, read())]

    def depths(name: str) -> Iterator[Sample]:
        for labels, queue in queues(name):
            for state, count in (("active", queue.active_count), ("dead-letter", queue.dead_letter_count)):
                yield {**labels, "state": state}, count

    metrics.gauge("queue_messages", "Messages of a queue or subscription, by sub-queue.", depths)
    metrics.gauge("queue_bytes", "Bytes of the messages in a queue.", of_queues(lambda queue: queue.size_bytes))
    help_text = "Pings confirmed and not stored, since the start."
    metrics.counter("pings_total", help_text, of_owners(lambda _, entity: entity.pings))
    help_text = "Messages that an entity forwarded, since the start."
    metrics.counter("forwarded_total", help_text, of_queues(lambda queue: queue.forwarded))
    help_text = "Messages that are kept from receivers, since the store stalled when they came."
    metrics.gauge("late_messages", help_text, of_namespace(lambda server: server.namespace.registry.late_count))
    help_text = "The node that a queue or topic is on."
    metrics.gauge("entity_node", help_text, of_owners(lambda server, entity: server.crashes.nodes.node_of(entity.name)))
    metrics.gauge("connections", "Connections open now.", of_namespace(lambda server: len(server.connections)))
    help_text = "Bytes held for connections that have put no token."
    metrics.gauge("tokenless_bytes", help_text, of_process(lambda: broker.unauthenticated.held_bytes))
    help_text = "Syncs of the journal since the start."
    metrics.counter("journal_syncs_total", help_text, of_namespace(lambda server: server.journal_syncs))
    help_text = "The longest turn of the event loop in the last one to two minutes, to within 5 ms, or 50 after idling."
    metrics.gauge("loop_turn_seconds_max", help_text, of_process(lambda: broker.loop_turns.longest_s))
    help_text = "Turns of the event loop that took more than 20 ms, since the start."
    metrics.counter("loop_long_turns_total", help_text, of_process(lambda: broker.loop_turns.too_long))
