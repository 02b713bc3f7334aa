"""A message as expressions see it, made of plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from pairbus.broker.sql.compiler import compile_filter

NEW_ID = UUID("00000000-0000-4000-8000-000000000001")


class FakeMessage:
    def __init__(self, properties: Mapping[str, Any], system: Mapping[str, Any] | None = None) -> None:
        self.properties = {name.lower(): value for name, value in properties.items()}
        self.system_properties = system or {}

    def user(self, name: str) -> Any:
        return self.properties.get(name)

    def has_user(self, name: str) -> bool:
        return name in self.properties

    def system(self, name: str) -> Any:
        return self.system_properties.get(name)

    def new_id(self) -> UUID:
        return NEW_ID


def evaluate(
    text: str,
    properties: Mapping[str, Any] | None = None,
    system: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> bool | None:
    """Return what a filter says of a message with these properties."""
    compiled = compile_filter(text, parameters or {})
    return compiled if isinstance(compiled, bool) else compiled(FakeMessage(properties or {}, system))
