"""Decides which encoded messages share a transfer: batches that fit the link's limit. Pure.

See docs/reference/protocol.md#batches; the message format is 0x80013700.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pairbus.amqp.errors import NOT_ALLOWED

from .errors import TooLarge

BATCH_SIZE_PROPERTY = "com.microsoft:max-message-batch-size"
#: Descriptor, constructor and length of the data section that each message is wrapped in.
WRAP_BYTES = 8
BATCH_BYTES_MAX = 1024 * 1024
MESSAGES_MAX = 4500
#: Limit of one transfer: larger ones don't reduce the cost of a message, and are all or nothing.
GROUP_BYTES_MAX = 200 * 1024
GROUP_MAX = 250
_STANDARD_BYTES = 256 * 1024


class BatchHistory:
    """Learns from the answers whether a destination takes several messages in one transfer.

    A partitioned entity that detects duplicates accepts no transfer with different ids and no key (amqp:not-allowed),
    and a sender without the Manage right can't look that up. If it accepts all messages one by one after it refused the
    batch, it refused them for being a batch; one bad message among them would be refused again.
    """

    __slots__ = ("_left", "sends_singly")

    def __init__(self) -> None:
        self._left = 0
        #: Whether to send one by one from now on.
        self.sends_singly = False

    def refused(self, condition: str, count: int) -> None:
        """Note that a batch of so many was refused; each is then sent alone."""
        self._left = count if condition == NOT_ALLOWED and count > 1 else 0

    def answered_alone(self, is_confirmed: bool) -> None:
        """Note the answer to one of them."""
        if not is_confirmed:
            self._left = 0
        elif self._left:
            self._left -= 1
            self.sends_singly = self.sends_singly or not self._left


def batch_bytes_max(max_message_size: int | None, properties: Mapping[Any, Any] | None) -> int:
    """Return the limit of a batch as the SDK computes it: the link's own property, else a MiB where a message may be
    as large, else 256 KiB."""
    stated = (properties or {}).get(BATCH_SIZE_PROPERTY)
    if isinstance(stated, int) and stated > 0:
        return int(stated)
    if not max_message_size:
        return BATCH_BYTES_MAX
    return BATCH_BYTES_MAX if max_message_size >= BATCH_BYTES_MAX else min(max_message_size, _STANDARD_BYTES)


def cut(payloads: Sequence[bytes], bytes_max: int, messages_max: int = MESSAGES_MAX) -> Iterator[range]:
    """Yield ranges of indexes, in order, each as large as fits. Raise for a message that fits nowhere, before any."""
    for index, payload in enumerate(payloads):
        if len(payload) + WRAP_BYTES > bytes_max:
            raise TooLarge(
                "amqp:link:message-size-exceeded",
                f"message {index} of {len(payloads)} has {len(payload)} bytes; a batch on this link holds {bytes_max}",
            )
    return _cut(payloads, None, bytes_max, messages_max)


def group(payloads: Sequence[bytes], keys: Sequence[object], bytes_max: int) -> Iterator[range]:
    """Do as `cut`, but put only neighbours of the same key together, and one that fits nowhere is by itself.

    A key: what messages in one batch must have in common, which is their session and their partition key."""
    return _cut(payloads, keys, min(bytes_max, GROUP_BYTES_MAX), GROUP_MAX)


def _cut(
    payloads: Sequence[bytes], keys: Sequence[object] | None, bytes_max: int, messages_max: int
) -> Iterator[range]:
    start = size = 0
    for index, payload in enumerate(payloads):
        wrapped = len(payload) + WRAP_BYTES
        if index > start and (
            size + wrapped > bytes_max
            or index - start >= messages_max
            or (keys is not None and keys[index] != keys[start])
        ):
            yield range(start, index)
            start, size = index, 0
        size += wrapped
    if start < len(payloads):
        yield range(start, len(payloads))
