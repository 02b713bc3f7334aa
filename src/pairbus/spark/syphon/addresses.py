"""Writes an endpoint of an application as text, which is all that reaches Spark's workers."""

from __future__ import annotations

from pairbus.credentials import SharedKey, SharedSignature
from pairbus.pairing.errors import PairingError
from pairbus.spark.connector.options import CREDENTIALS, Address
from pairbus.syphon.endpoint import Endpoint


def address_of(endpoint: Endpoint) -> Address:
    """Return the endpoint as text, which is all that reaches Spark's workers.

    Raises PairingError for a credential that is no key, no signature and none of those that have a name.
    """
    credential = endpoint.credential
    bracketed = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    at = bracketed if endpoint.port is None else f"{bracketed}:{endpoint.port}"
    if isinstance(credential, SharedKey | SharedSignature):
        secret = (
            f"SharedAccessKeyName={credential.name};SharedAccessKey={credential.key}"
            if isinstance(credential, SharedKey)
            else f"SharedAccessSignature={credential.signature}"
        )
        plain = "" if endpoint.tls else ";UseDevelopmentEmulator=true"
        return Address(f"Endpoint=sb://{at};{secret}{plain}", ca_file=endpoint.ca_file)
    for name, kind in CREDENTIALS.items():
        if type(credential).__name__ == kind:
            return Address(host=at, credential=name, ca_file=endpoint.ca_file)
    raise PairingError(
        f"{endpoint.label}: Spark's workers can't be given a {type(credential).__name__}; use a connection string, "
        f'{", ".join(sorted(CREDENTIALS.values()))}, or syphon_engine="in-process"'
    )
