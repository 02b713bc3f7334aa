"""The helper for one's own pipelines: which options it makes. That they work is in test_move_proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pairbus.spark.connector.options import Address, InvalidOption, parse
from pairbus.spark.connector.writer import Sent, ServiceBusStreamWriter, WriterConfig
from pairbus.spark.pipelines.pipeline import Carrying, carry, locked

TEXT = "Endpoint=sb://contoso;SharedAccessKeyName=a;SharedAccessKey=Yg=="


class Recorder:
    """Takes the calls of a reader or a writer, and remembers the options."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}
        self.sparkSession = self.readStream = self.writeStream = self.dataSource = self.conf = self
        self.isActive = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self

    def format(self, name: str) -> Recorder:
        assert name == "servicebus"
        return self

    def option(self, name: str, value: str) -> Recorder:
        self.given[name] = value
        return self

    def options(self, **given: str) -> Recorder:
        self.given |= given
        return self


def test_the_reader_locks() -> None:
    spark: Any = Recorder()
    assert locked(spark, TEXT, "orders,bill*", maxMessagesPerTrigger=500) is spark
    found = parse(spark.given, {})
    assert (found.mode, found.entity, found.messages_per_trigger_max) == ("lock", "orders,bill*", 500)
    assert found.address.connection_string == TEXT


def test_the_writer_settles_where_the_rows_came_from() -> None:
    rows: Any = Recorder()
    with carry(rows, Address(TEXT, ca_file="ca.pem"), "copies", settle=TEXT.replace("contoso", "other")) as carrying:
        found = parse(rows.given, {})
        assert found.entity == "copies" and found.address.ca_file == "ca.pem"
        assert found.settle is not None and "other" in str(found.settle.connection_string)
        assert rows.given["checkpointLocation"]
        assert isinstance(carrying, Carrying) and (carrying.sent, carrying.late) == (0, 0)
        writer = ServiceBusStreamWriter(WriterConfig(found.address, "copies", mailbox=rows.given["board"]))
        writer.commit([Sent(count=3, late=2, lost=1)], 0)
        writer.abort([Sent(count=4, lost=1, refused=5), None], 1)  # of two tasks one had ended
        assert (carrying.sent, carrying.late, carrying.lost_locks, carrying.refused) == (7, 2, 2, 5)
        assert repr(carrying) == "<Carrying ended: 7 sent>"
    assert (carrying.sent, carrying.late) == (7, 2), "known when the folder is gone too"
    assert not Path(rows.given["board"]).exists()


def test_the_sink_s_other_options_are_passed_on() -> None:
    rows: Any = Recorder()
    with carry(rows, TEXT, "copies", settle=TEXT, onRefused="deadLetter", maxWaitSeconds=20):
        found = parse(rows.given, {})
    assert (found.on_refused, found.patience_s) == ("deadLetter", 20.0)


@pytest.mark.parametrize(
    ("settle", "found"),
    [
        (TEXT, Address(TEXT, ca_file="here.pem")),
        ("contoso.example", Address(host="contoso.example", ca_file="here.pem")),
        (
            Address(host="contoso.example", credential="azure-cli", ca_file="there.pem"),
            Address(host="contoso.example", credential="azure-cli", ca_file="there.pem"),
        ),
    ],
)
def test_where_it_settles_is_named_as_where_it_sends(settle: str | Address, found: Address) -> None:
    rows: Any = Recorder()
    with carry(rows, Address(TEXT, ca_file="here.pem"), "copies", settle=settle):
        assert parse(rows.given, {}).settle == found


def test_without_locks_a_checkpoint_is_wanted() -> None:
    rows: Any = Recorder()
    with pytest.raises(InvalidOption, match="name a checkpoint, or with settle"):
        carry(rows, TEXT, "copies")
    carry(rows, TEXT, checkpoint="there")
    assert rows.given["checkpointLocation"] == "there" and "entity" not in rows.given
