"""The journal as the broker uses it: what is written, replayed at the start, and kept small."""
