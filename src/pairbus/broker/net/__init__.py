"""Ports, TLS certificates, WebSockets and host names."""
