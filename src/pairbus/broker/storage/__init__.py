"""Uses the journal for the broker: writes records, replays them at the start, and keeps the journal small.

It may import `pairbus.journal`, `broker.format` and `broker.model`.
"""
