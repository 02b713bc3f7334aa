"""The backlog: its queues, and what a message carries while it waits there. Pure."""
