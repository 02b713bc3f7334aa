"""Holds the `servicebus` data source: readers, writer, options, schema, connections; imports no other Spark folder."""
