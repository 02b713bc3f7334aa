from __future__ import annotations

import traceback
from typing import Any

import pytest

from pairbus.pairing.errors import AlreadyPaired, InvalidOptions
from pairbus.pairing.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pair_validation import (
    NamespaceIdentity,
    PairMember,
    check,
    check_access,
    is_connection_string,
    namespace_at,
)


class Client:
    def get_queue_sender(self) -> None: ...


OPTIONS = SendAvailabilityPairedNamespaceOptions(None, Client())
PRIMARY = PairMember(NamespaceIdentity("contoso.servicebus.windows.net", 5671), None, is_paired=False, is_async=False)
SECONDARY = PairMember(NamespaceIdentity("backup.servicebus.windows.net", 5671), None, is_paired=False, is_async=False)


@pytest.mark.parametrize(
    ("address", "tls", "namespace"),
    [
        ("contoso.servicebus.windows.net", True, NamespaceIdentity("contoso.servicebus.windows.net", 5671)),
        ("Contoso.ServiceBus.Windows.net.", True, NamespaceIdentity("contoso.servicebus.windows.net", 5671)),
        ("sb://contoso.servicebus.windows.net/", True, NamespaceIdentity("contoso.servicebus.windows.net", 5671)),
        ("127.0.0.1:4711", False, NamespaceIdentity("localhost", 4711)),
        ("localhost:4711", False, NamespaceIdentity("localhost", 4711)),
        ("localhost", False, NamespaceIdentity("localhost", 5672)),
        ("[::1]:4711", False, NamespaceIdentity("localhost", 4711)),
        ("[fe80::1]:4711", False, NamespaceIdentity("fe80::1", 4711)),
        ("[fe80::1]", False, NamespaceIdentity("fe80::1", 5672)),
    ],
)
def test_p6_a_namespace_is_known_by_host_and_port(address: str, tls: bool, namespace: NamespaceIdentity) -> None:
    assert namespace_at(address, tls=tls) == namespace


def test_p6_namespaces_are_named_with_a_port_only_where_it_tells_them_apart() -> None:
    assert str(NamespaceIdentity("contoso", 5671)) == "contoso"
    assert str(NamespaceIdentity("localhost", 4711)) == "localhost:4711"


def test_p6_two_namespaces_may_be_paired() -> None:
    assert check(PRIMARY, SECONDARY, OPTIONS) is OPTIONS


@pytest.mark.parametrize(
    ("primary", "secondary", "error", "said"),
    [
        ({"is_paired": True}, {}, AlreadyPaired, "this client of contoso.* is paired already"),
        ({}, {"is_paired": True}, AlreadyPaired, "the secondary backup.* is itself paired"),
        ({}, {"namespace": PRIMARY.namespace}, InvalidOptions, "the same namespace, contoso"),
        (
            {},
            {"is_async": True},
            InvalidOptions,
            r"the secondary backup\S+ is asynchronous, and this client is not; give a ServiceBusClient of"
            r" azure\.servicebus, or pair a pairbus\.aio\.ServiceBusClient$",
        ),
        (
            {"is_async": True},
            {},
            InvalidOptions,
            r"is not asynchronous, and this client is; give a ServiceBusClient of azure\.servicebus\.aio, or pair a"
            r" pairbus\.ServiceBusClient$",
        ),
        ({}, {"is_async": None}, InvalidOptions, r"messaging_factory is no ServiceBusClient of azure\.servicebus$"),
        ({"is_closed": True}, {}, InvalidOptions, r"this client of contoso\S+ has been closed; pair a new one"),
        ({}, {"is_closed": True}, InvalidOptions, r"the secondary backup\S+ has been closed; make a new one"),
        (
            {},
            {"serves": "fabrikam"},
            AlreadyPaired,
            r"the client of the secondary backup\S+ serves the pair of fabrikam, or did until that was closed; make a"
            " secondary client of its own for each pair",
        ),
        ({"serves": "fabrikam"}, {}, AlreadyPaired, r"this client of contoso\S+ serves the pair of fabrikam as its"),
        ({}, {"entity": "orders"}, InvalidOptions, "may use 'orders' only"),
    ],
)
def test_p6_what_is_refused(
    primary: dict[str, Any], secondary: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        check(PRIMARY._replace(**primary), SECONDARY._replace(**secondary), OPTIONS)


def test_p6_a_manager_of_the_primary_is_refused() -> None:
    with pytest.raises(InvalidOptions, match=r"manages the primary, contoso"):
        check(PRIMARY, SECONDARY, OPTIONS, PRIMARY.namespace)
    check(PRIMARY, SECONDARY, OPTIONS, SECONDARY.namespace)


def test_p6_a_manager_of_the_other_api_is_refused() -> None:
    with pytest.raises(InvalidOptions, match=r"ServiceBusAdministrationClient of azure\.servicebus\.management$"):
        check(PRIMARY, SECONDARY, OPTIONS, manager_is_async=True)
    with pytest.raises(InvalidOptions, match=r"is not asynchronous.* of azure\.servicebus\.aio\.management$"):
        check(PRIMARY._replace(is_async=True), SECONDARY._replace(is_async=True), OPTIONS, manager_is_async=False)
    check(PRIMARY, SECONDARY, OPTIONS, manager_is_async=False)


def test_p6_same_host_other_port_is_another_namespace() -> None:
    one, other = NamespaceIdentity("localhost", 4711), NamespaceIdentity("localhost", 4712)
    check(PRIMARY._replace(namespace=one), SECONDARY._replace(namespace=other), OPTIONS)


@pytest.mark.parametrize(
    ("options", "said"), [(PairedNamespaceOptions(None, Client()), "the base class"), (7, "a int")]
)
def test_p2_only_the_one_kind_of_options_will_do(options: object, said: str) -> None:
    with pytest.raises(InvalidOptions, match=said):
        check(PRIMARY, SECONDARY, options)


def test_paired_takes_connection_strings_or_host_names() -> None:
    text = "Endpoint=sb://contoso/;SharedAccessKeyName=a;SharedAccessKey=b"
    assert is_connection_string(text)
    assert not is_connection_string("contoso.servicebus.windows.net")
    check_access(text, text, None)
    check_access("contoso.servicebus.windows.net", text, object())
    with pytest.raises(InvalidOptions, match="secondary is a host name"):
        check_access(text, "backup.net", None)
    with pytest.raises(InvalidOptions, match="primary may not be empty"):
        check_access("", text, None)


KEY = "c2VjcmV0U2VjcmV0U2VjcmV0U2VjcmV0U2VjcmV0MTI"


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        f"{KEY[:20]}/{KEY[21:]}",
        f"Root:{KEY}",
        f"Endpoint:sb://contoso.servicebus.windows.net/;SharedAccessKeyName:a;SharedAccessKey:{KEY}",
        f"https://Root:{KEY}@contoso.servicebus.windows.net/",
        f"eyJhbGciOiJIUzI1NiJ9.{KEY}{KEY}.{KEY}",
        KEY.encode(),
    ],
)
@pytest.mark.parametrize("credential", [None, object()])
def test_a_key_given_as_a_namespace_is_never_shown(text: Any, credential: Any) -> None:
    good = "Endpoint=sb://contoso/;SharedAccessKeyName=a;SharedAccessKey=b"
    for primary, secondary in ((text, good), (good, text)):
        with pytest.raises(InvalidOptions) as caught:
            check_access(primary, secondary, credential)
        shown = "".join(traceback.format_exception(caught.value))
        assert KEY[:20] not in shown
        assert "a connection string" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["contoso", "localhost", "127.0.0.1:5671", "[::1]:5671", "sb://contoso.x-y.net/", "h."]
)
def test_paired_takes_every_kind_of_host_name(text: str) -> None:
    check_access(text, text, object())


def test_p6_one_name_behind_two_endpoints_is_two_namespaces() -> None:
    one = PRIMARY._replace(endpoint="sb://gateway:1")
    assert check(one, one._replace(endpoint="sb://gateway:2"), OPTIONS) is OPTIONS
    with pytest.raises(InvalidOptions, match="same namespace"):
        check(one, one, OPTIONS)
