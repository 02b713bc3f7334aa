"""Checks single values in the tables of a configuration file, and reports a wrong one with its place. Pure.

It decides which values are valid and how a place is written (`Namespaces[0].Queues[2].Name` in JSON,
`namespaces.contoso.queues[2].name` in TOML). config_file.py knows what the keys mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NoReturn

from pairbus.broker.access.throttling import LIMIT_MAX
from pairbus.broker.http.xml import read_duration
from pairbus.broker.model.description import RIGHTS
from pairbus.broker.operations.forward_decisions import entity_at
from pairbus.broker.operations.nodes import NODES_MAX
from pairbus.broker.operations.quotas import TIERS
from pairbus.errors import BrokerError, PairbusError, did_you_mean

from .plan import PORTS_MAX, STALL_S_MAX, STALL_S_MIN, parse_namespace, wrong_ports

_SHOWN_CHARS_MAX: Final = 80


class ConfigError(PairbusError, ValueError):
    """A configuration can't be used. `place` is where in the file; empty for the file itself."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place or 'the file'} {problem}")
        self.place = place


@dataclass(frozen=True, slots=True)
class EntryKind:
    """How a value is read; `read` raises ValueError for one that it does not take."""

    allowed: str
    read: Callable[[Any], Any]


def _only(*types: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        # A bool is an int to Python, and to nobody else.
        if isinstance(value, types) and (bool in types or not isinstance(value, bool)):
            return value
        raise ValueError

    return read


def _checked(read: Callable[[Any], Any], holds: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return `read` with a condition on what it gives."""

    def checked(value: Any) -> Any:
        found = read(value)
        if not holds(found):
            raise ValueError
        return found

    return checked


def _whole(least: int, most: int) -> Callable[[Any], Any]:
    return _checked(_only(int), lambda value: least <= value <= most)


def _number(value: Any) -> float:
    return float(_only(int, float)(value))


def _iso(value: Any) -> float:
    return read_duration(_only(str)(value))


def _iso_or_seconds(value: Any) -> float:
    return _iso(value) if isinstance(value, str) else _number(value)


def _ports(value: Any) -> tuple[int, ...]:
    ports = _checked(_only(list), lambda ports: wrong_ports(ports) is None)(value)
    return tuple(map(PORT.read, ports))


def _rights(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(right in RIGHTS for right in value):
        raise ValueError
    return tuple(right for right in RIGHTS if right in value)


def _namespace(value: Any) -> str:
    try:
        if isinstance(value, str) and ":" not in value:
            return parse_namespace(value)[0]
    except BrokerError:
        pass
    raise ValueError


def _destination(value: Any) -> str | None:
    if not _only(str)(value):
        return None
    to = entity_at(value)
    if not to:
        raise ValueError
    return to


FLAG: Final = EntryKind("true or false", _only(bool))
WHOLE: Final = EntryKind("a whole number", _only(int))
TEXT: Final = EntryKind("text", _only(str))
FOLDER: Final = EntryKind("the path of a folder", _checked(_only(str), str.strip))
DESTINATION: Final = EntryKind("a queue or topic: its name, or sb://HOST/NAME; empty for none", _destination)
TABLE: Final = EntryKind("a table of keys and values", _only(dict))
LIST: Final = EntryKind("a list of tables", _only(list))
_JSON_DURATION: Final = EntryKind("an ISO 8601 duration such as PT1M30S", _iso)
_TOML_DURATION: Final = EntryKind("an ISO 8601 duration such as PT1M30S, or a number of seconds", _iso_or_seconds)
DURATION: Final = _JSON_DURATION
"""Stands for the form's own: only TOML knows numbers of seconds."""
NAMESPACE: Final = EntryKind("lower-case letters, digits and inner dashes, at most 50 characters", _namespace)
PORT: Final = EntryKind("a port from 0 (any free one) to 65535", _whole(0, 65535))
PORTS: Final = EntryKind(
    f"a list of 1 to {PORTS_MAX} ports, each from 0 (any free one) to 65535 and given once", _ports
)
COUNT: Final = EntryKind("a whole number from 1 to 1000000", _whole(1, 1_000_000))
NODE_COUNT: Final = EntryKind(f"a whole number from 1 to {NODES_MAX}", _whole(1, NODES_MAX))
TIER: Final = EntryKind(f"one of {', '.join(TIERS)}", _checked(_only(str), TIERS.__contains__))
LIMIT: Final = EntryKind(
    f"a number from 0 to {LIMIT_MAX:.0f}", _checked(_number, lambda limit: 0 <= limit <= LIMIT_MAX)
)
TIMEOUT: Final = EntryKind(
    "a duration above zero, in seconds or as PT10M", _checked(_iso_or_seconds, lambda seconds: 0 < seconds < inf)
)
STALL_TIMEOUT: Final = EntryKind(
    f"a duration of {STALL_S_MIN:g} to {STALL_S_MAX:g} seconds, in seconds or as PT5S",
    _checked(_iso_or_seconds, lambda seconds: STALL_S_MIN <= seconds <= STALL_S_MAX),
)
RIGHTS_LIST: Final = EntryKind(f"a list of {', '.join(RIGHTS)}", _rights)


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Table:
    """A table of the file and its place in it. The keys that are asked for are known; `finish` refuses others."""

    def __init__(self, content: dict[str, Any], place: str, form: Form) -> None:
        self.place = place
        self.form = form
        self._content = content
        self._known: set[str] = set()
        self._keys = {form.key(key): key for key in content}
        if len(self._keys) < len(content):
            raise ConfigError(place, "has a key twice, in different capitals; once is allowed")

    def at(self, name: str) -> str:
        """Return the place of a key, in this form's spelling."""
        spelt = self.form.spelling(name)
        return f"{self.place}.{spelt}" if self.place else spelt

    def raw(self, name: str) -> Any:
        self._known.add(self.form.spelling(name))
        return self._content.get(self._keys.get(self.form.key(self.form.spelling(name)), ""))

    def take(self, name: str, kind: EntryKind, *, required: bool = False, secret: bool = False) -> Any:
        """Return the value of a key, or None where there is none; raise ConfigError for a wrong one."""
        value = self.raw(name)
        if value is None:
            if required:
                raise ConfigError(self.at(name), f"is missing; allowed: {kind.allowed}")
            return None
        if kind is DURATION:
            kind = self.form.duration
        try:
            return kind.read(value)
        except ValueError:
            self.refuse(name, "what it is" if secret else value, kind.allowed)

    def refuse(self, name: str, value: Any, allowed: str) -> NoReturn:
        raise ConfigError(self.at(name), f"may not be {shown(value)}; allowed: {allowed}")

    def table(self, name: str, *, required: bool = False) -> Table | None:
        content = self.take(name, TABLE, required=required)
        return None if content is None else Table(content, self.at(name), self.form)

    def tables(self, name: str) -> list[Table]:
        found: list[Table] = []
        for index, content in enumerate(self.take(name, LIST) or ()):
            place = f"{self.at(name)}[{index}]"
            if not isinstance(content, dict):
                raise ConfigError(place, f"may not be {shown(content)}; allowed: {TABLE.allowed}")
            found.append(Table(content, place, self.form))
        return found

    def finish(self) -> None:
        known = {self.form.key(name) for name in self._known}
        for key in self._content:
            if self.form.key(key) not in known:
                hint = did_you_mean(key, self._known)
                place = f"{self.place}.{key}" if self.place else key
                raise ConfigError(place, f"is not known; {hint}allowed here: {', '.join(sorted(self._known))}")


@dataclass(frozen=True, slots=True)
class Form:
    """What differs between the two kinds of file."""

    spelling: Callable[[str], str]
    key: Callable[[str], str]
    """Keys that are equal after this are the same; the emulator's do not mind capitals."""
    duration: EntryKind
    nested: bool
    """Properties have a table of their own beside the name."""


JSON: Final = Form(lambda name: name, str.lower, _JSON_DURATION, nested=True)
TOML: Final = Form(snake_case, lambda key: key, _TOML_DURATION, nested=False)


def shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 1] + "…"
