"""Makes the short name known: Spark looks for packages `pyspark_*` with a `DefaultSource`."""

from pairbus.spark.connector.source import ServiceBusDataSource as DefaultSource

__all__ = ["DefaultSource"]
