"""Owns ports, TLS certificates, WebSockets and host names.

May import the broker's http, access for the limits of clients without a token, and storage to write files durably; it
knows nothing of entities.
"""
