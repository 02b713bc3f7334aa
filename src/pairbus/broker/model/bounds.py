"""Defines the checks that all descriptions share: the values of their fields, and which names are allowed.

A check is a test of the value and a text for what it allows. description.py and rule_description.py say which field has
which check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pairbus.errors import PairbusError

NAME_CHARS_MAX = 260
PART_NAME_CHARS_MAX = 50

Check = tuple[Callable[[Any], bool], str]

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._~/-]*[A-Za-z0-9])?", re.ASCII)
_PART_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_RULE_NAME = re.compile(r"\$?[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?", re.ASCII)


class InvalidDescription(PairbusError, ValueError):
    """Raised for a field with a value that it may not have. `field` is our name for it; atom.py knows the service's."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} may not be {value!r}; allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


def check_all(holder: object, checks: Mapping[str, Check]) -> None:
    """Raise `InvalidDescription` for the first attribute that fails its check."""
    for name, (right, allowed) in checks.items():
        value = getattr(holder, name)
        if not right(value):
            raise InvalidDescription(name, value, allowed)


def validate_name(name: str) -> None:
    """Raise `InvalidDescription` unless this can be the name of a queue or topic."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX:
        raise InvalidDescription("name", name, f"1 to {NAME_CHARS_MAX} characters")
    segments = name.split("/")
    if not _NAME.fullmatch(name) or "" in segments:
        raise InvalidDescription(
            "name",
            name,
            "letters, digits, and . - _ ~ / between them; it starts and ends with a letter or digit, no empty segment",
        )
    for index, segment in enumerate(segments):
        # Dots are folded away by HTTP clients; the other one is how a subscription is addressed
        # (docs/reference/protocol.md#addresses).
        if segment in (".", "..") or (index and segment.lower() == "subscriptions"):
            raise InvalidDescription("name", name, f"a name without the segment {segment!r}")


def validate_subscription_name(name: str) -> None:
    """Raise `InvalidDescription` unless this can be the name of a subscription."""
    _part("name", name, _PART_NAME, "letters, digits, and . - _ between them")


def validate_rule_name(name: str) -> None:
    """Raise `InvalidDescription` unless this can be the name of a rule."""
    _part("name", name, _RULE_NAME, "letters, digits, . - _, and $ in front, as in $Default")


def _part(field: str, name: str, form: re.Pattern[str], allowed: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= PART_NAME_CHARS_MAX or not form.fullmatch(name):
        raise InvalidDescription(field, name, f"1 to {PART_NAME_CHARS_MAX} characters: {allowed}")


def flag(value: object) -> bool:
    return isinstance(value, bool)


def whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def seconds(low: float, high: float) -> Callable[[Any], bool]:
    """Past `low`, up to `high`. A NaN compares false and is out."""
    return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and low < value <= high


def optional_text(chars_max: int) -> Callable[[Any], bool]:
    return lambda value: value is None or (isinstance(value, str) and len(value) <= chars_max)


BOOLEAN: Check = (flag, "true or false")
