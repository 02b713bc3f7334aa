"""The old name of `pairbus.spark.connector.options`."""

from pairbus.moved import forward

__getattr__ = forward(__name__, "pairbus.spark.connector.options")
