"""The commands of `pairbus`, one module for each group; `cli.py` registers them and prints their errors.

A command reads its options, calls the library and prints the result; it decides nothing else. It may import everything,
but it imports heavy modules when it runs, so that `--help` stays fast.
"""
