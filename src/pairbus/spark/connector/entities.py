"""Decides which entities an `entity` option names: paths and globs against what a namespace has. Pure.

    orders            a queue            orders/$DeadLetterQueue      its dead letters
    news/Subscriptions/all               a subscription; news/Subscriptions/*, all of them
    order*            every queue whose name fits; a glob never finds backlog or dead-letter queues unless it names them

Plain paths are used without looking them up, so they need no Manage right.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Final

from .options import InvalidOption

DEAD_LETTERS: Final = "$DeadLetterQueue"
_SUBSCRIPTIONS: Final = re.compile(r"/subscriptions/", re.IGNORECASE)
_TRANSFER: Final = "x-servicebus-transfer"


def listed(text: str) -> list[str]:
    """Return the patterns of an option, in order, each once. Raises InvalidOption."""
    patterns = [part.strip().strip("/") for part in text.split(",")]
    if not all(patterns):
        raise InvalidOption(f"entity {text!r} has an empty place in its list")
    return _once(patterns)


def is_glob(pattern: str) -> bool:
    return any(sign in pattern for sign in "*?[")


def resolved(patterns: Iterable[str], queues: Iterable[str], subscriptions: Iterable[str]) -> list[str]:
    """Return the paths for the patterns; `subscriptions` as topic/Subscriptions/name.

    Raises InvalidOption for a glob that finds nothing.
    """
    queues, subscriptions = sorted(queues), sorted(subscriptions)
    found: list[str] = []
    for pattern in patterns:
        if not is_glob(pattern):
            found.append(pattern)
            continue
        paths = _matching(pattern, queues, subscriptions)
        if not paths:
            raise InvalidOption(
                f"no queue or subscription fits entity {pattern!r}; there are {_some(queues, subscriptions)}"
            )
        found += paths
    return _once(found)


def _once(names: Iterable[str]) -> list[str]:
    """Return each of the names once, as it is first spelled: they have no letter case."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(name.lower(), name)
    return list(found.values())


def without_dead_letters(path: str) -> tuple[str, bool]:
    """Return the entity, and whether its dead-letter queue was meant."""
    is_dead = path.lower().endswith("/" + DEAD_LETTERS.lower())
    return (path[: -len(DEAD_LETTERS) - 1] if is_dead else path), is_dead


def subscription_of(path: str) -> tuple[str, str, str]:
    """Return topic, separator and subscription; the last two are "" for a queue or a topic."""
    found = _SUBSCRIPTIONS.search(path)
    return (path, "", "") if found is None else (path[: found.start()], found.group(), path[found.end() :])


def _matching(pattern: str, queues: list[str], subscriptions: list[str]) -> list[str]:
    head, is_dead = without_dead_letters(pattern)
    dead = "/" + DEAD_LETTERS if is_dead else ""
    if _SUBSCRIPTIONS.search(head):
        wanted = _SUBSCRIPTIONS.sub("/Subscriptions/", head)
        return [path + dead for path in subscriptions if fnmatch.fnmatchcase(path.lower(), wanted.lower())]
    hidden = _TRANSFER not in head.lower()
    return [
        path + dead
        for path in queues
        if fnmatch.fnmatchcase(path.lower(), head.lower()) and not (hidden and _TRANSFER in path.lower())
    ]


def _some(queues: list[str], subscriptions: list[str]) -> str:
    names = queues + subscriptions
    if not names:
        return "none at all"
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
