"""Holds move, archive, restore, `locked` and `carry`. Imports `connector`, `syphon` and `runtime`."""
