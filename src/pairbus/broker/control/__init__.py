"""The control socket: faults and questions from this machine, apart from the namespaces' ports."""

from .control_socket import request

__all__ = ["request"]
