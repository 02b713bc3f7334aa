"""Says how to reach a namespace with the wire client: an immutable value, from which `client` creates a client."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NamedTuple

from pairbus import billing
from pairbus.credentials import Credential, TokenSource, from_connection_string
from pairbus.wire import ConnectionString, WireClient


class Endpoint(NamedTuple):
    host: str
    port: int | None = None
    tls: bool = True
    credential: Credential | TokenSource | None = None
    ca_file: str | None = None
    ssl_context: ssl.SSLContext | None = None
    #: Its name in ledgers and messages: the embedded broker's namespaces all have the same host.
    name: str = ""
    #: The billing cause of its clients.
    cause: str = billing.APP

    def __repr__(self) -> str:
        at = f" at {self.host}:{self.port or 'default port'}" if self.label != self.host else ""
        return f"<Endpoint {self.label}{at}{'' if self.tls else ', plain'}>"

    @property
    def label(self) -> str:
        return self.name or self.host

    @classmethod
    def from_connection_string(cls, text: str, *, ca_file: str | Path | None = None, name: str = "") -> Endpoint:
        parsed = ConnectionString.parse(text)
        # the embedded broker's CA is for its administration; without TLS there is nothing to verify
        trusted = str(ca_file) if ca_file is not None and parsed.tls else None
        return cls(
            parsed.host, parsed.endpoint_port, parsed.tls, from_connection_string(parsed), ca_file=trusted, name=name
        )

    def client(self, **options: Any) -> WireClient:
        return WireClient(
            self.host,
            self.port,
            tls=self.tls,
            credential=self.credential,
            ca_file=self.ca_file,
            ssl_context=self.ssl_context,
            **{"cause": self.cause, **options},
        )
