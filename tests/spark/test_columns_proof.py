"""Columns that are asked for, and application properties that keep their types, on a real Spark."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus.management import SqlRuleFilter

from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.types import Byte, Float, Int, Short, Timestamp
from tests.message_view import View
from tests.waiting import until

from .conftest import MakeQueue, Pair, admin_of, peeked, wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
RULES = {
    "large": "priority > 5",
    "dear": "price >= 1.5 AND price < 2",
    "urgent": "urgent = TRUE",
    "named": "name LIKE 'a%'",
    "exact": "priority = 9",
}


@pytest.fixture
def news(pair: Pair) -> Iterator[str]:
    with admin_of(pair.primary) as admin:
        admin.create_topic("news")
        for name, rule in RULES.items():
            admin.create_subscription("news", name)
            admin.delete_rule("news", name, "$Default")
            admin.create_rule("news", name, "wanted", filter=SqlRuleFilter(rule))
        yield "news"
        admin.delete_topic("news")


def write(rows: Any, pair: Pair, entity: str) -> None:
    rows.write.format("servicebus").options(connectionString=pair.primary.connection_string, entity=entity).mode(
        "append"
    ).save()


def matched(pair: Pair) -> dict[str, list[str]]:
    """Rule → the message ids that it let through."""
    return {name: sorted(map(message_id, peeked(pair.primary, f"news/Subscriptions/{name}"))) for name in RULES}


def message_id(payload: bytes) -> str:
    return str(View(payload).properties.message_id)


def test_sql_rules_match_what_spark_wrote_as_maps_of_each_type(spark: Any, pair: Pair, news: str) -> None:
    maps = {
        "byte": "map('priority', 9Y)",
        "short": "map('priority', 9S)",
        "int": "map('priority', 9)",
        "long": "map('priority', 9L)",
        "float": "map('price', 1.5F, 'priority', 5F)",
        "double": "map('price', 1.75D, 'priority', 9D)",
        "boolean": "map('urgent', true)",
        "text": "map('name', 'anna', 'priority', '9', 'urgent', 'true')",
        "binary": "map('name', X'61')",
        "time": "map('priority', timestamp'2030-01-02 03:04:05Z')",
    }
    for name, expression in maps.items():
        write(
            spark.sql(f"SELECT '{name}' AS message_id, 'x' AS body, {expression} AS application_properties"), pair, news
        )
    whole = ["byte", "double", "int", "long", "short"]
    assert matched(pair) == {
        "large": whole,
        "exact": whole,
        "dear": ["double", "float"],
        "urgent": ["boolean"],
        "named": ["text"],
    }, "a number as text is no number"


def test_json_keeps_the_types_both_ways_and_sql_rules_match_it(
    spark: Any, pair: Pair, news: str, make_queue: MakeQueue
) -> None:
    make_queue(pair.primary, "typed")
    mixed = spark.sql(
        "SELECT 'mixed' AS message_id, 'x' AS body, "
        "to_json(struct(9 AS priority, 1.5D AS price, true AS urgent, 'anna' AS name)) AS application_properties"
    )
    write(mixed, pair, news)
    assert matched(pair) == {name: ["mixed"] for name in RULES}
    # from the SDK's types to Spark and back to a rule
    id_ = UUID(int=7)
    properties = {
        "priority": Short(9), "price": Float(1.5), "urgent": True, "name": "abc", "tiny": Byte(-1), "n": Int(3),
        "long": 2**40, "due": Timestamp(1_900_000_000_000), "id": id_, "raw": b"\x00\xff", "nothing": None,
    }  # fmt: skip
    with wire(pair.primary) as client:
        sent = encode_message(properties=Properties(message_id="there"), application_properties=properties, body=b"x")
        client.sender("typed").send(sent)
    rows = spark.read.format("servicebus").options(
        connectionString=pair.primary.connection_string, entity="typed", applicationProperties="json"
    ).load()  # fmt: skip
    (row,) = rows.selectExpr(
        "application_properties",
        "from_json(application_properties, 'price struct<float: float>, urgent boolean, long bigint, "
        "due struct<timestamp: timestamp>') AS read",
    ).collect()
    assert row.read.price.float == 1.5 and row.read.urgent is True and row.read.long == 2**40
    assert row.read.due.timestamp.astimezone(dt.UTC).timestamp() == 1_900_000_000
    assert json.loads(row.application_properties)["priority"] == {"short": 9}
    write(rows.selectExpr("'back' AS message_id", "body", "application_properties"), pair, news)
    assert matched(pair) == {name: ["back", "mixed"] for name in RULES}
    back = next(each for each in peeked(pair.primary, "news/Subscriptions/large") if message_id(each) == "back")
    found = View(back).application_properties
    assert {name: (type(value), value) for name, value in found.items()} == {
        name: (type(value), value) for name, value in properties.items()
    }


def test_only_the_columns_that_are_asked_for_are_there(
    spark: Any, pair: Pair, make_queue: MakeQueue, tmp_path: Path
) -> None:
    make_queue(pair.primary, "in", "out")
    with wire(pair.primary) as client:
        payloads = [encode_message(properties=Properties(message_id=f"m{n}"), body=b"x") for n in range(50)]
        assert client.sender("in").send_many(payloads) == [None] * 50
    bus = {"connectionString": pair.primary.connection_string}
    rows = spark.read.format("servicebus").options(**bus, entity="in", columns="Message_Id, sequence_number").load()
    assert rows.columns == ["message_id", "sequence_number"]
    assert sorted(map(tuple, rows.collect())) == sorted((f"m{n}", n + 1) for n in range(50))
    assert rows.count() == 50 and rows.where("sequence_number > 48").count() == 2
    filtered = spark.read.format("servicebus").options(
        **bus, entity="in", columns="sequence_number", pushFilters="true"
    )
    assert filtered.load().where("sequence_number between 11 and 20").count() == 10
    with pytest.raises(Exception, match=r"columns names 'boddy', and there is none; right are message_id, .*state"):
        spark.read.format("servicebus").options(**bus, entity="in", columns="boddy").load()
    # streams: of peek, and of lock with just what the sink wants
    for mode, names, more in (
        ("peek", "body,message_id", {}),
        ("lock", "amqp,entity,lock_token", {"settleConnectionString": bus["connectionString"]}),
    ):
        stream = spark.readStream.format("servicebus").options(**bus, entity="in", mode=mode, columns=names).load()
        assert stream.columns == names.split(",")
        writing = stream.writeStream.format("servicebus").options(**bus, **more, entity="out")
        query = writing.option("checkpointLocation", str(tmp_path / mode)).start()
        try:
            until(lambda count=50 if mode == "peek" else 100: len(peeked(pair.primary, "out")) == count, 120)
        finally:
            query.stop()
    assert peeked(pair.primary, "in") == []
