"""The credentials of a client, for SASL and `$cbs` (docs/reference/protocol.md#handshake, #tokens-over-cbs). Pure.

Four kinds: `SharedKey` signs its own tokens, `SharedSignature` holds one made elsewhere, `EntraToken` wraps an
azure-identity style credential, `Login` is a user and password for brokers without `$cbs`. It decides the audience of a
token, how long it is valid and when to renew it. It neither reads a clock nor fetches anything: the shell calls
`get_token`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qs

from pairbus.amqp.sasl import plain_response
from pairbus.sas import make_token

from .connection_string import ConnectionString

SCOPE = "https://servicebus.azure.net/.default"
SAS_TYPE = "servicebus.windows.net:sastoken"
JWT_TYPE = "jwt"
SAS_LIFETIME_S = 3600.0


@dataclass(frozen=True, slots=True)
class Token:
    """The token of one put-token request."""

    text: str = field(repr=False)
    kind: str
    expires_at: float

    def renew_at(self, now: float) -> float:
        """Return when to renew it: with a tenth of its life left, as the SDK does, but 30 s before the end of a long
        one."""
        life = max(0.0, self.expires_at - now)
        return self.expires_at - max(life * 0.1, min(30.0, life * 0.5))


@runtime_checkable
class TokenSource(Protocol):
    """An azure-identity credential, sync or async: `get_token(scope)` gives an object with `token` and `expires_on`."""

    def get_token(self, *scopes: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class SharedKey:
    """The name of a key and the key, which sign tokens."""

    name: str
    key: str = field(repr=False)
    lifetime_s: float = SAS_LIFETIME_S

    def token(self, audience: str, now: float) -> Token:
        expires_at = float(int(now + self.lifetime_s))
        return Token(make_token(audience, self.name, self.key, int(expires_at)), SAS_TYPE, expires_at)


@dataclass(frozen=True, slots=True)
class SharedSignature:
    """A signature that was made elsewhere, for one scope; it cannot be renewed."""

    signature: str = field(repr=False)
    expires_at: float = field(init=False)

    def __post_init__(self) -> None:
        fields = parse_qs(self.signature.partition(" ")[2])
        try:
            object.__setattr__(self, "expires_at", float(fields["se"][0]))
        except (KeyError, ValueError):
            raise ValueError("the shared access signature has no expiry: 'se=<unix seconds>' is missing") from None

    def token(self, audience: str, now: float) -> Token:
        return Token(self.signature, SAS_TYPE, self.expires_at)


@dataclass(frozen=True, slots=True)
class EntraToken:
    """A credential of azure-identity's kind."""

    source: TokenSource = field(repr=False)

    @staticmethod
    def token(answer: Any) -> Token:
        text, expires_on = getattr(answer, "token", None), getattr(answer, "expires_on", None)
        if not isinstance(text, str) or not isinstance(expires_on, int | float):
            raise TypeError(
                f"the credential's get_token gave {type(answer).__name__}; an object with token (str) and expires_on "
                "(unix seconds) is wanted"
            )
        return Token(text, JWT_TYPE, float(expires_on))


@dataclass(frozen=True, slots=True)
class Login:
    """A user and password for SASL PLAIN."""

    user: str
    password: str = field(repr=False)

    @property
    def initial_response(self) -> bytes:
        return plain_response(self.user, self.password)


Credential = SharedKey | SharedSignature | EntraToken | Login


def from_connection_string(parsed: ConnectionString) -> SharedKey | SharedSignature:
    if parsed.signature is not None:
        return SharedSignature(parsed.signature)
    assert parsed.key_name is not None and parsed.key is not None  # parse() lets nothing else through
    return SharedKey(parsed.key_name, parsed.key)


def as_credential(given: Credential | TokenSource | None) -> Credential | None:
    if given is None or isinstance(given, SharedKey | SharedSignature | EntraToken | Login):
        return given
    if callable(getattr(given, "get_token", None)):
        return EntraToken(given)
    raise TypeError(
        f"{type(given).__name__} is no credential; right are SharedKey, SharedSignature, Login, an object with "
        "get_token(scope), or None"
    )
