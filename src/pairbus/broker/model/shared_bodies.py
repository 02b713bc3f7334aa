"""The copies of a published message: each is a message of its subscription, and all of them share one stored body.

Pure. The body counts once: on disk until the last copy is gone, in memory while any copy holds it,
and in the size of the topic.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf

from pairbus.amqp.codec import decode, skip
from pairbus.broker.format.content import TTL_MS_MAX, with_ttl
from pairbus.broker.format.publication import COPY_BYTES

from .message import Message, message_bytes


class Account:
    """Counts the bytes of bodies that a topic's subscriptions still have, in all and in each partition."""

    __slots__ = ("_parts", "_whole", "stored_bytes")

    def __init__(self, whole: Account | None = None) -> None:
        self.stored_bytes = 0
        self._whole = whole
        self._parts: dict[int, Account] = {}

    def part(self, partition: int) -> Account:
        """Return the account of a partition, whose bytes count here, too."""
        found = self._parts.get(partition)
        if found is None:
            found = self._parts[partition] = Account(self)
        return found

    def add(self, nbytes: int) -> None:
        self.stored_bytes += nbytes
        if self._whole is not None:
            self._whole.stored_bytes += nbytes

    def __repr__(self) -> str:
        return f"<Account: {self.stored_bytes} bytes>"


class Shared:
    """The data that the copies of one message share; `nbytes` is its size in the record without the copies."""

    __slots__ = ("account", "copies", "nbytes", "resident")

    def __init__(self, account: Account, nbytes: int) -> None:
        self.account = account
        self.nbytes = nbytes
        #: How many copies there are, and how many of them hold the content in memory.
        self.copies = 0
        self.resident = 0

    def __repr__(self) -> str:
        return f"<Shared by {self.copies} copies, {self.resident} in memory>"


class Copy(Message):
    __slots__ = ("shared",)

    shared: Shared

    def join(self, shared: Shared) -> None:
        self.shared = shared
        if not shared.copies:
            shared.account.add(self.length)
        shared.copies += 1


def let_go(message: Message) -> int:
    """Note that a message is gone, and return how many bytes of its record are of no more use."""
    shared = message.shared
    if shared is None:
        return message_bytes(message)
    shared.copies -= 1
    if shared.copies:
        return COPY_BYTES
    shared.account.add(-message.length)
    return COPY_BYTES + shared.nbytes


def load(message: Message) -> int:
    """Note that a message holds its content, and return how many more bytes of memory that takes."""
    shared = message.shared
    if shared is None:
        return message.length
    shared.resident += 1
    return message.length if shared.resident == 1 else 0


def unload(message: Message) -> int:
    """Note that a message no longer holds its content, and return how many bytes of memory that frees."""
    shared = message.shared
    if shared is None:
        return message.length
    shared.resident -= 1
    return 0 if shared.resident else message.length


def header_of(header: bytes, lifetime: float) -> bytes:
    """Return the raw header fields of a copy that lives so long: a subscription may allow less than what was sent."""
    return header if lifetime == inf else _limited(header, round(lifetime, 3))


@lru_cache(maxsize=1024)
def _limited(header: bytes, lifetime: float) -> bytes:
    ttl = decode(header, skip(header, skip(header, 0)))[0] or TTL_MS_MAX + 1
    lifetime_ms = lifetime * 1000.0
    return header if ttl <= lifetime_ms or lifetime_ms > TTL_MS_MAX else with_ttl(header, lifetime)
