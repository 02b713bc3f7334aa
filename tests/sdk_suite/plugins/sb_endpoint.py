"""A pytest plugin for the suite's own interpreter: leads TLS and WebSocket clients to the broker's one port.

The SDK takes them to the service's fixed ports, 5671 and 443. `custom_endpoint_address`, its own option for that, is
set for clients of the broker under test that name none; a client that is given a certificate or a TLS context speaks
TLS, as it would to the service; and the certificates that the tests hold to be the public ones are the broker's.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import azure.servicebus as sync_sdk
import azure.servicebus.aio as async_sdk
import certifi
from azure.servicebus import TransportType

HOST = os.environ["SB_HOST"]


def _lead(client: Any) -> None:
    made = client.__init__

    @functools.wraps(made)
    def init(self: Any, fully_qualified_namespace: str, credential: Any, **options: Any) -> None:
        if HOST in fully_qualified_namespace and "custom_endpoint_address" not in options:
            if "ssl_context" in options or "connection_verify" in options:
                options["use_tls"] = True
            if options.get("use_tls", True) or options.get("transport_type") is TransportType.AmqpOverWebsocket:
                options["custom_endpoint_address"] = f"sb://{HOST}"
                options.setdefault("transport_type", TransportType.Amqp)  # with that address the default is WebSocket
        made(self, fully_qualified_namespace, credential, **options)

    client.__init__ = init


_lead(sync_sdk.ServiceBusClient)
_lead(async_sdk.ServiceBusClient)
certifi.where = lambda: os.environ["SSL_CERT_FILE"]
