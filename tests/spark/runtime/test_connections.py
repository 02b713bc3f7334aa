from __future__ import annotations

from dataclasses import replace

from pairbus.amqp.message import Properties, encode_message
from pairbus.spark.connector.options import Address
from pairbus.spark.runtime import connections
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
