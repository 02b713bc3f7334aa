"""The old name of `pairbus.spark.reports.outage_series`."""

from pairbus.moved import forward

__getattr__ = forward(__name__, "pairbus.spark.reports.outage_series")
