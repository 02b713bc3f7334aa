"""Defines the bytes of messages and journal records, on the wire and on disk.

Pure functions only; it may import `pairbus.amqp` and nothing else of the broker.
"""
