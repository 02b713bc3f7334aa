from __future__ import annotations

import re

import pytest

from pairbus.broker.slices import finish
from pairbus.broker.telemetry import metrics as module
from pairbus.broker.telemetry.metrics import OTHER, Metrics, NamespaceCounters

SAMPLE = re.compile(r'^pairbus_[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\.)*"(,[a-z]+="(?:[^"\\\n]|\\.)*")*\})? -?[0-9.e+]+$')


def lines(metrics: Metrics, starting: str, namespace: str = "contoso") -> list[str]:
    return [
        line for line in finish(metrics.exposition(namespace)).splitlines() if line.startswith(f"pairbus_{starting}")
    ]


def test_counts_show_up_under_their_labels() -> None:
    metrics = Metrics()
    namespace = metrics.namespace("contoso")
    orders = namespace.entity("orders")
    orders.sends += 2
    orders.send_bytes += 2048
    orders.renews += 1
    orders.polls += 5
    orders.settled("complete", 3)
    orders.settled("dead-letter")
    orders.refused("com.microsoft:server-busy")
    namespace.refused("amqp:not-found")
    namespace.requested(200)
    namespace.connections_total += 4
    assert metrics.namespace("contoso").entity("orders") is orders
    assert lines(metrics, "messages_sent_total") == [
        'pairbus_messages_sent_total{namespace="contoso",entity="orders"} 2'
    ]
    assert lines(metrics, "message_bytes_sent") == [
        'pairbus_message_bytes_sent_total{namespace="contoso",entity="orders"} 2048'
    ]
    assert lines(metrics, "empty_receives") == ['pairbus_empty_receives_total{namespace="contoso",entity="orders"} 5']
    assert lines(metrics, "locks_renewed") == ['pairbus_locks_renewed_total{namespace="contoso",entity="orders"} 1']
    assert lines(metrics, "settlements") == [
        'pairbus_settlements_total{namespace="contoso",entity="orders",outcome="complete"} 3',
        'pairbus_settlements_total{namespace="contoso",entity="orders",outcome="dead-letter"} 1',
    ]
    namespace.meter.count("orders", "send", "syphon", 70_000)
    namespace.meter.count("orders", "poll", "app", 0)
    labels = 'namespace="contoso",entity="orders",operation'
    assert lines(metrics, "operations_total") == [
        f'pairbus_operations_total{{{labels}="poll",cause="app"}} 1',
        f'pairbus_operations_total{{{labels}="send",cause="syphon"}} 1',
    ]
    assert lines(metrics, "operation_units_total")[1] == (
        f'pairbus_operation_units_total{{{labels}="send",cause="syphon"}} 2'
    )
    assert lines(metrics, "operation_bytes_total") == [
        f'pairbus_operation_bytes_total{{{labels}="poll",cause="app",direction="out"}} 0',
        f'pairbus_operation_bytes_total{{{labels}="send",cause="syphon",direction="in"}} 70000',
    ]
    assert lines(metrics, "refusals") == [
        'pairbus_refusals_total{namespace="contoso",entity="",condition="amqp:not-found"} 1',
        'pairbus_refusals_total{namespace="contoso",entity="orders",condition="com.microsoft:server-busy"} 1',
    ]
    assert lines(metrics, "connections_total{") == ['pairbus_connections_total{namespace="contoso"} 4']
    assert lines(metrics, "http_requests") == ['pairbus_http_requests_total{namespace="contoso",status="200"} 1']


def test_the_page_is_prometheus_text_with_every_family_described_once() -> None:
    metrics = Metrics()
    metrics.namespace("contoso").entity('odd "name"\\with\nall').refused("x")
    metrics.gauge("queue_messages", "Messages by state.", lambda _: [({"state": "active"}, 3), ({}, 1.5)])
    metrics.counter("pings_total", "Pings.", lambda _: [({}, 7)])
    page = finish(metrics.exposition("contoso"))
    assert page.endswith("\n")
    helps = [line.split()[2] for line in page.splitlines() if line.startswith("# HELP")]
    types = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert helps == types
    assert len(set(helps)) == len(helps)
    samples = [line for line in page.splitlines() if not line.startswith("#")]
    assert samples
    for sample in samples:
        assert SAMPLE.match(sample), sample
    assert lines(metrics, "queue_messages") == [
        'pairbus_queue_messages{state="active"} 3',
        "pairbus_queue_messages 1.5",
    ]
    kinds = {line.split()[2]: line.split()[3] for line in page.splitlines() if line.startswith("# TYPE")}
    assert (kinds["pairbus_queue_messages"], kinds["pairbus_pings_total"]) == ("gauge", "counter")


def test_a_page_shows_its_own_namespace_only() -> None:
    metrics = Metrics()
    for ns, count in (("b", 2), ("a", 1)):
        metrics.namespace(ns).connections_total = count
        metrics.namespace(ns).entity(f"queue-of-{ns}").refused("x")
        metrics.namespace(ns).meter.count(f"queue-of-{ns}", "send", "app", 1)
    metrics.gauge("connections", "Connections open now.", lambda name: [({"namespace": name}, 1)])
    assert lines(metrics, "connections", "a") == [
        'pairbus_connections_total{namespace="a"} 1',
        'pairbus_connections{namespace="a"} 1',
    ]
    page = finish(metrics.exposition("a"))
    assert 'namespace="b"' not in page and "queue-of-b" not in page


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTITIES_MAX", 2)
    monkeypatch.setattr(module, "CONDITIONS_MAX", 2)
    counters = NamespaceCounters()
    for i in range(5):
        counters.entity(f"q{i}").sends += 1
        counters.refused(f"c{i}")
    assert {name: entity.sends for name, entity in counters.entities.items()} == {"q0": 1, "q1": 1, OTHER: 3}
    assert counters.refusals == {"c0": 1, "c1": 1, OTHER: 3}


def test_counts_of_deleted_entities_are_merged_and_the_sums_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MERGE_MIN", 3)
    counters = NamespaceCounters()
    for name in ("kept", "gone-1", "gone-2"):
        entity = counters.entity(name)
        entity.sends, entity.send_bytes, entity.renews = 2, 100, 1
        entity.settled("complete", 3)
        entity.refused("amqp:not-found")
    list(counters.merge_deleted(lambda path: path == "kept"))
    assert sorted(counters.entities) == [OTHER, "kept"]
    other = counters.entities[OTHER]
    assert (other.sends, other.send_bytes, other.renews, other.receives) == (4, 200, 2, 0)
    assert (other.settles, other.refusals) == ({"complete": 6}, {"amqp:not-found": 2})
    for name, left in (("gone-3", 3), ("gone-4", 2)):
        counters.entity(name).sends += 1
        list(counters.merge_deleted(lambda path: path == "kept"))
        assert len(counters.entities) == left, "when the table has doubled"
    assert other.sends == 6
