"""Creates lock tokens: random, and cheap enough to make one per delivery."""

from __future__ import annotations

import os
from collections.abc import Callable


def random_tokens() -> Callable[[], bytes]:
    """Return a function that makes lock tokens: version 4 uuids in .NET's byte order
    (docs/reference/protocol.md#lock-tokens), many from one call to the system."""
    pool: list[bytes] = []

    def token() -> bytes:
        if not pool:
            raw = bytearray(os.urandom(16 * 256))
            for at in range(0, len(raw), 16):
                raw[at + 7] = raw[at + 7] & 0x0F | 0x40
                raw[at + 8] = raw[at + 8] & 0x3F | 0x80
            pool.extend(bytes(raw[at : at + 16]) for at in range(0, len(raw), 16))
        return pool.pop()

    return token
