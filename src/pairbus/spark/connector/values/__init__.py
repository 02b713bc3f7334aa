"""Converts between columns and messages where the two differ. Pure.

Application properties as JSON, message ids made from a row, and many messages packed into one row.
"""
