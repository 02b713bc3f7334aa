"""P5, P8–P10: names, properties and the plan for the backlog queues."""

from __future__ import annotations

import inspect

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.model.bounds import NAME_CHARS_MAX, validate_name
from pairbus.pairing.backlog import backlog_queues
from pairbus.pairing.backlog import backlog_queues as backlog
from pairbus.pairing.errors import InvalidOptions
from pairbus.pairing.options import PRIMARY_NAME_CHARS_MAX, QUEUES_MAX


def test_p8_the_path_of_a_backlog_queue() -> None:
    assert backlog.path("contoso", 0) == "contoso/x-servicebus-transfer/0"
    assert backlog.paths("contoso", 2) == ["contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"]
    validate_name(backlog.path("contoso", 9))
    assert len(backlog.path("c" * PRIMARY_NAME_CHARS_MAX, QUEUES_MAX - 1)) <= NAME_CHARS_MAX


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("contoso.servicebus.windows.net", "contoso"),
        ("Contoso.ServiceBus.Windows.Net", "contoso"),
        ("sb://contoso.servicebus.windows.net/", "contoso"),
        ("contoso.servicebus.windows.net:5671", "contoso"),
        ("contoso", "contoso"),
        ("my-bus.example:443/path", "my-bus"),
    ],
)
def test_p8_the_primary_is_the_first_label_of_its_host(host: str, name: str) -> None:
    assert backlog.primary_name(host) == name


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:5672", "::1", "[::1]:5672", "fe80::1%eth0", "localhost", ""])
def test_p8_an_address_has_no_name_so_the_option_must_give_it(host: str) -> None:
    with pytest.raises(InvalidOptions, match="primary_name"):
        backlog.primary_name(host)
    assert backlog.primary_name(host, "contoso") == "contoso"


def test_p8_the_option_wins() -> None:
    assert backlog.primary_name("contoso.servicebus.windows.net", "fabrikam") == "fabrikam"


def test_p9_queues_are_made_with_these_properties() -> None:
    assert backlog_queues.QUEUE_PROPERTIES == {
        "max_size_in_megabytes": 5120,
        "max_delivery_count": 2147483647,
        "default_message_time_to_live": "P10675199DT2H48M5.4775807S",
        "auto_delete_on_idle": "P10675199DT2H48M5.4775807S",
        "lock_duration": "PT1M",
        "dead_lettering_on_message_expiration": True,
        "enable_batched_operations": True,
    }
    taken = inspect.signature(ServiceBusAdministrationClient.create_queue).parameters
    assert backlog_queues.QUEUE_PROPERTIES.keys() <= taken.keys()


def test_p5_p10_what_is_there_is_used_what_is_missing_is_made_what_is_extra_is_left() -> None:
    existing = [
        "contoso/x-servicebus-transfer/1",
        "CONTOSO/X-ServiceBus-Transfer/3",
        "contoso/x-servicebus-transfer/7",
        "contoso/x-servicebus-transfer/",
        "contoso/x-servicebus-transfer/01",
        "contoso/x-servicebus-transfer/-1",
        "contoso/x-servicebus-transfer/1/2",
        "contoso2/x-servicebus-transfer/0",
        "orders",
    ]
    made = backlog.plan("contoso", 5, existing)
    assert made == backlog.Plan(found=(1, 3), missing=(0, 2, 4), extra=(7,))
    assert backlog_queues.TRIES == 3


@given(st.integers(1, 20), st.sets(st.integers(0, 30)))
def test_p5_the_plan_is_complete_and_names_no_queue_twice(count: int, there: set[int]) -> None:
    made = backlog.plan("contoso", count, [backlog.path("contoso", index) for index in there])
    assert set(made.found) | set(made.missing) == set(range(count))
    assert not set(made.found) & set(made.missing)
    assert set(made.found) | set(made.extra) == there


@given(st.integers(0, 999_999_999))
def test_p8_names_and_indexes_agree(index: int) -> None:
    assert backlog.index_of(backlog.path("contoso", index), "contoso") == index
    assert (
        backlog.index_of(backlog.path("contoso", 0) + str(index), "contoso") is None
    )  # a leading zero: another queue's name


def test_p10_a_low_delivery_count_is_warned_of() -> None:
    text = backlog.warning_about("contoso/x-servicebus-transfer/0", 10)
    assert text is not None
    assert "contoso/x-servicebus-transfer/0 has a maximum delivery count of 10" in text
    assert "--dead-letters" in text
    assert backlog.warning_about("q", 2147483647) is None
    assert backlog.warning_about("q", None) is None


def test_p4_p9_the_same_queues_as_bicep() -> None:
    text = backlog.bicep("contoso", 10)
    assert "param secondaryNamespace string" in text
    assert "[for i in range(0, 10): {" in text
    assert "name: 'contoso~x-servicebus-transfer~${i}'" in text
    for line in (
        "maxSizeInMegabytes: 5120",
        "maxDeliveryCount: 2147483647",
        "defaultMessageTimeToLive: 'P10675199DT2H48M5.4775807S'",
        "autoDeleteOnIdle: 'P10675199DT2H48M5.4775807S'",
        "lockDuration: 'PT1M'",
        "deadLetteringOnMessageExpiration: true",
        "enableBatchedOperations: true",
    ):
        assert f"    {line}\n" in text
    assert text.count("{") == text.count("}")


def test_p4_p9_the_same_queues_as_terraform() -> None:
    text = backlog.terraform("contoso", 3)
    assert 'resource "azurerm_servicebus_queue" "backlog"' in text
    assert "count        = 3\n" in text
    assert 'name         = "contoso~x-servicebus-transfer~${count.index}"' in text
    for line in (
        "max_size_in_megabytes                = 5120",
        "max_delivery_count                   = 2147483647",
        'default_message_ttl                  = "P10675199DT2H48M5.4775807S"',
        'auto_delete_on_idle                  = "P10675199DT2H48M5.4775807S"',
        'lock_duration                        = "PT1M"',
        "dead_lettering_on_message_expiration = true",
        "batched_operations_enabled           = true",
    ):
        assert f"  {line}\n" in text
    assert text.count("{") == text.count("}")
