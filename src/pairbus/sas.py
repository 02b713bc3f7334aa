"""Creates and verifies shared access signatures, and tells what one permits. Pure.

See docs/reference/protocol.md#shared-access-signatures.

It decides what a signature permits, but does not know where rules are kept: `verify` asks for the rules in force at a
path, so that an entity's own rules count beside the namespace's.

No error's text contains a key or a signature.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Self
from urllib.parse import quote, unquote, unquote_plus

from pairbus.errors import PairbusError

MANAGE, SEND, LISTEN = "Manage", "Send", "Listen"

TOKEN_CHARS_MAX = 8192
SKEW_S = 5.0
# The SDK's admin client renews its token sixty seconds after it ran out, not before.
HTTP_SKEW_S = 90.0

_PREFIX = "sharedaccesssignature "
_EXPIRY_DIGITS_MAX = 15


class SasError(PairbusError):
    """The token is not good. `reason` says why, for a log line or the peer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """A named pair of keys and what they permit. The keys stay out of `repr`."""

    key_name: str
    rights: tuple[str, ...]
    primary_key: str = field(repr=False)
    secondary_key: str = field(default="", repr=False)
    created_at: float = 0.0
    modified_at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"rights": list(self.rights)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(**(data | {"rights": tuple(data["rights"])}))


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityRule(AuthorizationRule):
    """A rule of one entity, by its path; it covers nothing else."""

    entity: str


@dataclass(frozen=True, slots=True)
class Claims:
    """What a verified token permits. `scope_path` is lower-cased; empty means the whole namespace. `entity` is where
    the rule stands that signed it; empty means the namespace."""

    scope_path: str
    rights: frozenset[str]
    expires_at: float
    key_name: str
    entity: str = ""

    def allows(self, right: str, entity_path: str) -> bool:
        """Return whether the token permits this on the entity; when it expires is not looked at."""
        if right not in self.rights:
            return False
        path = entity_path.strip("/").lower()
        # 'orders/eu' is another queue than 'orders': a key of the one does not open the other
        if self.entity and owner_path(path) != self.entity:
            return False
        scope = self.scope_path
        return not scope or path == scope or path.startswith(scope + "/")


def owner_path(path: str) -> str:
    """Return the queue or topic that a path belongs to: all before a `$…` node or the subscriptions of a topic, which
    are no part of a name."""
    segments = path.split("/")
    for index, segment in enumerate(segments):
        if index and (segment.startswith("$") or segment.lower() == "subscriptions"):
            return "/".join(segments[:index])
    return path


def is_sas(token: str) -> bool:
    """Return whether it is a shared access signature, by its text: Python's SDK says `jwt` for the type of either kind
    (docs/reference/protocol.md#a-sas-token-is-recognised-by-its-text)."""
    return token[: len(_PREFIX)].lower() == _PREFIX


def verify(
    token: str,
    now: float,
    rules: Callable[[str], Iterable[AuthorizationRule]],
    *,
    skew: float = SKEW_S,
) -> Claims:
    """Return what a token permits, or raise SasError. `rules(path)` yields the rules in force at that path
    (lower-cased, empty for the namespace itself): the namespace's own, and those of the entity that the path leads
    to."""
    if len(token) > TOKEN_CHARS_MAX:
        raise SasError(f"the token has {len(token)} characters; at most {TOKEN_CHARS_MAX} are read")
    if not is_sas(token) or not token.isascii():
        raise SasError("the token is not of the form 'SharedAccessSignature sr=…&sig=…&se=…&skn=…'")
    parts = _fields(token[len(_PREFIX) :])
    expires_at = _expiry(parts["se"])
    scope = scope_path(unquote(parts["sr"]))
    try:
        signature = base64.b64decode(unquote(parts["sig"]).encode(), validate=True)
    except (binascii.Error, ValueError):
        raise SasError("the token's sig is not base64") from None

    # Python's SDK encodes skn twice when it has to be encoded at all, the first time with '+' for a space.
    once = unquote(parts["skn"])
    names = {once, unquote(once), unquote_plus(once)}
    signed = f"{parts['sr']}\n{parts['se']}".encode()
    granted: AuthorizationRule | None = None
    for rule in rules(scope):
        if rule.key_name not in names:
            continue
        for key in (rule.primary_key, rule.secondary_key):
            if key and hmac.compare_digest(_digest(key, signed), signature):
                granted = rule
    if granted is None:
        raise SasError(f"the token's signature does not match a key named {_shown(once)}")
    if expires_at + skew <= now:
        raise SasError(f"the token ran out {now - expires_at:.0f} s ago")
    rights = frozenset(granted.rights)
    if MANAGE in rights:
        rights |= {SEND, LISTEN}
    entity = granted.entity if isinstance(granted, EntityRule) else ""
    return Claims(scope, rights, expires_at, granted.key_name, entity)


def make_token(resource: str, key_name: str, key: str, expires_at: float) -> str:
    """Return a token for the resource, signed with the key."""
    sr = quote(resource, safe="")
    se = str(int(expires_at))
    sig = quote(base64.b64encode(_digest(key, f"{sr}\n{se}".encode())), safe="")
    return f"SharedAccessSignature sr={sr}&sig={sig}&se={se}&skn={quote(key_name, safe='')}"


def scope_path(resource: str) -> str:
    """Return the entity path in a decoded `sr`, lower-cased; empty when it is the namespace itself.

    Without a scheme the first segment is the host only where it can't be an entity: taking a name for a host
    would widen the scope to the namespace.
    """
    _, separator, rest = resource.partition("://")
    if not separator:
        head = resource.partition("/")[0]
        rest = resource if ":" in head or head.lower().endswith(".servicebus.windows.net") else "/" + resource
    _, _, path = rest.partition("/")
    # The JS SDK signs the whole URL: a query may follow, and the name in it is encoded once more.
    path = unquote(path.partition("?")[0].partition("#")[0])
    return path.strip("/").lower()


def _fields(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for pair in text.split("&"):
        name, separator, value = pair.partition("=")
        name = name.strip().lower()
        if not separator or name in parts:
            raise SasError("the token must hold each of sr, sig, se and skn once, as name=value joined by '&'")
        parts[name] = value.strip()
    for name in ("sr", "sig", "se", "skn"):
        if not parts.get(name):
            raise SasError(f"the token has no {name}; it must hold sr, sig, se and skn")
    return parts


def _expiry(text: str) -> float:
    if not (text.isascii() and text.isdigit() and len(text) <= _EXPIRY_DIGITS_MAX):
        raise SasError("the token's se is not a time in whole seconds since 1970")
    return float(text)


def _digest(key: str, message: bytes) -> bytes:
    return hmac.new(key.encode(), message, hashlib.sha256).digest()


def _shown(name: str) -> str:
    return repr(name if len(name) <= 64 else name[:64] + "…")
