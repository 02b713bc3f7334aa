"""Counts and records what the broker does: metrics, metering, the ledger, the inventory.

May import the broker's operations, model and format; it decides nothing.
"""
