"""Encodes and decodes values of the AMQP 1.0 type system (AMQP part 1): the names of `encoding` and `decoding`.

Values are those of `pairbus.amqp.types`. Not done here: frames, performatives, message sections.
"""

from __future__ import annotations

from pairbus.amqp.decoding import DEPTH_MAX, decode, skip
from pairbus.amqp.encoding import encode, encode_to

__all__ = ["DEPTH_MAX", "decode", "encode", "encode_to", "skip"]
