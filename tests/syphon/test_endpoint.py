from __future__ import annotations

from pairbus.syphon.endpoint import Endpoint
from pairbus.wire import SharedKey

TEXT = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey=secret"


def test_from_a_connection_string() -> None:
    endpoint = Endpoint.from_connection_string(TEXT, ca_file="ca.pem", name="contoso")
    assert endpoint == Endpoint(
        "contoso.servicebus.windows.net", None, True, SharedKey("root", "secret"), "ca.pem", name="contoso"
    )
    assert repr(endpoint) == "<Endpoint contoso at contoso.servicebus.windows.net:default port>"
    assert endpoint.label == "contoso"


def test_without_tls_there_is_nothing_to_verify() -> None:
    endpoint = Endpoint.from_connection_string(
        "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=root;SharedAccessKey=secret;UseDevelopmentEmulator=true",
        ca_file="ca.pem",
    )
    assert (endpoint.ca_file, endpoint.tls, endpoint.port, endpoint.label) == (None, False, 5672, "127.0.0.1")
    assert "secret" not in repr(endpoint)


async def test_a_client_of_it() -> None:
    client = Endpoint.from_connection_string(TEXT).client(timeout=3.0)
    assert (client.host, client.port, client.timeout) == ("contoso.servicebus.windows.net", 5671, 3.0)
    await client.close()


async def test_its_clients_say_for_whose_sake_they_work_p51() -> None:
    endpoint = Endpoint.from_connection_string(TEXT)
    moving = endpoint._replace(cause="move").client()
    assert (endpoint.client().cause, endpoint.client(cause="syphon").cause, moving.cause) == ("app", "syphon", "move")
