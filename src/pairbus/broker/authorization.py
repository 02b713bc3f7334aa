"""What the tokens that a connection has put permit, and until when (dialect 2).

Several tokens may be in force at once (JS puts one per link); the newest of a scope and key replaces the older.
"""

from __future__ import annotations

from .sas import Claims

#: A client puts one token per entity it touches; beyond this the oldest go.
_CLAIMS_MAX = 1000


class Authorization:
    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], Claims] = {}

    def __repr__(self) -> str:
        return f"<Authorization {len(self._claims)} tokens>"

    def __bool__(self) -> bool:
        return bool(self._claims)

    def put(self, claims: Claims) -> None:
        key = (claims.scope_path, claims.key_name)
        self._claims.pop(key, None)
        self._claims[key] = claims
        if len(self._claims) > _CLAIMS_MAX:
            del self._claims[next(iter(self._claims))]

    def allows(self, right: str, path: str, now: float) -> bool:
        return any(claims.expires_at > now and claims.allows(right, path) for claims in self._claims.values())

    def expire(self, now: float) -> bool:
        """Drops what has run out and says whether anything did."""
        gone = [key for key, claims in self._claims.items() if claims.expires_at <= now]
        for key in gone:
            del self._claims[key]
        return bool(gone)

    @property
    def deadline(self) -> float | None:
        return min((claims.expires_at for claims in self._claims.values()), default=None)
