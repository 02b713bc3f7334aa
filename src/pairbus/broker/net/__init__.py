"""Owns ports, TLS certificates, WebSockets and host names.

May import the broker's http, and storage to write files durably; it knows nothing of entities.
"""
