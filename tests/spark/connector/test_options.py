from __future__ import annotations

import pytest

from pairbus.spark.connector.options import (
    NAMES,
    InvalidOption,
    check_batch,
    check_stream,
    options_of_table,
    parse,
    wanted_entity,
    with_those_of_table,
)

CS = "Endpoint=sb://contoso.example;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"


def test_a_connection_string_and_the_defaults() -> None:
    parsed = parse({"connectionString": CS, "entity": "orders"}, {})
    assert parsed.address.connection_string == CS
    assert (parsed.entity, parsed.mode, parsed.messages_per_trigger_max, parsed.rate_max) == (
        "orders",
        "peek",
        10_000,
        None,
    )
    assert (parsed.first_sequence, parsed.last_sequence, parsed.push_filters) == (1, 2**63 - 1, False)
    assert parsed.settle is None


def test_names_of_any_case_as_spark_hands_them_over() -> None:
    parsed = parse({"connectionstring": CS, "ENTITY": "orders", "maxmessagespertrigger": "5", "MODE": "Lock"}, {})
    assert (parsed.entity, parsed.messages_per_trigger_max, parsed.mode) == ("orders", 5, "lock")


def test_the_environment_holds_the_secret() -> None:
    parsed = parse(
        {"connectionStringEnv": "BUS", "entity": "o", "settleConnectionStringEnv": "OTHER"}, {"BUS": CS, "OTHER": "x"}
    )
    assert parsed.address.connection_string == CS
    assert parsed.settle is not None and parsed.settle.connection_string == "x"


def test_a_host_name_and_a_credential_by_name() -> None:
    parsed = parse({"fullyQualifiedNamespace": "contoso.example", "credential": "azure-cli", "caFile": "ca.pem"}, {})
    assert (parsed.address.host, parsed.address.credential, parsed.address.ca_file) == (
        "contoso.example",
        "azure-cli",
        "ca.pem",
    )


def test_what_spark_adds_is_passed_over() -> None:
    parse({"connectionString": CS, "path": "x", "checkpointLocation": "c", "spark.x": "y"}, {})


def test_the_cause_p51() -> None:
    assert parse({"connectionString": CS}, {}).address.cause == "spark"
    parsed = parse({"connectionString": CS, "settleConnectionString": CS, "cause": "Move"}, {})
    assert parsed.settle is not None
    assert (parsed.address.cause, parsed.settle.cause) == ("move", "move")
    with pytest.raises(InvalidOption, match="cause 'rain' is not known; right are app, ping, syphon"):
        parse({"connectionString": CS, "cause": "rain"}, {})


def test_what_the_sink_does_with_refused_rows() -> None:
    parsed = parse({"connectionString": CS}, {})
    assert (parsed.on_refused, parsed.refused_path, parsed.patience_s) == ("fail", None, 300.0)
    parsed = parse({"connectionString": CS, "ONREFUSED": "DEADLETTER", "refusedPath": "x", "maxWaitSeconds": "9"}, {})
    assert (parsed.on_refused, parsed.refused_path, parsed.patience_s) == ("deadLetter", "x", 9.0)


def test_no_repr_holds_the_key() -> None:
    parsed = parse({"connectionString": CS, "settleConnectionString": CS}, {})
    assert "c2VjcmV0" not in repr(parsed)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"connectionStrin": CS}, ["no option 'connectionStrin'", "did you mean connectionString?", *NAMES]),
        ({}, ["none of them was given", "connectionStringEnv", "fullyQualifiedNamespace"]),
        ({"connectionString": CS, "fullyQualifiedNamespace": "h"}, ["exclude each other"]),
        ({"connectionString": CS, "connectionStringEnv": "E"}, ["exclude each other"]),
        ({"connectionStringEnv": "NOPE"}, ["'NOPE'", "not set"]),
        ({"connectionString": CS, "credential": "default"}, ["credential goes with fullyQualifiedNamespace"]),
        ({"fullyQualifiedNamespace": "h", "credential": "magic"}, ["'magic'", "managed-identity"]),
        ({"connectionString": CS, "mode": "steal"}, ["'steal'", "peek, lock, delete"]),
        ({"connectionString": CS, "maxMessagesPerTrigger": "0"}, ["maxMessagesPerTrigger", "at least 1", "'0'"]),
        ({"connectionString": CS, "maxMessagesPerTrigger": "many"}, ["'many'"]),
        ({"connectionString": CS, "maxRate": "-1"}, ["maxRate", "above 0", "'-1'"]),
        ({"connectionString": CS, "maxRate": "inf"}, ["maxRate"]),
        ({"connectionString": CS, "minPartitions": "0"}, ["minPartitions", "at least 1", "'0'"]),
        ({"connectionString": CS, "minPartitions": "1001"}, ["minPartitions", "at most 1000"]),
        ({"connectionString": CS, "fromSequenceNumber": "10", "toSequenceNumber": "9"},
            ["fromSequenceNumber 10 is above toSequenceNumber 9"]),
        ({"connectionString": CS, "pushFilters": "yes"}, ["pushFilters", "true or false"]),
        ({"connectionString": CS, "sessions": "yes"}, ["sessions", "true or false"]),
        ({"connectionString": CS, "entity": " "}, ["entity is empty"]),
        ({"connectionString": CS, "onRefused": "burn"}, ["onRefused 'burn'", "fail, skip, deadLetter"]),
        ({"connectionString": CS, "refusedPath": "x"}, ["refusedPath", "onRefused skip or deadLetter"]),
        ({"connectionString": CS, "onRefused": "deadLetter"}, ["settleConnectionString", "refusedPath"]),
        ({"connectionString": CS, "maxWaitSeconds": "0"}, ["maxWaitSeconds is a number of seconds above 0, not '0'"]),
        ({"connectionString": CS, "settleConnectionString": "a", "settleConnectionStringEnv": "B"}, ["exclude"]),
        ({"connectionString": CS, "settleConnectionString": CS, "settleCredential": "default"},
            ["settleCredential goes with settleFullyQualifiedNamespace"]),
        ({"connectionString": CS, "settleFullyQualifiedNamespace": "h", "settleCredential": "magic"},
            ["settleCredential 'magic'", "managed-identity"]),
        ({"connectionString": CS, "settleCaFile": "ca.pem"}, ["none of them was given", "settleConnectionString"]),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_what_would_be_right(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse(given, {})
    for word in words:
        assert word in str(caught.value)
    assert "c2VjcmV0" not in str(caught.value)


def test_an_entity_is_asked_for_where_it_is_needed() -> None:
    with pytest.raises(InvalidOption, match=r"source needs the option entity"):
        wanted_entity(parse({"connectionString": CS}, {}))


@pytest.mark.parametrize("mode", ["lock", "delete", "LOCK"])
def test_a_batch_read_only_peeks(mode: str) -> None:
    options = parse({"connectionString": CS, "mode": mode}, {})
    check_stream(options)
    with pytest.raises(InvalidOption) as found:
        check_batch(options)
    assert str(found.value) == (
        f"mode={mode.lower()} is for streams: spark.read only peeks, and takes nothing away; use spark.readStream"
    )
    check_batch(parse({"connectionString": CS, "mode": "peek"}, {}))


@pytest.mark.parametrize("secret", ["connectionString", "settleConnectionString"])
def test_a_table_of_a_catalog_holds_no_secret(secret: str) -> None:
    asked = {"option.entity": "orders", "entity": "orders", "provider": "servicebus"}
    assert options_of_table(asked) == {"entity": "orders"} and options_of_table({"entity": "orders"}) is None
    with pytest.raises(
        InvalidOption, match=rf"{secret} can't be one of them; put it into a variable.*{secret}Env"
    ) as e:
        options_of_table({**asked, f"option.{secret}": "Endpoint=sb://x;SharedAccessKey=hidden"})
    assert "hidden" not in str(e.value)


def test_options_of_a_statement_go_before_those_of_its_table() -> None:
    table = {"connectionstringenv": "BUS", "entity": "orders", "body": "text"}
    assert with_those_of_table({"Entity": "copies"}, table) == {**table, "entity": "copies"}
    elsewhere = {"fullyqualifiednamespace": "contoso.servicebus.windows.net"}
    assert with_those_of_table(elsewhere, table) == elsewhere
