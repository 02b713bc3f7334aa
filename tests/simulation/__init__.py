"""The real broker in a simulated world: one deterministic loop, clock, network and disk, and what judges a run.

What belongs here: the parts of that world, the workload that runs in it, and `history.py`, which the tests with real
processes use too. Modules here import what they like of pairbus; nothing in src imports them.
"""
