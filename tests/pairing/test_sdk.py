from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import azure.servicebus
import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, TransportType, aio, exceptions

from pairbus.broker.server import NamespaceServer
from pairbus.credentials import SharedKey, SharedSignature
from pairbus.pairing import sdk
from pairbus.pairing.errors import NotTriedError, PairingError
from pairbus.pairing.routing.budget import Retries
from pairbus.syphon.endpoint import Endpoint

BOTH = [ServiceBusClient, aio.ServiceBusClient]
KEY = "SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"


def test_the_installed_sdk_has_every_private_part_that_we_use() -> None:
    assert sdk.missing() == [], (
        f"azure-servicebus {azure.servicebus.__version__} lacks private parts that pairbus uses; see the docstrings of "
        "pairbus/pairing/sdk.py, sync/watchdog.py, aio/inner.py and the receivers for what each is for"
    )


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "_METHODS", [(azure.servicebus.ServiceBusSender, ["_open", "_no_such_thing"])])
    monkeypatch.setattr(sdk, "_ATTRIBUTES", [(ServiceBusClient.__init__, ["self._config = ", "self._none = "])])
    assert sdk.missing() == [
        "azure.servicebus._servicebus_sender.ServiceBusSender._no_such_thing",
        "azure.servicebus._servicebus_client.ServiceBusClient.__init__: self._none",
    ]


@pytest.mark.parametrize("kind", BOTH)
def test_the_endpoint_of_a_client_on_azure(kind: Any) -> None:
    client = kind.from_connection_string(f"Endpoint=sb://contoso.servicebus.windows.net/;{KEY}")
    assert sdk.endpoint_of(client) == {
        "host": "contoso.servicebus.windows.net",
        "port": None,
        "tls": True,
        "credential": SharedKey("Root", "c2VjcmV0"),
        "ca_file": None,
        "ssl_context": None,
    }


@pytest.mark.parametrize("kind", BOTH)
def test_the_endpoint_of_a_client_without_tls(kind: Any) -> None:
    client = kind.from_connection_string(
        f"Endpoint=sb://127.0.0.1:4711;{KEY};UseDevelopmentEmulator=true", connection_verify="ca.pem"
    )
    endpoint = Endpoint(**sdk.endpoint_of(client), name="contoso")
    assert (endpoint.host, endpoint.port, endpoint.tls, endpoint.ca_file) == ("127.0.0.1", 4711, False, None)
    assert "c2VjcmV0" not in repr(endpoint)
    assert "c2VjcmV0" not in repr(sdk.endpoint_of(client))


@pytest.mark.parametrize("kind", BOTH)
def test_the_endpoint_behind_another_address_with_its_own_ca(kind: Any) -> None:
    options = {"custom_endpoint_address": "sb://gateway:9000", "transport_type": TransportType.Amqp}
    text = f"Endpoint=sb://contoso.servicebus.windows.net/;{KEY}"
    found = sdk.endpoint_of(kind.from_connection_string(text, connection_verify="ca.pem", **options))
    assert (found["host"], found["port"], found["ca_file"]) == ("gateway", 9000, "ca.pem")
    options["custom_endpoint_address"] = "gateway:9001"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found = sdk.endpoint_of(kind.from_connection_string(text, ssl_context=context, connection_verify="x", **options))
    assert (found["host"], found["port"], found["ca_file"]) == ("gateway", 9001, None)
    assert found["ssl_context"] is context


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    "options",
    [
        {"transport_type": TransportType.AmqpOverWebsocket},
        {"http_proxy": {"proxy_hostname": "proxy", "proxy_port": 8080}},
        {"custom_endpoint_address": "sb://gateway:9000"},
    ],
)
def test_p38_a_client_over_websocket_has_no_endpoint_for_the_syphon(kind: Any, options: dict[str, Any]) -> None:
    client = kind.from_connection_string(f"Endpoint=sb://contoso.servicebus.windows.net/;{KEY}", **options)
    with pytest.raises(
        PairingError, match=r"contoso.servicebus.windows.net speaks AMQP over WebSocket.*pairbus syphon"
    ):
        sdk.endpoint_of(client)


class Credential:
    def get_token(self, *_scopes: str, **_options: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("kind", BOTH)
def test_credentials_of_every_kind(kind: Any) -> None:
    def credential(given: Any) -> Any:
        return sdk.endpoint_of(kind("contoso.servicebus.windows.net", given))["credential"]

    signature = "SharedAccessSignature sr=x&sig=y&se=4102444800&skn=Root"
    assert credential(AzureNamedKeyCredential("Root", "k")) == SharedKey("Root", "k")
    assert credential(AzureSasCredential(signature)) == SharedSignature(signature)
    own = Credential()
    assert credential(own) is own
    client = kind.from_connection_string(f"Endpoint=sb://contoso/;SharedAccessSignature={signature}")
    assert sdk.endpoint_of(client)["credential"] == SharedSignature(signature)


@pytest.mark.parametrize("kind", BOTH)
async def test_the_wire_client_reaches_what_the_sdk_client_reaches(
    pairbus_namespace: NamespaceServer, pairbus_queue: Any, kind: Any
) -> None:
    queue = pairbus_queue("endpoint")
    plain = kind.from_connection_string(pairbus_namespace.connection_string)
    tls = kind.from_connection_string(
        pairbus_namespace.connection_string.replace(";UseDevelopmentEmulator=true", ""),
        custom_endpoint_address=f"sb://localhost:{pairbus_namespace.port}",
        transport_type=TransportType.Amqp,
        connection_verify=pairbus_namespace.ca_file,
    )
    for client in (plain, tls):
        async with Endpoint(**sdk.endpoint_of(client)).client() as wire:
            await wire.sender(queue)


@pytest.mark.parametrize(
    ("error", "spoils"),
    [
        (exceptions.ServiceBusConnectionError(), True),
        (exceptions.OperationTimeoutError(), True),
        (NotTriedError("no time"), False),
        (KeyboardInterrupt(), True),
        (exceptions.ServiceBusError("internal"), True),
        (exceptions.ServiceBusServerBusyError(), False),
        (exceptions.ServiceBusQuotaExceededError(), False),
        (exceptions.MessageSizeExceededError(), False),
        (ValueError(), False),
        (TypeError(), False),
    ],
)
def test_what_spoils_a_sender(error: BaseException, spoils: bool) -> None:
    assert sdk.spoils(error) is spoils


def test_judging_leaves_a_retry_on_the_same_link_to_the_sdk() -> None:
    client = ServiceBusClient.from_connection_string(f"Endpoint=sb://contoso/;{KEY}")
    sender: Any = client.get_queue_sender("orders")
    sender._running = True
    late = exceptions.OperationTimeoutError()
    assert sdk.judged(sender, late) is late
    with pytest.raises(sdk.LinkLost) as caught:
        sdk.judged(sender, exceptions.ServiceBusConnectionError(message="gone"))
    assert isinstance(caught.value.error, exceptions.ServiceBusConnectionError)
    sender._running = False
    with pytest.raises(sdk.LinkLost):
        sdk.judged(sender, late)


def test_p24_a_halted_entity_says_for_how_long() -> None:
    error = sdk.EntityHalted("orders", 9.94)
    assert isinstance(error, exceptions.ServiceBusServerBusyError)
    assert "orders" in str(error)
    assert "9.9 s" in str(error)


def test_the_ca_file_is_read_once_and_again_when_it_changes(pairbus_namespace: NamespaceServer, tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(Path(pairbus_namespace.ca_file).read_bytes())
    first = sdk.tls_context(str(ca_file))
    assert first.verify_mode == ssl.CERT_REQUIRED
    assert first.check_hostname
    assert sdk.tls_context(str(ca_file)) is first
    ca_file.write_bytes(ca_file.read_bytes() + b"\n")
    assert sdk.tls_context(str(ca_file)) is not first


def test_a_ca_file_that_is_not_there_is_told_from_a_lost_connection() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        sdk.tls_context("nowhere.pem")
    assert caught.value.filename == {"ca_certs": "nowhere.pem"}, "which is how the SDK knows it"


@pytest.mark.parametrize("kind", BOTH)
def test_p13_the_retries_of_a_client_are_those_that_its_user_configured(kind: Any) -> None:
    text = f"Endpoint=sb://contoso.servicebus.windows.net/;{KEY}"
    assert sdk.retries_of(kind.from_connection_string(text)) == Retries(3, 0.8, 120, False)
    client = kind.from_connection_string(
        text, retry_total=7, retry_backoff_factor=0.5, retry_backoff_max=2, retry_mode="fixed"
    )
    assert sdk.retries_of(client) == Retries(7, 0.5, 2, True)
