"""Compiles an action, once, and computes the changes that it makes to a message. Pure.

Statements are executed in order, each on the result of the ones before it. `broker.format` writes the message as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

from pairbus.amqp.codec import encode
from pairbus.amqp.types import Described, Timestamp

from .compiler import Run, Scope, compile_part
from .kinds import DURATION, TEXT, TIME, TIMESPAN, EvaluationError, converted, storable
from .parser import parse_action
from .system_properties import SETTABLE, SYSTEM_PROPERTIES
from .tree import Property, Set

PROPERTY_BYTES_MAX: Final = 32768
PROPERTIES_BYTES_MAX: Final = 65536
_ID_CHARS_MAX: Final = 128
_IDS: Final = frozenset(("MessageId", "SessionId", "ReplyToSessionId", "PartitionKey", "ViaPartitionKey"))
_EXAMPLES: Final = {TEXT: "", DURATION: Described(TIMESPAN, 0), TIME: Timestamp(0)}


class Draft:
    """A message while an action changes it: its application properties, and the system properties that are set."""

    __slots__ = ("_names", "_original", "_scope", "properties", "system_set")

    def __init__(self, scope: Scope, properties: Mapping[str, Any]) -> None:
        self._scope = scope
        self._original = properties
        self.properties = dict(properties)
        # As a look-up finds them: of names that differ in their capitals only, the first.
        self._names = {name.lower(): name for name in reversed(self.properties)}
        self.system_set: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<Draft: {len(self.properties)} properties, {len(self.system_set)} system properties set>"

    def user(self, name: str) -> Any:
        known = self._names.get(name)
        return None if known is None else self.properties[known]

    def has_user(self, name: str) -> bool:
        return name in self._names

    def system(self, name: str) -> Any:
        return self.system_set[name] if name in self.system_set else self._scope.system(name)

    def new_id(self) -> UUID:
        return self._scope.new_id()

    def set_user(self, name: str, value: Any) -> None:
        known = self._names.setdefault(name.lower(), name)
        try:
            value = converted(value, self.properties.get(known))
        except EvaluationError:
            pass  # it takes the type of what it is set to
        value = storable(value)
        if len(encode(value)) > PROPERTY_BYTES_MAX:
            raise EvaluationError(f"the property '{known}' becomes longer than {PROPERTY_BYTES_MAX} bytes")
        self.properties[known] = value

    def remove_user(self, name: str) -> None:
        known = self._names.pop(name.lower(), None)
        if known is not None:
            del self.properties[known]

    def set_system(self, name: str, value: Any) -> None:
        kind = SETTABLE.get(name)
        if kind is None:
            raise EvaluationError(f"the system property '{name}' can't be set")
        value = converted(value, _EXAMPLES[kind])
        if name == "MessageId" and not value:
            raise EvaluationError("a message can't be without a MessageId")
        if name in _IDS and value is not None and len(value) > _ID_CHARS_MAX:
            raise EvaluationError(f"{name} may have {_ID_CHARS_MAX} characters; this one has {len(value)}")
        if kind == TEXT and value is not None and len(value) > PROPERTY_BYTES_MAX:
            raise EvaluationError(f"{name} becomes longer than {PROPERTY_BYTES_MAX} characters")
        if kind == DURATION and value is not None and value.value <= 0:
            raise EvaluationError(f"{name} is longer than nothing")
        self.system_set[name] = value

    def changes(self) -> tuple[dict[str, Any], set[str]]:
        """Return the application properties that were set, and the names of those that were removed."""
        old = self._original
        return (
            {name: value for name, value in self.properties.items() if name not in old or old[name] is not value},
            old.keys() - self.properties.keys(),
        )

    def finish(self) -> None:
        """Raise EvaluationError for a message that is more than it may be."""
        size = len(encode(self.properties))
        if size > PROPERTIES_BYTES_MAX:
            raise EvaluationError(f"the properties take {size} bytes; {PROPERTIES_BYTES_MAX} are allowed")


_Step: TypeAlias = Callable[[Draft], None]


class Action:
    """A compiled action."""

    __slots__ = ("_steps",)

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        """Raises SqlSyntaxError."""
        self._steps = [
            _set(part.property, compile_part(part.value).run) if isinstance(part, Set) else _remove(part.property)
            for part in parse_action(text, parameters)
        ]

    def __repr__(self) -> str:
        return f"<Action: {len(self._steps)} statements>"

    def apply(self, draft: Draft) -> None:
        """Change a message. Raises EvaluationError where that can't be done."""
        for step in self._steps:
            step(draft)


def _set(target: Property, run: Run) -> _Step:
    if target.is_system:
        known = _system_name(target)
        return lambda draft: draft.set_system(known(), run(draft))
    return lambda draft: draft.set_user(target.name, run(draft))


def _remove(target: Property) -> _Step:
    if target.is_system:
        known = _system_name(target)
        return lambda draft: draft.set_system(known(), None)
    return lambda draft: draft.remove_user(target.name)


def _system_name(target: Property) -> Callable[[], str]:
    def known() -> str:
        try:
            return SYSTEM_PROPERTIES[target.name.lower()]
        except KeyError:
            raise EvaluationError(f"messages have no system property '{target.name}'") from None

    return known
