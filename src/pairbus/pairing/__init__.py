"""Decides everything about pairing: options, events, the state of entities, routes of messages, aliases.

What belongs here is used by both APIs and does no I/O of its own: `pairbus.sync` and `pairbus.aio` carry it out. It may
import `pairbus.amqp`, `pairbus.ledger` and the SDK's messages and errors, and nothing of the broker or the wire client.
"""
