"""Paired namespaces for Azure Service Bus, and the embedded broker they are proved on."""

__version__ = "0.1.0"
