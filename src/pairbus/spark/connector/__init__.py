"""Holds the `servicebus` data source: readers, writer, options and schema. Imports `runtime`, not the other folders."""
