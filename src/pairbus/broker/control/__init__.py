"""Serves the control socket: faults, status and keys, for this machine only, separate from the namespaces' ports.

May import the broker's model.
"""

from .control_socket import request

__all__ = ["request"]
