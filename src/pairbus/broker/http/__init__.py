"""Serves HTTP clients: the management API and its XML documents, health and metrics.

May import the broker's access, operations and model.
"""
