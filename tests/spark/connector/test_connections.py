from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pairbus.amqp.message import Properties, encode_message
from pairbus.spark.connector import connections
from pairbus.spark.connector.options import Address
from tests.spark.conftest import MakeQueue, Pair


def test_p51_a_cause_has_a_connection_of_its_own(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "caused")
    spark = pair.primary_address
    moving = replace(spark, cause="move")
    payload = encode_message(properties=Properties(message_id="m"), body=b"x")
    for address, count in ((spark, 1), (moving, 2), (spark, 3)):
        for _ in range(count):
            connections.sender(address, "caused").send(payload)
    assert connections.client(spark) is not connections.client(moving)
    rows = pair.primary.recorder.meter.rows()
    assert {key.cause: tally.operations for key, tally in rows if key[:2] == ("caused", "send")} == {
        "spark": 4, "move": 2,
    }  # fmt: skip


def test_a_host_name_has_its_cause_too() -> None:
    made = connections.endpoint(Address("Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey=b", cause="syphon"))
    assert made.cause == "syphon"


def test_a_receiver_is_kept_for_the_next_batch(pair: Pair, make_queue: MakeQueue, monkeypatch: Any) -> None:
    make_queue(pair.primary, "lent")
    payload = encode_message(properties=Properties(message_id="m"), body=b"x")
    connections.sender(pair.primary_address, "lent").send_many([payload] * 4)
    with connections.receiver(pair.primary_address, "lent") as first:
        assert first.receive(1, max_wait=5)
        with connections.receiver(pair.primary_address, "lent") as second:
            assert second is not first, "lent out already"
    with connections.receiver(pair.primary_address, "lent") as again:
        assert again is second and again.is_open and not first.is_open, "one is kept"
        assert again.receive(1, max_wait=5) and again.unsettled == 1
    monkeypatch.setattr(connections, "UNSETTLED_MAX", 1)
    with connections.receiver(pair.primary_address, "lent") as spent:
        assert spent is again
    assert not spent.is_open, "brokers bound what one link may have unsettled"


def test_a_receiver_is_closed_where_a_batch_is_broken_off(pair: Pair, make_queue: MakeQueue) -> None:
    make_queue(pair.primary, "broken")
    with pytest.raises(RuntimeError), connections.receiver(pair.primary_address, "broken") as lent:
        raise RuntimeError
    assert not lent.is_open
    with connections.receiver(pair.primary_address, "broken") as another:
        assert another is not lent
