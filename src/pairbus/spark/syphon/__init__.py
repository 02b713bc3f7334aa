"""Holds the syphon on Spark, one query that brings messages home. Imports `connector`, `runtime`, `pairbus.syphon`."""
