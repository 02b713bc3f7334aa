"""Pytest plugin: leads the SDK's clients to the one port of the broker under test.

A client that a test constructs speaks TLS only if it is given a certificate or a TLS context. The SDK takes TLS and
WebSocket clients to the service's fixed ports, 5671 and 443; `custom_endpoint_address`, its own option for that, is set
for those that name the broker. The certificates that the tests take for the public ones are the broker's.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import certifi
from azure.servicebus import TransportType


def lead_to_broker(client: Any) -> None:
    construct = client.__init__

    @functools.wraps(construct)
    def construct_for_broker(self: Any, fully_qualified_namespace: str, credential: Any, **options: Any) -> None:
        options.setdefault("use_tls", False)
        host = os.environ["SUITE_HOST"]
        if host in fully_qualified_namespace and "custom_endpoint_address" not in options:
            if "ssl_context" in options or "connection_verify" in options:
                options["use_tls"] = True
            if options["use_tls"] or options.get("transport_type") is TransportType.AmqpOverWebsocket:
                options["custom_endpoint_address"] = f"sb://{host}"
                options.setdefault("transport_type", TransportType.Amqp)  # with that address the default is WebSocket
        construct(self, fully_qualified_namespace, credential, **options)

    client.__init__ = construct_for_broker


lead_to_broker(azure.servicebus.ServiceBusClient)
lead_to_broker(azure.servicebus.aio.ServiceBusClient)
certifi.where = lambda: os.environ["SSL_CERT_FILE"]
