"""AMQP 1.0 without I/O, for clients and servers: types, messages, performatives, connections. Pure.

Imports nothing else of pairbus.
"""
