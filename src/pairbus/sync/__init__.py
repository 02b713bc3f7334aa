"""Paired clients on threads, over the official SDK's sync API. Import the names from `pairbus`."""
