"""Parses Service Bus connection strings (docs/reference/protocol.md#connection-strings-and-ports). Pure.

Decides which keys there are, what each must look like, what follows for the socket (host, port, TLS), and how a
namespace is identified, whatever its address. It does not connect. An error names the wrong key but never shows a
value, since in a mangled string any of them may be the secret.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pairbus.errors import PairbusError

TLS_PORT = 5671
PLAIN_PORT = 5672
CHARS_MAX = 4096
#: What our broker and our clients say of themselves in the properties of an open, by AMQP's own name.
PRODUCT, PAIRBUS = "product", "pairbus"

_KEYS = {
    "endpoint": "Endpoint",
    "sharedaccesskeyname": "SharedAccessKeyName",
    "sharedaccesskey": "SharedAccessKey",
    "sharedaccesssignature": "SharedAccessSignature",
    "entitypath": "EntityPath",
    "usedevelopmentemulator": "UseDevelopmentEmulator",
}
_NO_ADDRESS = "Endpoint is no address; right is sb://<host>[:port]/"
_SCHEMES = ("sb", "amqp", "amqps", "https")


class ConnectionStringError(PairbusError, ValueError):
    """The text is no connection string. The message says what is wrong with it, without the key."""


@dataclass(frozen=True, slots=True)
class ConnectionString:
    host: str
    #: The port that the Endpoint names, or None.
    endpoint_port: int | None = None
    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)
    entity: str | None = None
    emulator: bool = False

    @property
    def port(self) -> int:
        return self.endpoint_port or (PLAIN_PORT if self.emulator else TLS_PORT)

    @property
    def tls(self) -> bool:
        return not self.emulator

    @property
    def authority(self) -> str:
        """Host, with the port where the Endpoint names one: what audiences are made of."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.endpoint_port is None else f"{host}:{self.endpoint_port}"

    @classmethod
    def parse(cls, text: str) -> ConnectionString:
        fields = _fields(text)
        if "Endpoint" not in fields:
            raise ConnectionStringError("the connection string has no Endpoint; it begins with Endpoint=sb://<host>/;…")
        host, port = _endpoint(fields["Endpoint"])
        signature = fields.get("SharedAccessSignature")
        key_name, key = fields.get("SharedAccessKeyName"), fields.get("SharedAccessKey")
        if signature is not None:
            if key_name is not None or key is not None:
                raise ConnectionStringError(
                    "the connection string has both SharedAccessSignature and SharedAccessKeyName/SharedAccessKey; "
                    "give one or the other"
                )
            if not signature.lower().startswith("sharedaccesssignature "):
                raise ConnectionStringError("SharedAccessSignature must read 'SharedAccessSignature sr=…&sig=…&se=…'")
        elif key_name is None and key is None:
            raise ConnectionStringError(
                "the connection string has neither SharedAccessKeyName and SharedAccessKey nor SharedAccessSignature"
            )
        elif key_name is None or key is None:
            missing = "SharedAccessKeyName" if key_name is None else "SharedAccessKey"
            raise ConnectionStringError(f"the connection string has no {missing}; name and key go together")
        return cls(
            host=host,
            endpoint_port=port,
            key_name=key_name,
            key=key,
            signature=signature,
            entity=fields.get("EntityPath"),
            emulator=_flag(fields.get("UseDevelopmentEmulator")),
        )


def _fields(text: str) -> dict[str, str]:
    if len(text) > CHARS_MAX:
        raise ConnectionStringError(f"the connection string has {len(text)} characters; at most {CHARS_MAX} are read")
    fields: dict[str, str] = {}
    for number, part in enumerate(text.strip().split(";"), start=1):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")  # a key of base64 ends in '=': only the first one parts
        name = _KEYS.get(key.strip().lower())
        if not equals or name is None:
            # what stands before '=' may itself be a secret when the text is mangled: show only what looks like a key
            known = ", ".join(_KEYS.values())
            shown = f"{key.strip()!r}" if equals and key.strip().isalpha() and len(key) <= 40 else f"part {number}"
            problem = "is no key of a connection string" if equals else "has no '='"
            raise ConnectionStringError(f"{shown} {problem}; the keys are {known}")
        if name in fields:
            raise ConnectionStringError(f"the connection string has {name} twice")
        if not value.strip():
            raise ConnectionStringError(f"{name} is empty")
        fields[name] = value.strip()
    return fields


def _endpoint(value: str) -> tuple[str, int | None]:
    try:
        url = urlsplit(value)
        host, port = url.hostname, url.port
    except ValueError:
        raise ConnectionStringError(_NO_ADDRESS) from None
    if url.scheme.lower() not in _SCHEMES or not host:
        raise ConnectionStringError(_NO_ADDRESS)
    if url.username is not None or url.password is not None:
        raise ConnectionStringError("Endpoint holds a user name or password; right is sb://<host>[:port]/")
    if url.path.strip("/") or url.query or url.fragment:
        raise ConnectionStringError(
            "Endpoint has more than a host; right is sb://<host>[:port]/, and an entity goes into EntityPath"
        )
    if port == 0:
        raise ConnectionStringError("Endpoint names port 0; a port is 1 to 65535")
    return host, port


def _flag(value: str | None) -> bool:
    # the SDK takes all but 'true' for false, silently; a typing error would then try TLS on a plain port
    if value is None or value.lower() == "false":
        return False
    if value.lower() == "true":
        return True
    raise ConnectionStringError("UseDevelopmentEmulator is something else; right is true or false")


def namespace_name(host: str, port: int, container_id: str, properties: Mapping[Any, Any] | None) -> str:
    """Return the name that our broker states when a connection opens, so that another port or an address makes no
    difference. Azure states none: there it is the host in lower case, with a port that is not the usual one."""
    if properties and properties.get(PRODUCT) == PAIRBUS:
        return container_id.lower()
    bare = host.lower().rstrip(".")
    try:
        if ipaddress.ip_address(bare).is_loopback:
            bare = "localhost"
    except ValueError:
        pass
    return bare if port in (443, TLS_PORT, PLAIN_PORT) else f"{bare}:{port}"
