"""Reads the arguments of a `$management` request by name and type. Pure.

For a missing or wrong argument every method raises BadArgument, which names the argument and says what is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

#: Of lock tokens, sequence numbers and messages in one request.
_ITEMS_MAX = 5000


class BadArgument(Exception):
    """An argument is missing or of the wrong type; the text says what is needed."""


class Arguments:
    """The map in the body of a request."""

    __slots__ = ("_body",)

    def __init__(self, body: Mapping[Any, Any]) -> None:
        self._body = body

    def value(self, name: str) -> Any:
        return self._body.get(name)

    def whole(self, name: str) -> int:
        value = self._body.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadArgument(f"{name} is {_shown(value)}; an integer is needed")
        return int(value)

    def count(self, name: str) -> int:
        value = self.whole(name)
        if value < 1:
            raise BadArgument(f"{name} is {value}; at least 1 is needed")
        return value

    def text(self, name: str) -> str:
        value = self.optional_text(name)
        if not value:
            raise BadArgument(f"{name} is {_shown(value)}; a string is needed")
        return value

    def optional_text(self, name: str) -> str | None:
        value = self._body.get(name)
        if value is not None and not isinstance(value, str):
            raise BadArgument(f"{name} is {_shown(value)}; a string is needed, or none")
        return None if value is None else str(value)

    def flag(self, name: str) -> bool:
        """False where it is not given."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, bool):
            raise BadArgument(f"{name} is {_shown(value)}; a boolean is needed, or none")
        return value is True

    def optional_bytes(self, name: str) -> bytes | None:
        value = self._body.get(name)
        if value is not None and not isinstance(value, bytes):
            raise BadArgument(f"{name} is {_shown(value)}; bytes are needed, or none")
        return value

    def optional_map(self, name: str) -> dict[str, Any]:
        value = self._body.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise BadArgument(f"{name} is {_shown(value)}; a map is needed, or none")
        return {str(key): each for key, each in value.items()}

    def numbers(self, name: str) -> list[int]:
        return [int(number) for number in self._items(name, int, "integers")]

    def tokens(self, name: str) -> list[bytes]:
        """Lock tokens as the queue knows them: in .NET's byte order, as in the delivery tag
        (docs/reference/protocol.md#lock-tokens)."""
        return [token.bytes_le for token in self._items(name, UUID, "uuids")]

    def payloads(self, name: str) -> list[bytes]:
        """Encoded messages, each in a map under `message`."""
        found = []
        for item in self._items(name, dict, "maps"):
            payload = item.get("message")
            if not isinstance(payload, bytes):
                raise BadArgument(f"each of {name} holds the encoded message as binary under 'message'")
            found.append(payload)
        return found

    def _items(self, name: str, kind: type, plural: str) -> list[Any]:
        items = self._body.get(name)
        if not isinstance(items, list) or not items or not all(isinstance(item, kind) for item in items):
            raise BadArgument(f"{name} must be a list or an array of at least one; {plural} are needed")
        if len(items) > _ITEMS_MAX:
            raise BadArgument(f"{len(items)} {name}; at most {_ITEMS_MAX} go in one request")
        return items


def _shown(value: Any) -> str:
    return repr(value)[:60]
