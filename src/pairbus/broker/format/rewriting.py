"""Rewrites the parts of stored content that a rule's action changes; all other bytes stay as they were. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import inf
from typing import Any

from pairbus.amqp.codec import encode, skip
from pairbus.amqp.message import split, with_application_properties, with_properties
from pairbus.amqp.types import Symbol, Timestamp

from .content import TTL_MS_MAX, Content, stored_pairs, with_ttl
from .content_checks import TIME_MS_MAX


def rewritten(
    content: Content,
    properties: Mapping[str, Any],
    removed: Set[str],
    fields: Mapping[str, Any],
    annotations: Mapping[str, Any],
    lifetime: float | None,
    now: float,
) -> Content:
    """Return content with these application properties set and removed, and these fields of the properties and
    annotations set (None clears one); `lifetime` is None where it stays, infinity where there is no limit."""
    header, count, pairs_bytes, body, _ = content
    pairs, bare = body[:pairs_bytes], body[pairs_bytes:]
    if annotations:
        count, pairs = _with_pairs(count, pairs, annotations)
    fields = dict(fields)
    if lifetime is not None:
        header = _with_lifetime(header, lifetime)
        fields["absolute_expiry_time"] = None
        if TTL_MS_MAX < lifetime * 1000 < inf:
            # Longer than the header can say: it is told by its beginning and end.
            fields["creation_time"] = Timestamp(int(now * 1000))
            fields["absolute_expiry_time"] = Timestamp(min(int((now + lifetime) * 1000), TIME_MS_MAX))
    if fields:
        bare = with_properties(bare, split(bare), **fields)
    bare = with_application_properties(bare, split(bare), properties, removed)
    return header, count, len(pairs), pairs + bare, None


def _with_pairs(count: int, pairs: bytes, annotations: Mapping[str, Any]) -> tuple[int, bytes]:
    kept = [pairs[start:end] for key, start, _, end in stored_pairs(pairs, count) if key not in annotations]
    kept += [encode(Symbol(key)) + encode(value) for key, value in annotations.items() if value is not None]
    return len(kept), b"".join(kept)


def _with_lifetime(header: bytes, lifetime: float) -> bytes:
    if lifetime != inf:
        return with_ttl(header, lifetime)
    at = skip(header, skip(header, 0))
    return header[:at] + b"\x40" + header[skip(header, at) :]
