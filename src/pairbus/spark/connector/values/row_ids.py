"""Makes message ids for rows without one.

A task that Spark runs again gives its rows the same ids, in whatever order it sees them, so that duplicate detection at
the destination removes the copies and nothing else.

An id is a digest of the query, the batch, the partition and the row's content, and the row's number among those of
equal content. The partition is part of it because equal rows may be in several partitions, whose tasks can't count them
together; a task that is run again has the same partition. A task remembers about 100 bytes for each such row.

Pure.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_DIGEST_BYTES: Final = 16


class RowIds:
    def __init__(self, query: str, batch: str, partition: int) -> None:
        self._seed = blake2b(repr((query, batch, partition)).encode(), digest_size=32).digest()
        self._seen: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<RowIds {len(self._seen)} different rows>"

    def take(self, *content: bytes) -> str:
        """Return the id of the next row with this content."""
        digest = blake2b(key=self._seed, digest_size=_DIGEST_BYTES)
        for part in content:
            digest.update(len(part).to_bytes(8))
            digest.update(part)
        key = int.from_bytes(digest.digest())
        occurrence = self._seen.get(key, 0)
        self._seen[key] = occurrence + 1
        return f"{digest.hexdigest()}-{occurrence}"
