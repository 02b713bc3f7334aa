"""Re-exports `encoding` and `decoding`: values of the AMQP 1.0 type system as bytes, and back (AMQP part 1).

Values are those of `pairbus.amqp.types`. Frames, performatives and message sections are handled elsewhere.
"""

from __future__ import annotations

from pairbus.amqp.decoding import DEPTH_MAX, decode, skip
from pairbus.amqp.encoding import encode, encode_to

__all__ = ["DEPTH_MAX", "decode", "encode", "encode_to", "skip"]
