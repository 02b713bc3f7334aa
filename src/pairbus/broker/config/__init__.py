"""Reads configuration files and makes a namespace match one.

May import the broker's access, operations and model, and of http how durations are written.
"""
