"""Decides about the backlog: its queues and how to provision them, and how messages are rewritten and restored."""
