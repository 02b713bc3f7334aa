"""Generates the traffic of a drill: which messages a sender sends, and when, decided by a seed.

Pure: the same seed gives the same messages at the same times. Ids say where a message belongs and which one it is, so
that a missing message can be named.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from .plan import BODY_BYTES

#: Of the time between two sends.
JITTER: Final = 0.5


class PlannedSend(NamedTuple):
    """Messages to send in one call, `at_s` seconds after the traffic began."""

    at_s: float
    ids: list[str]
    bodies: list[bytes]


def planned_sends(entity: str, messages: int, seconds: float, list_size: int, seed: int) -> Iterator[PlannedSend]:
    """Yield `messages` in `seconds`, and then more at the same pace, without end."""
    count = -(-messages // list_size)
    width = len(str(messages))
    for index in itertools.count():
        # the last of those that are planned may be a short list
        first = index * list_size if index < count else messages + (index - count) * list_size
        numbers = range(first, min(messages, first + list_size) if index < count else first + list_size)
        ids = [f"{entity}-{number + 1:0{width}d}" for number in numbers]
        at_s = (index + JITTER * _dice(seed, ids[0], "when")) * seconds / count
        yield PlannedSend(at_s, ids, [_body(seed, each) for each in ids])


def traffic_ends(seconds: float, after_s: float, told_at: float | None) -> float:
    """Return when a sender that was asked to stop at `told_at` stops, in seconds after the traffic began.

    It sends all that is planned; where the outage took longer, it goes on for a while, so that the return is seen.
    """
    if told_at is None:
        return math.inf
    return seconds if told_at < seconds else told_at + after_s


def _body(seed: int, message_id: str) -> bytes:
    """Return a body that depends on the id, so that mixed-up bodies are noticed."""
    low, high = BODY_BYTES
    size = low + int((high - low) * _dice(seed, message_id, "size"))
    block = hashlib.sha512(f"{seed} {message_id}".encode()).hexdigest().encode()
    return (block * (size // len(block) + 1))[:size]


def _dice(seed: int, *what: str) -> float:
    """Return 0 ≤ x < 1, the same for the same words: a hash, so that the order of calls does not matter."""
    digest = hashlib.blake2b(" ".join([str(seed), *what]).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32
