"""Holds the positions of readers by sequence number: the offset of a stream, and the positions in options. Pure."""
