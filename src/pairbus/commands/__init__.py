"""The commands of `pairbus`, a module each; `cli.py` is their door."""
