"""Holds where a reader by sequence number stands: the offset of a stream, and the positions that options name. Pure."""
